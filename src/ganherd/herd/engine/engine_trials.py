"""Try engines on copies of a herd's state: measure their speed and memory, and compile and tune their kernels.

The herd itself, i.e. the state of its members (GANs), does not change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from ganherd.herd.breeds import Breed
from ganherd.herd.engine.device_memory import release_cached
from ganherd.herd.engine.engines import (
    CompileReport,
    Engine,
    Plan,
    StackedHerd,
    collecting,
    has_kernels,
    keys_on_device,
    make_engine,
    no_report,
    place_state,
)
from ganherd.herd.state import State, base_keys, bytes_per_member, members_of
from ganherd.herd.step.step import SUMS, Step
from ganherd.util.host import torch_threads

if TYPE_CHECKING:
    from ganherd.herd.lowering.kernels.compile_ahead import KernelSource

_LONG = 1.0  # seconds; a plan whose first period takes longer is given up if it is also far slower than the best
# A plan below this share of the best rate so far is measured for a shorter time: even if its measured rate is a third
# too low, it will not be chosen.
_CLEARLY_SLOWER = 0.6
_VERY_LONG = 10.0  # seconds; on a CPU, where nothing is compiled, a first period of this length is measured well enough


def trial_engine(herd: StackedHerd, plan: Plan) -> Engine:
    """Return an engine of a plan that trains a copy of the herd's state."""
    trial = replace(herd)
    place_state(trial, plan)  # tensors that move to the device are copies already
    trial.state = {k: v.clone() if v is herd.state[k] else v for k, v in trial.state.items()}
    return make_engine(trial, plan)


def one_member_per_breed(herd: StackedHerd) -> list[tuple[slice, Breed]]:
    """Return a block (rows of the state, breed) with the first member of each breed, for breeds that have members."""
    first = {breed: slice(block.start, block.start + 1) for block, breed in reversed(herd.blocks(herd.num_members))}
    return [(first[breed], breed) for breed in herd.breeds.all if breed in first]


def train_copy(herd: StackedHerd, block: slice, breed: Breed, fused: bool) -> State:
    """Train a copy of a block of one member for one step on the herd's device, and return the copy's state.

    Args:
        block: The member as a slice of rows of the state.
        fused: Whether to run the nets as for many members at once; otherwise the module is called plainly.
    """
    state = {k: v.clone().to(herd.device) for k, v in breed.view(members_of(herd.state, block)).items()}
    base = base_keys(state)
    sums = torch.zeros(len(SUMS), 1, dtype=torch.float64, device=herd.device)
    batches = partial(herd.feed.batch_at, block, base)
    step = Step(breed.g, herd.d, herd.rules, fused)
    step(state, batches, keys_on_device(base, herd.device), sums, 0)
    step.release()
    return state


def memory_per_member(herd: StackedHerd) -> int:
    """Return the measured bytes that a member takes while it trains: state, gradients and saved activations.

    A copy of one member of each breed is trained for one step; the largest result is returned.
    """
    return max(_memory_of(herd, block, breed) for block, breed in one_member_per_breed(herd))


def _memory_of(herd: StackedHerd, block: slice, breed: Breed) -> int:
    """Return the measured bytes that the only member of a block takes; see `memory_per_member`."""
    storages: dict[int, Tensor] = {}  # by address; keeping the tensors alive ensures that no address is reused

    def remember(tensor: Tensor) -> Tensor:
        with suppress(RuntimeError):  # tensors of `torch.func` have no memory of their own
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    def remember_outputs(module: nn.Module, args: object, output: object) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                remember(leaf)

    # Sizes are enough, so kernels need not run: those of one member would be compiled for this measurement alone.
    with _compile_nothing() if has_kernels(herd) else nullcontext():
        try:
            with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
                state = train_copy(herd, block, breed, fused=False)  # also works for nets that cannot be fused
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):  # a net that uses torch.func does not allow such hooks
                raise
            with register_module_forward_hook(remember_outputs):
                state = train_copy(herd, block, breed, fused=False)
    activations = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    gradients = 2 * (breed.g.num_params + herd.d.num_params) * state["g.params"].element_size()
    return bytes_per_member(state) + activations + gradients


