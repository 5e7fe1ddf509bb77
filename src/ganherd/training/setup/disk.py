"""Estimate what a run writes and compare it with the free space of its disk, before the first step."""

from __future__ import annotations

import errno
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from ganherd.herd.state import bytes_per_member
from ganherd.training.health.monitor import Monitor
from ganherd.training.recording.sprite_format import SpriteFormat
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.text import size
from ganherd.viz import pictures

_RECORD = 160  # bytes of one member in a line of metrics.jsonl, about
_PICTURE_COLUMNS = 12  # the number of images of each member in a picture of samples
_NEARLY_FULL = 0.9  # a run that may use this much of the free space gets a warning
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class DiskNeed:
    """The estimated number of bytes that a run writes."""

    checkpoint: int  # bytes of one checkpoint
    kept: int  # the least number of checkpoints that are on the disk at once, including the one that is being written
    most: int  # the largest number: the best one and the one for repairs may be kept in addition to the newest
    mixture: int  # bytes of the mixture
    other: int  # bytes of records and pictures

    @property
    def least(self) -> int:
        """The bytes without which the run cannot be trained."""
        return self.kept * self.checkpoint + self.mixture

    @property
    def total(self) -> int:
        """The most bytes that the run may use."""
        return self.most * self.checkpoint + self.mixture + self.other

    def describe(self) -> str:
        """Return a phrase for a message that lists what is written.

        >>> DiskNeed(2**20, 3, 4, 2**19, 2**10).describe()
        'up to 4.5 MiB: 4 checkpoints of 1.0 MiB, a mixture of 512.0 KiB, 1.0 KiB of records and pictures'
        """
        return (
            f"up to {size(self.total)}: {self.most} checkpoint{'s' * (self.most != 1)} of {size(self.checkpoint)}, "
            f"a mixture of {size(self.mixture)}, {size(self.other)} of records and pictures"
        )


def disk_need(prepared: PreparedHerd, steps: int) -> DiskNeed:
    """Return an estimate of the bytes that a run of this many steps writes."""
    state, settings, members = prepared.herd.state, prepared.recipe.run, prepared.ranks.num_members
    checkpoint = members * (bytes_per_member(state) + bytes_per_member(Monitor(prepared).state))
    every = settings.checkpoint_every or steps
    written = 1 + math.ceil(steps / max(1, every))  # including the one before the first step
    generators = {name: value for name, value in state.items() if name.startswith(("g.params", "g.buffers"))}
    picture = min(prepared.members, pictures.MOST_ROWS) * _PICTURE_COLUMNS * math.prod(prepared.dataset.shape)
    drawn = 1 + (steps // settings.sample_every if settings.sample_every else 0)
    sheets = min(settings.sprites, 2 + steps // settings.record_every)  # including the first and the last step
    sprites = sheets * SpriteFormat(prepared).sheet_bytes
    return DiskNeed(
        checkpoint,
        min(settings.keep + 1, written),
        min(settings.keep + 3, written),
        members * bytes_per_member(generators),
        drawn * picture + steps // settings.record_every * members * _RECORD + sprites,
    )


def check_disk(need: DiskNeed, folder: Path) -> list[str]:
    """Return warnings if the disk of a run folder may become full. The folder need not exist yet.

    Raises:
        UserError: The disk is too small for the run.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    # if the run is resumed, new checkpoints replace those that it has, so their space counts as free
    used = sum(file.stat().st_size for file in folder.glob("checkpoints/step-*/*") if file.is_file())
    free = shutil.disk_usage(place).free + used
    advice = "Lower run.keep, train fewer members, or choose a folder on another disk with --run"
    if need.least > free:
        raise UserError(
            f"the disk of {folder} has {size(free)} for this run, which needs at least {size(need.least)} "
            f"({need.kept} checkpoints of {size(need.checkpoint)} and a mixture of {size(need.mixture)}). {advice}."
        )
    if need.total > _NEARLY_FULL * free:
        return [
            f"the disk of {folder} is nearly full: it has {size(free)}, and this run needs {need.describe()}. {advice}"
        ]
    return []


def advice_on(error: OSError) -> str:
    """Return advice for the user if an error means that the disk is full, otherwise an empty string.

    >>> advice_on(OSError(errno.ENOSPC, "No space left on device"))
    'Make room on its disk first. '
    """
    return "Make room on its disk first. " if error.errno in _FULL else ""
