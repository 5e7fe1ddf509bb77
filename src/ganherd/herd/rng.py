"""Draw random numbers that depend only on a member and a step, never on the process, the device or the other members.

Every draw is made from a key that is hashed from (seed, slot, life, step, purpose, call). There is no generator state to save, and
a member draws the same numbers no matter which members train with it. On a CPU the key seeds a `torch.Generator`; on a GPU the key
and a counter are hashed. CPU and GPU draws differ.

Streams have a version, which runs and mixtures record, so that old ones reproduce their numbers. Version 1 seeds the CPU's
Mersenne Twister with `manual_seed`, which uses only the low 32 bits of a key. Version 2 fills its state from all 64 bits.
Version 3, `PORTABLE`, hashes key and counter on a CPU too, so that other programs can repeat the draws: exported models use it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ganherd.herd.checks.module_copies import calling_line, calling_net
from ganherd.util.errors import UserError

# Purposes of draws. The numbers are part of every run's identity: never reuse or renumber one.
INIT_G, INIT_D, ORDER, NOISE, INSIDE, PENALTY, INPUT_NOISE, SAMPLE, ROUTE, CALIBRATE, PREVIEW = range(1, 12)
OPPONENT, MUTATE, MUTATE_LOSS, PAIRING, FITNESS, TOURNAMENT, MIXING, AUGMENT = range(12, 20)

Purpose = tuple[int, ...]  # one of these numbers, then numbers that distinguish its draws within a step

VERSIONS = (1, 2)  # new runs and mixtures use the last one
PORTABLE = 3  # the streams of exported models; no run records it
_version = ContextVar("ganherd.streams", default=VERSIONS[-1])

PRIORS = ("normal", "uniform")  # `set.prior` holds indices into this tuple

HAS_TRITON = importlib.util.find_spec("triton") is not None
# The constants of splitmix64.
GOLDEN = 0x9E3779B97F4A7C15
MIX_FACTORS, MIX_SHIFTS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (30, 27, 31)
_MASK = (1 << 64) - 1
# Converted once: converting them at each call would cost as much as the arithmetic.
_UINT64 = [np.uint64(value) for value in (GOLDEN, *MIX_FACTORS)]
_SHIFTS = [np.uint64(bits) for bits in MIX_SHIFTS]
_FEW = 12  # keys; so few are hashed faster as numbers than as an array
_STEPS_AHEAD, _NUMBERS_AHEAD = 32, 1 << 20  # most steps of a draw ahead, and most numbers of all of them
_WORDS = 624  # 32-bit words in the state of a Mersenne Twister
_COUNTERS = np.arange(1, _WORDS // 2 + 1, dtype=np.uint64) * _UINT64[0]


def version() -> int:
    """Return the version of the streams that draws come from in this context."""
    return _version.get()


@contextmanager
def using(number: int) -> Iterator[None]:
    """Draw from streams of another version inside this context. Threads do not inherit it: they use the newest version.

    >>> with using(1):
    ...     version()
    1
    >>> version()
    2
    """
    token = _version.set(number)
    try:
        yield
    finally:
        _version.reset(token)


def _signed(value: int) -> int:
    """Reinterpret 64 bits as a Python int that fits torch's int64."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def key(*parts: int) -> int:
    """Hash any number of integers to one 64-bit key.

    >>> key(0, NOISE, 3) == key(0, NOISE, 3), key(0, NOISE, 3) == key(0, NOISE, 4)
    (True, False)
    """
    return _signed(_hashed_key(0, parts))


def _hashed_key(x: int, parts: Sequence[int]) -> int:
    """Hash a key with further integers, as `keys` does; return 64 bits."""
    for part in parts:
        x = ((x ^ part) + GOLDEN) & _MASK
        x = ((x ^ x >> MIX_SHIFTS[0]) * MIX_FACTORS[0]) & _MASK
        x = ((x ^ x >> MIX_SHIFTS[1]) * MIX_FACTORS[1]) & _MASK
        x ^= x >> MIX_SHIFTS[2]
    return x & _MASK


def keys(base: np.ndarray, *parts: int | np.ndarray) -> np.ndarray:
    """Hash each key of `base` [N] with further integers, each one number or one per member; return int64 [N]."""
    numbers = [part for part in parts if not isinstance(part, np.ndarray)]
    if base.size <= _FEW and len(numbers) == len(parts):
        return np.array([_hashed_key(one, numbers) for one in base.ravel().tolist()], np.uint64).view(np.int64)
    golden = _UINT64[0]
    x = np.atleast_1d(base).astype(np.int64).view(np.uint64)
    for part in parts:
        x = x ^ (part.astype(np.int64).view(np.uint64) if isinstance(part, np.ndarray) else np.uint64(part & _MASK))
        x += golden
        _mix_(x)
    return x.view(np.int64)


