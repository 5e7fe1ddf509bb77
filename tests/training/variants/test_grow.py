"""Classes that are added to a trained run, and classes that are trained again: nothing changes for all others, to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import run_files
import tiny_runs
import torch
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.mixture import mixture
from ganherd.training import loop
from ganherd.training.variants.retrain import prepare
from ganherd.util.errors import UserError

NETS = {  # batch norm, so that its statistics are kept too
    "generator": {"name": "small", "width": 6, "batch_norm": True},
    "discriminator": {"name": "small", "width": 6},
    "latent": 4,
}


@pytest.fixture(autouse=True, scope="module")
def brief() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        yield
    torch.set_num_threads(1)


def recipe(data: Path, **sections: Any) -> dict[str, Any]:
    recipe_settings = tiny_recipe(data, nets=NETS, loss={"name": "hinge"}, **{"run": {"sprites": None}, **sections})
    recipe_settings["engine"] = {"name": "fused", "threads": 1, "device": "cpu"}
    recipe_settings["train"] = {**recipe_settings["train"], "budget": "6steps", "precision": "float64"}
    return recipe_settings


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two classes and two seeds, and data that has one more class, which comes before them."""
    folder = tmp_path_factory.mktemp("grow")
    tiny_data(folder / "two.npz", ("zero", "one"))
    tiny_data(folder / "three.npz", ("new", "zero", "one"))
    ganherd.train(recipe(folder / "two.npz", herd={"seeds": 2}), run=folder / "run", quiet=True)
    return folder


def member(run: Path, number: int, replica: int = 0) -> dict[str, torch.Tensor]:
    return mixture.load(run).generator(number, replica)[1]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def grown(there: Path, **herd: Any) -> dict[str, Any]:
    return recipe(there / "three.npz", herd={"seeds": 2, "grow_from": str(there / "run"), **herd})


def test_new_classes_join_a_trained_run(there: Path, tmp_path: Path) -> None:
    """The old ones are as they were, in the mixture too; the new one is as if it had been trained with the others."""
    ganherd.train(grown(there), run=tmp_path / "grown", quiet=True)
    ganherd.train(recipe(there / "three.npz", herd={"seeds": 2}), run=tmp_path / "whole", quiet=True)
    joined = mixture.load(tmp_path / "grown")
    assert joined.labels == ("new", "zero", "one") and joined.label_of.tolist() == [0, 1, 2]
    for replica in (0, 1):
        for old, new in ((0, 1), (1, 2)):
            assert same(member(there / "run", old, replica), member(tmp_path / "grown", new, replica))
        ours, theirs = (member(tmp_path / run, 0, replica) for run in ("grown", "whole"))
        assert all(torch.allclose(ours[k], theirs[k], rtol=0, atol=1e-12) for k in theirs)
    reported = [line for line in run_files.json_lines(tmp_path / "grown" / "events.jsonl") if line["event"] == "kept"]
    assert [line["member"] for line in reported] == [1, 2, 4, 5]
    origins = json.loads((tmp_path / "grown" / "run.json").read_text())["origins"]
    assert [one.get("kept", False) for one in origins] == [False, True, True] * 2
    # p(y) is that of the data
    assert np.bincount(joined.sample(600).member).argmax() == 0


