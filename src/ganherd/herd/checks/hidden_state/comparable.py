"""Copy Python values in a form that can be compared later, with limited time and memory, without running users' code.

A value may be anything in a user's file, such as a data set of gigabytes. Small tensors, arrays and containers are copied; of
larger ones only sums, samples and lengths are stored. A copy is a nested list, not an object of the original class.
"""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import functools
import itertools
import math
import queue
import random
import threading
import types
import warnings
import weakref
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (
    int, float, complex, str, bytes, bool, type(None), range, slice, enum.Enum, decimal.Decimal, datetime.date, datetime.timedelta,
    torch.dtype, torch.device, torch.Size,
)  # fmt: skip
_NAMED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_RECORDS = (
    types.SimpleNamespace, Namespace, nn.Module, threading.local, collections.UserDict, collections.UserList, collections.ChainMap,
    weakref.WeakKeyDictionary, weakref.WeakValueDictionary, queue.Queue,
)  # fmt: skip  # classes of libraries whose instances are looked into
_SEQUENCES = (list, tuple, collections.deque)
_ITERABLES: tuple[Any, ...] = ([], (), "", b"", range(0), range(1 << 65), set(), {}, {}.values(), {}.items())
# Iterators that know how many items are left.
_SHRINKING = (*(type(iter(each)) for each in _ITERABLES), type(reversed([])))
_REDUCIBLE = (
    itertools.count, itertools.cycle, itertools.chain, itertools.islice, itertools.repeat, itertools.accumulate,
    zip, map, filter, enumerate,
)  # fmt: skip

_MAX_VALUES = 10_000  # values that are visited below one variable
_MAX_ITEMS = 2_000  # containers with more items are sampled
_SAMPLE = 256  # items of a larger container, or numbers of the largest tensors
_PIECES = 4_096  # pieces of a medium-sized tensor that are summed separately
_COPIED = 1 << 20  # bytes; tensors and arrays up to this size are copied
_SUMMED = 1 << 25  # bytes; of larger ones up to this size, the sums of pieces are stored
_COPIED_IN_ALL, _SUMMED_IN_ALL = 1 << 25, 1 << 28  # limits of both for all variables of one `Copier` together


