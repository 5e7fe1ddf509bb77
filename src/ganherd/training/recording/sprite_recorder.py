"""Save sprites while a run trains: a few small samples of every member on fixed noise, at evenly thinned steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ganherd.data.units import projected, to_data, to_model
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.training.callbacks import Callback
from ganherd.util import files
from ganherd.viz import sprite_sheet

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer

_FEW, _MANY = 64, 16  # points of each member of a small and of a large herd
_SMALL_HERD = 256
_LEAST = 4  # samples that are generated at once: own nets need not run with fewer


class SpriteRecorder(Callback):
    """Save a sheet of all members when one is due, and after the last step. Of several ranks only the first one writes.

    The noise has separate random keys and is the same at every step, so saving sprites does not change the training.
    """

    def __init__(self, trainer: Trainer) -> None:
        settings, prepared = trainer.schedule.settings, trainer.prepared
        self._every, self._most = settings.record_every, settings.sprites
        self._folder, self._prepared = trainer.folder.sprites, prepared
        if not prepared.dataset.is_image:
            self._samples = _FEW if prepared.size <= _SMALL_HERD else _MANY
            return
        channels, height, width = prepared.dataset.shape
        most = sprite_files.MOST_BYTES // max(self._most, 1)
        self._layout = sprite_sheet.plan_sheet(prepared.size, (channels, height, width), most)
        self._samples = self._layout.samples

    def on_train_start(self, trainer: Trainer) -> None:
        step, folder = trainer.step, self._folder
        if trainer.ranks.is_first:
            files.sweep(folder, seconds=-1.0)  # no other process writes here
            # a resumed run repeats the steps after its checkpoint; without sprites nothing is left of an earlier step
            earlier = (saved for saved in sprite_files.saved_sheets(folder) if saved <= step)
            sprite_files.keep_only(folder, self._thinned(earlier, step) if self._most else ())
            if self._most:
                sprite_files.write_index(folder, self._index())
        if self._most and step == 0:
            self._save(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        if self._is_due(trainer.step):
            self._save(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if self._most and not self._is_due(trainer.step):
            self._save(trainer)

    def _is_due(self, step: int) -> bool:
        return self._most > 0 and sprite_files.is_saved_at(step, self._every, self._most)

    def _thinned(self, steps: Iterable[int], step: int) -> list[int]:
        """Return those of the steps that are still saved when the run is at `step`."""
        every = sprite_files.interval(step, self._every, self._most)
        return [saved for saved in steps if saved % every == 0]

    def _save(self, trainer: Trainer) -> None:
        """Save the sheet of the current step, and thin the earlier ones. Called by all ranks together."""
        step, folder = trainer.step, self._folder
        own = trainer.preview.generate(max(self._samples, _LEAST))[:, : self._samples]
        x = to_data(own.float(), self._prepared.dataset)  # [n, samples, …]
        if self._prepared.dataset.is_image:
            x = self._small(x)
        elif plane := self._prepared.dataset.plane:
            x = to_model(x, self._prepared.dataset) @ x.new_tensor(plane).T  # [n, samples, 2]
        everyone = range(self._prepared.size)
        x = trainer.ranks.fetch_to_first({"sprites": x}, everyone)["sprites"]
        if not trainer.ranks.is_first:
            return
        kind = "images" if self._prepared.dataset.is_image else "points"
        content = self._sheet(x) if kind == "images" else self._points(x)
        files.atomic_write(sprite_files.sheet_path(folder, step, kind), content, sync=False)
        sprite_files.keep_only(folder, [*self._thinned(sprite_files.saved_sheets(folder), step), step])

    def _small(self, x: Tensor) -> Tensor:
        """Return images [n, samples, C, h, w] as bytes in the size of the sheet."""
        size = (self._layout.height, self._layout.width)
        if x.shape[-2:] != size:
            x = adaptive_avg_pool2d(x.flatten(0, 1), size).unflatten(0, x.shape[:2])
        return x.nan_to_num(0.0).round().clamp(0, 255).to(torch.uint8)

    def _sheet(self, x: Tensor) -> bytes:
        return sprite_sheet.webp(sprite_sheet.draw_sprites(x.numpy(), self._layout))

    def _points(self, x: Tensor) -> bytes:
        """Return points [N, samples, 2] as JSON; a point that is not finite is null."""
        rows = [
            [[round(value, 4) for value in point] if all(map(math.isfinite, point)) else None for point in member]
            for member in x.tolist()
        ]
        return json.dumps(rows, allow_nan=False, separators=(",", ":")).encode()

    def _index(self) -> SpriteIndex:
        prepared = self._prepared
        data, everyone = prepared.dataset, range(prepared.size)
        labels = [int(label) for label in prepared.label]
        facts = {
            "names": [prepared.name_of(member) for member in everyone],
            "labels": [str(data.labels[label]) if label >= 0 else None for label in labels],
            "replicas": prepared.recipe.herd.replicas,
            "samples": self._samples,
        }
        if data.is_image:
            layout = self._layout
            tile = [layout.height, layout.width]
            return SpriteIndex.parse({**facts, "kind": "images", "columns": layout.columns, "tile": tile})
        points = projected(data.x, data, data.plane) if data.plane else data.x
        low, high = points.min(0).tolist(), points.max(0).tolist()
        return SpriteIndex.parse({**facts, "kind": "points", "low": low, "high": high, "projected": bool(data.plane)})
