"""Draw pictures of every member on fixed noise while it trains, with a cheap score of the herd."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.engine.engines import Herd
from ganherd.herd.evaluation import EvaluationCall
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.lowering.vmap import Tensors
from ganherd.herd.rng import Streams
from ganherd.herd.state import Blueprint, buffers_of, members_of
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.viz import pictures

_IMAGES = 64  # of each member
_MEMBERS_AT_ONCE = 16


def at_once(herd: Herd) -> int:
    """How many members are looked at together: fewer of large images on a CPU, where it gains nothing but takes memory."""
    pixels = math.prod(herd.feed.x.shape[1:])
    return max(1, min(_MEMBERS_AT_ONCE, (1 << 14) // pixels)) if herd.device.type == "cpu" else _MEMBERS_AT_ONCE


def _evaluated(net: Blueprint) -> Blueprint:
    """Return the same net in evaluation mode."""
    found = Blueprint(copy_module(net.module).eval())
    found.adopt(net.traits)
    return found


class Preview:
    """Generate images of all members, and compare their moments with those of the members' data."""

    def __init__(self, assembly: PreparedHerd) -> None:
        self._assembly = assembly
        feed = assembly.herd.feed
        moments = [_moments(self._rows(m)) for m in range(assembly.herd.num_members)] if len(feed.x) else []
        self._mean = torch.stack([mean for mean, _ in moments])  # [N, pixels]
        self._std = torch.stack([std for _, std in moments])
        self.images = torch.empty(0)
        self._plays: dict[Breed, NetworkCall] = {}
        self._evaluated = {breed: EvaluationCall(breed.g.module) for breed in assembly.herd.breeds.all}
        self._found: tuple[int, tuple[float, list[float]]] | None = None

    def _rows(self, member: int) -> Tensor:
        """The data of the member in that row, in model units; at most 2,000 of them tell its moments well enough."""
        feed = self._assembly.herd.feed
        own = feed.member_rows(member)[:2000]
        return feed.gather(torch.tensor(own).to(feed.x.device)[None])[0][0].cpu().double().flatten(1)

    def look(self, step: int) -> tuple[float, list[float]]:
        """(score of the whole herd, spread of each of this rank's members against its data); the images stay for the picture.

        A second look at the same step is the first one, unless it was forgotten.
        """
        if self._found is None or self._found[0] != step:
            self._found = step, self._look()
        return self._found[1]

    def forget(self) -> None:
        """Discard the last look, because members changed without a step."""
        self._found = None

    def _look(self) -> tuple[float, list[float]]:
        blocks = self._assembly.herd.blocks(at_once(self._assembly.herd))
        with torch.no_grad():
            out = [self._look_at(block, breed) for block, breed in blocks]
        self.images = torch.cat(out)  # [N, 64, …] in model units
        mean, std = zip(*(_moments(x.double().flatten(1)) for x in self.images), strict=True)
        fake_mean, fake_std = torch.stack(mean), torch.stack(std)
        distance = ((fake_mean - self._mean).square() + (fake_std - self._std).square()).mean(1)  # [N]
        spread = fake_std.mean(1) / self._std.mean(1).clamp(min=1e-12)
        return float(self._assembly.ranks.all_gather(distance).mean()), spread.tolist()

    def _look_at(self, block: slice, breed: Breed) -> Tensor:
        """[n, 64, …] the images of some members, which are of one breed."""
        herd = self._assembly.herd
        state = breed.view(members_of(herd.state, block))
        rows = state.get("g.ema", state["g.params"]).to(herd.device)
        seeds = rng.keys(np.zeros(len(rows), np.int64), *(state[f"set.{k}"].cpu().numpy() for k in ("seed", "slot")))
        shape, prior = (_IMAGES, herd.rules.latent), herd.rules.prior
        z = Streams(seeds, 0).prior((rng.PREVIEW,), shape, prior, rows.dtype, herd.priors(block))
        views = breed.g.views(rows)
        buffers = {k: v.to(herd.device) for k, v in buffers_of(state, "g").items()}
        inputs: tuple[Tensor, ...] = (z.to(herd.device),)
        if breed.g.takes_label:
            each = [self._assembly.labels_of(member) or [0] for member in self._assembly.own[block]]
            turns = np.stack([np.resize(np.array(labels), _IMAGES) for labels in each])
            inputs += (torch.from_numpy(turns).to(herd.device),)
        keys = torch.from_numpy(rng.keys(seeds, rng.PREVIEW, rng.INSIDE)).to(herd.device)
        return self._images(breed, views, buffers, keys, inputs).cpu()

    def _images(
        self, breed: Breed, views: Tensors, buffers: Tensors, keys: Tensor, inputs: tuple[Tensor, ...]
    ) -> Tensor:
        """Return the images of some members [n, 64, …]: all at once, or of one after another if each needs a copy of the net."""
        each = [
            (
                {name: value[row] for name, value in (views | buffers).items()},
                tuple(value[row] for value in inputs),
                key,
            )
            for row, key in enumerate(keys)
        ]
        evaluated = self._evaluated[breed]
        if evaluated.needs_copies(*each[0]):
            return torch.stack([evaluated(*member) for member in each])
        if breed not in self._plays:
            self._plays[breed] = NetworkCall(_evaluated(breed.g))
        return self._plays[breed](views, buffers, lambda: keys, inputs)[0]

    def draw(self, path: Path) -> None:
        """The images of the last look, a row for each member of the first replica; drawn by the first rank."""
        data, members = self._assembly.dataset, min(self._assembly.members, pictures.MOST_ROWS)
        shown = self.images[:, :12] if data.is_image else self.images
        found = self._assembly.ranks.fetch_to_first({"images": shown}, range(members))["images"]
        if not self._assembly.ranks.is_first:
            return
        x = found.float() * data.scale + data.offset
        path.parent.mkdir(exist_ok=True)
        if data.is_image:
            pixels = x.nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8).numpy()
            label = self._assembly.label[:members]
            names = [data.labels[k] if k >= 0 else self._assembly.slot_name(m) for m, k in enumerate(label.tolist())]
            pictures.save(pictures.draw_grid(list(pixels), names), path)
        else:
            pictures.save(pictures.draw_beside(x.flatten(0, 1).numpy(), data.x), path)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.std(0, unbiased=False)
