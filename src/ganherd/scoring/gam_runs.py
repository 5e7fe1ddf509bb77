"""GAM-II of runs: the discriminators of each run judge the generators of the others.

Nothing of a run is executed: recipes and checkpoints are data, and nets that are not ganherd's are built only if trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.data import dataset
from ganherd.features.extract import best_device
from ganherd.metrics.gam import gam, gam_table
from ganherd.mixture import mixture as mixtures
from ganherd.runs.folder import RunFolder
from ganherd.runs.score_entry import ScoreEntry
from ganherd.scoring.gam_judges import Judges, load_judges
from ganherd.util.errors import UserError
from ganherd.util.meter import Detail, Progress, TimeLeft

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

MODE = "evaluation mode"
NORMED = f"{MODE}, batch norm by the statistics of what they look at, real data or the samples of one generator alone"


@dataclass(frozen=True)
class Contest:
    """The result of GAM-II of all runs; its text is the table."""

    players: list[gam.Player]
    verdict: gam.Gam2Scores
    real_errors: np.ndarray  # [J]
    thresholds: list[tuple[float, str]]  # [J]
    samples: int
    held_out: int
    seed: int
    judged_by: str  # in words
    mode: str = MODE  # of the judges
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = gam_table.table(self.players, self.verdict, self.real_errors, self.samples, self.held_out)
        rules = ", ".join(dict.fromkeys(words for _, words in self.thresholds))
        how = f"judged by {self.judged_by}; called real above: {rules}; seed {self.seed}"
        return "\n".join([text, how, f"judges in {self.mode}", *self.notes])

    def summary(self) -> list[gam_table.GamRow]:
        """Return the rows of the table, by kind and run."""
        return gam_table.summary(self.players, self.verdict, self.real_errors, self.samples)

    @property
    def groups(self) -> list[str]:
        """Return the names of the runs, in the order in which they were given."""
        return list(dict.fromkeys(player.group for player in self.players))

    def entry(self, group: str) -> ScoreEntry:
        """Return what scores.json holds of GAM-II of one of the runs."""
        scores = gam.entry(self.players, self.verdict, group, self.real_errors, self.samples)
        rows = [i for i, player in enumerate(self.players) if player.group == group]
        judging = np.atleast_1d(self.verdict.allowed[:, rows].any(1))  # the judges of this run's generators
        judges = zip(gam.weak_judges(self.real_errors, self.verdict), judging, strict=True)
        weak = [why for why, mine in judges if why and mine]
        return {
            **self._facts(scores.pop("value")),
            **scores,
            "thresholds": [self.thresholds[i][0] for i in rows],
            "threshold_rule": ", ".join(dict.fromkeys(self.thresholds[i][1] for i in rows)),
            "judged_by": self.judged_by,
            "judges_mode": self.mode,
            **self._warning(f"{len(weak)} of its {judging.sum()} judges decide nothing ({weak[0]})" if weak else ""),
        }

    def battles(self, group: str) -> ScoreEntry:
        """Return what scores.json holds of GAM of one of the runs: its battles against generators of the others."""
        standing = gam.standings(self.verdict.errors, self.real_errors, self.players, self.samples)[group]
        fought = standing["won"] + standing["tied"] + standing["lost"]
        ties = "most battles are ties: the judges' errors on real data are not alike"
        few = "there is no other generator to battle with: name another run with members of the same classes"
        words = few if not fought else ties if standing["tied"] > fought / 2 else ""
        return {**self._facts(standing.pop("value")), **standing, "tie": gam.TIE, **self._warning(words)}

    def _facts(self, value: float | None) -> ScoreEntry:
        """Return the fields that all entries have."""
        facts: ScoreEntry = {"value": value, "samples": self.samples}
        return facts | {
            "network": f"discriminators of {', '.join(self.groups)}",
            "seed": self.seed,
            "held_out": self.held_out,
        }

    def _warning(self, words: str) -> ScoreEntry:
        """Return a warning as an entry: these words, or one about too few samples."""
        words = words or _few_samples(self.samples)
        return {"warning": words} if words else {}


def contest(
    runs: Sequence[str | Path],
    samples: int = gam.SAMPLES,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Contest:
    """Judge every generator of the runs by GAM-II.

    With several runs, a generator is judged by the discriminators of the other runs, as in the tables of the paper. With one
    run, it is judged by those of the same run that it did not meet.

    Args:
        runs: The run folders.
        samples: The number of samples of each generator.
        seed: The seed of the samples.
        trust_code: Whether the user's nets may be built.
        progress: Receives lines about the progress.

    Raises:
        UserError: The runs cannot be compared, or no discriminator may judge.
    """
    if len({Path(run).resolve() for run in runs}) != len(runs) or not runs:
        raise UserError("GAM-II needs runs that are all different, and at least one.")
    other_runs = len(runs) > 1
    recipes = [RunFolder.open(run).recipe for run in runs]
    herds = [mixtures.load(run, trust_code).to(best_device()) for run in runs]
    data = [dataset.load(recipe.data) for recipe in recipes]
    names = _names(runs)
    for name, one in zip(names[1:], data[1:], strict=True):
        if one.shape != data[0].shape or one.labels != data[0].labels:
            raise UserError(f"{name} and {names[0]} were trained on data of different shape or labels: compare alike.")
    held, held_y = data[0].x_test, data[0].y_test
    if not len(held):
        raise UserError(
            f"judges are tried on held-out real data, which {data[0].name} does not have: set data.holdout."
        )
    tell = progress or (lambda line: None)
    judges = [load_judges(run, herds[0].shape, len(data[0].labels), trust_code) for run in runs]
    kin = _kin(runs, names)
    players, swaps, seats = _seat(names, herds, judges, recipes, kin)
    met = gam.met_matrix(players, other_runs, swaps)
    if met.all():
        of_classes = len({player.label for player in players}) > 1 and not any(swaps)
        why = "have met all its discriminators"
        if of_classes:
            why = "generate one class each, and there is no other judge of that class"
        raise UserError(
            f"the generators of {names[0]} {why}: name another run to judge them (`--judges`, or a second run to score)."
        )
    fakes = []  # the samples of each generator, drawn once
    tell(Detail(f"drawing {samples:,} samples of each of {len(seats):,} generators"))
    clock = TimeLeft(progress, "generators", len(seats))
    for number, (run, replica, member) in enumerate(seats):
        clock.at(number)
        fakes.append(herds[run].alone(member).sample(samples, seed=seed, replica=replica))
    errors, real_errors, thresholds = np.full((len(seats), len(seats)), np.nan), np.zeros(len(seats)), []
    tell(Detail(f"{len(seats):,} judges look at them"))
    clock = TimeLeft(progress, "judges", len(seats))
    for j, (run, replica, member) in enumerate(seats):
        clock.at(j)
        row = replica * herds[run].members + member
        own = held_y == players[j].label if players[j].label >= 0 else np.ones(len(held), bool)
        real = judges[run].logits(row, held[own], held_y[own])
        if not len(real):
            raise UserError(f"no held-out real data is of the class of {players[j].name}: set data.holdout.")
        seen = np.array([m for m, other in enumerate(players) if gam.comparable(players[j], other)])  # j among them
        on_fakes = np.stack([judges[run].logits(row, fakes[m].x, fakes[m].y) for m in seen])  # [seen, n]
        if not np.isfinite(on_fakes).all() or not np.isfinite(real).all():
            raise UserError(f"the discriminator of {players[j].name} answers what is no number: leave that run out.")
        at, words = gam.threshold(judges[run].losses[row], real, on_fakes[int(np.flatnonzero(seen == j)[0])])
        thresholds.append((at, words))
        errors[j, seen] = gam.called_real(on_fakes[None], np.array([at]))[0]
        real_errors[j] = 1 - gam.called_real(real[None], np.array([at]))[0]
    verdict = gam.gam2(errors, met, gam.met_matrix(players, other_runs, swaps, across=True))
    notes = [f"{name} and {other} do not judge each other: one began with the other's members, or both with the same"
             for i, name in enumerate(names) for other in names[i + 1 :] if other in kin[name]]  # fmt: skip
    for name, judge, herd in zip(names, judges, herds, strict=True):
        if judge.step != herd.step:
            notes.append(f"{name}: judges of step {judge.step:,}, generators of step {herd.step:,}")
    if few := _few_samples(samples):
        notes.append(few)
    if any(one.digest != data[0].digest for one in data[1:]):
        notes.append(f"the runs' data differ in content; real errors are on the held-out rows of {names[0]}")
    words = "the discriminators of the other runs" if other_runs else "the discriminators that a generator did not meet"
    mode = NORMED if any(judge.normed for judge in judges) else MODE
    return Contest(players, verdict, real_errors, thresholds, samples, len(held), seed, words, mode, tuple(notes))


def _few_samples(samples: int) -> str:
    """Return a sentence about the precision of error rates if there are few samples; otherwise ""."""
    if samples >= gam.SAMPLES:
        return ""
    return f"with {samples:,} samples an error rate is known to ± {0.5 / samples**0.5:.3f}; take {gam.SAMPLES:,}"


def _kin(runs: Sequence[str | Path], names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return for each run the other runs that have a common origin with it: their nets may have trained together."""
    families = [_family(Path(run)) for run in runs]
    return {
        name: frozenset(other for other, theirs in zip(names, families, strict=True) if other != name and own & theirs)
        for name, own in zip(names, families, strict=True)
    }


