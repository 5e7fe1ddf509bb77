"""Asynchronous GAP: ranks run ahead of a slow one up to the bound, and the recorded swaps replay the same run on any ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.recipe import recipe_file
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.strategies.gap.async_gap import NOT_TAKEN, AsyncGap
from ganherd.strategies.gap.gap import count_meetings
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.training.setup.assemble import assemble
from promises import narrow, test_ranks
from promises.test_resume import ask_to_stop

pytestmark = pytest.mark.usefixtures("brief")
HERE = Path(__file__).parent
STALENESS, SLOW, SWAPS = 2, 1, 9


def recipe(data: Path, **gap: Any) -> dict[str, Any]:
    """Six members that swap at every second step; ranks are together after every six swaps."""
    settings = {"sample_every": 0, "watch": {"every": 0}, "record_every": 2, "checkpoint_every": 6}
    swaps = {"every": "2steps", "exchange": "async", "staleness": STALENESS, "rejoin": 6, **gap}
    train = {"precision": "float64", "budget": f"{2 * SWAPS + 1}steps"}
    strategy = {"name": "gap", "gap": swaps}
    return narrow.recipe(data, {"train": train, "run": settings}, {"herd": {"members": 6}, "strategy": strategy})


def launch(engine: str, ranks: int, *jobs: dict[str, Any]) -> None:
    program = [str(HERE / "rank_swaps_apart.py"), "mpi" if engine == "mpi" else "torch", *map(json.dumps, jobs)]
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    words = [*test_ranks.words(engine, ranks), *program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def swaps(run: Path) -> list[dict[str, Any]]:
    return [dict(line) for line in RunFolder(run).events() if line["event"] == "swap"]


@pytest.fixture(
    scope="module",
    params=[("forked", 2), pytest.param(("mpi", 3), marks=[pytest.mark.mpi, pytest.mark.further])],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def runs(
    request: pytest.FixtureRequest, brief: None, plain_images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run whose second rank is slow, its replay on the same ranks, and runs in step."""
    (engine, ranks), folder = request.param, tmp_path_factory.mktemp("swaps")
    launch(
        engine,
        ranks,
        {"recipe": recipe(plain_images), "run": str(folder / "slow"), "slow": SLOW},
        {"recipe": recipe(plain_images, replay=str(folder / "slow")), "run": str(folder / "replay")},
        {"recipe": recipe(plain_images, staleness=0), "run": str(folder / "in step")},
    )
    return folder


def test_fast_ranks_take_older_nets_up_to_the_bound(runs: Path) -> None:
    members = RunFolder(runs / "slow").info.ranks.members
    home = {member: rank for rank, own in enumerate(members) for member in own}
    lines, older = swaps(runs / "slow"), 0
    assert [line["number"] for line in lines] == list(range(1, SWAPS + 1))
    assert [line["step"] for line in lines] == [2 * number for number in range(1, SWAPS + 1)]
    for line in lines:
        partner = dict(line["pairs"]) | {b: a for a, b in line["pairs"]}
        for member, version in enumerate(line["versions"]):
            behind = line["number"] - version
            assert 0 <= behind <= STALENESS
            if home[member] == home[partner[member]] or home[member] == SLOW:
                assert behind == 0  # what the slow rank wants has long arrived
            older += behind > 0
    assert older >= 3


def test_a_replay_on_the_same_ranks_is_the_same_run_bit_for_bit(runs: Path) -> None:
    assert swaps(runs / "replay") == swaps(runs / "slow")
    ours, theirs = (herd_of(RunFolder(runs / name)) for name in ("replay", "slow"))
    assert {"g.params", "d.params", "d.adam.m"} <= ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert mixture_bytes(runs / "replay") == mixture_bytes(runs / "slow")


def herd_of(run: RunFolder) -> dict[str, torch.Tensor]:
    """Return the members of the last checkpoint: nets, optimisers and settings."""
    nets = assemble(run.recipe, begins=False).herd.nets
    state = checkpoint.load(run_files.last_checkpoint(run.path), nets).state
    return {name: value for name, value in state.items() if name.startswith(("g.", "d.", "set."))}


def mixture_bytes(run: Path) -> dict[str, bytes]:
    files = sorted((run / "mixture").glob("*.safetensors"))
    assert files
    return {path.name: path.read_bytes() for path in files}


def test_a_replay_repairs_the_members_that_were_repaired(plain_images: Path, tmp_path: Path) -> None:
    """Members are checked only where the recorded ranks were together, and they are repaired there."""
    settings = recipe(plain_images)
    settings["run"] = {**settings["run"], "repair": {"policy": "reseed", "diverged": 1.39, "limit": 100}}
    again = {**settings, "strategy": recipe(plain_images, replay=str(tmp_path / "first"))["strategy"]}
    launch(
        "forked",
        2,
        *({"recipe": one, "run": str(tmp_path / name)} for name, one in (("first", settings), ("again", again))),
    )
    runs = [RunFolder(tmp_path / name) for name in ("first", "again")]
    repairs = [[(e["step"], e["member"]) for e in run.events() if e["event"] == "repair"] for run in runs]
    assert repairs[0] == repairs[1] and 0 < len(repairs[0]) < 24
    assert swaps(tmp_path / "again") == swaps(tmp_path / "first")
    ours, theirs = map(herd_of, runs)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.further
