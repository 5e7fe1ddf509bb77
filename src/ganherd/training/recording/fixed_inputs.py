"""Choose the noise and images that members are measured on: the same at every step, so that only training matters."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.rng import Streams
from ganherd.training.setup.assemble import PreparedHerd

_MEMBERS_AT_ONCE = 16


def at_once(herd: StackedHerd) -> int:
    """Return how many members are measured together.

    On a CPU these are fewer if images are large, because measuring more at once takes memory and is not faster.
    """
    pixels = math.prod(herd.feed.x.shape[1:])
    return max(1, min(_MEMBERS_AT_ONCE, (1 << 14) // pixels)) if herd.device.type == "cpu" else _MEMBERS_AT_ONCE


def fixed_noise(herd: StackedHerd, members: slice, images: int) -> tuple[np.ndarray, Tensor]:
    """Return the random keys [n] of some members, and the noise [n, images, Z] for their generators.

    The keys depend on the members' seeds and slots, but not on how often a member was repaired, so that its noise stays
    the same.

    Args:
        members: The rows of the members on this rank.
        images: The number of noise vectors for each member.
    """
    seed, slot = (herd.state[f"set.{name}"].cpu().numpy()[members] for name in ("seed", "slot"))
    keys = rng.keys(np.zeros(len(seed), np.int64), seed, slot)
    shape, dtype = (images, herd.rules.latent), herd.state["g.params"].dtype
    z = Streams(keys, 0).prior((rng.PREVIEW,), shape, herd.rules.prior, dtype, herd.priors(members))
    return keys, z.to(herd.device)


def held_out_rows(prepared: PreparedHerd, member: int, most: int) -> np.ndarray:
    """Return at most `most` row numbers of held-out images: those of the member's class, or all if it has none."""
    data, label = prepared.dataset, int(prepared.label[member])
    return evenly(np.arange(len(data.x_test)) if label < 0 else np.flatnonzero(data.y_test == label), most)


def evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the row numbers, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
