"""Give names to nets and data that a user passes as Python objects, so that a recipe can refer to them."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ganherd.data.readers import in_memory
from ganherd.data.samples.python_items import is_python_dataset
from ganherd.recipe.schema import Recipe
from ganherd.recipe.yaml_lines import RecipeData
from ganherd.util.errors import UserError
from ganherd.util.meter import ProgressBar
from ganherd.util.objects.memory_objects import MemoryObject, fingerprint, is_in_memory, label_of

_ROLES = ("generator", "discriminator")


@dataclass
class GivenObjects:
    """Sections of a recipe that name the user's objects, and the objects that are found by such a name only in memory.

    Keep this alive as long as the recipe is used: the names refer to nothing after it is deleted.
    """

    sections: dict[str, RecipeData] = field(default_factory=dict)  # "nets" and "data", if given
    held: list[MemoryObject] = field(default_factory=list)

    @classmethod
    def of(cls, nets: Any = None, data: Any = None, quiet: bool = True) -> GivenObjects:
        """Turn nets and data, in the forms that `ganherd.train` accepts, into sections of a recipe.

        Args:
            quiet: Do not show the progress of reading a torch `Dataset`.

        Raises:
            UserError: The nets or the data have a wrong form.
        """
        given = cls()
        if nets is not None:
            given.sections["nets"] = given.name_nets(nets)
        if isinstance(data, Mapping) and "x" in data:
            raise UserError("data is a mapping of arrays: give (x, y), or (x, y, x_test, y_test).")
        if data is not None:
            section = data if isinstance(data, Mapping) else {"source": data}
            given.sections["data"] = given.name_data(section, quiet)
        return given

    def name_data(self, section: Mapping[str, Any], quiet: bool = True) -> RecipeData:
        """Return the section `data` of a recipe, in which a source that is an object is replaced by its name."""
        source = section.get("source")
        if isinstance(source, os.PathLike):
            return {**section, "source": os.fspath(source)}
        if isinstance(source, str | None):
            return dict(section)
        with ProgressBar("items read", quiet or not is_python_dataset(source)) as bar:
            self.held.append(in_memory.hold(source, bar.at))
        return {**section, "source": self.held[-1].name}

    def name_nets(self, nets: Any) -> RecipeData:
        """Return the section `nets` of a recipe, in which each class or function is replaced by its name."""
        if isinstance(nets, tuple | list):
            if len(nets) != 2:
                raise UserError(f"nets has {len(nets)} entries: give (Generator, Discriminator).")
            nets = dict(zip(_ROLES, nets, strict=True))
        if not isinstance(nets, Mapping):
            raise UserError(f"nets is a {type(nets).__name__}: give (Generator, Discriminator), or a mapping.")
        named = {key: self._net(key, value) if key in _ROLES else value for key, value in nets.items()}
        if isinstance(nets.get("breeds"), list):
            named["breeds"] = [
                {**breed, "generator": self._net("breeds", breed.get("generator"))}
                if isinstance(breed, dict)
                else breed
                for breed in nets["breeds"]
            ]
        return named

    def _net(self, key: str, value: Any) -> Any:
        """Return the name of a net: `module:Class` if it can be imported, otherwise `memory:…`; names are kept."""
        if isinstance(value, Mapping):
            return {**value, "name": self._net(key, value.get("name"))}
        if hasattr(value, "forward") and not isinstance(value, type):
            raise UserError(
                f"nets.{key} is a module: give its class, {type(value).__name__}, or a function that builds one, so that each "
                "member has one."
            )
        if not callable(value):
            return value
        if _can_be_imported(value):
            return f"{value.__module__}:{value.__qualname__}"
        label = getattr(value, "__name__", type(value).__name__).strip("<>")
        self.held.append(MemoryObject(value, label, fingerprint(value)))
        return self.held[-1].name

    def check(self, recipe: Recipe, path: Path) -> None:
        """Raise a `UserError` if the run at `path`, which has this recipe, was trained with other nets or data."""
        for role in _ROLES:
            net = self.sections.get("nets", {}).get(role)
            name = net.get("name") if isinstance(net, dict) else net
            _refuse_another(f"nets.{role}", name, getattr(recipe.nets, role).name, path)
        source = self.sections.get("data", {}).get("source")
        if source is not None and (is_in_memory(source) or is_in_memory(recipe.data.source)):
            _refuse_another("data", source, recipe.data.source, path)


def _refuse_another(what: str, given: str | None, wanted: str, path: Path) -> None:
    if given is None or given == wanted:
        return
    names = [label_of(name) for name in (given, wanted)]
    differs = "its code or content differs" if names[0] == names[1] else f"that is {names[1]}"
    given_name = f"the {what} given" if names[0] == what else f"{what} {names[0]}"
    raise UserError(f"{given_name} is not what {path} was trained with ({differs}): give the same, or start a new run.")


def _can_be_imported(value: Any) -> bool:
    """Return whether a class can be imported by its name in another process, e.g. when its run is resumed."""
    if not isinstance(value, type) or value.__module__ == "__main__" or "<locals>" in value.__qualname__:
        return False
    module = sys.modules.get(value.__module__)
    try:
        return operator.attrgetter(value.__qualname__)(module) is value and bool(getattr(module, "__file__", None))
    except AttributeError:
        return False
