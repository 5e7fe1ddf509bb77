"""Promises for data-parallel training: it equals one GAN with the whole batch, on any number of ranks, and resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import tiny_runs
import torch
from further_tests import EACH_VALUE
from torch import Tensor

import ganherd
from ganherd.herd.rng import Streams
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from promises import narrow
from promises.separate import SeparateGan
from promises.test_fused_equals_separate import herd_of
from promises.test_gap import gap, train
from promises.test_ranks import assert_same_herd, launch
from promises.test_resume import ask_to_stop

ONE_GAN: dict[str, Any] = {
    "strategy": {"name": "data-parallel"},
    "engine": {"name": "fused"},
    "run": {"repair": {"policy": "stop"}},
}
WHOLE = {"data": {"partition": "all"}, "herd": {"members": 3}, "optim": {"lr_g": 2e-3}}


class AllStreams:
    """The draws of several members for one step, one batch after another [1, W · B, …]."""

    def __init__(self, each: list[Streams]) -> None:
        self.each = each

    def draw(self, *arguments: Any) -> Tensor:
        return torch.cat([one.draw(*arguments) for one in self.each], 1)

    def prior(self, *arguments: Any) -> Tensor:
        return torch.cat([one.prior(*arguments) for one in self.each], 1)

    def keys(self, *purpose: Any) -> Any:
        return self.each[0].keys(*purpose)


class WholeBatchGan(SeparateGan):
    """One GAN in plain PyTorch, which begins as the first of some members and sees the batches of all of them together."""

    def __init__(self, assembly: PreparedHerd, members: range) -> None:
        super().__init__(assembly, members.start)
        self.others = [SeparateGan(assembly, member) for member in members]

    def train(self, steps: int, first: int = 0) -> None:
        for step in range(first, first + steps):
            draws: Any = AllStreams([Streams(one.base, step) for one in self.others])
            for update in range(self.rules.n_critic):
                self._discriminator_update(draws, step, update)
            self._generator_update(draws, step)

    def _batch(self, number: int) -> Tensor:
        batches = [one._batch(number) for one in self.others]
        self.y = torch.cat([one.y for one in self.others])
        return torch.cat(batches)


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("loss", ["non-saturating", "wasserstein-gp", "hinge"])
@pytest.mark.parametrize("net", ["mlp", "residual"])
def test_it_equals_one_gan_with_the_whole_batch(tmp_path: Path, net: str, loss: str) -> None:
    nets = {
        "residual": {"generator": {"name": "mlp", "hidden": [6]}, "discriminator": {"name": "residual", "width": 2}}
    }
    more = {"nets": nets[net]} if net in nets else {}  # residual: spectral norm in the critic
    sections = {**WHOLE, **more, "loss": {"name": loss}, "train": {"ema": 0.9, "n_critic": 2}}
    assembly = herd_of(tmp_path, net, **ONE_GAN, **sections)
    whole = WholeBatchGan(assembly, range(3))
    train(assembly, 10)
    whole.train(10)
    state = assembly.herd.state
    for name, value in whole.state().items():
        assert max(gap(state[name][member], value) for member in range(3)) < 1e-9, name


def test_each_class_and_each_seed_is_a_gan_of_its_own(tmp_path: Path) -> None:
    sections = {"herd": {"per_class": 2, "seeds": 2}, "optim": {"lr_g": 2e-3}}
    assembly = herd_of(tmp_path, "mlp", **ONE_GAN, **sections)
    gans = [WholeBatchGan(assembly, range(first, first + 2)) for first in range(0, 12, 2)]
    assert train(assembly, 4)[0] == {"step": 0, "gans": 6, "members": 2}
    for number, gan in enumerate(gans):
        gan.train(4)
        for name, value in gan.state().items():
            assert gap(assembly.herd.state[name][2 * number + 1], value) < 1e-9, name


def test_batch_norm_uses_the_statistics_of_each_members_own_batch(tmp_path: Path) -> None:
    assembly = herd_of(tmp_path, "wcgan", **ONE_GAN, **WHOLE)
    train(assembly, 5)
    state = assembly.herd.state
    assert torch.equal(state["g.params"], state["g.params"][:1].expand(3, -1))
    statistics = [value for name, value in state.items() if name.startswith("g.buffers.") and "running_mean" in name]
    assert statistics and not any(torch.equal(value[0], value[1]) for value in statistics)


# -- runs -----------------------------------------------------------------------------------------------------------------


def recipe(data: Path, **herd: Any) -> dict[str, Any]:
    settings = {"train": {"precision": "float64", "budget": "11steps"}, "run": {"watch": {"every": 3}}}
    change = {**ONE_GAN, "run": {**settings["run"], **ONE_GAN["run"]}, "data": {"partition": "all", "diet": 1.0}}
    return narrow.recipe(data, settings, change, {"herd": herd or {"members": 5}})


@pytest.fixture(scope="module")
def whole(brief: None, plain_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process that is not stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    tiny_runs.train(run, recipe(plain_images))
    return run


@pytest.mark.further(but=["forked-2"])
@pytest.mark.parametrize(("engine", "ranks"), [("forked", 2), pytest.param("mpi", 3, marks=pytest.mark.mpi)])
def test_the_same_gan_on_any_number_of_ranks(
    engine: str, ranks: int, plain_images: Path, whole: Path, tmp_path: Path
) -> None:
    cases = {"one": recipe(plain_images), "two seeds": recipe(plain_images, members=3, seeds=2)}
    alone = {"one": whole, "two seeds": tmp_path / "two seeds alone"}
    tiny_runs.train(alone["two seeds"], cases["two seeds"])
    code, said = launch(engine, ranks, [["stop", settings, str(tmp_path / name)] for name, settings in cases.items()])
    assert code == 0, said
    code, said = launch(engine, ranks + 1, [["resume", [], str(tmp_path / name)] for name in cases])
    assert code == 0, said
    for name in cases:
        assert_same_herd(tmp_path / name, alone[name])


def test_a_stopped_run_resumes_exactly_and_its_mixture_is_the_first_member(
    plain_images: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        ask_to_stop(patch, 8)
        with pytest.raises(ganherd.Interrupted):
            tiny_runs.train(tmp_path / "run", recipe(plain_images))
    tiny_runs.resume(tmp_path / "run")
    run_files.assert_same_run(tmp_path / "run", whole)
    assert np.array_equal(ganherd.load(tmp_path / "run").weights, [1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"herd": {"members": 1}}, "data-parallel needs at least two members"),
        ({"engine": {"name": "loop"}}, "averages gradients of all members inside of a step: set engine.name to fused"),
        ({"run": {"repair": {"policy": "rollback"}}}, "run.repair.policy rollback changes a member"),
        ({"optim": {"lr_g": [1e-3] * 5}}, "optim.lr_g lists a value for each member"),
        ({"loss": {"r1_weight": [1.0] * 5}}, "loss.r1_weight lists a value for each member"),
        ({"train": {"input_noise": [0.1] * 5}}, "train.input_noise lists a value for each member"),
        ({"train": {"ema": [0.99] * 5}}, "train.ema lists a value for each member"),
        (
            {"nets": {"discriminator": {"name": "small", "dropout": [0.1] * 5}}},
            "nets.discriminator.dropout lists a value for each member",
        ),
    ],
)
def test_what_would_set_copies_apart_is_refused(plain_images: Path, change: dict[str, Any], sentence: str) -> None:
    settings = recipe(plain_images)
    for section, values in change.items():
        settings[section] = {**settings.get(section, {}), **values}
    with pytest.raises(UserError, match=sentence):
        recipe_file.load(settings)


def test_breeds_are_refused() -> None:
    breeds = [{"generator": name, "members": 1} for name in ("mlp", "small")]
    settings = {"data": {"source": "digits", "partition": "all"}, "nets": {"breeds": breeds}}
    with pytest.raises(UserError, match="data-parallel trains copies of one GAN: leave nets.breeds out"):
        recipe_file.load({**settings, **ONE_GAN})
