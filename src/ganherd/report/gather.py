"""Read from a run folder everything that a report shows; what cannot be read is left out and noted.

A member is one generator-discriminator pair, a mixture the trained generators with their weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ganherd.herd.step.pace import paces
from ganherd.recipe.strategy_config import settings_of
from ganherd.runs import run_status
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import EventRecord, MetricsRecord, RunInfo
from ganherd.runs.results.verdict_record import MemberVerdict, VerdictRecord
from ganherd.runs.run_status import current_verdict
from ganherd.runs.series.record_means import loss_table, merge_short_end
from ganherd.scoring import gallery
from ganherd.scoring.gallery import GalleryPicture
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import member_labels, words
from ganherd.viz.pictures import MOST_ROWS
from ganherd.web.embedded_run import MOST_BYTES, embed
from ganherd.web.shown_run import ShownRun

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.mixture_files import Neighbourhoods
    from ganherd.viz.row_sheets import RowView

T = TypeVar("T")
MOST_RECORDS = 2000  # of a longer run at least this many records are read, evenly chosen; charts show fewer
TROUBLES = ("nan", "diverged", "alarm", "repair")  # events about the health of a member
PER_ROW = 12  # samples of each class in the report


@dataclass(frozen=True)
class MemberStory:
    """One row of the table of members."""

    number: int  # within its replica
    replica: int  # copy of the herd with another seed or setting, from 0
    label: str  # "" if it has none
    weight: float | None  # in the mixture
    loss_g: float | None  # last recorded loss of the generator
    loss_d: float | None  # last recorded loss of the discriminator
    troubles: int  # number of NaN, diverged, alarm and repair events
    winner: bool = False  # the best of its run by GAM-II
    generator: str = ""  # its net, if the herd has several breeds
    alarms_now: tuple[str, ...] = ()  # names of active alarms; empty if there is a verdict, which supersedes them
    verdict: MemberVerdict | None = None
    steps: int | None = None  # its own number of steps, if members train at different paces
    # The class that it generates. `label` is the class as well, with a number if the class has several members.
    of_class: str = ""

    @property
    def title(self) -> str:
        """Return the member's number and label, and its replica if that is not the first.

        >>> MemberStory(3, 1, "cat", None, None, None, 0).title
        'Member 3 (cat) of replica 1'
        """
        label, replica = f" ({self.label})" if self.label else "", f" of replica {self.replica}" if self.replica else ""
        return f"Member {self.number}{label}{replica}"


@dataclass
class RunStory:
    """Everything that the page of a run shows, read from the files of the run."""

    name: str
    info: RunInfo  # run.json
    recipe: Mapping[str, Any]
    metrics: list[MetricsRecord]
    events: list[EventRecord]
    scores: Mapping[str, Any]  # scores.json
    members: list[MemberStory]
    labels: tuple[str, ...] = ()
    data_name: str = ""
    data_notes: tuple[str, ...] = ()
    generated: np.ndarray | None = None  # samples of the mixture [n, …]
    generated_y: np.ndarray | None = None  # their labels [n]
    generated_member: np.ndarray | None = None  # the members that generated them [n]
    row_view: RowView | None = None  # names of columns, and rows as points in a plane, if the data is a table
    real: np.ndarray | None = None  # real samples [m, …]
    real_y: np.ndarray | None = None  # their labels [m]
    sample_png: bytes | None = None  # the last picture that the run saved, if no mixture can be sampled
    sample_name: str = ""  # the file name of this picture
    sample_command: str = ""  # command that draws from the newest checkpoint; empty if there is none after step 0
    step: int = 0  # of the last record or of the newest checkpoint, whichever is later
    epoch: float | None = None  # at this step
    seconds: float | None = None  # training time up to this step
    mixture_step: int | None = None  # the step at which the mixture was made
    replicas: int = 1
    grid: Neighbourhoods | None = None  # the mixture of each cell of a grid with its neighbours
    verdict: VerdictRecord | None = None  # on the mixture; None if it was not judged
    pictures: list[GalleryPicture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    path: Path = Path()
    first: RunInfo | None = None  # run.json of the first phase; None: there was only one, or its folder is not there
    embedded: JsonObject | None = None  # what the page's script shows, see `web.embedded_run`

    @property
    def state(self) -> str:
        """The state of the run: "killed" if its process is gone although it has not finished, otherwise as recorded."""
        return str((self.embedded or {}).get("facts", {}).get("state") or self.info.state or "unknown")

    @property
    def judged(self) -> VerdictRecord | None:
        """The verdict on the run if it has finished; None otherwise, or if it was not judged."""
        return self.verdict if self.info.state == "finished" else None

    @property
    def command_path(self) -> str:
        """The path of the run folder, quoted for a shell command."""
        return shlex.quote(str(self.path))

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Call `read` and return its result; if it raises an error, add a note about `what` and return None."""
        try:
            return read()
        except UserError as error:
            self.notes.append(f"{what} could not be read: {error}")
        except Exception as error:
            self.notes.append(f"{what} could not be read: {type(error).__name__}: {error}")
        return None


