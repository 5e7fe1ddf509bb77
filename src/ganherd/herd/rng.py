"""Random numbers that belong to a member and a step, never to a process, a device's history or the other members.

Every draw is made from a key: (seed, purpose, slot, life, step, call). Nothing is remembered between draws, so nothing has to be
saved, and a member draws the same numbers in whatever company it is trained. On a CPU a key seeds a `torch.Generator`; on a GPU the
key and a counter are hashed in place. The two need not agree.

Streams have a version, which runs and mixtures record, so that old ones keep their numbers. Version 1 seeds the Mersenne Twister
of a CPU with `manual_seed`, which uses the low 32 bits of a key. Version 2 fills its state from all 64 bits.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ganherd.herd.checks.module_copies import calling_line, calling_net
from ganherd.util.errors import UserError

# What a draw is for. The numbers are part of every run's identity: never reuse or renumber one.
INIT_G, INIT_D, ORDER, NOISE, INSIDE, PENALTY, INPUT_NOISE, SAMPLE, ROUTE, CALIBRATE, PREVIEW = range(1, 12)
OPPONENT, MUTATE, MUTATE_LOSS, PAIRING, FITNESS, TOURNAMENT, MIXING, AUGMENT = range(12, 20)

VERSIONS = (1, 2)  # the last one is that of new runs and mixtures
_version = ContextVar("ganherd.streams", default=VERSIONS[-1])

PRIORS = ("normal", "uniform")  # by their numbers in `set.prior`

HAS_TRITON = importlib.util.find_spec("triton") is not None
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1
# as numpy wants them: made at each call they would cost as much as the arithmetic
_UINT64 = [np.uint64(value) for value in (_GOLDEN, *_MULTIPLIERS)]
_SHIFTS = [np.uint64(bits) for bits in (30, 27, 31)]
_WORDS = 624  # 32-bit words in the state of a Mersenne Twister
_COUNTERS = np.arange(1, _WORDS // 2 + 1, dtype=np.uint64) * _UINT64[0]


def version() -> int:
    """Return the version of the streams that draws are made from now."""
    return _version.get()


@contextmanager
def using(number: int) -> Iterator[None]:
    """Draw from the streams of that version. Threads started meanwhile begin with the newest version.

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
    """The same 64 bits as a Python int that fits torch's int64."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def key(*parts: int) -> int:
    """64 well-mixed bits from any number of integers.

    >>> key(0, NOISE, 3) == key(0, NOISE, 3), key(0, NOISE, 3) == key(0, NOISE, 4)
    (True, False)
    """
    return int(keys(np.zeros(1, np.int64), *parts)[0])


def keys(base: np.ndarray, *parts: int | np.ndarray) -> np.ndarray:
    """`base` [N] refined by further parts, each one number or one per member; int64 [N]."""
    golden = _UINT64[0]
    x = np.atleast_1d(base).astype(np.int64).view(np.uint64)
    for part in parts:
        x = x ^ (part.astype(np.int64).view(np.uint64) if isinstance(part, np.ndarray) else np.uint64(part & _MASK))
        x += golden
        _mix_(x)
    return x.view(np.int64)


def _mix_(x: np.ndarray) -> None:
    """Mix the bits of 64-bit numbers, in place, as splitmix64 does."""
    _, first, second = _UINT64
    x ^= x >> _SHIFTS[0]
    x *= first
    x ^= x >> _SHIFTS[1]
    x *= second
    x ^= x >> _SHIFTS[2]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical right shift: int64 has only the arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def device_keys(base: Tensor, *parts: int | Tensor) -> Tensor:
    """The same as `keys`, on the device that `base` [N] int64 is on, with no trip to the host."""
    if base.is_cuda and HAS_TRITON and base.dim() == 1 and len(base) <= 4096:
        from ganherd.herd.lowering.kernels.random_bits import mix

        if isinstance(parts[0], Tensor) and parts[0].dim() == 0:
            return mix(base, parts[0], parts[1:])  # type: ignore[arg-type]
        if not any(isinstance(part, Tensor) for part in parts) and len(parts) <= 3:
            return mix(base, None, parts)  # type: ignore[arg-type]
    x = base
    for part in parts:
        x = x ^ (part if isinstance(part, Tensor) else _signed(part))
        x = x + _signed(_GOLDEN)
        x = (x ^ _shifted(x, 30)) * _signed(_MULTIPLIERS[0])
        x = (x ^ _shifted(x, 27)) * _signed(_MULTIPLIERS[1])
        x = x ^ _shifted(x, 31)
    return x


def draw(
    member_keys: np.ndarray | Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype = torch.float32
) -> Tensor:
    """[N, *shape] numbers, `normal` (0, 1) or `uniform` [0, 1), row i from key i alone."""
    if isinstance(member_keys, Tensor) and member_keys.is_cuda:
        return _hashed(member_keys, shape, kind, dtype)
    out = torch.empty((len(member_keys), *shape), dtype=dtype)
    each = _seeded(torch.Generator(), np.asarray(member_keys), version())
    for row, generator in zip(out, each, strict=True):
        row.normal_(generator=generator) if kind == "normal" else row.uniform_(generator=generator)
    return out


def seed_(generator: torch.Generator, key: int, number: int | None = None) -> torch.Generator:
    """Put a CPU generator at the start of a key's stream and return it.

    Args:
        number: The version of the stream; None: the present one.

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
    numbers = state.numpy()
    numbers[8:16].view(np.int32)[:] = 1  # nothing is drawn yet, and it is seeded
    words = numbers[24 : 24 + 8 * _WORDS].view(np.uint64)
    for own in _words(member_keys):
        words[:] = own
        generator.set_state(state)
        yield generator


