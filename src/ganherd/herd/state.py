"""The stacked state of a herd: a handful of tensors whose first axis is the member."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.errors import UserError
from ganherd.herd import streams

State = dict[str, Tensor]  # name -> [N, …]; `g.` and `d.` belong to the nets, `set.` are per-member settings

# State names that hold one number per parameter of a net, in the order of its blueprint.
ROWS = ("params", "adam.m", "adam.v", "ema")


class Rows(Protocol):
    """How rows of members read under the names of their nets' parameters; the members' slots say which net is whose."""

    def parts(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]: ...

    def joined(self, parts: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor: ...


class Blueprint:
    """One plain module and how its parameters lie in a member's row [P]."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = dict(module.named_parameters())
        wrong = [name for name, p in parameters.items() if not p.is_floating_point()]
        if wrong:
            raise UserError(
                f"parameter {wrong[0]} of {type(module).__name__} is not a float tensor, so it cannot be trained."
            )
        self.shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.sizes = [p.numel() for p in parameters.values()]
        self.size = sum(self.sizes)
        self.buffers = {name: (tuple(b.shape), b.dtype) for name, b in module.named_buffers()}
        self.takes_label = takes_label(module)
        normalised = {
            f"{prefix}.{name}" if prefix else name
            for prefix, child in module.named_modules()
            if isinstance(child, nn.modules.batchnorm._NormBase)
            for name, _ in child.named_parameters(recurse=False)
        }
        self.normalising = [name in normalised for name in parameters]  # gain and shift of batch norm

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [N, P] as named parameters [N, …]; one split, so that its gradient is one concatenation."""
        n, parts = rows.shape[0], rows.split_with_sizes(self.sizes, dim=1)
        return {name: part.view(n, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def parts(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """The same: all members have this net."""
        return self.views(rows)

    def joined(self, parts: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """The reverse of `views`."""
        return torch.cat(
            [parts[name].flatten(1) if shape else parts[name][:, None] for name, shape in self.shapes.items()], dim=1
        )

    def row(self, module: nn.Module) -> Tensor:
        parts = [p.detach().reshape(-1) for p in module.parameters()]
        return torch.cat(parts) if parts else torch.zeros(0)

    def clipped(self, what: str) -> Tensor:
        """[P] bool: which parameters weight clipping touches."""
        keep = [what == "all" or not is_norm for is_norm in self.normalising]
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
        return streams.key(self.seed, self.slot, self.life)


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
    for kind, make, purpose in (("g", make_g, streams.INIT_G), ("d", make_d, streams.INIT_D)):
        blueprint = None
        rows: list[Tensor] = []
        buffers: dict[str, list[Tensor]] = {}
        for seat in seats:
            module = seeded(make, streams.key(seat.base(), purpose)).to(dtype)
            blueprint = blueprint or Blueprint(module)
            rows.append(blueprint.row(module))
            for name, buffer in module.named_buffers():
                buffers.setdefault(name, []).append(buffer.detach().clone())
        assert blueprint is not None
        blueprints.append(blueprint)
        params = torch.stack(rows)  # [N, P]
        state[f"{kind}.params"] = params
        state[f"{kind}.adam.m"] = torch.zeros_like(params)
        state[f"{kind}.adam.v"] = torch.zeros_like(params)
        state[f"{kind}.adam.t"] = torch.zeros(len(seats), dtype=torch.int64)
        for name, stack in buffers.items():
            state[f"{kind}.buffers.{name}"] = torch.stack(stack)
    if ema:
        state["g.ema"] = state["g.params"].clone()
    for name, values in settings.items():
        whole = all(isinstance(value, int) for value in values)
        state[f"set.{name}"] = torch.tensor(list(values), dtype=torch.int64 if whole else torch.float64)
    for name in ("seed", "slot", "life"):
        state[f"set.{name}"] = torch.tensor([getattr(seat, name) for seat in seats], dtype=torch.int64)
    return blueprints[0], blueprints[1], state


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Builds a module whose initial weights depend on `seed` alone; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def bases(state: State) -> np.ndarray:
    """The key [N] from which every draw of each member is derived."""
    seed, slot, life = (state[f"set.{name}"].cpu().numpy() for name in ("seed", "slot", "life"))
    return streams.keys(np.zeros(len(seed), np.int64), seed, slot, life)


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
    """[N] bool: whose weights and moments are all finite."""
    good = None
    for value in state.values():
        if value.is_floating_point():
            ok = torch.isfinite(value.flatten(1).sum(1) if value.dim() > 1 else value)
            good = ok if good is None else good & ok
    assert good is not None
    return good


def named(nets: Mapping[str, Rows], state: State) -> dict[str, Tensor]:
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


def unnamed(nets: Mapping[str, Rows], tensors: Mapping[str, Tensor], names: Sequence[str]) -> State:
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
