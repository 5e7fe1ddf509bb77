"""Arguments of a wrong type are refused in one sentence that names them, not by an error from inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ganherd
from ganherd import UserError
from ganherd.data import prepare_dataset
from ganherd.nets.mlp import SmallDiscriminator, SmallGenerator
from ganherd.training.finish import Finisher
from ganherd.util import meter

IMAGES = np.random.default_rng(0).random((30, 8, 8), dtype=np.float32)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": "5"}, "n must be a whole number, not '5'"),
        ({"n": 2.5}, "n must be a whole number, not 2.5"),
        ({"n": True}, "n must be a whole number, not True"),
        ({"n": None}, "n must be a whole number, not None"),
        ({"seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"replica": 1.5}, "replica must be a whole number, not 1.5"),
        ({"label": [1]}, r"the mixture has no label \[1\]"),
        ({"label": 2.5}, "the mixture has no label 2.5"),
        ({"member": 99}, "there is no member 99"),
        ({"member": "a"}, "member must be a whole number, not 'a'"),
        ({"member": 1, "label": "2"}, "member 1 generates 'one' only"),
        ({"truncation": "x"}, "truncation must be a number, not 'x'"),
        ({"device": "gpu"}, "device must be cpu, cuda or one GPU, such as cuda:1, not 'gpu'"),
        ({"device": 3.5}, "device must be cpu, cuda or one GPU, such as cuda:1, not 3.5"),
        ({"watch": 3}, "watch must be a function of the number of samples so far, not 3"),
    ],
)
def test_sampling(run: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ganherd.open(run).sample(**settings)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda run: run.score(["fid"], samples=0), "samples must be a whole number of at least 1, not 0"),
        (lambda run: run.score([3]), "named by text"),
        (lambda run: run.score(3), "metrics is a int: give a list of names"),
        (lambda run: run.mixture.module("1", member=0), "give a label or a member, not both"),
        (lambda run: run.mixture.module(member="a"), "member must be a whole number, not 'a'"),
        (lambda run: run.mixture.only_replica("a"), "replica must be a whole number, not 'a'"),
        (lambda run: run.mixture.to("gpu"), "device must be cpu, cuda or one GPU, such as cuda:1, not 'gpu'"),
        (lambda run: run.mixture.walk(0, (0, 1)), "frames must be a whole number of at least 1, not 0"),
        (lambda run: run.mixture.walk(3, 0), r"seeds must be two numbers, such as \(0, 1\), not 0"),
        (lambda run: run.resume("+1steps", finishers="report"), "finishers is a str: give a list of them"),
        (lambda run: run.resume("+1steps", finishers=[None]), "NoneType is not a finisher: derive its class"),
        (lambda run: run.resume("+1steps", finishers=[Finisher]), "give an instance of it"),
        (lambda run: ganherd.load(3), "the run must be a path, not 3"),
        (lambda run: ganherd.runs(3), "the folder must be a path, not 3"),
        (lambda run: run.metrics(0), "most must be a whole number of at least 1, not 0"),
        (lambda run: run.metrics("a"), "most must be a whole number of at least 1, not 'a'"),
        (lambda run: ganherd.Run(3), "the run must be a path, not 3"),
        (
            lambda run: ganherd.train(run={"scores": False}, quiet=True),
            r'as overrides, such as \["run.record_every=50"\]',
        ),
        (lambda run: ganherd.train(run=3, budget=2, quiet=True), "the run must be a path, not 3"),
    ],
)
def test_a_run(run: Path, call: Callable[[ganherd.Run], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call(ganherd.Run(run))


def test_one_member_is_sampled_by_its_number(run: Path) -> None:
    samples = ganherd.open(run).sample(5, member=1)
    assert set(samples.member.tolist()) == {1} == set(samples.y.tolist())


@pytest.mark.parametrize("target", [None, 5, ""])
def test_saving_samples(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any) -> None:
    samples = ganherd.open(run).sample(np.int64(2))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="give its path, such as grid.png"):
        samples.save(target)
    assert not list(tmp_path.iterdir())
    assert samples.save(tmp_path / "grid.png").is_file()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"members": "3"}, "members must be a whole number of at least 1, not '3'"),
        ({"members": None}, "members must be a whole number of at least 1, not None"),
        ({"shape": 8}, "shape must be the shape of one sample"),
        ({"shape": None}, "shape must be the shape of one sample"),
        ({"shape": ("a", 8)}, "each number of shape must be a whole number of at least 1, not 'a'"),
        ({"shape": (1, 8, -8)}, "each number of shape must be a whole number of at least 1, not -8"),
        ({"classes": None}, "classes must be a whole number of at least 0, not None"),
    ],
)
def test_a_herd(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ganherd.Herd(SmallGenerator, SmallDiscriminator, **{"members": 2, "shape": (1, 8, 8), **settings})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda herd: herd.generator("a"), "member must be a whole number, not 'a'"),
        (lambda herd: herd.save(None), "must be a path, not None"),
        (lambda herd: herd.save("no/such/folder/herd.safetensors"), "cannot be written: No such file"),
        (lambda herd: herd.save("."), "is a folder: name a file in it"),
        (lambda herd: herd.load(None), "must be a path, not None"),
        (lambda herd: herd.load_state_dict(None), r"a state is what state_dict\(\) of a herd returns"),
        (lambda herd: herd.load_state_dict({"step": 1}), r"a state is what state_dict\(\) of a herd returns"),
        (lambda herd: herd.set_weights(), "give the weights of a generator or of a discriminator"),
        (lambda herd: herd.set_weights(generator="g.pt"), r"weights are a str: give those that state_dict\(\)"),
        (lambda herd: herd.set_weights(herd.generator(0)), r"give those that state_dict\(\)"),
    ],
)
def test_the_state_of_a_herd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[ganherd.Herd], Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        call(ganherd.Herd(SmallGenerator, SmallDiscriminator, members=2, shape=(1, 8, 8)))


def test_labels_with_too_many_axes() -> None:
    herd = ganherd.Herd(SmallGenerator, SmallDiscriminator, members=2, shape=(1, 8, 8))
    with pytest.raises(UserError, match="y must have a label from 0 to 0 for each row of x"):
        herd.step(torch.zeros(4, 1, 8, 8), torch.zeros(4, 1, 1, dtype=torch.int64))


@pytest.mark.parametrize("batch", [None, "x", [None], {"a": 1}])
def test_a_batch(batch: Any) -> None:
    herd = ganherd.Herd(SmallGenerator, SmallDiscriminator, members=2, shape=(1, 8, 8))
    with pytest.raises(UserError, match="a batch must be a tensor or an array of numbers"):
        herd.step(batch)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([None] * 30, "row 0 of the data has no label"),
        ([*["a"] * 29, None], "row 29 of the data has no label"),
        (np.array([*["a"] * 29, float("nan")], object), "row 29 of the data has no label"),
        ([{}] * 30, "row 0 of the data has a dict as its label"),
    ],
)
def test_labels(tmp_path: Path, labels: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"{sentence}.*or leave y out"):
        ganherd.train(data=(IMAGES, labels), budget=2, quiet=True, run=tmp_path / "run", finishers=())


class Endless:
    def __getitem__(self, number: int) -> np.ndarray:
        return IMAGES[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"x": IMAGES, "y": [0] * 30}, r"give \(x, y\)"),
        ([IMAGES[0], IMAGES[0, :4]], "bring all to one size"),
        (np.ma.masked_array(IMAGES, IMAGES > 0.9), "masked values: fill them in"),
        (Endless(), "Endless is not a data set of items: give it __getitem__ and __len__"),
        (DataLoader(TensorDataset(torch.from_numpy(IMAGES))), "give its data set, loader.dataset"),
    ],
)
def test_data(tmp_path: Path, data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ganherd.train(data=data, budget=2, quiet=True, run=tmp_path / "run", finishers=())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"size": 0}, "size must be a whole number of at least 1, not 0"),
        ({"size": "a"}, "size must be a whole number of at least 1, not 'a'"),
        ({"dataset": 3}, "int is not a data set of items"),
        ({"out": None}, "must be a path, not None"),
    ],
)
def test_preparing_a_data_set(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        prepare_dataset(**{"dataset": IMAGES, "out": tmp_path / "shards", **settings})


def test_tensors_and_devices_of_torch_are_accepted(tmp_path: Path) -> None:
    x = torch.from_numpy(IMAGES).bfloat16()
    run = ganherd.train(
        data=x,
        device=torch.device("cpu"),
        budget=2,
        quiet=True,
        run=tmp_path / "run",
        finishers=(),  # type: ignore[arg-type]
    )
    assert run.sample(2).x.shape == (2, 1, 8, 8)


def test_names_of_classes_may_have_line_breaks(tmp_path: Path) -> None:
    y = ["two\nlines", "tab\t"] * 15
    run = ganherd.train(data=(IMAGES, y), budget=2, quiet=True, run=tmp_path / "run", finishers=())
    samples = run.sample(4, label="two\nlines")
    assert samples.save(tmp_path / "grid.png").is_file() and set(samples.y.tolist()) == {1}


class Slow(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(IMAGES[number][None]), number % 2


@pytest.mark.parametrize("quiet", [False, True])
def test_reading_a_data_set_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    monkeypatch.setattr(meter, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(meter.RateMeter.line_is_due, "__defaults__", (0.0, False))
    ganherd.train(data=Slow(), budget=2, quiet=quiet, run=tmp_path / "run", finishers=())
    shown = "".join(capsys.readouterr())
    assert ("12/12 items read" in shown) is not quiet
