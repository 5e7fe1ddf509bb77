"""Read everything that a report shows from a run; what cannot be read is left out with a note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ganherd.herd.step.pace import paces
from ganherd.recipe.strategy_config import settings_of
from ganherd.runs import run_status
from ganherd.runs.models import EventRecord, MetricsRecord, RunInfo
from ganherd.scoring import gallery
from ganherd.scoring.gallery import GalleryPicture
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import words
from ganherd.viz.charts import TROUBLES, loss_table
from ganherd.viz.pictures import MOST_ROWS

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.mixture_files import Neighbourhoods
    from ganherd.runs.folder import RunFolder

T = TypeVar("T")
MOST_RECORDS = 2000  # minimum number of records read of a longer run; charts show fewer
PER_ROW = 12  # samples of each class in the report


@dataclass(frozen=True)
class MemberStory:
    number: int
    replica: int
    label: str
    weight: float | None
    loss_g: float | None
    loss_d: float | None
    troubles: int  # number of NaN, diverged, alarm and repair events
    winner: bool = False  # the best of its run by GAM-II
    generator: str = ""  # its net, if the herd has several breeds
    ill: tuple[str, ...] = ()  # names of active alarms
    steps: int | None = None  # its own steps, if members have a pace


@dataclass(frozen=True)
class RunStory:
    """What the page shows, independent of the files of the run."""

    name: str
    info: RunInfo
    recipe: Mapping[str, Any]
    metrics: list[MetricsRecord]
    events: list[EventRecord]
    scores: Mapping[str, Any]
    members: list[MemberStory]
    labels: tuple[str, ...] = ()
    data_name: str = ""
    data_notes: tuple[str, ...] = ()
    generated: np.ndarray | None = None  # [n, …]
    generated_y: np.ndarray | None = None
    generated_member: np.ndarray | None = None
    real: np.ndarray | None = None
    real_y: np.ndarray | None = None
    sample_png: bytes | None = None  # the last picture of the run, if no mixture can be sampled
    sample_name: str = ""
    mixture_step: int | None = None
    replicas: int = 1
    grid: Neighbourhoods | None = None  # the mixtures of a grid's cells
    pictures: list[GalleryPicture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(
    run: RunFolder,
    mixture: Mixture | None = None,
    dataset: Dataset | None = None,
    trust_code: bool = False,
    draw: bool = False,
    progress: Callable[[str], None] | None = None,
) -> RunStory:
    notes: list[str] = []
    recipe = _attempt(lambda: run.recipe.model_dump(mode="json"), notes, "the recipe") or {}
    info = _attempt(lambda: run.info, notes, "run.json") or RunInfo()
    metrics = _attempt(lambda: run.metrics(MOST_RECORDS), notes, "metrics.jsonl") or []
    events = _attempt(run.events, notes, "events.jsonl") or []
    if info.state == "interrupted":
        from ganherd.runs import checkpoint  # which imports torch

        saved = max(checkpoint.steps(run.checkpoints), default=0)
        notes.append(f"It was stopped before its end, and saved at step {saved:,}: resume it with {run.again}.")
    folder = Path(run.path)
    if mixture is None and (folder / "mixture" / "mixture.json").is_file():
        mixture = _attempt(lambda: _load_mixture(folder, trust_code), notes, "the mixture")
    if dataset is None and recipe:
        dataset = _attempt(lambda: _load_data(run), notes, "the data")
    labels = tuple(str(name) for name in (dataset.labels if dataset else mixture.labels if mixture else ()))
    optional: JsonObject = {}
    if mixture is not None:
        made_at = int(mixture.step)
        generated = _attempt(lambda: _draw(mixture), notes, "samples of the mixture")
        if generated is not None:
            optional |= {"generated": generated[0], "generated_y": generated[1], "generated_member": generated[2]}
        optional |= {"mixture_step": int(mixture.step), "replicas": int(mixture.replicas)}
        optional["grid"] = getattr(mixture, "neighbourhoods", None)
        if draw and dataset is not None:
            made, data = mixture, dataset
            _attempt(lambda: gallery.make(folder, made, data, progress=progress), notes, "the pictures")
        optional["pictures"] = _attempt(lambda: gallery.read(folder, made_at), notes, "the pictures") or []
    if "generated" not in optional and (last := _last_picture(folder)) is not None:
        png = _attempt(lambda: files.read(last, gallery.LARGEST), notes, last.name)
        optional |= {"sample_png": png, "sample_name": last.stem}
    if dataset is not None:
        optional |= dict(zip(("real", "real_y"), _some_rows(dataset), strict=True))
        optional |= {"data_name": dataset.name, "data_notes": tuple(dataset.notes)}
    return RunStory(
        name=folder.resolve().name,
        info=info,
        recipe=recipe,
        metrics=metrics,
        events=events,
        scores=_scores(folder, notes),
        members=_attempt(lambda: _members(recipe, metrics, events, mixture, labels), notes, "the members") or [],
        labels=labels,
        notes=notes,
        **optional,
    )


def _attempt(read: Callable[[], T], notes: list[str], what: str) -> T | None:
    """Return what `read` returns; if it fails, add a note and return None, so that the rest is still reported."""
    try:
        return read()
    except UserError as error:
        notes.append(f"{what} could not be read: {error}")
    except Exception as error:
        notes.append(f"{what} could not be read: {type(error).__name__}: {error}")
    return None


def _load_mixture(folder: Path, trust_code: bool) -> Mixture:
    from ganherd.mixture.mixture import load

    return load(folder, trust_code)


def _load_data(run: RunFolder) -> Dataset:
    from ganherd.data.dataset import load

    return load(run.recipe.data)


def _draw(mixture: Mixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw samples of every class (at most MOST_ROWS classes), or of the whole mixture."""
    label_of = np.asarray(mixture.label_of)
    wanted = np.unique(label_of[(label_of >= 0) & (label_of < len(mixture.labels))])
    if not mixture.is_image:
        parts = [mixture.sample(2000)]
    elif len(wanted):
        if len(wanted) > MOST_ROWS:
            wanted = wanted[np.linspace(0, len(wanted) - 1, MOST_ROWS).round().astype(int)]
        parts = [mixture.sample(PER_ROW, label=int(k)) for k in wanted]
    else:
        parts = [mixture.sample(PER_ROW * 8)]
    x, y, member = (np.concatenate([np.asarray(getattr(p, f)) for p in parts]) for f in ("x", "y", "member"))
    return x, y, member