class Copier:
    """Copy many variables in a comparable form, with a limit of bytes for all of them together.

    Args:
        names: Maps the `id` of objects to names; instead of such an object its name is stored.
        opens: Returns whether the attributes of instances of a class are copied, too; those of some well-known classes
            always are.
    """

    def __init__(self, names: dict[int, str], opens: Callable[[type], bool]) -> None:
        self._names, self._opens = names, opens
        self._copied, self._summed = _COPIED_IN_ALL, _SUMMED_IN_ALL
        self._left = 0  # values that may still be visited below the current variable
        # By `id`: the value, so that it stays alive and its id is not reused, and its copy.
        self._copies: dict[int, tuple[Any, Any]] = {}

    def copy(self, value: Any) -> Any:
        """Return a copy of a value in a form that `equal` can compare with copies from another `Copier`."""
        if id(value) not in self._copies:
            self._left = _MAX_VALUES
            self._copies[id(value)] = value, self._value(value, frozenset())
        return self._copies[id(value)][1]

    def _value(self, value: Any, around: frozenset[int]) -> Any:
        """Return the copy of a value.

        Args:
            around: The ids of the containers around the value; a container inside of itself is not copied again.
        """
        kind = type(value)
        self._left -= 1
        if self._left < 0 or id(value) in around:
            return "…"
        if issubclass(kind, _PLAIN):
            return value
        if id(value) in self._names:
            return self._names[id(value)]
        if issubclass(kind, Tensor):
            return self._tensor(value)
        if issubclass(kind, (np.ndarray, np.generic)):
            return self._array(np.asarray(value))
        around |= {id(value)}
        items = list(_known_items(value, kind))
        if issubclass(kind, _RECORDS) or (not issubclass(kind, _NAMED) and self._opens(kind)):
            items += _items_of(attributes(value))
        return [kind.__qualname__, *(self._value(item, around) for item in items)]

    def _tensor(self, value: Tensor) -> Any:
        """Return a copy of a small tensor, sums of pieces of a medium-sized one, or some numbers of a large one."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            if not _has_numbers(value):
                return [value.dtype, _version(value)]
            about, value, num_bytes = [value.shape, value.dtype], value.detach(), value.nbytes
            if num_bytes <= _SAMPLE or num_bytes <= min(_COPIED, self._copied):
                self._copied -= num_bytes
                return value.clone()
            if num_bytes <= min(_SUMMED, self._summed) and value.is_contiguous():
                self._summed -= num_bytes
                return [*about, _sums(value.view(-1))]
            return [*about, value[_sample_indices(value)], _version(value)]

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        """Return a copy of an array as a tensor if PyTorch has its dtype, otherwise some of its values."""
        if value.dtype.kind in "biufc":
            with suppress(TypeError, ValueError), warnings.catch_warnings():  # PyTorch lacks some types and strides
                warnings.simplefilter("ignore")  # of an array that must not be written to
                return self._tensor(torch.from_numpy(value))
        places = np.linspace(0, max(value.size - 1, 0), min(value.size, _SAMPLE), dtype=np.int64)
        about, sample = [str(value.dtype), *value.shape], value.flat[places]
        if value.dtype.kind in "biufc":
            return [*about, torch.from_numpy(sample.astype(np.complex128))]
        return [*about, *(self._value(each, frozenset()) for each in sample.tolist())]


def _known_items(value: Any, kind: type) -> Iterable[Any]:
    """Return the values to copy for a container, function, random generator or iterator; nothing for other values.

    No method of a user's class is called.
    """
    if issubclass(kind, _SEQUENCES):
        return _sequence_items(value, kind)
    if issubclass(kind, dict):
        return _items_of(value)
    if issubclass(kind, (set, frozenset)):
        known: Any = set if issubclass(kind, set) else frozenset
        return [known.__len__(value), *itertools.islice(known.__iter__(value), _MAX_ITEMS)]
    if issubclass(kind, (bytearray, array.array)):
        return [len(value), bytes(memoryview(value)[: _COPIED // 8])]
    if issubclass(kind, types.FunctionType):
        others = [value.__defaults__, value.__kwdefaults__, value.__dict__]
        return [value.__qualname__, *_contents(value.__closure__), *others]
    if issubclass(kind, types.MethodType):
        return [value.__func__, value.__self__]
    if issubclass(kind, _NAMED):
        return [getattr(value, "__name__", "")]
    if issubclass(kind, functools.partial):
        return [value.func, value.args, value.keywords]
    if kind is functools._lru_cache_wrapper:
        return [value.cache_info().currsize]  # cache hits do not change results
    if kind is contextvars.ContextVar:
        return [value.get(None)]
    return [*_random_state(value, kind), *_position(value, kind)]


def _random_state(value: Any, kind: type) -> Iterable[Any]:
    """Return the state of a random generator as a list of values; empty if the value is no random generator."""
    if issubclass(kind, np.random.Generator):
        return [value.bit_generator.state]
    if issubclass(kind, np.random.RandomState):
        return value.get_state()  # type: ignore[no-any-return]
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return value.getstate()  # type: ignore[no-any-return]
    return [value.get_state()] if issubclass(kind, torch.Generator) else []


def _position(value: Any, kind: type) -> Iterable[Any]:
    """Return the position of an iterator or a generator as a list of values, without advancing it; otherwise empty."""
    if kind is types.GeneratorType:
        frame = value.gi_frame
        return ["ended"] if frame is None else [frame.f_lasti, dict(frame.f_locals)]
    if kind in _SHRINKING:
        return [value.__length_hint__()]
    if kind in _REDUCIBLE:
        with suppress(TypeError, AttributeError), warnings.catch_warnings():  # Python 3.14 has no copies of some
            warnings.simplefilter("ignore")
            return value.__reduce__()[1:]  # type: ignore[no-any-return]
        return [repr(value)] if kind is itertools.count else []
    return []


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, including slots; of a module also its parameters, buffers and layers.

    Attributes that every `nn.Module` has are left out, except `training`.
    """
    values: dict[str, Any] = {}
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if type(member) is types.MemberDescriptorType:
                with suppress(AttributeError):  # an empty slot
                    values[name] = member.__get__(value)
    with suppress(AttributeError):
        known: Any = threading.local if issubclass(type(value), threading.local) else object
        values |= known.__getattribute__(value, "__dict__")
    if issubclass(type(value), nn.Module):
        registered = [values.get(name, {}) for name in ("_parameters", "_buffers", "_modules")]
        values = {name: one for name, one in values.items() if name not in OF_PYTORCH or name == "training"}
        for tensors_or_layers in registered:
            values |= tensors_or_layers
    return values


