"""Check a recipe's nets before a run starts: which engines compute what plain PyTorch does. The results are cached."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ganherd import nets
from ganherd.comm.ranks import run_on_all_ranks
from ganherd.features.cache import cache_folder
from ganherd.herd.checks import guard
from ganherd.herd.checks.agreement import FAILS, Agreement
from ganherd.herd.checks.guard import GuardReport
from ganherd.herd.checks.trial import SMALL_EXTENT, ComparisonTask
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.lowering.trace import NotTraceable, trace
from ganherd.herd.lowering.vmap import mute_slow_operations
from ganherd.herd.state import Blueprint
from ganherd.nets import catalog
from ganherd.recipe.schema import NetConfig
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject, atomic_write
from ganherd.util.host import give_back
from ganherd.util.user_code import importable_from, is_installed
from ganherd.util.version import PACKAGE, __version__

_LIKELY_CAUSE = (
    " Likely cause: forward keeps Python state from call to call, or draws random numbers outside of the member's stream. "
    "Keep state in buffers, and draw with torch.rand or torch.randn."
)
_NARROW = 4  # channels of a packaged net while it is checked: its code is the same at every width


def examine(assembly: PreparedHerd, say: Callable[[str], None] = lambda text: None) -> None:
    """Let the first rank check all nets, and let no rank run those for all members at once that come out differently then.

    Raises:
        UserError: if the engine `loop` would not train a net as plain PyTorch does either.
    """
    ranks = assembly.ranks
    reasons = run_on_all_ranks(ranks.member_comm, lambda: _reasons(assembly, say) if ranks.is_first else [])
    for blueprint, why in zip(_blueprints(assembly), ranks.broadcast(reasons), strict=True):
        if why:
            blueprint.adopt(blueprint.traits._replace(why_not_fused=why))
    mute_slow_operations()  # --explain names the operations


def _reasons(assembly: PreparedHerd, say: Callable[[str], None]) -> list[str]:
    """Return for each net why it cannot be fused; empty: it can."""
    out = []
    for task, report in checked(assembly, say):
        loop, fused = (report.results[engine] for engine in ("loop", "fused"))
        if loop.why:
            raise UserError(
                f"The {task.role} {task.name} cannot be trained as plain PyTorch trains it: with the engine loop, "
                f"{loop.why}.{'' if loop.failed else _LIKELY_CAUSE}"
            )
        out.append(_why_alone(fused))
    return out


def _why_alone(fused: Agreement) -> str:
    """Return why all members at once cannot run a net; empty: they can."""
    if fused.failed:
        return f"it cannot run for all members at once: {fused.why.removeprefix(FAILS)}"
    return fused.why and f"for all members at once it is not what it is in plain PyTorch: {fused.why}"


def _blueprints(assembly: PreparedHerd) -> list[Blueprint]:
    """Return the nets of a herd in the order of `tasks`."""
    return [*(breed.g for breed in assembly.herd.breeds.all), assembly.herd.d]


def refuse(assembly: PreparedHerd, engine: str) -> None:
    """Refuse to continue a run with an engine that trains its nets wrongly.

    Raises:
        UserError: if the engine may not train these nets.
    """
    for net in _blueprints(assembly):
        if net.traits.why_not_fused and engine != "loop":
            raise UserError(
                f"This run was trained with the engine {engine}, but its nets cannot be fused "
                f"({type(net.module).__name__}: {net.traits.why_not_fused}): train the recipe again in a new run."
            )


def checked(
    assembly: PreparedHerd, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[ComparisonTask, GuardReport]]:
    """Yield each net of a recipe, generators first, with its report from the cache or from a new comparison."""
    for net, task in tasks(assembly):
        foreign = not catalog.is_packaged(net.name)
        path = _cache_path(net, task)
        report = _read(path) if path else None
        if report is None:
            if foreign:
                say(f"note: the {task.role} {task.name} is compared with plain PyTorch first, once.")
            report = guard.check(task, None if foreign else SMALL_EXTENT)
            give_back()
            if path and not report.results["loop"].why:
                _write(path, report)
        yield task, report


def tasks(assembly: PreparedHerd) -> list[tuple[NetConfig, ComparisonTask]]:
    """Return what is compared: a user's nets as they are, the package's own narrowed."""
    recipe, data, herd = assembly.recipe, assembly.dataset, assembly.herd
    classes, trust, batch = len(data.labels), assembly.trusted, recipe.train.batch

    def build(maker: Callable[..., nn.Module], net: NetConfig, *given: Any) -> nn.Module:
        with importable_from(recipe.code):
            return maker(narrowed(net), *given, trust_code=trust)

    out = []
    for (net, _), breed in zip(recipe.nets.each(assembly.members), herd.breeds.all, strict=True):
        latent = min(recipe.nets.latent, _NARROW) if catalog.is_packaged(net.name) else recipe.nets.latent
        make = partial(build, nets.build_generator, net, data.shape, latent, classes)
        traits = breed.g.traits
        out.append(
            (net, ComparisonTask("generator", net.name, make, data.shape, latent, classes, traits=traits, batch=batch))
        )
    net = recipe.nets.discriminator
    make = partial(build, nets.build_discriminator, net, data.shape, classes)
    penalty, r1 = herd.rules.game.penalty, herd.rules.r1 > 0
    out.append(
        (
            net,
            ComparisonTask("discriminator", net.name, make, data.shape, 1, classes, penalty, r1, herd.d.traits, batch),
        )
    )
    return out


def narrowed(net: NetConfig) -> NetConfig:
    """Return a packaged net with few channels; a user's own as it is.

    >>> narrowed(NetConfig(name="mlp", settings={"hidden": [256, 2], "activation": "tanh"})).settings
    {'hidden': [4, 2], 'activation': 'tanh'}
    """
    if not catalog.is_packaged(net.name):
        return net

    def few(value: Any) -> Any:
        return [min(one, _NARROW) for one in value] if isinstance(value, list) else min(value, _NARROW)

    widths = ("width", "hidden", "first")
    return NetConfig(name=net.name, settings={k: few(v) if k in widths else v for k, v in net.settings.items()})


def facts(report: GuardReport) -> JsonObject:
    """Return a report as JSON values, which know no infinity."""
    engines = {
        name: {"difference": result.difference if math.isfinite(result.difference) else None, "why": result.why}
        for name, result in report.results.items()
    }
    return {"extent": report.extent, "engines": engines, "slow": list(report.slow)}


# -- the cache --------------------------------------------------------------------------------------------------------


def _cache_path(net: NetConfig, task: ComparisonTask) -> Path | None:
    """Return the file of this comparison, named by all that its result depends on; None if it cannot be cached."""
    code = [] if catalog.is_packaged(net.name) else _user_code(task)
    if code is None:
        return None
    parts = [
        __version__, torch.__version__, platform.python_version(), platform.machine(), _files(_own_code()), code,
        task.role, narrowed(net).model_dump(), task.shape, task.latent, task.classes, task.penalty, task.r1,
        task.batch,
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()
    try:
        return cache_folder("guard") / f"{name}.json"
    except UserError:  # there is no home folder, so there is no cache
        return None


def _own_code() -> list[Path]:
    """Files of this package that decide what an engine, a net or plain PyTorch computes."""
    return [file for folder in ("herd", "nets", "losses") for file in (PACKAGE / folder).rglob("*.py")]


def _user_code(task: ComparisonTask) -> list[str] | None:
    """Describe a user's net: its graph, its layers, and all code that is not an installed package's."""
    try:
        with seeded_generators(0):
            module = task.make()
        files = {Path(inspect.getfile(type(layer))) for layer in module.modules()}
    except Exception:  # a class of a notebook has no file, and a constructor may raise anything: `check` reports it
        return None
    if not all(file.is_file() for file in files):
        return None
    try:
        graph = "\n".join(str(node.format_node()) for node in trace(module).nodes)
    except NotTraceable as error:
        graph = str(error)
    return [graph, str(module), _files(files | set(_loaded_files()))]


def _loaded_files() -> Iterator[Path]:
    """Python files of this process that belong to no installed package: the user's own."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and file.endswith(".py") and not is_installed(file):
            yield Path(file)


def _files(paths: Iterable[Path]) -> str:
    """Hash the contents of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return found.hexdigest()


def _read(path: Path) -> GuardReport | None:
    try:
        found: Mapping[str, Any] = json.loads(path.read_text())
        results = {
            str(name): Agreement(math.nan if one["difference"] is None else float(one["difference"]), str(one["why"]))
            for name, one in found["engines"].items()
        }
        slow = tuple(map(str, found["slow"]))
        return GuardReport(str(found["extent"]), results, slow) if set(results) == set(guard.ENGINES) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # missing or damaged: compare anew
        return None


def _write(path: Path, report: GuardReport) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(facts(report)), sync=False)
    except OSError:
        pass  # a cache that cannot be written costs only the next comparison
