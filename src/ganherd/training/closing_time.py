"""Estimate how long a run takes from its last step to its saved mixture, so that a time budget includes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ganherd.herd.breeds import Breed
from ganherd.herd.state import buffers_of, bytes_per_member
from ganherd.mixture.recalibration import NOISES, NOISES_AT_ONCE
from ganherd.training import finish
from ganherd.training.setup.assemble import PreparedHerd

# Estimated seconds of each kind of work, until the run has done it once and measured it, for example at step 0.
_FIRST_GUESS = {"look": 0.1, "record": 0.1, "picture": 0.3, "checkpoint": 0.3}


class ClosingTime:
    """Estimate the seconds from the last step of a run to its saved mixture, from measurements during the run."""

    def __init__(self, mixture: float = 0.0, generator_share: float = 0.0) -> None:
        """Start with guesses.

        Args:
            mixture: Seconds to make the mixture, without writing its files.
            generator_share: Bytes of the generators as a share of a checkpoint's bytes. Writing the mixture is
                estimated to take this share of the time to write a checkpoint.
        """
        self.mixture, self._generator_share = mixture, generator_share
        self._measured: dict[str, list[float]] = {}

    def note(self, what: str, seconds: float) -> None:
        """Note how many seconds a part of the work, such as "checkpoint", has taken.

        The last three measurements are kept.
        """
        self._measured[what] = [*self._measured.get(what, [])[-2:], seconds]

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Note how many seconds the block of this context takes, as the part `what`."""
        began = time.monotonic()
        yield
        self.note(what, time.monotonic() - began)

    @property
    def seconds(self) -> float:
        """The estimated seconds from the last step to the saved mixture, with all measurements so far.

        >>> closing = ClosingTime(mixture=2.0)
        >>> for seconds in (5.0, 1.0, 2.0):
        ...     closing.note("checkpoint", seconds)
        >>> round(closing.seconds, 2)  # 2 for the mixture, 1.5 for the checkpoint, and 0.5 for what was not measured
        4.0
        """
        each = _FIRST_GUESS | {what: _typical(measured) for what, measured in self._measured.items()}
        return self.mixture + sum(each.values()) + self._generator_share * each["checkpoint"]


def _typical(measured: list[float]) -> float:
    """Return the mean of the measurements.

    The oldest is left out if there are others, because the first one is a warm-up.
    """
    warm = measured[1:] or measured
    return sum(warm) / len(warm)


def estimate_closing(prepared: PreparedHerd, has_mixture: bool = True) -> ClosingTime:
    """Estimate, before the first step, how long a run takes from its last step to its saved mixture.

    Most of it is the re-estimation of batch-norm statistics. That is timed on one trained member of each breed (members
    with the same generator architecture), with a part of the noise, and scaled up.

    Args:
        has_mixture: Whether a mixture is made. A run that trains only a part of a herd makes none.
    """
    if not has_mixture:
        return ClosingTime()
    herd, seconds = prepared.herd, 0.0
    for breed in herd.breeds.all:
        rows = herd.breeds.rows_of(breed, herd.state["set.slot"].tolist())
        trained = [row for row in rows if prepared.own[row] not in prepared.frozen_members]
        if trained:
            _recalibration(prepared, breed, trained[0], NOISES_AT_ONCE)  # to warm up
            timed = 4 * NOISES_AT_ONCE
            seconds += len(trained) * NOISES / timed * _recalibration(prepared, breed, trained[0], timed)
    generators = bytes_per_member({"g.params": herd.state["g.params"]})
    return ClosingTime(seconds, generators / bytes_per_member(herd.state))


def _recalibration(prepared: PreparedHerd, breed: Breed, row: int, noises: int) -> float:
    """Return the seconds to re-estimate the batch-norm statistics of one member from this many noises."""
    state = breed.view(prepared.herd.state)
    weights = {name: value[row].cpu() for name, value in breed.g.views(state["g.params"]).items()}
    buffers = {name: value[row].cpu() for name, value in buffers_of(state, "g").items()}
    began = time.monotonic()
    finish.recalibrated(prepared, breed, row, weights, buffers, noises)
    return time.monotonic() - began
