"""Execute training steps: one member after another, or a block of members at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.batch_feed import Feed
from ganherd.herd.breeds import Breed, Breeds
from ganherd.herd.engine.device_memory import is_large
from ganherd.herd.engine.side_streams import DEFAULT_PRIORITY, HIGH_PRIORITY, SideStreams
from ganherd.herd.lowering import ops_onednn
from ganherd.herd.state import Blueprint, NamedRows, State, base_keys, members_of
from ganherd.herd.step.opponents import FrozenOpponents
from ganherd.herd.step.pace import Pace, own_step, pace_blocks
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.step import SUMS, GradientHook, Step
from ganherd.util.host import has_amd_processor, keep_freed_memory
from ganherd.util.registry import ENGINES, load_target

StopCheck = Callable[[], bool]
Tick = Callable[[int], None]  # gets the number of steps made so far
CompileReport = Callable[[int, int], None]  # gets the number of kernels that are compiled, and of all that are needed


@dataclass
class StackedHerd:
    """Everything that a training step needs: blueprints of the nets, the stacked state, the rules of a step and the feed."""

    breeds: Breeds
    d: Blueprint
    state: State  # on the host if it does not fit on the device
    rules: StepRules
    feed: Feed
    device: torch.device
    opponents: FrozenOpponents | None = None  # what members train against; None: each against its own partner
    pace: Pace = ()  # steps of each member per step of the run; (): one for all
    gradient_hook: GradientHook | None = None  # replaces gradients before Adam takes them; for the engine `fused`

    @property
    def num_members(self) -> int:
        """Return the number of members."""
        return len(self.state["set.seed"])

    @property
    def is_resident(self) -> bool:
        """Return whether the state is on the device; otherwise blocks of it are moved there to train."""
        return self.state["g.params"].device.type == self.device.type

    @property
    def has_own_nets(self) -> bool:
        """Return whether any net was written by the user."""
        nets = (self.d, *(breed.g for breed in self.breeds.all))
        return not all(type(net.module).__module__.startswith("ganherd.") for net in nets)

    @property
    def g(self) -> Blueprint:
        """Return the generator of a herd with a single breed."""
        (breed,) = self.breeds.all
        return breed.g

    @property
    def nets(self) -> dict[str, NamedRows]:
        """Return the nets by the first letter of their tensors' names in the state."""
        return {"g": self.breeds, "d": self.d}

    @property
    def infinite_buffers(self) -> set[str]:
        """Return the tensors of the state that hold infinity on purpose; see `finite_members`."""
        of_d = {f"d.buffers.{name}" for name in self.d.infinite_buffers}
        return of_d.union(*(breed.infinite_buffers for breed in self.breeds.all))

    def breed_of(self, member: int) -> Breed:
        """Return the breed of a member."""
        return self.breeds.of(int(self.state["set.slot"][member]))

    def blocks(self, width: int) -> list[tuple[slice, Breed]]:
        """Cut the herd into blocks of at most `width` consecutive members that share breed and pace."""
        out: list[tuple[slice, Breed]] = []
        for members, breed in self.breeds.blocks(self.state["set.slot"].tolist()):
            first = members.start
            for block in pace_blocks(members.stop - first, width, self.pace[members]):
                out.append((slice(first + block.start, first + block.stop), breed))
        return out

    def priors(self, members: slice) -> Tensor | None:
        """Return the prior of each of these members as an index into `rng.PRIORS`, [n]; None if all have the same."""
        priors = self.state.get("set.prior")
        return None if priors is None else priors[members].cpu()

    def steps_made(self, step: int) -> list[int]:
        """Return the number of steps that each member has made at a step of the run, [N]."""
        return [int(step * pace) for pace in self.pace] or [step] * self.num_members

    def zero_sums(self) -> Tensor:
        """Return zeros, float64 [4, N], to which steps add losses and mean logits (`SUMS`)."""
        return torch.zeros(len(SUMS), self.num_members, dtype=torch.float64, device=self.state["set.seed"].device)


