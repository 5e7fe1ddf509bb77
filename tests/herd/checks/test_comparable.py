"""Any Python value can be copied for a comparison without an error, and a later change of it is detected."""

from __future__ import annotations

import array
import collections
import itertools
import queue
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ganherd.herd.checks.hidden_state.comparable import Copier, equal


class Touchy:
    """An object whose code must not run."""

    def __init__(self) -> None:
        self.value = 1

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("this runs code of the user")

    __repr__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __getattribute__  # type: ignore[assignment]


def _recursive() -> list[Any]:
    own: list[Any] = [1]
    own.append(own)
    return own


def look(value: Any) -> Any:
    return Copier({}, lambda kind: kind.__module__ == __name__).copy(value)


VALUES: list[Callable[[], Any]] = [
    lambda: torch.zeros(0), lambda: torch.tensor(1.0), lambda: torch.zeros(3, dtype=torch.bfloat16),
    lambda: torch.zeros(3, dtype=torch.complex64), lambda: torch.zeros(3, dtype=torch.uint16),
    lambda: torch.eye(3).to_sparse(), lambda: torch.zeros(3, device="meta"), lambda: torch.zeros(2**20).expand(4, -1),
    lambda: torch.zeros(2**20, dtype=torch.complex64), lambda: torch.zeros(2**21).bool(), lambda: torch.ones(9**7).int(),
    lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), lambda: torch.nested.nested_tensor([torch.ones(2)]),
    lambda: np.zeros(()), lambda: np.float32(1), lambda: np.zeros(3)[::-1], lambda: np.zeros(3, np.longdouble),
    lambda: np.array(["a", None], object), lambda: np.zeros(2, [("a", int)]), lambda: np.zeros(2, "datetime64[s]"),
    lambda: np.broadcast_to(np.zeros(3), (2**22, 3)), lambda: _recursive(), lambda: range(9), lambda: slice(1), lambda: ...,
    lambda: {1: 2, (1, 2): {3}}, lambda: frozenset("a"), lambda: array.array("d", [1, 2]), lambda: bytearray(5), lambda: Touchy(),
    lambda: [Touchy()], lambda: types.SimpleNamespace(a=1), lambda: queue.Queue(), lambda: random.SystemRandom(), lambda: object(),
    lambda: nn.Sequential(nn.BatchNorm1d(2)), lambda: np.random, lambda: print, lambda: int, lambda: map(abs, [1]), lambda: Copier,
    lambda: itertools.chain([1], [2]), lambda: (each for each in range(3)), lambda: look, lambda: list(range(10**5)),
    lambda: collections.ChainMap({1: 2}), lambda: [[[0] * 1000] * 1000] * 1000,
]  # fmt: skip


@pytest.mark.parametrize("make", VALUES, ids=range(len(VALUES)))
def test_copies_of_an_unchanged_value_are_equal(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    value = make()
    assert equal(look(value), look(value))


def _set(value: Any, place: Any, new: Any) -> None:
    value[place] = new


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (torch.zeros(3, dtype=torch.uint16), lambda v: _set(v, 1, 2)),
        (torch.zeros(2**20), lambda v: _set(v, 12_345, 1e-3)),
        (torch.zeros(2**20, 4)[:, :2], lambda v: _set(v, (12_345, 1), 1e-3)),
        (np.zeros(2**20), lambda v: _set(v, 12_345, 1e-3)),
        (np.zeros(3, np.longdouble), lambda v: _set(v, 1, 2)),
        (np.array(["a", None], object), lambda v: _set(v, 1, 2)),
        (bytearray(5), lambda v: _set(v, 1, 2)),
        ({"a": [{"b": (1, [2])}]}, lambda v: v["a"][0]["b"][1].append(3)),
        (list(range(10**5)), lambda v: v.append(0)),
        (dict.fromkeys(range(10**5)), lambda v: _set(v, 10**5 - 1, 0)),
        (dict.fromkeys(range(10**5)), lambda v: v.pop(5)),
        (set(range(9)), lambda v: v.add(9)),
        (collections.ChainMap({1: 2}), lambda v: _set(v, 1, 3)),
        (collections.UserList([1]), lambda v: v.append(2)),
        (queue.Queue(), lambda v: v.put(1)),
        (iter([1, 2, 3]), next),
        (iter({1: 2, 3: 4}), next),
        (enumerate([1, 2, 3]), next),
        (itertools.islice(range(9), 5), next),
        (itertools.cycle([1, 1, 1]), next),
        (map(abs, [1, 1, 1]), next),
        ((each for each in (1, 1, 1)), next),
        ([Touchy()], lambda v: object.__setattr__(v[0], "value", 2)),
        (nn.Sequential(nn.BatchNorm1d(2)), lambda v: v(torch.ones(2, 2))),
        (nn.Sequential(nn.BatchNorm1d(2)), lambda v: v.eval()),
    ],
)
def test_copies_before_and_after_a_change_differ(value: Any, change: Callable[[Any], Any]) -> None:
    before = look(value)
    change(value)
    assert not equal(before, look(value))


def test_copying_does_not_advance_an_iterator() -> None:
    values = itertools.count(3), itertools.cycle([1, 2]), iter([5]), (each for each in (7, 8)), map(abs, [9])
    for value in values:
        look(value)
    assert [next(value) for value in values] == [3, 1, 5, 7, 9]