def test_a_replay_in_one_process_is_the_same_herd_also_after_a_stop(
    runs: Path, plain_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    again = recipe(plain_images, replay=str(runs / "slow"))
    tiny_runs.train(tmp_path / "one", again)
    assert swaps(tmp_path / "one") == swaps(runs / "slow")
    ours, theirs = herd_of(RunFolder(tmp_path / "one")), herd_of(RunFolder(runs / "slow"))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-9, atol=1e-9)
    members = len(RunFolder(runs / "slow").info.ranks.members[0])  # as many at once as on a rank: the same arithmetic
    tiny_runs.train(tmp_path / "chunks", {**again, "engine": {**again["engine"], "chunk": members}})
    for name, value in herd_of(RunFolder(tmp_path / "chunks")).items():
        assert torch.equal(value, theirs[name]), name
    assert mixture_bytes(tmp_path / "chunks") == mixture_bytes(runs / "slow")
    with monkeypatch.context() as patch:
        ask_to_stop(patch, 9)
        with pytest.raises(ganherd.Interrupted):
            tiny_runs.train(tmp_path / "stopped", again)
    tiny_runs.resume(tmp_path / "stopped")
    run_files.assert_same_run(tmp_path / "stopped", tmp_path / "one")


@pytest.mark.further
def test_no_staleness_is_the_synchronous_run(runs: Path, plain_images: Path, tmp_path: Path) -> None:
    settings = recipe(plain_images)
    settings["strategy"] = {"name": "gap", "gap": {"every": "2steps"}}
    tiny_runs.train(tmp_path / "sync", settings)
    for name, value in herd_of(RunFolder(tmp_path / "sync")).items():
        torch.testing.assert_close(herd_of(RunFolder(runs / "in step"))[name], value, rtol=1e-9, atol=1e-9)
    slow = herd_of(RunFolder(runs / "slow"))
    assert not torch.allclose(slow["d.params"], herd_of(RunFolder(tmp_path / "sync"))["d.params"])


def test_a_replay_needs_the_log_of_the_same_herd(runs: Path, plain_images: Path, tmp_path: Path) -> None:
    with pytest.raises(ganherd.UserError, match="is not the folder of a run"):
        tiny_runs.train(tmp_path / "none", recipe(plain_images, replay=str(tmp_path)))
    other = recipe(plain_images, replay=str(runs / "slow"))
    other["herd"] = {"members": 4}
    with pytest.raises(ganherd.UserError, match="has 6 members, and this herd has 4"):
        tiny_runs.train(tmp_path / "four", other)
    other["strategy"]["gap"]["replay"] = str(runs / "in step")  # its events have no versions, only pairs
    with pytest.raises(ganherd.UserError, match="has at least [56] members, and this herd has 4"):
        tiny_runs.train(tmp_path / "four in step", other)


def test_a_replay_needs_nets_as_old_as_the_recorded_ones(runs: Path, plain_images: Path, tmp_path: Path) -> None:
    first = next(line for line in swaps(runs / "slow") if min(line["versions"]) < line["number"])
    worst = first["number"] - min(first["versions"])
    sentence = (
        f"swap {first['number']} took nets that were {worst} swaps old; set strategy.gap.staleness to at least {worst}"
    )
    with pytest.raises(ganherd.UserError, match=sentence):
        tiny_runs.train(tmp_path / "run", recipe(plain_images, replay=str(runs / "slow"), staleness=0))


def test_nets_are_followed_through_older_versions() -> None:
    """At the second swap member 0 takes what member 1 had before the first, and member 1 what member 0 has: the same net."""
    swap = {"event": "swap", "what": "discriminators", "pairs": [[0, 1]]}
    events = [
        {**swap, "step": 10, "number": 1, "versions": [1, 1]},
        {**swap, "step": 20, "number": 2, "versions": [1, 2]},
        {**swap, "step": 30, "number": 3, "versions": [-1, -1]},
    ]
    np.testing.assert_array_equal(count_meetings(events, 2, 40), [[10, 30], [10, 30]])


def test_a_net_that_is_not_finite_is_not_taken(plain_images: Path) -> None:
    """Its partner keeps its own, and all others swap as without it."""
    after = []
    for sick in (None, 2):
        prepared = assemble(recipe_file.load(recipe(plain_images)))
        gap = AsyncGap(prepared.herd, prepared.recipe.strategy.gap, {"every": 2, "warmup": 0}, MemberRanks.of(prepared))
        gap.begin_unsynced(0, 12, True)
        before = prepared.herd.state["d.params"].clone()
        if sick is not None:
            prepared.herd.state["d.params"][sick, 0] = torch.nan
        list(gap.open(2))
        ((_, facts),) = gap.end_unsynced(12)
        after.append((prepared.herd.state["d.params"].clone(), facts, before))
    (healthy, facts, before), (other, told, _) = after
    partner = dict(facts["pairs"]) | {b: a for a, b in facts["pairs"]}
    assert all(torch.equal(healthy[m], before[partner[m]]) for m in range(6)) and facts["versions"] == [1] * 6
    assert torch.equal(other[partner[2]], before[partner[2]]) and told["versions"][partner[2]] == NOT_TAKEN
    assert all(torch.equal(other[m], healthy[m]) for m in range(6) if m != partner[2])
