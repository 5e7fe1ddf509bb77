"""A TorchScript file in the place of Inception: loaded if it is trusted, fed in the same way, scored with a head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import arrays
from run_fixtures import Answer
from torch import Tensor, nn

from ganherd.features.inception import SOURCE, tensorflow_resize

Cli = Callable[..., Answer]
WIDTH = 24


class Small(nn.Module):
    """As small as a network of Inception's inputs can be."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Conv2d(3, WIDTH, 40, 37)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)

    def features(self, x: Tensor) -> Tensor:
        assert x.shape[2] == 299
        assert x.shape[3] == 299
        return torch.relu(self.seen(x)).mean((2, 3))


class Telling(Small):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.features(x)
        return features, 40 * features[:, :5]


def saved(net: nn.Module, path: Path) -> str:
    """Its file as --network names it, with the sha256 that its maker knows."""
    torch.jit.script(net.eval()).save(str(path))
    return f"{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def net() -> Small:
    torch.manual_seed(0)
    return Small()


@pytest.fixture(scope="module")
def stand_in(net: Small, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(net, tmp_path_factory.mktemp("networks") / "small.pt")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads") / "head.npz"
    np.savez(
        path, weight=np.random.default_rng(0).normal(size=(WIDTH, 5)) * 40
    )  # as TensorFlow has it: [features, classes]
    return path


@pytest.mark.further
def test_the_inception_score_of_a_run_from_the_command_line(
    cli: Cli,
    run: Path,
    net: Small,
    stand_in: str,
    head: Path,
) -> None:
    words = (
        "--metrics",
        "inception_score,fid",
        "--trust-code",
        "--network",
        stand_in,
        "--head",
        head,
        "-n",
        60,
        "--seed",
        4,
    )
    answer = cli("score", run, *words, "--json")
    assert answer.code == 0, answer
    found = json.loads(answer.out)["scores"]
    digest = stand_in.split("=")[1]
    score = found["inception_score"]
    assert score["network"] == found["fid"]["network"] == f"small.pt (sha256 {digest[:12]}…)"
    assert score["head"].startswith("head.npz (sha256 ") and "299" in score["resizing"]
    assert (score["samples"], score["classes"], score["dimension"], score["seed"]) == (60, 5, WIDTH, 4)
    assert score["interval"]["low"] < score["value"] < score["interval"]["high"] and "head" not in found["fid"]
    assert score["value"] == pytest.approx(by_hand(run, net, head), rel=1e-4)
    text = cli("score", run, *words, "-q", "--verbose").out
    assert "inception score" in text and "classifier head head.npz" in text and "small.pt" in text


def by_hand(run: Path, net: Small, head: Path) -> float:
    """Samples, resize, features, softmax and mutual information of ten splits, one after another."""
    import ganherd
    from ganherd.data.keyed_random import shuffle

    x = torch.from_numpy(ganherd.load(run).sample(60, seed=4).x).float()
    with torch.no_grad():
        features = net.features((tensorflow_resize(x.expand(-1, 3, -1, -1)) - 128) / 128)
    p = (features @ torch.from_numpy(arrays(head)["weight"]).float()).double().softmax(1).numpy()
    scores = []
    for rows in np.split(shuffle(60, "inception score", 4), 10):
        part = p[rows]
        scores.append(np.exp((part * (np.log(part) - np.log(part.mean(0)))).sum(1).mean()))
    return float(np.mean(scores))


def test_a_script_that_tells_classes_itself_needs_no_head(cli: Cli, data: Path, run: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = saved(Telling(), tmp_path / "telling.ts")
    words = ("--metrics", "inception_score", "--trust-code", "--network", network, "-n", 40)
    answer = cli("score", "--real", data, "--fake", run, *words, "--json")
    score = json.loads(answer.out)["scores"]["inception_score"]
    assert score["samples"] == 40 and score["classes"] == 5 and "head" not in score


def test_without_a_head_it_is_said_where_one_comes_from_and_the_rest_comes(cli: Cli, run: Path, stand_in: str) -> None:
    answer = cli(
        "score", run, "--metrics", "inception_score,kid", "--trust-code", "--network", stand_in, "-n", 30, "--json"
    )
    found = json.loads(answer.out)["scores"]
    why = found["skipped"]["inception_score"]
    assert "kid" in found and "--head FILE.npz" in why and "softmax/weights" in why
    other = json.loads(cli("score", run, "--metrics", "inception_score", "-n", 30, "--json").out)["scores"]
    assert "give --network inception and a classifier --head" in other["skipped"]["inception_score"]


def test_a_script_is_loaded_only_with_leave_and_only_if_it_is_the_stated_one(
    cli: Cli, run: Path, stand_in: str, tmp_path: Path
) -> None:
    bare, stated = stand_in.split("#sha256=")
    (tmp_path / "none.pt").write_bytes(b"no script")
    words = ("score", run, "-q", "--metrics", "fid", "-n", 20)
    for network in (bare, stand_in):
        told = cli(*words, "--network", network).sentence
        assert (
            f"TorchScript that ganherd does not know (its sha256 is {stated[:12]}…)" in told and "--trust-code" in told
        )
    for network, says in (
        (f"{bare}#sha256={'0' * 64}", f"its sha256 is {stated[:12]}…, not 000000000000…"),
        (f"{bare}#sha256={stated[:40]}", "64 hexadecimal digits"),
        (tmp_path / "none.pt", "no TorchScript that can be loaded"),
        (f"{tmp_path / 'no.pt'}#sha256={stated}", "cannot be read"),
        (f"{tmp_path}#sha256={stated}", "is not a regular file"),
    ):
        assert says in cli(*words, "--trust-code", "--network", network).sentence


def test_a_script_that_wants_other_images_is_one_sentence(cli: Cli, run: Path, tmp_path: Path) -> None:
    network = saved(nn.Linear(7, 2), tmp_path / "linear.pt")
    answer = cli("score", run, "-q", "--metrics", "fid", "--trust-code", "--network", network, "-n", 20)
    assert "cannot look at [1, 3, 299, 299]" in answer.sentence


@pytest.mark.parametrize("kind", ["other width", "other arrays", "no archive", "one array", "not finite", "missing"])
def test_a_head_that_does_not_fit_is_one_sentence(
    cli: Cli,
    run: Path,
    stand_in: str,
    tmp_path: Path,
    kind: str,
) -> None:
    file = tmp_path / "head.npz"
    if kind == "other width":
        np.savez(file, weight=np.ones((5, 2048)))
    elif kind == "other arrays":
        np.savez(file, x=np.ones(3))
    elif kind == "no archive":
        file.write_bytes(b"PK\x03\x04 and nothing more")
    elif kind == "one array":
        with file.open("wb") as handle:
            np.save(handle, np.ones((5, WIDTH)))
    elif kind == "not finite":
        np.savez(file, weight=np.full((5, WIDTH), np.nan))
    words = ("--metrics", "inception_score", "--trust-code", "--network", stand_in, "--head", file, "-n", 20)
    assert f"--head {file}" in cli("score", run, "-q", *words).sentence


def test_a_missing_network_says_where_its_file_is_published(
    cli: Cli,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    answer: Any = cli("score", run, "-q", "--metrics", "fid,diversity", "--network", "inception", "-n", 20)
    assert answer.code == 0 and "diversity  " in answer.out and SOURCE in answer.out
