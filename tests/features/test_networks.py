"""Feature networks: fed as they say, refused where they are not what they claim, and never missed in silence."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ganherd.features import inception, lipizzaner, networks
from ganherd.features.extract import extract
from ganherd.features.material import MetricSkipped
from ganherd.features.real_features import RealFeatures
from ganherd.scoring import score
from ganherd.util.errors import UserError
from ganherd.util.paths import data_home

Replay = Callable[..., Any]


def tf1_bilinear(image: np.ndarray, side: int) -> np.ndarray:
    """TensorFlow 1's resize_bilinear written from its definition: [C, H, W] to [C, side, side]."""
    _, height, width = image.shape
    out = np.empty((len(image), side, side))
    for i in range(side):
        y = i * height / side
        top, bottom, dy = int(y), min(int(y) + 1, height - 1), y - int(y)
        row = image[:, top] * (1 - dy) + image[:, bottom] * dy  # [C, W]
        x = np.arange(side) * width / side
        left = x.astype(int)
        right, dx = np.minimum(left + 1, width - 1), x - left
        out[:, i] = row[:, left] * (1 - dx) + row[:, right] * dx
    return out


@pytest.mark.parametrize(("height", "width", "side"), [(32, 32, 299), (28, 28, 299), (20, 33, 50), (400, 310, 299)])
def test_the_resize_is_tensorflows(height: int, width: int, side: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, height, width)).astype(np.float64)
    ours = inception.tensorflow_resize(torch.from_numpy(image[None]).float(), side)[0].numpy()
    assert np.abs(ours - tf1_bilinear(image, side)).max() < 0.02  # of 255: float32 coordinates


def test_only_the_known_torchscript_is_loaded(tmp_path: Path, rgb: Any) -> None:
    script = tmp_path / "evil.pt"
    torch.jit.script(nn.Linear(2, 2)).save(str(script))
    with pytest.raises(UserError, match="is TorchScript that ganherd does not know") as caught:
        networks.find(str(script), rgb)
    assert hashlib.sha256(script.read_bytes()).hexdigest()[:12] in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        networks.find(str(tmp_path / "no.pt"), rgb)


