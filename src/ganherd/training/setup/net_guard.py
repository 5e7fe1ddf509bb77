"""Check a recipe's nets before a run starts: which engines train them as plain PyTorch does. The results are cached."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import nn

from ganherd import nets
from ganherd.comm.ranks import run_on_all_ranks
from ganherd.features.cache import cache_folder
from ganherd.herd.checks import guard
from ganherd.herd.checks.agreement import FAILS, Agreement
from ganherd.herd.checks.gradient_flags import line_that_reads_flag
from ganherd.herd.checks.guard import GuardReport
from ganherd.herd.checks.trial import SMALL_EXTENT, ComparisonTask
from ganherd.herd.engine.engines import Plan, new_plan
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.lowering.graph.trace import NotTraceable, trace
from ganherd.herd.lowering.vmap import mute_slow_operations
from ganherd.herd.state import Blueprint
from ganherd.nets import catalog
from ganherd.recipe.schema import NetConfig
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject, write_cache
from ganherd.util.host import give_back
from ganherd.util.objects.memory_objects import label_of
from ganherd.util.user_code import importable_from, installed_folders
from ganherd.util.version import PACKAGE, __version__

_STATE_OR_DRAWS = (
    " Likely cause: forward keeps Python state from call to call, or draws random numbers outside of the member's stream. "
    "Keep state in buffers, and draw with torch.rand or torch.randn."
)
_FLAGS = (
    " Likely cause: its output depends on requires_grad{line}, which is true for parameters in plain PyTorch, but here only "
    "while they are trained. Leave requires_grad out of forward."
)
_REPORT = TypeAdapter(GuardReport)
_NARROW = 4  # channels of a packaged net while it is checked: its code is the same at every width


def examine(prepared: PreparedHerd, say: Callable[[str], None] = lambda text: None, plan: Plan | None = None) -> None:
    """Check all nets on the first rank, and mark on all ranks those that cannot be run for all members at once (fused).

    A net cannot be fused if it then gives other results than in plain PyTorch. It is run for one member after another.

    Args:
        say: Called with messages for the user.
        plan: The recorded engine of a run that is resumed; None for a new run.

    Raises:
        UserError: Even the engine `loop` does not train a net as plain PyTorch does.
    """
    ranks = prepared.ranks
    reasons = run_on_all_ranks(ranks.member_comm, lambda: _reasons(prepared, say, plan) if ranks.is_first else [])
    for blueprint, why in zip(_blueprints(prepared), ranks.broadcast(reasons), strict=True):
        if why:
            blueprint.adopt(blueprint.traits._replace(why_not_fused=why))
    mute_slow_operations()  # --explain names the operations


def _reasons(prepared: PreparedHerd, say: Callable[[str], None], plan: Plan | None) -> list[str]:
    """Return for each net the reason why it cannot be fused, empty if it can; see `examine`."""
    out = []
    for task, report in checked(prepared, say, plan):
        loop, fused = (report.results[engine] for engine in ("loop", "fused"))
        if loop.why:
            raise UserError(
                f"The {task.role} {task.name} cannot be trained as plain PyTorch trains it: with the engine loop, "
                f"{loop.why}.{'' if loop.failed else _likely_cause(task)}"
            )
        out.append(_why_alone(fused))
    return out


def _likely_cause(task: ComparisonTask) -> str:
    """Return sentences for users about why the engine `loop` trains a net differently from plain PyTorch."""
    line = line_that_reads_flag(task)
    return _STATE_OR_DRAWS if line is None else _FLAGS.format(line=line)


def _why_alone(fused: Agreement) -> str:
    """Return the reason why a net cannot be fused; empty if it can.

    Args:
        fused: How the engine `fused` agrees with PyTorch.
    """
    if fused.failed:
        return f"it cannot run for all members at once: {fused.why.removeprefix(FAILS)}"
    return fused.why and f"for all members at once it is not what it is in plain PyTorch: {fused.why}"


def _blueprints(prepared: PreparedHerd) -> list[Blueprint]:
    """Return the nets of a herd in the order of `tasks`."""
    return [*(breed.g for breed in prepared.herd.breeds.all), prepared.herd.d]


def refuse(prepared: PreparedHerd, engine: str) -> None:
    """Raise a `UserError` if a run is to be continued with an engine that fuses nets which cannot be fused."""
    for net in _blueprints(prepared):
        if net.traits.why_not_fused and engine != "loop":
            raise UserError(
                f"This run was trained with the engine {engine}, but its nets cannot be fused "
                f"({type(net.module).__name__}: {net.traits.why_not_fused}): train the recipe again in a new run."
            )


def checked(
    prepared: PreparedHerd, say: Callable[[str], None] = lambda text: None, plan: Plan | None = None
) -> Iterator[tuple[ComparisonTask, GuardReport]]:
    """Yield each net of a recipe, generators first, with a report that compares it with plain PyTorch.

    The report comes from the cache or from a new comparison.

    Args:
        say: Called with messages for the user.
        plan: The recorded engine of a run that is resumed; None for a new run.
    """
    operations = (plan or new_plan("fused", 1, 1, prepared.herd.device)).operations
    for net, task in tasks(prepared):
        task = replace(task, operations=operations)
        foreign = not catalog.is_packaged(net.name)
        path = _cache_path(net, task)
        report = _read(path) if path else None
        if report is None:
            if foreign:
                say(f"note: the {task.role} {task.name} is compared with plain PyTorch first, once.")
            report = guard.check(task, None if foreign else SMALL_EXTENT)
            give_back()
            if path and not report.results["loop"].why:
                write_cache(path, asdict(report))
        yield task, report


def tasks(prepared: PreparedHerd) -> list[tuple[NetConfig, ComparisonTask]]:
    """Return the nets to compare with plain PyTorch, generators first, each with the task that compares it.

    A user's nets are compared as they are, ganherd's own with few channels.
    """
    recipe, data, herd = prepared.recipe, prepared.dataset, prepared.herd
    classes, trust, batch = len(data.labels), prepared.trusted, recipe.train.batch

    def build(maker: Callable[..., nn.Module], net: NetConfig, *arguments: Any) -> nn.Module:
        with importable_from(recipe.code):
            return maker(narrowed(net), *arguments, trust_code=trust)

    out = []
    for (net, _), breed in zip(recipe.nets.each(prepared.members), herd.breeds.all, strict=True):
        latent = min(recipe.nets.latent, _NARROW) if catalog.is_packaged(net.name) else recipe.nets.latent
        make, traits = partial(build, nets.build_generator, net, data.shape, latent, classes), breed.g.traits
        task = ComparisonTask(
            "generator", label_of(net.name), make, data.shape, latent, classes, traits=traits, batch=batch
        )
        out.append((net, task))
    net, traits = recipe.nets.discriminator, herd.d.traits
    make = partial(build, nets.build_discriminator, net, data.shape, classes)
    penalty, r1 = herd.rules.game.penalty, herd.rules.r1 > 0 or herd.rules.r2 > 0
    task = ComparisonTask("discriminator", label_of(net.name), make, data.shape, 1, classes, penalty, r1, traits, batch)
    return [*out, (net, task)]


def narrowed(net: NetConfig) -> NetConfig:
    """Return the settings of a packaged net with at most 4 channels; those of a user's net unchanged.

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
    """Return a report as JSON values; a difference that is not finite becomes None."""
    engines = {
        name: {"difference": result.difference if math.isfinite(result.difference) else None, "why": result.why}
        for name, result in report.results.items()
    }
    return {"extent": report.extent, "engines": engines, "slow": list(report.slow)}