def gather(
    run: RunFolder,
    mixture: Mixture | None = None,
    dataset: Dataset | None = None,
    trust_code: bool = False,
    draw: bool = False,
    progress: Callable[[str], None] | None = None,
    most_bytes: int = MOST_BYTES,
) -> RunStory:
    """Read everything that the report of a run shows; see `report.write` for the other arguments.

    Args:
        most_bytes: About how many bytes of sprites, figures and events the page may contain.
    """
    from ganherd.data.dataset import load as load_data

    folder = Path(run.path)
    story = RunStory(folder.resolve().name, RunInfo(), {}, [], [], {}, [], path=folder)
    story.recipe = story.attempt("the recipe", lambda: run.recipe.model_dump(mode="json")) or {}
    story.info = story.attempt("run.json", lambda: run.info) or RunInfo()
    story.first = story.attempt("the first phase", lambda: _first_phase(run, story.info))
    story.metrics = story.attempt("metrics.jsonl", lambda: run.metrics(MOST_RECORDS)) or []
    story.events = story.attempt("events.jsonl", run.events) or []
    shown = ShownRun(folder.resolve().name, folder)
    story.embedded = story.attempt("what moves on this page", lambda: embed(shown, story.events, most_bytes))
    saved = max(saved_steps(run.checkpoints), default=0)
    _add_progress(story, run.checkpoints, saved)
    if story.info.state == "finished" and story.info.seconds is not None:
        story.seconds = story.info.seconds  # with the checkpoint and pictures after the last record
    if saved:
        story.sample_command = f"ganherd sample {shlex.quote(str(run.path))} -o grid.png"
    if story.info.state == "interrupted":
        story.notes.append(f"It was stopped before its end, and saved at step {saved:,}: resume it with {run.again}.")
    if mixture is None and (folder / "mixture" / "mixture.json").is_file():
        from ganherd.mixture.mixture import load as load_mixture

        mixture = story.attempt("the mixture", lambda: load_mixture(folder, trust_code))
    if dataset is None and story.recipe:
        dataset = story.attempt("the data", lambda: load_data(run.recipe.data))
    labels = dataset.labels if dataset else mixture.labels if mixture else ()
    story.labels = tuple(str(name) for name in labels)
    if mixture is not None:
        _add_mixture(story, folder, mixture, dataset if draw else None, progress)
    if story.generated is None and (last := RunFolder(folder).newest_picture) is not None:
        story.sample_png = story.attempt(last.name, lambda: files.read(last, gallery.LARGEST))
        story.sample_name = last.stem
    if dataset is not None:
        story.real, story.real_y = _some_rows(dataset)
        if dataset.kind == "rows":
            story.row_view = dataset.view_of(dataset.x[:0] if story.generated is None else story.generated)
        story.data_name, story.data_notes = dataset.name, tuple(dataset.notes)
    story.scores = _scores(story, folder)
    # A mixture that cannot be read, such as one with a stranger's nets, was judged at the end of the run
    judged_step = story.mixture_step if mixture is not None else story.info.step
    story.verdict = current_verdict(RunFolder(folder), judged_step)
    story.members = story.attempt("the members", lambda: _members(story, mixture)) or []
    return story


