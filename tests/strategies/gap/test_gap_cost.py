"""What a swap of GAP asks of the host: few operations, and nothing read back from the device where the loop has looked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ganherd.herd.state import finite_members
from ganherd.strategies.gap.gap import Gap, swapped_tensors
from ganherd.training.health import response
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import make_strategy
from promises.test_gap import herd

MOST = 15  # operations of a look and a swap of weights; with more that travels, two for each tensor of it


class Counted(TorchDispatchMode):
    """The operations that torch is asked for, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def made(folder: Path, **gap: Any) -> tuple[PreparedHerd, Gap]:
    """Members that swap at every step, and have swapped once."""
    assembly = herd(folder, **gap)
    strategy = make_strategy(assembly, {"every": 1, "warmup": 0})
    assert isinstance(strategy, Gap)
    list(strategy.open(1))
    return assembly, strategy


def look(assembly: PreparedHerd, strategy: Gap, step: int) -> None:
    strategy.on_health_check(step, finite_members(assembly.herd.state).cpu().numpy())


@pytest.mark.parametrize("net", ["toy", "mlp"])
@pytest.mark.parametrize("travels", ["weights", "all"])
def test_a_swap_is_a_few_operations(tmp_path: Path, travels: str, net: str) -> None:
    assembly, strategy = made(tmp_path, net=net, travels=travels)
    with Counted() as counted:
        look(assembly, strategy, 2)
        (event,) = strategy.open(2)
    assert len(event[1]["pairs"]) == 2
    more = 2 * (len(swapped_tensors(assembly.herd.state, "d", travels)) - 1)
    assert len(counted.names) <= MOST + more, counted.names
    assert not any("_local_scalar_dense" in name for name in counted.names)  # what `item` asks for


@pytest.mark.parametrize("gap", [{}, {"travels": "all", "smoothing": "2steps"}, {"pace": [1.0, 1.0, 1.0, 0.5]}])
def test_a_swap_reads_nothing_back_after_a_health_check(tmp_path: Path, gap: dict[str, Any]) -> None:
    assembly, strategy = made(tmp_path, net="mlp", **gap)
    state = assembly.herd.state
    state.update({name: value.to("meta") for name, value in state.items()})  # there are no numbers to be read
    strategy.on_health_check(2, np.ones(4, bool))
    (event,) = strategy.open(2)
    assert event[1]["pairs"] and "unwell" not in event[1]
    with pytest.raises((NotImplementedError, RuntimeError)):
        list(strategy.open(3))  # nobody looked here, so it must


def test_a_swap_is_the_same_with_and_without_a_health_check(tmp_path: Path) -> None:
    (one, told), (other, alone) = made(tmp_path, travels="all"), made(tmp_path, travels="all")
    for assembly in (one, other):
        assembly.herd.state["g.adam.m"][1, 0] = -torch.inf
    for step in (2, 3, 4):
        look(one, told, step)
        (event,) = told.open(step)
        assert event[1]["unwell"] == [1] and [event] == list(alone.open(step))
    for name, value in other.herd.state.items():
        assert torch.equal(one.herd.state[name].nan_to_num(), value.nan_to_num()), name


def test_a_health_check_is_valid_for_its_step_and_until_a_repair(tmp_path: Path) -> None:
    assembly, strategy = made(tmp_path)
    assembly.herd.state["d.params"][3, 0] = torch.nan
    for told in ((2, np.ones(4, bool)), (3, None)):  # of the step before; withdrawn
        strategy.on_health_check(*told)
        ((_, facts),) = strategy.open(3)
        assert facts["unwell"] == [3]
    strategy.on_health_check(4, np.ones(4, bool))
    strategy.on_health_check(4, None)
    ((_, facts),) = strategy.open(4)
    assert facts["unwell"] == [3]


def test_the_loop_checks_health_once_for_a_meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiny_runs
    from recipes import tiny_data, tiny_recipe

    import ganherd
    from ganherd.strategies.gap import gap

    looks: list[str] = []
    monkeypatch.setattr(gap, "finite_members", lambda *args: looks.append("swap") or finite_members(*args))
    monkeypatch.setattr(response, "finite_members", lambda *args: looks.append("loop") or finite_members(*args))
    tiny_runs.skip_products(monkeypatch)
    data = tiny_data(tmp_path / "data.npz", each=(60, 60, 60))
    sections: dict[str, Any] = {"data": {"partition": "all"}, "herd": {"members": 4}}
    ganherd.train(
        tiny_recipe(data, **sections, strategy={"name": "gap", "gap": {"every": "2steps"}}),
        run=tmp_path / "run",
        quiet=True,
    )
    swaps = (tmp_path / "run" / "events.jsonl").read_text().count('"swap"')
    assert swaps > 1 and "swap" not in looks and len(looks) >= swaps


# -- who is finite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("width", [3, 5000])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(wrong: float, width: int) -> None:
    def state() -> dict[str, torch.Tensor]:
        return {
            "g.params": torch.randn(4, width),
            "d.params": torch.randn(4, 7),
            "d.buffers.scale": torch.randn(4, 2, 3, 2),
            "d.adam.t": torch.ones(4, dtype=torch.int64),
            "set.lr_d": torch.full((4,), 1e-3, dtype=torch.float64),
            "set.seed": torch.zeros(4, dtype=torch.int64),
        }

    assert finite_members(state()).tolist() == [True] * 4
    for name, value in state().items():
        if value.is_floating_point():
            sick = state()
            sick[name].view(4, -1)[2, -1] = wrong
            assert finite_members(sick).tolist() == [True, True, False, True], name
            both = state()  # opposite infinities do not cancel
            both[name].view(4, -1)[0, 0], both["d.params"][0, 1] = wrong, -wrong
            assert not finite_members(both)[0]
            assert not finite_members({name: sick[name]})[2]  # of one dtype, and of plain numbers alone
