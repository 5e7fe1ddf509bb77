"""Promise 1 for modules nobody wrote: random ones train the same in plain PyTorch, one by one and all at once."""

from __future__ import annotations

import math
import os
import re

import pytest

from ganherd.errors import UserError
from ganherd.herd import guard
from ganherd.herd.trial import Extent, Task
from promises.random_modules import CLASSES, LATENT, NOT_YET, SHAPE, RandomModule, write

IN_CI = 50
IN_LONG = int(os.environ.get("GANHERD_RANDOM_MODULES", "3000"))
EXTENT = Extent(batch=3, steps=3, passes=1)

# Why all members at once may refuse a module, which then trains one member after another.
REFUSALS = [
    "must only return Tensors, got type <class 'torch.dtype'>",  # randn(…, dtype=h.dtype) inside of vmap
    "Expected all tensors to have the same size in the mapped dimension",  # an index that the module makes itself
    r"calling \.item\(\) on a Tensor",
    "in-place arithmetic",
]
FEW_REFUSALS = 0.15


def refusal(module: RandomModule, seed: int) -> str:
    """Train the module three ways, compare, and return why it cannot be fused, if it cannot."""
    about = f"seed {seed}: {module.role}, penalty={module.penalty}, made of {', '.join(module.used)}\n\n{module.source}"
    task = Task(module.role, "random", module.make, SHAPE, LATENT, CLASSES, module.penalty)
    try:
        report = guard.check(task, EXTENT)
    except UserError as error:
        pytest.fail(f"plain PyTorch cannot train it: {error}\n{about}")
    loop, fused = report.results["loop"], report.results["fused"]
    assert not loop.why and loop.difference <= 1e-9, f"loop: {loop}\n{about}"
    if math.isnan(fused.difference):
        assert any(re.search(reason, fused.why) for reason in REFUSALS), f"fused: {fused}\n{about}"
        return fused.why
    assert not fused.why and fused.difference <= 1e-9, f"fused: {fused}\n{about}"
    return ""


@pytest.mark.parametrize("seed", range(IN_CI))
def test_a_random_module_trains_as_in_plain_pytorch(seed: int) -> None:
    refusal(write(seed, without=NOT_YET), seed)


def test_a_seed_always_gives_the_same_module() -> None:
    assert write(7) == write(7) and write(7) != write(8)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_thousands_of_random_modules_train_as_in_plain_pytorch_and_few_cannot_be_fused() -> None:
    refused = [refusal(write(seed, without=NOT_YET), seed) for seed in range(IN_CI, IN_CI + IN_LONG)]
    assert sum(map(bool, refused)) <= FEW_REFUSALS * IN_LONG