def _first_phase(run: RunFolder, info: RunInfo) -> RunInfo | None:
    """Return run.json of the first phase, whose folder is next to the run; None if members did not start from it."""
    started_from = {Path(one.path).name for one in info.origins or [] if one.path}
    return run.first.info if started_from == {run.first.path.name} and run.first.info_path.is_file() else None


def _add_progress(story: RunStory, checkpoints: Path, saved: int) -> None:
    """Set the step, epoch and seconds of a story: of the last record, or of the newest checkpoint if that is later.

    A run that was stopped between two records has a checkpoint of its last step, but no record.

    Args:
        checkpoints: The folder of checkpoints.
        saved: The step of the newest checkpoint; 0 if there is none.
    """
    last = story.metrics[-1] if story.metrics else MetricsRecord(0, {})
    epoch, seconds = (
        value if isinstance(value := last.get(key), (int, float)) else None for key in ("epoch", "seconds")
    )
    story.step, story.epoch, story.seconds = last.step, epoch, seconds
    if saved <= last.step:
        return
    from ganherd.runs import checkpoint  # imported here because it imports torch

    meta = story.attempt("the newest checkpoint", lambda: checkpoint.read_meta(checkpoint.path_of(checkpoints, saved)))
    story.step = saved
    story.epoch = epoch * saved / last.step if epoch and last.step else None
    story.seconds = meta.seconds if meta else None


def _add_mixture(
    story: RunStory, folder: Path, mixture: Mixture, drawn: Dataset | None, progress: Callable[[str], None] | None
) -> None:
    """Add samples of the mixture and the pictures of the run folder to a story.

    Args:
        drawn: The data; missing pictures are drawn with it first. None: draw none.
    """
    generated = story.attempt("samples of the mixture", lambda: _draw(mixture))
    if generated is not None:
        story.generated, story.generated_y, story.generated_member = generated
        if mixture.kind == "rows":
            story.row_view = mixture.as_samples(*generated).view
    story.mixture_step, story.replicas = int(mixture.step), int(mixture.replicas)
    story.grid = getattr(mixture, "neighbourhoods", None)
    if drawn is not None:
        story.attempt("the pictures", lambda: gallery.make(folder, mixture, drawn, progress=progress))
    story.pictures = story.attempt("the pictures", lambda: gallery.read(folder, int(mixture.step))) or []


