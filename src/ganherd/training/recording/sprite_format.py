"""The format of a herd's sprites: small samples of every member, saved together as one sheet per step.

This decides how many samples each member has and their size, and makes the content of sheets and their index.
"""

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

_FEW, _MANY = 64, 16  # points of each member in a herd of few members, and in one of many
_SMALL_HERD = 256
_POINT = 20  # bytes of a point as JSON, about


class SpriteFormat:
    """The format of a herd's sheets: a picture of small images if the data are images, otherwise points as JSON."""

    def __init__(self, prepared: PreparedHerd) -> None:
        """Choose the number and size of samples so that all sheets of the run together stay below a limit of bytes."""
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
        """Return the kind of the sheets in the index: "images" or "points"."""
        return "images" if self.is_image else "points"

    @property
    def sheet_bytes(self) -> int:
        """Return about the largest size of a sheet in bytes: its pixels without compression, or its points as JSON."""
        per_sample = min(self._channels, 3) * self._layout.height * self._layout.width if self.is_image else _POINT
        return self._prepared.size * self.samples * per_sample

    def shrink(self, x: Tensor) -> Tensor:
        """Return samples as a sheet shows them.

        Args:
            x: Images [n, samples, C, H, W], or rows of other data [n, samples, d], in the units of the data.

        Returns:
            Images as bytes [n, samples, C, h, w] in the size of the sheet, or points of a plane [n, samples, 2].
        """
        if not self.is_image:
            data = self._prepared.dataset
            return to_model(x, data) @ x.new_tensor(data.plane).T if data.plane else x
        size = (self._layout.height, self._layout.width)
        if x.shape[-2:] != size:
            x = adaptive_avg_pool2d(x.flatten(0, 1), size).unflatten(0, x.shape[:2])
        return x.nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8)

    def encode(self, x: Tensor) -> bytes:
        """Return the bytes of the sheet's file, from what `shrink` returns for all members [N, samples, …]."""
        if self.is_image:
            return sprite_sheet.webp(sprite_sheet.draw_sprites(x.numpy(), self._layout))
        rows = [
            [[round(value, 4) for value in point] if all(map(math.isfinite, point)) else None for point in member]
            for member in x.tolist()
        ]
        return json.dumps(rows, allow_nan=False, separators=(",", ":")).encode()

    def index(self) -> SpriteIndex:
        """Return the index of the sheets: what they show, and where in a sheet each member is."""
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