def _mix_(x: np.ndarray) -> None:
    """Mix the bits of 64-bit numbers in place, as splitmix64 does."""
    _, first, second = _UINT64
    x ^= x >> _SHIFTS[0]
    x *= first
    x ^= x >> _SHIFTS[1]
    x *= second
    x ^= x >> _SHIFTS[2]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right logically; int64 tensors only have the arithmetic shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def device_keys(base: Tensor, *parts: int | Tensor) -> Tensor:
    """Compute `keys` on the device of `base` [N] int64, without synchronising with the host."""
    if base.is_cuda and HAS_TRITON and base.dim() == 1 and len(base) <= 4096:
        from ganherd.herd.lowering.kernels.random_bits import mix

        if isinstance(parts[0], Tensor) and parts[0].dim() == 0:
            return mix(base, parts[0], parts[1:])  # type: ignore[arg-type]
        if not any(isinstance(part, Tensor) for part in parts) and len(parts) <= 3:
            return mix(base, None, parts)  # type: ignore[arg-type]
    x = base
    for part in parts:
        x = x ^ (part if isinstance(part, Tensor) else _signed(part))
        x = x + _signed(GOLDEN)
        x = (x ^ _shifted(x, 30)) * _signed(MIX_FACTORS[0])
        x = (x ^ _shifted(x, 27)) * _signed(MIX_FACTORS[1])
        x = x ^ _shifted(x, 31)
    return x


