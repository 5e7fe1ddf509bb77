"""TensorBoard, W&B and MLflow get what metrics.jsonl holds, a resumed run included; packages that are missing are named first."""

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

import ganherd
from ganherd import UserError
from ganherd.runs.records import LOOK_SCORES
from ganherd.training import loop
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
                if name not in LOOK_SCORES or not math.isnan(float(value)):
                    step = line["looked"] if name in LOOK_SCORES else line["step"]
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
    killed_and_resumed(tmp_path, monkeypatch, killed_at, tensorboard=True)
    same(tensorboard_curves(tmp_path / "run"), recorded(tmp_path / "run"))


def tensorboard_curves(run: Path) -> Curves:
    return board_curves(run / "tensorboard")


def board_curves(folder: Path) -> Curves:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder))
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


def test_wandb_continues_a_resumed_run_and_writes_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    killed_and_resumed(tmp_path, monkeypatch, 11, wandb="offline")
    wandb.teardown()
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1  # one run of W&B, in two parts
    parts = [wandb_curves(file) for file in files]
    joined: Curves = {}
    for part in parts:
        for name, curve in part.items():
            assert not set(joined.get(name, {})) & set(curve), name
            joined.setdefault(name, {}).update(curve)
    compare_resumed(joined, recorded(tmp_path / "run"))


@pytest.mark.parametrize("killed_at", [2, 8, 11])
def test_mlflow_continues_a_resumed_run_and_writes_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    killed_and_resumed(tmp_path, monkeypatch, killed_at, mlflow=True)
    compare_resumed(mlflow_curves(tmp_path / "run" / "mlruns"), recorded(tmp_path / "run"))


def test_mlflow_has_every_curve_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run, wanted = trained(tmp_path, mlflow=True)
    same(mlflow_curves(run / "mlruns"), wanted)
    (only,) = mlflow_runs(run / "mlruns")
    assert only.info.status == "FINISHED" and only.info.run_name == "run"
    assert only.data.params["train.batch"] == "8" and only.data.params["nets.generator.name"] == "small"


def test_trackers_are_callbacks_with_settings_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    each = [ganherd.TensorBoard(tmp_path / "board"), ganherd.MLflow(tmp_path / "store", experiment="mine")]
    settings = recipes.noise_recipe(tmp_path, "6steps")
    run = ganherd.train(settings, run=tmp_path / "run", quiet=True, finishers=(), callbacks=each)
    run.resume("12steps", quiet=True, finishers=())
    wanted = recorded(run.path)
    same(board_curves(tmp_path / "board"), wanted)
    same(mlflow_curves(tmp_path / "store", "mine"), wanted)
    assert not (run.path / "tensorboard").exists() and not (run.path / "mlruns").exists()


def test_a_tracker_that_fails_is_named_and_the_run_stays_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")

    def fail(*_: object) -> None:
        raise OSError("no route to the server")

    with monkeypatch.context() as patch:
        patch.setattr(trackers.TensorBoard, "write", fail)
        with pytest.raises(
            UserError, match=r"the callback TensorBoard failed in on_record at step 3 \(OSError: no route"
        ):
            tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "12steps", tensorboard=True))
    tiny_runs.resume(tmp_path / "run")
    same(tensorboard_curves(tmp_path / "run"), recorded(tmp_path / "run"))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"mlflow": 3}', '{"mlflow": {"id": [], "step": "x"}}'])
def test_a_damaged_memory_of_trackers_is_no_memory(tmp_path: Path, content: str) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / trackers.MEMORY).write_text(content)
    tracker = trackers.MLflow()
    assert tracker.recall(tmp_path) == {}
    tracker.remember(tmp_path, id="a", step=4)
    assert tracker.recall(tmp_path) == {"id": "a", "step": 4}


def killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, **settings: Any) -> None:
    """Train to step 12, killed at a step, and resume it to step 14."""
    tick = loop.Trainer.tick

    def dying(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == at:
            raise processes.Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", dying)
        with pytest.raises(processes.Killed):
            tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "12steps", **settings))
    tiny_runs.resume(tmp_path / "run", "14steps")


def compare_resumed(result: Curves, wanted: Curves) -> None:
    """Compare all curves; a rate is wall-clock time, and that of a repeated step is the one of the first time."""
    assert set(result["rate"]) == set(wanted["rate"])
    same({k: v for k, v in result.items() if k != "rate"}, {k: v for k, v in wanted.items() if k != "rate"})


def mlflow_client(store: Path) -> Any:
    with trackers._file_store():
        client = pytest.importorskip("mlflow").MlflowClient(store.as_uri())
        client.search_experiments()
    return client


def mlflow_runs(store: Path, experiment: str = "ganherd") -> list[Any]:
    client = mlflow_client(store)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def mlflow_curves(store: Path, experiment: str = "ganherd") -> Curves:
    client = mlflow_client(store)
    (run,) = mlflow_runs(store, experiment)
    points = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert all(len(dict(each)) == len(each) for each in points.values())
    return {name: dict(each) for name, each in points.items()}


def test_a_run_without_trackers_writes_for_none(tmp_path: Path) -> None:
    run, _ = trained(tmp_path)
    assert not (run / "tensorboard").exists() and not (run / "wandb").exists() and not (run / "mlruns").exists()


@pytest.mark.parametrize(
    ("setting", "extra"),
    [
        ("run.tensorboard=true", "ganherd[tensorboard]"),
        ("run.wandb=offline", "ganherd[wandb]"),
        ("run.mlflow=true", "ganherd[mlflow]"),
    ],
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