# Names of the attributes that every module has.
OF_PYTORCH = {*vars(nn.Module()), "_is_full_backward_hook", "_is_hf_initialized"}


def _items_of(value: dict[Any, Any]) -> Iterator[Any]:
    """Yield the length of a dictionary, then its keys and values; of a large one only the first and the last ones.

    A key that is neither a string nor an integer is replaced by the name of its class.
    """
    length = dict.__len__(value)
    yield length
    items = list(itertools.islice(dict.items(value), _MAX_ITEMS if length <= _MAX_ITEMS else _SAMPLE))
    if length > _MAX_ITEMS:
        items += itertools.islice(reversed(dict.items(value)), _SAMPLE)
    for key, each in items:
        yield key if issubclass(type(key), (str, int)) else type(key).__qualname__
        yield each


def _sequence_items(value: Any, kind: type) -> Iterator[Any]:
    """Yield the length of a sequence, then its items; of a long sequence only some, evenly spaced."""
    known: Any = next(base for base in _SEQUENCES if issubclass(kind, base))
    length = known.__len__(value)
    yield length
    step = 1 if length <= _MAX_ITEMS else (length - 1) / (_SAMPLE - 1)
    for number in range(min(length, _MAX_ITEMS if step == 1 else _SAMPLE)):
        yield known.__getitem__(value, int(number * step))


def _sample_indices(value: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of `_SAMPLE` evenly spaced numbers of a tensor, as one index tensor for each axis."""
    flat = torch.linspace(0, value.numel() - 1, _SAMPLE, dtype=torch.float64).long().to(value.device)
    indices: list[Tensor] = []
    for length in reversed(value.shape):
        indices.insert(0, flat % length)
        flat = flat // length
    return tuple(indices)


def _sums(flat: Tensor) -> Tensor:
    """Return the sums of `_PIECES` equally long pieces of a tensor [n], then the numbers that remain at its end."""
    each = flat.numel() // _PIECES
    dtype = torch.complex128 if flat.is_complex() else torch.float64
    pieces = flat[: each * _PIECES].view(_PIECES, each).sum(1, dtype=dtype)
    return torch.cat([pieces, flat[each * _PIECES :].to(dtype)])


def _has_numbers(value: Tensor) -> bool:
    """Return whether single numbers of a tensor can be read, unlike those of a sparse or nested one, for example."""
    odd = value.is_meta or value.is_nested or value.is_quantized or value.layout != torch.strided
    return not odd and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def _version(value: Tensor) -> int:
    """Return PyTorch's count of in-place changes of a tensor; 0 for tensors without a count."""
    return 0 if value.is_inference() else value._version


def _contents(cells: tuple[types.CellType, ...] | None) -> Iterator[Any]:
    """Yield the contents of a closure's cells."""
    for cell in cells or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


# -- comparison -------------------------------------------------------------------------------------------------------


def equal(one: Any, other: Any) -> bool:
    """Return whether two copies from `Copier.copy` are equal, up to rounding."""
    if isinstance(one, (Tensor, np.ndarray)) or isinstance(other, (Tensor, np.ndarray)):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        if one.device != other.device:
            return False
        tolerance = 1e-9 if one.dtype == torch.float64 else 1e-5 if one.is_floating_point() else 0.0
        return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


def differing_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the names whose values differ between two dictionaries, or that only one of them has."""
    missing = object()
    names = one.keys() | other.keys()
    return {name for name in names if not equal(one.get(name, missing), other.get(name, missing))}
