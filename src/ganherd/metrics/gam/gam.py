"""GAM and GAM-II: the error rates of discriminators on generators that they did not meet; larger is better.

Everything here is arithmetic on logits; `gam_runs` finds the logits of runs. A judge errs on a fake that it calls real.
GAM-II of a generator is the mean (and the least) error of all judges that it did not meet. A judge that calls everything
real would praise everybody, so its error on held-out real data is reported, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypedDict

import numpy as np

from ganherd.metrics.statistics import intervals
from ganherd.metrics.statistics.significance import UNDECIDED, difference, sign
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval
from ganherd.util.errors import UserError

SAMPLES = 10_000  # of each generator; an error rate then has a standard error of at most 0.005
# the logit between fake and real for each loss, by its targets
_THRESHOLDS = {"minimax": 0.0, "non-saturating": 0.0, "hinge": 0.0, "least-squares": 0.5}
TIE = 0.1  # GAM: the battle is a tie if the ratio of the errors on real data differs by more than this from 1


@dataclass(frozen=True)
class Player:
    """One generator with the discriminator of the same slot."""

    group: str  # the run
    member: int
    herd: int = 0  # the replica; nets of one herd may have met
    label: int = -1  # the class that it generates; -1: none
    kind: str = ""  # the net of its generator, if the runs have several; each kind is judged separately
    kin: frozenset[str] = frozenset()  # other runs that its run began with, or that began with it
    seed: int | None = None  # of its replica, if its run has several

    @property
    def seat(self) -> str:
        """Return the number of the member, with the seed of its replica if its run has several."""
        return str(self.member) if self.seed is None else f"{self.member} of seed {self.seed}"

    @property
    def name(self) -> str:
        """Return the name of the player in messages."""
        return f"member {self.seat} of {self.group}"


def threshold(loss: str, real: np.ndarray, fake: np.ndarray) -> tuple[float, str]:
    """Return the logit above which a judge calls an image real, and the rule behind it in words.

    The logits of a critic are no probabilities. Its threshold is the midpoint between its mean on held-out real data and its
    mean on new fakes of the generator that it was trained with.

    >>> threshold("wasserstein", np.array([4.0, 6.0]), np.array([0.0, 2.0]))
    (3.0, 'midpoint of the mean critic on held-out real data and on its own fakes')
    """
    if loss in _THRESHOLDS:
        at = _THRESHOLDS[loss]
        return at, "probability 0.5" if loss in ("minimax", "non-saturating") else f"logit {at:g}"
    middle = (float(np.mean(real, dtype=np.float64)) + float(np.mean(fake, dtype=np.float64))) / 2
    return middle, "midpoint of the mean critic on held-out real data and on its own fakes"


def called_real(logits: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of logits [J, …, n] above the threshold of each judge [J], as [J, …]; on fakes it is the error rate.

    >>> called_real(np.array([[-1.0, 1.0, 2.0, 3.0]]), np.array([0.0]))
    array([0.75])
    """
    if np.isnan(logits).any():
        raise UserError("a judge answers NaN: its discriminator is broken; leave that run out.")
    return np.asarray((logits > thresholds.reshape(-1, *(1,) * (logits.ndim - 1))).mean(-1))


@dataclass(frozen=True)
class Gam2Scores:
    """GAM-II of every generator; NaN if no discriminator may judge it."""

    errors: np.ndarray  # [J, M] error of judge j on generator m
    allowed: np.ndarray  # bool [J, M]
    average: np.ndarray  # [M]
    worst: np.ndarray  # [M]
    across: np.ndarray  # [M] average over the judges of all kinds, to compare generators of different kinds

    @property
    def judges(self) -> np.ndarray:
        """Return the number of judges of each generator [M]."""
        return np.asarray(self.allowed.sum(0))

    @property
    def winner(self) -> int | None:
        """Return the generator with the largest average; None if several have it."""
        return largest(self.average, range(len(self.average)))


def largest(values: np.ndarray, rows: Sequence[int]) -> int | None:
    """Return the row among these with the largest value; None if there is a tie or no value.

    >>> largest(np.array([0.3, np.nan, 0.4, 0.9]), [0, 1, 2]), largest(np.array([0.3, 0.3]), [0, 1])
    (2, None)
    """
    known = [row for row in rows if not np.isnan(values[row])]
    top = [row for row in known if values[row] == max(values[known])]
    return top[0] if len(top) == 1 else None


def gam2(errors: np.ndarray, met: np.ndarray, met_across: np.ndarray | None = None) -> Gam2Scores:
    """Return the mean and the least error rate of every generator over the judges that it did not meet.

    Args:
        errors: Error rates of judge j on generator m [J, M].
        met: bool [J, M], True if the judge may not judge the generator.
        met_across: The same without regard to the kinds of generators, to compare generators of different kinds.

    >>> gam2(np.array([[0.9, 0.2], [0.4, 0.8]]), np.eye(2, dtype=bool)).average.tolist()
    [0.4, 0.2]
    """
    errors, allowed = np.asarray(errors, float), ~np.asarray(met, bool)
    average, worst = _over_judges(errors, allowed, np.nanmean), _over_judges(errors, allowed, np.nanmin)
    across = average if met_across is None else _over_judges(errors, ~np.asarray(met_across, bool), np.nanmean)
    return Gam2Scores(errors, allowed, average, worst, across)