@dataclass(frozen=True)
class Plan:
    """The engine of a run and its settings: chosen once, recorded in the run, and restored when the run is resumed."""

    name: str  # loop, fused, graph
    chunk: int  # most members on the device at once
    threads: int
    device: str
    # What a fused step computes with if it has no kernels; see `herd.lowering.lower.OPERATIONS`.
    operations: str = "plain"

    @property
    def one_by_one(self) -> bool:
        """Return whether the engine trains one member after another."""
        return ENGINES[self.name].one_by_one

    def describe(self, num_members: int) -> str:
        """Describe the plan for a herd of this many members, e.g. "fused on cpu, 1 thread"."""
        blocks = ""
        if not self.one_by_one and self.chunk < num_members:
            blocks = f", {-(-num_members // self.chunk)} blocks of {self.chunk}"
        return f"{self.name} on {self.device}, {self.threads} thread{'s' * (self.threads != 1)}{blocks}"


def new_plan(name: str, chunk: int, threads: int, device: torch.device) -> Plan:
    """Return a plan with the fastest operations of this machine."""
    operations = "plain"
    if device.type == "cpu" and not ENGINES[name].one_by_one:
        operations = "cpu-onednn" if ops_onednn.is_available() and has_amd_processor() else "cpu"
    return Plan(name, chunk, threads, str(device), operations)


def never() -> bool:
    """Return False: the default of `should_stop`."""
    return False


def no_tick(step: int) -> None:
    """Do nothing: the default of `tick`."""


def no_report(done: int, total: int) -> None:
    """Do nothing: the default of a `CompileReport`."""


class Engine:
    """Train a herd on its device from one step to another. `loop` and `fused` differ only in the number of members in one call."""

    def __init__(self, herd: StackedHerd, plan: Plan, rows: Collection[int] | None = None) -> None:
        """Prepare the steps of each breed.

        Args:
            rows: Train only these members; for the engine `loop`. None: all.
        """
        self.herd, self.plan = herd, plan
        if herd.device.type == "cpu":
            keep_freed_memory()
        width = 1 if plan.one_by_one else plan.chunk
        self._blocks = [(block, breed) for block, breed in herd.blocks(width) if rows is None or block.start in rows]
        parallel = plan.name == "graph" and herd.device.type == "cuda" and not is_large(herd.state, herd.device)
        streams = SideStreams(herd.device, (HIGH_PRIORITY, DEFAULT_PRIORITY)) if parallel else None
        operations = "triton" if has_kernels(herd) else plan.operations
        self._step = {
            breed: Step(breed.g, herd.d, herd.rules, not plan.one_by_one, operations, streams)
            for breed in herd.breeds.all
        }

    def prepare(self, report: CompileReport = no_report) -> None:
        """Compile the kernels of a step in parallel, so that the first step need not compile one after another."""
        if self.plan.one_by_one or not has_kernels(self.herd):
            return
        blocks = {(breed, block.stop - block.start): block for block, breed in self._blocks}
        with collecting(report):
            for (breed, _), block in blocks.items():
                own = breed.view(members_of(self.herd.state, block))
                state = {name: _placed(value.clone(), self.herd.device) for name, value in own.items()}
                sums = self.herd.zero_sums()[:, block].to(self.herd.device)
                self._train_block(breed, state, block, base_keys(self.herd.state)[block], sums, 0)

    def advance(self, start: int, stop: int, sums: Tensor, should_stop: StopCheck = never, tick: Tick = no_tick) -> int:
        """Train every member from `start` up to `stop`, and return the step that was reached.

        All blocks make a step before the next step begins, so that a request to stop takes effect at once.

        Args:
            sums: [4, N]; steps add losses and mean logits, see `SUMS`.
            should_stop: Called between steps; training ends early when it returns True.
            tick: Called with the number of steps made so far, to show progress.
        """
        base = base_keys(self.herd.state)
        states = [breed.view(members_of(self.herd.state, block)) for block, breed in self._blocks]
        for step in range(start, stop):
            for (block, breed), state in zip(self._blocks, states, strict=True):
                self._train_block(breed, state, block, base[block], sums[:, block], step)
            tick(step + 1)
            if should_stop():
                stop = step + 1
                break
        for each in self._step.values():
            each.release()
        return stop

    def _train_block(self, breed: Breed, state: State, block: slice, base: np.ndarray, sums: Tensor, step: int) -> None:
        """Train a block of members for one step of the run, unless its members skip this step because of their pace."""
        if self.herd.pace:
            member_step = own_step(step, self.herd.pace[block.start])
            if member_step is None:
                return
            step = member_step
        feed, first = self.herd.feed, step * self.herd.rules.n_critic
        self._step[breed](
            state,
            lambda number: feed.batch_at(block, base, first + number),
            keys_on_device(base, self.herd.device),
            sums,
            step,
            opponents=self.herd.opponents and self.herd.opponents.of(block),
            gradient_hook=self.herd.gradient_hook,
        )


