"""Compare two snapshots of a member, tensor by tensor, and put the differences into words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.checks.plain_pytorch import Snapshot

# relative to the largest number of the tensor, relative to the largest number of all such tensors of the net, and absolute
TOLERANCE = {torch.float64: (1e-7, 1e-10, 1e-12), torch.float32: (1e-2, 1e-4, 1e-6)}
FAILS = "it fails: "  # how the reason begins if an engine does not run
_SMALL = 1e-3  # numbers below do not count as a size: gradients may vanish


@dataclass(frozen=True)
class Agreement:
    """How far an engine is from plain PyTorch."""

    difference: float  # the largest, relative to the largest number of its kind; NaN: the engine does not run
    why: str = ""  # what differs and by how much, or that it fails; empty: the two compute the same

    @property
    def failed(self) -> bool:
        """Whether the engine does not run at all."""
        return self.why.startswith(FAILS)


def compare(plain: Snapshot, other: Snapshot, net: str, dtype: torch.dtype, when: str = "") -> Agreement:
    """Compare every tensor with its own size; name the first output, gradient and value that differ.

    Args:
        net: `g` or `d`, the net under test; what its partner computes is its output.
        when: an adjective for values, e.g. "initial".
    """
    largest: dict[tuple[str, str], float] = {}
    for (kind, what, _), value in plain.items():
        largest[kind, what] = max(largest.get((kind, what), 0.0), _size(value))
    own, overall, least = TOLERANCE[dtype]
    worst, told = 0.0, dict[str, str]()
    for (kind, what, name), value in plain.items():
        size, among = _size(value), largest[kind, what]
        apart = _distance(value, _counterpart(other, (kind, what, name), value))
        worst = max(worst, apart / max(among, _SMALL))
        if apart > own * size + overall * among + least:
            sort = what if kind == net else "output"
            told.setdefault(sort, _sentence(sort, name, when, apart))
    return Agreement(worst, ", ".join(told[sort] for sort in ("output", "gradient", "value") if sort in told))


def _counterpart(other: Snapshot, key: tuple[str, str, str], value: Tensor) -> Tensor:
    """The same tensor on the other side. A parameter that is not trained there has no gradient; all else must be there."""
    if key in other:
        return other[key]
    return torch.full_like(value, 0.0 if key[1] == "gradient" else math.nan, dtype=torch.float64)


def _sentence(sort: str, name: str, when: str, apart: float) -> str:
    if sort == "output":
        return f"its output differs by {apart:.1e}"
    what = "gradient of" if sort == "gradient" else f"{when} value of".strip()
    return f"the {what} {name} differs by {apart:.1e}"


def _size(value: Tensor) -> float:
    return float(value.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if value.numel() else 0.0


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference; numbers that are not finite must be the same ones."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf)
    return float(apart.max()) if apart.numel() else 0.0
