"""Promises for shared layers: a meeting equals averaging the modules of separate GANs by hand, and resumes exactly."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch
from torch import Tensor

import ganherd
from ganherd.comm.backends.local import Local
from ganherd.comm.communicator import Placement
from ganherd.herd.engine.engines import Plan
from ganherd.herd.state import State, members_of
from ganherd.recipe import recipe_file
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.share import Share, columns
from ganherd.training import loop
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.util.errors import UserError
from promises import test_breeds
from promises.separate import SeparateGan
from promises.test_fused_equals_separate import herd_of
from promises.test_gap import LOOP, difference, gap, train

# by net: layers named whole, by a prefix and by one parameter alone, with layers that are not shared between
LAYERS = {
    "wcgan": {"generator": ["layers.0", "layers.5.weight"], "discriminator": ["layers.3"]},  # dropout, batch norm
    "residual": {"generator": ["first", "blocks.0"], "discriminator": ["body.first", "body.blocks"]},  # spectral norm
    "mlp": {"discriminator": ["layers"]},  # one net whole, nothing of the other
}


def herd(folder: Path, net: str = "wcgan", every: str = "3steps", **sections: Any) -> PreparedHerd:
    share = {"every": every, **LAYERS[net]}
    return herd_of(folder, net, train={"ema": 0.9}, strategy={"share": share}, **sections)


def average(alone: Iterable[SeparateGan], layers: dict[str, list[str]]) -> None:
    """By hand: the parameters of these modules, their running averages, and what Adam holds of them."""
    gans = list(alone)
    for role, kind in (("generator", "g"), ("discriminator", "d")):
        for name, _ in getattr(gans[0], kind).named_parameters():
            if any(f"{name}.".startswith(f"{layer}.") for layer in layers.get(role, [])):
                own = [getattr(gan, kind).get_parameter(name) for gan in gans]
                mean_of([p.data for p in own])
                for what in ("exp_avg", "exp_avg_sq"):
                    mean_of([getattr(gan, f"adam_{kind}").state[p][what] for gan, p in zip(gans, own, strict=True)])
                if kind == "g":
                    mean_of([gan.ema.get_parameter(name).data for gan in gans])


def mean_of(values: Sequence[Tensor]) -> None:
    mean = sum(values) / len(values)
    for value in values:
        value.copy_(mean)


@pytest.mark.further("residual")
@pytest.mark.parametrize("net", LAYERS)
def test_sharing_equals_averaging_separate_modules(tmp_path: Path, net: str) -> None:
    assembly = herd(tmp_path, net)
    alone = [SeparateGan(assembly, member) for member in range(3)]
    events = train(assembly, 11)
    assert events == [{"step": step, "number": step // 3} for step in (3, 6, 9)]
    for start, stop in [(0, 3), (3, 6), (6, 9), (9, 11)]:
        if start:
            average(alone, LAYERS[net])
        for gan in alone:
            gan.train(stop - start, start)
    assert difference(assembly, alone) < 1e-9


def test_only_the_named_layers_are_shared_and_storage_stays_the_same(tmp_path: Path) -> None:
    assembly = herd(tmp_path)
    train(assembly, 2)
    state = assembly.herd.state
    places = {name: value.data_ptr() for name, value in state.items()}
    before = {name: value.clone() for name, value in state.items()}
    strategy = make_strategy(assembly, {"every": 3})
    assert list(strategy.open(3)) == [("share", {"number": 1})]
    assert {name: value.data_ptr() for name, value in state.items()} == places
    shared = {}
    for kind, role in (("g", "generator"), ("d", "discriminator")):
        mask = torch.zeros(state[f"{kind}.params"].shape[1], dtype=torch.bool)
        for where in columns(getattr(assembly.herd, kind), LAYERS["wcgan"][role]):
            mask[where] = True
        assert 0 < mask.sum() < len(mask)
        shared |= {f"{kind}.{what}": mask for what in ("params", "adam.m", "adam.v", "ema")}
    for name, value in state.items():
        if name in shared:
            met = value[:, shared[name]]
            assert torch.equal(met[0], met[1]) and torch.equal(met[0], met[2])
            assert gap(met[0], before[name][:, shared[name]].mean(0)) < 1e-15
            assert torch.equal(value[:, ~shared[name]], before[name][:, ~shared[name]])
        else:
            assert torch.equal(value, before[name]), name
    assert list(strategy.open(4)) == []  # nothing between meetings


@pytest.mark.further
@pytest.mark.parametrize("plan", [LOOP, Plan("fused", 2, 1, "cpu")], ids=["loop", "chunks"])
def test_every_engine_shares_the_same(tmp_path: Path, plan: Plan) -> None:
    one, other = herd(tmp_path), herd(tmp_path)
    assert train(one, 8) == train(other, 8, plan)
    assert max(gap(one.herd.state[k], v) for k, v in other.herd.state.items()) < 1e-9


def test_replicas_share_as_the_runs_with_their_seeds(tmp_path: Path) -> None:
    stacked = herd(tmp_path, "mlp", herd={"seeds": 2}, run={"seed": 5})
    train(stacked, 8)
    for replica in range(2):
        single = herd(tmp_path, "mlp", run={"seed": 5 + replica})
        train(single, 8)
        for name in ("g.params", "d.params", "d.adam.v"):
            rows = stacked.herd.state[name][3 * replica : 3 * replica + 3]
            assert (rows - single.herd.state[name]).abs().max() < 1e-9


def test_breeds_share_a_discriminator_all_and_a_generator_each_among_themselves(tmp_path: Path) -> None:
    share = {"generator": ["layers.0"], "discriminator": ["layers.0"], "every": "2steps"}
    assembly = test_breeds.assemble(test_breeds.recipe_of(tmp_path, strategy={"share": share}))
    list(make_strategy(assembly, {"every": 2}).open(2))
    state, breeds = assembly.herd.state, assembly.herd.breeds
    (where,) = columns(assembly.herd.d, ["layers.0"])
    assert torch.equal(state["d.params"][:, where], state["d.params"][:1, where].expand(5, -1))
    for breed in breeds.all:
        (where,) = columns(breed.g, ["layers.0"])
        own = state["g.params"][breed.slots.start : breed.slots.stop]
        assert torch.equal(own[:, where], own[:1, where].expand(len(own), -1))
        assert len(own) == 1 or not torch.equal(own[0, where.stop :], own[1, where.stop :])
    assert not torch.equal(state["g.params"][0], state["g.params"][2])


class Piece(Local):
    """One of several ranks, which finds the others' members in a whole herd."""

    def __init__(self, rank: int, whole: State) -> None:
        self.rank, self.whole = rank, whole

    def fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> State:
        (name,) = state
        (offset,) = {value.storage_offset() for value in state.values()}
        first, width = offset % self.whole[name].shape[1], state[name].shape[1]
        return {name: self.whole[name][list(wanted[self.rank])][:, first : first + width]}

    def all_gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        everyone = np.ones(placement.num_members, values.dtype)
        everyone[list(placement.ranks[self.rank])] = values
        return everyone


