"""Search the few generators of a finished run that are best together, and save them as a mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from ganherd.features.extract import best_device
from ganherd.features.material import MetricSkipped
from ganherd.metrics.metric_registry import metric_of
from ganherd.recipe.mixture_scores import asked_score
from ganherd.scoring.ensemble_scores import EnsembleScorer, ScoreChange, draw_each, value_of
from ganherd.strategies.mixing import objectives, subset_search
from ganherd.strategies.mixing.scorers import MixtureScorer
from ganherd.strategies.mixing.subset_search import GeneratorSubset
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture

FOLDER = "mixture-ensemble"
Search = Literal["greedy", "evolutionary", "neighbourhoods"]
ONE_CLASS_EACH = "each member of this run generates one class, which a choice of some would lose: sample it as it is."
ADVICE = {
    "worse": "Nothing is gained: by {by} this is worse than the run's own mixture; sample the run as it is.",
    "undecided": "Whether anything is gained over the run's own mixture by {by} is undecided: more samples (-n) may decide it.",
}
_GENERATIONS, _SIGMA = (
    5000,
    0.01,
)  # of the ES on the weights of a neighbourhood, as at the end of a run in the cellular papers


@dataclass(frozen=True)
class ChosenGenerators:
    """The ensemble of one replica. The search saw one set of samples; `changes` are measured on another."""

    seed: int
    label: str  # the class of the generators; empty: they generate all classes
    members: tuple[int, ...]  # in the order of the search
    weights: tuple[float, ...]
    changes: Mapping[str, ScoreChange]  # fid, tvd if the network predicts classes, and the score of the search
    searched: tuple[float, float]  # the scores of both mixtures on the samples of the search
    tried: int  # number of mixtures

    def facts(self) -> JsonObject:
        """Return what `--json` prints."""
        chosen = [{"member": m, "weight": w} for m, w in zip(self.members, self.weights, strict=True)]
        return {
            "seed": self.seed,
            **({"class": self.label} if self.label else {}),
            "members": chosen,
            "before": {name: change.before for name, change in self.changes.items()},
            "after": {name: change.after for name, change in self.changes.items()},
            "searched": list(self.searched),
            "intervals": {name: change.interval for name, change in self.changes.items()},
            "verdicts": {name: change.verdict for name, change in self.changes.items()},
            "tried": self.tried,
        }


@dataclass(frozen=True)
class EnsembleResult:
    """The ensembles of all replicas, of each class if members generate one class each, and the folder of their mixture."""

    folder: Path
    by: str
    search: Search
    network: str
    samples: int  # of each generator, for the search and again for the comparison
    generators: int
    each: tuple[ChosenGenerators, ...]  # of every replica, class by class

    def facts(self) -> JsonObject:
        """Return what `--json` prints."""
        own = {"mixture": str(self.folder), "by": self.by, "search": self.search, "network": self.network}
        rows = [one.facts() for one in self.each]
        return {**own, "samples": self.samples, "generators": self.generators, "ensembles": rows}

    def __str__(self) -> str:
        what = "the best" if all(len(one.members) == 1 for one in self.each) else "the best together"
        head = f"{what} of {self.generators} generators, {self.search} search by {self.by}"
        lines = [f"{head} ({self.network}, {self.samples:,} samples of each)"]
        for one in self.each:
            changes = [_judged(name, change) for name, change in one.changes.items()]
            saw = f"the search saw {_change(self.by, *one.searched)} in {one.tried:,} mixtures"
            of_class = f", class {one.label}" if one.label else ""
            lines += ["", f"seed {one.seed}{of_class}: {', '.join(changes)} on fresh samples; {saw}", "member  weight"]
            lines += [f"{m:<6}  {w:.3f}" for m, w in zip(one.members, one.weights, strict=True)]
            lines += ADVICE.get(one.changes[self.by].verdict, "").format(by=self.by).splitlines()
        return "\n".join([*lines, "", f"saved in {self.folder}"])


def _change(name: str, before: float, after: float) -> str:
    """Return a score before and after, in words."""
    digits = 5 if name == "kid" else 3
    return f"{name} {before:.{digits}f} → {after:.{digits}f}"


def _judged(name: str, change: ScoreChange) -> str:
    """Return a score before and after, with the verdict and the interval of the difference."""
    ends, digits = change.interval, 5 if name == "kid" else 3
    if ends and change.verdict in ("better", "worse"):  # the interval excludes zero, and so do its printed ends
        while digits < 6 and not all(round(ends[end], digits) for end in ("low", "high")):
            digits += 1
    span = f", difference {ends['low']:+.{digits}f} to {ends['high']:+.{digits}f}" if ends else ""
    return f"{_change(name, change.before, change.after)} ({change.verdict}{span})"


def find(
    run: str | Path,
    size: int = 5,
    by: str = "fid",
    search: Search = "greedy",
    samples: int = 1000,
    seed: int = 0,
    *,
    network: str | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
    target: str = FOLDER,
) -> EnsembleResult:
    """Search an ensemble for each replica of a run, and write the mixture of these into the run's folder.

    If classes have several members each, every class has its own ensemble, and keeps its share of the samples.

    Args:
        run: The run folder.
        size: The largest number of generators in an ensemble, or in that of a class.
        by: A score of `recipe.mixture_scores`, or a function of your own as package.module:function.
        search: `greedy`, `evolutionary`, or `neighbourhoods`, which evolves the weights of each neighbourhood of a grid and
            takes the best one, whatever its size.
        samples: The number of samples of each generator.
        seed: The seed of the samples and of the search.
        network: The network of the features; None: that of the run's recorded scores, or the best one here.
        trust_code: Whether the user's nets and functions may be loaded.
        progress: Receives lines about the progress.
        target: The folder in the run's folder that gets the mixture.

    Raises:
        UserError: The run has no ensembles, or the score cannot be computed for it.
    """
    from ganherd.data.dataset import load
    from ganherd.mixture import mixture
    from ganherd.runs.folder import RunFolder
    from ganherd.scoring.one_run import recorded_network, reference_for

    if size < 1 or samples < 2:
        raise UserError("an ensemble needs --size of at least 1, and -n of at least 2 samples of each generator.")
    by = asked_score("--by", by)
    folder = RunFolder.open(run)
    loaded = mixture.load(run, trust_code)
    classes = sorted(set(loaded.label_of.tolist()))
    if len(classes) == loaded.members > 1:
        raise UserError(ONE_CLASS_EACH)
    data = load(folder.recipe.data)
    objectives.refuse(f"--by {by}", by, data, samples, loaded.takes_label, trust_code)
    default = recorded_network(folder.scores_path, data)
    reference = reference_for(data, network, samples, None, trust_code, progress, default)
    try:
        name = reference.network.name
    except MetricSkipped as why:
        raise UserError(f"--network {network}: {why}.") from why
    saved = Path(folder.path) / target
    on_device, each = loaded.to(best_device()), []
    weights = np.zeros((loaded.replicas, loaded.members))
    for replica, row in enumerate(weights):
        for label in classes:
            group = np.flatnonzero(loaded.label_of == label)
            scorer = EnsembleScorer(on_device, reference.of_class(label), by, trust_code)
            one = _chosen(scorer, replica, group.tolist(), size, search, samples, seed, progress)
            row[list(one.members)] = loaded.weights_of(replica)[group].sum() * np.array(one.weights)
            each.append(one)
    whole = replace(loaded, weights=weights if len(weights) > 1 else weights[0], winner=None, neighbourhoods=None)
    try:
        whole.save(saved)
    except OSError as error:
        raise UserError(f"{saved} cannot be written: {error.strerror}.") from error
    return EnsembleResult(saved, by, search, name, samples, loaded.members, tuple(each))


def _chosen(
    scorer: EnsembleScorer,
    replica: int,
    group: list[int],
    size: int,
    search: Search,
    samples: int,
    seed: int,
    progress: Progress | None,
) -> ChosenGenerators:
    """Search the ensemble of a group of members of one replica, and compare it with their mixture on other samples."""
    mixture, by, label = scorer.mixture, scorer.by, int(scorer.mixture.label_of[group[0]])
    sets = [draw_each(mixture, replica, group, samples, 2 * seed + half, progress) for half in (0, 1)]
    able = sorted(set(sets[0]) & set(sets[1]))  # generators with finite samples
    if not able:
        raise UserError(f"no generator of seed {mixture.seeds[replica]} makes finite samples: train it again.")
    looks = [scorer.extract([one[m] for m in able]) for one in sets]
    seen, fresh = (scorer.scorers(look) for look in looks)
    if progress:
        progress(f"{search} search by {by}")
    cost = metric_of(by).cost
    best = _searched(mixture, replica, able, lambda weights, table: cost(seen[by](weights, table)), search, size, seed)
    if not math.isfinite(best.score):
        raise UserError(
            f"--by {by}: the score is not finite for any mixture of seed {mixture.seeds[replica]}; choose another."
        )
    own = mixture.weights_of(replica)[able]
    if not own.sum() > 0:
        raise UserError(
            f"the mixture of seed {mixture.seeds[replica]} has only generators that are not finite: train it again."
        )
    old, new = torch.from_numpy(own / own.sum()), best.weights
    picked = [number for number in best.picked if float(new[number]) > 0]
    return ChosenGenerators(
        mixture.seeds[replica],
        mixture.labels[label] if label >= 0 else "",
        tuple(able[number] for number in picked),
        tuple(float(new[number]) for number in picked),
        scorer.changes(looks[1], fresh, (old, new)),
        (value_of(seen[by], old), value_of(seen[by], new)),
        best.evaluations,
    )


def _searched(
    mixture: Mixture, replica: int, able: list[int], score: MixtureScorer, search: Search, size: int, seed: int
) -> GeneratorSubset:
    """Return the result of a search among the generators `able`."""
    if search == "greedy":
        return subset_search.greedy(score, len(able), size)
    if search == "evolutionary":
        return subset_search.evolutionary(score, len(able), size, smallest=1, seed=seed)
    if mixture.neighbourhoods is None:
        raise UserError("only a grid of cells has neighbourhoods: choose --search greedy or evolutionary.")
    each = [one.members for one in mixture.neighbourhoods.all if one.replica == replica]
    known = [[able.index(member) for member in members if member in able] for members in each]
    return subset_search.neighbourhoods(score, len(able), [near for near in known if near], _GENERATIONS, _SIGMA, seed)
