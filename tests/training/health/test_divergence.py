"""When a member counts as diverged, and what is recorded of it after a repair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ganherd
from ganherd.training import session

SETTINGS = ["loss.name=hinge", "train.budget=20steps", "run.scores=false", "run.watch.every=0", "run.sample_every=0",
            "nets.generator.width=8", "nets.discriminator.width=8", "engine={name: fused, threads: 1, chunk: null}"]  # fmt: skip


def trained(folder: Path, *settings: str) -> ganherd.Run:
    return ganherd.train("digits-wcgan", [*SETTINGS, *settings], run=folder, quiet=True, finishers=())


def losses(run: ganherd.Run) -> np.ndarray:
    """The recorded losses of the discriminators [records, members]."""
    table = run.metrics()
    values = [v for v, name, member in zip(table["value"], table["metric"], table["member"], strict=True)
              if name == "loss_d" and member >= 0]  # fmt: skip
    return np.array(values).reshape(-1, 10)


def kinds(run: ganherd.Run) -> set[str]:
    return {event["event"] for event in run.events()}


def test_a_repair_between_two_records_does_not_lower_the_recorded_losses(tmp_path: Path) -> None:
    """A hinge loss is about 2 at first; every member diverges at 1.5, and gets fresh weights at steps 9, 10, 18 and 20."""
    repaired = ["run.repair.diverged=1.5", "run.repair.policy=reseed", "run.repair.limit=100", "run.record_every=10"]
    run = trained(tmp_path / "a", *repaired, "run.checkpoint_every=9")
    assert "repair" in kinds(run) and (losses(run) > 1.8).all()
    halves = trained(tmp_path / "b", *repaired, "run.checkpoint_every=9", "train.budget=9steps")
    session.resume(halves.path, ["train.budget=20steps"], quiet=True)  # the checkpoint knows since when sums count
    assert np.array_equal(losses(ganherd.open(halves.path)), losses(run))


@pytest.mark.parametrize("setting", ["train.n_critic=4", "train.skip_d=3"])
def test_divergence_is_judged_by_the_mean_loss_of_an_update(tmp_path: Path, setting: str) -> None:
    run = trained(tmp_path / "a", setting, "run.record_every=4", "run.repair.diverged=3")
    assert "diverged" not in kinds(run) and (losses(run) < 3).all()
    low = trained(tmp_path / "b", setting, "run.record_every=4", "run.repair.diverged=1.2", "run.repair.policy=tell")
    assert "diverged" in kinds(low)
