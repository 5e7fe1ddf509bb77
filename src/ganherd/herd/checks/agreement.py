"""Compare two snapshots of a member tensor by tensor, and describe the differences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.checks.plain_pytorch import Snapshot

# Tolerances: relative to the largest number of the tensor, to the largest number of all such tensors of the net, and absolute.
TOLERANCE = {torch.float64: (1e-7, 1e-10, 1e-12), torch.float32: (1e-2, 1e-4, 1e-6)}
FAILS = "it fails: "  # starts the reason if an engine does not run
_SMALL = 1e-3  # lower bound of magnitudes that differences are related to: gradients may vanish


@dataclass(frozen=True)
class Agreement:
    """How far an engine is from plain PyTorch."""

    difference: float  # the largest one, relative to the largest number of its kind; NaN if the engine does not run
    why: str = ""  # what differs and by how much, or the failure; empty if both compute the same

    @property
    def failed(self) -> bool:
        """Return whether the engine does not run at all."""
        return self.why.startswith(FAILS)


def compare(plain: Snapshot, other: Snapshot, net: str, dtype: torch.dtype, when: str = "") -> Agreement:
    """Compare all tensors of two snapshots, each within a tolerance that depends on its magnitude.

    Args:
        net: `g` or `d`, the net under test; a difference in its partner counts as a difference of the output.
        when: An adjective for values, e.g. "initial".

    Returns:
        The largest difference, with the first output, gradient and value that differ.
    """
    largest: dict[tuple[str, str], float] = {}
    for (kind, quantity, _), value in plain.items():
        largest[kind, quantity] = max(largest.get((kind, quantity), 0.0), _magnitude(value))
    relative, overall, absolute = TOLERANCE[dtype]
    worst, messages = 0.0, dict[str, str]()
    for (kind, quantity, name), value in plain.items():
        of_kind = largest[kind, quantity]
        difference = _difference(value, _counterpart(other, (kind, quantity, name), value))
        worst = max(worst, difference / max(of_kind, _SMALL))
        if difference > relative * _magnitude(value) + overall * of_kind + absolute:
            shown = quantity if kind == net else "output"
            messages.setdefault(shown, _message(shown, name, when, difference))
    return Agreement(worst, ", ".join(messages[key] for key in ("output", "gradient", "value") if key in messages))


def _counterpart(other: Snapshot, key: tuple[str, str, str], value: Tensor) -> Tensor:
    """Return the same tensor of the other snapshot: zeros for a gradient that it does not have, NaN for anything else missing."""
    if key in other:
        return other[key]
    return torch.full_like(value, 0.0 if key[1] == "gradient" else math.nan, dtype=torch.float64)


def _message(quantity: str, name: str, when: str, difference: float) -> str:
    """Describe a difference, e.g. "the gradient of 0.weight differs by 1.0e-03"."""
    if quantity == "output":
        return f"its output differs by {difference:.1e}"
    subject = "gradient of" if quantity == "gradient" else f"{when} value of".strip()
    return f"the {subject} {name} differs by {difference:.1e}"


def _magnitude(value: Tensor) -> float:
    """Return the largest absolute value among finite numbers."""
    return float(value.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if value.numel() else 0.0


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; infinite if shapes differ or numbers that are not finite differ."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf)
    return float(difference.max()) if difference.numel() else 0.0
