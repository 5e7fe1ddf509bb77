"""A run that cannot fit is refused before its first step; one that runs out later keeps its last checkpoint and says so."""

from __future__ import annotations

import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import recipes
import run_files
import tiny_runs
import torch

from ganherd.features import cache
from ganherd.herd import streamed_batch_feed
from ganherd.herd.engine import autotune, engine_trials, engines
from ganherd.recipe import recipe_file
from ganherd.recipe.sections.train_config import EngineConfig
from ganherd.runs.folder import RunFolder
from ganherd.training import loop
from ganherd.training.setup import disk
from ganherd.training.setup.assemble import assemble
from ganherd.util import memory
from ganherd.util.errors import UserError
from ganherd.util.files import write_cache

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def with_free(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**50, 0, int(free)))


def need_of(folder: Path, **settings: Any) -> disk.DiskNeed:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(folder, **settings)))
    return disk.disk_need(assembly, 30)


# -- the disk -----------------------------------------------------------------------------------------------------------


def test_the_estimate_covers_what_a_run_writes(tmp_path: Path) -> None:
    need = need_of(tmp_path)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path))
    (checkpoint,) = run_files.last_checkpoint(tmp_path / "run").glob("*.safetensors")
    assert 0.9 * checkpoint.stat().st_size < need.checkpoint < 1.1 * checkpoint.stat().st_size
    written = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert need.least < 1.5 * written and need.total > 0.7 * written
    assert need.kept == 4 and need.most == 6  # 6 are written, 3 are kept


@pytest.mark.further("ring8")
@pytest.mark.parametrize("source", ["images", "ring8"])
def test_the_estimate_of_sprites_is_that_of_the_planned_sheets(tmp_path: Path, source: str) -> None:
    settings = recipes.noise_recipe(tmp_path)
    if source == "ring8":
        settings = recipes.tiny_recipe(
            "ring8",
            data={"partition": "all"},
            herd={"members": 3},
            train={"budget": "30steps"},
            run={"sprites": None},
        )
        settings["nets"] = {"latent": 4, "generator": {"name": "toy"}, "discriminator": {"name": "toy"}}
    recipe = recipe_file.load(settings)
    without = recipe_file.load(settings, ["run.sprites=0"])
    estimate = disk.disk_need(assemble(recipe), 30).other - disk.disk_need(assemble(without), 30).other
    tiny_runs.train(tmp_path / "run", settings)
    sheets = [file.stat().st_size for file in (tmp_path / "run" / "sprites").glob("step-*")]
    assert 0.2 * estimate < sum(sheets) < 1.2 * estimate


def test_fewer_checkpoints_need_less(tmp_path: Path) -> None:
    assert need_of(tmp_path, keep=1).total < need_of(tmp_path).total
    never = need_of(tmp_path, checkpoint_every=0)
    assert never.kept == never.most == 2  # before the first step, and after the last


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = recipes.write_recipe(tmp_path), tmp_path / "run"
    with_free(monkeypatch, need_of(tmp_path).least - 1)
    assert tiny_runs.command("train", recipe, "--run", run, "-q") == 2
    (output,) = capsys.readouterr().err.splitlines()
    assert output.startswith(f"ganherd: the disk of {run} has ") and "4 checkpoints of" in output
    assert "Lower run.keep, train fewer members, or choose a folder on another disk with --run." in output
    assert not run.exists()


def test_a_disk_that_is_nearly_full_gets_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = recipes.write_recipe(tmp_path), tmp_path / "run"
    with_free(monkeypatch, need_of(tmp_path).total)
    assert tiny_runs.command("train", recipe, "--run", run) == 0
    output = capsys.readouterr().err
    assert f"note: the disk of {run} is nearly full" in output


def test_checkpoints_of_a_resumed_run_count_as_its_own_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    tiny_runs.train(run, recipes.noise_recipe(tmp_path, "20steps"))
    need = need_of(tmp_path)
    with_free(monkeypatch, need.checkpoint + need.mixture + 1)
    tiny_runs.resume(run, "30steps")
    with_free(monkeypatch, 0)
    with pytest.raises(UserError, match="which needs at least"):
        tiny_runs.resume(run, "40steps")
    assert RunFolder(run).info.state == "finished" and run_files.steps(run)[-1] == 30


