"""Read the events of a run page by page, from a byte offset on, and without the long lists that a page does not show."""

from __future__ import annotations

from collections.abc import Collection

from ganherd.runs.records import plain
from ganherd.runs.series.record_file import FileLine, RecordFile
from ganherd.util.files import JsonObject

_MOST = 8 << 20  # bytes that are read for one page
# Fields of events with a value for each member that are needed to follow nets through the herd; other lists are left out.
_LISTS = {
    "g",
    "d",
    "g_new",
    "d_new",
    "g_from",
    "d_from",
    "pairs",
    "sat_out",
    "unwell",
    "neighbours",
    "ranks",
    "members",
}


def page(
    file: RecordFile,
    offset: int,
    limit: int,
    member: int | None = None,
    kinds: Collection[str] = (),
    newest: bool = False,
) -> JsonObject:
    """Return at most `limit` events from a byte offset on, and the offset at which the next page begins.

    Args:
        member: Only events about this member, with all their fields.
        kinds: Only events with these names; empty: all.
        newest: Return the last events of the file instead, in the same order.
    """
    size = file.size()
    restarted = offset > size
    events: list[JsonObject] = []
    damaged, end, more = 0, 0 if restarted else offset, False
    first = end
    for line in file.lines_before(size) if newest else file.lines_from(end):
        if len(events) >= limit or abs(line.start - (size if newest else first)) > _MOST:
            more = True
            break
        end = max(end, line.end)
        if (event := _event(line, member, kinds)) is None:
            damaged += 1
        elif event:
            events.append(event)
    if newest:
        events.reverse()
    return {"offset": end, "more": more, "restarted": restarted, "damaged": damaged, "events": events}


def _event(line: FileLine, member: int | None, kinds: Collection[str]) -> JsonObject | None:
    """Return an event; empty if it was not asked for, None if ganherd did not write the line."""
    record = line.parse()
    if record is None:
        return None
    if kinds and record.get("event") not in kinds:
        return {}
    content = {str(key): value for key, value in record.items()}
    if member is None:
        return _plain(
            {key: value for key, value in content.items() if key in _LISTS or not isinstance(value, list | dict)}
        )
    own = _about(content, member)
    return _plain(own) if own else {}


def _about(content: JsonObject, member: int) -> JsonObject:
    """Return what an event says about a member; empty if it is not about it."""
    if "member" in content:
        return content if content["member"] == member or content.get("from_member") == member else {}
    pairs = content.get("pairs")
    if isinstance(pairs, list):
        own = [pair for pair in pairs if isinstance(pair, list) and member in pair]
        return {**_scalars(content), "pairs": own} if own else {}
    lists = {
        key: value[member]
        for key, value in content.items()
        if isinstance(value, list) and member < len(value) and len(value) > 1
    }
    return {**_scalars(content), **lists} if lists else {}


def _scalars(content: JsonObject) -> JsonObject:
    return {key: value for key, value in content.items() if not isinstance(value, list | dict)}


def _plain(content: JsonObject) -> JsonObject:
    return {key: plain(value) for key, value in content.items()}
