"""ganherd trains many GANs as one: `train` a recipe, `load` the mixture it ends as.

>>> import ganherd
>>> run = ganherd.train("digits-wcgan", ["train.budget=2steps"], run="runs/two-steps", quiet=True)
>>> ganherd.load(run.path).sample(4, label="7").x.shape
(4, 1, 8, 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.recipe.schema import Recipe
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.version import __version__ as __version__

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture
    from ganherd.training.start import Run

__all__ = ["Interrupted", "Recipe", "UserError", "load", "resume", "train"]


def train(
    recipe: str | Path | dict[str, Any] | Recipe = "digits-wcgan",
    overrides: Sequence[str] = (),
    *,
    run: str | Path | None = None,
    quiet: bool = False,
    trust_code: bool = False,
) -> Run:
    """Trains a recipe (a packaged name, a file, a mapping or a `Recipe`) in a new run folder.

    The modules that your own recipe names are imported. `trust_code` also allows TorchScript, and the modules that a recipe
    file in a run folder names.

    In a mapping, the nets (`nets.generator`, `nets.discriminator`, those of `nets.breeds`) may be classes: your own plain
    `nn.Module`s for one GAN.
    """
    from ganherd.recipe import recipe_file, trust
    from ganherd.training import start

    if isinstance(recipe, dict):
        recipe = _with_names(recipe)
    name = Path(recipe).stem if isinstance(recipe, (str, Path)) else "run"
    loaded = recipe_file.load(recipe, overrides)
    trust.check_recipe(loaded, recipe, trust_code)
    return start.begin(loaded, run, name, quiet)


def resume(path: str | Path, overrides: Sequence[str] = (), *, quiet: bool = False, trust_code: bool = False) -> Run:
    """Goes on with an interrupted run, exactly; `overrides` may give it a longer train.budget."""
    from ganherd.training import start

    return start.resume(path, overrides, quiet, trust_code)


def load(path: str | Path, *, trust_code: bool = False) -> Mixture:
    """The mixture of a run. Loading executes no code of the run's; `trust_code` lets it import the nets that it names."""
    from ganherd.mixture import mixture

    return mixture.load(path, trust_code)


def _with_names(recipe: dict[str, Any]) -> dict[str, Any]:
    """Classes among the nets by the names under which they can be imported again."""
    nets = recipe.get("nets")
    if not isinstance(nets, dict):
        return recipe

    named = {key: _with_name(key, value) for key, value in nets.items()}
    if isinstance(nets.get("breeds"), list):
        named["breeds"] = [
            {**breed, "generator": _with_name("breeds", breed.get("generator"))} if isinstance(breed, dict) else breed
            for breed in nets["breeds"]
        ]
    return {**recipe, "nets": named}


def _with_name(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "name": _with_name(key, value.get("name"))}
    if not isinstance(value, type):
        if hasattr(value, "forward"):
            raise UserError(
                f"nets.{key} is a module: give its class, {type(value).__name__}, so that each member has one."
            )
        return value
    if "<locals>" in value.__qualname__:
        raise UserError(
            f"nets.{key}: {value.__name__} is defined inside of a function, where no other program could find it again; "
            "define it at the top of a script or module."
        )
    return f"{value.__module__}:{value.__qualname__}"
