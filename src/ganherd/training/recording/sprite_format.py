"""How a herd's sprites are saved: the samples of each member, their size, the index, and the content of a sheet."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ganherd.data.units import projected, to_model
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.viz import sprite_sheet

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd

_FEW, _MANY = 64, 16  # points of each member of a small and of a large herd
_SMALL_HERD = 256
_POINT = 20  # bytes of a point as JSON, about


class SpriteFormat:
    """The sheets of a herd: images in a layout that fits the limits of a run, or points."""

    def __init__(self, prepared: PreparedHerd) -> None:
        self._prepared, self.is_image = prepared, prepared.dataset.is_image
        if not self.is_image:
            self.samples = _FEW if prepared.size <= _SMALL_HERD else _MANY
            return
        self._channels, height, width = prepared.dataset.shape
        most = sprite_files.MOST_BYTES // max(prepared.recipe.run.sprites, 1)
        self._layout = sprite_sheet.plan_sheet(prepared.size, (self._channels, height, width), most)
        self.samples = self._layout.samples

    @property
    def kind(self) -> str:
        """Return what the index calls the sheets."""
        return "images" if self.is_image else "points"

    @property
    def sheet_bytes(self) -> int:
        """Return the bytes of a sheet at most, about: those of its pixels without compression, or of its points."""
        per_sample = min(self._channels, 3) * self._layout.height * self._layout.width if self.is_image else _POINT
        return self._prepared.size * self.samples * per_sample

    def shrink(self, x: Tensor) -> Tensor:
        """Return images [n, samples, C, H, W] as bytes in the size of the sheet, or rows [n, samples, d] as points of a plane."""
        if not self.is_image:
            data = self._prepared.dataset
            return to_model(x, data) @ x.new_tensor(data.plane).T if data.plane else x
        size = (self._layout.height, self._layout.width)
        if x.shape[-2:] != size:
            x = adaptive_avg_pool2d(x.flatten(0, 1), size).unflatten(0, x.shape[:2])
        return x.nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8)

    def encode(self, x: Tensor) -> bytes:
        """Return the content of a sheet of all members: images [N, samples, C, h, w] as bytes, or points [N, samples, 2]."""
        if self.is_image:
            return sprite_sheet.webp(sprite_sheet.draw_sprites(x.numpy(), self._layout))
        rows = [
            [[round(value, 4) for value in point] if all(map(math.isfinite, point)) else None for point in member]
            for member in x.tolist()
        ]
        return json.dumps(rows, allow_nan=False, separators=(",", ":")).encode()

    def index(self) -> SpriteIndex:
        """Return what the sheets show, and where in a sheet each member is."""
        prepared = self._prepared
        data, everyone = prepared.dataset, range(prepared.size)
        facts = {
            "kind": self.kind,
            "names": [prepared.name_of(member) for member in everyone],
            "labels": [prepared.label_name(member) or None for member in everyone],
            "replicas": prepared.recipe.herd.replicas,
            "samples": self.samples,
        }
        if self.is_image:
            layout = self._layout
            return SpriteIndex.parse({**facts, "columns": layout.columns, "tile": [layout.height, layout.width]})
        points = projected(data.x, data, data.plane) if data.plane else data.x
        limits = {"low": points.min(0).tolist(), "high": points.max(0).tolist()}
        return SpriteIndex.parse({**facts, **limits, "projected": bool(data.plane)})
