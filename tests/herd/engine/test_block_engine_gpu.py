"""On a GPU a herd in blocks from the host's memory equals one that is on the device, in float64 to 1e-9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import tiny_data, tiny_recipe

from ganherd.herd.engine.blocks import host_copies
from ganherd.herd.engine.blocks.block_engine import BlockEngine
from ganherd.herd.engine.engines import Plan, make_engine, place_state
from ganherd.herd.state import State
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

pytestmark = pytest.mark.gpu


def trained(folder: Path, engine: str, chunk: int, stops: list[int], **train: Any) -> tuple[State, torch.Tensor]:
    """Return the state and the sums of seven members after training from stop to stop."""
    path = folder / "data.npz"
    source = path if path.exists() else tiny_data(path)
    sections: dict[str, dict[str, Any]] = {
        "data": {"partition": "all"},
        "herd": {"members": 7},
        "nets": {
            "generator": {"name": "wcgan", "width": 6, "eps": 1e-5},
            "discriminator": {"name": "wcgan", "width": 3, "eps": 1e-5},
        },
        "loss": {"name": "non-saturating"},
        "train": {"batch": 4, "precision": "float64", "ema": 0.9, **train},
        "engine": {"device": "cuda", "name": None, "threads": None},
    }
    herd = assemble(recipe_file.load(tiny_recipe(source, **sections))).herd
    plan = Plan(engine, chunk, 1, "cuda")
    place_state(herd, plan)
    running = make_engine(herd, plan)
    assert isinstance(running, BlockEngine) == (chunk < 7)
    sums = herd.zero_sums()
    for start, stop in zip([0, *stops], stops, strict=False):
        assert running.advance(start, stop, sums) == stop
    return {name: value.cpu() for name, value in herd.state.items()}, sums.cpu()


def assert_close(one: tuple[State, torch.Tensor], other: tuple[State, torch.Tensor], tolerance: float) -> None:
    for name, value in one[0].items():
        gap = (value.double() - other[0][name].double()).abs().max() / value.double().abs().max().clamp(min=1.0)
        assert gap < tolerance, (name, float(gap))
    assert torch.allclose(one[1], other[1], rtol=1e3 * tolerance, atol=1e3 * tolerance)


@pytest.mark.parametrize("engine", ["fused", "graph"])
@pytest.mark.parametrize("train", [{}, {"n_critic": 2}, {"skip_d": 2}], ids=["plain", "n_critic", "skip_d"])
def test_blocks_equal_a_resident_herd(
    tmp_path: Path, engine: str, train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_PIECE", 1 << 10)  # many pieces of each tensor
    resident = trained(tmp_path, "fused", 7, [4, 11], **train)
    assert_close(resident, trained(tmp_path, engine, 3, [4, 11], **train), 1e-9)  # blocks of 3, 3 and 1


@pytest.mark.parametrize("engine", ["fused", "graph"])
def test_blocks_that_kernels_train_equal_a_resident_herd(tmp_path: Path, engine: str) -> None:
    resident, blocks = (trained(tmp_path, engine, chunk, [3], precision="float32") for chunk in (7, 3))
    assert_close(resident, blocks, 1e-3)


def test_the_state_stays_on_the_host(tmp_path: Path) -> None:
    herd = assemble(recipe_file.load(tiny_recipe(tiny_data(tmp_path / "data.npz"), engine={"device": "cuda"}))).herd
    plan = Plan("graph", 2, 1, "cuda")
    place_state(herd, plan)
    storage = herd.state["g.params"].data_ptr()
    make_engine(herd, plan).advance(0, 2, herd.zero_sums())
    assert herd.state["g.params"].data_ptr() == storage and not herd.state["g.params"].is_cuda
    assert set(herd.state["g.adam.t"].tolist()) == {2}
