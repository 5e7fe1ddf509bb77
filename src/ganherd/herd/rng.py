"""Draw random numbers that depend only on a member (GAN) and a step, never on the process or on the other members.

Every draw is made from a key, a hash of (seed, slot, life, step, purpose, call): the first three identify the member
(`state.Seat`), the last two the use of the numbers within a step. There is no generator state to save, and a member
draws the same numbers no matter which members train with it. On a CPU the key seeds a `torch.Generator`; on a GPU the
numbers are hashes of the key and a counter. CPU and GPU draws differ.

All draws from one key are a stream. Streams have a version, which runs and mixtures (trained results) record, so that
old ones reproduce their numbers. Version 1 seeds the CPU's Mersenne Twister with `manual_seed`, which uses only the low
32 bits of a key. Version 2 fills the generator's state from all 64 bits. Version 3, `PORTABLE`, hashes key and counter
on a CPU, too, so that other programs can repeat the draws; exported models use it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ganherd.herd.draws_ahead import DrawsAhead

# Purposes of draws. The numbers are part of every run's identity: never reuse or renumber one.
INIT_G, INIT_D, ORDER, NOISE, INSIDE, PENALTY, INPUT_NOISE, SAMPLE, ROUTE, CALIBRATE, PREVIEW = range(1, 12)
OPPONENT, MUTATE, MUTATE_LOSS, PAIRING, FITNESS, TOURNAMENT, MIXING, AUGMENT = range(12, 20)

Purpose = tuple[
    int, ...
]  # one of the numbers above, then numbers that distinguish draws for the same purpose in a step

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
_FEW = 12  # up to this many keys are hashed faster as Python integers than as an array
_WORDS = 624  # 32-bit words in the state of a Mersenne Twister
_COUNTERS = (
    np.arange(1, _WORDS // 2 + 1, dtype=np.uint64) * _UINT64[0]
)  # added to a key, hashed to the words of a state


def version() -> int:
    """Return the version of the random streams that is used in this context."""
    return _version.get()


@contextmanager
def using(number: int) -> Iterator[None]:
    """Use this version of the random streams inside the context. Threads that start in it still use the newest version.

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
    """Return the low 64 bits of an integer, interpreted as a signed one, which fits into an int64 tensor."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def key(*parts: int) -> int:
    """Return a key, a signed 64-bit hash of any number of integers.

    >>> key(0, NOISE, 3) == key(0, NOISE, 3), key(0, NOISE, 3) == key(0, NOISE, 4)
    (True, False)
    """
    return _signed(_hashed_key(0, parts))


def _hashed_key(x: int, parts: Sequence[int]) -> int:
    """Return the hash of a key with further integers, as `keys` computes it, as an unsigned 64-bit integer."""
    for part in parts:
        x = ((x ^ part) + GOLDEN) & _MASK
        x = ((x ^ x >> MIX_SHIFTS[0]) * MIX_FACTORS[0]) & _MASK
        x = ((x ^ x >> MIX_SHIFTS[1]) * MIX_FACTORS[1]) & _MASK
        x ^= x >> MIX_SHIFTS[2]
    return x & _MASK


def keys(base: np.ndarray, *parts: int | np.ndarray) -> np.ndarray:
    """Return new keys, int64 [N]: each key of `base` [N] hashed with further integers, one after another.

    Args:
        parts: The integers; each is one number for all members, or an array [N].
    """
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
    """Mix the bits of uint64 numbers in place by the last steps of splitmix64 (without adding its constant)."""
    _, first, second = _UINT64
    x ^= x >> _SHIFTS[0]
    x *= first
    x ^= x >> _SHIFTS[1]
    x *= second
    x ^= x >> _SHIFTS[2]


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return int64 numbers shifted right with zeros from the left; PyTorch's own shift would repeat the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def device_keys(base: Tensor, *parts: int | Tensor) -> Tensor:
    """Return the result of `keys` for a tensor `base`, int64 [N], computed on its device without synchronisation."""
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
    """Return random numbers [N, *shape]; row i depends only on key i.

    Args:
        member_keys: int64 [N]; the numbers are drawn on the device of this tensor, or on the CPU for an array.
        kind: `normal` (mean 0, deviation 1) or `uniform` in [0, 1).
    """
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
    """Set a CPU generator to the start of the stream of a key, and return it.

    Args:
        key: A 64-bit key.
        number: The version of the streams, 1 or 2; None: the version of this context.

    >>> one, other = (seed_(torch.Generator(), 7 + high * 2**32) for high in (0, 1))
    >>> bool((torch.rand(9, generator=one) == torch.rand(9, generator=other)).any())
    False
    """
    return next(_seeded(generator, np.array([_signed(key)]), version() if number is None else number))


def _seeded(generator: torch.Generator, member_keys: np.ndarray, number: int) -> Iterator[torch.Generator]:
    """Yield the same generator for each key [N], set to the start of the key's stream of version `number`."""
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
    """Return a state of the Mersenne Twister for each key, uint32 [N, 624], that depends on all bits of the key."""
    x = np.ascontiguousarray(member_keys, np.int64).view(np.uint64)[:, None] + _COUNTERS
    _mix_(x)
    return x.astype("<u8").view("<u4")


def _hashed(member_keys: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
    """Return random numbers as `draw` does, but computed as hashes of key and counter on the device of the keys.

    Without a generator's state, such draws can be captured in a CUDA graph.
    """
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


class Streams:
    """The random streams of a block of members at one step.

    Keys and step may be tensors on a GPU; then the same calls can be captured in a CUDA graph.
    """

    def __init__(self, base: np.ndarray | Tensor, step: int | Tensor, ahead: DrawsAhead | None = None) -> None:
        """Take the members' base keys [N] and the step.

        Args:
            ahead: Draws the numbers of several steps at once on a CPU, which is faster; None: draw step by step.
        """
        self._base, self._step, self._ahead = base, step, ahead
        if isinstance(base, Tensor):  # compute them now, on the current CUDA stream, for which all side streams wait
            self._step_keys = device_keys(base, step)

    @cached_property
    def _step_keys(self) -> np.ndarray | Tensor:
        """Return the members' keys at this step, [N]. They are not needed if numbers are drawn ahead."""
        assert isinstance(self._base, np.ndarray)
        return keys(self._base, int(self._step))

    def keys(self, *purpose: int) -> Tensor:
        """Return the members' keys [N] for one purpose at this step, e.g. `keys(NOISE, update)`."""
        if isinstance(self._step_keys, Tensor):
            return device_keys(self._step_keys, *purpose)
        return torch.from_numpy(keys(self._step_keys, *purpose))

    def draw(self, purpose: Purpose, shape: Sequence[int], kind: str, dtype: torch.dtype) -> Tensor:
        """Return random numbers [N, *shape] for one purpose at this step; see `draw` of this module for `kind`."""
        if self._ahead is None or isinstance(self._base, Tensor):
            return draw(self.keys(*purpose), shape, kind, dtype)
        return self._ahead.draw(self._base, int(self._step), purpose, shape, kind, dtype)

    def prior(
        self, purpose: Purpose, shape: Sequence[int], prior: str, dtype: torch.dtype, choice: Tensor | None = None
    ) -> Tensor:
        """Return random input noise for the generators, [N, *shape].

        Args:
            purpose: What the noise is for; see `Purpose`.
            prior: `normal` for N(0, 1), `uniform` for
                [-1, 1), `mixed` for the prior that `choice` selects for each member.
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
