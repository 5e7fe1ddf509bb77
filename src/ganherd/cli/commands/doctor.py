"""`ganherd doctor`: check what this machine has, and how to get what is missing."""

from __future__ import annotations

import json

from ganherd.cli.options import Json, show


def doctor(as_json: Json = False) -> None:
    """Check what this machine has, what it is needed for, and how to get what is missing."""
    from ganherd.machine_check import examine

    rows = examine()
    if as_json:
        show(json.dumps({"rows": rows}))
        return
    width = max(len(row["what"]) for row in rows)
    for row in rows:
        mark, found = ("✓", row["found"]) if row["found"] else ("–", "not here")
        need = f"  ({row['needed_for']})" if row["needed_for"] else ""
        show(
            f"{mark} {row['what']:<{width}}  {found}{need}"
            + (f"\n  {'':<{width}}  {row['how_to_get']}" if row["how_to_get"] else "")
        )