def test_a_grown_run_is_resumed_without_the_other(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(there / "run", tmp_path / "old")
    settings = recipe(there / "three.npz", herd={"seeds": 2, "grow_from": str(tmp_path / "old")})
    ganherd.train(settings, run=tmp_path / "whole", quiet=True)
    tick = loop.Trainer.tick

    def dies(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 5:
            raise processes.Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", dies)
        with pytest.raises(processes.Killed):
            ganherd.train(settings, run=tmp_path / "killed", quiet=True)
    shutil.rmtree(tmp_path / "old")
    tiny_runs.resume(tmp_path / "killed")
    run_files.assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": "two.npz"}, "has every class of .* already"),
        ({"labels": ("new", "zero", "other")}, "has no class 'one'"),
        ({"herd": {"seeds": 3}}, "has 2 replicas and this herd 3"),
        ({"partition": "all"}, "set data.partition to by-class"),
    ],
)
def test_what_cannot_be_grown_is_said(there: Path, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    settings = grown(there, **change.get("herd", {}))
    if "source" in change:
        settings["data"]["source"] = str(there / change["source"])
    if "labels" in change:
        settings["data"]["source"] = str(tiny_data(tmp_path / "other.npz", change["labels"]))
    if "partition" in change:
        settings["data"]["partition"] = change["partition"]
    with pytest.raises(UserError, match=sentence):
        ganherd.train(settings, run=tmp_path / "run", quiet=True)


def test_a_class_is_trained_anew(there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In every replica, with a new life; the mixture has the others as they were."""
    run = tmp_path / "run"
    shutil.copytree(there / "run", run)
    assert tiny_runs.command("train", "--resume", run, "--retrain", "one", "--budget", "9steps") == 0
    words = "retraining for 9 steps: member 1 (one) of seed 0, member 1 (one) of seed 1; the others are paused\n"
    assert capsys.readouterr().err.startswith(words)
    for replica in (0, 1):
        assert same(member(there / "run", 0, replica), member(run, 0, replica))
        assert not same(member(there / "run", 1, replica), member(run, 1, replica))
    reported = [line for line in run_files.json_lines(run / "events.jsonl") if line["event"] == "retrain"]
    assert [(line["step"], line["member"], line["life"], line["until"]) for line in reported] == [
        (6, 1, 1, 15),
        (6, 3, 1, 15),
    ]
    last = run_files.tensors(run_files.last_checkpoint(run))
    assert run_files.steps(run)[-1] == 15
    count = {name.split("/")[1]: value.tolist() for name, value in last.items() if name.endswith(".adam.t")}
    assert count["g.adam.t"] == [6, 9, 6, 9]
    lines = run_files.json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12, 14, 15] and lines[-1]["loss_g"][0] == "nan"
    assert json.loads((run / "run.json").read_text())["state"] == "finished"
    # by default for as long as it was trained; and the run can still be made longer, for all
    assert tiny_runs.command("train", "--resume", run, "--retrain", "1", "--quiet") == 0
    assert run_files.steps(run)[-1] == 24
    tiny_runs.resume(run, "26steps")
    counts = {
        k.split("/")[1]: v.tolist()
        for k, v in run_files.tensors(run_files.last_checkpoint(run)).items()
        if "adam.t" in k
    }
    assert counts["g.adam.t"] == [8, 11, 8, 11]


def test_retraining_is_resumed_exactly(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "killed"):
        shutil.copytree(there / "run", tmp_path / name)
        prepare(tmp_path / name, "zero", "8steps")
    tiny_runs.resume(tmp_path / "whole")
    tick = loop.Trainer.tick

    def dies(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 11:
            raise processes.Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", dies)
        with pytest.raises(processes.Killed):
            tiny_runs.resume(tmp_path / "killed")
    with pytest.raises(ganherd.UserError, match="--budget out until it is done"):
        tiny_runs.resume(tmp_path / "killed", "10steps")
    tiny_runs.resume(tmp_path / "killed")
    run_files.assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--retrain", "1"), "name it with --resume"),
        (("--resume", "RUN", "--retrain", "three"), "there are zero, one"),
        (("--resume", "RUN", "--retrain", "1", "--budget", "soon"), "must be steps, epochs or time"),
        (("--resume", "RUN", "--retrain", "1", "--set", "train.batch=3"), "uses the recipe of the run"),
        (("--resume", "RUN", "--retrain", "1", "--members", "0-1"), "several jobs with the same --run"),
        (("--resume", "RUN", "--grow", "RUN"), "--grow starts a new run"),
    ],
)
def test_mistakes_are_said(there: Path, capsys: pytest.CaptureFixture[str], words: Any, sentence: str) -> None:
    before = run_files.snapshot(there / "run")
    assert tiny_runs.command("train", *(there / "run" if word == "RUN" else word for word in words)) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    left = {name: content for name, (content, _) in run_files.snapshot(there / "run").items() if name != ".lock"}
    assert left == {name: content for name, (content, _) in before.items() if name != ".lock"}


def _by_name(names: tuple[str, ...], rows: int = 30, more: int = 0) -> dict[str, Any]:
    """Return images that tell which class and row they are, with `more` rows in the first class."""
    counts = [rows + more * (k == 0) for k in range(len(names))]
    values = [(ord(name[0]), row) for name, count in zip(names, counts, strict=True) for row in range(count)]
    x = np.stack([np.full((1, 6, 6), value, np.uint8) + np.eye(6, dtype=np.uint8)[None] * row for value, row in values])
    return {"x": x, "y": np.repeat(np.arange(len(names)), counts), "labels": np.array(names)}


def _held(data: Any) -> dict[str, set[bytes]]:
    return {
        label: {row.tobytes() for row in data.x_test[data.y_test == number]} for number, label in enumerate(data.labels)
    }


@pytest.mark.parametrize(("names", "more"), [(("a", "b", "c"), 0), (("b", "c", "d"), 0), (("b", "c", "d"), 10)])
def test_kept_classes_hold_out_what_they_held_out_before(names: tuple[str, ...], more: int, tmp_path: Path) -> None:
    """The numbers of classes may change. If a class has other rows, a note says what that means. A herd may grow twice."""
    from ganherd.recipe import recipe_file
    from ganherd.training.setup.assemble import assemble

    np.savez(tmp_path / "two.npz", **_by_name(("b", "c")))
    np.savez(tmp_path / "three.npz", **_by_name(names, more=more))
    np.savez(tmp_path / "four.npz", **_by_name((*names, "z"), more=more))
    first = ganherd.train(recipe(tmp_path / "two.npz"), run=tmp_path / "first", quiet=True)
    before = _held(assemble(first.recipe).dataset)

    def settings(name: str, run: str) -> dict[str, Any]:
        return recipe(tmp_path / name, herd={"grow_from": str(tmp_path / run)})

    notes = [
        note for note in assemble(recipe_file.load(settings("three.npz", "first"))).notes if "held out now" in note
    ]
    assert bool(notes) == bool(more)
    second = ganherd.train(settings("three.npz", "first"), run=tmp_path / "second", quiet=True)
    third = ganherd.train(settings("four.npz", "second"), run=tmp_path / "third", quiet=True)
    held = [_held(assemble(run.recipe, begins=False).dataset) for run in (second, third)]
    for label in "bc":
        assert more or held[0][label] == held[1][label] == before[label]
    assert all(held[0][label] == held[1][label] for label in names)
