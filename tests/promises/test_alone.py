"""If members never meet, only the members of a lost rank are recomputed; no step of any other member is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_runs

from comm.test_ulfm import need_ulfm
from ganherd.runs.folder import RunFolder
from promises.test_faults import launch, steps_made
from promises.test_ranks import assert_same_herd, recipe

pytestmark = [pytest.mark.usefixtures("brief"), pytest.mark.mpi]
EVERY = 4  # steps between copies


def made_of(data: Path, strategy: str = "independent", budget: str = "24steps") -> dict[str, Any]:
    """Five members; records every 5 steps, checkpoints every 6, looks every 3."""
    return recipe(data, strategy, budget, buddy_every=EVERY)


def check(folder: Path, name: str, alone: Path, most: int = EVERY) -> list[dict[str, Any]]:
    """Assert that the run equals the undisturbed one and only lost members repeated the reported steps; return the losses."""
    assert_same_herd(folder / name, alone)
    losses = [event for event in RunFolder(folder / name).events() if event["event"] == "lost"]
    told: Counter[int] = Counter()
    for loss in losses:
        assert loss["repeated"] <= most, losses
        told.update(dict.fromkeys(loss["members"], loss["repeated"]))
    for member, steps in steps_made(folder, name).items():
        assert steps.keys() == set(range(len(steps))), (member, steps)
        assert sum(steps.values()) - len(steps) <= told[member], (member, steps, losses)
    return losses


def test_only_members_of_the_lost_rank_are_recomputed(plain_images: Path, tmp_path: Path) -> None:
    """The first rank dies in the middle of a record, another one while a checkpoint is written, and the one that has its
    members then while these catch up: two runs of one job, with four ranks and with three, of which one is left."""
    need_ulfm()
    settings = made_of(plain_images, budget="20steps")
    runs: list[dict[str, Any]] = [
        {"name": "one", "recipe": settings, "dies": [[0, "record", 10]]},
        {"name": "two", "recipe": settings, "dies": [[1, "checkpoint", 18], [2, "catching up", 17]]},
    ]
    code, said = launch("ulfm", 4, tmp_path, runs)
    assert code == 0, said
    tiny_runs.train(tmp_path / "alone", settings)
    (loss,) = check(tmp_path, "one", tmp_path / "alone")
    facts = ("ranks", "members", "homes", "step", "repeated", "source", "alone")
    assert [loss[key] for key in facts] == [[0], [0, 1], [1, 1], 10, 2, "memory", True]
    losses = check(tmp_path, "two", tmp_path / "alone", 6)
    assert [loss["ranks"] for loss in losses] == [[1], [2]], (
        losses
    )  # who kept the copies died, too: the checkpoint of step 12
    assert all([loss["step"], loss["repeated"], loss["alone"]] == [18, 6, True] for loss in losses), losses


# -- every place at which a rank can die ------------------------------------------------------------------------------

CASES: list[tuple[int, list[Any]]] = [  # ranks; who dies, where and when
    (4, [[1, "looked", 9]]),
    (4, [[0, "recorded", 10]]),
    (3, [[1, "healed", 15]]),
    (3, [[0, "checkpoint done", 12]]),
    (3, [[2, "checkpoint done", 6]]),
    (4, [[2, "copies", 16]]),
    (4, [[0, "copies done", 16]]),
    (4, [[1, "heard", 9]]),
    (4, [[0, "heard it", 14]]),
    (2, [[0, "heard it", 1]]),
    (5, [[3, "heard", 13]]),  # where members rest, its one does since step 10
    (3, [[0, "mixture", 0]]),
    (6, [[4, "record", 15]]),  # a spare takes its member
    (6, [[4, "record", 15], [5, "caught up", 1]]),
    (5, [[1, "record", 10], [2, "record", 10]]),  # with the one that kept its copies
    (5, [[0, "record", 15], [1, "catching up", 1]]),
    (5, [[4, "record", 15], [3, "caught up", 1]]),
    (4, [[0, "record", 15], [1, "caught up", 1], [2, "record", 20]]),
    (4, [[1, "record", 10], [0, "going on", 1]]),  # while the others wait to hear from it that the loss is told
    (7, [[0, "copies", 8], [1, "copies", 12], [2, "copies done", 16], [3, "copies done", 20]]),
]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["independent", "rolled back", "resting"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_recovery_is_exact_wherever_ranks_die(case: int, strategy: str, plain_images: Path, tmp_path: Path) -> None:
    """Also if members are repaired, and if they rest: then all rest from step 15 on, where the run ends."""
    need_ulfm()
    ranks, dies = CASES[case]
    if strategy == "resting" and max(step for *_, step in dies) >= 15:
        pytest.skip("all members rest before that step")
    code, said = launch(
        "ulfm", ranks, tmp_path, [{"name": "run", "recipe": made_of(plain_images, strategy), "dies": dies}]
    )
    assert code == 0, said
    tiny_runs.train(tmp_path / "alone", made_of(plain_images, strategy))
    losses = check(tmp_path, "run", tmp_path / "alone", 6)  # a checkpoint's interval, where copies are gone
    assert sorted(rank for loss in losses for rank in loss["ranks"]) == sorted(rank for rank, *_ in dies), losses


@pytest.mark.long
def test_a_stop_with_repaired_members_is_repeated_after_a_loss(plain_images: Path, tmp_path: Path) -> None:
    """A repair happens once, even if another rank is lost after it and before all ranks know of it."""
    need_ulfm()
    settings = made_of(plain_images, "rolled back")
    tiny_runs.train(tmp_path / "alone", settings)
    repairs = {
        event["step"]: event["member"] for event in RunFolder(tmp_path / "alone").events() if event["event"] == "repair"
    }
    runs = []
    for step, member in repairs.items():
        victim = 1 if member < 3 else 0  # of two ranks, with three members and two: the other one
        runs.append({"name": f"at {step}", "recipe": settings, "dies": [[victim, "healed", step]]})
    for run in runs:
        code, said = launch("ulfm", 2, tmp_path, [run])
        assert code == 0, said
        check(tmp_path, run["name"], tmp_path / "alone")
