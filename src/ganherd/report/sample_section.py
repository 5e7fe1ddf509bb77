"""The pictures of the page: generated samples and, beside them, the real data."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganherd.data.keyed import shuffle
from ganherd.report.gather import PER_ROW, RunStory
from ganherd.report.html import SafeHtml, figure, image, join, number, tag
from ganherd.viz import pictures


def samples(story: RunStory) -> SafeHtml:
    head = tag("h2", "Samples")
    x, real = story.generated, story.real
    if x is None:
        if story.sample_png is None:
            inside = tag("p", "No samples yet: the first picture comes while it trains.", cls="soft")
        else:
            inside = join(
                [
                    tag("p", f"The herd's last picture while it trained, {story.sample_name}.", cls="caption"),
                    tag("div", image(story.sample_png, "samples"), cls="paper"),
                ]
            )
        if real is None:
            return tag("section", head, inside)
        right = tag("div", tag("h3", "real data"), _real_alone(story))
        return tag("section", head, tag("div", tag("div", inside), right, cls="pair"))
    where = f"Drawn from the mixture of step {number(story.mixture_step)}, seed 0, not chosen"
    where += f"; the first of {story.replicas} replicas." if story.replicas > 1 else "."
    if x.ndim == 2:
        both = [figure(pictures.draw_points(x, real), "points", "points")]
        if real is not None:
            both.append(figure(pictures.draw_points(np.empty((0, 2)), real), "data", "points"))
        return tag("section", head, tag("p", where, cls="caption"), tag("div", join(both), cls="pair"))
    rows = pictures.sample_rows(x, story.generated_y, story.labels, story.generated_member)
    rows = [(name, images[:PER_ROW]) for name, images in rows]
    beside = _real_rows(story, rows)
    widest = max(len(images) for images in (*(images for _, images in rows), *beside))
    cells: list[Any] = [tag("div", cls="corner"), tag("h3", "generated"), tag("h3", "real data" if beside else "")]
    for i, (name, images) in enumerate(rows):
        other = beside[i] if i < len(beside) else None
        cells += [tag("div", name, cls="name"), _strip(images, f"generated {name}", widest)]
        cells.append(_strip(other, f"real {name}", widest) if other is not None and len(other) else tag("div"))
    shown = ""
    if _are_classes(story):
        shown = f" {len(rows)} of {len(story.labels)} classes are shown." if len(rows) < len(story.labels) else ""
    elif rows[0][0]:
        shown = " A row for each member that made some of them; beside it, any of the real data."
    stacked = tag("span", " Above generated, below real.", cls="stacked") if beside else ""
    return tag("section", head, tag("p", where + shown, stacked, cls="caption"), tag("div", join(cells), cls="compare"))


_TITLES = {
    "map": "Data and samples",
    "neighbours": "Nearest training images",
    "map-classes": "By class",
    "coverage": "Modes",
}


def maps(story: RunStory) -> SafeHtml:
    """The pictures that lie in the run's folder; the class histogram has its place among the scores of the classes."""
    by_name = {one.name: one for one in story.pictures}
    shown = [by_name[name] for name in _TITLES if name in by_name]
    if not shown:
        return SafeHtml("")
    cards = [
        tag(
            "div",
            tag("h3", _TITLES[one.name]),
            tag("div", image(one.png, _TITLES[one.name]), cls="paper"),
            tag("p", one.caption, cls="small"),
            cls="map wide" if one.name in ("map-classes", "coverage") else "map",
        )
        for one in shown
    ]
    where = "The same pictures lie in the folder pictures, as PNG and SVG."
    return tag("section", tag("h2", "Maps"), tag("p", where, cls="caption"), tag("div", join(cards), cls="maps"))


def _are_classes(story: RunStory) -> bool:
    """Whether the rows of generated images are classes; otherwise members, or nothing."""
    return bool(story.labels) and story.generated_y is not None and bool((story.generated_y >= 0).any())


def _real_rows(story: RunStory, rows: list[tuple[str, np.ndarray]]) -> list[np.ndarray]:
    """Real images for each row: of the same class where rows are classes, else any, as they come."""
    real, y = story.real, story.real_y
    if real is None or real.ndim != 4:
        return []
    if _are_classes(story) and y is not None:
        widest = max(len(images) for _, images in rows)
        by_name = {name: real[y == k] for k, name in enumerate(story.labels)}
        return [by_name[name][:widest] for name, _ in rows]
    real = real[shuffle(len(real), "real rows of a report")]  # they are gathered class by class
    ends = np.cumsum([len(images) for _, images in rows])
    return [real[end - len(images) : end] for end, (_, images) in zip(ends, rows, strict=True)]


def _real_alone(story: RunStory) -> SafeHtml:
    assert story.real is not None
    if story.real.ndim == 2:
        return figure(pictures.draw_points(np.empty((0, 2)), story.real), "data", "points")
    rows = pictures.sample_rows(story.real, story.real_y, story.labels)
    widest = max(len(images) for _, images in rows)
    cells = [part for name, images in rows for part in (tag("div", name, cls="name"), _strip(images, name, widest))]
    return tag("div", join(cells), cls="compare two")


def _strip(images: np.ndarray, about: str, columns: int) -> SafeHtml:
    """A row of images, as wide as one of so many: the page stretches strips, and all their images must stay alike."""
    settings: Any = {"background": None, "margin": 1, "largest": 128}
    drawn = pictures.draw_grid([images], **settings)
    if len(images) < columns:
        full = pictures.draw_grid([np.repeat(images[:1], columns, 0)], **settings).size
        drawn = drawn.crop((0, 0, *full))  # what lies beyond it is transparent
    return image(pictures.png(drawn), about)
