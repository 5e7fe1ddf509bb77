"""The plug-ins that a recipe names: entries of registries that are not ganherd's own, and `package.module:name`."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

_MOST_FILES = 1000  # of a package that are read for its fingerprint


def is_named_source(source: str) -> bool:
    """Return whether `data.source` is a name, not a path. A file whose path looks like `package.module:name` is a path.

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
    """Yield all names of entries in a recipe."""
    nets, losses, mutation = recipe.nets, recipe.loss.name, recipe.strategy.settings.mutation_rules
    yield STRATEGIES, recipe.strategy.name
    if is_named_source(recipe.data.source):
        yield DATA_SOURCES, recipe.data.source
    yield from ((GENERATORS, net.name) for net in (nets.generator, *(breed.generator for breed in nets.breeds)))
    yield DISCRIMINATORS, nets.discriminator.name
    for name in (*(losses if isinstance(losses, list) else [losses]), *mutation.losses, mutation.d_loss):
        if name is not None:
            yield LOSSES, name
    consistency = recipe.loss.consistency_augment if recipe.loss.uses_consistency else []
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
        if is_in_memory(name):  # its fingerprint is part of its name
            continue
        package, version = registry.package_of(name)
        module = registry.module_of(name)
        facts = {"package": package, "version": version, "module": module, "sha256": code_digest(module)}
        records.append({"kind": registry.kind, "name": name, **facts})
    return records


def code_digest(module: str) -> str:
    """Return the SHA-256 of the Python files of the package that a module belongs to, or of its file; "" if it has none."""
    top = sys.modules.get(module.partition(".")[0])
    path = getattr(top, "__file__", None)
    if not isinstance(path, str) or not Path(path).is_file():
        return ""
    file = Path(path)
    digest = hashlib.sha256()
    for each in sorted(file.parent.rglob("*.py"))[:_MOST_FILES] if file.name == "__init__.py" else [file]:
        digest.update(hashlib.sha256(each.read_bytes()).digest())
    return digest.hexdigest()
