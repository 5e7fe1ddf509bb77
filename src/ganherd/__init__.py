"""ganherd trains many GANs as one: `train` a recipe or your own data and nets, then sample the trained mixture.

>>> import ganherd
>>> run = ganherd.train("digits-wcgan", budget=2, run="runs/two-steps", quiet=True)
>>> run.sample(4, label="7").x.shape
(4, 1, 8, 8)
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ganherd import register as register
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.version import __version__ as __version__

if TYPE_CHECKING:
    from ganherd.api import load, open, resume, runs, train
    from ganherd.api.own_loop import Herd
    from ganherd.api.run import Run
    from ganherd.compare.compare_named import compare
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.samples import Samples
    from ganherd.recipe.schema import Recipe
    from ganherd.training.callbacks import Callback
    from ganherd.training.recording.trackers import MLflow, TensorBoard, WandB

# What is imported, and PyTorch with it, when it is first used.
_HOMES = {
    "train": "ganherd.api",
    "resume": "ganherd.api",
    "open": "ganherd.api",
    "load": "ganherd.api",
    "Run": "ganherd.api.run",
    "Mixture": "ganherd.mixture.mixture",
    "Samples": "ganherd.mixture.samples",
    "Herd": "ganherd.api.own_loop",
    "Callback": "ganherd.training.callbacks",
    "TensorBoard": "ganherd.training.recording.trackers",
    "WandB": "ganherd.training.recording.trackers",
    "MLflow": "ganherd.training.recording.trackers",
    "Recipe": "ganherd.recipe.schema",  # without PyTorch
}

__all__ = [
    "Callback", "Herd", "Interrupted", "MLflow", "Mixture", "Recipe", "Run", "Samples", "TensorBoard", "UserError", "WandB",
    "compare", "load", "open", "resume", "runs", "train",
]  # fmt: skip


_CALLED = {"ganherd.runs": ("ganherd.api", "runs"), "ganherd.compare": ("ganherd.compare.compare_named", "compare")}


class _CallablePackage(ModuleType):
    """A package that is also the function of its name: `ganherd.runs()` returns all runs, `ganherd.compare(…)` compares."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function, also for `inspect.signature`."""
        home, name = _CALLED[self.__name__]
        return getattr(import_module(home), name)


for _package in _CALLED:
    import_module(_package).__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    """Import a part of the API when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the API for completion in notebooks."""
    return sorted({*globals(), *__all__})
