"""Write random plain modules as Python source: layers, hooks, buffers, freezing, sharing and control flow, from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from promises.random_module_layers import linear, to_rows
from promises.random_module_parts import IMAGES, LATENT, ROWS, SHAPE, Draft
from promises.random_module_traits import ALONE


class Inner(nn.Module):
    """A module of the user's around another one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * F.silu(self.layer(x))


class Reversed(torch.autograd.Function):
    """The gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return -grads[0]


class Rounded(torch.autograd.Function):
    """The gradient goes straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.floor(4 * x) / 4

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def halved(module: nn.Module, given: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if one is None else 0.5 * one for one in given)


def doubled(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args: 2 * call(*args)


# -- a whole module ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomModule:
    """A random net: its role, its source, and the ingredients in it."""

    role: str
    source: str
    used: tuple[str, ...]
    penalty: bool

    @property
    def must_run_alone(self) -> bool:
        """Return whether only one member at a time can run it."""
        return not ALONE.isdisjoint(self.used)

    def make(self) -> nn.Module:
        names = {"torch": torch, "nn": nn, "F": F, "Inner": Inner, "Reversed": Reversed, "Rounded": Rounded}
        exec(self.source, names | {"halved": halved, "doubled": doubled}, scope := {})
        module: nn.Module = scope["Net"]()
        return module


def write(seed: int) -> RandomModule:
    """Write the module of this seed."""
    chance = random.Random(seed)
    is_generator, labelled = chance.random() < 0.5, chance.random() < 0.3
    d = Draft(chance, (LATENT,) if is_generator else SHAPE, labelled)
    for _ in range(chance.randint(3, 8)):
        place = IMAGES if d.is_image else ROWS
        name = chance.choice(list(place))
        place[name](d)
        d.used.append(name)
        if math.prod(d.shape) > 128:
            (to_rows if d.is_image else linear)(d)
    if d.is_image:
        to_rows(d)
    if is_generator:
        d.run(f"h = torch.tanh({d.linear(math.prod(SHAPE))}(h)).reshape(-1, *{SHAPE})")
    else:
        d.run(f"h = {d.linear(1)}(h)")
    indent = "\n        "
    source = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        "
        + indent.join(d.made)
        + f"\n\n    def forward(self, x{', y' if labelled else ''}):\n        h = x\n        "
        + indent.join(d.body)
        + "\n        return h\n"
        + "".join(f"\n    {line}" for line in d.methods)
    )
    role = "generator" if is_generator else "discriminator"
    return RandomModule(role, source, tuple(d.used), not is_generator and chance.random() < 0.4)
