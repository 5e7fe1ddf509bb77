"""Render the section that shows how samples formed during training.

The HTML has an empty filmstrip and an empty view of the herd (all members) with a slider; the page's script draws the
sprites (small samples of each member) into them. Without a script the page shows pictures that the run saved while it
trained.
"""

from __future__ import annotations

from markupsafe import Markup

from ganherd.report.gather import RunStory
from ganherd.report.templating import number, render
from ganherd.runs.folder import RunFolder
from ganherd.scoring import gallery
from ganherd.util import files
from ganherd.util.files import JsonObject

_MOST_PICTURES = 6
_MOST_BYTES = 1 << 20  # largest number of bytes of these pictures together


def film(story: RunStory) -> Markup:
    """Return the section as HTML; empty if the run saved no pictures while it trained."""
    strip = film_strip(story)
    return render("film", strip=strip) if strip["run"] or strip["pictures"] else Markup()


def film_strip(story: RunStory) -> JsonObject:
    """Return the variables of the template: the run's id ("" if the page has no sprites), and some saved pictures."""
    sprites = bool(story.embedded and story.embedded["sheets"])
    pictures = story.attempt("the pictures of steps", lambda: _step_pictures(RunFolder(story.path))) or []
    return {
        "run": story.embedded["facts"]["id"] if story.embedded and sprites else "",
        "pictures": pictures,
        "name": story.name,
    }


def _step_pictures(run: RunFolder) -> list[tuple[str, bytes]]:
    """Return (step as text, PNG) of at most six saved pictures, evenly spread up to the last; fewer if large."""
    paths = [path for path in sorted(run.samples.glob("step-*.png")) if path.stem[5:].isdecimal()]
    drawn = paths[::-1][:: max(1, -(-len(paths) // _MOST_PICTURES))][::-1]
    while drawn and sum(path.stat().st_size for path in drawn) > _MOST_BYTES:
        drawn = drawn[1:]
    return [(number(int(path.stem[5:])), files.read(path, gallery.LARGEST)) for path in drawn]
