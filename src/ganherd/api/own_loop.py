"""Offer ganherd's fused training step for a user's own loop: many GANs as one object with a dictionary of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ganherd.api.given_objects import GivenObjects
from ganherd.comm.ranks import Ranks
from ganherd.data.dataset import Dataset
from ganherd.herd.batch_feed import Feed
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.engine.engines import Engine, new_plan, place_state
from ganherd.herd.state import Blueprint, Seat, State, buffers_of
from ganherd.herd.step.step import SUMS
from ganherd.mixture.generators import with_weights
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.training.setup import preflight
from ganherd.training.setup.assemble import put_together
from ganherd.training.setup.member_data import MemberData
from ganherd.util import files, tensor_file
from ganherd.util.errors import UserError, whole_number
from ganherd.util.paths import given_path

StateDict = Mapping[str, Tensor]
_STEP = "step"  # the entry of a saved state that holds the number of steps


class GivenBatches(Feed):
    """A source of batches that returns those which the user's loop passes for one step, instead of a data set's."""

    def __init__(self, like: Feed) -> None:
        self.x, self.y, self.plan = like.x, like.y, like.plan
        self.batches: list[tuple[Tensor, Tensor]] = []  # x [N, B, …] and y [N, B] of each discriminator update
        self.first = 0  # the number of discriminator updates before these

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        x, y = self.batches[c - self.first]
        return x[members], y[members]


class Herd:
    """Train many GANs as one, in your own loop: each call of `step` is one training step of all members.

    Weights, noise and optimiser are those of `ganherd.train` with the same seed and settings. Members never meet;
    between two steps you may read and write `state`.

    >>> G = lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    >>> D = lambda: nn.Linear(4, 1)
    >>> herd = Herd(G, D, members=3, shape=(4,), latent=2, optim={"lr_g": 1e-3}, loss={"name": "hinge"})
    >>> losses = herd.step(torch.zeros(8, 4))
    >>> herd, losses["loss_g"].shape
    (<Herd of 3 members, step 1, fused on cpu>, torch.Size([3]))
    """

    def __init__(
        self,
        generator: Any,
        discriminator: Any,
        *,
        members: int,
        shape: Sequence[int],
        latent: int = 32,
        classes: int = 0,
        seed: int = 0,
        device: str = "cpu",
        engine: str = "auto",
        log: Callable[[str], None] = lambda text: None,
        **sections: Mapping[str, Any],
    ) -> None:
        """Draw the first weights of all members, and compare the nets with plain PyTorch.

        Args:
            generator: A class of plain modules for one GAN, a function that builds one, or the name of a packaged net.
                It gets `shape`, `latent` and `classes` if it has such parameters.
            discriminator: Likewise; it returns logits.
            members: The number of GANs.
            shape: The shape of one sample, such as (1, 28, 28).
            latent: The number of random numbers from which a generator makes one sample.
            classes: The number of labels, for nets that take a `y`.
            seed: The seed of weights, noise and dropout.
            device: cpu, cuda, or one GPU such as cuda:1.
            engine: fused (all members at once), loop (one after another), or auto: fused if the nets can be fused.
            log: Receives notes about the nets.
            sections: The sections `loss`, `optim` and `train` of a recipe. Settings may have one value for each member.

        Raises:
            UserError: A setting is wrong, or the nets cannot be trained correctly.
        """
        _check_arguments(engine, sections)
        members, classes = whole_number("members", members, 1), whole_number("classes", classes, 0)
        if isinstance(shape, str) or not isinstance(shape, Sequence) or not len(shape):
            raise UserError(f"shape must be the shape of one sample, such as (1, 28, 28), not {shape!r}.")
        shape = tuple(whole_number("each number of shape", number, 1) for number in shape)
        self._given = GivenObjects.of((generator, discriminator))  # holds the classes
        self.recipe = recipe_file.load(
            {
                "data": {"partition": "all"},
                "herd": {"members": members},
                "nets": {**self._given.sections["nets"], "latent": latent},
                "engine": {"device": device},
                "run": {"seed": seed},
                **sections,
            }
        )
        prepared = put_together(
            _blank(self.recipe, tuple(shape), classes, members, seed), Ranks.single_process(members), True
        )
        preflight.check_nets(prepared, log)
        self._herd, self.step_count = prepared.herd, 0
        separate = next((net for net in (self._herd.g, self._herd.d) if net.traits.why_not_fused), None)
        if engine == "fused" and separate is not None:
            raise UserError(
                f"{type(separate.module).__name__} cannot be fused ({separate.traits.why_not_fused}): use engine='loop'."
            )
        name = "loop" if separate is not None or engine == "loop" else "fused"
        self._plan = new_plan(name, members, torch.get_num_threads(), self._herd.device)
        place_state(self._herd, self._plan)
        self._feed = GivenBatches(self._herd.feed)
        self._herd.feed = self._feed
        self._shape, self._classes = tuple(shape), classes
        self._engines: dict[int, Engine] = {}  # by the size of a batch

    # -- training -----------------------------------------------------------------------------------------------------

    def step(self, x: Tensor | Sequence[Tensor], y: Tensor | Sequence[Tensor] | None = None) -> dict[str, Tensor]:
        """Train all members for one step, and return their losses and mean logits, each [N].

        Args:
            x: The batch [N, B, …] of all N members, or one batch [B, …] that all members see. Floats are passed to the
                nets as they are; bytes 0 … 255 become -1 … 1. With `train.n_critic` above 1, a list of that many
                batches.
            y: The labels [N, B] or [B], for nets that take them; a list if x is one.

        Raises:
            UserError: A batch has another shape than the herd.
        """
        rules, device = self._herd.rules, self._herd.device
        images: list[Any] = list(x) if isinstance(x, list | tuple) else [x]
        labels: list[Any] = list(y) if isinstance(y, list | tuple) else [y] * len(images)
        if len(images) != rules.n_critic or len(labels) != len(images):
            raise UserError(
                f"a step takes {rules.n_critic} batches (train.n_critic), not {len(images)}: give a list of them."
            )
        self._feed.batches = [self._batch(*pair) for pair in zip(images, labels, strict=True)]
        self._feed.first = self.step_count * rules.n_critic
        sizes = {batch.shape[1] for batch, _ in self._feed.batches}
        if len(sizes) > 1:
            raise UserError(
                f"the batches of a step have {' and '.join(map(str, sorted(sizes)))} rows: give all of them the same."
            )
        if (rows := next(iter(sizes))) % rules.packing:
            raise UserError(
                f"a batch has {rows} rows, which do not divide into packs of {rules.packing}: give a multiple."
            )
        sums = self._herd.zero_sums().to(device)
        self._engine(sizes.pop()).advance(self.step_count, self.step_count + 1, sums)
        updates = rules.d_updates(self.step_count)
        self.step_count += 1
        self._feed.batches = []
        sums[[0, 2, 3]] /= max(1, updates)
        return dict(zip(SUMS, sums.unbind(), strict=True))

    def _batch(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Check a batch and return it for all members, on the device: x [N, B, …] and y [N, B]."""
        count, dtype = len(self), self._herd.state["g.params"].dtype
        x = _as_tensor("a batch", x)
        if tuple(x.shape[1:]) == self._shape and x.dim() == len(self._shape) + 1:
            x = x.expand(count, *x.shape)
            y = None if y is None else _as_tensor("y", y)
            y = y.expand(count, -1) if y is not None and y.dim() == 1 else y
        if x.dim() != len(self._shape) + 2 or x.shape[0] != count or tuple(x.shape[2:]) != self._shape:
            wanted = " × ".join(map(str, self._shape))
            raise UserError(
                f"a batch must be B × {wanted} or {count} × B × {wanted}, not {' × '.join(map(str, x.shape))}."
            )
        if not x.numel():
            raise UserError("a batch has no rows: give at least one.")
        bytes_ = x.dtype == torch.uint8
        if not (bytes_ or x.is_floating_point()):
            raise UserError(f"a batch has numbers of type {str(x.dtype).removeprefix('torch.')}: give bytes or floats.")
        x = x.to(self._herd.device, dtype)
        x = (x / 127.5 - 1 if bytes_ else x).contiguous()
        if y is None:
            if self._classes or self._herd.g.takes_label or self._herd.d.takes_label:
                raise UserError("this herd has labels: give them as y.")
            return x, torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
        y = _as_tensor("y", y)
        if y.is_floating_point():
            raise UserError("y has fractions: give the numbers of classes.")
        y = y.to(self._herd.device, torch.int64)
        if y.shape != x.shape[:2] or (y.numel() and not 0 <= int(y.min()) <= int(y.max()) < max(1, self._classes)):
            raise UserError(f"y must have a label from 0 to {max(0, self._classes - 1)} for each row of x.")
        return x, y.contiguous()

    def _engine(self, batch: int) -> Engine:
        """Return the engine (which executes the fused step) for batches of this size; create it on first use."""
        if batch not in self._engines:
            if batch == 1:
                self._refuse_single_rows()
            self._engines[batch] = Engine(replace(self._herd, rules=replace(self._herd.rules, batch=batch)), self._plan)
        return self._engines[batch]

    def _refuse_single_rows(self) -> None:
        """Raise a `UserError` if PyTorch refuses to train a net on one row: a batch norm does, and fused it returns zeros."""
        dtype, latent = self._herd.state["g.params"].dtype, self._herd.rules.latent
        for net, shape in ((self._herd.g, (latent,)), (self._herd.d, self._shape)):
            labels = (torch.zeros(1, dtype=torch.int64),) if net.takes_label else ()
            module = copy_module(net.module).cpu().to(dtype).train()
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    module(torch.zeros(1, *shape, dtype=dtype), *labels)
            except ValueError as error:
                raise UserError(f"{type(net.module).__name__} cannot train on batches of one row: {error}.") from None

    # -- the members --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._herd.num_members

    @property
    def state(self) -> State:
        """Everything that training changes, as tensors [N, …] by name.

        You may write to them in place between two steps.
        """
        return self._herd.state

    def generator(self, member: int) -> nn.Module:
        """Return a copy of a member's generator (its average if `train.ema` is set) as a plain module in eval mode."""
        weights = self.state.get("g.ema", self.state["g.params"])
        return _module(self._herd.g, weights, buffers_of(self.state, "g"), self._number(member))

    def discriminator(self, member: int) -> nn.Module:
        """Return a copy of a member's discriminator as a plain module in eval mode."""
        return _module(self._herd.d, self.state["d.params"], buffers_of(self.state, "d"), self._number(member))

    def set_weights(
        self, generator: StateDict | None = None, discriminator: StateDict | None = None, member: int | None = None
    ) -> None:
        """Set the weights of one member or of all members to those of a GAN. Adam's moments restart at zero.

        Args:
            generator: The weights of a generator, as `state_dict()` of its module returns them; None: keep them.
            discriminator: Likewise of a discriminator.
            member: The member whose weights are set; None: all.
        """
        if generator is None and discriminator is None:
            raise UserError("give the weights of a generator or of a discriminator, as state_dict() returns them.")
        rows = slice(None) if member is None else slice(self._number(member), member + 1)
        for kind, net, given in (("g", self._herd.g, generator), ("d", self._herd.d, discriminator)):
            if given is not None:
                self._set(kind, net, given, rows)

    def _set(self, kind: str, net: Blueprint, given: StateDict, rows: slice) -> None:
        """Write weights into the state of some members, and reset Adam and the average; `kind` is "g" or "d"."""
        if not isinstance(given, Mapping):
            raise UserError(f"weights are a {type(given).__name__}: give those that state_dict() of a module returns.")
        own = copy_module(net.module)
        try:
            own.load_state_dict(dict(given))
        except (RuntimeError, AttributeError, TypeError) as error:
            raise UserError(
                f"these weights do not fit {type(net.module).__name__}: {' '.join(str(error).split())}"
            ) from None
        with torch.no_grad():
            self.state[f"{kind}.params"][rows] = net.flatten_parameters(own).to(self.state[f"{kind}.params"])
            persistent = own.state_dict().keys()  # members keep their other buffers, which the weights do not contain
            for name, buffer in own.named_buffers():
                if name not in persistent:
                    continue
                self.state[f"{kind}.buffers.{name}"][rows] = buffer.to(self.state[f"{kind}.buffers.{name}"])
            for name in ("adam.m", "adam.v", "adam.t"):
                self.state[f"{kind}.{name}"][rows] = 0
            if kind == "g" and "g.ema" in self.state:
                self.state["g.ema"][rows] = self.state["g.params"][rows]
                self.state["g.ema.t"][rows] = 0

    # -- saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the whole state, with the number of steps; `load_state_dict` continues exactly from it."""
        return {
            **{name: value.detach().clone() for name, value in self.state.items()},
            _STEP: torch.tensor(self.step_count),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from a state that `state_dict` returned.

        Raises:
            UserError: It is the state of another herd.
        """
        self._refuse_another(state)
        with torch.no_grad():
            for name, value in self.state.items():
                value.copy_(state[name])
        self.step_count = int(state[_STEP])

    def save(self, path: str | Path) -> Path:
        """Write the whole state to a safetensors file, and return its path."""
        path = given_path("the file of a herd", path)
        if path.is_dir():
            raise UserError(f"{path} is a folder: name a file in it, such as herd.safetensors.")
        tensors = {name: value.cpu().contiguous() for name, value in self.state_dict().items()}
        try:
            files.atomic_write(path, safetensors.torch.save(tensors))
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}.") from None
        return path

    def load(self, path: str | Path) -> None:
        """Continue exactly from a file that `save` wrote.

        Raises:
            UserError: The file cannot be read, or is of another herd.
        """
        path = given_path("the file of a herd", path)
        try:
            tensors = tensor_file.read(path, None, self._refuse_another)
        except (OSError, tensor_file.TensorMismatch) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
        self.load_state_dict(tensors)

    def _refuse_another(self, state: StateDict) -> None:
        """Raise a `UserError` if these tensors do not have the names, shapes and types of this herd's state."""
        if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
            raise UserError("a state is what state_dict() of a herd returns: a dictionary of tensors.")
        own, given = (
            {(name, tuple(value.shape), value.dtype) for name, value in each.items()}
            for each in ({**self.state, _STEP: torch.tensor(0)}, state)
        )
        if different := sorted(name for name, *_ in own ^ given):
            raise UserError(
                f"this is the state of another herd: {different[0]} is missing, or has another shape or type."
            )

    def _number(self, member: int) -> int:
        member = whole_number("member", member)
        if not 0 <= member < len(self):
            raise UserError(f"there is no member {member}; this herd has {len(self)}, counted from 0.")
        return member

    def __repr__(self) -> str:
        return f"<Herd of {len(self)} members, step {self.step_count:,}, {self._plan.name} on {self._plan.device}>"


def _as_tensor(name: str, value: Any) -> Tensor:
    """Convert an array to a tensor; raise a `UserError` that names the argument if that is impossible."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name} must be a tensor or an array of numbers, not a {type(value).__name__}.") from None


def _check_arguments(engine: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a `UserError` for an unknown engine, or for sections and settings that only runs have."""
    if unknown := [name for name in sections if name not in ("loss", "optim", "train")]:
        raise UserError(
            f"Herd has no argument {unknown[0]!r}; it takes the sections loss, optim and train of a recipe."
        )
    if of_runs := [key for key in ("budget", "stop", "schedules") if key in sections.get("train", {})]:
        raise UserError(
            f"train.{of_runs[0]} is for runs: in your own loop, decide yourself how long it trains, and write to herd.state to "
            "change settings, such as herd.state['set.lr_g']."
        )
    if engine not in ("auto", "fused", "loop"):
        raise UserError(f"engine must be auto, fused or loop, not {engine!r}.")


def _blank(recipe: Recipe, shape: tuple[int, ...], classes: int, members: int, seed: int) -> MemberData:
    """Return the data of members whose batches the user passes: a data set with one row of zeros as a placeholder."""
    x, y = np.zeros((1, *shape), np.float32), np.zeros(1, np.int64)
    labels = tuple(str(k) for k in range(classes))
    dataset = Dataset("your own batches", x, y, x[:0], y[:0], labels, 0.0, 1.0)
    index, count = np.zeros((members, 1), np.int64), np.ones(members, np.int64)
    seats = [Seat(seed, slot) for slot in range(members)]
    shares = np.full((members, classes), 1 / max(1, classes))
    return MemberData(recipe, dataset, index, count, np.full(members, -1), shares, seats, members, 1.0, ())


def _module(net: Blueprint, rows: Tensor, buffers: StateDict, member: int) -> nn.Module:
    state = {name: value[member] for name, value in net.views(rows).items()}
    return with_weights(net.module, state | {name: value[member] for name, value in buffers.items()})
