"""Compare two snapshots of a member (one GAN) tensor by tensor, and describe the differences.

A snapshot has the outputs, gradients, parameters and buffers after a step. One is from plain PyTorch, the other from an
engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.checks.plain_pytorch import Snapshot

# Tolerances by dtype: relative to the largest number of the tensor, relative to the largest number of all tensors of
# its kind (e.g. gradients) in the net, and absolute. A difference may be as large as their sum.
TOLERANCE = {torch.float64: (1e-7, 1e-10, 1e-12), torch.float32: (1e-2, 1e-4, 1e-6)}
FAILS = "it fails: "  # begins `Agreement.why` if an engine does not run
_SMALL = 1e-3  # lower bound of the magnitude by which a difference is divided, because gradients may be almost 0


@dataclass(frozen=True)
class Agreement:
    """The result of comparing an engine with plain PyTorch."""

    difference: float  # the largest one, relative to the largest number of its kind; NaN if the engine does not run
    why: str = ""  # what differs by more than the tolerance, or why the engine does not run; empty if all is equal

    @property
    def failed(self) -> bool:
        """Return whether the engine does not run at all."""
        return self.why.startswith(FAILS)


def compare(plain: Snapshot, other: Snapshot, net: str, dtype: torch.dtype, when: str = "") -> Agreement:
    """Compare all tensors of two snapshots, each with a tolerance that depends on its magnitude.

    Args:
        plain: The snapshot from plain PyTorch.
        other: The snapshot from an engine.
        net: `g` or `d`, the net under test; a difference in its partner is reported as one of the output.
        dtype: The dtype of the training, which determines the tolerances.
        when: An adjective for parameters and buffers in messages, e.g. "initial".

    Returns:
        The largest difference, and a message that names the first output, gradient and value that differ.
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
    """Return the tensor with this key in the other snapshot; if it is missing, zeros for a gradient, otherwise NaN.

    Args:
        value: The tensor in the first snapshot, which gives the shape.
    """
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
    """Return the largest absolute value of the finite numbers of a tensor; 0 if there are none."""
    return float(value.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if value.numel() else 0.0


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors; infinite if shapes, infinities or NaNs differ."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf)
    return float(difference.max()) if difference.numel() else 0.0