def test_ranks_do_not_matter(tmp_path: Path) -> None:
    """Six members of two replicas on three ranks: one with members of both, one with a single one."""
    one, settings = herd(tmp_path, herd={"seeds": 2}), herd(tmp_path).recipe.strategy.share
    train(one, 2)
    whole = {name: value.clone() for name, value in one.herd.state.items()}
    list(make_strategy(one, {"every": 3}).open(3))
    placement = Placement(((0, 1), (2, 3, 5), (4,)))
    for rank, own in enumerate(placement.ranks):
        part = herd(tmp_path, herd={"seeds": 2}).herd
        part.state = {name: value.clone() for name, value in members_of(whole, list(own)).items()}
        comm = Piece(rank, whole)
        list(Share(part, settings, {"every": 3}, MemberRanks(comm, placement, 3)).open(3))
        assert all(torch.equal(value, one.herd.state[name][list(own)]) for name, value in part.state.items())


def test_a_non_finite_member_is_left_out_of_sharing(tmp_path: Path) -> None:
    assembly, others = herd(tmp_path), herd(tmp_path)
    assembly.herd.state["d.adam.v"][1, 0] = torch.nan
    alone = [SeparateGan(others, member) for member in (0, 2)]
    events = train(assembly, 8)
    assert [event["unwell"] for event in events] == [[1], [1]]
    for start, stop in [(0, 3), (3, 6), (6, 8)]:
        if start:
            average(alone, LAYERS["wcgan"])
        for gan in alone:
            gan.train(stop - start, start)
    state = assembly.herd.state
    for member, gan in zip((0, 2), alone, strict=True):
        assert max(gap(state[name][member], value) for name, value in gan.state().items()) < 1e-9


