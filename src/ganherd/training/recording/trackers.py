"""Callbacks that send the records of a run to TensorBoard, Weights & Biases and MLflow (optional dependencies)."""

from __future__ import annotations

import json
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ganherd.recipe.schema import Recipe
from ganherd.runs.json_lines import read_last
from ganherd.runs.models import MetricsRecord
from ganherd.runs.series.long_form import WHOLE, points
from ganherd.training.callbacks import Callback
from ganherd.util import files
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

    from ganherd.training.loop import Trainer

MEMORY = "trackers.json"  # in the run folder: what a resumed run needs to continue its curves
_MOST_BYTES = 1 << 16  # a larger file is not read
_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # environment variable; see `_file_store`
_BATCH = 500  # numbers that are sent to MLflow at once


def trackers_of(recipe: Recipe) -> list[Tracker]:
    """Return the trackers that a recipe names.

    Raises:
        UserError: The package of one of them is not installed.
    """
    run = recipe.run
    each: list[Tracker] = [TensorBoard()] if run.tensorboard else []
    each += [WandB(mode=run.wandb)] if run.wandb != "off" else []
    return each + ([MLflow()] if run.mlflow else [])


class Tracker(Callback):
    """Write a curve for each number of each member. A resumed run continues its curves, and no step is written twice."""

    package: ClassVar[str]  # the package that the tracker needs
    key: ClassVar[str]  # the name of its key in the recipe's section `run`, and of the extra that installs it

    def __init__(self) -> None:
        if not find_spec(self.package):
            raise UserError(
                f"{type(self).__name__} (run.{self.key}) is not installed: pip install 'ganherd[{self.key}]', or leave it out."
            )
        self._written = -1  # the last step that an earlier process of this run has written

    @abstractmethod
    def open(self, trainer: Trainer) -> None:
        """Connect to the tracker, and continue the curves of a resumed run."""

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each curve: the `values` at this step, by the name of the curve."""

    def on_start(self, trainer: Trainer) -> None:
        if trainer.ranks.is_first:
            self.open(trainer)

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        curves: dict[int, dict[str, float]] = {}
        for step, metric, member, value in points(record):
            name = metric if member == WHOLE else f"{metric}/{member}"
            curves.setdefault(step, {})[name] = value
        for step, values in curves.items():
            if step > self._written:  # a resumed run repeats the steps since its checkpoint, with the same numbers
                self.write(step, values)

    def recall(self, folder: Path) -> dict[str, Any]:
        """Return what `remember` wrote in an earlier process of this run: the tracker's id and the last step.

        Empty if there is no such file or it is damaged.
        """
        try:
            own = files.read_json(folder / MEMORY, _MOST_BYTES)[self.key]
            return {"id": str(own["id"]), "step": int(own["step"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def remember(self, folder: Path, **facts: Any) -> None:
        """Write what a resumed run needs to trackers.json: `id` (of the run in the tracker) and `step` (the last)."""
        try:
            others = files.read_json(folder / MEMORY, _MOST_BYTES)
        except (OSError, ValueError):
            others = {}
        content = {**(others if isinstance(others, dict) else {}), self.key: facts}
        files.atomic_write(folder / MEMORY, json.dumps(content) + "\n", sync=False)


class TensorBoard(Tracker):
    """Write curves for TensorBoard, in the folder `tensorboard` of the run.

    Args:
        folder: Another folder to write to. Each run needs a separate one.
    """

    package = key = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._board: SummaryWriter | None = None

    def open(self, trainer: Trainer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        last = read_last(trainer.folder.metrics_path, MetricsRecord, 1)  # steps that are repeated are cut off already
        last_step = max((line.step for line in last), default=0)
        place = Path(self._folder or trainer.folder.path / "tensorboard")
        _wait_for_next_second(place)
        self._board = SummaryWriter(str(place), purge_step=last_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        assert self._board is not None
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        if self._board:
            self._board.close()


def _wait_for_next_second(folder: Path) -> None:
    """Wait until the name of a new TensorBoard file sorts after those in the folder.

    The names contain the time in whole seconds, followed by the process number, so two files of one second may be read
    in the wrong order.
    """
    names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")]
    latest = max((int(name[3]) for name in names if name[3:] and name[3].isdecimal()), default=0)
    while latest <= time.time() < latest + 1:
        time.sleep(0.02)


class WandB(Tracker):
    """Log to Weights & Biases. Its files are in the folder `wandb` of the run.

    Args:
        mode: `online`, or `offline` to only write files, which `wandb sync` sends later.
        project: The project of W&B.
        settings: More arguments for `wandb.init`.
    """

    package = key = "wandb"

    def __init__(self, mode: str = "online", project: str = "ganherd", **settings: Any) -> None:
        super().__init__()
        self._settings = {"mode": mode, "project": project, **settings}
        self._run: Any = None

    def open(self, trainer: Trainer) -> None:
        import wandb

        self._folder = trainer.folder.path
        before = self.recall(self._folder)
        self._id, self._written = before.get("id") or secrets.token_hex(4), before.get("step", -1)
        place = {"name": self._folder.name, "dir": str(self._folder), "config": trainer.prepared.recipe.model_dump()}
        self._run = wandb.init(**{**place, "id": self._id, "resume": "allow", **self._settings})
        self.remember(self._folder, id=self._id, step=self._written)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)
        self.remember(self._folder, id=self._id, step=step)

    def close(self) -> None:
        if self._run:
            self._run.finish()


class MLflow(Tracker):
    """Log to MLflow: to its server at MLFLOW_TRACKING_URI, or in the folder `mlruns` of the run.

    Args:
        uri: Another address or folder, such as http://localhost:5000.
        experiment: The experiment of MLflow.
    """

    package = key = "mlflow"

    def __init__(self, uri: str | Path | None = None, experiment: str = "ganherd") -> None:
        super().__init__()
        self._uri, self._experiment = uri, experiment
        self._client: MlflowClient | None = None

    def open(self, trainer: Trainer) -> None:
        from mlflow import MlflowClient

        self._folder = trainer.folder.path
        place = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or self._folder / "mlruns"
        address = str(place) if "://" in str(place) or str(place) == "databricks" else Path(place).absolute().as_uri()
        with _file_store():
            self._client = client = MlflowClient(address)
            client.search_experiments(max_results=1)  # opens the store
        before = self.recall(self._folder)
        self._written = before.get("step", -1)
        if before:
            self._id = before["id"]
            client.update_run(self._id, status="RUNNING")
            return
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else client.create_experiment(self._experiment)
        self._id = client.create_run(experiment, run_name=self._folder.name).info.run_id
        for key, value in _settings(trainer.prepared.recipe.model_dump()).items():
            client.log_param(self._id, key, value)
        self.remember(self._folder, id=self._id, step=self._written)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics[first : first + _BATCH])
        self.remember(self._folder, id=self._id, step=step)

    def on_finish(self, trainer: Trainer, run: object) -> None:
        if self._client:
            self._client.set_terminated(self._id, "FINISHED")
            self._client = None

    def close(self) -> None:
        if self._client:
            self._client.set_terminated(self._id, "KILLED")


@contextmanager
def _file_store() -> Iterator[None]:
    """Let MLflow write into a folder inside the block: since version 3 it requires an environment variable for that."""
    before = os.environ.get(_ALLOWED)
    os.environ[_ALLOWED] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ALLOWED]
        else:
            os.environ[_ALLOWED] = before


def _settings(section: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings of a recipe as text, by their full key, e.g. `train.batch`.

    >>> _settings({"train": {"batch": 32}})
    {'train.batch': '32'}
    """
    out: dict[str, str] = {}
    for key, value in section.items():
        is_section = isinstance(value, Mapping) and value
        out |= _settings(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": str(value)[:500]}
    return out
