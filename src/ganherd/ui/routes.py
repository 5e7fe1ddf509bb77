"""Define the HTTP API: runs, metrics, events, sprites, scores, ranks and samples. Everything is read-only."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse

from ganherd.runs.series import event_pages, sprite_files
from ganherd.ui import sampler
from ganherd.ui.live import MOST_LISTENERS, LiveFeed
from ganherd.ui.run_catalog import RunCatalog
from ganherd.ui.sampler import SampleRequest, SampleService
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.web import run_facts

_MOST_PICTURE = 24 << 20  # largest file samples/*.png that is sent, in bytes
_MOST_MEMBERS = 5000  # largest number of members in one request
_BIG = 1 << 53  # JavaScript has exact whole numbers up to this
RunId = Annotated[str, Path(max_length=120, description="The id of a run, from /api/runs.")]
Offset = Annotated[int, Query(ge=0, le=_BIG, description="Byte of the file from which on lines are read.")]
Seed = Annotated[int, Query(ge=0, le=(1 << 31) - 1)]
Replica = Annotated[int, Query(ge=0, le=10_000)]
Truncation = Annotated[float, Query(gt=0, le=2, description="Factor by which the noise is scaled.")]
Label = Annotated[str | None, Query(max_length=200, description="Only this label, by name or number.")]
Member = Annotated[int | None, Query(ge=0, le=1 << 24, description="Only this member.")]


def make_router(catalog: RunCatalog, service: SampleService, feed: LiveFeed) -> APIRouter:
    """Return the routes of the API.

    Args:
        catalog: The runs.
        service: Draws samples.
        feed: Notifies pages of changes.
    """
    router = APIRouter(prefix="/api")

    @router.get("/runs", tags=["runs"])
    def runs() -> JsonObject:
        """List the runs with their state, step, verdict and time left; the most recently active one comes first."""
        listed = [run_facts.safe_summary(run) for run in catalog.runs()]
        return {"runs": sorted(listed, key=lambda run: (run["age"], run["name"]))}

    @router.get("/runs/{run_id}", tags=["runs"])
    def run(run_id: RunId) -> JsonObject:
        """Return the state, members, layout, settings, figures, sprites and verdict of a run."""
        return run_facts.details(catalog.run(run_id))

    @router.get("/runs/{run_id}/scores", tags=["runs"])
    def scores(run_id: RunId) -> JsonObject:
        """Return the scores of a run and the verdict on it; empty if it has none."""
        return run_facts.scores(catalog.run(run_id))

    @router.get("/runs/{run_id}/ranks", tags=["runs"])
    def ranks(run_id: RunId) -> JsonObject:
        """Return hosts, heartbeats and rates of the ranks (processes), exchanged bytes, and how the time is spent."""
        return run_facts.ranks(catalog.run(run_id))

    @router.get("/runs/{run_id}/metrics", tags=["records"])
    def metrics(
        run_id: RunId,
        figures: Annotated[str, Query(max_length=2000, description="Names of figures, separated by commas.")],
        members: Annotated[
            str | None, Query(max_length=40_000, description="Members, e.g. 0,3,10-19, or all. Default: a band.")
        ] = None,
        offset: Offset = 0,
        points: Annotated[int, Query(ge=1, le=4000)] = 400,
        first: Annotated[int | None, Query(ge=0, le=_BIG, description="First step.")] = None,
        last: Annotated[int | None, Query(ge=0, le=_BIG, description="Last step.")] = None,
    ) -> JsonObject:
        """Return figures over steps as columns, from a byte offset on, and the offset of the next request."""
        shown = catalog.run(run_id)
        steps = None if first is None and last is None else (first or 0, _BIG if last is None else last)
        chosen = _members(members, run_facts.number_of_members(shown))
        return shown.metrics.columns(_names(figures), chosen, offset, points, steps)

    @router.get("/runs/{run_id}/record", tags=["records"])
    def record(
        run_id: RunId,
        step: Annotated[int, Query(ge=0, le=_BIG)],
        figures: Annotated[str, Query(max_length=2000)],
        members: Annotated[str | None, Query(max_length=40_000)] = None,
    ) -> JsonObject:
        """Return recorded numbers (figures, e.g. losses) of all members, or of some, from the newest record at or before a step."""
        shown = catalog.run(run_id)
        chosen = None if members is None else _members(members, run_facts.number_of_members(shown))
        return shown.metrics.at(step, _names(figures), chosen)

    @router.get("/runs/{run_id}/events", tags=["records"])
    def events(
        run_id: RunId,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
        member: Member = None,
        kinds: Annotated[str, Query(max_length=400, description="Names of events, separated by commas.")] = "",
        newest: Annotated[bool, Query(description="The last events instead of those after the offset.")] = False,
    ) -> JsonObject:
        """Return events from a byte offset on, and the offset of the next request."""
        shown = catalog.run(run_id)
        return run_facts.clean(event_pages.page(shown.events_file, offset, limit, member, _names(kinds), newest))

    @router.get("/runs/{run_id}/sprites", tags=["pictures"])
    def sprites(run_id: RunId) -> JsonObject:
        """Return the steps that have a sprite sheet (small samples of all members), and where each member is in it."""
        facts = run_facts.sprites(catalog.run(run_id))
        if facts is None:
            raise UserError("This run has no sprites: it was trained with run.sprites 0, or by an older version.")
        return facts

    @router.get("/runs/{run_id}/sprites/{step}", tags=["pictures"], response_class=Response)
    def sheet(
        run_id: RunId,
        step: Annotated[int, Path(ge=0, le=_BIG)],
        if_none_match: Annotated[str, Header(max_length=100)] = "",
    ) -> Response:
        """Return the sprite sheet of a step: WebP for images, JSON for points."""
        shown = catalog.run(run_id)
        path = sprite_files.saved_sheets(shown.folder.sprites).get(step)
        if path is None:
            raise UserError(f"Step {step} has no sprites.")
        content, index = shown.read(path, sprite_files.MOST_SHEET), sprite_files.read_index(shown.folder.sprites)
        try:
            if index is None:
                raise ValueError("there is no index")
            sprite_files.check_sheet(content, index)
        except ValueError as error:
            raise UserError(f"The sprites of step {step} cannot be shown: {error}.") from error
        return _file(content, path.suffix, if_none_match)

    @router.get("/runs/{run_id}/picture", tags=["pictures"], response_class=Response)
    def picture(run_id: RunId, if_none_match: Annotated[str, Header(max_length=100)] = "") -> Response:
        """Return the newest picture of samples that the run has drawn."""
        shown = catalog.run(run_id)
        path = shown.folder.newest_picture
        if path is None:
            raise UserError("This run has no picture yet.")
        return _file(shown.read(path, _MOST_PICTURE), ".png", if_none_match)

    @router.get("/runs/{run_id}/mixture", tags=["samples"])
    def mixture(run_id: RunId) -> JsonObject:
        """Return what can be requested of the mixture: labels, replicas, members, and the shape of a sample."""
        return run_facts.clean(service.facts(catalog.run(run_id)))

    @router.get("/runs/{run_id}/samples", tags=["samples"])
    def samples(
        run_id: RunId,
        n: Annotated[int, Query(ge=1, le=sampler.MOST_SHOWN)] = 64,
        label: Label = None,
        seed: Seed = 0,
        truncation: Truncation = 1.0,
        replica: Replica = 0,
        member: Member = None,
    ) -> JsonObject:
        """Return samples for a page: one picture, or points, with the label and the member of each sample."""
        request = SampleRequest(n, label, seed, truncation, replica, member)
        return run_facts.clean(service.show(catalog.run(run_id), request))

    @router.get("/runs/{run_id}/walk", tags=["samples"])
    def walk(
        run_id: RunId,
        seed: Seed = 0,
        to_seed: Seed = 1,
        frames: Annotated[int, Query(ge=2, le=sampler.MOST_FRAMES)] = 48,
        label: Label = None,
        truncation: Truncation = 1.0,
        replica: Replica = 0,
    ) -> JsonObject:
        """Return samples for noises that go in `frames` steps from the noise of one seed to that of another."""
        request = SampleRequest(frames, label, seed, truncation, replica, to_seed=to_seed)
        return run_facts.clean(service.show(catalog.run(run_id), request))

    @router.get("/runs/{run_id}/samples.{kind}", tags=["samples"], response_class=Response)
    def download(
        run_id: RunId,
        kind: Literal["png", "npz", "csv", "zip"],
        n: Annotated[int, Query(ge=1, le=sampler.MOST_SAMPLES)] = 64,
        label: Label = None,
        seed: Seed = 0,
        truncation: Truncation = 1.0,
        replica: Replica = 0,
    ) -> Response:
        """Download samples: a PNG with a title, an npz, a csv of points or rows, or a zip with images by label."""
        if kind == "png" and n > sampler.MOST_SHOWN:
            raise UserError(
                f"n: a picture shows at most {sampler.MOST_SHOWN} samples; download the npz or the zip for more."
            )
        shown = catalog.run(run_id)
        content = service.file(shown, SampleRequest(n, label, seed, truncation, replica), kind)
        types = {"png": "image/png", "npz": "application/octet-stream", "csv": "text/csv", "zip": "application/zip"}
        name = f'attachment; filename="{shown.id}-samples.{kind}"'
        return Response(content, media_type=types[kind], headers={"content-disposition": name})

    @router.get("/live", tags=["live"], response_class=StreamingResponse)
    async def live(
        runs: Annotated[str, Query(max_length=4000, description="Ids of runs, separated by commas.")] = "",
        last_event_id: Annotated[str, Header(max_length=100)] = "",
    ) -> Response:
        """Send an event whenever one of the runs changes; without ids, whenever the list of runs changes."""
        if feed.listeners >= MOST_LISTENERS:
            return Response('{"detail": "Too many pages listen to this server."}', 503, media_type="application/json")
        stream = feed.listen(_names(runs)[:100], last_event_id)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return router


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _members(text: str | None, number: int) -> list[int] | None:
    """Return the numbers of the members that a text names.

    If the text is None, return None: the page then shows quantiles over all members.

    Args:
        number: The number of members of the run.

    >>> _members("0,2-4", 9), _members("all", 2), _members(None, 9)
    ([0, 2, 3, 4], [0, 1], None)
    """
    if text is None:
        return None
    if text == "all":
        text = f"0-{number - 1}"
    members: list[int] = []
    for part in _names(text):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or len(part) > 20:
            raise UserError(f"members: write numbers and ranges, e.g. 0,3,10-19, not {part[:20]!r}.")
        low, high = int(first), int(last) if dash else int(first)
        if high >= number or low > high:
            raise UserError(f"members: this run has the members 0 to {number - 1}.")
        members += range(low, high + 1)
        if len(members) > _MOST_MEMBERS:
            raise UserError(f"members: ask for at most {_MOST_MEMBERS} at once.")
    return members


def _file(content: bytes, suffix: str, known: str) -> Response:
    """Return an HTTP answer with a file; without content (status 304) if the browser has the file already.

    Args:
        known: The ETag of the browser's copy; "" if it has none.
    """
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if known == tag:
        return Response(status_code=304, headers=headers)
    types = {".webp": "image/webp", ".png": "image/png", ".json": "application/json"}
    return Response(content, media_type=types[suffix], headers=headers)
