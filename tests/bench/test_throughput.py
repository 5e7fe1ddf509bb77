"""`ganherd bench fusion`: rows of every way to train, saved as JSON with a picture; a failure is a row with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ganherd.bench import checkout, throughput
from ganherd.bench import rows as one
from ganherd.bench.throughput import ThroughputRequest, ThroughputResult
from ganherd.bench.throughput_text import draw, table
from ganherd.util.errors import UserError
from ganherd_benchmarks.processes import processes

pytestmark = pytest.mark.further


def found(*rows: dict) -> ThroughputResult:
    rates = {"matmul_flops_per_second": 8e14, "copy_bytes_per_second": 4e12}
    case = {
        "about": "a case",
        "flops_per_member_step": 6e10,
        "least_bytes_per_member_step": 2e8,
        "ceiling_member_steps_per_second": [5000.0, 10000.0],
    }
    out = ThroughputResult(
        "a machine", "cuda", "bf16", rates, {"wcgan": case}, [{"case": "wcgan", **row} for row in rows]
    )
    throughput._compare(out)
    return out


def row(way: str, members: int, rate: float, **more: object) -> dict:
    return {
        "way": way, "members": members, "engine": way, "threads": 1, "member_steps_per_second": rate,
        "images_per_second": 64 * rate, "peak_bytes": 2**30, "reserved_bytes": 2**30, "note": "", **more,
    }  # fmt: skip


@pytest.mark.usefixtures("warm_processes")
def test_fusion_command_measures_prints_and_saves(cli) -> None:
    words = ["--cases", "small", "--ways", "ours", "--members", "2", "--seconds", "0.05", "--device", "cpu"]
    answer = cli("bench", "fusion", *words, "--json", "-o", "made/rows.json")
    assert answer.code == 0 and answer.out.count("\n") == 1
    told = json.loads(answer.out)
    (ours,) = told["rows"]
    assert ours["member_steps_per_second"] > 0 and ours["peak_bytes"] > 0 and ours["engine"] in ("loop", "fused")
    assert ours["images_per_second"] == pytest.approx(64 * ours["member_steps_per_second"])
    assert 0 < ours["share_of_ceiling"][0] <= ours["share_of_ceiling"][1] and ours["tflops"] > 0
    kept = json.loads(Path("made/rows.json").read_text())
    assert kept["rows"] == told["rows"] and "bench fusion --cases small" in kept["command"]
    assert Path("made/rows.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("warm_processes")
def test_rates_of_processes_are_summed() -> None:
    both = processes("small", 2, 0.2, "cpu", "float32")
    assert both.rate > 0 and both.threads == 1 and both.engine == "processes"


@pytest.mark.usefixtures("warm_processes")
def test_failing_process_reports_the_reason() -> None:
    with pytest.raises(RuntimeError, match="a process ended: .*float16"):
        processes("small", 1, 0.1, "cpu", "float16")


def test_ratios_and_shares() -> None:
    out = found(row("eager", 10, 100.0), row("processes", 10, 400.0), row("ours", 10, 4000.0), row("ours", 100, 5000.0))
    eager, alone, ours, many = out.rows
    assert (ours["against_eager"], ours["against_processes"], alone["against_eager"]) == (40.0, 10.0, 4.0)
    assert many["against_eager"] is None and many["against_processes"] == 12.5  # ten at a time take turns
    assert ours["tflops"] == pytest.approx(240.0) and ours["gigabytes_per_second"] == pytest.approx(800.0)
    assert ours["share_of_ceiling"] == pytest.approx([0.4, 0.8])
    assert ours["chosen"] and not eager["chosen"]


def test_failed_row_is_shown_and_left_out_of_the_picture(tmp_path) -> None:
    failed = {"way": "grouped", "members": 100, "error": "out of memory"}
    out = found(row("eager", 100, 100.0), failed, row("ours", 100, 4000.0, engine="graph"))
    lines = table(out).splitlines()
    assert any("grouped" in line and "no number: out of memory" in line for line in lines)
    assert any("ours" in line and "4,000" in line and "40.0" in line and "graph" in line for line in lines)
    draw(out, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 10_000


def test_slow_rates_have_two_digits_and_empty_columns_are_dropped() -> None:
    out = found(row("eager", 1, 1.04), row("fused", 1, 0.951))
    lines = table(out).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("members"))
    head, eager, fused = lines[at : at + 3]
    assert " 1.0 " in eager and " 0.95 " in fused and "× eager" in head and "× processes" not in head
    told: list[str] = []
    for each in out.rows:
        throughput._tell(each, told.append)
    assert told == ["  wcgan, 1 member, eager: 1.0 member-steps/s", "  wcgan, 1 member, fused: 0.95 member-steps/s"]


def test_the_command_names_the_files_that_it_wrote(cli, monkeypatch) -> None:
    monkeypatch.setattr(throughput, "measure", lambda request, log, output: found(row("eager", 10, 100.0)))
    answer = cli("bench", "fusion", "-o", "made/rows.png")
    assert answer.out.splitlines()[-2:] == ["rows     made/rows.json", "picture  made/rows.png"]
    assert Path("made/rows.json").is_file() and Path("made/rows.png").is_file()


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The words of every process that was to measure; the first of them writes one row and dies."""
    asked: list[list[str]] = []
    real = subprocess.Popen

    def start(command, **settings):
        asked.append(command[3:])
        lines = [json.dumps({"case": "wcgan", **row("eager", int(n), 1.0)}) for n in command[4].split(",")]
        says = (
            f"print({lines[0]!r}); sys.exit('noise\\nKilled')" if len(asked) == 1 else f"print({chr(10).join(lines)!r})"
        )
        return real([sys.executable, "-c", f"import sys; {says}"], **settings)

    monkeypatch.setattr(throughput.subprocess, "Popen", start)
    return asked