def test_a_dry_run_tells_the_disk_that_a_run_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_runs.command("train", recipes.write_recipe(tmp_path), "--dry-run") == 0
    output = capsys.readouterr().out
    assert "disk          up to " in output and "6 checkpoints of" in output


# -- memory -------------------------------------------------------------------------------------------------------------

OUT = {
    "a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …"),
    "the host, for PyTorch": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"
    ),
    "the host, for numpy": MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)"),
}


@pytest.mark.parametrize("what", OUT)
def test_memory_that_runs_out_while_training_is_75_and_the_resume_is_exact(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run, tick = recipes.write_recipe(tmp_path, budget="12steps"), tmp_path / "run", loop.Trainer.tick

    def out(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 9:
            raise OUT[what]

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", out)
        assert tiny_runs.command("train", recipe, "--run", run, "-q") == 75
    (output,) = capsys.readouterr().err.splitlines()
    assert output.startswith("ganherd: memory ran out") and "the last checkpoint is whole" in output
    assert "a smaller train.batch" in output and output.endswith(f"resume it with: ganherd train --resume {run}")
    assert RunFolder(run).info.state == "interrupted" and run_files.steps(run)[-1] == 7
    tiny_runs.resume(run)
    tiny_runs.train(tmp_path / "whole", recipes.noise_recipe(tmp_path, "12steps"))
    run_files.assert_same_run(run, tmp_path / "whole")


def test_memory_that_runs_out_before_anything_is_saved_does_not_ask_a_scheduler_to_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a job that is requeued on 75 would do the same for ever."""
    recipe, run, tick = recipes.write_recipe(tmp_path, budget="24steps"), tmp_path / "run", loop.Trainer.tick
    ends_at = 3

    def out(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == ends_at:
            raise OUT["a GPU"]

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", out)
        assert tiny_runs.command("train", recipe, "--run", run, "-q") == 1
        (output,) = capsys.readouterr().err.splitlines()
        assert output.startswith("ganherd: memory ran out") and "free memory or use more ranks" in output
        assert output.endswith(f"resume it with: ganherd train --resume {run}")
        assert RunFolder(run).info.state == "interrupted" and run_files.steps(run) == [0]
        ends_at = 17
        assert tiny_runs.command("train", "--resume", run, "-q") == 75  # it came further
        ends_at = 16
        assert tiny_runs.command("train", "--resume", run, "-q") == 1
    tiny_runs.resume(run)
    assert RunFolder(run).info.state == "finished"


@pytest.mark.parametrize("what", OUT)
def test_a_member_that_does_not_fit_is_refused_before_anything_is_written(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __call__(self, *_: Any, **__: Any) -> None:
            raise OUT[what]

    monkeypatch.setattr(engine_trials, "Step", Full)
    assert tiny_runs.command("train", recipes.write_recipe(tmp_path), "--run", tmp_path / "run", "-q") == 2
    (output,) = capsys.readouterr().err.splitlines()
    assert "one member does not fit into the memory of cpu" in output and "Lower train.batch" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("chunk", [None, 2])
def test_a_member_of_a_net_that_cannot_be_fused_is_refused_before_anything_is_written_if_it_does_not_fit(
    chunk: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OneByOne:
        def __init__(self, g: Any, d: Any, rules: Any, fused: bool, *_: Any) -> None:
            self._error = RuntimeError("data-dependent control flow") if fused else OUT["a GPU"]

        def __call__(self, *_: Any, **__: Any) -> None:
            raise self._error

    monkeypatch.setattr(engine_trials, "Step", OneByOne)
    recipe = recipes.write_recipe(tmp_path)
    sets = ["--set", f"engine.chunk={chunk}"] if chunk else []
    assert tiny_runs.command("train", recipe, "--run", tmp_path / "run", "-q", "--set", "engine.name=auto", *sets) == 2
    (output,) = capsys.readouterr().err.splitlines()
    assert "one member does not fit into the memory of cpu" in output and "Lower train.batch" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["fused", "auto"])
def test_a_chunk_of_the_recipe_that_does_not_fit_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two members fit on the device, the three of the chunk do not."""
    advance = engines.Engine.advance

    def limited(self: engines.Engine, *given: Any) -> Any:
        if self.plan.chunk > 2:
            raise OUT["a GPU"]
        return advance(self, *given)

    monkeypatch.setattr(engines.Engine, "advance", limited)
    recipe = recipes.write_recipe(tmp_path, budget="3steps")
    train = ["train", recipe, "--run", tmp_path / "run", "-q", "--set", f"engine.name={name}", "--set"]
    assert tiny_runs.command(*train, "engine.chunk=3") == 2
    (output,) = capsys.readouterr().err.splitlines()
    assert "engine.chunk 3 does not fit into the memory of cpu" in output and "leave it out" in output
    assert not (tmp_path / "run").exists()
    assert tiny_runs.command(*train, "engine.chunk=2") == 0


def test_members_train_one_by_one_if_measuring_their_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out(*_: Any) -> int:
        raise OUT["a GPU"]

    monkeypatch.setattr(autotune, "memory_per_member", out)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    assert RunFolder(tmp_path / "run").info.engine.chunk == 1


def test_a_herd_whose_state_exceeds_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda with_swap: 1000)
    assert tiny_runs.command("train", recipes.write_recipe(tmp_path), "--run", tmp_path / "run", "-q") == 2
    (output,) = capsys.readouterr().err.splitlines()
    assert "weights and optimiser state of 3 nets need" in output and "Train fewer members" in output
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_that_does_not_fit_says_what_can_still_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    words = ("train", "--resume", tmp_path / "run", "--budget", "6steps", "-q")
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_memory", lambda with_swap: 1000)
        assert tiny_runs.command(*words) == 2
    with monkeypatch.context() as patch:
        patch.setattr("ganherd.training.setup.preflight.set_precision", little_memory)
        assert tiny_runs.command(*words) == 2
    for output in capsys.readouterr().err.splitlines():
        assert "free memory, or resume it with more ranks" in output and "Train fewer members" not in output
    assert tiny_runs.command(*words) == 0


def little_memory(*_: Any) -> None:
    raise OUT["a GPU"]


def test_engines_and_data_keep_within_the_memory_of_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    herd = assemble(recipe_file.load(recipes.noise_recipe(tmp_path))).herd
    monkeypatch.setattr(memory, "group_limits", lambda: [1 << 20])
    assert autotune._limit(herd, EngineConfig()) == streamed_batch_feed._half_of_free(torch.device("cpu")) == 1 << 19


def test_memory_that_holds_a_cache_of_files_is_available_and_swap_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable: 32 kB\nSwapFree: 16 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", facts)
    assert (memory.available_memory(), memory.available_memory(with_swap=True)) == (32 << 10, 48 << 10)


def test_the_cache_of_engines_is_written_whatever_another_host_left_there(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.with_suffix(f".{os.getpid()}").mkdir()  # processes of two hosts may have the same number
    write_cache(path, {"herd": ["fused", 2, 1]})
    assert autotune._read(path) == {"herd": ["fused", 2, 1]}
    for damaged in ('{"herd": ["fused"', "[1]", ""):
        path.write_text(damaged)
        assert autotune._read(path) == {}


def test_what_is_cached_for_scores_can_be_read_by_all_users_of_the_cache(tmp_path: Path) -> None:
    path, before = tmp_path / "a.safetensors", os.umask(0o022)
    try:
        cache.write(path, "key", {"x": torch.ones(3)}, {})
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o644}
    cached = cache.read(path, "key")
    assert cached is not None and cached[0]["x"].tolist() == [1, 1, 1]


def test_other_errors_are_not_taken_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: loop.Trainer, step: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(loop.Trainer, "tick", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path))


def test_the_available_memory_is_within_that_of_the_machine() -> None:
    from ganherd.util.host import memory as all_memory

    assert 0 < memory.available_memory() <= 4 * all_memory()
