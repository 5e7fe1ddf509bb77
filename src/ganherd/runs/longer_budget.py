"""Convert a relative budget of a resumed run, such as `+200steps`, to the length of the whole run."""

from __future__ import annotations

from pathlib import Path

from ganherd.recipe.base import parse_budget
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.json_lines import read_last
from ganherd.runs.models import CheckpointMeta, MetricsRecord
from ganherd.util.errors import UserError
from ganherd.util.files import read_json


def longer_budget(run: Path, budget: str) -> str:
    """Return the value of `train.budget` by which a run is longer than its newest checkpoint.

    Args:
        run: The run folder.
        budget: How much to train from the newest checkpoint on: `+200steps`, `+5epochs` or `+10m`.
    """
    folder = RunFolder.open(run)
    try:
        unit, amount = parse_budget(budget.removeprefix("+"))
    except ValueError as error:
        raise UserError(f"--budget {budget} {error}; with a + in front to add it.") from None
    step = max(saved_steps(folder.checkpoints), default=0)
    if unit == "steps":
        return f"{step + int(amount)}steps"
    if unit == "seconds":
        return f"{_seconds(folder, step) + amount:.10g}s"
    last = next(iter(read_last(folder.metrics_path, MetricsRecord, 1)), None)
    epochs = last.get("epoch") if last else None
    if last is None or not isinstance(epochs, int | float) or not 1e-6 < epochs < 1e12:
        raise UserError(f"--budget {budget}: {run} has recorded no epochs yet; add steps, e.g. +200steps.")
    return f"{step + max(1, round(amount * last.step / epochs))}steps"


def _seconds(folder: RunFolder, step: int) -> float:
    """Return the seconds of training up to the checkpoint of a step."""
    if not step:
        return 0.0
    path = folder.checkpoints / f"step-{step:08d}" / "state.json"
    try:
        return CheckpointMeta.parse(read_json(path)).seconds
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the whole length, without the +.") from None