def _draw(mixture: Mixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw samples of every class (at most MOST_ROWS classes), or of the whole mixture if it has no classes.

    Returns:
        Samples [n, …], their labels [n] (-1: none), and the members that generated them [n].
    """
    label_of = np.asarray(mixture.label_of)
    wanted = np.unique(label_of[(label_of >= 0) & (label_of < len(mixture.labels))])
    if not mixture.is_image:
        parts = [mixture.sample(2000)]
    elif len(wanted):
        if len(wanted) > MOST_ROWS:
            wanted = wanted[np.linspace(0, len(wanted) - 1, MOST_ROWS).round().astype(int)]
        parts = [mixture.sample(PER_ROW, label=mixture.labels[k]) for k in wanted]
    else:
        parts = [mixture.sample(PER_ROW * 8)]
    x, y, member = (np.concatenate([np.asarray(getattr(p, f)) for p in parts]) for f in ("x", "y", "member"))
    return x, y, member


def _some_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the first real images of each class, as many as are generated, or all points or rows; and their labels."""
    if not dataset.is_image:
        return dataset.x, dataset.y
    if len(dataset.labels) and (dataset.y >= 0).any():
        rows = np.concatenate([np.flatnonzero(dataset.y == k)[:PER_ROW] for k in range(len(dataset.labels))])
    else:
        rows = np.arange(min(PER_ROW * 8, len(dataset.x)))
    return dataset.x[rows], dataset.y[rows]


def _scores(story: RunStory, folder: Path) -> JsonObject:
    path = folder / "scores.json"
    scores = story.attempt("scores.json", lambda: files.read_json(path)) if path.is_file() else None
    if isinstance(scores, dict) and isinstance(scores.get("scores"), dict):
        scores = scores["scores"]
    return scores if isinstance(scores, dict) else {}


def _members(story: RunStory, mixture: Mixture | None) -> list[MemberStory]:
    """Return a row for each member of each replica, replica by replica: its last losses, label, weight, troubles, …"""
    recipe, metrics, labels = story.recipe, story.metrics, story.labels
    loss_g, loss_d = (loss_table(merge_short_end(metrics)[-1:], key) for key in ("loss_g", "loss_d"))
    seeds, trials = seeds_and_trials(recipe)
    total = max(loss_g.shape[1], loss_d.shape[1], 0 if mixture is None else seeds * trials * len(mixture.label_of))
    each = max(1, total // (seeds * trials))
    per_class = int((recipe.get("herd") or {}).get("per_class") or 1)
    by_class = (recipe.get("data") or {}).get("partition") == "by-class" and len(labels) * per_class == each
    label_of = [number // per_class if by_class else -1 for number in range(each)]
    if mixture is not None:
        label_of = np.asarray(mixture.label_of).tolist()
    named = member_labels(labels, label_of)
    best = getattr(mixture, "winner", None)
    breeds = (recipe.get("nets") or {}).get("breeds") or []
    nets = [breed["generator"]["name"] for breed in breeds for _ in range(breed["members"])] if len(breeds) > 1 else []
    speeds = paces(settings_of(recipe).paces)
    judged = story.verdict
    active = [] if judged else run_status.active_alarms(story.events)
    now = [(event.member, words(event.alarm)) for event in active]
    out = []
    for i in range(total):
        replica, number = divmod(i, each)
        weight = None
        if mixture is not None and number < len(mixture.label_of):
            weights = np.asarray(mixture.weights)
            weight = float(weights[number] if weights.ndim == 1 else weights[replica, number])
        out.append(
            MemberStory(
                number=number,
                replica=replica,
                label=named[number] if number < len(named) else "",
                of_class=labels[label_of[number]] if number < len(named) and named[number] else "",
                weight=weight,
                loss_g=_at(loss_g, i),
                loss_d=_at(loss_d, i),
                generator=nets[number] if number < len(nets) else "",
                steps=int(story.step * speeds[number % len(speeds)]) if speeds else None,
                winner=best is not None and (best.member, best.replica) == (number, replica),
                alarms_now=tuple(what for member, what in now if member == i),
                verdict=judged.of_member(number, replica) if judged else None,
                troubles=sum(event.member == i and event.kind in TROUBLES for event in story.events),
            )
        )
    return out


def seeds_and_trials(recipe: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of seeds and of trials (settings of a sweep) of a recipe.

    A herd has a replica, a copy of all its members, for each seed of each trial.

    >>> seeds_and_trials({"herd": {"seeds": 2, "trials": [{"train.ema": 0.9}, {"train.ema": 0.99}]}}), seeds_and_trials({})
    ((2, 2), (1, 1))
    """
    herd = recipe.get("herd") or {}
    return max(1, int(herd.get("seeds") or 1)), max(1, len(herd.get("trials") or ()))


def _at(table: np.ndarray, column: int) -> float | None:
    return float(table[-1, column]) if len(table) and column < table.shape[1] else None
