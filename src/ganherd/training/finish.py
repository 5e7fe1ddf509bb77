"""Finish a run: make the mixture of its members, let the finishers work on it, and mark the run as finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.data.dataset import Dataset
from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.rng import PRIORS
from ganherd.herd.state import State, base_keys, buffers_of, members_of
from ganherd.mixture.generators import Generators
from ganherd.mixture.mixture import Mixture
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.mixture.recalibration import recalibrate_batch_norm
from ganherd.recipe.schema import NetConfig, Recipe
from ganherd.runs.folder import RunFolder
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.runs.score_entry import Scores
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.memory import peak_memory
from ganherd.util.meter import Detail, Progress, timed
from ganherd.util.paths import from_here

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


@dataclass(frozen=True)
class TrainedRun:
    """What a training returns: the folder of the finished run, and its scores."""

    path: Path  # absolute
    scores: Scores

    @property
    def folder(self) -> RunFolder:
        """The paths and readers of the run."""
        return RunFolder(self.path)

    @property
    def verdict(self) -> VerdictRecord | None:
        """The verdict on the mixture, whose advice names the run as users type it; None if the run was not scored."""
        return RunFolder(from_here(self.path)).verdict


@dataclass
class Product:
    """What a training has produced, for finishers to work on."""

    folder: RunFolder
    recipe: Recipe
    dataset: Dataset
    mixture: Mixture
    log: Callable[[str], None]
    scores: Scores = field(default_factory=dict)  # filled in by the finisher that scores the mixture


class Finisher:
    """Make something of a run's mixture, such as scores or a report. Finishers run on the first rank, in their order."""

    def on_mixture(self, product: Product) -> None:
        """Work before the run is marked as finished: if this fails, the run can be resumed from its last step."""

    def on_finished(self, product: Product) -> None:
        """Work after the run is marked as finished in run.json."""


class TimeReport(Finisher):
    """Report the time that was used when the mixture of a run with a time budget is saved, before it is scored."""

    def __init__(self, trainer: Trainer, whole: float) -> None:
        """Prepare the report.

        Args:
            whole: The time budget of the command in seconds; not used if the budget is not a time.
        """
        self._trainer, self._whole = trainer, whole

    def on_mixture(self, product: Product) -> None:
        if self._trainer.deadline is None:
            return
        used = self._whole - self._trainer.deadline + self._trainer.seconds
        then = "; scores follow" if product.recipe.run.scores else ""
        steps = f"{self._trainer.step:,} step{'s' * (self._trainer.step != 1)}"
        product.log(Detail(f"Mixture saved after {used:.1f} s of the {self._whole:g} s budget, with {steps}{then}."))


def check_finishers(finishers: Sequence[object]) -> None:
    """Raise `UserError` unless all of these are finishers. Otherwise a mistake would only show after the training."""
    if not isinstance(finishers, Sequence) or isinstance(finishers, str):
        raise UserError(f"finishers is a {type(finishers).__name__}: give a list of them.")
    for finisher in finishers:
        if not isinstance(finisher, Finisher):
            what = finisher.__name__ if isinstance(finisher, type) else type(finisher).__name__
            hint = "give an instance of it" if isinstance(finisher, type) else "derive its class from Finisher"
            raise UserError(f"{what} is not a finisher: {hint}.")


def finish_run(trainer: Trainer, finishers: Sequence[Finisher]) -> TrainedRun:
    """Make the mixture from the generators of all ranks, let the finishers work on it, and return the run.

    All ranks call this. The first one makes the mixture; the others send their generators and return without scores.
    """
    prepared, folder, seconds = trainer.prepared, trainer.folder, round(trainer.seconds, 3)
    ranks, near = prepared.ranks, trainer.strategy.neighbourhoods(trainer.step)
    frozen, say = trainer.state.convergence.frozen_members, trainer.progress.say
    own = exports(prepared, trainer.strategy.generators(), frozen, say if ranks.is_first else None)
    exported = own if ranks.is_single_process else ranks.fetch_to_first(own, range(ranks.num_members))
    if not ranks.is_first:
        trainer.strategy.metrics()
        return TrainedRun(folder.path.absolute(), {})

    def mark_finished() -> None:
        left = trainer.strategy.metrics().get("profile")  # seconds per routine since the last record
        trainer.event("finish", seconds=seconds, **({"profile": left} if left else {}))
        here = max(trainer.seconds_here, 1e-9)  # of this process only, like `monitor.seconds`
        watch = {**vars(trainer.schedule.looks), "share": round(trainer.state.monitor.seconds / here, 5)}
        budget = trainer.budget.record()
        memory = peak_memory(prepared.herd.device)
        reason = "" if trainer.deadline is None else "the time budget was used up."
        folder.write_info(
            state="finished",
            reason=reason,
            seconds=seconds,
            memory=memory,
            step=trainer.step,
            budget=budget,
            watch=watch,
        )

    mixture = make_mixture(prepared, trainer.step, near, exported)
    product = Product(folder, prepared.recipe, prepared.dataset, mixture, trainer.progress.say)
    return publish(product, finishers, mark_finished)


