"""Promise 1 for plug-ins: a loss that also sees real images, and a penalty, train fused members as separate GANs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from further_tests import EACH_VALUE
from installed_plugins import importable
from torch import Tensor

from ganherd import register
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.losses.adversarial import gradient_penalty
from ganherd.util.registry import LOSSES
from promises.test_fused_equals_separate import FUSED, differences, herd_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin"
RELATIVISTIC = {"name": "relativistic", "settings": {"margin": 0.5}}


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loss of the example, imported as its users would."""
    with importable(EXAMPLE, monkeypatch):
        import ganherd_example.relativistic  # noqa: F401 - it registers the loss

        yield


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("plan", [FUSED, Plan("loop", 1, 1, "cpu"), Plan("fused", 2, 1, "cpu")], ids=str)
@pytest.mark.parametrize(
    "train", [{"n_critic": 2}, {"skip_d": 1, "order": "g-d"}, {"augment": ["colour"], "flip": True}], ids=str
)
def test_a_relativistic_loss_trains_fused_members_as_separate_gans(
    tmp_path: Path, plan: Plan, train: dict[str, Any]
) -> None:
    found = differences(herd_of(tmp_path, "wcgan", loss=RELATIVISTIC, train=train), 10, plan)
    assert max(found.values()) < 1e-9, found


def test_members_may_have_a_plugin_loss_and_one_of_ganherd(tmp_path: Path) -> None:
    register.loss("relativistic")(type("Half", (), {"d": half_d, "g": half_g}))
    found = differences(herd_of(tmp_path, "wcgan", loss={"name": ["relativistic", "hinge", "relativistic"]}), 10, FUSED)
    assert max(found.values()) < 1e-9, found


def half_d(self: Any, real: Tensor, fake: Tensor) -> Tensor:
    return torch.nn.functional.softplus(0.5 - (real - fake)).mean(-1)


def half_g(self: Any, real: Tensor, fake: Tensor) -> Tensor:
    return torch.nn.functional.softplus(0.5 - (fake - real)).mean(-1)


def test_a_penalty_of_a_plugin_is_added_with_its_weight(tmp_path: Path) -> None:
    """A loss with ganherd's own penalty trains exactly as wasserstein-gp does."""

    class Distance:
        penalty = staticmethod(gradient_penalty)

        def d(self, real: Tensor, fake: Tensor) -> Tensor:
            return fake.mean(-1) - real.mean(-1)

        def g(self, fake: Tensor) -> Tensor:
            return -fake.mean(-1)

    register.loss("distance-gp")(Distance)
    states = []
    for name in ("wasserstein-gp", "distance-gp"):
        herd = herd_of(tmp_path, "small", loss={"name": name}).herd
        Engine(herd, FUSED).advance(0, 5, herd.zero_sums())
        states.append({key: value.clone() for key, value in herd.state.items()})
    assert LOSSES["distance-gp"].build().penalty is gradient_penalty
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
