"""ganherd trains many GANs as one: `train` a recipe, then `load` the trained mixture and sample it.

>>> import ganherd
>>> run = ganherd.train("digits-wcgan", ["train.budget=2steps"], run="runs/two-steps", quiet=True)
>>> ganherd.load(run.path).sample(4, label="7").x.shape
(4, 1, 8, 8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ganherd import register as register
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.version import __version__ as __version__

if TYPE_CHECKING:
    from ganherd.api import load, resume, train
    from ganherd.recipe.schema import Recipe

__all__ = ["Interrupted", "Recipe", "UserError", "load", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Import the API, and PyTorch with it, when it is first used, and likewise the recipe, which does without PyTorch."""
    if name == "Recipe":
        from ganherd.recipe.schema import Recipe

        return Recipe
    if name not in ("load", "resume", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ganherd import api

    return getattr(api, name)
