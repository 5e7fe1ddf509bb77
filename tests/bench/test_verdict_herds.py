"""The benchmark of verdicts trains and judges its herds in tasks that processes can share."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import verdict_data
import verdict_training
import verdicts
from verdict_herds import RIGHT

pytestmark = pytest.mark.further


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> verdicts.Task:
    """Return a task on points, with trainings of four steps and two healthy herds."""
    short = replace(verdict_training.SETTINGS["blobs"], steps=4, early=(2, 3))
    monkeypatch.setitem(verdict_training.SETTINGS, "blobs", short)
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    return verdicts.Task("blobs", tmp_path, seed=0, scale=0.1)


def test_a_task_survives_its_way_to_another_process_and_trains_once(task: verdicts.Task) -> None:
    trainings = verdict_training.Trainings("blobs", task.folder / "blobs-0", 0, 0.1)
    early = [training for training in trainings.all() if training.kind == "undertrained"]
    for training in early:
        rows, _ = pickle.loads(pickle.dumps(replace(task, training=training))).run()
        assert rows == [] and (trainings.folder / training.name / "mixture").is_dir()
    rows, seconds = replace(task, kind="undertrained").run()
    assert [(row["how"], row["seed"]) for row in rows] == [("trained", seed) for seed in (20, 21, 22, 23)]
    assert (
        [row["verdict"] for row in rows] == ["undertrained"] * 4 and all(row["right"] for row in rows) and seconds > 0
    )


@pytest.mark.parametrize("name", list(verdict_data.DATA))
def test_no_two_trainings_share_a_folder_or_a_seed(name: str, tmp_path: Path) -> None:
    trainings = verdict_training.Trainings(name, tmp_path, 1000).all()
    assert len({training.name for training in trainings}) == len(trainings)
    seeds = Counter(training.seed + r for training in trainings for r in range(training.seeds))
    assert max(seeds.values()) == 1


def test_the_table_has_200_herds_and_half_of_the_broken_ones_are_trained(tmp_path: Path) -> None:
    """Faked herds of a data set: two of each of six kinds, two more mean images, two with one bad member."""
    healthy = trained = faked = 0
    for name, setting in verdict_training.SETTINGS.items():
        listed = verdict_training.Trainings(name, tmp_path / name, 1000).all()
        counts = Counter({kind: 0 for kind in RIGHT})
        for training in listed:
            counts[training.kind] += training.seeds
        healthy += counts.pop("healthy")
        trained += counts.total() + 2  # and two herds with one trained bad member
        faked += 2 * 6 + 2 + 2 + (0 if setting.few else 2)
    assert healthy >= 50 and healthy + trained + faked >= 200 and trained >= faked


def test_rows_come_in_the_same_order_whichever_task_is_finished_first() -> None:
    rows = [{"data": data, "kind": kind, "n": n} for data in verdict_data.DATA for kind in RIGHT for n in range(2)]
    kinds = [rows[i : i + 2] for i in range(0, len(rows), 2)]
    mixed = [row for i in np.random.default_rng(0).permutation(len(kinds)) for row in kinds[i]]
    assert verdicts.ordered(mixed) == rows
