"""`ganherd bench scaling`: real ranks are measured, and the model predicts larger jobs from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tiny_runs import command

from ganherd_benchmarks import alpha_beta as ab
from ganherd_benchmarks import scaling

pytestmark = pytest.mark.further


@pytest.mark.usefixtures("warm_processes")
def test_real_ranks_are_measured_and_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "--ranks",
        "1,2",
        "--members",
        "2",
        "--case",
        "small",
        "--steps",
        "1",
        "--rounds",
        "2",
        "--model",
        "--quiet",
    ]
    assert command("bench", "scaling", *words, "--json", "-o", tmp_path / "scaling") == 0
    found = json.loads(capfd.readouterr().out)
    rows = {(row["kind"], row["strategy"], row["ranks"]): row for row in found["rows"]}
    assert len(rows) == 2 * 4 * 2
    assert [rows["weak", "independent", ranks]["members"] for ranks in (1, 2)] == [2, 4]
    assert [rows["strong", "independent", ranks]["members"] for ranks in (1, 2)] == [4, 4]
    for row in rows.values():
        assert row["seconds"] == row["compute_seconds"] + row["exchange_seconds"] > 0 and row["efficiency"] > 0
        assert (row["bytes"] == 0) == (row["ranks"] == 1 or row["strategy"] == "independent")
    cell = rows["weak", "cellular", 2]
    assert cell["bytes"] == 2 * cell["member_bytes"]  # a 2 × 2 torus in two halves: all cells of the other one
    assert len(found["messages"]) == 14 and found["model"]["alpha"] >= 0 and found["model"]["beta"] >= 0
    assert json.loads((tmp_path / "scaling.json").read_text())["asked"]["case"] == "small"
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert [row["ranks"] for row in found["waits"]] == [1, 2] and found["start_seconds"] > 0
    assert found["waits"][1]["checkpoint_bytes"] == 2 * found["waits"][0]["checkpoint_bytes"] > 0
    independent = [row for row in found["model"]["rows"] if row["strategy"] == "independent"]
    assert all(row["efficiency"] < 1 and row["bytes"] == 0 for row in independent)
    assert {row["ranks"] for row in found["model"]["measured"]} <= {2}
    assert not list(Path.cwd().glob(".scaling-*"))
    assert "weak-scaling efficiency, by the model:" in scaling.table(found)
    seldom = scaling.model(found, every=600)  # the same line, and more steps between exchanges
    assert seldom["compute_seconds"] == pytest.approx(600 * found["model"]["compute_seconds"])
    assert (
        seldom["beta"] == found["model"]["beta"]
        and seldom["rows"][-1]["efficiency"] > found["model"]["rows"][-1]["efficiency"]
    )


def test_message_cost_is_fitted() -> None:
    sizes = [2**power for power in range(8, 24)]
    line = ab.fit(sizes, [3e-5 + 2e-10 * size for size in sizes])
    assert line.alpha == pytest.approx(3e-5) and line.beta == pytest.approx(2e-10)
    assert ab.fit([1, 1000], [2.0, 1.0]).beta == 0.0 and ab.fit([1, 1000], [1e-9, 1.0]).alpha == 0.0


def test_torus_traffic_is_constant_and_all_gather_grows() -> None:
    work, line = ab.RankWork(1, 1.0, 10**6, 10**7), ab.MessageCost(1e-5, 1e-9)
    cells = [ab.exchange("cellular", ranks, work, line) for ranks in (16, 100, 400)]
    assert set(cells) == {(4.0, 4e7)}
    everyone = [ab.exchange("cellular, all-gather", ranks, work, line)[1] for ranks in (16, 100, 400)]
    assert everyone == [15e7, 99e7, 399e7]
    efficiency = {name: ab.predict(name, 2000, work, line)["efficiency"] for name in ab.STRATEGIES}
    assert (
        efficiency["independent"]
        == 1.0
        > efficiency["gap"]
        > efficiency["cellular"]
        > efficiency["cellular, all-gather"]
    )


def test_independent_ranks_wait_for_records_checkpoints_and_the_slowest() -> None:
    waits = ab.Waits(
        record=ab.MessageCost(0.01, 0.001),
        checkpoint=ab.MessageCost(0.1, 1e-8),
        member_bytes=10**6,
        start=10.0,
        spread=0.02,
        spread_steps=20,
        record_every=50,
        checkpoint_every=500,
        run_steps=10_000,
    )
    alone, many = (waits.of_round(ranks, 2 * ranks, 20, meets=False) for ranks in (1, 100))
    assert alone == pytest.approx({"record": 0.011 * 0.4, "checkpoint": 0.12 / 25, "start": 0.02, "slowest": 0.0})
    assert many["record"] == pytest.approx(0.11 * 0.4) and many["checkpoint"] == pytest.approx(2.1 / 25)
    # between two records 50 steps, whose deviation grows with their square root
    assert many["slowest"] == pytest.approx(0.02 * (50 / 20) ** 0.5 * (2 * math.log(100)) ** 0.5 * 0.4)
    assert waits.of_round(100, 200, 20, meets=True)["slowest"] > many["slowest"]  # they synchronise more often
    work, line = ab.RankWork(2, 1.0, 1, 1), ab.MessageCost(0, 0)
    row = ab.predict("independent", 100, work, line, waits, 20)
    assert row["efficiency"] == pytest.approx(1 / (1 + sum(many.values()))) and row["waits"] == many


def test_swap_moves_at_most_one_discriminator_per_member() -> None:
    for ranks in (2, 10, 2000):
        messages, bytes_ = ab.exchange("gap", ranks, ab.RankWork(3, 1.0, 100, 1), ab.MessageCost(0, 0))
        assert 0 < messages <= min(3, ranks - 1) and 0 < bytes_ <= 300


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ranks", "1,x"], "--ranks 1,x: give numbers above zero"),
        (["--case", "vgg"], "there is no benchmark of 'vgg'"),
        (["--device", "tpu"], "--device tpu: choose cpu or cuda"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("bench", "scaling", *words) == 2
    assert sentence in capfd.readouterr().err


@pytest.mark.long
def test_ranks_are_compared_with_unrelated_runs(capfd: pytest.CaptureFixture[str]) -> None:
    """What each process took: CPU, messages, files and bytes; a rank trains from its own shard."""
    assert command("bench", "scaling", "--alone", "2", "--steps", "5", "--json", "--quiet") == 0
    found = json.loads(capfd.readouterr().out)
    ranks, alone = found["rows"]["ranks"], found["rows"]["alone"]
    assert (
        alone["messages"] == 0 < ranks["messages"]
        and alone["shards_of_a_process"] == alone["processes_of_a_shard"] == 1
    )
    assert ranks["cpu_seconds"] > 0 and found["share"] == ranks["work_per_cpu_second"] / alone["work_per_cpu_second"]
