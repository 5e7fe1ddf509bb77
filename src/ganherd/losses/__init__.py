"""The losses that a recipe can name, in a registry.

The loss functions are in `adversarial.py`. This module does not import PyTorch, so that the names of losses are known
without it. The table at the end of this file registers ganherd's own losses.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ganherd.util.errors import UserError
from ganherd.util.registry import LOSSES, load_target
from ganherd.util.user_code import must_take

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ganherd.losses.adversarial import Loss

ALSO_CALLED = {  # names in papers and other trainers; they are only suggested
    "gan": "non-saturating",  # binary cross entropy as nearly everybody writes it: the generator's labels are "real"
    "bce": "non-saturating",
    "vanilla": "non-saturating",
    "heuristic": "non-saturating",
    "lsgan": "least-squares",
    "mse": "least-squares",
    "wgan": "wasserstein",
    "wgan-clip": "wasserstein",
    "wgan-gp": "wasserstein-gp",
}


@dataclass(frozen=True)
class LossSpec:
    """The registry entry of a loss that a recipe can name."""

    # a `Loss`, or an object or class with the methods `d` and `g`, or its name as `module:name`, which `build` imports
    target: Any
    about: str = ""  # one line for lists of losses
    settings: type[BaseModel] | None = None  # model of the key `loss.settings`; the class gets it as its only argument

    @classmethod
    def adopt(cls, name: str, target: Any, *, about: str = "", settings: type[BaseModel] | None = None) -> LossSpec:
        """Check the methods of a loss that a user registers under `name`, and return its registry entry."""
        what, is_class = f"the loss {name}", inspect.isclass(target)
        if is_class:
            must_take(what, target, *(["settings"] if settings else []))
        elif settings is not None:
            raise UserError(f"{what} has settings, so it must be a class that takes them, not an object.")
        owner = ("self",) if is_class else ()  # methods of a class are not bound
        for method, logits in (("d", ("real", "fake")), ("g", ("fake",))):
            function = getattr(target, method, None)
            if function is None:
                raise UserError(f"{what} has no {method}: give it d(real, fake) and g(fake), or g(real, fake).")
            paired = method == "g" and _num_arguments(function) > len(owner) + 1
            must_take(f"{method} of {what}", function, *owner, *(("real", "fake") if paired else logits))
        return cls(target, about or (inspect.getdoc(target) or "").partition("\n")[0], settings)

    def build(self, settings: Mapping[str, Any] | None = None) -> Loss:
        """Return the loss as a `Loss`. `settings`: values of `loss.settings`, for losses that have settings."""
        from ganherd.losses.adversarial import Loss

        target: Any = load_target(self.target)
        if inspect.isclass(target):
            target = target(*([] if self.settings is None else [self.settings.model_validate(dict(settings or {}))]))
        if isinstance(target, Loss):
            return target
        facts = {name: getattr(target, name) for name in ("penalty", "clip") if hasattr(target, name)}
        return Loss(target.d, target.g, **facts, g_sees_real=_num_arguments(target.g) > 1)


def _num_arguments(function: Any) -> int:
    """Return the number of arguments of a function; 1 if it has no signature, e.g. because it is written in C."""
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 1


for _name, _constant in {
    "minimax": "MINIMAX",
    "non-saturating": "NON_SATURATING",
    "least-squares": "LEAST_SQUARES",
    "least-squares-sigmoid": "LEAST_SQUARES_SIGMOID",
    "wasserstein": "WASSERSTEIN",
    "wasserstein-gp": "WASSERSTEIN_GP",
    "hinge": "HINGE",
    "relativistic-pairing": "RELATIVISTIC_PAIRING",
}.items():
    LOSSES.add(_name, LossSpec(f"ganherd.losses.adversarial:{_constant}"))
LOSSES.seal()