# -- the cache --------------------------------------------------------------------------------------------------------


def _cache_path(net: NetConfig, task: ComparisonTask) -> Path | None:
    """Return the cache file of a comparison, named by a hash of everything that its result depends on.

    None if the result must not be cached, because the code of the net is in no file, or if there is no cache folder.
    """
    code = [] if catalog.is_packaged(net.name) else _user_code(task)
    if code is None:
        return None
    inputs = [
        __version__, torch.__version__, platform.python_version(), platform.machine(), _own_code(), code,
        task.role, narrowed(net).model_dump(), task.shape, task.latent, task.classes, task.penalty, task.r1,
        task.batch, task.operations,
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(inputs, default=str).encode()).hexdigest()
    try:
        return cache_folder("guard") / f"{name}.json"
    except UserError:  # there is no home folder, so there is no cache
        return None


@cache
def _own_code() -> str:
    """Return a hash of those files of this package that determine what engines, nets and losses compute."""
    return _files(file for folder in ("herd", "nets", "losses") for file in (PACKAGE / folder).rglob("*.py"))


def _user_code(task: ComparisonTask) -> list[str] | None:
    """Return the graph of a user's net, its layers as text, and a hash of its code; None if its code is in no file."""
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
    """Yield Python files of this process that belong to no installed package: the user's own."""
    installed = installed_folders()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file) and file.endswith(".py") and not file.startswith(installed):
            yield Path(file)


def _files(paths: Iterable[Path]) -> str:
    """Return a hash of the contents of files; a missing file counts as empty."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return digest.hexdigest()


def _read(path: Path) -> GuardReport | None:
    """Return a cached report; None if it is missing, damaged or of other engines."""
    try:
        report = _REPORT.validate_json(path.read_bytes())
    except (OSError, ValueError):  # missing or damaged: compare again
        return None
    return report if set(report.results) == set(guard.ENGINES) else None