def _some_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the first real samples of each class, as many as are generated."""
    if not dataset.is_image:
        return dataset.x, dataset.y
    if len(dataset.labels) and (dataset.y >= 0).any():
        rows = np.concatenate([np.flatnonzero(dataset.y == k)[:PER_ROW] for k in range(len(dataset.labels))])
    else:
        rows = np.arange(min(PER_ROW * 8, len(dataset.x)))
    return dataset.x[rows], dataset.y[rows]


def _last_picture(folder: Path) -> Path | None:
    final = folder / "samples" / "final.png"
    paths = [final] if final.is_file() else sorted(final.parent.glob("step-*.png"))
    return paths[-1] if paths else None


def _scores(folder: Path, notes: list[str]) -> JsonObject:
    path = folder / "scores.json"
    if not path.is_file():
        return {}
    scores = _attempt(lambda: files.read_json(path), notes, "scores.json")
    if isinstance(scores, dict) and isinstance(scores.get("scores"), dict):
        scores = scores["scores"]
    return scores if isinstance(scores, dict) else {}


def _members(
    recipe: Mapping[str, Any],
    metrics: list[MetricsRecord],
    events: list[EventRecord],
    mixture: Mixture | None,
    labels: tuple[str, ...],
) -> list[MemberStory]:
    """Return what is known of each member of each replica: the last losses, the label, troubles."""
    loss_g, loss_d = (loss_table(metrics[-1:], key) for key in ("loss_g", "loss_d"))
    seeds = max(1, int((recipe.get("herd") or {}).get("seeds") or 1))
    total = max(loss_g.shape[1], loss_d.shape[1], 0 if mixture is None else seeds * len(mixture.label_of))
    each = max(1, total // seeds)
    by_class = (recipe.get("data") or {}).get("partition") == "by-class" and len(labels) == each
    best = getattr(mixture, "winner", None)
    breeds = (recipe.get("nets") or {}).get("breeds") or []
    nets = [breed["generator"]["name"] for breed in breeds for _ in range(breed["members"])] if len(breeds) > 1 else []
    speeds = paces(settings_of(recipe).paces)
    step = metrics[-1].step if metrics else 0
    now = [(event.member, words(event.alarm)) for event in run_status.ill(events)]
    out = []
    for i in range(total):
        replica, number = divmod(i, each)
        k = number if by_class else -1
        weight = None
        if mixture is not None and number < len(mixture.label_of):
            k = int(mixture.label_of[number])
            weights = np.asarray(mixture.weights)
            weight = float(weights[number] if weights.ndim == 1 else weights[replica, number])
        out.append(
            MemberStory(
                number=number,
                replica=replica,
                label=labels[k] if 0 <= k < len(labels) else "",
                weight=weight,
                loss_g=_at(loss_g, i),
                loss_d=_at(loss_d, i),
                generator=nets[number] if number < len(nets) else "",
                steps=int(step * speeds[number]) if number < len(speeds) else None,
                winner=best is not None and (best.member, best.replica) == (number, replica),
                ill=tuple(what for member, what in now if member == i),
                troubles=sum(event.member == i and event.kind in TROUBLES for event in events),
            )
        )
    return out


def _at(table: np.ndarray, column: int) -> float | None:
    return float(table[-1, column]) if len(table) and column < table.shape[1] else None
