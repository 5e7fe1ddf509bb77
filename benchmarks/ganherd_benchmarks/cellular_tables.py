"""Tables III and IV of the cellular paper from measured iterations: projected minutes, speed-ups, routines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from ganherd.util.files import JsonObject
from ganherd.util.text import text_table

ITERATIONS, BATCHES = 200, 600  # of the paper's runs
# Table III: minutes on one core, distributed with the standard deviation, and the speed-up, by the number of rows of the grid
PUBLISHED = {2: (339.6, 39.81, 0.01, 8.53), 3: (999.5, 73.24, 2.56, 13.65), 4: (1920.0, 126.68, 3.42, 15.17)}
# Table IV: minutes on one core and distributed, 4 × 4
PUBLISHED_ROUTINES = {
    "gather": (19.4, 19.4),
    "train": (264.9, 43.8),
    "update": (199.8, 16.8),
    "mutate": (25.6, 17.9),
    "overall": (509.6, 97.9),
}
# The paper's routines in those of ganherd. Its `train` is everything that is not gathering, updates or mutation.
PARTS = {
    "gather": ("gather",),
    "train": ("evaluate", "replace", "mixture", "train"),
    "update": ("update",),
    "mutate": ("mutate",),
}
_BY_BATCH = ("update", "train", "mutate")  # ganherd's routines that grow with the batches of an iteration
Row = Mapping[str, Any]


def project(repeat: Row, batches: int) -> dict[str, float]:
    """Return the minutes of 200 iterations of 600 batches, by the paper's routines, from one repeat's seconds of an iteration.

    Routines that work batch by batch are scaled to 600 batches; the others happen once an iteration, however long that is.

    >>> routines = dict.fromkeys(("gather", "evaluate", "replace", "mixture", "train", "update", "mutate"), 0.0)
    >>> project({"seconds": 4.0, "routines": {**routines, "update": 3.0, "evaluate": 0.9}}, 300)["overall"]  # 200 · (6 + 1) s
    23.333333333333332
    """
    scale, routines = BATCHES / batches, repeat["routines"]
    seconds = {name: routines[name] * (scale if name in _BY_BATCH else 1.0) for name in routines}
    outside = repeat["seconds"] - sum(routines.values())  # waiting for the slowest rank, events
    minutes = {name: sum(seconds[part] for part in parts) for name, parts in PARTS.items()}
    minutes["overall"] = sum(seconds.values()) + outside
    return {name: value * ITERATIONS / 60 for name, value in minutes.items()}


def with_minutes(row: Row) -> JsonObject:
    """Return a row with its projected minutes: mean and standard deviation over the repeats, and the mean of each routine."""
    each = [project(repeat, row["batches"]) for repeat in row["repeats"]]
    overall = [minutes["overall"] for minutes in each]
    return {
        **row,
        "minutes": mean(overall),
        "minutes_sd": stdev(overall) if len(overall) > 1 else None,
        "routine_minutes": {name: mean(minutes[name] for minutes in each) for name in each[0]},
    }


def pairs(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Return the row on one core and the distributed one, for each grid and number of ranks."""
    rows = list(rows)
    single = {row["grid"]: row for row in rows if row["ranks"] == 1}
    return [(single[row["grid"]], row) for row in rows if row["ranks"] > 1 and row["grid"] in single]


def table_3(rows: Iterable[Row]) -> list[JsonObject]:
    """Return the rows of Table III: minutes on one core, distributed, and the speed-up, with the published ones."""
    lines = []
    for single, parallel in pairs(rows):
        published = PUBLISHED.get(parallel["grid"])
        lines.append(
            {
                "grid": parallel["grid"],
                "ranks": parallel["ranks"],
                "oversubscribed": parallel["oversubscribed"],
                "single": single["minutes"],
                "single_sd": single["minutes_sd"],
                "distributed": parallel["minutes"],
                "distributed_sd": parallel["minutes_sd"],
                "speedup": single["minutes"] / parallel["minutes"],
                "published": None if published is None else dict(zip(_PUBLISHED, published, strict=True)),
            }
        )
    return lines