def _compile_nothing() -> AbstractContextManager[object]:
    """Return a context that skips launches of kernels that are not compiled yet."""
    from ganherd.herd.lowering.kernels import compile_ahead

    return compile_ahead.collected()


def measure_rate(
    herd: StackedHerd, plan: Plan, seconds: float, beat: float = 0.0, report: CompileReport = no_report
) -> float:
    """Return the rate of a plan, in steps of one member per second, measured on a copy of the state.

    Args:
        seconds: How long to measure, approximately.
        beat: The rate of the best plan so far; a plan that is clearly slower is measured for a shorter time.
        report: Gets the progress if kernels are compiled.
    """
    with torch_threads(plan.threads):
        engine = trial_engine(herd, plan)
        engine.prepare(report)
        trial = engine.herd
        period = herd.rules.period  # includes each kind of step in the right proportion
        sums = trial.zero_sums()
        elapsed = _seconds_of(engine, 0, period, sums)  # compiles, captures, fills caches
        is_hopeless = elapsed > _LONG and period * herd.num_members / elapsed < beat / 10
        if is_hopeless or (herd.device.type == "cpu" and elapsed > _VERY_LONG):
            return period * herd.num_members / elapsed
        steps, elapsed, more, rate = 0, 0.0, period, beat
        while elapsed < (seconds if rate > _CLEARLY_SLOWER * beat else seconds / 4):
            elapsed += _seconds_of(engine, steps, steps + more, sums)
            steps += more
            more *= 2 if elapsed < seconds / 4 else 1
            rate = steps * herd.num_members / elapsed
        return rate


def _seconds_of(engine: Engine, start: int, stop: int, sums: Tensor) -> float:
    """Train from step `start` to step `stop`, and return the seconds that this took."""
    _synchronize(engine.herd.device)
    began = time.perf_counter()
    engine.advance(start, stop, sums)
    _synchronize(engine.herd.device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all work; do nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def compiling_meanwhile(herd: StackedHerd) -> Iterator[None]:
    """Compile the kernels of a herd's step in the background while the context is open, for an engine built later.

    Without kernels, or if the herd does not fit into memory now, nothing is compiled.
    """
    if not has_kernels(herd):
        del herd  # the caller needs its memory
        yield
        return
    from ganherd.herd.lowering.kernels import compile_ahead

    sources: Sequence[KernelSource] = ()
    with suppress(RuntimeError, MemoryError):  # it may not fit now; then its engine compiles them
        sources = _kernels_of(herd)
    device = herd.device
    del herd  # the caller needs its memory
    release_cached(device)
    with compile_ahead.compiling(sources):
        yield


def _kernels_of(herd: StackedHerd) -> Sequence[KernelSource]:
    """Return the kernels of a herd's step that this process has not loaded yet, found by training a copy."""
    from ganherd.herd.lowering.kernels import compile_ahead

    with compile_ahead.collected() as sources:
        engine = trial_engine(herd, Plan("fused", herd.num_members, 1, str(herd.device)))
        engine.advance(0, herd.rules.period, engine.herd.zero_sums())
    return sources


def tune_kernels(herd: StackedHerd, plan: Plan, report: CompileReport = no_report) -> int:
    """Measure the tile shapes of a step's kernels that were not measured yet, and return the number of these kernels.

    A copy of the state is trained. The results go to the user's table in the cache; see `kernels.tiles`. Runs that are
    being trained keep their tile shapes.
    """
    from ganherd.herd.lowering.kernels import tiles

    def train_period() -> None:
        engine = trial_engine(herd, replace(plan, name="fused"))
        engine.advance(0, herd.rules.period, engine.herd.zero_sums())

    with tiles.listing() as unmeasured, collecting(report):
        train_period()
    if unmeasured:
        with tiles.measuring():
            train_period()
    return len(unmeasured)
