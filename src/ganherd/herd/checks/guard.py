"""Compare every engine with plain PyTorch on a small batch, so that no engine silently trains a net wrongly.

There is no list of what engines support. Instead, the net is trained on a CPU in float64, once as real module instances
with PyTorch's Adam (see `plain_pytorch`) and once with each engine, from the same weights, data and random streams.
After every step all outputs, gradients, parameters and buffers must agree. The net trains against a trivial partner, so
any difference comes from the net under test. Two members (GANs) are trained, so that an engine that mixes them up is
noticed.

The comparison covers how engines run a module. It does not cover GPU kernels, which the tests compare with plain
PyTorch, nor behaviour that begins after more steps than it makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.breeds import Breeds
from ganherd.herd.checks.agreement import FAILS, Agreement, compare
from ganherd.herd.checks.flops import count_operations
from ganherd.herd.checks.module_copies import short_message
from ganherd.herd.checks.plain_pytorch import ADAM, PlainGan, Snapshot
from ganherd.herd.checks.trial import SEATS, SMALL_EXTENT, ComparisonTask, Extent, batch_sizes, feed_of, rules_of
from ganherd.herd.engine.engines import Engine, Plan, StackedHerd
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.lowering.vmap import slow_operations
from ganherd.herd.state import State, buffers_of, build_seeded, new_state
from ganherd.herd.step.step import SUMS
from ganherd.util.errors import UserError, with_type
from ganherd.util.memory import is_out_of_memory, reason

ENGINES = ("loop", "fused")  # `graph` need not be compared: it runs the same lowered net as `fused`
_EXPENSIVE = 2e7  # nets with more floating-point operations per sample are compared with fewer steps (`SMALL_EXTENT`)

History = list[list[Snapshot]]  # for each member, the snapshots at the start and after each step


@dataclass(frozen=True)
class GuardReport:
    """The result of the comparison for one net."""

    extent: str  # how much was computed, for users; see `Extent.describe`
    results: dict[str, Agreement]  # by engine
    slow: tuple[str, ...] = ()  # operations that vmap runs member by member, because PyTorch has no batching rule


class _PlainFailure(Exception):
    """Raised if plain PyTorch itself cannot train the net."""


def check(
    task: ComparisonTask, extent: Extent | None = None, dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32)
) -> GuardReport:
    """Train a net with plain PyTorch and with each engine, and compare the results.

    Small batches are tried first, and the batch of the recipe if the net does not run with them.

    Args:
        task: The net to check.
        extent: How much to compute; None: less for a net that is expensive on a CPU.
        dtypes: The dtypes to try, in this order, until plain PyTorch can train the net.

    Raises:
        UserError: If plain PyTorch cannot train the net either, or if there is not enough memory.
    """
    extent = extent or (SMALL_EXTENT if _work(task) > _EXPENSIVE else Extent())
    *few, own = batch_sizes(task.batch)
    try:
        for batch in few:
            with suppress(UserError):  # the net may need the full batch
                report = _check(task, replace(extent, batch=batch), dtypes)
                if not report.results["loop"].failed:
                    return report
        return _check(task, replace(extent, batch=own), dtypes)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"There is not enough memory to compare the {task.role} {task.name} with plain PyTorch ({reason(error)}). "
            "Free memory, or use a smaller net."
        ) from error


def _work(task: ComparisonTask) -> float:
    """Return the floating-point operations of a net per sample; 0 if it does not run."""
    try:
        return count_operations(task.make, task.input, batch_sizes(task.batch))
    except Exception:  # the comparison reports the error
        return 0.0


def _check(task: ComparisonTask, extent: Extent, dtypes: Sequence[torch.dtype]) -> GuardReport:
    """Compare all engines with plain PyTorch, with one batch size and number of steps."""
    dtype, plain = _reference(task, extent, dtypes)
    with slow_operations() as slow:
        results = {name: _result(task, extent, dtype, name, plain) for name in ENGINES}
    return GuardReport(extent.describe(dtype), results, tuple(sorted(slow)))


# -- the two sides of the comparison ----------------------------------------------------------------------------------


def _reference(task: ComparisonTask, extent: Extent, dtypes: Sequence[torch.dtype]) -> tuple[torch.dtype, History]:
    """Train with plain PyTorch in the first of these dtypes in which the module runs.

    Returns:
        The dtype, and the snapshots of all members.

    Raises:
        UserError: If the net cannot be trained in any of them.
    """
    failures = []
    for dtype, separate_backward in product(dtypes, (False, True)):
        try:
            return dtype, _train_plainly(task, extent, dtype, separate_backward)
        except _PlainFailure as error:
            failures.append(str(error))
    advice = "Correct the module."
    if (task.penalty or task.r1) and "is not implemented" in failures[-1]:
        advice = (
            "The loss has a gradient penalty, which needs second derivatives: use a loss without one or, if this is attention, "
            "compute it with matmul and softmax."
        )
    raise UserError(f"The {task.role} {task.name} cannot be trained by plain PyTorch: {failures[-1]}. {advice}")


def _train_plainly(task: ComparisonTask, extent: Extent, dtype: torch.dtype, separate_backward: bool) -> History:
    """Train real module instances with plain PyTorch, one member after another, and return all members' snapshots.

    Args:
        separate_backward: See `PlainGan`.
    """
    rules, feed, history = rules_of(task, extent), feed_of(task, extent, dtype), list[list[Snapshot]]()
    try:
        with seeded_generators(0):  # the engines get other seeds: a net that draws from these generators differs
            for seat in SEATS:
                keys = (rng.key(seat.base_key(), purpose) for purpose in (rng.INIT_G, rng.INIT_D))
                nets = [build_seeded(make, key).to(dtype) for make, key in zip(task.pair(), keys, strict=True)]
                gan = PlainGan(nets, seat, rules, feed, separate_backward)
                history.append([gan.snapshot()])
                for step in range(extent.steps):
                    gan.step(step)
                    history[-1].append(gan.snapshot())
    except UserError:
        raise
    except Exception as error:  # a user's module may raise anything
        if is_out_of_memory(error):
            raise
        raise _PlainFailure(with_type(error)) from error
    return history


def _result(task: ComparisonTask, extent: Extent, dtype: torch.dtype, name: str, plain: History) -> Agreement:
    """Train with one engine, several times from the same start, and return the worst agreement with plain PyTorch.

    Args:
        name: The name of the engine.
        plain: The snapshots from plain PyTorch.
    """
    try:
        with seeded_generators(1):
            herd = _herd(task, extent, dtype)
            start = {key: value.clone() for key, value in herd.state.items()}
            engine = Engine(herd, Plan(name, len(SEATS), 1, "cpu", task.operations))
        worst = Agreement(0.0)
        for number in range(extent.passes):
            with seeded_generators(2 + number):
                worst = max(worst, _one_pass(engine, start, plain, task.kind, dtype), key=_severity)
            if worst.why:
                break
        return worst
    except Exception as error:  # the engine cannot be used for this net, whatever the reason
        if is_out_of_memory(error):
            raise
        return Agreement(math.nan, FAILS + short_message(error))


def _one_pass(engine: Engine, start: State, plain: History, net: str, dtype: torch.dtype) -> Agreement:
    """Train with an engine from a start, and return the worst agreement with plain PyTorch.

    Training ends after the first step with a difference beyond the tolerance.

    Args:
        start: The state at the start.
        plain: The snapshots from plain PyTorch.
        net: `g` or `d`, the net under test.
    """
    herd, worst = engine.herd, Agreement(0.0)
    for name, value in herd.state.items():
        value.copy_(start[name])
    for step in range(len(plain[0])):
        sums = herd.zero_sums()
        if step:
            engine.advance(step - 1, step, sums)
        for row, snapshots in enumerate(plain):
            snapshot = _snapshot(herd, sums if step else None, row)
            agreement = compare(snapshots[step], snapshot, net, dtype, "" if step else "initial")
            worst = max(worst, agreement, key=_severity)
        if worst.why:
            break
    return worst


def _severity(agreement: Agreement) -> tuple[bool, float]:
    """Return a key by which agreements can be sorted, the worst last."""
    return bool(agreement.why), agreement.difference


def _snapshot(herd: StackedHerd, sums: Tensor | None, row: int) -> Snapshot:
    """Return a snapshot of one member of an engine's herd, in the form of `PlainGan.snapshot`.

    Args:
        sums: [4, N] the losses and mean logits of the last step (`SUMS`); None before the first step.
        row: The member.
    """
    out: Snapshot = {}
    for kind, net in (("g", herd.g), ("d", herd.d)):
        named = {**net.views(herd.state[f"{kind}.params"]), **buffers_of(herd.state, kind)}
        out |= {(kind, "value", name): value[row] for name, value in named.items()}
        if sums is not None:
            gradients = net.views(herd.state[f"{kind}.adam.m"])  # beta1 is zero, so this is the last gradient
            out |= {(kind, "gradient", name): value[row] for name, value in gradients.items()}
    if sums is not None:
        out |= {("", "output", name): sums[number, row] for number, name in enumerate(SUMS)}
    return out


def _herd(task: ComparisonTask, extent: Extent, dtype: torch.dtype) -> StackedHerd:
    """Return a new herd of the net under test and its trivial partner, for an engine to train."""
    sources = {"lr_g": "lr", "lr_d": "lr", "beta1": "beta1", "beta2": "beta2"}
    settings = {name: [ADAM[source]] * len(SEATS) for name, source in sources.items()}
    g, d, state = new_state(*task.pair(), SEATS, {**settings, "loss": [0] * len(SEATS)}, dtype, ema=False)
    if task.traits is not None:
        (g if task.kind == "g" else d).adopt(task.traits)
    feed = feed_of(task, extent, dtype)
    return StackedHerd(Breeds([("net", g, len(SEATS))]), d, state, rules_of(task, extent), feed, torch.device("cpu"))
