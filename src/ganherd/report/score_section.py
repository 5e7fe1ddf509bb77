"""The numbers of the page: scores with what they were measured with, losses, and how the classes compare."""

from __future__ import annotations

from collections.abc import Mapping

from ganherd.report.gather import RunStory
from ganherd.report.html import SafeHtml, figure, join, number, table, tag
from ganherd.scoring import METRICS
from ganherd.scoring.result import measured, skipped
from ganherd.scoring.score_table import network_notes
from ganherd.viz import charts


def scores(story: RunStory) -> SafeHtml:
    head = tag("h2", "Scores")
    found = measured(story.scores)
    if not found:
        how = "ganherd score measures its mixture" if story.mixture_step is not None else "it is when it has ended"
        return tag("section", head, tag("p", f"Not scored yet: {how}.", cls="soft"))
    rows, warnings = [], []
    for name in [*(name for name in METRICS if name in found), *(name for name in found if name not in METRICS)]:
        score = found[name]
        about = score.metric.about if score.metric else ""
        rows.append(
            [
                join([score.title, tag("span", about, cls="about")]),
                tag("span", str(score), cls="value"),
                score.best,
                number(score.entry.get("samples")),
                tag("span", score.network, cls="network"),
                number(score.entry.get("seed")),
                "; ".join(score.remarks),
            ]
        )
        if score.warning:
            warnings.append(f"{score.title}: {score.warning}")
    warnings += [sentence.rstrip(".") for sentence in skipped(story.scores)]
    titles = ("score", "value", "perfect", "samples", "network", "seed", "beside it")
    fed = join(tag("p", line, cls="small") for line in network_notes(story.scores))
    notes = join(tag("p", note, cls="note") for note in warnings)
    return tag("section", head, table(titles, rows, right=(1, 2, 3, 5), cls="scores"), fed, notes)


def losses(story: RunStory) -> SafeHtml:
    about = "Every member thin, their mean bold; a dashed red line where a member was noticed or repaired."
    panels = [figure(charts.draw_losses(story.metrics, story.events, [key]), key) for key in ("loss_g", "loss_d")]
    return tag("section", tag("h2", "Losses"), tag("p", about, cls="caption"), tag("div", join(panels), cls="pair"))


def classes(story: RunStory) -> SafeHtml:
    figures = []
    if spread := per_class(story, "diversity"):
        of = str(story.scores["diversity"].get("network", "pixels"))
        figures.append(figure(charts.draw_diversity(spread, of), "diversity", _width(spread)))
    if accuracy := per_class(story, "label_accuracy"):
        drawn = charts.draw_bars(accuracy, title="recognised as the label asked for")
        figures.append(figure(drawn, "accuracy", _width(accuracy)))
    if seen := per_class(story, "histogram"):
        expected = story.scores["histogram"].get("expected")
        drawn = charts.draw_histogram(
            {k: v or 0.0 for k, v in seen.items()}, expected if isinstance(expected, Mapping) else None
        )
        figures.append(figure(drawn, "classes", _width(seen)))
    if not figures:
        return SafeHtml("")
    of_classes = any(m.label for m in story.members) or set(spread) & set(story.labels)
    about = "Diversity: 1 is as varied as the data; far below it, a member repeats itself."
    if not of_classes:
        about = "No member stands for a class: how varied their samples are together, and the classes that are seen in them."
    title = "Class by class" if of_classes else "Variety and classes of the samples"
    return tag("section", tag("h2", title), tag("p", about, cls="caption"), tag("div", join(figures), cls="bars"))


def _width(bars: Mapping[str, object]) -> str:
    """Charts of few classes stand side by side; those of many take the whole width."""
    return "wide" if len(bars) > charts.FEW else ""


def per_class(story: RunStory, name: str) -> dict[str, float | None]:
    entry = story.scores.get(name)
    found = entry.get("per_class") if isinstance(entry, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(k): float(v) if isinstance(v, (int, float)) else None for k, v in found.items()}
