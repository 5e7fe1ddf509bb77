"""Adam with the one-cycle schedule is PyTorch's own, and does without PyTorch's compiler."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
import warm_python
from torch import nn

from ganherd.features.one_cycle import OneCycleAdam


@pytest.mark.parametrize("steps", [2, 3, 20])
def test_weights_equal_those_of_torch_optim_to_the_last_bit(steps: int) -> None:
    x = torch.randn(steps, 8, 3, generator=torch.Generator().manual_seed(0))
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)))
    own, theirs = nets
    first = own[0].weight.detach().clone()
    update = OneCycleAdam(own.parameters(), steps).update
    optimiser = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-3, total_steps=steps)
    for batch in x:
        update(own(batch).square().mean())
        optimiser.zero_grad()
        theirs(batch).square().mean().backward()
        optimiser.step()
        schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), theirs.parameters(), strict=True))
    assert not torch.equal(own[0].weight, first)


def test_a_classifier_is_trained_without_the_compiler(tmp_path: Path) -> None:
    program = """
import sys
from ganherd.data.dataset import load
from ganherd.features import classifier
from ganherd.recipe.schema import DataConfig
classifier.STEPS = (2, 2)
classifier.classifier_for(load(DataConfig(source="digits")))
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    own_cache = {**os.environ, "GANHERD_CACHE": str(tmp_path)}  # no other test shall read a classifier of two steps
    done = subprocess.run([warm_python.python(), "-c", program], capture_output=True, text=True, env=own_cache)
    assert done.stdout.strip() == "[]", done
