"""The classifier of the real data: good, repeatable, kept by content, and never in the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.features import cache, classifier
from ganherd.features.classifier import classifier_for
from ganherd.util.errors import UserError


def test_held_out_digits_are_recognised(digits: Any) -> None:
    judge = classifier_for(digits)
    assert judge.held_out_accuracy is not None and judge.held_out_accuracy >= 0.97
    assert judge.held_out_samples == len(digits.x_test)
    assert (judge.predict(digits.x_test) == digits.y_test).mean() == pytest.approx(judge.held_out_accuracy)


def test_points_are_recognised(ring: Any) -> None:
    assert (classifier_for(ring).held_out_accuracy or 0) >= 0.99


@pytest.mark.further
def test_the_seed_decides_and_the_global_state_is_left_alone(
    ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(11)
    np.random.seed(11)
    before, before_np = torch.get_rng_state(), str(np.random.get_state())
    logits = []
    for i, seed in enumerate((0, 0, 1)):
        monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / str(i)))
        logits.append(classifier_for(ring, seed=seed).logits(ring.x_test))
        torch.rand(3)  # another state at every call
    torch.manual_seed(11)
    assert np.array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])
    assert torch.equal(before, torch.get_rng_state())
    assert before_np == str(np.random.get_state())


def test_training_leaves_torchs_random_state(ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))
    before = torch.get_rng_state()
    classifier_for(ring)
    assert torch.equal(before, torch.get_rng_state())


def test_it_is_the_same_with_any_number_of_threads(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier, "STEPS", (20, 20))
    weights, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / str(threads)))
            torch.set_num_threads(threads)
            weights.append(torch.cat([p.detach().flatten() for p in classifier_for(digits).net.parameters()]))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*weights)


def test_it_is_trained_once_for_the_same_content(ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))
    told: list[str] = []
    first = classifier_for(ring, progress=told.append)
    again = classifier_for(dataclasses.replace(ring, name="renamed"), progress=told.append)
    assert len(told) == 1
    assert again.held_out_accuracy == first.held_out_accuracy
    assert np.array_equal(first.logits(ring.x_test), again.logits(ring.x_test))
    classifier_for(dataclasses.replace(ring, x=ring.x + 1), progress=told.append)
    assert len(told) == 2
    assert {p.suffix for p in cache.cache_folder("classifiers").iterdir()} == {".safetensors", ".json"}


@pytest.mark.further(".json")
@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_damaged_cache_is_trained_again(
    ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))
    first = classifier_for(ring)
    (file,) = cache.cache_folder("classifiers").glob(f"*{suffix}")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)
    told: list[str] = []
    again = classifier_for(ring, progress=told.append)
    assert len(told) == 1
    assert np.array_equal(first.logits(ring.x_test), again.logits(ring.x_test))
    assert classifier_for(ring, progress=told.append).name == first.name and len(told) == 1


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "file"))
    assert classifier_for(ring).held_out_accuracy is not None


def test_without_a_held_out_split_a_part_of_the_data_is_kept_from_the_training(
    ring: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))
    told: list[str] = []
    bare = dataclasses.replace(ring, x_test=ring.x_test[:0], y_test=ring.y_test[:0])
    judge = classifier_for(bare, progress=told.append)
    assert judge.held_out_samples == len(ring.x) // 5 and (judge.held_out_accuracy or 0) >= 0.99
    assert told[0] == f"training the classifier on {len(ring.x) - len(ring.x) // 5:,} real samples"
    again = classifier_for(bare, progress=told.append)
    assert again.held_out_accuracy == judge.held_out_accuracy and len(told) == 1
    # labels that mean nothing: whoever had seen those rows would do better than chance on them
    random = dataclasses.replace(bare, y=np.random.default_rng(0).integers(0, 8, len(ring.y)))
    assert (classifier_for(random).held_out_accuracy or 1) < 0.25


def test_of_little_data_no_accuracy_is_claimed(ring: Any) -> None:
    few = dataclasses.replace(ring, x=ring.x[:60], y=ring.y[:60], x_test=ring.x_test[:0], y_test=ring.y_test[:0])
    judge = classifier_for(few)
    assert judge.held_out_accuracy is None and judge.held_out_samples == 0


@pytest.mark.parametrize("shape", [(3, 2, 3), (1, 17, 40), (3, 65, 33)])
def test_any_image_size(shape: tuple[int, int, int]) -> None:
    net = classifier.ImageNet(shape, 4)
    assert net(torch.zeros(2, *shape)).shape == (2, 4)


def test_data_without_classes_is_refused_in_one_sentence(ring: Any) -> None:
    with pytest.raises(UserError, match="at least two classes"):
        classifier_for(dataclasses.replace(ring, labels=()))
    with pytest.raises(UserError, match="no sample of ring8 has one"):
        classifier_for(dataclasses.replace(ring, y=np.full_like(ring.y, -1)))
