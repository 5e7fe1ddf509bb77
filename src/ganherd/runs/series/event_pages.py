"""Read the events of a run page by page, each from a byte offset on, without long lists that a page does not show."""

from __future__ import annotations

from collections.abc import Collection

from ganherd.runs.records import plain
from ganherd.runs.series.record_file import FileLine, RecordFile
from ganherd.util.files import JsonObject

_MOST = 8 << 20  # bytes that are read for one page, at most
# Lists in events that pages keep: they are needed to follow nets from member to member. Other lists are left out.
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
    """Return at most `limit` events from a byte offset on.

    Args:
        member: Only events about this member; lists with a value for each member are reduced to its value.
        kinds: Only events with these names; empty: all.
        newest: Return the last events of the file instead, in the same order.

    Returns:
        `events`; `offset`, at which the next page begins; `more`, whether the limits left out events; `restarted`,
        whether the file has become shorter than `offset`, so that reading starts at 0; and `damaged`, the number of
        lines that were skipped.
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
    """Return the event in a line; empty if `member` or `kinds` exclude it, None if ganherd did not write the line."""
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
    """Return the fields of an event that concern a member; empty if the event is not about this member."""
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
    """Return the fields that are neither lists nor objects."""
    return {key: value for key, value in content.items() if not isinstance(value, list | dict)}


def _plain(content: JsonObject) -> JsonObject:
    """Return the fields as strict JSON values."""
    return {key: plain(value) for key, value in content.items()}