def publish(product: Product, finishers: Sequence[Finisher], mark_finished: Callable[[], None]) -> TrainedRun:
    """Save the mixture, and call the finishers' hooks before and after `mark_finished`, which writes run.json."""
    product.mixture.save(product.folder.mixture)
    for finisher in finishers:
        finisher.on_mixture(product)
    mark_finished()
    for finisher in finishers:
        finisher.on_finished(product)
    return TrainedRun(product.folder.path.absolute(), product.scores)


def finish_part(trainer: Trainer) -> TrainedRun:
    """Mark the run of a job part as finished.

    It has no mixture, because other jobs train the other members of the herd.
    """
    seconds, folder = round(trainer.seconds, 3), trainer.folder
    trainer.event("finish", seconds=seconds)
    if trainer.ranks.is_first:
        folder.write_info(state="finished", seconds=seconds, step=trainer.step, budget=trainer.budget.record())
    return TrainedRun(folder.path.absolute(), {})


def make_mixture(
    prepared: PreparedHerd, step: int, neighbourhoods: Neighbourhoods | None = None, exported: State | None = None
) -> Mixture:
    """Return the mixture of all members.

    Args:
        neighbourhoods: In a cellular herd, the mixture weights that each neighbourhood has evolved. Each replica then
            gets the weights of its best neighbourhood, or of the best one of each class.
        exported: The generators of all members, as `exports` returns them. None: export those of this process.
    """
    herd, recipe, data = prepared.herd, prepared.recipe, prepared.dataset
    rows = exports(prepared) if exported is None else exported
    slots = [seat.slot for seat in prepared.seats]
    each_prior = tuple(recipe.nets.prior_of(slot) for slot in slots[: prepared.members])
    breeds = zip(herd.breeds.all, recipe.nets.each(prepared.members), strict=True)
    mixture = Mixture(
        labels=data.labels,
        shape=data.shape,
        offset=data.offset,
        scale=data.scale,
        latent=herd.rules.latent,
        prior=each_prior if herd.rules.prior == "mixed" else herd.rules.prior,
        label_of=prepared.label[: prepared.members],
        weights=member_weights(prepared),
        label_weights=label_weights(prepared),
        seeds=recipe.replica_seeds,
        step=step,
        breeds=tuple(_generators(rows, breed, net, herd.breeds.rows_of(breed, slots)) for breed, (net, _) in breeds),
        neighbourhoods=neighbourhoods,
        stream_version=rng.version(),
        columns=data.columns,
        plane=data.plane,
    )
    if neighbourhoods is None:
        return mixture
    label, each = mixture.label_of, np.zeros((mixture.replicas, mixture.members))
    # [members] the weight of each member's class in the mixture
    share = np.bincount(label, mixture.weights)[label] if neighbourhoods.classes > 1 else np.ones(len(label))
    for replica, weights in enumerate(each):
        for cell in neighbourhoods.best_of(replica):
            weights += share * mixture.neighbourhood(cell).weights_of(replica)
    return replace(mixture, weights=each if len(each) > 1 else each[0])


