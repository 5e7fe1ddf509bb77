"""Promise 1 for well-known GANs: every engine trains them as plain PyTorch does, without `vmap` or warnings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from further_tests import EACH_VALUE

from ganherd.herd.engine.engines import Engine, Plan, make_engine, place_state
from ganherd.herd.engine.explain import explain
from ganherd.herd.lowering.lower import VMAP
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd_benchmarks.public_net_cases import PUBLIC_NETS
from promises.test_fused_equals_separate import differences

STEPS = 3
LOSSES = {  # hinge loss, and one with R1, which differentiates the discriminator twice
    "hinge": {"name": "hinge"},
    "r1": {"name": "non-saturating", "r1_weight": 1.0},
}


def herd_of(tmp_path: Path, name: str, loss: str, **engine: Any) -> PreparedHerd:
    """Two narrow members on random images of 16×16, in float64."""
    case = PUBLIC_NETS[name]
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).integers(0, 256, (20, 3, 16, 16), dtype=np.uint8))
    settings = {
        "data": {"source": str(tmp_path / "data.npz"), "holdout": 0.0, "partition": "all"},
        "herd": {"members": 2},
        "nets": {**case.nets(width=2, groups=2), "latent": 6},
        "optim": {"lr_g": [1e-3, 2e-3], "lr_d": 1e-3, "eps": 1e-2},
        "train": {"batch": 4, "precision": "float64"},
        "loss": LOSSES[loss],
        "engine": engine,
    }
    return assemble(recipe_file.load(settings), trust_code=True)


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", PUBLIC_NETS)
def test_engines_train_public_nets_as_plain_pytorch_does(tmp_path: Path, name: str, loss: str) -> None:
    prepared = herd_of(tmp_path, name, loss)
    first = {key: value.clone() for key, value in prepared.herd.state.items()}
    for engine in ("loop", "fused"):
        for key, value in first.items():
            prepared.herd.state[key].copy_(value)
        result = differences(prepared, STEPS, Plan(engine, 2, 1, "cpu"))
        assert max(result.values()) < 1e-9, (engine, result)
        for kind in ("g", "d"):
            assert not torch.equal(first[f"{kind}.params"], prepared.herd.state[f"{kind}.params"])


@pytest.mark.parametrize("name", PUBLIC_NETS)
def test_no_operation_of_public_nets_runs_through_vmap(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        herd = herd_of(tmp_path, name, "r1").herd
        facts = explain(herd)
        Engine(herd, Plan("fused", 2, 1, "cpu")).advance(0, 1, herd.zero_sums())
    assert not facts["one_by_one"]
    methods = {layer[place]["how"] for net in facts["nets"] for layer in net["layers"] for place in ("here", "gpu")}
    assert methods and VMAP not in methods


@pytest.mark.gpu
@pytest.mark.parametrize("name", PUBLIC_NETS)
def test_on_a_gpu_every_engine_trains_public_nets_alike(tmp_path: Path, name: str) -> None:
    states = []
    for engine in ("loop", "fused", "graph"):
        herd = herd_of(tmp_path, name, "hinge", device="cuda").herd
        plan = Plan(engine, 2, 1, "cuda")
        place_state(herd, plan)
        assert make_engine(herd, plan).advance(0, STEPS, herd.zero_sums()) == STEPS
        states.append({key: value.cpu() for key, value in herd.state.items()})
    for state in states[1:]:
        for key, value in states[0].items():
            gap = (state[key].double() - value.double()).abs().max() if value.numel() else 0.0
            assert gap < 1e-9, (key, float(gap))
