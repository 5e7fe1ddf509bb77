"""A net that makes tensors on the CPU is refused before it trains on another device, with the line that must change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ganherd.herd.checks.tryout import refuse_cpu_only
from ganherd.util.errors import UserError


class Good(nn.Module):
    """Makes its ramp on the device of its input, and keeps its mask as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.arange(4, dtype=x.dtype, device=x.device) * self.mask


class MadeOnTheCpu(Good):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.arange(4, dtype=x.dtype)


class KeptOnTheCpu(Good):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.kept


def check(make: Callable[[], nn.Module], device: str) -> None:
    refuse_cpu_only(make, (torch.rand(3, 4),), torch.float32, torch.device(device))


DEVICES = ["meta", pytest.param("cuda", marks=pytest.mark.gpu)]  # PyTorch keeps tensors without numbers on `meta`


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("net", [MadeOnTheCpu, KeptOnTheCpu])
def test_a_net_that_leaves_tensors_on_the_cpu_is_refused_with_its_line(net: type[nn.Module], device: str) -> None:
    with pytest.raises(
        UserError,
        match=rf"{net.__name__} runs on the CPU, but not on {device} .*test_device_check\.py, line \d+.*device=x\.device.*buffers",
    ):
        check(net, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_net_that_makes_its_tensors_where_its_input_is_passes(device: str) -> None:
    nets = []

    def make() -> nn.Module:
        nets.append(Good())
        return nets[-1]

    check(make, device)
    assert [next(net.parameters()).device.type for net in nets] == [device]  # it was called there


def test_a_device_without_memory_is_left_to_the_measurement_of_what_fits() -> None:
    calls = []

    class Large(Good):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.shape)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    check(Large, "meta")
    assert calls == [(3, 4)]
