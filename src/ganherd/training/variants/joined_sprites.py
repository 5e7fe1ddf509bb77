"""Join the sprites (small samples of all members at saved steps) of a run's parts into sheets of the whole herd."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.runs.folder import RunFolder
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.training.recording.sprite_format import SpriteFormat
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util import files


def join_sprites(whole: RunFolder, prepared: PreparedHerd, parts: Sequence[RunFolder]) -> None:
    """Write the sprites of a whole run from those of its parts, in the order of their members.

    Only steps that all parts have saved are written, without those of which a sheet is damaged. Nothing is written if a
    part has no sprites.
    """
    indices = [index for part in parts if (index := sprite_files.read_index(part.sprites)) is not None]
    if len(indices) < len(parts) or prepared.recipe.run.sprites == 0:
        return
    sheets = [sprite_files.saved_sheets(part.sprites) for part in parts]
    form = SpriteFormat(prepared)
    sprite_files.write_index(whole.sprites, form.index())
    channels = prepared.dataset.shape[0] if form.is_image else 0
    for step in sorted(set.intersection(*map(set, sheets))):
        try:
            contents = [files.read(saved[step], sprite_files.MOST_SHEET) for saved in sheets]
            each = [_samples(content, index) for content, index in zip(contents, indices, strict=True)]
        except (OSError, ValueError):
            continue
        if form.is_image:
            each = [form.shrink(x[:, : form.samples, : 3 if channels >= 3 else 1].float()) for x in each]
        else:
            each = [x[:, : form.samples] for x in each]
        files.atomic_write(
            sprite_files.sheet_path(whole.sprites, step, form.kind), form.encode(torch.cat(each)), sync=False
        )


def _samples(content: bytes, index: SpriteIndex) -> Tensor:
    """Return the samples in a sheet: images [N, samples, 3, h, w], or points [N, samples, 2], NaN if not finite.

    Args:
        content: The bytes of the sheet's file.
        index: The index of the sheets, which describes their layout.
    """
    if index.kind == "points":
        rows = sprite_files.parse_points(content, index)
        nowhere = [float("nan")] * 2
        return torch.tensor([[point or nowhere for point in row] for row in rows], dtype=torch.float64)
    (height, width), side = index.tile, index.side
    pixels = np.asarray(sprite_files.open_images(content, index).convert("RGB"))
    cells = pixels.reshape(-1, side, height, index.columns, side, width, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    images = np.ascontiguousarray(cells).reshape(-1, side * side, 3, height, width)[: index.members]
    return torch.from_numpy(images)
