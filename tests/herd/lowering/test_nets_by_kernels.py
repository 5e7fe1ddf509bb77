"""Random modules, and nets as users write them, train by Triton's kernels as in plain PyTorch (float32)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("triton.runtime.interpreter")  # so that conftest can prepare it

from ganherd.herd import rng
from ganherd.herd.checks import guard
from ganherd.herd.checks.trial import ComparisonTask, Extent
from ganherd.herd.checks.tryout import try_out
from ganherd.herd.state import takes_label
from ganherd.util.errors import UserError
from promises import supported_nets
from promises.random_module_parts import CLASSES, LATENT, SHAPE
from promises.random_modules import write
from promises.test_own_nets import SUPPORTED
from promises.test_random_modules import IN_CI, IN_LONG, inputs

IN_TEST = 20  # random modules of `make test`
SMALL, NOISE = (1, 2, 2), 3  # shape of a sample and length of the noise of the users' nets
EXTENT = Extent(steps=1, passes=1)
TOLERANCE = 1e-2
# the first call gives it its shapes, and the guard gets it after that
USERS_NETS = [net for net, way in SUPPORTED.items() if way != "loop" and net is not supported_nets.Lazy]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the guard computes on the CPU, by the interpreter")


@pytest.fixture(autouse=True)
def _draws_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain PyTorch draws as the kernels do, which hash a key and a counter. On a CPU it has a generator otherwise."""

    def draw(keys: np.ndarray | torch.Tensor, *how: object) -> torch.Tensor:
        return rng._hashed(torch.as_tensor(keys), *how)  # type: ignore[arg-type]

    monkeypatch.setattr(rng, "draw", draw)


def trains_by_kernels(task: ComparisonTask) -> bool:
    """Return whether a net can be fused; if so, assert that it trains by kernels as it does in plain PyTorch."""
    batch = partial(inputs, task.input, takes_label(task.make()))
    try:
        task = replace(task, traits=try_out(task.make, batch, torch.float64))
        plain = guard.check(task, EXTENT, [torch.float32]).results["fused"]
    except UserError:  # it does not run in float32, e.g. because it makes tensors in float64
        return False
    if plain.why:
        return False
    by_kernels = guard.check(replace(task, operations="triton"), EXTENT, [torch.float32]).results["fused"]
    # relative to the largest gradient, which counts as 1e-3 at least: some modules have gradients of rounding errors only
    assert by_kernels.difference <= TOLERANCE, f"{task.role} {task.name}: {by_kernels}"
    return True


def random_module(seed: int) -> bool:
    module = write(seed)
    name = f"of seed {seed}, made of {', '.join(module.used)}\n\n{module.source}\n"
    return trains_by_kernels(
        ComparisonTask(module.role, name, module.make, SHAPE, LATENT, CLASSES, penalty=module.penalty)
    )


def test_random_modules_train_by_kernels_as_in_plain_pytorch() -> None:
    assert sum(map(random_module, range(IN_TEST))) >= IN_TEST // 3  # the others cannot be fused


@pytest.mark.further
def test_more_random_modules_train_by_kernels_as_in_plain_pytorch() -> None:
    assert sum(map(random_module, range(IN_TEST, 2 * IN_CI))) >= IN_CI // 2


@pytest.mark.long
@pytest.mark.timeout(0)
def test_thousands_of_random_modules_train_by_kernels_as_in_plain_pytorch() -> None:
    assert sum(map(random_module, range(2 * IN_CI, IN_LONG))) > IN_LONG / 3


@pytest.mark.further(but=["Attention", "Residual", "SpectralNorm"])
@pytest.mark.parametrize("net", USERS_NETS, ids=lambda net: net.__name__)
def test_a_users_net_trains_by_kernels_as_in_plain_pytorch(net: Callable[..., nn.Module]) -> None:
    roles = (("generator", False), ("discriminator", False), ("discriminator", True))
    assert any(
        trains_by_kernels(
            ComparisonTask(
                role, "of a user", partial(net, SMALL, *([NOISE] if role == "generator" else [])), SMALL, NOISE, CLASSES,
                penalty=penalty,
            )
        )
        for role, penalty in roles
    )  # fmt: skip
