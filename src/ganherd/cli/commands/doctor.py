"""`ganherd doctor`: check what this machine has, and how to get what is missing."""

from __future__ import annotations

from ganherd.cli.options import Json, print_result


def doctor(as_json: Json = False) -> None:
    """Check what this machine has, what it is needed for, and how to get what is missing."""
    from ganherd.machine_check import examine

    rows = examine()
    width = max(len(row["what"]) for row in rows)
    lines = []
    for row in rows:
        mark, found = ("✓", row["found"]) if row["found"] else ("–", "not here")
        need = f"  ({row['needed_for']})" if row["needed_for"] else ""
        lines.append(f"{mark} {row['what']:<{width}}  {found}{need}")
        if row["how_to_get"]:
            lines.append(f"  {'':<{width}}  {row['how_to_get']}")
    print_result(as_json, {"rows": rows}, "\n".join(lines))