# -- resume -------------------------------------------------------------------------------------------------------------


def settings(folder: Path, budget: str) -> dict[str, Any]:
    """Three members by class, which meet between records (3) and checkpoints (7): at 4, 8, 12, …"""
    share = {"generator": ["layers.0"], "discriminator": ["layers.0"], "every": "4steps"}
    return {**recipes.noise_recipe(folder, budget), "strategy": {"share": share}}


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


@pytest.mark.further
@pytest.mark.usefixtures("brief")
def test_a_run_that_is_stopped_anywhere_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a meeting, before and after one; and killed, so that it resumes from an older checkpoint."""
    tiny_runs.train(tmp_path / "whole", settings(tmp_path, "18steps"))
    tick = loop.Trainer.tick

    def stopping(at: int, act: Callable[[], object]) -> None:
        def acting(self: loop.Trainer, step: int) -> None:
            tick(self, step)
            if step == at:
                act()

        monkeypatch.setattr(loop.Trainer, "tick", acting)

    def die() -> None:
        raise processes.Killed

    run = tmp_path / "run"
    for at, act in [(4, None), (7, die), (8, None), (13, die), (16, None), (17, die)]:
        stopping(at, act or (lambda: os.kill(os.getpid(), signal.SIGTERM)))
        with pytest.raises((ganherd.Interrupted, processes.Killed)):
            if run.exists():
                tiny_runs.resume(run)
            else:
                tiny_runs.train(run, settings(tmp_path, "18steps"))
    monkeypatch.setattr(loop.Trainer, "tick", tick)
    tiny_runs.resume(run)
    run_files.assert_same_run(run, tmp_path / "whole")
    met = [line["step"] for line in run_files.json_lines(run / "events.jsonl") if line["event"] == "share"]
    assert met == [4, 8, 12, 16]


@pytest.mark.usefixtures("brief")
def test_a_longer_budget_continues_with_the_meeting_that_was_due(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "whole", settings(tmp_path, "11steps"))
    tiny_runs.train(tmp_path / "halves", settings(tmp_path, "8steps"))  # ends where one is due
    tiny_runs.resume(tmp_path / "halves", "11steps")
    run_files.assert_same_run(tmp_path / "halves", tmp_path / "whole")


# -- mistakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        ({"generator": ["layer.0"]}, "strategy.share.generator names 'layer.0'.*did you mean 'layers.0'"),
        ({"discriminator": ["zzz"]}, "strategy.share.discriminator names 'zzz'.*it has layers.0, layers.2, layers.4"),
        ({"generator": ["layers.0.wieght"]}, "did you mean 'layers.0.weight'"),
    ],
)
def test_an_unknown_layer_is_refused_before_anything_is_written(
    tmp_path: Path, share: dict[str, Any], sentence: str
) -> None:
    recipe = {**recipes.noise_recipe(tmp_path), "strategy": {"share": share}}
    with pytest.raises(UserError, match=sentence):
        tiny_runs.train(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()


def test_sharing_needs_more_than_one_member(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this herd has one"):
        herd(tmp_path, data={"partition": "all"}, herd={"members": 1}, optim={"lr_g": 1e-3})


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ({"share": {"every": "5steps"}}, "strategy.share.every has no effect if no layers are shared"),
        ({"share": {"generator": ["layers"], "every": "0"}}, "strategy.share.every 0 means never"),
        ({"share": {"generator": "layers"}}, "must be a list of layers by their names"),
        (
            {"name": "cellular", "cellular": {"exchange": "async"}, "share": {"generator": ["layers"]}},
            "with strategy.cellular.exchange async ranks are not at the same step: leave one of them out",
        ),
        ({"share": {"layers": ["layers"]}}, "unknown key 'strategy.share.layers'"),
    ],
)
def test_contradictory_settings_are_refused(strategy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe_file.load({"data": {"partition": "all"}, "strategy": strategy})