def _over_judges(errors: np.ndarray, allowed: np.ndarray, of: Callable[..., np.ndarray]) -> np.ndarray:
    """Reduce the error rates [J, M] over the allowed judges to [M]; NaN if no judge is allowed."""
    out, judged = np.full(errors.shape[1], np.nan), allowed.any(0)
    out[judged] = of(np.where(allowed, errors, np.nan)[:, judged], 0)
    return out


def met_matrix(players: Sequence[Player], other_runs: bool, swaps: Sequence[bool], across: bool = False) -> np.ndarray:
    """Return bool [J, M], True if judge j may not judge generator m.

    A judge may not judge generators of a run that its own run began with or that began with its run, nor generators of
    another class.

    Args:
        players: All generators with their discriminators.
        other_runs: Exclude all judges of the same run, as the tables of the paper do. Otherwise, exclude the judge of the same
            slot, and those of the whole herd if its nets are exchanged.
        swaps: Whether the nets of each player's herd are exchanged [M].
        across: Let judges of other kinds of generators judge as well; the paper has a table for each kind.
    """
    out = np.zeros((len(players), len(players)), bool)
    for j, judge in enumerate(players):
        for m, one in enumerate(players):
            same_run = judge.group == one.group
            same_herd = same_run and judge.herd == one.herd
            met = same_run if other_runs else j == m or (same_herd and swaps[m])
            met = met or judge.group in one.kin
            out[j, m] = met or not comparable(judge, one) or not (across or judge.kind == one.kind)
    return out


class Helps(TypedDict, total=False):
    """The result of comparing a herd with single GANs."""

    words: str
    value: float
    interval: ScoreInterval


def helps(herd: np.ndarray, single: np.ndarray, samples: int) -> Helps:
    """Compare each member of a herd with the best single GAN, as the paper does.

    The `words` are: `strongly helps` if every member is better; `helps` if at least one is; `does not help` if every member is
    worse; otherwise `undecided`. A member is better or worse if the interval of its difference excludes zero. The intervals of
    all members hold at once (Bonferroni). `value` and `interval` are those of the best member.

    Args:
        herd: GAM-II of the members.
        single: GAM-II of single GANs.
        samples: The number of samples of each generator.

    >>> single = np.array([0.35, 0.39])
    >>> [helps(np.array(herd), single, 10_000)["words"] for herd in ([0.43, 0.47], [0.3, 0.47], [0.3, 0.395])]
    ['strongly helps', 'helps', 'undecided']
    """
    herd = herd[~np.isnan(herd)]
    if not len(herd) or np.isnan(single).all():
        return {"words": "cannot be judged"}
    best = float(np.nanmax(single))
    z = NormalDist().inv_cdf(1 - 0.025 / len(herd))
    ends = [apart(value, best, samples, z) for value in herd.tolist()]
    signs = [sign(one) for one in ends]
    if max(signs) > 0:
        words = "strongly helps" if min(signs) > 0 else "helps"
    else:
        words = "does not help" if max(signs) < 0 else UNDECIDED
    top = int(herd.argmax())
    how = "Wilson's of both" + (f", all {len(herd)} members at once" if len(herd) > 1 else "")
    return {"words": words, "value": float(herd[top]) - best, "interval": intervals.interval(*ends[top], how)}


def gam(errors: np.ndarray, real_errors: np.ndarray, first: int, second: int, samples: int = SAMPLES) -> int | None:
    """Return the winner of two generators by GAM (2016): 0 or 1; None: a tie.

    It is a tie if the errors of the two judges on real data differ by more than `TIE`, or if the difference of their errors on
    fakes is undecided.

    Args:
        errors: Error rates on fakes [J, M].
        real_errors: Error rates on real data [J].
        first: One generator, with its judge.
        second: The other.
        samples: The number of fakes of each generator.

    >>> gam(np.array([[0.5, 0.2], [0.4, 0.5]]), np.array([0.1, 0.1]), 0, 1)
    0
    """
    alike = abs(_ratio(real_errors[first], real_errors[second]) - 1) <= TIE
    ahead = sign(apart(float(errors[second, first]), float(errors[first, second]), samples)) if alike else 0
    return {1: 0, -1: 1}.get(ahead)


