"""`ganherd bench start` measures the seconds to the first recorded step, cold and warm, in separate processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_fixtures import Answer

from ganherd.bench import start
from ganherd.herd.engine import autotune
from ganherd.util.errors import UserError

RECORDS = """
import sys, time
from pathlib import Path
words = sys.argv[1:]
run = Path(words[words.index("--run") + 1])
run.mkdir()
time.sleep(0.2)
(run / "metrics.jsonl").write_text("{}")
time.sleep(0.2)
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that would have been run, with their environments; a script that writes a record runs in their place."""
    seen: list[tuple[list[str], dict[str, str]]] = []
    script = tmp_path / "records.py"
    script.write_text(RECORDS)
    popen = start.subprocess.Popen

    def run(words: list[str], env: dict[str, str], **options: Any) -> Any:
        seen.append((words, env))
        return popen([sys.executable, str(script), *words], env=env, **options)

    monkeypatch.setattr(start.subprocess, "Popen", run)
    monkeypatch.setattr(start, "pytorch_alone", lambda: 0.1)
    return seen


def test_a_warm_start_has_the_caches_of_the_cold_one(commands: list[tuple[list[str], dict[str, str]]]) -> None:
    logged: list[str] = []
    rows = start.measure(["own"], ["train.batch=4"], logged.append)
    assert [(row["case"], row["start"], row["recipe"]) for row in rows] == [
        ("own", "cold", "cifar10-dcgan"),
        ("own", "warm", "cifar10-dcgan"),
    ]
    assert all(0.2 <= row["first_step_seconds"] < row["all_seconds"] for row in rows)
    (cold, first), (_, second) = commands
    assert first["GANHERD_CACHE"] == second["GANHERD_CACHE"] and Path(first["GANHERD_CACHE"]).name == "cache"
    assert "train.batch=4" in cold and "nets.generator=own_nets:OwnGenerator" in cold and "run.record_every=1" in cold
    assert [line.partition(":")[0] for line in logged] == [
        "PyTorch alone, imported and used once",
        "own, cold",
        "own, warm",
    ]
    assert [row["pytorch_seconds"] for row in rows] == [0.1, 0.1]
    head, *lines = start.table(rows).splitlines()
    assert "first step" in head and len(lines) == 2


def test_pytorch_alone_is_measured_with_its_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two equal processes counts."""
    ran: list[Any] = []
    times = iter((10.0, 12.5))
    monkeypatch.setattr(start.subprocess, "run", lambda words, **options: ran.append((len(ran), words, options)))
    monkeypatch.setattr(start.time, "monotonic", lambda: (next(times), len(ran))[0])
    assert start.pytorch_alone() == 2.5
    (_, first, options), (_, second, _) = ran
    assert first == second and "import torch" in first[-1] and options == {"check": True}


def test_files_of_a_case_are_written_once(commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new time of change would make the data a stranger to the caches of the cold start."""
    written: list[Path] = []
    savez = np.savez
    monkeypatch.setattr(start.np, "savez", lambda path, **arrays: written.append(path) or savez(path, **arrays))
    start.measure(["wcgan"], [], lambda text: None)
    assert len(commands) == 2 and len(written) == 1


def test_an_interrupt_ends_the_training(commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []
    popen = start.subprocess.Popen
    monkeypatch.setattr(start.subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1])

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start.measure(["default"], [], lambda text: None)
    assert [process.returncode for process in processes] == [-9]


def test_rows_are_saved_with_what_they_were_measured_on(tmp_path: Path) -> None:
    row = {"case": "own", "start": "cold", "recipe": "cifar10-dcgan", "first_step_seconds": 1.0, "all_seconds": 2.0}
    start.save([row], ["train.batch=4"], tmp_path / "rows.json")
    saved = json.loads((tmp_path / "rows.json").read_text())
    assert saved["rows"] == [row] and saved["command"] == "ganherd bench start --set train.batch=4" and saved["machine"]


def test_a_failing_command_is_reported_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = start.subprocess.Popen
    fails = "import sys; sys.exit('no such thing')"
    monkeypatch.setattr(
        start.subprocess, "Popen", lambda words, **options: popen([sys.executable, "-c", fails], **options)
    )
    monkeypatch.setattr(start, "pytorch_alone", lambda: 0.1)
    with pytest.raises(UserError, match="ganherd train digits-wcgan failed: no such thing"):
        start.measure(["default"], [], lambda text: None)


def test_an_unknown_case_is_refused(cli: Any) -> None:
    answer: Answer = cli("bench", "start", "--cases", "wcgan,vgg")
    assert answer.code == 2 and "Unknown case 'vgg'; choose from wcgan, gap" in answer.err


def test_doctor_warms_a_recipe(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    answer: Answer = cli("doctor", "--warm", "ring8-gan", "--set", "engine.name=fused", "--json", "-q")
    facts = json.loads(answer.out)
    assert answer.code == 0 and facts["engine"].startswith("fused on cpu") and facts["kernels"] == 0
    assert facts["cache"] == str(tmp_path / "cache") and any((tmp_path / "cache").rglob("*.json"))
    answer = cli("doctor", "--set", "train.batch=4")
    assert answer.code == 2 and "name it with --warm" in answer.err


def test_doctor_runs_no_code_that_a_run_folder_names(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of a stranger's run may name any module."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "recipe.yaml").write_text("data: {source: ring8, partition: all}\nnets: {generator: 'evil:Net'}\n")
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('touched').touch()\n")
    answer: Answer = cli("doctor", "--warm", str(run / "recipe.yaml"))
    assert answer.code == 2 and "evil" in answer.err and "--trust-code" in answer.err
    assert not (tmp_path / "touched").exists()


def test_doctor_warms_the_precision_of_the_recipe(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled for the precision of the process, so the recipe's must be set first."""
    import torch

    allowed = []
    choose = autotune.choose
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False

    def note(*words: Any) -> Any:
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        return choose(*words)

    monkeypatch.setattr(autotune, "choose", note)
    try:
        answer: Answer = cli(
            "doctor", "--warm", "ring8-gan", "--set", "train.precision=tf32", "--set", "engine.name=fused", "-q"
        )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert answer.code == 0 and allowed == [True]
