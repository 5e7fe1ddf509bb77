"""One score as text: its value, its interval, and how it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ganherd.metrics.metric_registry import METRICS, Metric, title_of
from ganherd.metrics.statistics.intervals import wilson
from ganherd.metrics.statistics.significance import Ends
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval

DISTANCES = ("fid", "ifid")  # their scale is that of the features, so they may be very small
SKIPPED = "skipped"  # the key of scores that holds why metrics were left out


@dataclass(frozen=True)
class Score:
    """One score: the name of its metric, and its entry in scores.json.

    >>> score = Score("fid", {"value": 3.0, "samples": 10, "interval": {"low": 2.9, "high": 3.1, "level": 0.95, "how": ""}})
    >>> str(score), score.span, score.goal
    ('3.000', '2.900 to 3.100', 'lower is better')
    """

    name: str
    entry: ScoreEntry

    @property
    def title(self) -> str:
        """Return what people call the metric."""
        return title_of(self.name)

    @property
    def metric(self) -> Metric | None:
        """Return the entry of the metric in the registry; None if this version does not know it."""
        metric: Metric | None = METRICS.get(self.name)
        return metric

    @property
    def goal(self) -> str:
        """Return in words which values are better."""
        return self.metric.goal if self.metric else ""

    @property
    def value(self) -> float | None:
        """Return the value; None if there is none."""
        number = self.entry.get("value")
        return number if isinstance(number, (int, float)) else None

    @property
    def interval(self) -> ScoreInterval | None:
        """Return the interval; None if there is none with both ends."""
        interval = self.entry.get("interval")
        return interval if _has_ends(interval) else None

    @property
    def samples(self) -> str:
        """Return the number of samples as text."""
        return _count(self.entry.get("samples"))

    @property
    def network(self) -> str:
        """Return the name of the network."""
        return str(self.entry.get("network", "–"))

    @property
    def seed(self) -> str:
        """Return the seed as text."""
        return str(self.entry.get("seed", "–"))

    @property
    def warning(self) -> str:
        """Return the warning; empty if there is none."""
        return str(self.entry.get("warning") or "")

    @property
    def merit(self) -> float | None:
        """Return the value turned so that more is better (see `Metric.merit`); None without a value or if the metric is unknown."""
        return None if self.metric is None or self.value is None else self.metric.merit(self.value)

    def __str__(self) -> str:
        """Return the value as text.

        >>> str(Score("modes", {"value": 8, "of": 8})), str(Score("ais", {"value": 328.77, "unit": "nats an image"}))
        ('8 of 8', '328.8 nats')
        """
        number = self.value
        if number is None:
            return "–"
        if "of" in self.entry:
            return f"{_count(number)} of {_count(self.entry['of'])}"
        return format_value(self.name, number)

    @property
    def span(self) -> str:
        """Return the interval in the format of the value; empty if there is none.

        >>> Score("modes", {"of": 8, "interval": {"low": 6.0, "high": 7.0, "level": 0.95, "how": ""}}).span
        '6 to 7'
        """
        return "" if self.interval is None else self._written(self.interval)

    def _written(self, interval: ScoreInterval) -> str:
        """Return both ends of an interval as text, in the format of the value."""
        low, high = interval["low"], interval["high"]
        if "of" in self.entry:
            return f"{_count(low)} to {_count(high)}"
        return f"{format_value(self.name, low)} to {format_value(self.name, high)}"

    @property
    def with_span(self) -> str:
        """Return the value and its interval.

        >>> Score("fid", {"value": 3.0, "interval": {"low": 2.9, "high": 3.1, "level": 0.95, "how": ""}}).with_span
        '3.000 (2.900 to 3.100)'
        """
        return f"{self} ({self.span})" if self.span else str(self)

    @property
    def best(self) -> str:
        """Return the value of a perfect mixture.

        >>> Score("modes", {"of": 15}).best, Score("ais", {}).best, Score("fid", {}).best
        ('15', 'the higher', '0')
        """
        if "of" in self.entry:
            return _count(self.entry["of"])
        if self.metric is None:
            return ""
        if self.metric.best == float("inf"):
            return "the higher"
        written = format_value(self.name, self.metric.best)
        return written if written.endswith("%") else f"{self.metric.best:g}"

    @property
    def real_value(self) -> float | None:
        """Return the value that real data would have; None if that is not known.

        >>> Score("label_accuracy", {"held_out_accuracy": 0.99}).real_value, Score("kid", {}).real_value
        (0.99, 0.0)
        >>> Score("recall", {}).real_value is None
        True
        """
        metric = self.metric
        if metric is None or not metric.real:
            return None
        value = metric.best if metric.real == "best" else self.entry.get(metric.real)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def real_ends(self) -> Ends | None:
        """Return the ends of the 95 % interval of the value that real data would have; None if that value is not known.

        Both ends are the value itself if its error is not known.

        >>> accuracy = {"held_out_accuracy": 0.99, "held_out_samples": 100}
        >>> [round(end, 3) for end in Score("label_accuracy", accuracy).real_ends], Score("kid", {}).real_ends
        ([0.946, 0.998], (0.0, 0.0))
        """
        real = self.real_value
        if real is None or self.metric is None:
            return None
        own, count = self.entry.get("real_interval"), self.entry.get("held_out_samples")
        if own is not None and _has_ends(own):
            return own["low"], own["high"]
        if self.metric.real == "held_out_accuracy" and isinstance(count, int) and count > 0 and 0 <= real <= 1:
            return wilson(real, count)
        return real, real

    def remarks(self, has_interval: bool = True) -> list[str]:
        """Return remarks on how the value was measured and what it means, for a table or a paragraph with all details.

        Args:
            has_interval: Include the ends of the interval; False if a column of the table has them.
        """
        entry, out = self.entry, list[str]()
        if "per_seed" in entry:
            seeds = entry.get("seeds") or entry["per_seed"]
            name = self.name if self.name in DISTANCES else ""
            out.append(f"mean of {len(seeds)} seeds, standard deviation {format_value(name, entry.get('std'))}")
        if self.interval is not None:
            how = str(self.interval.get("how", ""))
            out += [f"95 % {self.span} ({how})"] if has_interval else [f"interval: {how}"] if how else []
        if "real_samples" in entry:
            out.append(f"against {_count(entry['real_samples'])} of {entry.get('real', 'the data')}")
        elif "held_out_accuracy" in entry:
            known = format_value("accuracy", entry["held_out_accuracy"])
            out.append(f"the classifier on held-out real data: {known}")
        if "head" in entry:
            out.append(f"classifier head {entry['head']}")
        if isinstance(column := entry.get("worst_column"), str):
            out.append(f"most in {column} ({format_value('', _mapping(entry.get('per_column')).get(column))})")
        out += self.details
        if "by_chance" in entry and "nearer" not in entry and "kl" not in entry:
            out.append(f"perfect draws would show about {format_value(self.name, entry['by_chance'])}")
        classes = _mapping(entry.get("per_class"))
        if isinstance(entry.get("mean"), (int, float)) and list(classes) != ["all"]:
            worst = [name for name, value in classes.items() if value == entry.get("value")]
            least = f", least in {worst[0]}" if worst else ""
            out.append(f"mean over the classes {format_value('', entry['mean'])}{least}")
        return out

    @property
    def details(self) -> list[str]:
        """Return remarks that only this metric has."""
        return [*self._modes(), *self._memorisation(), *self._likelihood(), *self._classes(), *self._contest()]

    def _modes(self) -> Iterator[str]:
        """Yield remarks about captured modes."""
        entry = self.entry
        if "high_quality" in entry:
            quality = Score("accuracy", {"value": entry["high_quality"]})
            if _has_ends(own := entry.get("high_quality_interval")):
                quality.entry["interval"] = cast(ScoreInterval, own)
            kl, represented = format_value("", entry.get("reverse_kl")), _count(entry.get("represented"))
            yield f"{quality.with_span} high quality, reverse KL {kl}, {represented} represented; {entry.get('modes', '')}"
        if "mean_member" in entry:
            yield f"a member alone {_count(entry['mean_member'])} on average"
        if "kl" in entry:
            chance = format_value("", entry.get("by_chance"))
            yield f"KL {format_value('', entry['kl'])}; perfect draws would show about {chance}"

    def _memorisation(self) -> Iterator[str]:
        """Yield remarks about memorisation."""
        entry = self.entry
        if "nearer" in entry:
            yield (
                f"{format_value('accuracy', entry.get('by_chance'))} is chance; nearer to the training data than held-out data "
                f"is: {format_value('accuracy', entry['nearer'])} (50 % is chance); distance by that of held-out data "
                f"{format_value('', entry.get('ratio'))}; {_count(entry.get('held_out'))} held out, "
                f"{_count(entry.get('training'))} trained on"
            )

    def _likelihood(self) -> Iterator[str]:
        """Yield the remark about the log-likelihood of AIS: the gap of its bounds, and a kernel density estimate."""
        entry = self.entry
        if "gap" in entry:
            kde, samples = format_value("ais", entry.get("kde")), _count(entry.get("kde_samples"))
            yield f"gap of the bounds {format_value('', entry['gap'])}; KDE of {samples} samples {kde}"

    def _classes(self) -> Iterator[str]:
        """Yield remarks about the scores within classes."""
        if isinstance(kid := self.entry.get("kid"), Mapping):
            yield f"mean KID within the classes {format_value('kid', kid.get('value'))}"
        if counts := _mapping(self.entry.get("per_class_samples")):
            yield f"at least {_count(min(counts.values()))} samples of each class"

    def _contest(self) -> Iterator[str]:
        """Yield remarks about GAM and GAM-II."""
        entry = self.entry
        if "judged_by" in entry:
            errors = [error for error in entry.get("real_errors", ()) if isinstance(error, (int, float))]
            worst = [error for error in entry.get("worst", ()) if isinstance(error, (int, float))]
            span = f", worst judge {min(worst):.3f} to {max(worst):.3f}" if worst else ""
            best = f", best member {entry['best_member']}" if entry.get("best_member") is not None else ""
            yield f"judged by {entry['judged_by']}{span}{best}"
            if errors:
                yield f"its own judges err on {min(errors):.3f} to {max(errors):.3f} of held-out real data"
        if "won" in entry:
            won, tied, lost = (_count(entry.get(key)) for key in ("won", "tied", "lost"))
            yield f"{won} battles won, {tied} tied, {lost} lost"

    def of_value(self, value: Any) -> str:
        """Return another value of this score as text: that of a class, member or neighbourhood, or of real data."""
        return str(Score(self.name, {**self.entry, "value": value}))


def measured(scores: Mapping[str, Any]) -> dict[str, Score]:
    """Return the scores by the names of their metrics, without what was skipped."""
    entries = {name: entry for name, entry in scores.items() if name != SKIPPED and isinstance(entry, Mapping)}
    return {name: Score(name, cast(ScoreEntry, entry)) for name, entry in entries.items()}


def skipped(scores: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each metric that was left out.

    >>> skipped({"skipped": {"label_accuracy": "the data has no labels"}})
    ['label accuracy is left out: the data has no labels.']
    """
    reasons = _mapping(scores.get(SKIPPED))
    return [f"{title_of(name)} is left out: {why}." for name, why in reasons.items()]