def apart(rate: float, other: float, samples: int, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of the difference of two error rates, each of this many samples.

    >>> [round(end, 3) for end in apart(0.5, 0.4, 10_000)]
    [0.086, 0.114]
    """
    return difference(rate, intervals.wilson(rate, samples, z), other, intervals.wilson(other, samples, z))


def _ratio(a: float, b: float) -> float:
    """Return a / b; 1 if both are equal, and infinity if only b is 0."""
    return 1.0 if a == b else float(a / b) if b else float("inf")


def weak_judges(real_errors: np.ndarray, verdict: Gam2Scores) -> list[str]:
    """Return what is wrong with each judge [J], or "". A judge that gives the same answer to everything decides nothing."""
    out = []
    for j, real in enumerate(real_errors):
        fakes = verdict.errors[j][verdict.allowed[j]]
        seen = float(fakes.mean()) if len(fakes) else float(np.nanmean(verdict.errors[j]))
        if real < 0.02 and seen > 0.98:
            out.append("calls everything real, and praises all")
        elif real > 0.98 and seen < 0.02:
            out.append("calls everything fake, and damns all")
        else:
            out.append("no better than guessing" if abs(1 - real - seen) < 0.02 else "")
    return out


def standings(
    errors: np.ndarray, real_errors: np.ndarray, players: Sequence[Player], samples: int = SAMPLES
) -> dict[str, ScoreEntry]:
    """Return GAM of each run: every generator battles those of the other runs with the same class, or without one."""
    out: dict[str, ScoreEntry] = {p.group: {"won": 0, "tied": 0, "lost": 0} for p in players}
    for i, one in enumerate(players):
        for j in range(i + 1, len(players)):
            other = players[j]
            if one.group == other.group or other.group in one.kin or not comparable(one, other):
                continue
            winner = gam(errors, real_errors, i, j, samples=samples)
            for mine, group in ((0, one.group), (1, other.group)):
                out[group]["tied" if winner is None else "won" if winner == mine else "lost"] += 1
    for standing in out.values():
        fought = standing["won"] + standing["tied"] + standing["lost"]
        standing["value"] = (standing["won"] + standing["tied"] / 2) / fought if fought else None
    return out


def comparable(one: Player, other: Player) -> bool:
    """Return whether one player may judge the other. Members of different classes may not: a judge of 7s calls every 3 a fake."""
    return one.label == other.label or min(one.label, other.label) < 0


def interval(errors: np.ndarray, allowed: np.ndarray, samples: int) -> ScoreInterval | None:
    """Return the interval of the mean of GAM-II over generators, from error rates [J, M].

    Judges of the same samples err together, so they count as one judge; the interval is rather too wide.
    """
    judged = allowed.any(0)
    if not judged.any():
        return None
    known = np.where(allowed, errors, np.nan)[:, judged]
    value = float(np.nanmean(np.nanmean(known, 0)))
    return intervals.share(value, samples * known.shape[1])


def entry(
    players: Sequence[Player], verdict: Gam2Scores, group: str, real_errors: np.ndarray, samples: int
) -> ScoreEntry:
    """Return what scores.json holds of GAM-II of one run.

    It is the mean over its members, the value of each, and the errors of its judges on real data.
    """
    rows = [i for i, player in enumerate(players) if player.group == group]
    average = verdict.average[rows]
    known = not np.isnan(average).all()
    kinds = sorted({players[i].kind for i in rows} - {""})
    # Only generators with the same judges can be compared: kinds share the judges of all kinds, classes share none.
    values = verdict.across if len(kinds) > 1 else verdict.average
    found_best = largest(values, rows) if len({players[i].label for i in rows}) == 1 else None
    best = None if found_best is None else players[found_best]
    rivals = [] if best is None else [i for i, player in enumerate(players) if player.kind == best.kind]
    names = [players[i].seat for i in rows]
    scores: ScoreEntry = {
        "value": float(np.nanmean(average)) if known else None,
        "per_member": dict(zip(names, _numbers(average), strict=True)),
        "per_member_samples": dict.fromkeys(names, samples),
        "worst": _numbers(verdict.worst[rows]),
        "judges": verdict.judges[rows].tolist(),
        "kinds": kinds,  # of generators, if the runs have several
        "real_errors": _numbers(real_errors[rows]),
        "by_judge": {
            players[j].name: _numbers(np.where(verdict.allowed[j, rows], verdict.errors[j, rows], np.nan))
            for j in np.flatnonzero(verdict.allowed[:, rows].any(1)).tolist()
        },  # the error of each judge on every generator of the run
        "best_member": best.member if best else None,
        "best_replica": best.herd if best else None,
        "best_value": None if found_best is None else float(values[found_best]),
        "best_of_all": found_best is not None
        and largest(verdict.average, rivals) == found_best,  # among those of its kind
    }
    if len(kinds) > 1:
        scores["best_by"] = "the judges of every kind that they did not meet"
    if span := interval(verdict.errors[:, rows], verdict.allowed[:, rows], samples):
        scores["interval"] = span
    return scores


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return values as a list for JSON, in which NaN is None."""
    return [None if np.isnan(value) else float(value) for value in values]
