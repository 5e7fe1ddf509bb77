"""Promise 3 for kills: a process that dies at any moment, SIGKILL included, leaves a run that is resumed exactly."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs
import warm_python

EACH = [(net, engine) for net in ("small", "wcgan") for engine in ("fused", "loop")]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


@pytest.mark.further
def test_a_process_that_dies_before_any_of_its_file_operations_is_resumed_exactly(tmp_path: Path) -> None:
    """At every open, rename, remove, … of a whole run: in begin, in each checkpoint, its pruning, records and the mixture."""
    settings = recipes.noise_recipe(tmp_path, "4steps", net="tiny", checkpoint_every=2, keep=1)
    tiny_runs.train(tmp_path / "whole", settings)
    deaths = 0
    while True:
        run = tmp_path / f"run-{deaths}"
        try:
            with processes.dying_after(deaths, run):
                tiny_runs.train(run, settings)
        except processes.Killed:
            deaths += 1
        else:
            break
        if (run / "run.json").exists():
            tiny_runs.resume(run)
        else:  # nothing was trained yet
            assert not (run / "checkpoints").exists()
            shutil.rmtree(run, ignore_errors=True)
            tiny_runs.train(run, settings)
        run_files.assert_same_run(run, tmp_path / "whole")
        assert not list((run / "checkpoints").glob(".*")), "remains of the killed process"
        shutil.rmtree(run)
    assert deaths > 30


@pytest.mark.further
def test_a_process_that_dies_again_and_again_while_it_resumes_ends_exactly(tmp_path: Path) -> None:
    settings = recipes.noise_recipe(tmp_path, "5steps", net="tiny", checkpoint_every=2, keep=1)
    tiny_runs.train(tmp_path / "whole", settings)
    with pytest.raises(processes.Killed), processes.dying_after(18, tmp_path / "run"):
        tiny_runs.train(tmp_path / "run", settings)
    for operations in range(200):
        try:
            with processes.dying_after(operations, tmp_path / "run"):
                tiny_runs.resume(tmp_path / "run")
            break
        except processes.Killed:
            continue
    assert operations > 10
    run_files.assert_same_run(tmp_path / "run", tmp_path / "whole")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how a command ended by itself, and what it wrote."""
    output = process.communicate(timeout=240)[0]
    return process.returncode, output


def killed_after(seconds: float, *words: object) -> tuple[int, str]:
    process = warm_python.start(*words)
    time.sleep(seconds)
    code = warm_python.kill(process)
    return code, process.communicate()[0]


def kill_at_random_moments(folder: Path, hits: int, seed: int, **settings: Any) -> None:
    """Train once undisturbed and once with `hits` SIGKILLs while the run is in its folder; assert that both end the same.

    The moment of a kill depends on the speed of the machine, so this repeats until enough kills have hit. If a run ends too
    early, it is started again and the next kills come sooner; if a kill comes before there is a run, the next ones come later.
    """
    chance = random.Random(seed)
    file = recipes.write_recipe(folder, **settings)
    run, hit = folder / "run", 0
    began = time.monotonic()
    assert ended(warm_python.start("train", file, "--run", folder / "whole", "-q"))[0] == 0
    reach = (time.monotonic() - began) / 3
    for _ in range(20 * hits):
        there = (run / "run.json").exists()
        if not there:
            shutil.rmtree(run, ignore_errors=True)
        words = ("--resume", run) if there else (file, "--run", run)
        code, said = killed_after(chance.uniform(0, reach), "train", *words, "-q")
        assert code in (-signal.SIGKILL, 0), said
        hit += there and code != 0
        if code == 0:
            run_files.assert_same_run(run, folder / "whole")
            shutil.rmtree(run)
        reach *= 0.8 if code == 0 else 1.0 if (run / "run.json").exists() else 1.25
        if hit >= hits and run.exists():
            break
    assert hit >= hits
    code, said = ended(warm_python.start("train", "--resume", run))
    assert code == 0, said
    run_files.assert_same_run(run, folder / "whole")


@pytest.mark.further(but=["small-fused"])
@pytest.mark.parametrize(("net", "engine"), [("small", "fused"), ("wcgan", "loop")])
def test_resume_is_exact_after_sigkill_at_random_moments(tmp_path: Path, net: str, engine: str) -> None:
    kill_at_random_moments(tmp_path, 4, seed=1, budget="40steps", net=net, engine=engine)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize(("net", "engine"), EACH)
def test_resume_is_exact_after_sigkill_at_many_random_moments(tmp_path: Path, net: str, engine: str, seed: int) -> None:
    kill_at_random_moments(tmp_path, 15, seed=seed, budget="150steps", net=net, engine=engine)


@pytest.mark.further
def test_resume_is_exact_after_the_command_is_interrupted_and_killed(tmp_path: Path) -> None:
    """`python -m ganherd` as a person or a scheduler runs it: SIGTERM, SIGKILL, SIGINT, other threads in the environment."""
    file, run = recipes.write_recipe(tmp_path, budget="200steps", record_every=5), tmp_path / "a run"
    module = [warm_python.python(), "-m", "ganherd", "train"]

    def stopped_by(number: int, *words: object, **environment: str) -> tuple[int, str]:
        """Signals the command as soon as it has written a further record."""
        had = (run / "metrics.jsonl").stat().st_size if run.exists() else 0
        child = subprocess.Popen(
            [*module, *map(str, words)], stderr=subprocess.PIPE, text=True, env=processes.environment(**environment)
        )
        end = time.monotonic() + 120
        # a resume cuts the records back first, and goes past them then
        while child.poll() is None and time.monotonic() < end:
            if run.exists() and (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > had + 500:
                child.send_signal(number)
                break
            time.sleep(0.01)
        return child.wait(120), child.communicate()[1]

    code, said = stopped_by(signal.SIGTERM, file, "--run", run)
    assert code == 75, said
    assert f"resume it with: ganherd train --resume '{run}'" in said.splitlines()[-1]
    assert "Traceback" not in said
    code, said = stopped_by(signal.SIGKILL, "--resume", run, OMP_NUM_THREADS="2")
    assert code == -signal.SIGKILL, said
    code, said = stopped_by(signal.SIGINT, "--resume", run, OMP_NUM_THREADS="2")
    assert code == 75, said
    code = tiny_runs.command("train", "--resume", run, "-q", "--json")
    assert code == 0
    tiny_runs.train(tmp_path / "whole", recipes.noise_recipe(tmp_path, "200steps", record_every=5))
    run_files.assert_same_run(run, tmp_path / "whole")
