"""Turn evidence into a verdict: a word, the reason in one sentence, and what to try next.

The rules are tried in the order of `judge` and `_poor`; the first that applies gives the word. Each limit is one of `LIMITS`,
relative to real data of the same size, so that it holds on other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ganherd.metrics.memorisation import BY_CHANCE
from ganherd.runs.results.verdict_record import Word
from ganherd.scoring.verdicts.evidence import Evidence
from ganherd.training.health.alarms import LIMITS as ALARM_LIMITS
from ganherd.training.health.alarms import TRY, WHY
from ganherd.util.errors import counted


@dataclass(frozen=True)
class VerdictLimits:
    """The limits of the verdicts, tuned on seeds of benchmarks/verdicts.py that its table does not use."""

    fewest: int = 24  # rows on each side of a comparison; with fewer, two halves of real data differ too much
    copies: float = ALARM_LIMITS.copies  # memorising: the limit of the alarm, so that both agree
    nearer: float = 0.7  # … and samples are nearer to the training data than held-out rows this often,
    copied: int = 10  # … and this many training rows are copied: samples that all equal one row have collapsed
    precision: float = 0.35  # unlike the data: fewer samples lie where the data is,
    off: float = 0.3  # … and they are this far from it,
    far: float = 1.0  # … or this far, wherever they lie: the mean of the data has a distance of 1
    # collapsed: the standard deviation of samples that are as sharp as the data, if below the data's
    spread: float = 0.4
    variety: float = 0.3  # collapsed: distance between neighbouring samples; real data has 1
    missing: float = 0.08  # collapsed: share of the data in regions that samples hardly reach
    missing_shared: float = 0.5  # the same for one of several members on the same data, which the others complete
    coverage: float = 0.6  # undertrained: data that has a sample near it,
    on_data: float = 0.7  # … or samples that lie where the data is,
    distance: float = 0.3  # … or excess of the Fréchet distance,
    recall: float = 0.2  # … or data that lies among the samples
    recognised: float = 0.6  # unlike the data: samples of its class that the classifier sees, by those of real rows
    early: int = ALARM_LIMITS.warm_up  # steps before which poor samples of any kind are an early stage
    # steps after which samples that hardly vary have collapsed, and are no early stage
    long: int = ALARM_LIMITS.slow_start
    young: int = 2 * ALARM_LIMITS.slow_start  # steps before which the advice for collapsed samples is to train longer


LIMITS = VerdictLimits()


@dataclass(frozen=True)
class Judged:
    """A verdict on some samples."""

    word: Word
    reason: str
    try_next: str = ""


@dataclass(frozen=True)
class Course:
    """What the records of a run say about the training of a member, or of all members of a herd."""

    steps: int | None = None  # None: not known
    active: frozenset[str] = frozenset()  # alarms that lasted at the end
    began: frozenset[str] = frozenset()  # alarms that began at any time

    def joined(self, others: Sequence[Course]) -> Course:
        """Return the course (how the training went) of a mixture of members with these courses.

        Alarms that are still active stay with the members that have them.
        """
        return Course(self.steps, began=frozenset().union(*(one.began for one in others)))

    def is_shorter_than(self, steps: int) -> bool:
        """Return whether poor samples may only need more training: there were fewer steps, and no alarm was raised."""
        return not self.began and self.steps is not None and self.steps < steps


_LONGER = "train longer, for example: ganherd train --resume RUN --budget +1000steps"
_UNSTABLE = ("nan", "diverged", "cycling")


def judge(evidence: Evidence, course: Course = Course(), shares_data: bool = False) -> Judged:
    """Return the verdict on some samples.

    Args:
        shares_data: The samples are those of one of several members on the same data.

    >>> judge(Evidence(samples=500, real=20, compared=10)).reason
    'there are only 20 real rows to compare with, and a verdict needs 48'
    """
    if not evidence.finite:
        return Judged("unstable", "its samples are not finite numbers", TRY["nan"])
    if lasting := [alarm for alarm in _UNSTABLE if alarm in course.active]:
        return Judged("unstable", f"{WHY[lasting[0]]} and had not recovered when the training ended", TRY[lasting[0]])
    if _are_copies(evidence):
        copies = f"{_share(evidence.copies or 0)} of its samples look like copies of single training rows"
        return Judged("memorising", f"{copies}; of held-out rows {_share(BY_CHANCE)} do", TRY["memorising"])
    if evidence.distance is None or evidence.compared < LIMITS.fewest:
        is_known = evidence.samples >= LIMITS.fewest and not course.is_shorter_than(LIMITS.early)
        return _wrong_class(evidence) if is_known and _misses_class(evidence) else _too_few(evidence)
    poor = _poor(evidence, LIMITS.missing_shared if shares_data else LIMITS.missing)
    if poor is None:
        return Judged("good", _praise(evidence))
    if course.is_shorter_than(LIMITS.long if _hardly_vary(evidence) else LIMITS.early):
        return Judged("undertrained", f"after {course.steps:,} steps {poor.reason}", _LONGER)
    if broke := [alarm for alarm in _UNSTABLE if alarm in course.began]:
        return Judged("unstable", f"{WHY[broke[0]]} during the training, and {poor.reason}", TRY[broke[0]])
    if poor.word == "collapsed" and (course.steps is None or course.steps < LIMITS.young):
        return replace(poor, try_next=f"{_LONGER}; if it stays collapsed, {poor.try_next}")
    return poor


def _too_few(evidence: Evidence) -> Judged:
    """Return the verdict "cannot be judged" for evidence from too few samples or real rows."""
    if evidence.samples < LIMITS.fewest:
        reason, advice = f"there {_are_only(evidence.samples, 'samples')}", "ask for more with `ganherd check -n`"
    else:
        reason = (
            f"there {_are_only(evidence.real, 'real rows')} to compare with, and a verdict needs {2 * LIMITS.fewest}"
        )
        advice = "add data"
    return Judged("cannot be judged", reason, advice)


def _are_only(number: int, plural: str) -> str:
    return f"{'is' if number == 1 else 'are'} only {counted(number, plural)}"


def _are_copies(e: Evidence) -> bool:
    """Return whether samples are copies of several training rows; samples that all equal one row have collapsed."""
    if e.copies is None or e.nearer is None or e.copies < LIMITS.copies or e.nearer < LIMITS.nearer:
        return False
    return e.copied >= min(LIMITS.copied, e.real / 4)


def _poor(e: Evidence, most_missing: float) -> Judged | None:
    """Return what is wrong with the samples; None if nothing is."""
    assert e.distance is not None and e.precision is not None and e.coverage is not None and e.recall is not None
    if _hardly_vary(e):
        spread, variety = _variation(e)
        alike = f"the distance between neighbouring samples is {variety:.2f} of the data's"
        reason = (
            f"its samples hardly vary: their spread is {spread:.2f} of the data's, and {alike}"
            if _is_narrow(e)
            else f"many of its samples are alike: {alike}, while their spread is {spread:.2f}"
        )
        return Judged("collapsed", reason, TRY["collapse"])
    if e.distance > LIMITS.far or (e.distance > LIMITS.off and e.precision < LIMITS.precision):
        return Judged(
            "unlike the data",
            f"{_share(min(1.0, e.precision))} of its samples lie where the data is, {_fid(e)}",
            "compare samples/final.png with the data: check the range of the generator's output (tanh, -1 to 1), then try lower "
            "learning rates",
        )
    if _misses_class(e):
        return _wrong_class(e)
    if e.missing is not None and e.missing >= most_missing and e.precision > LIMITS.precision:
        reason = f"it hardly reaches regions that hold {_share(e.missing)} of the data"
        return Judged("collapsed", reason, TRY["collapse"])
    far = [
        (e.distance > LIMITS.distance, _fid(e)),
        (e.precision < LIMITS.on_data, f"only {_share(e.precision)} of them lie where the data is"),
        (e.coverage < LIMITS.coverage, f"they cover {_share(e.coverage)} of it"),
        (e.recall < LIMITS.recall, f"{_share(e.recall)} of it lies among them"),
    ]
    if reasons := [reason for is_far, reason in far if is_far]:
        return Judged("undertrained", f"its samples differ from the data: {'; '.join(reasons)}", _LONGER)
    return None


def _hardly_vary(e: Evidence) -> bool:
    """Return whether samples are alike. Noise is not: it varies at least as much as the data, though elsewhere."""
    return _is_narrow(e) or _variation(e)[1] < LIMITS.variety


def _is_narrow(e: Evidence) -> bool:
    """Return whether the spread of samples is far below that of the data."""
    return _variation(e)[0] < LIMITS.spread and (e.spread or 0.0) < 1.0


def _variation(e: Evidence) -> tuple[float, float]:
    """Return (spread, variety) corrected for contrast, so that pale images do not count as alike.

    The spread is that along the main directions of the data if it is smaller there: noise on top of one image is no variation.
    """
    contrast = min(1.0, e.detail or 1.0)
    spread = min((value for value in (e.spread, e.main_spread) if value is not None), default=1.0)
    return spread / contrast, (1.0 if e.variety is None else e.variety) / contrast


def _misses_class(e: Evidence) -> bool:
    """Return whether far fewer samples than real rows are recognised as their class.

    The opposite would prove nothing: blurred means of the classes are recognised, too.
    """
    if e.recognised is None or e.recognised_real is None or e.recognised_real < 0.5:
        return False
    return e.recognised < LIMITS.recognised * e.recognised_real


def _wrong_class(e: Evidence) -> Judged:
    return Judged(
        "unlike the data",
        f"{_share(e.recognised or 0)} of its samples are recognised as its class, and {_share(e.recognised_real or 0)} of real "
        "rows are",
        "check the labels of the data, then train longer",
    )


def _share(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.0f} %"


def _fid(e: Evidence) -> str:
    return f"FID {e.fid:.3g} where real data has {e.real_fid:.3g} ({e.compared:,} rows each)"


def _praise(e: Evidence) -> str:
    unknown = (
        "" if e.copies is not None else "; whether it copies training rows is not known: too few rows are held out"
    )
    return f"its samples cover {_share(e.coverage or 0)} of the data and vary like it, {_fid(e)}{unknown}"