def draw(
    member_keys: np.ndarray | Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw numbers [N, *shape], `normal` (mean 0, deviation 1) or `uniform` in [0, 1); row i depends only on key i."""
    if isinstance(member_keys, Tensor) and member_keys.is_cuda:
        return _hashed(member_keys, shape, kind, dtype)
    if version() == PORTABLE:
        return _hashed(torch.as_tensor(member_keys), shape, kind, dtype)
    out = torch.empty((len(member_keys), *shape), dtype=dtype)
    generators = _seeded(torch.Generator(), np.asarray(member_keys), version())
    for row, generator in zip(out, generators, strict=True):
        row.normal_(generator=generator) if kind == "normal" else row.uniform_(generator=generator)
    return out


def seed_(generator: torch.Generator, key: int, number: int | None = None) -> torch.Generator:
    """Put a CPU generator at the start of a key's stream, and return it.

    Args:
        number: The version of the streams; None: the version of this context.

    >>> one, other = (seed_(torch.Generator(), 7 + high * 2**32) for high in (0, 1))
    >>> bool((torch.rand(9, generator=one) == torch.rand(9, generator=other)).any())
    False
    """
    return next(_seeded(generator, np.array([_signed(key)]), version() if number is None else number))


def _seeded(generator: torch.Generator, member_keys: np.ndarray, number: int) -> Iterator[torch.Generator]:
    """Yield the generator once for each key, at the start of that key's stream."""
    if number == 1:
        for each in member_keys.tolist():
            yield generator.manual_seed(each)
        return
    state = torch.zeros(5056, dtype=torch.uint8)  # PyTorch's layout; it refuses other sizes
    fields = state.numpy()
    fields[8:16].view(np.int32)[:] = 1  # the fields `left` and `seeded`: seeded, nothing drawn yet
    words = fields[24 : 24 + 8 * _WORDS].view(np.uint64)
    for key_words in _words(member_keys):
        words[:] = key_words
        generator.set_state(state)
        yield generator


def _words(member_keys: np.ndarray) -> np.ndarray:
    """Hash each key to a state of the Mersenne Twister, uint32 [N, 624], that depends on all bits of the key."""
    x = np.ascontiguousarray(member_keys, np.int64).view(np.uint64)[:, None] + _COUNTERS
    _mix_(x)
    return x.astype("<u8").view("<u4")


def _hashed(member_keys: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
    """Draw on the device by hashing key and counter, so that the draws can be captured in a CUDA graph."""
    numbers = math.prod(shape)
    if member_keys.is_cuda and HAS_TRITON:
        from ganherd.herd.lowering.kernels.random_bits import fill

        return fill(member_keys, numbers, kind, dtype).view(member_keys.shape[0], *shape)
    counter = torch.arange(numbers, device=member_keys.device, dtype=torch.int64)
    bits = device_keys(member_keys[:, None] + counter * _signed(GOLDEN), 0)  # [N, numbers]
    high = _shifted(bits, 40).to(torch.float32) * 2.0**-24  # [0, 1)
    if kind == "normal":  # Box-Muller on the two halves of the 64 bits
        low = (bits & 0xFFFFFF).to(torch.float32) * 2.0**-24
        high = torch.sqrt(-2.0 * torch.log1p(-high)) * torch.cos((2.0 * math.pi) * low)
    return high.to(dtype).view(member_keys.shape[0], *shape)


class _Draw(torch.autograd.Function):
    """Draw inside a module. Under `vmap` it receives the keys of all members and draws for all of them at once."""

    @staticmethod
    def forward(member_key: Tensor, call: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
        return _Draw._rows(member_key.reshape(1), call, shape, kind, dtype)[0]

    @staticmethod
    def _rows(member_keys: Tensor, call: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
        if member_keys.is_cuda:
            return draw(device_keys(member_keys, call), shape, kind, dtype)
        return draw(keys(member_keys.numpy(), call), shape, kind, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        return (None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], member_key: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return _Draw._rows(member_key.movedim(in_dims[0], 0), *rest), 0


class MemberRandomness(TorchFunctionMode):
    """Let dropout, `randn`, `rand`, … inside a plain module draw from the member's own stream while this mode is active."""

    def __init__(self, member_key: Tensor, calls: Iterator[int] | None = None) -> None:
        """Take the member's key, a scalar tensor; under `vmap` it is batched over the members.

        Args:
            calls: Numbers the draws of one call of a module, in the order in which they happen; None: 1, 2, …
        """
        super().__init__()
        self._key, self._calls = member_key, count(1) if calls is None else calls

    def _draw(self, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        """Draw numbers of this shape with the key of the next draw."""
        arguments = (self._key, next(self._calls), tuple(shape), kind, dtype)
        if not torch._C._are_functorch_transforms_active():
            return _Draw.forward(
                *arguments
            )  # nothing is differentiated: `apply` would only read the signature once more
        drawn: Tensor = _Draw.apply(*arguments)  # type: ignore[no-untyped-call]
        return drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise UserError(
                f"{calling_net()} draws random numbers from its own generator, with {name}{calling_line()}, but each "
                "member has its own stream. Draw fixed numbers in the constructor and register them as a buffer, or leave "
                "generator out to draw from the member's stream."
            )
        if name in DROPOUTS:
            return self._dropout(name, *args, **kwargs)
        if name in _LIKE:
            like = args[0] if args else kwargs["input"]
            given = {option: value for option, value in kwargs.items() if value is not None}
            return self._new(like.shape, _LIKE[name], {"dtype": like.dtype} | given)
        if name in _NEW:
            sizes = kwargs.get("size") or (args[0] if args and isinstance(args[0], Sequence) else args)
            return self._new(tuple(sizes), _NEW[name], kwargs)
        if name in _IN_PLACE:
            return self._in_place(name, *args, **kwargs)
        raise UserError(
            f"{calling_net()} draws random numbers with {name}{calling_line()}, which cannot draw from each member's own "
            "stream; use randn, rand, randn_like, rand_like, normal_, uniform_ or dropout instead"
        )

    def _new(self, shape: Sequence[int], kind: str, options: dict[str, Any]) -> Tensor:
        """Draw a new tensor, with the options that `torch.randn` and the like accept."""
        out, dtype = options.get("out"), options.get("dtype")
        drawn = self._draw(shape, kind, dtype or (torch.get_default_dtype() if out is None else out.dtype))
        if out is not None:
            drawn = (out if out.shape == drawn.shape else out.resize_(drawn.shape)).copy_(drawn)
        if not options.get("requires_grad"):
            return drawn
        if torch._C._functorch.is_batchedtensor(drawn):
            raise RuntimeError(
                "its forward pass creates a leaf that requires gradients, which has no meaning under vmap"
            )
        return drawn.requires_grad_()

    def _dropout(
        self, name: str, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **more: bool
    ) -> Tensor:
        """Apply one of the dropout functions; those with a dimension in their name drop whole channels."""
        x = input
        if not more.get("train", training) or p == 0.0:  # torch.dropout names the argument `train`
            return x
        shape = x.shape if name == "dropout" else x.shape[:2] + (1,) * (x.dim() - 2)
        mask = (self._draw(shape, "uniform", torch.float32) >= p).to(x.dtype)
        scale = mask / (1.0 - p) if p < 1.0 else mask
        return x.mul_(scale) if inplace else x * scale

    def _in_place(self, name: str, x: Tensor, *args: float, **kwargs: Any) -> Tensor:
        """Fill a tensor like `normal_` (mean, std) or `uniform_` (from, to)."""
        first, second = (("mean", "std"), ("from", "to"))[name == "uniform_"]
        a = args[0] if args else kwargs.get(first, 0.0)
        b = args[1] if len(args) > 1 else kwargs.get(second, 1.0)
        drawn = self._draw(x.shape, _IN_PLACE[name], x.dtype)
        return x.copy_(drawn * b + a if name == "normal_" else drawn * (b - a) + a)


DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d"}
_LIKE = {"randn_like": "normal", "rand_like": "uniform"}
_NEW = {"randn": "normal", "rand": "uniform"}
_IN_PLACE = {"normal_": "normal", "uniform_": "uniform"}
_REFUSED = {
    "alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_", "multinomial", "normal", "randint", "randint_like",
    "randperm", "poisson", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "rrelu", "gumbel_softmax",
}  # fmt: skip
# Names of functions and methods that draw random numbers.
DRAWS = DROPOUTS | _LIKE.keys() | _NEW.keys() | _IN_PLACE.keys() | _REFUSED


class DrawsAhead:
    """Draw for several steps at once, on a CPU, where small draws spend most of their time on their start.

    The numbers are those that `Streams` draws step by step. The first step draws for itself, and each draw that continues the one
    before it is for twice as many steps, up to a limit.
    """

    def __init__(self) -> None:
        # By members and purpose: the next step, the number of steps of the last draw, and what is left of it
        self._drawn: dict[Hashable, tuple[int, int, list[Tensor]]] = {}

    def draw(
        self, base: np.ndarray, step: int, purpose: Purpose, shape: Sequence[int], kind: str, dtype: torch.dtype
    ) -> Tensor:
        """Draw numbers [N, *shape] of members with these base keys [N] for one purpose at a step."""
        what = (base.tobytes(), purpose, *shape, kind, dtype, version())
        expected, steps, left = self._drawn.get(what, (step, 0, []))
        if step != expected:
            steps, left = 0, []
        if not left:
            share = _NUMBERS_AHEAD // max(1, len(self._drawn) * len(base) * math.prod(shape))
            steps = max(1, min(2 * steps, _STEPS_AHEAD, share))
            each = np.arange(step, step + steps).repeat(len(base))
            drawn = draw(keys(keys(np.tile(base, steps), each), *purpose), shape, kind, dtype)
            left = list(drawn.unflatten(0, (steps, len(base))).unbind())[::-1]
        numbers = left.pop()  # given once, because nets may change their inputs
        self._drawn[what] = step + 1, steps, left
        return numbers

    def clear(self) -> None:
        """Forget what is left."""
        self._drawn.clear()


class Streams:
    """The random streams of a block of members at one step.

    Keys and step may be tensors on a GPU; then the same calls can be captured in a CUDA graph.
    """

    def __init__(self, base: np.ndarray | Tensor, step: int | Tensor, ahead: DrawsAhead | None = None) -> None:
        """Take the members' base keys [N] and the step.

        Args:
            ahead: Draws for later steps, too, on a CPU.
        """
        self._base, self._step, self._ahead = base, step, ahead
        if isinstance(base, Tensor):  # now, on the current stream of the device: all its side streams wait for that one
            self._step_keys = device_keys(base, step)

    @cached_property
    def _step_keys(self) -> np.ndarray | Tensor:
        """Return the members' keys at this step, [N]. Draws ahead do without them."""
        assert isinstance(self._base, np.ndarray)
        return keys(self._base, int(self._step))

    def keys(self, *purpose: int) -> Tensor:
        """Return the keys [N] of one purpose at this step, e.g. `keys(NOISE, update)`."""
        if isinstance(self._step_keys, Tensor):
            return device_keys(self._step_keys, *purpose)
        return torch.from_numpy(keys(self._step_keys, *purpose))

    def draw(self, purpose: Purpose, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        """Draw numbers [N, *shape] for one purpose; see `draw` of this module for `kind`."""
        if self._ahead is None or isinstance(self._base, Tensor):
            return draw(self.keys(*purpose), shape, kind, dtype)
        return self._ahead.draw(self._base, int(self._step), purpose, shape, kind, dtype)

    def prior(
        self, purpose: Purpose, shape: Sequence[int], prior: str, dtype: torch.dtype, choice: Tensor | None = None
    ) -> Tensor:
        """Draw the input noise of generators, [N, *shape].

        Args:
            prior: `normal` for N(0, 1), `uniform` for [-1, 1), `mixed` for the prior that `choice` gives each member.
            choice: [N] indices into `PRIORS`; only needed for `mixed`.
        """
        if prior == "normal":
            return self.draw(purpose, shape, "normal", dtype)
        uniform = self.draw(purpose, shape, "uniform", dtype) * 2.0 - 1.0
        if prior == "uniform":
            return uniform
        assert choice is not None
        takes_uniform = (choice.to(uniform.device) == PRIORS.index("uniform")).view(-1, *(1,) * len(shape))
        return torch.where(takes_uniform, uniform, self.draw(purpose, shape, "normal", dtype))