def _family(run: Path) -> set[Path]:
    """Return the run, the runs that its members began with, and the origins of these."""
    out, ask = set[Path](), [run.resolve()]
    while ask:
        path = ask.pop()
        if path in out:
            continue
        out.add(path)
        with suppress(UserError):  # its folder may have been removed
            ask += [Path(one.path).resolve() for one in RunFolder.open(path).info.origins or () if one.path]
    return out


def _seat(
    names: list[str],
    herds: Sequence[mixtures.Mixture],
    judges: Sequence[Judges],
    recipes: Sequence[Recipe],
    kin: Mapping[str, frozenset[str]],
) -> tuple[list[gam.Player], list[bool], list[tuple[int, int, int]]]:
    """Return three lists over all generators: players, whether the herd exchanges nets, and (run, replica, member)."""
    players, swaps, seats = [], [], []
    mixed = any(len(one.breeds) > 1 for one in herds)
    for run, (name, one, judge, recipe) in enumerate(zip(names, herds, judges, recipes, strict=True)):
        if len(judge.losses) != one.replicas * one.members:
            raise UserError(f"{name}: its checkpoint and its mixture are of herds of different size; resume it first.")
        for replica in range(one.replicas):
            for member in range(one.members):
                kind = one.generator(member)[0].net.name if mixed else ""
                seed = one.seeds[replica] if one.replicas > 1 else None
                players.append(gam.Player(name, member, replica, int(one.label_of[member]), kind, kin[name], seed))
                swaps.append(recipe.strategy.settings.exchanges_nets)
                seats.append((run, replica, member))
    return players, swaps, seats


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Return the names of the folders, or their paths if two have the same name."""
    short = [Path(run).resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]
