"""Lost members catch up by themselves: they come to where the others stand as if they had never been away."""

from __future__ import annotations

from pathlib import Path

import pytest
import recipes
import run_files
import tiny_runs

from ganherd.herd.engine.engines import Plan
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.ranks.catch_up import catch_up
from ganherd.training.ranks.solo_recovery import LostMembers
from ganherd.training.setup.assemble import assemble


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lost", [[0], [1], [0, 2], [0, 1, 2]])
def test_members_catch_up_though_all_of_them_rest(
    lost: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They rest from different steps on, some before that of the checkpoint and some after it: the others' run is not over."""
    tiny_runs.skip_products(monkeypatch)
    settings = recipes.noise_recipe(tmp_path, "30steps", keep=9)
    settings["train"] |= {"precision": "float64", "stop": {"patience": 3, "metric": "gap", "least": 0.3}}
    tiny_runs.train(tmp_path / "run", settings)
    folder = RunFolder(tmp_path / "run")
    rests = {event["member"]: event["step"] for event in folder.events() if event["event"] == "converged"}
    last, before = run_files.steps(folder.path)[-1], run_files.steps(folder.path)[-2]
    assert min(rests.values()) < before < max(rests.values()), (rests, before)

    assembly = assemble(folder.recipe, begins=False)
    whole = checkpoint.load(run_files.last_checkpoint(folder.path), assembly.herd.nets)
    resumed = checkpoint.load(run_files.last_checkpoint(folder.path), assembly.herd.nets)
    for value in resumed.state.values():
        value[lost] = 0
    plan = Plan(**folder.info.engine.as_json())
    members = LostMembers(tuple(lost), before, "checkpoint", None, frozenset(lost))
    assert catch_up(assembly, plan, folder, None, members, resumed) == (last - before, [])
    for name, value in whole.state.items():
        if name.startswith(("g.", "d.", "set.")):
            assert (resumed.state[name].double() - value.double()).abs().max() < 1e-9, name
