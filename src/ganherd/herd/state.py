"""The stacked state of a herd: a dictionary of tensors [N, …] whose first axis is the member (one of N GANs).

All parameters of a member's net are one row of a tensor [N, P]. A herd may consist of several replicas, i.e. copies
with other seeds; the slot of a member is its place in its replica.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.herd import rng
from ganherd.herd.checks.module_copies import why_not_fused
from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.parameter_names import canonical_names, refuse_shared_buffers, refuse_unsupported_tensors
from ganherd.herd.threaded_init import build_in_threads, pays_in_threads
from ganherd.util.errors import UserError
from ganherd.util.memory import require_memory

# name -> [N, …]. Names begin with `g.` or `d.` for tensors of the generators or discriminators, and `set.` for
# settings.
State = dict[str, Tensor]

MakeNet = Callable[[], nn.Module]
MemberSettings = Mapping[str, Sequence[float] | Sequence[int]]  # one value for each member

# State tensors with one number per parameter of a net, in the order of its blueprint.
ROWS = ("params", "adam.m", "adam.v", "ema")

_SHORT = 4096  # rows of up to this many numbers are faster to concatenate than to sum one by one


class NamedRows(Protocol):
    """Convert between members' rows [N, P] and named parameters. The slot of a member determines which net it has."""

    def split_rows(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """Split rows [N, P] of members in these slots [N] into named parameters [N, …]."""

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a parameter by its name in checkpoints, or None if no parameter has that name."""

    def join_rows(self, params: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """Join named parameters [N, …] of members in these slots [N] into rows [N, P]."""


class ModuleTraits(NamedTuple):
    """Observed behaviour of a user's module that engines have to respect."""

    transient_attributes: tuple[
        tuple[str, str], ...
    ]  # (layer, attribute) for each attribute that a forward pass assigns
    why_not_fused: str  # why the module can run for only one member at a time; empty if for all members at once


class Blueprint:
    """A plain module for one GAN, and the layout of its parameters in a member's row [P].

    Attributes:
        trainable: Maps the name of each parameter to whether it is trained; `requires_grad_(False)` freezes it.
        shapes, param_sizes: Shapes and numbers of elements of the parameters, in the order of the row.
        num_params: P, the length of the row.
        buffers: Maps the name of each buffer to its shape and dtype.
        infinite_buffers: Names of buffers that are infinite on purpose, such as an attention mask.
        takes_label: Whether `forward` has an argument `y`.
        is_norm_param: For each parameter, whether it belongs to a batch norm.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        refuse_shared_buffers(module)
        parameters = dict(module.named_parameters())
        refuse_unsupported_tensors(module)
        self.trainable = {name: p.requires_grad for name, p in parameters.items()}
        self.traits = ModuleTraits((), why_not_fused(module))
        self.shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.param_sizes = [p.numel() for p in parameters.values()]
        self.num_params = sum(self.param_sizes)
        self.buffers = {name: (tuple(b.shape), b.dtype) for name, b in module.named_buffers()}
        self.infinite_buffers = [
            name for name, b in module.named_buffers() if b.is_floating_point() and b.isinf().any()
        ]
        # The views [1, …] of a member's row with which the module's parameters share memory at present; see
        # `MemberModule.load`. It is stored here because several engines use the same module in turn.
        self.loaded: Mapping[str, Tensor] = {}
        # Caches of `herd.lowering.network`: traced graphs and lowered modules.
        self.traced: dict[tuple[bool, ...], Any] = {}
        self.lowered: dict[tuple[object, ...], Any] = {}
        self.takes_label = takes_label(module)
        self.canonical_names = canonical_names(module)
        norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
        norm_params = {id(p) for layer in norms for p in layer.parameters(recurse=False)}
        self.is_norm_param = [id(p) in norm_params for p in parameters.values()]

    def adopt(self, traits: ModuleTraits) -> None:
        """Take over traits that were observed when the module was tried out; an earlier reason not to fuse stays."""
        self.traits = ModuleTraits(traits.transient_attributes, self.traits.why_not_fused or traits.why_not_fused)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return rows [N, P] as parameters [N, …] by name, which share their storage.

        The rows are split by a single operation, so that its gradient is a single concatenation.
        """
        n, columns = rows.shape[0], rows.split_with_sizes(self.param_sizes, dim=1)
        shapes = zip(self.shapes.items(), columns, strict=True)
        return {name: column.view(n, *shape) for (name, shape), column in shapes}

    def split_rows(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """Return `views` of the rows; the slots are ignored, because members in all slots have the same net."""
        return self.views(rows)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a parameter by its name in checkpoints, or None if no parameter has that name."""
        shape = self.shapes.get(name)
        return None if shape is None else tuple(shape)

    def join_rows(self, params: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """Join named parameters [N, …] into rows [N, P], the inverse of `views`; the slots are ignored, as in `split_rows`."""
        columns = [params[name].flatten(1) if shape else params[name][:, None] for name, shape in self.shapes.items()]
        return torch.cat(columns, dim=1)

    def flatten_parameters(self, module: nn.Module) -> Tensor:
        """Return the parameters of a module with this layout as one row [P]."""
        flat = [p.detach().reshape(-1) for p in module.parameters()]
        return torch.cat(flat) if flat else torch.zeros(0)

    def clip_mask(self, which: str) -> Tensor:
        """Return which numbers of a member's row weight clipping changes, bool [P].

        Args:
            which: "all" for all trainable parameters; anything else leaves out those of batch norms.
        """
        each = zip(self.trainable.values(), self.is_norm_param, strict=True)
        clips = [trainable and (which == "all" or not is_norm) for trainable, is_norm in each]
        return torch.repeat_interleave(torch.tensor(clips, dtype=torch.bool), torch.tensor(self.param_sizes))


def takes_label(module: nn.Module) -> bool:
    """Return whether the module's `forward` has an argument `y`, and therefore gets the labels."""
    return "y" in inspect.signature(module.forward).parameters


@dataclass(frozen=True)
class Seat:
    """The identity of a member: the numbers that determine its random streams, and its trial in a sweep of settings."""

    seed: int  # the seed of its replica
    slot: int  # its place in the replica
    life: int = 0  # raised by each repair, so that the member draws other numbers than those with which it failed
    trial: int = 0  # its trial in a sweep; random streams do not depend on it: all trials see the same data and noise

    def base_key(self) -> int:
        """Return the key from which every draw of the member is derived."""
        return rng.key(self.seed, self.slot, self.life)


def own_setting(state: State, name: str, common: float) -> float | Tensor:
    """Return a setting: [N] in the dtype of the weights if the state has a value of each member, otherwise `common`.

    Args:
        name: The name of the setting without the prefix `set.`.
        common: The value that all members have otherwise.
    """
    own = state.get(f"set.{name}")
    return common if own is None else own.to(state["g.params"].dtype)


def new_state(
    make_g: MakeNet, make_d: MakeNet, seats: Sequence[Seat], settings: MemberSettings, dtype: torch.dtype, ema: bool
) -> tuple[Blueprint, Blueprint, State]:
    """Draw the initial weights of all members, each from its own random stream, and return the stacked state.

    Args:
        make_g: Builds a generator.
        make_d: Builds a discriminator.
        seats: The identity of each member, in the order of the state.
        settings: The values of all members for each setting, e.g. `lr_g`; they become tensors such as `set.lr_g`.
        dtype: The dtype of the weights.
        ema: Whether the state has a running average of the generators' weights.

    Returns:
        The blueprints of generator and discriminator, and the state.
    """
    state: State = {}
    blueprints = []
    for kind, make, purpose in (("g", make_g, rng.INIT_G), ("d", make_d, rng.INIT_D)):
        blueprint, params, buffers = init_members(make, [rng.key(seat.base_key(), purpose) for seat in seats], dtype)
        blueprints.append(blueprint)
        state[f"{kind}.params"] = params  # [N, P]
        state[f"{kind}.adam.m"] = _zeros(params)
        state[f"{kind}.adam.v"] = _zeros(params)
        state[f"{kind}.adam.t"] = torch.zeros(len(seats), dtype=torch.int64)
        for name, stack in buffers.items():
            state[f"{kind}.buffers.{name}"] = stack
    if ema:
        state["g.ema"] = state["g.params"].clone()
        state["g.ema.t"] = torch.zeros(len(seats), dtype=torch.int64)  # the number of its updates
    for name, values in settings.items():
        is_integer = all(isinstance(value, int) for value in values)
        state[f"set.{name}"] = torch.tensor(list(values), dtype=torch.int64 if is_integer else torch.float64)
    for name in ("seed", "slot", "life"):
        state[f"set.{name}"] = torch.tensor([getattr(seat, name) for seat in seats], dtype=torch.int64)
    return blueprints[0], blueprints[1], state


def build_seeded(make: MakeNet, seed: int) -> nn.Module:
    """Return a new module whose initial weights depend on `seed` alone.

    The constructor may draw from the generators of PyTorch, NumPy or Python; their states are restored afterwards.
    """
    with seeded_generators(seed):
        return apply_custom_train(make())


def apply_custom_train(module: nn.Module) -> nn.Module:
    """Call `train()` of those layers that override it, with their present mode, as a training script would.

    All other layers stay in the mode in which they were built. Return the module.
    """
    called: list[str] = []
    for name, layer in module.named_modules():
        overrides = type(layer).train is not nn.Module.train or "train" in vars(layer)
        if overrides and not any(name.startswith(f"{outer}." if outer else "") for outer in called):
            layer.train(layer.training)
            called.append(name)
    return module


def init_members(make: MakeNet, seeds: Sequence[int], dtype: torch.dtype) -> tuple[Blueprint, Tensor, State]:
    """Build a module for each seed, and stack their weights.

    The numbers of each module are copied to its row at once, and the module is freed, so that thousands of members need
    hardly more memory than their rows. Members with the same seed (trials of a sweep) get the same weights.

    Args:
        make: Builds a module.
        seeds: [N] the seed of each member's weights.

    Returns:
        The net's blueprint, the parameters [N, P] and the buffers [N, …] by name.

    Raises:
        UserError: If no parameter can be trained, or if modules differ in their shapes.
    """
    first = build_seeded(make, seeds[0])
    refuse_unsupported_tensors(first)  # before the cast to `dtype`, which would drop imaginary parts
    blueprint = Blueprint(first.to(dtype))
    if not any(blueprint.trainable.values()):
        raise UserError(
            f"{type(first).__name__}{assignment_line(first)} has no parameter that can be trained: "
            "give it one, or do not freeze all of them."
        )
    num_bytes = 3 * len(seeds) * blueprint.num_params * dtype.itemsize
    require_memory(num_bytes, f"weights and optimiser state of {len(seeds):,} nets")
    params = torch.empty(len(seeds), blueprint.num_params, dtype=dtype)
    buffers = {name: torch.empty(len(seeds), *shape, dtype=kind) for name, (shape, kind) in blueprint.buffers.items()}

    def write(row: int, module: nn.Module) -> None:
        module = module.to(dtype)
        if [tuple(p.shape) for p in module.parameters()] != list(blueprint.shapes.values()):
            raise UserError(
                f"{type(module).__name__} is built with other parameters for each seed: members must be alike."
            )
        for column, parameter in zip(params[row].split(blueprint.param_sizes), module.parameters(), strict=True):
            # NumPy copies in this thread alone, whereas PyTorch would start others.
            np.copyto(column.numpy(), parameter.detach().cpu().reshape(-1).numpy())
        for name, buffer in module.named_buffers():
            buffers[name][row] = buffer

    write(0, first)
    first_rows = {seed: row for row, seed in reversed(list(enumerate(seeds)))}
    other_seeds = [seed for seed in dict.fromkeys(seeds) if first_rows[seed]]

    def write_member(number: int, module: nn.Module) -> None:
        write(first_rows[other_seeds[number]], module)

    in_threads = pays_in_threads(make, len(other_seeds))
    if not (in_threads and build_in_threads(lambda: apply_custom_train(make()), other_seeds, write_member)):
        for number, seed in enumerate(other_seeds):
            write_member(number, build_seeded(make, seed))
    for row, seed in enumerate(seeds):
        if (first_row := first_rows[seed]) != row:  # trials of a sweep start from the same weights
            for stack in (params, *buffers.values()):
                stack[row] = stack[first_row]
    return blueprint, params, buffers


def _zeros(like: Tensor) -> Tensor:
    """Return zeros of the shape and dtype of a tensor, which take no memory until they are written."""
    return torch.from_numpy(np.zeros(like.shape, like[:0].numpy().dtype))


def base_keys(state: State) -> np.ndarray:
    """Return the base key of each member, int64 [N], from which all of its random draws are derived."""
    seed, slot, life = (state[f"set.{name}"].cpu().numpy() for name in ("seed", "slot", "life"))
    return rng.keys(np.zeros(len(seed), np.int64), seed, slot, life)


def members_of(state: State, which: slice | Sequence[int]) -> State:
    """Return the state of some members, given as rows: views of the same storage for a slice, copies for a list."""
    return {name: value[which] for name, value in state.items()}


def take_(state: State, source: State, rows: Sequence[int], source_rows: Sequence[int]) -> None:
    """Overwrite members in place: row `rows[i]` of `state` becomes row `source_rows[i]` of `source`, with settings."""
    with torch.no_grad():
        for name, value in state.items():
            value[list(rows)] = source[name][list(source_rows)].to(value.device, value.dtype)


def buffers_of(state: State, kind: str) -> dict[str, Tensor]:
    """Return the buffers [N, …] of the generators (kind `g`) or discriminators (`d`) by their names in the module."""
    prefix = f"{kind}.buffers."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def bytes_per_member(state: State) -> int:
    """Return the size in bytes of one member's state."""
    return sum(value[0].numel() * value.element_size() for value in state.values())


def finite_members(state: State, infinite: Collection[str] = ()) -> Tensor:
    """Return which members have only finite numbers in their state, bool [N].

    This is called before members meet, i.e. exchange nets or opponents, so it must launch only a few operations. It
    sums all numbers of a member: a sum of finite numbers times 0 is 0, but NaN if any number is infinite or NaN.

    Args:
        infinite: Names of tensors that may hold infinity, but no NaN; see `StackedHerd.infinite_buffers`.

    >>> finite_members({"w": torch.tensor([[1.0, 2.0], [torch.inf, -torch.inf]]), "set.lr": torch.ones(2, dtype=torch.float64)})
    tensor([ True, False])
    >>> finite_members({"d.buffers.mask": torch.tensor([[0.0, -torch.inf], [0.0, torch.nan]])}, {"d.buffers.mask"})
    tensor([ True, False])
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for name, value in state.items():
        if value.is_floating_point():
            checked = value.nan_to_num(torch.nan, 0.0, 0.0) if name in infinite else value
            kinds.setdefault(value.dtype, []).append(checked)
    sums = [_sums(values) for values in kinds.values()]  # [n, N] for each dtype
    all_sums = sums[0] if len(sums) == 1 else torch.cat([value.double() for value in sums])
    return (all_sums * 0).sum(0) == 0  # inf * 0 and nan * 0 are NaN


def _sums(values: Sequence[Tensor]) -> Tensor:
    """Return sums of tensors [N, …] of one dtype over all axes but the first, [n, N].

    Short rows are concatenated and summed together, which takes fewer operations, so n may be less than the number of
    tensors.
    """
    plain = [value for value in values if value.dim() == 1]
    rows = [value.flatten(1) for value in values if value.dim() > 1]
    long = [value for value in rows if value.shape[1] > _SHORT]
    if len(long) < len(rows):
        long.append(torch.cat([value for value in rows if value.shape[1] <= _SHORT], dim=1))
    return torch.stack([*plain, *(value.sum(1) for value in long)])


def to_named_tensors(nets: Mapping[str, NamedRows], state: State) -> dict[str, Tensor]:
    """Return the state as it is written to checkpoints: rows [N, P] are split into tensors [N, …] named by parameter.

    Args:
        nets: The nets of the tensors whose names begin with `g.` and with `d.`.
    """
    slots = state["set.slot"].tolist()
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        kind, _, tensor = name.partition(".")
        if tensor in ROWS:
            out.update({f"{name}/{param}": view for param, view in nets[kind].split_rows(value, slots).items()})
        else:
            out[name] = value
    return out


def from_named_tensors(nets: Mapping[str, NamedRows], tensors: Mapping[str, Tensor], names: Sequence[str]) -> State:
    """Return the state from the tensors of a checkpoint; the inverse of `to_named_tensors`.

    Args:
        tensors: The tensors of the checkpoint by name.
        names: The names of the state's tensors to return.
    """
    slots = tensors["set.slot"].tolist()
    state: State = {}
    for name in names:
        kind, _, tensor = name.partition(".")
        if tensor in ROWS:
            prefix = f"{name}/"
            params = {full.removeprefix(prefix): value for full, value in tensors.items() if full.startswith(prefix)}
            state[name] = nets[kind].join_rows(params, slots)
        else:
            state[name] = tensors[name]
    return state
