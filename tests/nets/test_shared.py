"""Layers of a net that share parameters: trained, resumed, exported and sampled as any other; shared buffers are refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ganherd
from ganherd.herd.state import Blueprint
from ganherd.strategies.share import columns
from ganherd.util.errors import UserError

MINE = """
from torch import nn

class G(nn.Module):
    def __init__(self, shape, latent):
        super().__init__()
        self.first, self.again = nn.Linear(latent, latent), nn.Linear(latent, latent)
        self.again.weight = self.first.weight
        self.norms = nn.ModuleList(nn.BatchNorm1d(latent) for _ in range(2))
        self.norms[1].weight, self.norms[1].bias = self.norms[0].weight, self.norms[0].bias
        self.out = nn.Linear(latent, shape[0])

    def forward(self, z):
        h = self.norms[0](self.first(z)).relu()
        return self.out(self.norms[1](self.again(h)).relu())

class Named(G):
    # the same, with layers that have another name besides
    def __init__(self, shape, latent):
        super().__init__(shape, latent)
        self.also, self.inner = self.first, nn.ModuleList([self.norms[0], self.out])

class Mixed(Named):
    # the same, in a way that cannot be traced
    def forward(self, z):
        return super().forward(z if len(z) else -z)

class D(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.into, self.first, self.again, self.out = nn.Linear(*shape, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.again.weight = self.first.weight
        self.also = self.again

    def forward(self, x):
        return self.out(self.again(self.first(self.into(x).relu()).relu()).relu()).squeeze(1)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    (tmp_path / "shared_nets.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("shared_nets")
    yield {"latent": 6, "generator": [mine.G, mine.Named, mine.Mixed], "discriminator": mine.D}
    del sys.modules["shared_nets"]


def _sampled(run: Path) -> np.ndarray:
    return ganherd.load(run, trust_code=True).sample(50).x


@pytest.mark.further(but=["float64"])
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_engines_agree_and_a_resumed_run_is_the_same(nets: dict[str, Any], precision: str, tmp_path: Path) -> None:
    def train(engine: str, steps: int, kind: int = 0) -> Path:
        run = tmp_path / f"{engine}-{steps}-{kind}"
        recipe = {
            "data": {"source": "ring8", "partition": "all"},
            "herd": {"members": 3},
            "nets": nets | {"generator": nets["generator"][kind]},
            "train": {"budget": f"{steps}steps", "batch": 16, "precision": precision},
            "strategy": {"name": "gap", "gap": {"every": "2steps"}},
            "run": {"sample_every": 0, "sprites": 0, "watch": {"every": 0}},
            "engine": {"name": engine, "device": "cpu"},
        }
        ganherd.train(recipe, run=run, quiet=True, finishers=())
        return run

    fused, loop = (_sampled(train(engine, 9)) for engine in ("fused", "loop"))
    assert np.allclose(fused, loop, rtol=0, atol=1e-9 if precision == "float64" else 1e-5) and np.ptp(fused) > 0
    for engine in ("fused", "loop"):
        for kind in (1, 2):  # as many numbers, drawn in the same order
            assert np.allclose(
                _sampled(train(engine, 9, kind)), loop, rtol=0, atol=1e-9 if precision == "float64" else 1e-5
            )
    part = train("fused", 5)
    ganherd.resume(part, ["train.budget=9steps"], quiet=True, trust_code=True, finishers=())
    assert np.array_equal(_sampled(part), fused)


def test_a_layer_is_known_by_each_of_its_names() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 3), nn.BatchNorm1d(3))
    net[1].weight = net[0].weight
    net.gain = net[2].weight  # a parameter of the module itself comes first
    blueprint = Blueprint(net)
    assert list(blueprint.shapes) == ["gain", "0.weight", "0.bias", "1.bias", "2.bias"]
    assert blueprint.is_norm_param == [True, False, False, False, True]
    assert columns(blueprint, ["1"]) == (slice(3, 9), slice(12, 15))


def test_shared_buffers_are_refused_and_shared_layers_are_not() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    whole = nn.Sequential(net[0], net[0])
    assert list(Blueprint(whole).buffers) == ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
    net[1].running_mean = net[0].running_mean
    with pytest.raises(UserError, match=r"^0\.running_mean and 1\.running_mean of Sequential are one buffer"):
        Blueprint(net)
    assert torch.equal(net[1].running_mean, net[0].running_mean)


@pytest.mark.further
def test_the_hint_for_own_nets_can_be_typed(
    nets: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ganherd.cli.train_command import TrainCommand

    path = tmp_path / "own"
    recipe = {
        "data": {"source": "ring8", "partition": "all"},
        "herd": {"members": 1},
        "nets": nets | {"generator": nets["generator"][0]},
        "train": {"budget": "1steps"},
        "run": {"scores": False},
    }
    command = TrainCommand(None, None, None, [], trust_code=False, as_json=False, verbose=False, quiet=True)
    command.show(ganherd.train(recipe, run=path, quiet=True))
    said = capsys.readouterr().out
    assert f"ganherd sample {path} --trust-code -n 64" in said and f"ganherd score {path} --trust-code" in said
