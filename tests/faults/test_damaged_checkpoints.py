"""A checkpoint that is not what was written: the one before is used, a sentence says so, and the run ends exactly."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.herd.state import Blueprint
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import loop


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """(a whole run of 28 steps, the same run as it stood when it was killed after its checkpoint of step 21)."""
    folder = tmp_path_factory.mktemp("runs")
    tick = loop.Trainer.tick

    def die(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 23:
            raise processes.Killed

    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        tiny_runs.train(folder / "whole", recipes.noise_recipe(folder, "28steps"))
        patch.setattr(loop.Trainer, "tick", die)
        with pytest.raises(processes.Killed):
            tiny_runs.train(folder / "killed", recipes.noise_recipe(folder, "28steps"))
    yield folder / "whole", folder / "killed"


def flip(path: Path, place: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped byte among the weights": lambda c: flip(next(c.glob("herd-*"))),
    "a flipped byte in the header": lambda c: flip(next(c.glob("herd-*")), 11),
    "a flipped byte in state.json": lambda c: flip(c / "state.json"),
    "truncated weights": lambda c: next(c.glob("herd-*")).write_bytes(next(c.glob("herd-*")).read_bytes()[:-100]),
    "an empty file": lambda c: next(c.glob("herd-*")).write_bytes(b""),
    "half of state.json": lambda c: (c / "state.json").write_bytes((c / "state.json").read_bytes()[:200]),
    "no weights": lambda c: next(c.glob("herd-*")).unlink(),
    "no state.json": lambda c: (c / "state.json").unlink(),
    "an empty folder": lambda c: [file.unlink() for file in c.iterdir()],
    "weights that are a folder": lambda c: (next(c.glob("herd-*")).unlink(), (c / "herd-000-002.safetensors").mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_is_used(
    tmp_path: Path, runs: tuple[Path, Path], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = runs
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    assert run_files.steps(run)[-2:] == [14, 21]
    DAMAGES[damage](run_files.last_checkpoint(run))
    assert tiny_runs.command("train", "--resume", run) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "the checkpoint before it is used" in line]
    assert len(said) == 1 and "step-00000021" in said[0]
    assert [line["step"] for line in run_files.json_lines(run / "events.jsonl") if line["event"] == "resume"] == [14]
    run_files.assert_same_run(run, whole)


def test_two_damaged_checkpoints_are_two_sentences(
    tmp_path: Path, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = runs
    shutil.copytree(killed, tmp_path / "run")
    for step in (14, 21):
        flip(tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "state.json")
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 0
    assert capsys.readouterr().err.count("the checkpoint before it is used") == 2
    run_files.assert_same_run(tmp_path / "run", whole)


def test_no_whole_checkpoint_is_one_sentence(
    tmp_path: Path, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs[1], tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        flip(file)
    before = run_files.snapshot(tmp_path / "run")
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "there is no whole checkpoint" in said and "Traceback" not in said
    assert run_files.snapshot(tmp_path / "run") == before


def test_a_half_written_checkpoint_is_not_seen(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    whole, killed = runs
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    half = run / "checkpoints" / ".step-00000023.new"
    half.mkdir()
    (half / "herd-000-002.safetensors").write_bytes(b"\0" * 100)
    assert run_files.steps(run)[-1] == 21
    tiny_runs.resume(run)
    run_files.assert_same_run(run, whole)
    assert not half.exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_records_that_lost_lines_are_written_again(
    tmp_path: Path, runs: tuple[Path, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint counts on the lines before it: without them an earlier one is used, so that none is missing."""
    whole, killed = runs
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    counted = checkpoint.read_meta(run_files.last_checkpoint(run)).bytes[name.removesuffix(".jsonl")]
    (run / name).write_bytes((run / name).read_bytes()[: counted - 1])
    assert tiny_runs.command("train", "--resume", run) == 0
    assert f"{name}, which has only" in capsys.readouterr().err
    run_files.assert_same_run(run, whole)


def test_half_a_line_at_the_end_of_the_records_is_cut_off(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    whole, killed = runs
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    for name in ("metrics.jsonl", "events.jsonl"):
        with (run / name).open("ab") as handle:
            handle.write(b'{"step": 24, "ep')
    assert RunFolder(run).metrics()[-1]["step"] == 21  # a reader leaves it out, too
    tiny_runs.resume(run)
    run_files.assert_same_run(run, whole)


def test_any_flipped_bit_is_found(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    """Or changes nothing, as one in a blank of state.json."""
    from ganherd.recipe import recipe_file
    from ganherd.training.setup.assemble import assemble

    assembly = assemble(recipe_file.load(runs[0] / "recipe.yaml"))
    blueprints: dict[str, Blueprint] = {"g": assembly.herd.g, "d": assembly.herd.d}
    folder = tmp_path / "step-00000021"
    shutil.copytree(run_files.last_checkpoint(runs[1]), folder)
    good = checkpoint.load(folder, blueprints)
    chance = random.Random(0)
    found = 0
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for place in chance.sample(range(len(content)), min(600, len(content))):
            file.write_bytes(
                content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]
            )
            try:
                read = checkpoint.load(folder, blueprints)
            except checkpoint.Damaged:
                found += 1
            else:
                assert file.name == "state.json" and read.meta == good.meta
        file.write_bytes(content)
    assert found > 900
    again = checkpoint.load(folder, blueprints)
    assert all(torch.equal(again.state[name], value) for name, value in good.state.items())


def test_a_member_is_repaired_from_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 16 and not self.state.repairs[1]:
            flip(self.folder.checkpoints / "step-00000014" / "state.json")
            self.herd.state["g.params"][1] = float("nan")

    monkeypatch.setattr(loop.Trainer, "tick", poison)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "20steps"))
    (repair,) = [line for line in run_files.json_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "repair"]
    assert (repair["member"], repair["step"], repair["from_step"]) == (1, 18, 7)


@pytest.mark.further
def test_a_repair_after_a_fall_back_is_the_same_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that a member is rolled back to is kept as long as one is that would roll back to it."""
    tick = loop.Trainer.tick

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 19 and not self.state.repairs[1]:
            self.herd.state["d.params"][1] = float("inf")

    def signalled(at: int, *signals: int) -> Callable[[loop.Trainer, int], None]:
        def act(self: loop.Trainer, step: int) -> None:
            poison(self, step)
            for number in signals if step == at else ():
                os.kill(os.getpid(), number)

        return act

    settings = recipes.noise_recipe(tmp_path, "28steps", keep=2)
    monkeypatch.setattr(loop.Trainer, "tick", poison)
    tiny_runs.train(tmp_path / "whole", settings)
    # Stopped politely at 16, on to the checkpoint of 21, stopped at once at 23: 14 is neither among the last two nor the last good.
    monkeypatch.setattr(loop.Trainer, "tick", signalled(16, signal.SIGTERM))
    with pytest.raises(ganherd.Interrupted):
        tiny_runs.train(tmp_path / "run", settings)
    monkeypatch.setattr(loop.Trainer, "tick", signalled(23, signal.SIGINT, signal.SIGINT))
    with pytest.raises(ganherd.Interrupted):
        tiny_runs.resume(tmp_path / "run")
    assert run_files.steps(tmp_path / "run")[-2:] == [16, 21]
    flip(tmp_path / "run" / "checkpoints" / "step-00000021" / "state.json")
    monkeypatch.setattr(loop.Trainer, "tick", poison)
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", tmp_path / "whole")
    (repair,) = [line for line in run_files.json_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "repair"]
    assert repair["from_step"] == 14
