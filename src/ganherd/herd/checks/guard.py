"""Compare every engine with plain PyTorch on a small batch, so that no engine trains a net wrongly without a word.

The comparison does not depend on a list of what engines support. It trains the net on a CPU in float64, once as real module
instances with PyTorch's Adam (see `reference`) and once with each engine, from the same weights, data and random streams. After
every step all outputs, gradients, parameters and buffers must agree. The net trains against a trivial partner, so that a
difference is the net's own.

It covers what an engine makes of a module. It does not cover the GPU's kernels, which the tests compare with plain PyTorch,
and it cannot see what a module does only after more steps than the comparison has.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.breeds import Breeds
from ganherd.herd.checks.agreement import FAILS, Agreement, compare
from ganherd.herd.checks.flops import count_operations
from ganherd.herd.checks.module_copies import short_message
from ganherd.herd.checks.plain_pytorch import AdamSettings, PlainGan, Snapshot
from ganherd.herd.checks.trial import (
    SEATS,
    SMALL_EXTENT,
    ComparisonTask,
    Extent,
    batch_sizes,
    feed_of,
    rules_of,
)
from ganherd.herd.checks.vmap_fallback import slow_operations
from ganherd.herd.engine.engines import Engine, Herd, Plan
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.state import State, buffers_of, new_state, seeded
from ganherd.herd.step.step import SUMS
from ganherd.util.errors import UserError, with_type
from ganherd.util.memory import is_out_of_memory, reason

ENGINES = ("loop", "fused")  # `graph` runs the same lowered net as `fused`
_EXPENSIVE = 2e7  # floating-point operations of a net on one sample, above which the smaller comparison is made

History = list[list[Snapshot]]  # by member: at the start, and after each step


@dataclass(frozen=True)
class GuardReport:
    """What the guard found out about one net."""

    extent: str
    results: dict[str, Agreement]  # by engine
    slow: tuple[str, ...] = ()  # operations that vmap runs member by member, because PyTorch has no rule for all


class _PlainFailure(Exception):
    """Plain PyTorch itself cannot train the net."""


def check(task: ComparisonTask, extent: Extent | None = None) -> GuardReport:
    """Train the net plainly and with each engine, and compare.

    Args:
        extent: how much to compute; by default less for a net that is expensive on a CPU.

    Raises:
        UserError: if plain PyTorch cannot train the net either, or if there is not enough memory.
    """
    extent = extent or (SMALL_EXTENT if _work(task) > _EXPENSIVE else Extent())
    *few, own = batch_sizes(task.batch)
    try:
        for batch in few:
            with suppress(UserError):  # the net may need the number of samples that it trains on
                report = _check(task, replace(extent, batch=batch))
                if not report.results["loop"].failed:
                    return report
        return _check(task, replace(extent, batch=own))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"There is not enough memory to compare the {task.role} {task.name} with plain PyTorch ({reason(error)}). "
            "Free memory, or use a smaller net."
        ) from error


def _work(task: ComparisonTask) -> float:
    """Return the floating-point operations of the net on one sample; 0 if it does not run."""
    try:
        return count_operations(task.make, task.input, batch_sizes(task.batch))
    except Exception:  # the comparison reports it
        return 0.0


def _check(task: ComparisonTask, extent: Extent) -> GuardReport:
    dtype, plain = _reference(task, extent)
    with slow_operations() as slow:
        results = {name: _result(task, extent, dtype, name, plain) for name in ENGINES}
    return GuardReport(extent.describe(dtype), results, tuple(sorted(slow)))


# -- the two sides of the comparison ----------------------------------------------------------------------------------


def _reference(task: ComparisonTask, extent: Extent) -> tuple[torch.dtype, History]:
    """Train plainly in float64, or in float32 if the module has tensors that only fit that."""
    failures = []
    for dtype, apart in product((torch.float64, torch.float32), (False, True)):
        try:
            return dtype, _plain(task, extent, dtype, apart)
        except _PlainFailure as error:
            failures.append(str(error))
    raise UserError(
        f"The {task.role} {task.name} cannot be trained by plain PyTorch: {failures[-1]}. Correct the module."
    )


def _plain(task: ComparisonTask, extent: Extent, dtype: torch.dtype, apart: bool) -> History:
    """Train real module instances, one member after another; see `PlainGan` for `apart`."""
    rules, feed, found = rules_of(task, extent), feed_of(task, extent, dtype), []
    try:
        with seeded_generators(0):  # the engines get other seeds: a net that draws from these generators differs
            for row, seat in enumerate(SEATS):
                keys = (rng.key(seat.base_key(), purpose) for purpose in (rng.INIT_G, rng.INIT_D))
                g, d = (seeded(make, key).to(dtype) for make, key in zip(task.pair(), keys, strict=True))
                gan = PlainGan(g, d, row, np.array([seat.base_key()]), rules, feed, AdamSettings(), apart)
                found.append([gan.snapshot()])
                for step in range(extent.steps):
                    gan.step(step)
                    found[-1].append(gan.snapshot())
    except UserError:
        raise
    except Exception as error:  # a user's module may raise anything
        if is_out_of_memory(error):
            raise
        raise _PlainFailure(with_type(error)) from error
    return found


def _result(task: ComparisonTask, extent: Extent, dtype: torch.dtype, name: str, plain: History) -> Agreement:
    """Train with one engine, as often as the extent says, always from the same start."""
    try:
        with seeded_generators(1):
            herd = _herd(task, extent, dtype)
            start = {key: value.clone() for key, value in herd.state.items()}
            engine = Engine(herd, Plan(name, len(SEATS), 1, "cpu"))
        worst = Agreement(0.0)
        for number in range(extent.passes):
            with seeded_generators(2 + number):
                worst = max(worst, _one_pass(engine, start, plain, task.kind, dtype), key=_severity)
            if worst.why:
                break
        return worst
    except Exception as error:  # whatever stops the engine: it cannot be used for this net
        if is_out_of_memory(error):
            raise
        return Agreement(math.nan, FAILS + short_message(error))


def _one_pass(engine: Engine, start: State, plain: History, net: str, dtype: torch.dtype) -> Agreement:
    """Train with the engine up to the first step after which it differs from plain PyTorch."""
    herd, worst = engine.herd, Agreement(0.0)
    for name, value in herd.state.items():
        value.copy_(start[name])
    for step in range(len(plain[0])):
        sums = herd.zero_sums()
        if step:
            engine.advance(step - 1, step, sums)
        for row, snapshots in enumerate(plain):
            there = _snapshot(herd, sums if step else None, row)
            found = compare(snapshots[step], there, net, dtype, "" if step else "initial")
            worst = max(worst, found, key=_severity)
        if worst.why:
            break
    return worst


def _severity(one: Agreement) -> tuple[bool, float]:
    return bool(one.why), one.difference


def _snapshot(herd: Herd, sums: Tensor | None, row: int) -> Snapshot:
    """The same as `PlainGan.snapshot`, of one member of an engine's herd; `sums`: of its last step, if it made one."""
    out: Snapshot = {}
    for kind, net in (("g", herd.g), ("d", herd.d)):
        named = {**net.views(herd.state[f"{kind}.params"]), **buffers_of(herd.state, kind)}
        out |= {(kind, "value", name): value[row] for name, value in named.items()}
        if sums is not None:
            gradients = net.views(herd.state[f"{kind}.adam.m"])  # beta1 is zero: of the last update alone
            out |= {(kind, "gradient", name): value[row] for name, value in gradients.items()}
    if sums is not None:
        out |= {("", "output", name): sums[number, row] for number, name in enumerate(SUMS)}
    return out


def _herd(task: ComparisonTask, extent: Extent, dtype: torch.dtype) -> Herd:
    adam, make_g, make_d = AdamSettings(), *task.pair()
    both = [1.0] * len(SEATS)
    settings = {
        "lr_g": [adam.lr * one for one in both],
        "lr_d": [adam.lr * one for one in both],
        "beta1": [adam.beta1 * one for one in both],
        "beta2": [adam.beta2 * one for one in both],
    }
    g, d, state = new_state(make_g, make_d, SEATS, {**settings, "loss": [0] * len(SEATS)}, dtype, ema=False)
    if task.traits is not None:
        (g if task.kind == "g" else d).adopt(task.traits)
    feed = feed_of(task, extent, dtype)
    return Herd(Breeds([("net", g, len(SEATS))]), d, state, rules_of(task, extent), feed, torch.device("cpu"))
