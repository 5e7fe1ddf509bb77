"""Changes of members' settings, as arithmetic on [N]: learning rates that wander, losses that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor


def wandered(
    lr: Tensor, lr0: Tensor, formula: str, strength: float, normal: Tensor, uniform: Tensor, p: float
) -> Tensor:
    """Learning rates [N] after one mutation; those whose `uniform` is at least p stay as they are.

    reference: lr + strength · N(-lr0/10, lr0), not below 0. lognormal: lr · exp(strength · N(0, 1)).
    """
    if formula == "reference":
        changed = (lr + strength * (normal - 0.1) * lr0).clamp(min=0.0)
    else:
        changed = lr * torch.exp(strength * normal)
    return torch.where(uniform < p, changed, lr)


def drawn_losses(uniform: Tensor, losses: int) -> Tensor:
    """[N] a number below `losses` for each member, all equally probable."""
    return (uniform * losses).long().clamp(max=losses - 1)


def smoothed(since: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Factors [N] of (lr_g, lr_d) at the s-th step after a swap, s = since + 1; both 1 from s > length on.

    >>> g, d = smoothed(torch.tensor([0, 1, 9]), 5)
    >>> [round(v, 2) for v in g.tolist()], [round(v, 2) for v in d.tolist()]
    ([1.23, 1.13, 1.0], [0.81, 0.88, 1.0])
    """
    s = since.to(torch.float64) + 1.0
    now = (s >= 1) & (s <= length)
    one = torch.ones_like(s)
    return torch.where(now, 1.0 + 0.3 / (s + 0.3), one), torch.where(now, 1.0 - 0.3 / (s + 0.6), one)