def _words(member_keys: np.ndarray) -> np.ndarray:
    """Return a state of the Mersenne Twister for each key, uint32 [N, 624], hashed from all of its bits."""
    x = np.ascontiguousarray(member_keys, np.int64).view(np.uint64)[:, None] + _COUNTERS
    _mix_(x)
    return x.astype("<u8").view("<u4")


def _hashed(member_keys: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
    """Counter-based draws on the device, so that a CUDA graph can hold them."""
    count = math.prod(shape)
    if member_keys.is_cuda and HAS_TRITON:
        from ganherd.herd.lowering.kernels.random_bits import fill

        return fill(member_keys, count, kind, dtype).view(member_keys.shape[0], *shape)
    counter = torch.arange(count, device=member_keys.device, dtype=torch.int64)
    bits = device_keys(member_keys[:, None] + counter * _signed(_GOLDEN), 0)  # [N, count]
    high = _shifted(bits, 40).to(torch.float32) * 2.0**-24  # [0, 1)
    if kind == "normal":  # Box-Muller on the two halves of the 64 bits
        low = (bits & 0xFFFFFF).to(torch.float32) * 2.0**-24
        high = torch.sqrt(-2.0 * torch.log1p(-high)) * torch.cos((2.0 * math.pi) * low)
    return high.to(dtype).view(member_keys.shape[0], *shape)


class _Draw(torch.autograd.Function):
    """A draw inside a module: under `vmap` it sees the keys of all members and answers for all of them at once."""

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


class DrawCounter:
    """Numbers the draws of one call of a module, in the order in which it makes them."""

    def __init__(self) -> None:
        self._made = 0

    def next(self) -> int:
        self._made += 1
        return self._made


class MemberRandomness(TorchFunctionMode):
    """While it is on, dropout and `randn`, `rand`, … inside a plain module draw from the member's own stream."""

    def __init__(self, member_key: Tensor, calls: DrawCounter | None = None) -> None:
        super().__init__()
        self._key = member_key  # a scalar, batched over the members under vmap
        self._calls = calls or DrawCounter()

    def _draw(self, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        return _Draw.apply(self._key, self._calls.next(), tuple(shape), kind, dtype)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = "" if getattr(func, "__module__", "") == "torch.nn.init" else getattr(func, "__name__", "")
        if name in DRAWS and kwargs.get("generator") is not None:
            raise UserError(
                f"{calling_net()} draws random numbers from a generator of its own, with {name}{calling_line()}, and each "
                "member has its own stream: draw fixed numbers in the constructor and register them as a buffer, or leave "
                "generator out for a member's own numbers."
            )
        if name in DROPOUTS:
            return self._dropout(name, *args, **kwargs)
        if name in _LIKE:
            like = args[0] if args else kwargs["input"]
            return self._fresh(like.shape, _LIKE[name], {"dtype": like.dtype} | _given(kwargs))
        if name in _FRESH:
            sizes = kwargs.get("size") or (args[0] if args and isinstance(args[0], Sequence) else args)
            return self._fresh(tuple(sizes), _FRESH[name], kwargs)
        if name in _IN_PLACE:
            return self._in_place(name, *args, **kwargs)
        if name in _REFUSED:
            raise UserError(
                f"{calling_net()} draws random numbers with {name}{calling_line()}, which cannot be given to each member's own "
                "stream; use randn, rand, randn_like, rand_like, normal_, uniform_ or dropout instead"
            )
        return func(*args, **kwargs)

    def _fresh(self, shape: Sequence[int], kind: str, options: dict[str, Any]) -> Tensor:
        """Draw a tensor with the options that PyTorch's functions take."""
        out, dtype = options.get("out"), options.get("dtype")
        drawn = self._draw(shape, kind, dtype or (torch.get_default_dtype() if out is None else out.dtype))
        if out is not None:
            drawn = (out if out.shape == drawn.shape else out.resize_(drawn.shape)).copy_(drawn)
        if not options.get("requires_grad"):
            return drawn
        if torch._C._functorch.is_batchedtensor(drawn):
            raise RuntimeError("its forward pass makes a leaf that requires gradients, which means nothing under vmap")
        return drawn.requires_grad_()

    def _dropout(
        self, name: str, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **more: bool
    ) -> Tensor:
        x = input
        if not more.get("train", training) or p == 0.0:  # torch.dropout calls it train
            return x
        shape = x.shape if name == "dropout" else x.shape[:2] + (1,) * (x.dim() - 2)  # 2d: whole channels
        kept = (self._draw(shape, "uniform", torch.float32) >= p).to(x.dtype)
        scale = kept / (1.0 - p) if p < 1.0 else kept
        return x.mul_(scale) if inplace else x * scale

    def _in_place(self, name: str, x: Tensor, *args: float, **kwargs: Any) -> Tensor:
        first, second = (("mean", "std"), ("from", "to"))[name == "uniform_"]
        a = args[0] if args else kwargs.get(first, 0.0)
        b = args[1] if len(args) > 1 else kwargs.get(second, 1.0)
        drawn = self._draw(x.shape, _IN_PLACE[name], x.dtype)
        return x.copy_(drawn * b + a if name == "normal_" else drawn * (b - a) + a)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d"}
_LIKE = {"randn_like": "normal", "rand_like": "uniform"}
_FRESH = {"randn": "normal", "rand": "uniform"}
_IN_PLACE = {"normal_": "normal", "uniform_": "uniform"}
_REFUSED = {
    "alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_", "multinomial", "normal", "randint", "randint_like",
    "randperm", "poisson", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "rrelu", "gumbel_softmax",
}  # fmt: skip
# Names of all functions and methods that draw.
DRAWS = DROPOUTS | _LIKE.keys() | _FRESH.keys() | _IN_PLACE.keys() | _REFUSED


class Streams:
    """The draws of a block of members at one step; the same calls on a CPU and, with device tensors, inside a CUDA graph."""

    def __init__(self, base: np.ndarray | Tensor, step: int | Tensor) -> None:
        self._at = device_keys(base, step) if isinstance(base, Tensor) else keys(base, int(step))

    def keys(self, *parts: int) -> Tensor:
        """[N] keys of one purpose at this step."""
        if isinstance(self._at, Tensor):
            return device_keys(self._at, *parts)
        return torch.from_numpy(keys(self._at, *parts))

    def draw(self, parts: tuple[int, ...], shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        return draw(self.keys(*parts), shape, kind, dtype)

    def prior(
        self, parts: tuple[int, ...], shape: Sequence[int], prior: str, dtype: torch.dtype, choice: Tensor | None = None
    ) -> Tensor:
        """Noise for generators: N(0, 1), or uniform on [-1, 1); `mixed`: as `choice` [N] says, a number of PRIORS."""
        if prior == "normal":
            return self.draw(parts, shape, "normal", dtype)
        uniform = self.draw(parts, shape, "uniform", dtype) * 2.0 - 1.0
        if prior == "uniform":
            return uniform
        assert choice is not None
        picked = (choice.to(uniform.device) == PRIORS.index("uniform")).view(-1, *(1,) * len(shape))
        return torch.where(picked, uniform, self.draw(parts, shape, "normal", dtype))
