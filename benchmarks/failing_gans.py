"""Define GANs on digits that are made to fail, each in one way, and healthy ones for comparison, to test alarms on.

Each kind is a recipe; `herd.seeds` stacks several of them, with different seeds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.data import dataset
from ganherd.recipe import recipe_file

IMAGES = 5  # that the memorising GAN has to learn by heart


class MeanCritic(nn.Module):
    """A critic that sees only the brightness of an image.

    With an unconstrained Wasserstein loss, its game with a generator is the bilinear one of the textbooks: it cycles.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x.flatten(1).mean(1, keepdim=True)).squeeze(1)


class DeadCritic(nn.Module):
    """A discriminator whose rectifiers never open, so that its output is constant."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(int(np.prod(shape)), 32), nn.ReLU(), nn.Linear(32, 1))
        with torch.no_grad():
            self.layers[0].bias.fill_(-100.0)  # type: ignore[union-attr,operator]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1)).squeeze(1)


@dataclass(frozen=True)
class Kind:
    about: str
    alarm: str  # that it must raise; empty: none at all
    base: str  # a recipe that comes with ganherd
    changes: dict[str, Any]
    steps: int


_ONE = {  # one small GAN of all digits for each seed; looks at fixed steps, whatever machine it is
    "data": {"partition": "all"},
    "herd": {"members": 1},
    "nets": {"generator": {"name": "small", "width": 64}, "discriminator": {"name": "small", "width": 64}},
    "train": {"input_noise": 0.0},
    "engine": {"name": "fused", "threads": 1, "device": "cpu"},
    "run": {"watch": {"every": 50}, "record_every": 50, "sample_every": 0, "checkpoint_every": 0},
}
_MANY = {key: _ONE[key] for key in ("engine", "run")}


def _with(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return mappings merged key by key, in which later ones win; a net is replaced as a whole."""
    merged: dict[str, Any] = {}
    for change in changes:
        for key, value in copy.deepcopy(change).items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict) and "name" not in value
            merged[key] = _with(merged[key], value) if both else value
    return merged


KINDS = {
    "healthy, Wasserstein": Kind("the default recipe, ten members by class", "", "digits-wcgan", _MANY, 1200),
    "healthy, non-saturating": Kind("its recipe, ten members by class", "", "digits-nonsat", _MANY, 2000),
    "collapsed": Kind(
        "the discriminator learns at every 21st step only, the generator ten times too fast",
        "collapse",
        "digits-nonsat",
        _with(_ONE, {"train": {"skip_d": 20}, "optim": {"lr_g": 5e-3, "lr_d": 2e-2}}),
        700,
    ),
    "cycling": Kind(
        "a critic of one number and a Wasserstein loss without a bound: the bilinear game",
        "cycling",
        "digits-nonsat",
        _with(
            _ONE,
            {
                "nets": {"discriminator": {"name": "failing_gans:MeanCritic"}},
                "loss": {"name": "wasserstein", "clip": 1000.0},
                "optim": {"lr_g": 3e-4, "lr_d": 3e-1},
            },
        ),
        1000,
    ),
    "dead critic, BCE": Kind(
        "the discriminator never learns (lr_d 0), logistic loss",
        "dead_critic",
        "digits-nonsat",
        _with(_ONE, {"optim": {"lr_d": 0.0}}),
        700,
    ),
    "dead critic, Wasserstein": Kind(
        "a critic whose rectifiers never open",
        "dead_critic",
        "digits-wcgan",
        _with(_ONE, {"nets": {"discriminator": {"name": "failing_gans:DeadCritic"}}, "train": {"n_critic": 1}}),
        700,
    ),
    "memorising": Kind(
        f"{IMAGES} images of one digit, four times the learning rates",
        "memorising",
        "digits-wcgan",
        _with(_ONE, {"train": {"batch": 8}, "optim": {"lr_g": 2e-3, "lr_d": 2e-3}}),
        400,
    ),
    "diverged": Kind(
        "learning rates of 1,000 and a critic without a bound",
        "diverged",
        "digits-nonsat",
        _with(
            _ONE,
            {
                "loss": {"name": "wasserstein", "clip": 1e30},
                "optim": {"lr_g": 1e3, "lr_d": 1e3},
                "run": {"repair": {"policy": "tell"}},
            },
        ),
        100,
    ),
}


def recipe(kind: str, folder: Path, seed: int, seeds: int, steps: int | None = None) -> dict[str, Any]:
    """Return the recipe of a kind with its seeds stacked; `folder` receives the few images that one kind memorises."""
    chosen = KINDS[kind]
    base = recipe_file.load(chosen.base).model_dump()
    whole = _with(base, chosen.changes, {"run": {"seed": seed}, "herd": {"seeds": seeds}})
    whole["train"]["budget"] = f"{steps or chosen.steps}steps"
    if kind == "memorising":
        whole["data"]["source"] = str(_few_images(folder / "few.npz"))
    return whole


def _few_images(path: Path) -> Path:
    """Write some images of the digit 3 to train on, and hold all others out."""
    digits = dataset.load(recipe_file.load("digits-wcgan").data)
    x = np.concatenate([digits.x[digits.y == 3], digits.x_test[digits.y_test == 3]])
    x = x[np.random.default_rng(0).permutation(len(x))]
    y = np.zeros(len(x), np.int64)
    np.savez(path, x_train=x[:IMAGES], y_train=y[:IMAGES], x_test=x[IMAGES:], y_test=y[IMAGES:])
    return path


def first_alarms(events: list[dict[str, Any]], members: int) -> list[dict[str, int]]:
    """Return for each member the step at which each alarm first began."""
    steps: list[dict[str, int]] = [{} for _ in range(members)]
    for event in events:
        if event["event"] in ("alarm", "nan", "diverged"):
            what = "diverged" if event["event"] == "nan" else event.get("what", event["event"])
            steps[event["member"]].setdefault(what, event["step"])
    return steps
