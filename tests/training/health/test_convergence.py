"""Members that have converged rest: the others are as if nothing had happened, the device has less to do, a resume is exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch

from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.herd.engine.engines import Plan
from ganherd.herd.engine.subset import SubsetEngine
from ganherd.herd.step.step import Step
from ganherd.herd.streamed_batch_feed import StreamFeed
from ganherd.mixture import mixture
from ganherd.recipe import recipe_file
from ganherd.recipe.sections.train_config import StopConfig
from ganherd.training import loop
from ganherd.training.health.convergence import Convergence
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 1 has a metric that stands still, that of the others falls."""
    note = Convergence.note

    def made_up(self: Convergence, metric: str, values: torch.Tensor) -> None:
        if self.settings is not None and metric == self.settings.metric:
            seen = float(self.state["rest.before"].clamp(max=100.0)[0])
            values = torch.tensor([seen / 2, 1.0, seen / 2], dtype=torch.float64)
        note(self, metric, values)

    monkeypatch.setattr(Convergence, "note", made_up)


def recipe(folder: Path, **train: Any) -> dict[str, Any]:
    recipe_settings = recipes.noise_recipe(folder, engine=train.pop("engine", "fused"), net=train.pop("net", "small"))
    return {**recipe_settings, "train": {**recipe_settings["train"], "precision": "float64", **train}}


def member(run: Path, number: int, step: int) -> dict[str, torch.Tensor]:
    whole = run_files.tensors(run / "checkpoints" / f"step-{step:08d}")
    return {name: value[number] for name, value in whole.items() if "/rest." not in name}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[1] member-steps that the last run computed, without those of the comparison with plain PyTorch before it."""
    count, call, train = [0], Step.__call__, loop.Trainer.train

    def counted(self: Step, state: Any, batches: Any, base: Any, *rest: Any, **more: Any) -> None:
        count[0] += len(base)
        call(self, state, batches, base, *rest, **more)

    def from_zero(self: loop.Trainer, *rest: Any) -> None:
        count[0] = 0
        train(self, *rest)

    monkeypatch.setattr(Step, "__call__", counted)
    monkeypatch.setattr(loop.Trainer, "train", from_zero)
    return count


@pytest.mark.further(but=["small-fused"])
@pytest.mark.parametrize("engine", ["fused", "loop"])
@pytest.mark.parametrize("net", ["small", "wcgan"])
def test_the_others_are_as_if_nobody_rested(
    tmp_path: Path, early: None, work: list[int], engine: str, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float64: bit for bit one by one, to rounding where others are stacked; the one at rest keeps its weights; less is
    computed, and no more is reported."""
    monkeypatch.setattr("ganherd.training.recording.progress.Progress.rate", 10.0)  # steps of the run in a second
    settings = {"engine": engine, "net": net}
    tiny_runs.train(tmp_path / "whole", recipe(tmp_path, **settings))
    all_work = work[0]
    tiny_runs.train(tmp_path / "rest", recipe(tmp_path, **settings, stop={"patience": 6, "metric": "gap"}))
    (reported,) = [
        line for line in run_files.json_lines(tmp_path / "rest" / "events.jsonl") if line["event"] == "converged"
    ]
    assert (reported["step"], reported["member"], reported["before"], reported["now"]) == (12, 1, 1.0, 1.0)
    assert all_work - work[0] == 30 - 12
    for number in (0, 2):
        ours, theirs = (member(tmp_path / run, number, 30) for run in ("rest", "whole"))
        off = 0.0 if engine == "loop" else 1e-12
        assert [k for k in theirs if not torch.allclose(ours[k], theirs[k], off, off, equal_nan=True)] == []
    retained = [member(tmp_path / "rest", 1, step) for step in (14, 30)]
    nets = [name for name in retained[0] if "/watch." not in name]
    assert all(torch.equal(retained[0][name], retained[1][name]) for name in nets)
    last = run_files.json_lines(tmp_path / "rest" / "metrics.jsonl")[-1]
    assert last["loss_g"][1] == "nan" and isinstance(last["loss_g"][0], float)
    first = run_files.json_lines(tmp_path / "rest" / "metrics.jsonl")[0]
    assert (first["rate"], last["rate"]) == (30.0, 20.0)
    loaded = mixture.load(tmp_path / "rest")
    assert loaded.members == 3 and len(loaded.sample(4, label=1)) == 4