def exports(
    prepared: PreparedHerd,
    instead: State | None = None,
    frozen: Collection[int] | None = None,
    progress: Progress | None = None,
) -> State:
    """Return the weights and buffers of this rank's generators for the mixture; rows are in the order of the herd's state.

    The weights are the running average (EMA), if there is one. The statistics of batch norm are re-estimated for them.

    Args:
        instead: Generator parameters and buffers to export instead of the current ones.
        frozen: Members that were taken from a finished run and are not trained; their batch-norm statistics are
            exported as they are. Default: the frozen members of the prepared herd.
        progress: Called with lines about the progress.
    """
    frozen = prepared.frozen_members if frozen is None else frozen
    herd = prepared.herd
    state = herd.state if instead is None else {**herd.state, "g.ema": instead["g.params"], **instead}
    out: State = {"g.params": state.get("g.ema", state["g.params"]).detach().cpu()}
    for breed in herd.breeds.all:
        for name, (shape, dtype) in breed.g.buffers.items():
            out[f"g.buffers.{breed.buffer_prefix}{name}"] = torch.zeros(herd.num_members, *shape, dtype=dtype)
        weights, buffers = breed.g.views(breed.view(out)["g.params"]), buffers_of(breed.view(state), "g")
        of_breed = herd.breeds.rows_of(breed, herd.state["set.slot"].tolist())
        for row in timed(of_breed, progress, "batch norms for the mixture, members"):
            own = {name: value[row].cpu() for name, value in buffers.items()}
            if prepared.own[row] not in frozen:
                own = recalibrated(prepared, breed, row, {name: value[row] for name, value in weights.items()}, own)
            for name, value in own.items():
                out[f"g.buffers.{breed.buffer_prefix}{name}"][row] = value
    return out


def recalibrated(
    prepared: PreparedHerd,
    breed: Breed,
    row: int,
    weights: dict[str, Tensor],
    buffers: dict[str, Tensor],
    noises: int | None = None,
) -> dict[str, Tensor]:
    """Return the buffers of a member's generator, with batch-norm statistics re-estimated for these weights.

    Args:
        breed: The generator architecture of the member.
        row: The row of the member in this rank's herd.
        weights: Parameters of the member's generator, by name.
        buffers: Its buffers, by name.
        noises: Number of noise vectors; None: the usual number. Fewer are only used to measure the time.
    """
    herd, own = prepared.herd, slice(row, row + 1)
    priors = herd.priors(own)
    return recalibrate_batch_norm(
        breed.g.module,
        weights,
        buffers,
        herd.rules.latent,
        herd.rules.prior if priors is None else PRIORS[int(priors)],
        prepared.label_shares[prepared.own[row]],
        int(base_keys(members_of(herd.state, own))[0]),
        herd.device,
        noises,
    )


def _generators(exported: State, breed: Breed, net: NetConfig, rows: Sequence[int]) -> Generators:
    """Return the generators of one breed (members with the same architecture).

    Args:
        rows: Their rows in the exported state.
    """
    own = {name: value[list(rows)] for name, value in breed.view(exported).items()}
    views = {name: value.clone() for name, value in breed.g.views(own["g.params"]).items()}
    module = copy_module(breed.g.module).cpu()
    return Generators(net, len(breed.slots), module, views, buffers_of(own, "g"))


def label_weights(prepared: PreparedHerd) -> np.ndarray:
    """Return the weight p(y) of each class in the mixture [classes]; empty if the data has no labels.

    The recipe's `run.weights` decides: the frequencies in the data, uniform, or given numbers.
    """
    labels, wanted = prepared.dataset.labels, prepared.recipe.run.weights
    if not labels:
        return np.zeros(0)
    if wanted == "uniform":
        return np.full(len(labels), 1.0 / len(labels))
    if wanted == "data":
        counts = np.bincount(prepared.dataset.y[prepared.dataset.y >= 0], minlength=len(labels)).astype(np.float64)
        return np.asarray(counts / counts.sum())
    assert isinstance(wanted, dict)
    unknown = [name for name in wanted if name not in labels]
    if unknown:
        raise UserError(f"run.weights names the label {unknown[0]!r}; the data has {', '.join(labels)}.")
    weights = np.array([float(wanted.get(name, 0.0)) for name in labels])
    if weights.min() < 0 or not weights.sum() > 0:
        raise UserError("run.weights must be numbers of at least 0, and not all 0.")
    return np.asarray(weights / weights.sum())


def member_weights(prepared: PreparedHerd) -> np.ndarray:
    """Return the weight [members] of each member in the mixture.

    A member gets p(y) of its class, divided by the number of members of that class. If members have no class, all get
    the same weight. If several members are copies of one GAN, only the first of them gets a weight.
    """
    label = prepared.label[: prepared.members]
    counts = np.ones(len(label))  # 1 for members that get a weight, 0 for copies of another member
    if prepared.recipe.strategy.settings.is_one_gan:
        counts = (np.arange(len(label)) % prepared.group_members == 0).astype(np.float64)
    if (label < 0).any():
        return np.asarray(counts / counts.sum())
    weights = counts * label_weights(prepared)[label] / np.bincount(label, counts)[label]
    return np.asarray(weights / weights.sum())
