"""A look at every member while it trains, on noise that never changes: pictures, a cheap score, and signs of collapse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from ganherd import pictures
from ganherd.herd import streams
from ganherd.herd.state import bases, buffers_of
from ganherd.herd.streams import MemberRandomness, Streams
from ganherd.run.assemble import Assembly

_IMAGES = 64  # of each member
_MEMBERS_AT_ONCE = 16


class Preview:
    """Images of all members now, and how their moments compare with their own data's."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        feed = assembly.herd.feed
        moments = [_moments(self._rows(m)) for m in range(assembly.herd.size)] if len(feed.x) else []
        self._mean = torch.stack([mean for mean, _ in moments])  # [N, pixels]
        self._std = torch.stack([std for _, std in moments])
        self.images = torch.empty(0)
        self._fusable = True

    def _rows(self, member: int) -> Tensor:
        """A member's data in model units; at most 2,000 of them tell its moments well enough."""
        feed = self._assembly.herd.feed
        own = feed.own_rows(member)[:2000]
        return feed.gather(torch.from_numpy(own).to(feed.x.device)[None])[0][0].cpu().double().flatten(1)

    def look(self) -> tuple[float, list[float]]:
        """(score of the herd, spread of each member against its data); the images stay for the picture."""
        assembly, herd = self._assembly, self._assembly.herd
        module = herd.g.module
        row_name = "g.ema" if "g.ema" in herd.state else "g.params"
        base = bases(herd.state)
        seeds = streams.keys(
            np.zeros(herd.size, np.int64), *(herd.state[f"set.{k}"].cpu().numpy() for k in ("seed", "slot"))
        )

        def call(
            params: dict[str, Tensor], buffers: dict[str, Tensor], key: Tensor, inputs: tuple[Tensor, ...]
        ) -> Tensor:
            with MemberRandomness(key):  # a generator may draw noise of its own
                return functional_call(module, {**params, **buffers}, inputs)

        out = []
        module.eval()
        try:
            with torch.no_grad():
                for first in range(0, herd.size, _MEMBERS_AT_ONCE):
                    block = slice(first, min(first + _MEMBERS_AT_ONCE, herd.size))
                    rows = herd.state[row_name][block].cpu()
                    z = Streams(seeds[block], 0).prior(
                        (streams.PREVIEW,), (_IMAGES, herd.rules.latent), herd.rules.prior, rows.dtype
                    )
                    views = {k: v.to(herd.device) for k, v in herd.g.views(rows).items()}
                    buffers = {k: v[block].to(herd.device) for k, v in buffers_of(herd.state, "g").items()}
                    inputs: tuple[Tensor, ...] = (z.to(herd.device),)
                    if herd.g.takes_label:
                        classes = max(len(assembly.dataset.labels), 1)
                        inputs += (
                            torch.arange(_IMAGES, device=herd.device).remainder(classes).expand(len(base[block]), -1),
                        )
                    own = torch.from_numpy(streams.keys(seeds[block], streams.PREVIEW, streams.INSIDE))
                    out.append(self._all(call, views, buffers, own.to(herd.device), inputs).cpu())
        finally:
            module.train()
        self.images = torch.cat(out)  # [N, 64, …] in model units
        mean, std = zip(*(_moments(x.double().flatten(1)) for x in self.images), strict=True)
        fake_mean, fake_std = torch.stack(mean), torch.stack(std)
        distance = ((fake_mean - self._mean).square() + (fake_std - self._std).square()).mean(1)  # [N]
        spread = fake_std.mean(1) / self._std.mean(1).clamp(min=1e-12)
        return float(distance.mean()), spread.tolist()

    def _all(self, call: Callable[..., Tensor], *batched: Any) -> Tensor:
        """`call` for all members at once, or for one after another where the generator cannot be fused."""
        if self._fusable:
            try:
                return vmap(call)(*batched)
            except RuntimeError:
                self._fusable = False
        members = len(batched[2])
        return torch.stack([call(*tree_map(lambda value: value[m], batched)) for m in range(members)])  # noqa: B023

    def draw(self, path: Path) -> None:
        """The images of the last look, a row for each member of the first replica."""
        data, members = self._assembly.dataset, min(self._assembly.members, pictures.MOST_ROWS)
        x = self.images[:members].float() * data.scale + data.offset
        path.parent.mkdir(exist_ok=True)
        if data.is_image:
            pixels = x[:, :12].nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8).numpy()
            label = self._assembly.label[:members]
            names = [data.labels[k] if k >= 0 else f"member {m}" for m, k in enumerate(label.tolist())]
            pictures.save(pictures.draw_grid(list(pixels), names), path)
        else:
            pictures.save(pictures.draw_points(x.flatten(0, 1).numpy(), data.x), path)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.std(0, unbiased=False)