@pytest.mark.further
def test_a_resume_is_exact_with_members_at_rest(tmp_path: Path, early: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipe(tmp_path, stop={"patience": 6, "metric": "differs"})
    tiny_runs.train(tmp_path / "whole", settings)
    tick = loop.Trainer.tick
    for at in (10, 17):

        def dies(self: loop.Trainer, step: int, at: int = at) -> None:
            tick(self, step)
            if step == at:
                raise processes.Killed

        with monkeypatch.context() as patch:
            patch.setattr(loop.Trainer, "tick", dies)
            with pytest.raises(processes.Killed):
                tiny_runs.train(tmp_path / f"killed-{at}", settings)
        tiny_runs.resume(tmp_path / f"killed-{at}")
        run_files.assert_same_run(tmp_path / f"killed-{at}", tmp_path / "whole")


def test_a_run_ends_when_all_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = Convergence.note
    monkeypatch.setattr(Convergence, "note", lambda self, metric, values: note(self, metric, torch.ones_like(values)))
    tiny_runs.train(tmp_path / "run", recipe(tmp_path, stop={"patience": 6, "metric": "gap"}))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["state"], info["step"]) == ("finished", 12)
    before = run_files.tensors(run_files.last_checkpoint(tmp_path / "run"))
    tiny_runs.resume(tmp_path / "run")  # there is nothing left to train
    after = run_files.tensors(run_files.last_checkpoint(tmp_path / "run"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "resident"])
def test_some_members_are_fed_as_among_all(shared: bool, streamed: bool) -> None:
    x, y = np.arange(60, dtype=np.uint8).reshape(20, 1, 3, 1), np.arange(20)
    index = np.broadcast_to(y, (3, 20)) if shared else np.stack([np.roll(y, m) for m in range(3)])
    count = np.array([20, 20, 20] if shared else [20, 7, 11])
    plan = BatchPlan(index, count, 4, 0.0, 1.0, torch.float64)
    feed = StreamFeed(x, y, plan, torch.device("cpu")) if streamed else Feed(*map(torch.from_numpy, (x, y)), plan)
    part, base = feed.select([0, 2]), np.array([5, 6, 7])
    for batch in (0, 3, 9):
        whole, own = feed.batch_at(slice(0, 3), base, batch), part.batch_at(slice(0, 2), base[[0, 2]], batch)
        assert all(torch.equal(all_of[[0, 2]], few) for all_of, few in zip(whole, own, strict=True))
    feed.close()
    part.close()


@pytest.mark.parametrize("engine", ["fused", "loop"])
def test_a_part_of_nobody_does_nothing(tmp_path: Path, engine: str) -> None:
    """As on a rank where all rest, while others train elsewhere."""
    herd = assemble(recipe_file.load(recipe(tmp_path))).herd
    before = {name: value.clone() for name, value in herd.state.items()}
    part = SubsetEngine(herd, Plan(engine, 3, 1, "cpu"), [])
    assert part.advance(3, 9, herd.zero_sums()) == 9
    part.close()
    assert all(torch.equal(value, before[name]) for name, value in herd.state.items())


def test_windows_are_compared_one_by_one() -> None:
    rest = Convergence(StopConfig(patience=10, metric="gap", least=0.1), 3)
    well = torch.tensor([True, True, False])
    for step, values in ((5, [4.0, 4.0, 1.0]), (10, [2.0, 2.0, 1.0]), (15, [2.9, 2.0, 1.0]), (20, [2.9, 2.0, 1.0])):
        rest.note("gap", torch.tensor(values))
        rest.note("differs", torch.zeros(3))  # another metric
        result = rest.judge(step, well)
        assert [one.member for one in result] == ([0] if step == 20 else [])  # 3 -> 2.9; 3 -> 2; not well
    assert rest.trained_members == [1, 2] and rest.own_steps([30, 30, 30]) == [20, 30, 30]
    assert rest.last_step(100) == 100
    rest.note("gap", torch.tensor([9.0, torch.nan, torch.inf]))
    assert rest.state["rest.seen"].tolist()[1:] == [0, 0]
    rest.forget(0, 20)
    assert rest.trained_members is None


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"strategy": {"name": "gap"}, "data": {"partition": "all"}}, "with strategy.name they meet"),
        ({"strategy": {"share": {"generator": ["layers.0"], "every": "5steps"}}}, "with strategy.share they meet"),
        ({"run": {"watch": {"every": 0}}}, "run.watch.every is 0"),
    ],
)
def test_what_cannot_rest_is_said(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe_file.load({**sections, "train": {"stop": {"patience": "100steps"}}})