def format_value(name: str, number: Any) -> str:
    """Return a value of a metric as text: accuracies in percent, KID with five decimals, distances with three digits.

    >>> [format_value(*one) for one in (("label_accuracy", 0.981), ("diversity", 0.9), ("fid", None), ("kid", 0.00123))]
    ['98.1 %', '0.900', '–', '0.00123']
    >>> [format_value("fid", distance) for distance in (12.3456, 0.145, 0.01234, 0.000056, 0.0)]
    ['12.346', '0.145', '0.0123', '0.000056', '0.000']
    """
    if not isinstance(number, (int, float)):
        return "–"
    if name in DISTANCES and 0 < abs(number) < 0.1:  # at least three digits, and at most six decimals
        return f"{number:z.{min(6, 2 - math.floor(math.log10(abs(number))))}f}"
    if name == "kid":
        return f"{number:z.5f}"
    if name == "ais":
        return f"{number:z.1f} nats"
    return f"{100 * number:z.1f} %" if name.endswith("accuracy") or name == "memorisation" else f"{number:z.3f}"


def _count(number: Any) -> str:
    """Return a count as text, with one decimal if it is a mean.

    >>> _count(1200), _count(7.25), _count(None)
    ('1,200', '7.2', '–')
    """
    if not isinstance(number, (int, float)):
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if number.is_integer() else f"{number:,.1f}"


def _has_ends(interval: object) -> bool:
    """Return whether a value from a file is an interval with the numbers `low` and `high`."""
    ends = ("low", "high")
    return isinstance(interval, Mapping) and all(isinstance(interval.get(end), (int, float)) for end in ends)


def _mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping; otherwise an empty one, because a file may be damaged."""
    return value if isinstance(value, Mapping) else {}
