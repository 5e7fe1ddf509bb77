"""Pass records on to TensorBoard and Weights & Biases, which are optional dependencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.runs.json_lines import read_last
from ganherd.runs.models import MetricsRecord
from ganherd.training.callbacks import Callback
from ganherd.training.health.monitor import SCORES
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from ganherd.training.loop import Trainer


def check(recipe: Recipe) -> None:
    """Raise `UserError` if a tracker that the recipe asks for is not installed."""
    if recipe.run.tensorboard and not find_spec("tensorboard"):
        raise UserError("run.tensorboard needs TensorBoard: pip install 'ganherd[tensorboard]', or set it to false.")
    if recipe.run.wandb != "off" and not find_spec("wandb"):
        raise UserError("run.wandb needs Weights & Biases: pip install 'ganherd[wandb]', or set it to off.")


class Trackers(Callback):
    """Pass every record on to the trackers that the recipe asks for. Of several ranks only the first one does."""

    def __init__(self, folder: RunFolder, recipe: Recipe, is_first: bool = True) -> None:
        self._folder = folder
        self._writers: list[Callable[[int, dict[str, float]], None]] = []
        self._open_board: Callable[..., SummaryWriter] | None = None
        self._board: SummaryWriter | None = None
        self._run: Any = None
        if recipe.run.tensorboard and is_first:
            from torch.utils.tensorboard import (
                SummaryWriter,  # now, so that a broken installation fails before the first step
            )

            self._open_board = SummaryWriter
            self._writers.append(self._write_to_tensorboard)
        if recipe.run.wandb != "off" and is_first:
            import wandb

            self._run = wandb.init(
                project="ganherd",
                name=folder.path.name,
                dir=str(folder.path),
                mode="online" if recipe.run.wandb == "online" else "offline",
                config=recipe.model_dump(),
            )
            self._writers.append(lambda step, values: self._run.log(values, step=step))

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        if self._writers:
            self.record(record)

    def record(self, line: Mapping[str, Any]) -> None:
        """Write a curve for each member, and the scores of a look at the step of that look."""
        if "looked" in line:  # first, because steps must not decrease
            seen = curves({name: line[name] for name in SCORES if name in line})
            self._write(line["looked"], {name: value for name, value in seen.items() if not math.isnan(value)})
        others = curves({name: values for name, values in line.items() if name not in SCORES})
        self._write(line["step"], {**others, "rate": line["rate"]})

    def close(self) -> None:
        if self._board:
            self._board.close()
        if self._run:
            self._run.finish()

    def _write(self, step: int, values: dict[str, float]) -> None:
        for write in self._writers:
            write(step, values)

    def _write_to_tensorboard(self, step: int, values: dict[str, float]) -> None:
        # opened with the first record: a resume has cut off the records that it repeats by then
        if self._board is None:
            assert self._open_board is not None
            place = self._folder.path / "tensorboard"
            self._board = self._open_board(str(place), purge_step=_last_kept_step(self._folder) + 1)
        for name, value in values.items():
            self._board.add_scalar(name, value, step)


def _last_kept_step(folder: RunFolder) -> int:
    """Return the step of the last record but one. The last one is the first of this process, which is being written."""
    return max((line.step for line in read_last(folder.metrics_path, MetricsRecord, 2)[:-1]), default=0)


def curves(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record by the name of their curve: each member has a curve for each of its numbers.

    >>> curves({"step": 50, "loss_g": [0.5, 0.25], "loss_d": None})
    {'loss_g/0': 0.5, 'loss_g/1': 0.25}
    """
    lists = {name: values for name, values in line.items() if isinstance(values, list)}
    return {f"{name}/{m}": float(v) for name, values in lists.items() for m, v in enumerate(values) if _is_number(v)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
