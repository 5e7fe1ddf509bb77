"""Add losses, metrics, strategies, data sources, nets and augmentations of your own, which recipes can name.

    import ganherd

    @ganherd.register.metric("sharpness", direction="higher")
    def sharpness(real, generated):
        return abs(generated[..., 1:].astype(float) - generated[..., :-1]).mean()

Each decorator checks the signature and returns what it decorates. An entry that a script registers exists in that process only.
An installed package announces its entries as entry points, so that every command and every rank finds them. A recipe can also
name an object as `package.module:name`. Importing this module does not import PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ganherd.util.errors import UserError
from ganherd.util.registry import (
    AUGMENTATIONS,
    DATA_SOURCES,
    DISCRIMINATORS,
    GENERATORS,
    LOSSES,
    METRICS,
    STRATEGIES,
    load_target,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ganherd.losses.adversarial import Loss as Loss
    from ganherd.recipe.base import Section as Settings
    from ganherd.recipe.base import Span as Span
    from ganherd.recipe.strategy.strategy_settings import StrategySettings as StrategySettings
    from ganherd.strategies.member_ranks import MemberRanks as MemberRanks
    from ganherd.strategies.strategy import Strategy as Strategy

__all__ = [
    "Loss",
    "MemberRanks",
    "Settings",
    "Span",
    "Strategy",
    "StrategySettings",
    "augmentation",
    "data",
    "loss",
    "metric",
    "net",
    "strategy",
]

Target = TypeVar("Target")
_CLASSES = {  # what plug-ins derive from or create; imported when it is used
    "Loss": "ganherd.losses.adversarial:Loss",
    "MemberRanks": "ganherd.strategies.member_ranks:MemberRanks",
    "Settings": "ganherd.recipe.base:Section",
    "Span": "ganherd.recipe.base:Span",
    "Strategy": "ganherd.strategies.strategy:Strategy",
    "StrategySettings": "ganherd.recipe.strategy.strategy_settings:StrategySettings",
}


def __getattr__(name: str) -> Any:
    """Import one of the classes that plug-ins use."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_target(_CLASSES[name])


def loss(name: str, *, settings: type[BaseModel] | None = None, about: str = "") -> Callable[[Target], Target]:
    """Register a loss, for `loss.name`: a class with the methods `d` and `g`, or a `Loss` object.

    `d(real, fake)` and `g(fake)`, or `g(real, fake)`, get logits [..., B] and return one number per member [...], which the
    net minimises. The attributes `clip` and `penalty` are optional: whether weights of the discriminator are clipped, and a
    function of (critic, real, fake, at) that is added to its loss with the weight `loss.gp_weight`.

    Args:
        settings: The model of `loss.settings`; the class gets an instance of it as its only argument.
        about: One line about it. Default: the first line of its docstring.
    """
    return LOSSES.register(name, settings=settings, about=about)


def metric(
    name: str,
    *,
    direction: Literal["lower", "higher", "nearest"],
    best: float | None = None,
    on: Literal["images", "features", "context"] = "images",
    settings: type[BaseModel] | None = None,
    about: str = "",
    **facts: Any,
) -> Callable[[Target], Target]:
    """Register a metric, for `--metrics NAME` and `run.metrics`: a function of (real, generated) that returns a number.

    It may return a mapping instead: `value`, `interval` as (low, high), and any other numbers for scores.json.

    Args:
        direction: Which values are better; `nearest`: those nearest to `best`.
        best: The value of a perfect mixture. Default: 0 for lower, no limit for higher.
        on: What is compared: arrays of images or points in the units of the data, features [n, d] of the network of the other
            scores, or the whole `ScoringContext`, which then takes the place of both arguments.
        settings: The model of its settings, of which the function gets an instance as its last argument. A recipe writes them
            next to the name, an option as `NAME(key=value)`.
        about: One line about it. Default: the first line of its docstring.
        facts: Other fields of `Metric`, such as `bounds`, `title` or `needs_classes`.
    """
    return METRICS.register(name, direction=direction, best=best, on=on, settings=settings, about=about, **facts)


def strategy(
    name: str, *, settings: type[StrategySettings] | None = None, about: str = ""
) -> Callable[[Target], Target]:
    """Register a strategy, for `strategy.name`: a class derived from `Strategy`.

    Args:
        settings: A class derived from `StrategySettings`: the section `strategy.NAME` of a recipe.
        about: One line about it. Default: the first line of its docstring.
    """
    return STRATEGIES.register(name, about=about, **({} if settings is None else {"settings": settings}))


def data(name: str, *, settings: type[BaseModel] | None = None, about: str = "") -> Callable[[Target], Target]:
    """Register a data source, for `data.source`: a function of (settings, folder) that returns (x, y, labels).

    x has images or points, y the class of each row or None, labels the names of the classes or None. A mapping with x, y, labels,
    x_test and y_test has a held-out split, too. The run records a hash of the arrays.

    Args:
        settings: The model of `data.settings`; the function gets an instance of it, or None.
        about: One line about it. Default: the first line of its docstring.
    """
    return DATA_SOURCES.register(name, settings=settings, about=about)


def net(
    name: str,
    *,
    role: Literal["generator", "discriminator"],
    settings: type[BaseModel] | None = None,
    about: str = "",
) -> Callable[[Target], Target]:
    """Register a net, for `nets.generator` or `nets.discriminator`: a plain `torch.nn.Module` for one GAN.

    Its constructor gets `shape`, `latent` (generators) and `classes` if it has arguments of these names, and its settings.

    Args:
        settings: The model of its settings.
        about: One line about it. Default: the first line of its docstring.
    """
    registries = {"generator": GENERATORS, "discriminator": DISCRIMINATORS}
    if role not in registries:
        raise UserError(f"the net {name} has the role {role!r}: use generator or discriminator.")
    return registries[role].register(name, settings=settings, about=about)


def augmentation(
    name: str, *, numbers: int = 1, settings: type[BaseModel] | None = None, about: str = ""
) -> Callable[[Target], Target]:
    """Register an augmentation, for `train.augment`: a differentiable function of (x, u), or of (x, u, settings).

    x are images [..., B, C, H, W] in [-1, 1] of all members at once, u uniform numbers [..., B, numbers] in [0, 1). The result
    has the shape of x.

    Args:
        numbers: The count of uniform numbers that each image needs.
        settings: The model of its settings, of which the function gets an instance.
        about: One line about it. Default: the first line of its docstring.
    """
    return AUGMENTATIONS.register(name, numbers=numbers, settings=settings, about=about)
