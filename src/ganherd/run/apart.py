"""What waits where ranks go on apart: records, looks, pictures and checkpoints, until all are together again."""

from __future__ import annotations

from dataclasses import replace

from ganherd.recipe import Run
from ganherd.run.cadence import Cadence

_DUE = ("record_every", "sample_every", "checkpoint_every", "buddy_every")


def waiting(settings: Run, apart: int) -> Run:
    """The settings of a run whose ranks are together every `apart` steps: all that all of them take part in falls there.

    >>> made = waiting(Run(record_every=50, checkpoint_every=700, sample_every=0), 600)
    >>> made.record_every, made.checkpoint_every, made.sample_every
    (600, 1200, 0)
    """
    if not apart:
        return settings
    return settings.model_copy(update={name: rounded(getattr(settings, name), apart) for name in _DUE})


def waiting_looks(cadence: Cadence, apart: int) -> Cadence:
    """The same for looks: also where they were found on fewer ranks, or are fixed by the recipe."""
    return replace(cadence, every=rounded(cadence.every, apart)) if apart and cadence.every else cadence


def rounded(every: int, apart: int) -> int:
    """Up to the next multiple.

    >>> rounded(50, 600), rounded(600, 600), rounded(0, 600)
    (600, 600, 0)
    """
    return -(-every // apart) * apart
