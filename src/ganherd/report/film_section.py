"""The section that shows how samples formed: the place of a filmstrip and of the herd with its slider, which the script fills.

Sheets of sprites are not decoded here: the browser draws them. Without a script the page shows pictures that the run has drawn.
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
_MOST_BYTES = 1 << 20  # of these pictures


def film(story: RunStory) -> Markup:
    """Return the section; empty if nothing was drawn while the run trained."""
    strip = film_strip(story)
    return render("film", strip=strip) if strip["run"] or strip["pictures"] else Markup()


def film_strip(story: RunStory) -> JsonObject:
    """Return the id of the run if its sprites are embedded, and some of the pictures that were drawn while it trained."""
    sprites = bool(story.embedded and story.embedded["sheets"])
    pictures = story.attempt("the pictures of steps", lambda: _step_pictures(RunFolder(story.path))) or []
    return {
        "run": story.embedded["facts"]["id"] if story.embedded and sprites else "",
        "pictures": pictures,
        "name": story.name,
    }


def _step_pictures(run: RunFolder) -> list[tuple[str, bytes]]:
    """Return the step and the content of some pictures, evenly spread up to the last; fewer if they are large."""
    paths = [path for path in sorted(run.samples.glob("step-*.png")) if path.stem[5:].isdecimal()]
    drawn = paths[::-1][:: max(1, -(-len(paths) // _MOST_PICTURES))][::-1]
    while drawn and sum(path.stat().st_size for path in drawn) > _MOST_BYTES:
        drawn = drawn[1:]
    return [(number(int(path.stem[5:])), files.read(path, gallery.LARGEST)) for path in drawn]
