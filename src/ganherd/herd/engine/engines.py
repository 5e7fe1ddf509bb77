"""Engines, which train a herd: one member (GAN) after another, or a block of members at once.

A breed is the members of a herd that share a generator architecture. A block is a range of members of one breed that
one call of a step trains. A plan is the engine of a run with its settings.
"""

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

StopCheck = Callable[[], bool]  # returns whether training should end early
Tick = Callable[[int], None]  # shows progress: (number of steps made so far)
CompileReport = Callable[[int, int], None]  # shows progress: (number of kernels compiled so far, number to compile)


@dataclass
class StackedHerd:
    """A herd as engines train it: its nets, the stacked state of all members, the rules of a step and the data."""

    breeds: Breeds  # the generators
    d: Blueprint  # the discriminator, which all breeds share
    state: State  # tensors [N, …]; on the host if they do not fit on the device
    rules: StepRules
    feed: Feed  # serves each member's batches
    device: torch.device  # on which members train
    opponents: FrozenOpponents | None = None  # what members train against; None: each against its own partner
    pace: Pace = ()  # steps of each member per step of the run; (): one for each member
    gradient_hook: GradientHook | None = None  # replaces gradients before Adam takes them; for the engine `fused`

    @property
    def num_members(self) -> int:
        """Return the number of members."""
        return len(self.state["set.seed"])

    @property
    def is_resident(self) -> bool:
        """Return whether the whole state is on the device; otherwise blocks of members are moved there to train."""
        return self.state["g.params"].device.type == self.device.type

    @property
    def has_own_nets(self) -> bool:
        """Return whether any net was written by the user."""
        nets = (self.d, *(breed.g for breed in self.breeds.all))
        return not all(type(net.module).__module__.startswith("ganherd.") for net in nets)

    @property
    def g(self) -> Blueprint:
        """Return the generator's blueprint, for a herd with a single breed."""
        (breed,) = self.breeds.all
        return breed.g

    @property
    def nets(self) -> dict[str, NamedRows]:
        """Return the generators (key `g`) and the discriminator (`d`); names of their tensors in the state begin so."""
        return {"g": self.breeds, "d": self.d}

    @property
    def infinite_buffers(self) -> set[str]:
        """Return the names of buffers in the state that hold infinity on purpose, e.g. masks; see `finite_members`."""
        of_d = {f"d.buffers.{name}" for name in self.d.infinite_buffers}
        return of_d.union(*(breed.infinite_buffers for breed in self.breeds.all))

    def breed_of(self, member: int) -> Breed:
        """Return the breed of a member, given as its row in the state."""
        return self.breeds.of(int(self.state["set.slot"][member]))

    def blocks(self, width: int) -> list[tuple[slice, Breed]]:
        """Return a division of the herd into blocks of at most `width` consecutive members that share breed and pace.

        Each block is (rows of the state, breed).
        """
        out: list[tuple[slice, Breed]] = []
        for members, breed in self.breeds.blocks(self.state["set.slot"].tolist()):
            first = members.start
            for block in pace_blocks(members.stop - first, width, self.pace[members]):
                out.append((slice(first + block.start, first + block.stop), breed))
        return out

    def priors(self, members: slice) -> Tensor | None:
        """Return these members' noise priors as indices into `rng.PRIORS`, [n]; None if all members have the same."""
        priors = self.state.get("set.prior")
        return None if priors is None else priors[members].cpu()

    def steps_made(self, step: int) -> list[int]:
        """Return how many steps each member has made before this step of the run, [N]; fewer if its pace is below 1."""
        return [int(step * pace) for pace in self.pace] or [step] * self.num_members

    def zero_sums(self) -> Tensor:
        """Return zeros, float64 [4, N], to which steps add losses and mean logits (`SUMS`)."""
        return torch.zeros(len(SUMS), self.num_members, dtype=torch.float64, device=self.state["set.seed"].device)


@dataclass(frozen=True)
class Plan:
    """The engine of a run and its settings: chosen once, recorded in the run, and restored when the run is resumed."""

    name: str  # loop, fused, graph
    chunk: int  # most members on the device at once, i.e. in a block
    threads: int  # CPU threads of PyTorch
    device: str
    # The library of operations of a fused step without Triton kernels; see `herd.lowering.lower.OPERATIONS`.
    operations: str = "plain"

    @property
    def one_by_one(self) -> bool:
        """Return whether the engine trains one member after another."""
        return ENGINES[self.name].one_by_one

    def describe(self, num_members: int) -> str:
        """Return a description of the plan for a herd of this many members, e.g. "fused on cpu, 1 thread"."""
        blocks = ""
        if not self.one_by_one and self.chunk < num_members:
            blocks = f", {-(-num_members // self.chunk)} blocks of {self.chunk}"
        return f"{self.name} on {self.device}, {self.threads} thread{'s' * (self.threads != 1)}{blocks}"


