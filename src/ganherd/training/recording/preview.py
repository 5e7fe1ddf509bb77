"""Generate images of every member on fixed noise while it trains: for pictures, and for a cheap score of the herd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ganherd.data.units import to_data
from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.evaluation import EvaluationCall
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.lowering.vmap import Tensors
from ganherd.herd.state import Blueprint, buffers_of, members_of
from ganherd.training.recording.fixed_inputs import at_once, fixed_noise
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.viz import pictures
from ganherd.viz.sheets import Heading, draw_samples, draw_sheet

_IMAGES = 64  # the number of images of each member


class Preview:
    """Generate images of all members on fixed noise, and compare their mean and standard deviation with those of the data."""

    def __init__(self, prepared: PreparedHerd) -> None:
        """Measure the mean and standard deviation of each member's data."""
        self._prepared = prepared
        feed = prepared.herd.feed
        moments = [_moments(self._rows(m)) for m in range(prepared.herd.num_members)] if len(feed.x) else []
        self._mean = torch.stack([mean for mean, _ in moments])  # [N, pixels]
        self._std = torch.stack([std for _, std in moments])
        self.images = torch.empty(0)
        self._plays: dict[Breed, NetworkCall] = {}
        self._evaluated = {breed: EvaluationCall(breed.g.module) for breed in prepared.herd.breeds.all}
        self._last: tuple[int, float] | None = None  # step and score of the last look

    def _rows(self, member: int) -> Tensor:
        """Return the first images of a member's data [at most 2000, pixels], in the range that nets use."""
        feed = self._prepared.herd.feed
        own = feed.member_rows(member)[:2000]
        return feed.gather(torch.tensor(own).to(feed.x.device)[None])[0][0].cpu().double().flatten(1)

    def look(self, step: int) -> float:
        """Set `images` to new samples of all members, and return a score of the herd; lower is better.

        The score is the squared difference between the means and standard deviations of samples and data, averaged over
        pixels and members. A second call at the same step returns the result of the first, unless `forget` was called.
        Called by all ranks together.
        """
        if self._last is None or self._last[0] != step:
            self._last = step, self._look()
        return self._last[1]

    def forget(self) -> None:
        """Discard the result of the last `look`, because members were changed without a training step."""
        self._last = None

    def _look(self) -> float:
        """Generate `images`, and return the score of the herd; see `look`."""
        self.images = self.generate(_IMAGES)
        mean, std = zip(*(_moments(x.double().flatten(1)) for x in self.images), strict=True)
        fake_mean, fake_std = torch.stack(mean), torch.stack(std)
        distance = ((fake_mean - self._mean).square() + (fake_std - self._std).square()).mean(1)  # [N]
        return float(self._prepared.ranks.all_gather(distance).mean())

    def generate(self, images: int) -> Tensor:
        """Return images [n, images, …] of all members of this rank on fixed noise, in the range that nets use."""
        herd = self._prepared.herd
        blocks = herd.blocks(at_once(herd) * max(1, _IMAGES // images))
        with torch.no_grad():
            return torch.cat([self._images_of(block, breed, images) for block, breed in blocks])

    def _images_of(self, block: slice, breed: Breed, images: int) -> Tensor:
        """Return images [n, images, …] of consecutive members of one breed, given by their rows on this rank."""
        herd = self._prepared.herd
        state = breed.view(members_of(herd.state, block))
        rows = state.get("g.ema", state["g.params"]).to(herd.device)
        seeds, z = fixed_noise(herd, block, images)
        views = breed.g.views(rows)
        buffers = {k: v.to(herd.device) for k, v in buffers_of(state, "g").items()}
        inputs: tuple[Tensor, ...] = (z,)
        if breed.g.takes_label:
            each = [self._prepared.labels_of(member) or [0] for member in self._prepared.own[block]]
            turns = np.stack([np.resize(np.array(labels), images) for labels in each])
            inputs += (torch.from_numpy(turns).to(herd.device),)
        keys = torch.from_numpy(rng.keys(seeds, rng.PREVIEW, rng.INSIDE)).to(herd.device)
        return self._call(breed, views, buffers, keys, inputs).cpu()

    def _call(self, breed: Breed, views: Tensors, buffers: Tensors, keys: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the images of some members [n, images, …]: all at once, or one by one if each needs a copy of the net."""
        tensors = views | buffers
        each = [
            ({k: v[row] for k, v in tensors.items()}, tuple(v[row] for v in inputs), keys[row])
            for row in range(len(keys))
        ]
        evaluated = self._evaluated[breed]
        if evaluated.needs_copies(*each[0]):
            return torch.stack([evaluated(*member) for member in each])
        if breed not in self._plays:
            net = Blueprint(copy_module(breed.g.module).eval())
            net.adopt(breed.g.traits)
            self._plays[breed] = NetworkCall(net)
        return self._plays[breed](views, buffers, lambda: keys, inputs)[0]

    def draw(self, path: Path, title: str, step: int) -> None:
        """Draw the images of the last look, a row for each member of the first replica. Only the first rank draws.

        Args:
            title: The title of the picture.
            step: The step of the last look.
        """
        data, members = self._prepared.dataset, min(self._prepared.members, pictures.MOST_ROWS)
        shown = self.images[:, :12] if data.is_image else self.images
        images = self._prepared.ranks.fetch_to_first({"images": shown}, range(members))["images"]
        if not self._prepared.ranks.is_first:
            return
        x = to_data(images.float(), data)
        path.parent.mkdir(exist_ok=True)
        recipe, shown_of = self._prepared.recipe, self._prepared.members
        of = f" of {shown_of:,}" if members < shown_of else ""
        seeds = f" (the first of {recipe.herd.seeds})" if recipe.herd.seeds > 1 else ""
        facts = [f"step {step:,}", f"seed {recipe.run.seed}{seeds}", f"{members}{of} members, each on its fixed noise"]
        heading = Heading(title, facts)
        if data.is_image:
            pixels = x.nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8).numpy()
            named = self._prepared
            names = [named.label_name(member) or named.slot_name(member) for member in range(members)]
            pictures.save(draw_sheet(list(pixels), names, heading), path)
        else:
            points = x.flatten(0, 1).numpy()
            pictures.save(draw_samples(points, data=data.x, heading=heading, view=data.view_of(points)), path)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation [pixels] of images [B, pixels]."""
    return x.mean(0), x.std(0, unbiased=False)
