"""TensorBoard and W&B get what metrics.jsonl says, scores of the looks included; extras that are missing are missed first."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs

from ganherd.training import loop
from ganherd.training.health.monitor import SCORES
from ganherd.training.recording import trackers

Curves = dict[str, dict[int, float]]  # by name, then by step


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def trained(tmp_path: Path, **settings: Any) -> tuple[Path, Curves]:
    """Train a small run that looks at other steps than it records, and return the curves of its records."""
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "12steps", **settings))
    wanted = recorded(tmp_path / "run")
    assert {f"{name}/2" for name in ("loss_g", "real", "spread", "tells", "differs")} <= set(wanted)
    assert list(wanted["spread/0"]) == [4, 8, 12] and list(wanted["loss_d/0"]) == [3, 6, 9, 12]
    return tmp_path / "run", wanted


def recorded(run: Path) -> Curves:
    wanted: Curves = {}
    for line in run_files.json_lines(run / "metrics.jsonl"):
        wanted.setdefault("rate", {})[line["step"]] = line["rate"]
        for name, values in line.items():
            for m, value in enumerate(values if isinstance(values, list) else []):
                if name not in SCORES or not math.isnan(float(value)):
                    step = line["looked"] if name in SCORES else line["step"]
                    wanted.setdefault(f"{name}/{m}", {})[step] = float(value)
    return wanted


def same(result: Curves, wanted: Curves) -> None:
    assert set(result) == set(wanted)
    for name, curve in wanted.items():
        assert result[name] == pytest.approx(curve, rel=1e-6), name


def test_tensorboard_has_every_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run, wanted = trained(tmp_path, tensorboard=True)
    same(tensorboard_curves(run), wanted)


@pytest.mark.parametrize("killed_at", [2, 8, 11])
def test_a_resume_leaves_no_point_twice_in_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    pytest.importorskip("tensorboard")
    settings = recipes.noise_recipe(tmp_path, "12steps", tensorboard=True)
    tick = loop.Trainer.tick

    def dying(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == killed_at:
            raise processes.Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", dying)
        with pytest.raises(processes.Killed):
            tiny_runs.train(tmp_path / "run", settings)
    tiny_runs.resume(tmp_path / "run", "14steps")
    same(tensorboard_curves(tmp_path / "run"), recorded(tmp_path / "run"))


def tensorboard_curves(run: Path) -> Curves:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    points = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(len(dict(each)) == len(each) for each in points.values())
    return {tag: dict(each) for tag, each in points.items()}


def test_wandb_has_every_curve_and_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run, wanted = trained(tmp_path, wandb="offline")
    wandb.teardown()  # as the end of the process does: its own process has written everything
    [file] = (run / "wandb").glob("offline-run-*/run-*.wandb")
    same(wandb_curves(file), wanted)


def wandb_curves(path: Path) -> Curves:
    """What W&B would send, from its own file."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    result: Curves = {}
    for raw in wandb_records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(raw)
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                result.setdefault(name, {})[items["_step"]] = value
    return result


def wandb_records(raw: bytes) -> Iterator[bytes]:
    """The records of its file: a log of LevelDB after a header of 7 bytes, in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(raw):
        if (left := 32768 - at % 32768) < 7:  # no record begins here
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        whole += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_a_score_that_is_not_known_has_no_point_and_a_loss_that_is_nan_has_one() -> None:
    written: list[tuple[int, dict[str, float]]] = []
    tracking = trackers.Trackers.__new__(trackers.Trackers)
    tracking._writers = [lambda step, values: written.append((step, values))]
    losses = {"loss_g": [math.nan, 1.0], "loss_d": None}
    tracking.record({"step": 6, "rate": 9.5, **losses, "looked": 4, "spread": [0.5, math.nan], "tells": [1.0, 0.5]})
    tracking.record({"step": 9, "rate": 9.0, **losses})
    (at, seen), (step, values), (last, _) = written
    assert (at, step, last) == (4, 6, 9)
    assert seen == {"spread/0": 0.5, "tells/0": 1.0, "tells/1": 0.5}
    assert math.isnan(values["loss_g/0"]) and (values["loss_g/1"], values["rate"]) == (1.0, 9.5)


def test_a_run_without_trackers_writes_for_none(tmp_path: Path) -> None:
    run, _ = trained(tmp_path)
    assert not (run / "tensorboard").exists() and not (run / "wandb").exists()


@pytest.mark.parametrize(
    ("setting", "extra"), [("run.tensorboard=true", "ganherd[tensorboard]"), ("run.wandb=offline", "ganherd[wandb]")]
)
def test_an_extra_that_is_not_installed_is_missed_before_anything_is_made(
    tmp_path: Path, setting: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    file = recipes.write_recipe(tmp_path, budget="3steps")
    assert tiny_runs.command("train", file, "--run", tmp_path / "run", "--set", setting) == 2
    output = capsys.readouterr().err
    assert len(output.splitlines()) == 1 and extra in output
    assert not (tmp_path / "run").exists()
