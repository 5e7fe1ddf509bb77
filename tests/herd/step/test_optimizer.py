"""The running average of the generators."""

from __future__ import annotations

import pytest
import torch

from ganherd.herd.step.optimizer import update_ema_


def test_the_running_average_warms_up_then_decays() -> None:
    """Compare three members of different age with a plain loop; the oldest average moves by 1 − decay."""
    state = {
        "g.params": torch.zeros(3, 2, dtype=torch.float64),
        "g.ema": torch.ones(3, 2, dtype=torch.float64),
        "g.ema.t": torch.tensor([0, 90, 99_999]),
    }
    update_ema_(state, 0.99)
    assert state["g.ema"][:, 0].tolist() == pytest.approx([0.1, 0.91, 0.99], abs=1e-12)
    assert state["g.ema.t"].tolist() == [1, 91, 100_000]


@pytest.mark.parametrize("steps", [20, 300, 3000])
def test_initial_weights_vanish_from_the_running_average(steps: int) -> None:
    state = {"g.params": torch.zeros(1, 1), "g.ema": torch.ones(1, 1), "g.ema.t": torch.zeros(1, dtype=torch.int64)}
    for _ in range(steps):
        update_ema_(state, 0.9999)
    assert float(state["g.ema"]) < 1e-6  # 0.9999 to the power of 3,000 would be 0.74