def test_dead_process_loses_one_row_only(started) -> None:
    """The sizes after it are measured by another one."""
    rows = list(throughput._rows("wcgan", "eager", (1, 10, 100), 0.1, "cuda", "bf16", True, lambda text: None))
    assert [words[1] for words in started] == ["1,10,100", "100"]
    assert [r["members"] for r in rows] == [1, 10, 100]
    assert rows[1]["error"] == "Killed" and "noise" in rows[1]["detail"] and "error" not in rows[2]


def test_rows_are_yielded_as_they_are_measured(monkeypatch) -> None:
    says = "import time; print('{\"members\": 1}', flush=True); time.sleep(600)"
    real = subprocess.Popen
    monkeypatch.setattr(
        throughput.subprocess, "Popen", lambda _, **settings: real([sys.executable, "-c", says], **settings)
    )
    rows = throughput._rows("mlp", "eager", (1, 4), 0.1, "cuda", "bf16", True, lambda text: None)
    assert next(rows) == {"members": 1}
    rows.close()  # and the process ends with its reader


def test_at_most_ten_processes_run_at_once(started) -> None:
    for sizes in ((1, 16, 256), (1, 4)):
        list(throughput._rows("mlp", "processes", sizes, 0.1, "cuda", "bf16", True, lambda text: None))
    assert [words[1] for words in started] == ["10", "4"]


def test_reason_of_a_failed_row_is_one_line(capsys, monkeypatch) -> None:
    assert one.reason(torch.OutOfMemoryError("CUDA out of memory. Tried …\nmore")) == "out of memory"
    assert one.reason(RuntimeError("first\nsecond")) == "RuntimeError: first"

    def fails(*words):
        raise ValueError("no luck")

    one.main("small", "2", "streams", "1", "cpu", "float32")
    assert json.loads(capsys.readouterr().out)["error"] == "streams needs a GPU: there are no CUDA graphs here"
    monkeypatch.setattr(one, "measure", fails)
    one.main("mlp", "4,8", "eager", "1", "cpu", "float32")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"case": "mlp", "members": 4, "way": "eager", "error": "ValueError: no luck"}
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ThroughputRequest(cases=("vgg",)), "there is no benchmark of 'vgg'"),
        (ThroughputRequest(ways=("magic",)), "there is no way 'magic'; there are eager"),
        (ThroughputRequest(precision="float16"), "float16"),
        (ThroughputRequest(device="tpu"), "engine.device"),
    ],
)
def test_unknown_names_are_refused_before_measuring(asked: ThroughputRequest, said: str) -> None:
    with pytest.raises(UserError, match=said):
        asked.check()


@pytest.fixture
def wheel(monkeypatch, tmp_path) -> None:
    """ganherd as if it were installed without its checkout."""
    monkeypatch.setattr(checkout, "FOLDER", tmp_path / "benchmarks")


def test_wheel_measures_own_engines_without_a_ceiling(wheel, cli, monkeypatch) -> None:
    def rows(name, way, sizes, *settings):
        yield {"case": name, **row(way, 2, 100.0)}

    monkeypatch.setattr(throughput, "_rows", rows)
    answer = cli("bench", "fusion", "--device", "cpu", "-o", "made/rows.json")
    assert answer.code == 0 and "fused" in answer.out and "TFLOP" not in answer.out and " eager" not in answer.out[:200]
    assert "note: left out: the ceiling, eager; get a checkout of ganherd's repository" in answer.out
    assert Path("made/rows.png").is_file()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["fusion", "--ways", "grouped"], "the way grouped"),
        (["scaling", "--alone", "2"], "--alone"),
        (["scaling", "--model"], "`ganherd bench scaling`"),
        (["cellular"], "`ganherd bench cellular`"),
    ],
)
def test_wheel_refuses_other_benchmarks_with_where_to_get_them(wheel, cli, words, what) -> None:
    answer = cli("bench", *words, "--device", "cpu")
    assert answer.code == 2
    assert f"{what} needs code that is not installed with ganherd: get a checkout" in answer.err


def test_picture_has_dots_on_its_log_axis_and_a_ceiling(tmp_path, monkeypatch) -> None:
    """The length of a bar on a log axis depends on where the axis begins."""
    from matplotlib.figure import Figure

    from ganherd.bench import throughput_text
    from ganherd.bench.throughput import ThroughputResult

    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    rows = [
        {"case": "a", "members": n, "way": "fused", "engine": "fused", "member_steps_per_second": 30.0 * n}
        for n in (1, 4)
    ]
    cases = {"a": {"about": "a case", "ceiling_member_steps_per_second": [108.0, 157.0]}}
    throughput_text.draw(ThroughputResult("a machine", "cpu", "float32", {}, cases, rows), tmp_path / "x.png")
    (axes,) = kept[0].axes
    assert (
        axes.get_yscale() == "log"
        and not axes.containers
        and [list(dots.get_ydata()) for dots in axes.lines[:1]] == [[30.0, 120.0]]
    )
    assert any("ceiling" in text for text in axes.get_legend_handles_labels()[1])
    low, high = axes.get_ylim()
    labelled = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(labelled) >= 3