def test_a_missing_network_says_how_to_get_it_and_the_rest_comes(
    digits: Any, replay: Replay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("inception", "lipizzaner-mnist"):
        data = digits if name == "inception" else dataclasses.replace(digits, x=np.zeros((20, 1, 28, 28), np.uint8))
        with pytest.raises(MetricSkipped, match="not on this machine: put"):
            networks.find(name, data)
    found = score(replay(digits), digits, ["fid", "prdc", "diversity"], 50, reference=RealFeatures(digits, "inception"))
    assert set(found) == {"diversity", "skipped"}
    assert set(found["skipped"]) == {"fid", "precision", "recall", "density", "coverage"}
    assert inception.FILE in found["skipped"]["fid"] and "--network" in found["skipped"]["fid"]


def test_the_network_is_chosen_by_the_data(
    digits: Any, ring: Any, rgb: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inception, "find", lambda: tmp_path)
    small = dataclasses.replace(rgb, x=rgb.x[:, :, :16, :16])
    bare = dataclasses.replace(digits, labels=())
    assert [networks.choose(d) for d in (rgb, small, digits, bare, ring)] == [
        "inception",
        "classifier",
        "classifier",
        "pixels",
        "pixels",
    ]
    monkeypatch.setattr(inception, "find", lambda: None)
    assert networks.choose(rgb) == "classifier"


def test_classifier_features_are_those_behind_its_logits(digits: Any) -> None:
    from ganherd.features.classifier import classifier_for

    network = networks.find("classifier", digits)
    features, logits = extract(network, digits.x_test)
    assert features.shape == (len(digits.x_test), 64) and logits is not None
    assert logits.numpy() == pytest.approx(classifier_for(digits).logits(digits.x_test), abs=1e-4)
    assert network.held_out_accuracy == classifier_for(digits).held_out_accuracy
    assert network.name == f"classifier ({classifier_for(digits).name})"


def test_pixels_are_averaged_down_and_say_so(rgb: Any, digits: Any) -> None:
    network = networks.find("pixels", rgb)
    features, _ = extract(network, rgb.x[:3])
    by_hand = ((rgb.x[:3] / 127.5 - 1).reshape(3, 3, 8, 4, 8, 4).mean((3, 5))).reshape(3, -1)
    assert features.numpy() == pytest.approx(by_hand, abs=1e-5) and network.resizing == "averaged down to 8 × 8"
    assert networks.find("pixels", digits).resizing == "none"


def test_a_users_own_network_needs_trust_and_gets_model_units(
    digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import torch
class Corners(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
    def forward(self, x):
        assert x.shape[1:] == self.shape and x.abs().max() <= 1
        return x[:, 0, :2, :2], x.flatten(1)[:, :5]
"""
    (tmp_path / "my_scores.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="the network my_scores:Corners .*--trust-code"):
        networks.find("my_scores:Corners", digits)
    features, logits = extract(networks.find("my_scores:Corners", digits, trust_code=True), digits.x[:7])
    assert features.shape == (7, 4) and logits is not None and logits.shape == (7, 5)


@pytest.mark.parametrize(("name", "says"), [("inceptoin", "did you mean 'inception"), ("vgg", "no network named")])
def test_a_misspelt_network_is_one_sentence(digits: Any, name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        networks.find(name, digits)


def test_weights_of_another_net_are_refused(tmp_path: Path, digits: Any) -> None:
    mnist = dataclasses.replace(digits, x=np.zeros((9, 1, 28, 28), np.uint8))
    with pytest.raises(MetricSkipped, match="28 × 28"):
        networks.find("lipizzaner-mnist", digits)
    with pytest.raises(UserError, match="there is no file gone.npz"):  # also where the data would not fit
        networks.find("gone.npz", digits)
    good = {name: p.detach().numpy() for name, p in lipizzaner.LipizzanerNet().named_parameters()}
    np.savez(tmp_path / "good.npz", **good)
    assert networks.find(str(tmp_path / "good.npz"), mnist).name == "lipizzaner-mnist"
    np.savez(tmp_path / "bad.npz", **{**good, "fc2.bias": np.zeros(9)})
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "code.npz", **{**good, "fc2.bias": np.array([print], object)})
    for name in ("bad", "other", "code"):
        with pytest.raises(UserError, match="does not hold the weights"):
            networks.find(str(tmp_path / f"{name}.npz"), mnist)


def test_a_head_is_checked(tmp_path: Path, digits: Any) -> None:
    np.savez(tmp_path / "head.npz", weight=np.ones((5, 2048)), bias=np.arange(5))
    weight, bias = inception.read_head(tmp_path / "head.npz")
    assert weight.shape == (5, 2048) and bias.tolist() == [0, 1, 2, 3, 4]
    np.savez(tmp_path / "odd.npz", weight=np.ones((5, 7)))
    with pytest.raises(UserError, match="2048"):
        inception.read_head(tmp_path / "odd.npz")
    with pytest.raises(UserError, match="--head is for the network inception"):
        networks.find("pixels", digits, head=tmp_path / "head.npz")


@pytest.mark.data("mnist", lipizzaner.FILE)
def test_lipizzaners_network_recognises_mnist() -> None:
    from ganherd.data.dataset import load
    from ganherd.recipe.schema import DataConfig

    mnist = load(DataConfig(source="mnist"))
    features, logits = extract(networks.find("lipizzaner-mnist", mnist), mnist.x_test)
    assert logits is not None and torch.equal(features, logits)
    assert (logits.argmax(1).numpy() == mnist.y_test).mean() == pytest.approx(0.9927, abs=2e-4)


@pytest.mark.data("cifar10", inception.FILE)
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_inception_end_to_end_against_an_independent_way_there(count: int) -> None:
    from ganherd.data.dataset import load
    from ganherd.metrics.frechet import distance, moments
    from ganherd.recipe.schema import DataConfig

    cifar = load(DataConfig(source="cifar10"))
    network = networks.find("inception", cifar)
    x = cifar.x_test[:count]
    ours, _ = extract(network, x, device=torch.device("cpu"), fast=False)
    script = torch.jit.load(str(data_home() / inception.FILE), map_location="cpu")
    resized = np.stack([tf1_bilinear(image.astype(np.float64), 299) for image in x])
    with torch.no_grad():
        theirs = torch.cat(
            [script(torch.from_numpy((part - 128) / 128).float()) for part in np.split(resized, count // 10)]
        )
    assert ours.shape == (count, 2048) and network.name == "inception-2015-12-05"
    assert float((ours - theirs).abs().max()) < 2e-3 * float(theirs.abs().max())
    apart = float(distance(moments(ours[: count // 2]), moments(ours[count // 2 :])))
    assert abs(float(distance(moments(ours), moments(theirs)))) < 1e-4 * apart
    grey = dataclasses.replace(cifar, x=cifar.x[:4, :1])
    module = networks.find("inception", grey)
    assert "grey repeated" in module.resizing
    one, _ = extract(module, grey.x[:2], device=torch.device("cpu"))
    three, _ = extract(network, np.repeat(grey.x[:2], 3, 1), device=torch.device("cpu"))
    assert torch.allclose(one, three, atol=1e-4)


def test_a_network_of_recorded_scores_is_known_by_its_name_and_never_loaded_from_it(
    digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"classifier (digits)": "classifier", "pixels": "pixels", "lipizzaner-mnist": "lipizzaner-mnist"}
    assert {name: networks.known_as(name, digits) for name in wanted} == wanted
    for strange in ("evil:Net", "evil.pt#sha256=0a", "evil.pt (sha256 0a…)", "", "/etc/passwd"):
        assert networks.known_as(strange, digits) is None
    name = inception.FILE.removesuffix(".pt")
    monkeypatch.setattr(inception, "find", lambda: None)
    assert networks.known_as(name, digits) is None
    monkeypatch.setattr(inception, "find", lambda: Path("here.pt"))
    assert networks.known_as(name, digits) == "inception"
