"""How the fused step is executed: one member after another, all at once, or block by block when not all fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.breeds import Breed, Breeds
from ganherd.herd.engine.side_streams import SideStreams
from ganherd.herd.feed import Feed
from ganherd.herd.state import Blueprint, NamedRows, State, bases, bytes_per_member, members_of
from ganherd.herd.step.opponents import FrozenOpponents
from ganherd.herd.step.pace import Pace, blocks, own_step
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.step import SUMS, Step
from ganherd.util.host import torch_threads
from ganherd.util.registry import ENGINES, load_target

_LONG = 1.0  # seconds; a way whose first step takes so long may be given up
_VERY_LONG = 10.0  # seconds; on a CPU, which compiles nothing, a step of so long is measurement enough


@dataclass
class Herd:
    """Everything the hot path needs: the nets' blueprints, the stacked state, the rules of a step and the feed."""

    breeds: Breeds
    d: Blueprint
    state: State  # on the host when it does not fit the device, else on the device
    rules: StepRules
    feed: Feed
    device: torch.device
    rivals: FrozenOpponents | None = None  # whom the members meet instead of their own partner
    pace: Pace = ()  # where members make steps at their own pace

    @property
    def size(self) -> int:
        return len(self.state["set.seed"])

    @property
    def g(self) -> Blueprint:
        """The generator of a herd of one breed."""
        (breed,) = self.breeds.all
        return breed.g

    @property
    def nets(self) -> dict[str, NamedRows]:
        """By the first letter of their names in the state."""
        return {"g": self.breeds, "d": self.d}

    def breed_of(self, member: int) -> Breed:
        return self.breeds.of(int(self.state["set.slot"][member]))

    def blocks(self, width: int) -> list[tuple[slice, Breed]]:
        """All members, cut into blocks of at most so many that are of one breed and one pace."""
        return [
            (slice(run.start + block.start, run.start + block.stop), breed)
            for run, breed in self.breeds.runs(self.state["set.slot"].tolist())
            for block in blocks(run.stop - run.start, width, self.pace[run])
        ]

    def priors(self, members: slice) -> Tensor | None:
        """[n] the prior of each of them by its number, where they differ."""
        found = self.state.get("set.prior")
        return None if found is None else found[members].cpu()

    def made(self, step: int) -> list[int]:
        """[N] how many steps each member has made at that step of the run."""
        return [int(step * pace) for pace in self.pace] or [step] * self.size

    def no_sums(self) -> Tensor:
        """[4, N] float64: what records are made of, before the first step."""
        return torch.zeros(len(SUMS), self.size, dtype=torch.float64, device=self.state["set.seed"].device)


@dataclass(frozen=True)
class Plan:
    """The engine of a run: chosen once, recorded, and restored when the run goes on."""

    name: str  # loop, fused, graph
    chunk: int  # members on the device at once
    threads: int
    device: str

    @property
    def one_by_one(self) -> bool:
        """Whether the engine trains one member after another."""
        return ENGINES[self.name].one_by_one

    def describe(self, size: int) -> str:
        is_cut = not self.one_by_one and self.chunk < size
        blocks = f", {-(-size // self.chunk)} blocks of {self.chunk}" if is_cut else ""
        return f"{self.name} on {self.device}, {self.threads} thread{'s' * (self.threads != 1)}{blocks}"


def never() -> bool:
    return False


