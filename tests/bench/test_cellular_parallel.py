"""`ganherd bench cellular --ranks`: real ranks are measured, and Tables III and IV follow from their rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_runs import command

from ganherd.runs.profile import ROUTINES
from ganherd_benchmarks import cellular_parallel, cellular_recipe, cellular_tables

pytestmark = pytest.mark.further

TINY = ("--grids", "2", "--batches", 2, "--iterations", 1, "--repeats", 2, "--quiet", "--json")


@pytest.fixture(autouse=True)
def little_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made images, few of them, and nothing of the user's own."""
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cellular_recipe, "IMAGES", 300)


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize(
    "launcher", [pytest.param("mpiexec", marks=pytest.mark.mpi), pytest.param("torchrun", marks=pytest.mark.long)]
)
def test_ranks_are_measured_and_saved(launcher: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--ranks", "1,2", "--launcher", launcher, "--oversubscribe", *TINY)
    assert command("bench", "cellular", *words, "-o", tmp_path / "tables") == 0
    result = json.loads(capfd.readouterr().out)
    assert json.loads((tmp_path / "tables.json").read_text()) == result
    assert {"command", "commit", "date", "machine", "cores"} <= set(result) and result["launcher"] == launcher
    single, parallel = result["rows"]
    assert [(row["grid"], row["cells"], row["ranks"]) for row in (single, parallel)] == [(2, 4, 1), (2, 4, 2)]
    for row in (single, parallel):
        assert (
            len(row["repeats"]) == 2 and row["minutes_sd"] >= 0 and set(row["repeats"][0]["routines"]) == set(ROUTINES)
        )
        assert row["minutes"] == pytest.approx(row["routine_minutes"]["overall"])
    assert parallel["repeats"][0]["routines"]["gather"] > 0
    (third,) = result["table_3"]
    assert third["speedup"] == pytest.approx(single["minutes"] / parallel["minutes"])
    assert third["published"]["distributed"] == 39.81
    assert [row["routine"] for row in result["table_4"]] == ["gather", "train", "update", "mutate", "overall"]
    assert (tmp_path / "tables.png").read_bytes().startswith(b"\x89PNG")
    assert "projected from 2 repeats of 1 iteration of 2 batches" in cellular_tables.text(result)


def row(grid: int, ranks: int, seconds: float, batches: int = 600, oversubscribed: bool = False) -> dict[str, object]:
    """A row of two repeats, of which an iteration takes 10 % less and 10 % more than these seconds, most of it updates."""
    repeats = [
        {"seconds": share * seconds, "routines": {**dict.fromkeys(ROUTINES, 0.0), "update": share * (seconds - 1)}}
        for share in (0.9, 1.1)
    ]
    facts = {"grid": grid, "cells": grid**2, "ranks": ranks, "batches": batches, "oversubscribed": oversubscribed}
    return cellular_tables.with_minutes({**facts, "repeats": repeats})


def test_minutes_are_projected_to_the_runs_of_the_paper() -> None:
    whole, short = row(4, 1, 7.0), row(4, 1, 7.0, batches=100)
    assert whole["minutes"] == pytest.approx(200 * 7 / 60)
    assert whole["minutes_sd"] == pytest.approx(200 * 7 / 60 * 0.1 * 2**0.5)
    # six times as many updates, and once what happens once an iteration
    assert short["minutes"] == pytest.approx(200 * (6 * 6 + 1) / 60)


def test_speed_up_is_the_ratio_to_one_core_of_the_same_grid() -> None:
    rows = [row(3, 1, 21.0), row(4, 1, 41.0), row(3, 9, 3.0), row(4, 16, 4.0, oversubscribed=True)]
    tables = cellular_tables.table_3(rows)
    assert [(each["grid"], each["ranks"]) for each in tables] == [(3, 9), (4, 16)]
    assert [each["speedup"] for each in tables] == pytest.approx([7.0, 10.25])
    update = [each for each in cellular_tables.table_4(rows) if each["routine"] == "update"]
    assert [each["speedup"] for each in update] == pytest.approx([10.0, 40 / 3])
    assert update[0]["published"] is None and update[1]["published"] == (199.8, 16.8)
    settings = {"repeats": 2, "iterations": 2, "batches": 600}
    text = cellular_tables.text({"rows": rows, "asked": settings, "launcher": "mpiexec", "cores": 8})
    assert "16*" in text and "9*" not in text and "*: more ranks than cores" in text and "126.68 ± 3.42" in text


def test_published_speed_ups_follow_from_the_published_minutes() -> None:
    for single, distributed, _, speedup in cellular_tables.PUBLISHED.values():
        assert single / distributed == pytest.approx(speedup, abs=0.02)
    parts = list(cellular_tables.PUBLISHED_ROUTINES.values())
    assert [sum(minutes) for minutes in zip(*parts[:-1], strict=True)] == pytest.approx(parts[-1], abs=0.15)


def test_every_routine_of_ganherd_is_in_one_of_the_paper() -> None:
    assert sorted(part for parts in cellular_tables.PARTS.values() for part in parts) == sorted(ROUTINES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ranks", "1,7"), "--ranks 7 is no square grid's number of cells"),
        (("--ranks", "9", "--grids", "2"), "--ranks 9 is more than the cells"),
        (("--ranks", "1,5", "--launcher", "slurm"), "--launcher slurm: choose mpiexec or torchrun"),
        (("--ranks", "1,5"), "4 ranks are more than the 2 cores"),
        (("--ranks", "1,5", "--grid-sizes", "2"), "give one of them"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cellular_parallel, "cores", lambda: 2)
    assert command("bench", "cellular", *words, "-q") == 2
    assert sentence in capfd.readouterr().err