def has_kernels(herd: StackedHerd) -> bool:
    """Return whether Triton kernels run this herd: on a GPU, in every precision but float64."""
    return herd.device.type == "cuda" and herd.rules.precision != "float64" and rng.HAS_TRITON


def evaluation_operations(herd: StackedHerd) -> str:
    """Return the operations by which nets of a herd run without being trained; see `herd.lowering.lower.OPERATIONS`."""
    return "triton" if has_kernels(herd) else "plain"


@contextmanager
def collecting(report: CompileReport = no_report) -> Iterator[None]:
    """Launch no kernel inside this context that is not compiled yet; compile these kernels in parallel at its end."""
    from ganherd.herd.lowering.kernels import compile_ahead

    with compile_ahead.collected() as sources:
        yield
    compile_ahead.compile_kernels(sources, report)


def place_state(herd: StackedHerd, plan: Plan) -> None:
    """Move the state to the device, unless the plan trains the herd in several blocks."""
    if plan.chunk >= herd.num_members or plan.one_by_one:
        herd.state = {name: _placed(value, herd.device) for name, value in herd.state.items()}


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, with rows as `aligned_rows` has them."""
    if not _needs_padding(tuple(value.shape), value.dtype, device):
        return value.to(device)
    return aligned_rows(tuple(value.shape), value.dtype, device).copy_(value)


def aligned_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros on a device. On a GPU, rows [P] of parameters start at multiples of 128 bytes.

    With unaligned rows a matrix product would have to load its weights number by number.
    """
    if not _needs_padding(shape, dtype, device):
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(shape[0], -(-shape[1] // 32) * 32, dtype=dtype, device=device)[:, : shape[1]]


def _needs_padding(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether rows are padded: rows of parameters in float32 on a GPU, unless their length is a multiple of 4."""
    return device.type == "cuda" and len(shape) == 2 and dtype == torch.float32 and shape[1] % 4 != 0


def make_engine(herd: StackedHerd, plan: Plan) -> Engine:
    """Return the engine of a plan.

    If the state is on the host, the engine trains one block after another. An engine that needs the whole herd is replaced by
    `fused` if the data is not on the device, or if members skip steps.
    """
    if not herd.is_resident:
        from ganherd.herd.engine.blocks.block_engine import BlockEngine

        return BlockEngine(herd, plan)
    spec = ENGINES[plan.name]
    if spec.needs_whole_herd and not (herd.device.type == "cuda" and herd.feed.resident and not herd.pace):
        return Engine(herd, plan)
    engine: Engine = load_target(spec.target)(herd, plan)
    return engine


def keys_on_device(base: np.ndarray, device: torch.device) -> np.ndarray | Tensor:
    """Return keys in the form that `Streams` expects: a tensor for a GPU, a numpy array for a CPU."""
    return torch.from_numpy(base).to(device) if device.type == "cuda" else base
