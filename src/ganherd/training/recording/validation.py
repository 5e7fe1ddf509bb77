"""Measure the cost of discriminators on training data and on held-out data: the gap shows how much they memorise.

Both costs use the same samples, on fixed noise, and the same number of real images. The nets run as in a step (batch norm with
the statistics of the batch), and nothing in them is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.engine.engines import has_kernels
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import Blueprint, State, buffers_of, members_of
from ganherd.runs.records import COSTS
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError

_AT_ONCE = 8  # members


@dataclass(frozen=True)
class _Block:
    """Some members of one breed, with the noise and the images that they are measured on."""

    members: slice
    breed: Breed
    z: Tensor  # [n, B, Z]
    real: dict[str, tuple[Tensor, Tensor]]  # by the name of its cost: x [n, B, …] in model units, y [n, B]
    keys: np.ndarray  # [n]


class Validation:
    """Measure all members on fixed data and noise."""

    def __init__(self, prepared: PreparedHerd, images: int) -> None:
        """Choose at most `images` training and held-out images for each member; fewer if a member has fewer."""
        self._herd, self._prepared = prepared.herd, prepared
        held = [len(self._held_out(member, images)) for member in range(prepared.size)]
        self.images = min(images, int(prepared.count.min()), *held)
        if self.images < 2:
            raise UserError(
                f"run.validation needs at least two held-out {prepared.dataset.kind} for every member: "
                "set data.holdout, or run.validation to 0."
            )
        rows = [
            (_evenly(self._herd.feed.member_rows(row), images), self._held_out(member, images))
            for row, member in enumerate(prepared.own)
        ]
        kernels, precision = has_kernels(self._herd), self._herd.rules.precision
        self._play = {net: NetworkCall(net, kernels, precision) for net in self._nets()}
        self._blocks = [
            self._block(members, breed, [[_evenly(each, self.images) for each in both] for both in rows[members]])
            for members, breed in self._herd.blocks(_AT_ONCE)
        ]

    @torch.no_grad()
    def look(self) -> dict[str, list[float]]:
        """Return the cost of the discriminators of the whole herd by its name: the loss without penalties and input noise."""
        costs = [self._costs(block) for block in self._blocks]
        own = torch.stack([torch.cat([block_costs[name] for block_costs in costs]) for name in COSTS], 1)  # [n, 2]
        return dict(zip(COSTS, self._prepared.ranks.all_gather(own).T.tolist(), strict=True))

    def _costs(self, block: _Block) -> dict[str, Tensor]:
        herd = self._herd
        state = block.breed.view(members_of(herd.state, block.members))
        own = {k: v.to(herd.device) for k, v in state.items() if k[1] == "." or k == "set.loss"}
        y = block.real["cost_train"][1]
        fake = self._call(block, own, "g", block.z, y, 0)
        judged = self._call(block, own, "d", fake, y, 1).flatten(1)
        out = {}
        for call, (name, (x, labels)) in enumerate(block.real.items(), 2):
            logits = self._call(block, own, "d", x, labels, call).flatten(1)
            out[name] = herd.rules.game.d(own["set.loss"], logits.double(), judged.double()).cpu()
        return out

    def _call(self, block: _Block, state: State, kind: str, x: Tensor, y: Tensor, call: int) -> Tensor:
        """Return the output [n, B, …] of a net; samples take the labels of the training images."""
        net = block.breed.g if kind == "g" else self._herd.d
        draws = Streams(torch.from_numpy(rng.keys(block.keys, rng.PREVIEW, call)).to(self._herd.device), 0)
        inputs = (x, y) if net.takes_label else (x,)
        views, buffers = net.views(state[f"{kind}.params"]), buffers_of(state, kind)
        return self._play[net](views, buffers, lambda: draws.keys(rng.INSIDE), inputs)[0].to(x.dtype)

    # -- what never changes -----------------------------------------------------------------------------------------

    def _block(self, members: slice, breed: Breed, rows: list[list[np.ndarray]]) -> _Block:
        herd, data = self._herd, self._prepared.dataset
        seed, slot = (herd.state[f"set.{name}"].cpu().numpy()[members] for name in ("seed", "slot"))
        keys = rng.keys(np.zeros(len(seed), np.int64), seed, slot)
        shape, dtype = (self.images, herd.rules.latent), herd.state["g.params"].dtype
        z = Streams(keys, 0).prior((rng.PREVIEW,), shape, herd.rules.prior, dtype, herd.priors(members))
        trained = herd.feed.gather(torch.from_numpy(np.stack([own for own, _ in rows])).to(herd.device))
        held = np.stack([held for _, held in rows])
        x = torch.from_numpy(np.ascontiguousarray(data.x_test[held.reshape(-1)])).to(herd.device, dtype)
        x = x.sub_(data.offset).div_(data.scale).unflatten(0, held.shape)
        y = torch.from_numpy(data.y_test[held]).to(herd.device)
        return _Block(members, breed, z.to(herd.device), dict(zip(COSTS, (trained, (x, y)), strict=True)), keys)

    def _held_out(self, member: int, most: int) -> np.ndarray:
        """Return rows of the held-out split that have the member's class."""
        data, label = self._prepared.dataset, int(self._prepared.label[member])
        return _evenly(np.arange(len(data.x_test)) if label < 0 else np.flatnonzero(data.y_test == label), most)

    def _nets(self) -> list[Blueprint]:
        return [self._herd.d, *(breed.g for breed in self._herd.breeds.all)]


def _evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the rows, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
