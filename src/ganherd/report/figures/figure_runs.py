"""Open the runs that figures show; records, data and mixture of each are loaded when a figure needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.runs.folder import RunFolder
from ganherd.runs.records import COSTS
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture
    from ganherd.recipe.schema import DataConfig, Recipe

_MOST_RECORDS = 4000  # of a longer run at least this many records are read, evenly chosen
Log = Callable[[str], None]
# colours of the runs, which also differ in lightness; data is drawn in grey
COLOURS = ("#3b82f6", "#e08a1e", "#7c3aed", "#0f9d76", "#d6336c", "#5b6470")


class FigureSkipped(Exception):
    """Raised with the reason if a figure cannot be drawn for these runs."""


@dataclass(frozen=True)
class FigureRun:
    """A run that figures show."""

    name: str  # in the figures
    folder: RunFolder
    trust_code: bool  # whether a user's code that the run names may be imported
    datasets: dict[str, Dataset]  # by their settings as JSON; shared by all runs, so that each is loaded once

    @cached_property
    def recipe(self) -> Recipe:
        return self.folder.recipe

    @cached_property
    def mixture(self) -> Mixture:
        from ganherd.features.extract import best_device
        from ganherd.mixture.mixture import load

        return load(self.folder.path, self.trust_code).to(best_device())

    @cached_property
    def dataset(self) -> Dataset:
        return self._load(self.recipe.data)

    def split_like(self, other: FigureRun) -> Dataset:
        """Return the run's data with as many held-out rows as another run has."""
        return self._load(self.recipe.data.model_copy(update={"holdout": other.recipe.data.holdout}))

    def _load(self, settings: DataConfig) -> Dataset:
        """Return the data of these settings; it is read only once."""
        from ganherd.data.dataset import load

        key = settings.model_dump_json()
        if key not in self.datasets:
            self.datasets[key] = load(settings)
        return self.datasets[key]

    @cached_property
    def kind(self) -> str:
        """What the data consists of: "images", "points" or "rows"; "examples" if the data is missing."""
        try:
            return self.dataset.kind
        except UserError:
            return "examples"

    @cached_property
    def costs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The recorded losses of the discriminators: epochs [T], costs on training data and costs on held-out data.

        Both costs are [T, replicas, members]; T is 0 if none were recorded. A cost that is not finite is NaN, which
        leaves a gap in a curve.
        """
        records = self.folder.metrics(_MOST_RECORDS)
        lines = [line for line in records if all(_is_of_members(line, name) for name in COSTS)]
        replicas, members = self.recipe.herd.replicas, len(lines[0][COSTS[0]]) if lines else 0
        if members % replicas or any(len(line[name]) != members for line in lines for name in COSTS):
            raise UserError(
                f"{self.folder.metrics_path} holds records of different herds, which ganherd did not write."
            )
        epochs = np.array([float(str(line["epoch"])) for line in lines])
        shape = (len(lines), replicas, members // replicas)
        costs = np.array([[line[name] for line in lines] for name in COSTS], float)
        trained, held_out = np.where(np.isfinite(costs), costs, np.nan).reshape(2, *shape)
        return epochs, trained, held_out


def _is_of_members(line: Mapping[str, object], name: str) -> bool:
    """Return whether a record has an epoch and, under `name`, a list of numbers (one for each member)."""
    values = line.get(name)
    numbers = values if isinstance(values, list) else [None]
    return all(
        type(value) in (int, float) or value in ("nan", "inf", "-inf") for value in [line.get("epoch"), *numbers]
    )


def left_out(whys: Mapping[str, str], figure: str, log: Log) -> str:
    """Log which runs are left out of a figure and why, and return the same as sentences for its caption.

    Args:
        whys: The reasons, by the names of the runs.

    >>> left_out({"one": "it has one member"}, "spread", print)
    spread: one is left out: it has one member
    ' one is left out: it has one member.'
    """
    sentences = [f"{name} is left out: {why}" for name, why in whys.items()]
    for sentence in sentences:
        log(f"{figure}: {sentence}")
    return "".join(f" {sentence}." for sentence in sentences)


def opened(runs: Sequence[str | Path], names: Sequence[str] | None, trust_code: bool) -> list[FigureRun]:
    """Open run folders, and name the runs by `names`, or by the folders if that is None.

    Raises:
        UserError: No run is given, a run is given twice, or there is not one name for each.
    """
    if not runs:
        raise UserError("No run given. Name at least one.")
    if names is not None and len(names) != len(runs):
        raise UserError(f"there are {len(names)} names for {len(runs)} runs: give one name for each.")
    own = list(names) if names is not None else [Path(run).resolve().name for run in runs]
    if len(set(own)) < len(own):
        own = [str(run) for run in runs]
    if len(set(own)) < len(own):
        raise UserError("a run is named twice: compare runs that are different.")
    shared: dict[str, Dataset] = {}
    return [FigureRun(name, RunFolder.open(run), trust_code, shared) for name, run in zip(own, runs, strict=True)]