class Engine:
    """Advances a herd from one step to another; `loop` and `fused` differ only in how many members one call holds."""

    def __init__(self, herd: Herd, plan: Plan, rows: Collection[int] | None = None) -> None:
        """`rows`: the only ones that train, for the engine `loop`, which takes them one by one anyway."""
        self.herd, self.plan = herd, plan
        width = 1 if plan.one_by_one else plan.chunk
        self._blocks = [one for one in herd.blocks(width) if rows is None or one[0].start in rows]
        lanes = SideStreams(herd.device, 2) if plan.name == "graph" and herd.device.type == "cuda" else None
        self._step = {
            breed: Step(breed.g, herd.d, herd.rules, not plan.one_by_one, has_kernels(herd), lanes)
            for breed in herd.breeds.all
        }

    def advance(
        self,
        start: int,
        stop: int,
        sums: Tensor,
        asked_to_stop: Callable[[], bool] = never,
        tick: Callable[[int], None] | None = None,
    ) -> int:
        """Trains every member from `start` up to `stop`, or to the first step after it is asked to stop; says where it is."""
        base = bases(self.herd.state)
        if self.is_resident:  # everything is where it is computed: step by step, so that a stop takes effect at once
            blocks = [
                (block, breed, breed.view(members_of(self.herd.state, block)), sums[:, block])
                for block, breed in self._blocks
            ]
            for step in range(start, stop):
                for block, breed, state, block_sums in blocks:
                    self._one(breed, state, block, base[block], block_sums, step)
                if tick:
                    tick(step + 1)
                if asked_to_stop():
                    return step + 1
            return stop
        for number, (block, breed) in enumerate(self._blocks):  # block by block up to the next meeting: moved once each
            host = breed.view(members_of(self.herd.state, block))
            state = {name: value.to(self.herd.device) for name, value in host.items()}
            block_sums = sums[:, block].to(self.herd.device)
            for step in range(start, stop):
                self._one(breed, state, block, base[block], block_sums, step)
                if tick:
                    tick(start + ((stop - start) * number + step + 1 - start) // len(self._blocks))
                if number == 0 and asked_to_stop():
                    stop = step + 1
                    break
            for name, value in host.items():
                value.copy_(state[name])
            sums[:, block] = block_sums.to(sums.device)
        return stop

    @property
    def is_resident(self) -> bool:
        """Whether the state lies on the device; otherwise it lives with the host, and blocks of it visit the device."""
        return self.herd.state["g.params"].device.type == self.herd.device.type

    def _one(self, breed: Breed, state: State, block: slice, base: np.ndarray, sums: Tensor, step: int) -> None:
        if self.herd.pace:
            own = own_step(step, self.herd.pace[block.start])
            if own is None:
                return
            step = own
        feed, first = self.herd.feed, step * self.herd.rules.n_critic
        self._step[breed](
            state,
            lambda number: feed.batch_at(block, base, first + number),
            on_device(base, self.herd.device),
            sums,
            step,
            rivals=self.herd.rivals and self.herd.rivals.of(block),
        )


def has_kernels(herd: Herd) -> bool:
    """Triton's kernels serve on a GPU, in every precision but float64."""
    return herd.device.type == "cuda" and herd.rules.precision != "float64" and rng.HAS_TRITON


def place(herd: Herd, plan: Plan) -> None:
    """The state where it is computed, unless only a part of the herd fits there."""
    if plan.chunk >= herd.size or plan.one_by_one:
        herd.state = {name: _placed(value, herd.device) for name, value in herd.state.items()}


def _placed(value: Tensor, device: torch.device) -> Tensor:
    """On a GPU every row [P] of members' parameters begins at a multiple of 128 bytes: else a product reads its weights
    number by number."""
    if device.type != "cuda" or value.dim() != 2 or value.dtype != torch.float32 or value.shape[1] % 4 == 0:
        return value.to(device)
    width = value.shape[1]
    wide = torch.zeros(len(value), -(-width // 32) * 32, device=device)
    wide[:, :width] = value.to(device)
    return wide[:, :width]


def make_engine(herd: Herd, plan: Plan) -> Engine:
    """Return the engine that the plan names; a plain one if that needs the whole herd on a GPU, which is not there."""
    spec = ENGINES[plan.name]
    whole = herd.state["g.params"].is_cuda and herd.feed.resident and not herd.pace
    if spec.needs_whole_herd and not whole:
        return Engine(herd, plan)
    engine: Engine = load_target(spec.target)(herd, plan)
    return engine


def on_device(base: np.ndarray, device: torch.device) -> np.ndarray | Tensor:
    """Keys where the draws are made: on a CPU they stay with numpy."""
    return torch.from_numpy(base).to(device) if device.type == "cuda" else base


def memory_per_member(herd: Herd) -> int:
    """Bytes that one more member takes on the device while it trains: its state, its gradients and what autograd keeps.

    Measured on one step of one member (of the breed that takes most), on copies: nothing has to run out to find it.
    """
    return max(_memory_of(herd, block, breed) for block, breed in one_of_each(herd))


def _memory_of(herd: Herd, block: slice, breed: Breed) -> int:
    state = copied(herd, block, breed)
    kept: dict[int, Tensor] = {}  # by where they lie; held on to, so that no place is used twice

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    step = Step(breed.g, herd.d, herd.rules, mapped=False)  # works for nets that cannot be fused, too
    own = bases(state)
    sums = torch.zeros(len(SUMS), 1, dtype=torch.float64, device=herd.device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(state, lambda number: herd.feed.batch_at(block, own, number), on_device(own, herd.device), sums, 0)
    gradients = 2 * (breed.g.size + herd.d.size) * state["g.params"].element_size()
    return bytes_per_member(state) + sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) + gradients


def one_of_each(herd: Herd) -> list[tuple[slice, Breed]]:
    """One member of each breed, as a block."""
    found = {breed: slice(block.start, block.start + 1) for block, breed in reversed(herd.blocks(herd.size))}
    return [(found[breed], breed) for breed in herd.breeds.all if breed in found]


def copied(herd: Herd, block: slice, breed: Breed) -> State:
    """A copy of these members on the device, to try something out."""
    return {k: v.clone().to(herd.device) for k, v in breed.view(members_of(herd.state, block)).items()}


def members_that_fit(herd: Herd, limit: int) -> int:
    """How many members the device may hold at once."""
    return max(1, min(herd.size, limit // memory_per_member(herd)))


def rate(herd: Herd, plan: Plan, seconds: float, beat: float = 0.0) -> float:
    """Member-steps per second of that plan, measured for about so long on a copy of the state.

    One that is hopelessly slower than `beat` already while it warms up is not measured any longer.
    """
    trial = replace(herd)
    place(trial, plan)  # what moves is a copy already
    trial.state = {k: v.clone() if v is herd.state[k] else v for k, v in trial.state.items()}
    with torch_threads(plan.threads):
        engine = make_engine(trial, plan)
        period = herd.rules.skip_d + 1  # a fair mixture of steps with and without the discriminator
        sums = trial.no_sums()
        began = time.perf_counter()
        engine.advance(0, period, sums)  # compiles, captures, fills caches
        _synchronize(herd.device)
        took = time.perf_counter() - began
        hopeless = took > _LONG and period * herd.size / took < beat / 10
        if hopeless or (herd.device.type == "cpu" and took > _VERY_LONG):
            return period * herd.size / took
        steps, took, more = 0, 0.0, period
        while took < seconds:
            _synchronize(herd.device)
            began = time.perf_counter()
            engine.advance(steps, steps + more, sums)
            _synchronize(herd.device)
            took += time.perf_counter() - began
            steps += more
            more *= 2 if took < seconds / 4 else 1
        return steps * herd.size / took


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