def new_plan(name: str, chunk: int, threads: int, device: torch.device) -> Plan:
    """Return a plan with these settings and the fastest library of operations for this machine."""
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
    """The engines `loop` and `fused`, which train a herd on its device from one step to another.

    They differ only in the width of a block: `loop` trains one member in each call of a step, `fused` up to
    `plan.chunk` members.
    """

    def __init__(self, herd: StackedHerd, plan: Plan, rows: Collection[int] | None = None) -> None:
        """Divide the herd into blocks, and prepare the step of each breed.

        Args:
            rows: Train only these members, as rows of the state; for the engine `loop`. None: all.
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
        """Compile the kernels of a step in parallel; otherwise the first step would compile them one after another.

        Args:
            report: Gets the progress.
        """
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
        """Train all members from step `start` to step `stop`, and return the step that was reached.

        All blocks make a step before the next step begins, so that training can end early with all members at the same
        step.

        Args:
            sums: [4, N]; each step adds its losses and mean logits, see `SUMS`.
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
        """Train a block of members for one step of the run, unless they skip this step because of their pace.

        Args:
            state: The state of the block, [n, …].
            block: The block as rows of the herd's state.
            base: [n] the members' base keys, from which their random draws are derived.
            sums: [4, n], to which the step adds.
            step: The step of the run.
        """
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
    """Return whether Triton kernels run this herd: on a GPU, if Triton is installed, in any precision but float64."""
    return herd.device.type == "cuda" and herd.rules.precision != "float64" and rng.HAS_TRITON


def evaluation_operations(herd: StackedHerd) -> str:
    """Return the library of operations with which nets of a herd run without being trained; see `OPERATIONS`."""
    return "triton" if has_kernels(herd) else "plain"


@contextmanager
def collecting(report: CompileReport = no_report) -> Iterator[None]:
    """Skip launches of kernels that are not compiled yet; compile them in parallel at the end of the context."""
    from ganherd.herd.lowering.kernels import compile_ahead

    with compile_ahead.collected() as sources:
        yield
    compile_ahead.compile_kernels(sources, report)


def place_state(herd: StackedHerd, plan: Plan) -> None:
    """Move the state to the device, unless the plan trains a herd in several blocks that visit the device in turn."""
    if plan.chunk >= herd.num_members or plan.one_by_one:
        herd.state = {name: _placed(value, herd.device) for name, value in herd.state.items()}


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device (itself if nothing has to change), with rows aligned as by `aligned_rows`."""
    if not _needs_padding(tuple(value.shape), value.dtype, device):
        return value.to(device)
    return aligned_rows(tuple(value.shape), value.dtype, device).copy_(value)


def aligned_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros of a shape on a device. On a GPU, rows of float32 parameters [N, P] are aligned.

    If their length P is no multiple of 4, they are padded in memory to start at multiples of 128 bytes; the result has
    the given shape nevertheless. With unaligned rows a matrix product would have to load its weights number by number.
    """
    if not _needs_padding(shape, dtype, device):
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(shape[0], -(-shape[1] // 32) * 32, dtype=dtype, device=device)[:, : shape[1]]


def _needs_padding(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether rows of a tensor are padded: of float32 tensors [N, P] on a GPU, unless P is a multiple of 4."""
    return device.type == "cuda" and len(shape) == 2 and dtype == torch.float32 and shape[1] % 4 != 0


def make_engine(herd: StackedHerd, plan: Plan) -> Engine:
    """Return the engine of a plan, ready to train the herd.

    If the state is on the host, this is a `BlockEngine`, which moves one block after another to the device. If the
    plan's engine needs the whole herd on a GPU (e.g. `graph`), but the data is not there or members skip steps, `fused`
    is returned instead.
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
    """Return keys [N] of random draws as `Streams` expects them: as a tensor for a GPU, as a numpy array for a CPU."""
    return torch.from_numpy(base).to(device) if device.type == "cuda" else base
