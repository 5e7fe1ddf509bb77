"""The stacked state of a herd: a handful of tensors whose first axis is the member."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.herd import rng
from ganherd.herd.checks.module_copies import why_alone
from ganherd.herd.checks.source_line import where
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.parameter_names import kept, refuse_other_numbers, refuse_shared_buffers
from ganherd.util.errors import UserError
from ganherd.util.memory import require_memory

State = dict[str, Tensor]  # name -> [N, …]; `g.` and `d.` belong to the nets, `set.` are per-member settings

# State names that hold one number per parameter of a net, in the order of its blueprint.
ROWS = ("params", "adam.m", "adam.v", "ema")

_SHORT = 4096  # numbers of a member in one tensor that are sooner copied than summed by themselves


class NamedRows(Protocol):
    """How rows of members read under the names of their nets' parameters; the members' slots say which net is whose."""

    def parts(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]: ...

    def shape_of(self, name: str) -> tuple[int, ...] | None: ...

    def joined(self, parts: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor: ...


class ModuleTraits(NamedTuple):
    """What a module was seen to do, which the engines must know."""

    left_behind: tuple[tuple[str, str], ...]  # layers and their attributes that a forward pass changes
    alone: str  # why only one member at a time can run it; empty: all can at once


class Blueprint:
    """One plain module and how its parameters lie in a member's row [P]."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        refuse_shared_buffers(module)
        parameters = dict(module.named_parameters())
        refuse_other_numbers(module)
        # parameter -> whether it is trained: one with requires_grad_(False) keeps the numbers that it has
        self.learns = {name: p.requires_grad for name, p in parameters.items()}
        self.habits = ModuleTraits((), why_alone(module))
        self.shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.sizes = [p.numel() for p in parameters.values()]
        self.size = sum(self.sizes)
        self.buffers = {name: (tuple(b.shape), b.dtype) for name, b in module.named_buffers()}
        self.takes_label = takes_label(module)
        self.kept = kept(module)
        norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
        of_norms = {id(p) for layer in norms for p in layer.parameters(recurse=False)}
        self.normalising = [id(p) in of_norms for p in parameters.values()]  # gain and shift of batch norm

    def adopt(self, habits: ModuleTraits) -> None:
        """Takes over what was learned of the module by trying it out."""
        self.habits = ModuleTraits(habits.left_behind, self.habits.alone or habits.alone)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [N, P] as named parameters [N, …]; one split, so that its gradient is one concatenation."""
        n, parts = rows.shape[0], rows.split_with_sizes(self.sizes, dim=1)
        return {name: part.view(n, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def parts(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """The same: all members have this net."""
        return self.views(rows)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a parameter, by its name in files; None if there is none of that name."""
        shape = self.shapes.get(name)
        return None if shape is None else tuple(shape)

    def joined(self, parts: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """The reverse of `views`."""
        return torch.cat(
            [parts[name].flatten(1) if shape else parts[name][:, None] for name, shape in self.shapes.items()], dim=1
        )

    def row(self, module: nn.Module) -> Tensor:
        parts = [p.detach().reshape(-1) for p in module.parameters()]
        return torch.cat(parts) if parts else torch.zeros(0)

    def clipped(self, what: str) -> Tensor:
        """[P] bool: which parameters weight clipping touches: of those that learn, all or those of no norm."""
        each = zip(self.learns.values(), self.normalising, strict=True)
        keep = [learns and (what == "all" or not is_norm) for learns, is_norm in each]
        return torch.repeat_interleave(torch.tensor(keep, dtype=torch.bool), torch.tensor(self.sizes))


def takes_label(module: nn.Module) -> bool:
    """A module whose `forward` has a `y` gets the labels."""
    return "y" in inspect.signature(module.forward).parameters


@dataclass(frozen=True)
class Seat:
    """Where a member sits: its stream's seed, its slot within its replica, and how often it was given a new life."""

    seed: int
    slot: int
    life: int = 0

    def base(self) -> int:
        return rng.key(self.seed, self.slot, self.life)


def new_state(
    make_g: Callable[[], nn.Module],
    make_d: Callable[[], nn.Module],
    seats: Sequence[Seat],
    settings: Mapping[str, Sequence[float] | Sequence[int]],
    dtype: torch.dtype,
    ema: bool,
) -> tuple[Blueprint, Blueprint, State]:
    """Draws every member's initial weights from its own stream and stacks them."""
    state: State = {}
    blueprints = []
    for kind, make, purpose in (("g", make_g, rng.INIT_G), ("d", make_d, rng.INIT_D)):
        blueprint, params, buffers = founded(make, [rng.key(seat.base(), purpose) for seat in seats], dtype)
        blueprints.append(blueprint)
        state[f"{kind}.params"] = params  # [N, P]
        state[f"{kind}.adam.m"] = _zeros(params)
        state[f"{kind}.adam.v"] = _zeros(params)
        state[f"{kind}.adam.t"] = torch.zeros(len(seats), dtype=torch.int64)
        for name, stack in buffers.items():
            state[f"{kind}.buffers.{name}"] = stack
    if ema:
        state["g.ema"] = state["g.params"].clone()
        state["g.ema.t"] = torch.zeros(len(seats), dtype=torch.int64)  # the updates behind it
    for name, values in settings.items():
        whole = all(isinstance(value, int) for value in values)
        state[f"set.{name}"] = torch.tensor(list(values), dtype=torch.int64 if whole else torch.float64)
    for name in ("seed", "slot", "life"):
        state[f"set.{name}"] = torch.tensor([getattr(seat, name) for seat in seats], dtype=torch.int64)
    return blueprints[0], blueprints[1], state


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Builds a module whose initial weights depend on `seed` alone; the caller's random state is left as it was.

    A constructor may draw from PyTorch, NumPy or Python.
    """
    with seeded_generators(seed):
        return told_to_train(make())


def told_to_train(module: nn.Module) -> nn.Module:
    """Calls `train()` of modules that have their own, as a training script does; others stay as they were built."""
    called: list[str] = []
    for name, layer in module.named_modules():
        own = type(layer).train is not nn.Module.train or "train" in vars(layer)
        if own and not any(name.startswith(f"{outer}." if outer else "") for outer in called):
            layer.train(layer.training)
            called.append(name)
    return module


def founded(
    make: Callable[[], nn.Module], seeds: Sequence[int], dtype: torch.dtype
) -> tuple[Blueprint, Tensor, dict[str, Tensor]]:
    """A net's blueprint, and parameters [N, P] and buffers [N, …] of the modules that are built after these seeds.

    One module lives at a time, and its numbers go straight into its row: thousands of members are founded as fast as drawn.
    """
    first = seeded(make, seeds[0])
    refuse_other_numbers(first)  # before a cast drops what is not real
    blueprint = Blueprint(first.to(dtype))
    if not any(blueprint.learns.values()):
        raise UserError(
            f"{type(first).__name__}{where(first)} has no parameter that can be trained: give it one, or do not freeze all of them."
        )
    require_memory(
        3 * len(seeds) * blueprint.size * dtype.itemsize, f"weights and optimiser state of {len(seeds):,} nets"
    )
    params = torch.empty(len(seeds), blueprint.size, dtype=dtype)
    buffers = {name: torch.empty(len(seeds), *shape, dtype=of) for name, (shape, of) in blueprint.buffers.items()}
    for row, seed in enumerate(seeds):
        module = seeded(make, seed).to(dtype) if row else blueprint.module
        if [tuple(p.shape) for p in module.parameters()] != list(blueprint.shapes.values()):
            raise UserError(
                f"{type(module).__name__} is built with other parameters for each seed: members must be alike."
            )
        params[row] = blueprint.row(module)
        for name, buffer in module.named_buffers():
            buffers[name][row] = buffer
    return blueprint, params, buffers


def _zeros(like: Tensor) -> Tensor:
    """Zeros that take no memory, nor the time to write them, before somebody changes them: most go to a GPU."""
    return torch.from_numpy(np.zeros(like.shape, like[:0].numpy().dtype))


def bases(state: State) -> np.ndarray:
    """The key [N] from which every draw of each member is derived."""
    seed, slot, life = (state[f"set.{name}"].cpu().numpy() for name in ("seed", "slot", "life"))
    return rng.keys(np.zeros(len(seed), np.int64), seed, slot, life)


def members_of(state: State, which: slice | Sequence[int]) -> State:
    """Those members alone: views of the same storage for a slice, copies for a list."""
    return {name: value[which] for name, value in state.items()}


def take_(state: State, source: State, rows: Sequence[int], source_rows: Sequence[int]) -> None:
    """Writes members of `source` over members of `state`, in the same storage; settings included."""
    with torch.no_grad():
        for name, value in state.items():
            value[list(rows)] = source[name][list(source_rows)].to(value.device, value.dtype)


def buffers_of(state: State, kind: str) -> dict[str, Tensor]:
    prefix = f"{kind}.buffers."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def bytes_per_member(state: State) -> int:
    return sum(value[0].numel() * value.element_size() for value in state.values())


def finite(state: State) -> Tensor:
    """[N] bool: whose weights and moments are all finite; few operations, since every meeting asks for it.

    >>> finite({"w": torch.tensor([[1.0, 2.0], [torch.inf, -torch.inf]]), "set.lr": torch.ones(2, dtype=torch.float64)})
    tensor([ True, False])
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for value in state.values():
        if value.is_floating_point():
            kinds.setdefault(value.dtype, []).append(value)
    sums = [_sums(values) for values in kinds.values()]  # [n, N] by dtype
    each = sums[0] if len(sums) == 1 else torch.cat([value.double() for value in sums])
    return (each * 0).sum(0) == 0  # what is not finite is NaN here


def _sums(values: Sequence[Tensor]) -> Tensor:
    """[n, N] numbers of one dtype, summed for each member; many short rows are one copy and one sum."""
    plain = [value for value in values if value.dim() == 1]
    rows = [value.flatten(1) for value in values if value.dim() > 1]
    long = [value for value in rows if value.shape[1] > _SHORT]
    if len(long) < len(rows):
        long.append(torch.cat([value for value in rows if value.shape[1] <= _SHORT], dim=1))
    return torch.stack([*plain, *(value.sum(1) for value in long)])


def named(nets: Mapping[str, NamedRows], state: State) -> dict[str, Tensor]:
    """The state under the modules' own parameter names, as it is written to files."""
    slots = state["set.slot"].tolist()
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        kind, _, what = name.partition(".")
        if what in ROWS:
            out.update({f"{name}/{part}": view for part, view in nets[kind].parts(value, slots).items()})
        else:
            out[name] = value
    return out


def unnamed(nets: Mapping[str, NamedRows], tensors: Mapping[str, Tensor], names: Sequence[str]) -> State:
    """The reverse of `named`, for the state names asked for."""
    slots = tensors["set.slot"].tolist()
    state: State = {}
    for name in names:
        kind, _, what = name.partition(".")
        if what in ROWS:
            prefix = f"{name}/"
            parts = {part.removeprefix(prefix): value for part, value in tensors.items() if part.startswith(prefix)}
            state[name] = nets[kind].joined(parts, slots)
        else:
            state[name] = tensors[name]
    return state
