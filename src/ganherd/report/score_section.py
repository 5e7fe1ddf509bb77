"""The sections with numbers: scores and how they were measured, losses, and values of each class."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from ganherd.report.gather import RunStory
from ganherd.report.templating import Cell, render, svg
from ganherd.scoring import METRICS
from ganherd.scoring.result import measured, skipped
from ganherd.scoring.score_table import merged_warnings, network_notes, real_text, standing
from ganherd.viz import charts


def scores(story: RunStory) -> Markup:
    """Render the table of scores, each with how it was measured."""
    known = measured(story.scores)
    if not known:
        how = "ganherd score measures its mixture" if story.mixture_step is not None else "it is when it has ended"
        return render("scores", rows=[], how=how)
    rows = []
    for name in [*(name for name in METRICS if name in known), *(name for name in known if name not in METRICS)]:
        score = known[name]
        verdict = standing(score)
        measured_with = [f"{score.samples} samples, {score.network}, seed {score.seed}", *score.remarks]
        rows.append(
            [
                Cell(score.metric.about if score.metric else "", "about", before=score.title),
                Cell(str(score), "value"),
                score.span or "–",
                real_text(score),
                Cell(verdict.text, f"pill {verdict.style}".strip()) if verdict.text else "",
                "; ".join(measured_with),
            ]
        )
    notes = [*network_notes(story.scores), *skipped(story.scores)]
    return render("scores", rows=rows, notes=notes, warnings=merged_warnings(story.scores))


def losses(story: RunStory) -> Markup:
    """Render the losses of generators and discriminators over the steps."""
    records = charts.merge_short_end(story.metrics)
    if len(records) == 1:
        about = f"There is one record, of step {records[0]['step']:,}, and a curve needs two; the table of members has its losses."
        return render("charts", title="Losses", caption=about, figures=[], cls="pair")
    about = "Every member thin, their mean bold; a dashed red line where a member was noticed or repaired."
    keys = ("loss_g", "loss_d")
    panels = [(svg(charts.draw_losses(story.metrics, story.events, [key]), key), "") for key in keys]
    return render("charts", title="Losses", caption=about, figures=panels, cls="pair")


def classes(story: RunStory) -> Markup:
    """Render the scores that have a value for each class as bars."""
    figures = []
    if spread := per_class(story, "diversity"):
        of = str(story.scores["diversity"].get("network", "pixels"))
        drawn = charts.draw_bars(spread, title=f"spread of generated {of} / data's")
        figures.append((svg(drawn, "diversity"), _width(spread)))
    if accuracy := per_class(story, "label_accuracy"):
        drawn = charts.draw_bars(accuracy, title="recognised as the label asked for", is_share=True)
        figures.append((svg(drawn, "accuracy"), _width(accuracy)))
    if seen := per_class(story, "histogram"):
        expected = story.scores["histogram"].get("expected")
        shares = {name: share or 0.0 for name, share in seen.items()}
        drawn = charts.draw_bars(
            shares, title="classes seen", expected=expected if isinstance(expected, Mapping) else {}, is_share=True
        )
        figures.append((svg(drawn, "classes"), _width(seen)))
    if not figures:
        return Markup()
    of_classes = any(m.label for m in story.members) or set(spread) & set(story.labels)
    about = "Diversity: 1 is as varied as the data; far below it, a member repeats itself."
    if not of_classes:
        about = (
            "No member represents a class: the variety of all samples together, and the classes that are seen in them."
        )
    title = "Class by class" if of_classes else "Variety and classes of the samples"
    return render("charts", title=title, caption=about, figures=figures, cls="bars")


def _width(bars: Mapping[str, object]) -> str:
    """Return the class of a chart: those of many classes take the whole width."""
    return "wide" if len(bars) > charts.FEW else ""


def per_class(story: RunStory, name: str) -> dict[str, float | None]:
    """Return the values of a score by class; empty if it has none."""
    entry = story.scores.get(name)
    values = entry.get("per_class") if isinstance(entry, Mapping) else None
    if not isinstance(values, Mapping):
        return {}
    return {str(k): float(v) if isinstance(v, (int, float)) else None for k, v in values.items()}