_PUBLISHED = ("single", "distributed", "distributed_sd", "speedup")


def table_4(rows: Iterable[Row]) -> list[JsonObject]:
    """Return the rows of Table IV for every grid: each routine on one core, distributed, and the speed-up."""
    lines = []
    for single, parallel in pairs(rows):
        for name, alone in single["routine_minutes"].items():
            minutes = parallel["routine_minutes"][name]
            lines.append(
                {
                    "grid": parallel["grid"],
                    "ranks": parallel["ranks"],
                    "oversubscribed": parallel["oversubscribed"],
                    "routine": name,
                    "single": alone,
                    "distributed": minutes,
                    "speedup": alone / minutes if minutes else None,
                    "published": PUBLISHED_ROUTINES[name] if parallel["grid"] == 4 else None,
                }
            )
    return lines


# -- text -------------------------------------------------------------------------------------------------------------


def text(result: Mapping[str, Any]) -> str:
    """Return both tables as text, with how they were measured."""
    rows, request = result["rows"], result["asked"]
    repeats, iterations = _count(request["repeats"], "repeat"), _count(request["iterations"], "iteration")
    how = (
        f"Table III: minutes of {ITERATIONS} iterations of {BATCHES} batches, projected from {repeats} of {iterations} of "
        f"{request['batches']} batches after one to warm up ({result['launcher']}, {result['cores']} cores); mean ± standard "
        "deviation. Nothing was trained for that long."
    )
    lines = [how, *_third(table_3(rows)), "", "Table IV: the same minutes by routine", *_fourth(table_4(rows))]
    lines.append(
        "There is no master: the paper's 5, 10 and 17 processes are 4, 9 and 16 ranks here, one for each cell. train: evaluation, "
        "replacement, mixtures and everything between steps; update: the steps, with their data and the mutations of each "
        "batch. Routines of ranks: the mean over all; overall: the slowest."
    )
    if any(row["oversubscribed"] for row in rows):
        lines.append(
            "*: more ranks than cores. They wait for each other's cores, so this is no speed-up of the program."
        )
    return "\n".join(lines)


def _third(rows: Sequence[Row]) -> list[str]:
    head = ["grid", "ranks", "one core", "distributed", "speed-up", "published: one core", "distributed", "speed-up"]
    lines = [head]
    for row in rows:
        times = (_mean_sd(row[name], row[f"{name}_sd"]) for name in ("single", "distributed"))
        known = row["published"]
        paper = (
            ("–",) * 3
            if known is None
            else (
                f"{known['single']:.1f}",
                _mean_sd(known["distributed"], known["distributed_sd"]),
                f"{known['speedup']:.2f}",
            )
        )
        lines.append([_grid(row), _ranks(row), *times, f"{row['speedup']:.2f}", *paper])
    return text_table(lines, right=range(1, len(head)))


def _fourth(rows: Sequence[Row]) -> list[str]:
    head = ["grid", "ranks", "routine", "one core", "distributed", "speed-up", "published: one core", "distributed"]
    lines = [head]
    for row in rows:
        ratio = "–" if row["speedup"] is None else f"{row['speedup']:.2f}"
        paper = ("–", "–") if row["published"] is None else (f"{minutes:.1f}" for minutes in row["published"])
        times = (f"{row[name]:.2f}" for name in ("single", "distributed"))
        lines.append([_grid(row), _ranks(row), row["routine"], *times, ratio, *paper])
    return text_table(lines, right={1, *range(3, len(head))})


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _grid(row: Row) -> str:
    return f"{row['grid']}×{row['grid']}"


def _ranks(row: Row) -> str:
    return f"{row['ranks']}{'*' * row['oversubscribed']}"


def _mean_sd(value: float, deviation: float | None) -> str:
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
