"""Find the plug-ins that a recipe names: registered nets, losses, metrics, … that are not ganherd's own.

A name of the form `package.module:name` is always a plug-in, which is imported from there.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.recipe.sources.data_address import HUB
from ganherd.util.files import JsonObject
from ganherd.util.objects.memory_objects import is_in_memory
from ganherd.util.paths import expanded
from ganherd.util.registry import (
    AUGMENTATIONS,
    DATA_SOURCES,
    DISCRIMINATORS,
    ENGINES,
    GENERATORS,
    LOSSES,
    METRICS,
    STRATEGIES,
    Registry,
    is_target,
)
from ganherd.util.user_code import is_installed

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

_MOST_FILES = 1000  # most files of a package that are read for its hash


def is_named_source(source: str) -> bool:
    """Return whether `data.source` is the name of a data source, not a path or an address.

    A text that looks like `package.module:name` is a path if such a file exists.

    >>> is_named_source("digits"), is_named_source("hf:mnist")
    (True, False)
    """
    if is_in_memory(source) or source.startswith(HUB):  # an object, or a data set of the Hub: `hf` is no module
        return False
    return DATA_SOURCES.is_known(source) and not (is_target(source) and expanded(source).exists())


def plugins_of(recipe: Recipe) -> Iterator[tuple[Registry[Any], str]]:
    """Yield the registry and the name of each plug-in that training this recipe uses, each once."""
    yield from dict.fromkeys((registry, name) for registry, name in _names(recipe) if not registry.is_own(name))


def _names(recipe: Recipe) -> Iterator[tuple[Registry[Any], str]]:
    """Yield every name of a registered entry that training this recipe uses, with its registry."""
    nets, mutation, trials = recipe.nets, recipe.strategy.settings.mutation_rules, recipe.each_trial
    yield STRATEGIES, recipe.strategy.name
    if is_named_source(recipe.data.source):
        yield DATA_SOURCES, recipe.data.source
    yield from ((GENERATORS, net.name) for net in (nets.generator, *(breed.generator for breed in nets.breeds)))
    yield DISCRIMINATORS, nets.discriminator.name
    for name in (*(name for trial in trials for name in trial.loss.names), *mutation.losses, mutation.d_loss):
        if name is not None:
            yield LOSSES, name
    consistency = recipe.loss.consistency_augment if any(trial.loss.uses_consistency for trial in trials) else []
    for one in (*recipe.train.augment, *consistency):
        yield AUGMENTATIONS, one if isinstance(one, str) else one.name
    for metric in recipe.run.metrics:
        yield METRICS, metric if isinstance(metric, str) else metric.name
    if recipe.engine.name != "auto":
        yield ENGINES, recipe.engine.name


def record_of(recipe: Recipe) -> list[JsonObject]:
    """Return what run.json records about each plug-in: its package and version, its module, and a hash of its code."""
    records = []
    for registry, name in plugins_of(recipe):
        if is_in_memory(name):  # an object given in Python, whose name contains its hash
            continue
        package, version = registry.package_of(name)
        module = registry.module_of(name)
        facts = {"package": package, "version": version, "module": module, "sha256": code_digest(module)}
        records.append({"kind": registry.kind, "name": name, **facts})
    return records


def code_digest(module: str) -> str:
    """Return a SHA-256 digest over the Python files of the imported package that a module belongs to.

    If it belongs to no package, its own file is used. Those files of the user that these import, and that belong to no
    installed package, count as well, wherever they lie. Return "" if there is no file.
    """
    top = sys.modules.get(module.partition(".")[0])
    path = getattr(top, "__file__", None)
    if not isinstance(path, str) or not Path(path).is_file():
        return ""
    file = Path(path)
    files = sorted(file.parent.rglob("*.py"))[:_MOST_FILES] if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for each in files:
        digest.update(hashlib.sha256(each.read_bytes()).digest())
    helpers = (hashlib.sha256(each.read_bytes()).digest() for each in _helpers(module) - set(files))
    for one in sorted(helpers):  # not in the order of their paths, because a folder may move
        digest.update(one)
    return digest.hexdigest()


def _helpers(module: str) -> set[Path]:
    """Return the files of an imported module and of all modules that it imports, except those of installed packages."""
    files: set[Path] = set()
    seen, todo = {module}, [module]
    while todo and len(files) < _MOST_FILES:
        name = todo.pop()
        path = getattr(sys.modules.get(name), "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py") or is_installed(path) or not Path(path).is_file():
            continue
        files.add(Path(path))
        new = set(_imported_names(Path(path), sys.modules[name].__package__ or "")) - seen
        seen |= new
        todo += sorted(new)
    return files


def _imported_names(file: Path, package: str) -> Iterator[str]:
    """Yield the names of modules that a file imports; some of the names may be those of classes or functions.

    What functions import is left out: whether it is imported already depends on what has run.

    Args:
        package: The package of the file, to which relative imports refer.
    """
    try:
        todo: list[ast.AST] = [ast.parse(file.read_bytes())]
    except (SyntaxError, ValueError):  # it has changed since it was imported
        return
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            yield from _with_packages(source)
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def _with_packages(module: str) -> list[str]:
    """Return the name of a module after those of the packages around it, which are imported first.

    >>> _with_packages("mine.nets.blocks")
    ['mine', 'mine.nets', 'mine.nets.blocks']
    """
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
