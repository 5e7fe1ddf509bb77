"""Arguments of a wrong type are refused in one sentence that names them, not by an error from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import ganherd
from ganherd import UserError
from ganherd.nets.mlp import SmallDiscriminator, SmallGenerator
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
        ({"truncation": "x"}, "truncation must be a number, not 'x'"),
        ({"device": "gpu"}, "device must be cpu, cuda or one GPU, such as cuda:1, not 'gpu'"),
        ({"device": 3.5}, "device must be cpu, cuda or one GPU, such as cuda:1, not 3.5"),
        ({"watch": 3}, "watch must be a function of the number of samples so far, not 3"),
    ],
)
def test_sampling(run: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ganherd.open(run).sample(**settings)


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
