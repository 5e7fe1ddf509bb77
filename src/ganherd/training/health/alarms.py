"""Raise alarms from the scores of members. The beginning and the end of an alarm are reported once each.

The scores come from looks (regular health checks, `monitor.py`) and records.

- nan, diverged: the weights or losses of a member are not finite, or its loss exceeds `run.repair.diverged`. Both are checked with
  every record.
- collapse: the samples hardly vary, although they varied at least twice as much before or the member trained for long.
- cycling: the samples for the same noise return to earlier ones again and again.
- dead_critic: the discriminator ranks real images above samples no better than chance, although nearest neighbours separate them.
  Comparing ranks instead of losses makes the alarm independent of the scale of a critic. If the samples are so good that nothing
  separates them from real images, there is no alarm.
- memorising: many samples are nearer to a single training image than 95 % of held-out images are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.training.health.monitor import recall

OF_ALL = ("watch.bad", "watch.good", "watch.ill")  # every rank has these tensors for all members
ALARMS = ("nan", "diverged", "collapse", "cycling", "dead_critic", "memorising")
WHY = {
    "nan": "it turned NaN",
    "diverged": "its loss left all bounds",
    "collapse": "its samples are hardly varied any more",
    "cycling": "its samples go round and come back to where they were",
    "dead_critic": "its discriminator tells real from generated no better than a coin",
    "memorising": "most of its samples are copies of training images",
}
TRY = {
    "nan": "try a lower optim.lr_g and optim.lr_d, or optim.grad_clip",
    "diverged": "try a lower optim.lr_g and optim.lr_d, or optim.grad_clip",
    "collapse": "try a lower optim.lr_g, a higher train.n_critic or another loss.name",
    "cycling": "try a lower optim.beta1 and learning rates, or loss.name wasserstein-gp",
    "dead_critic": "try a higher optim.lr_d or train.n_critic, or another discriminator",
    "memorising": "give it more data, smaller nets or a shorter train.budget",
}


@dataclass(frozen=True)
class Limits:
    """The limits of the alarms, tuned on seeds 100 to 104 of benchmarks/alarms.py, which tests them on other seeds."""

    spread: float = 0.25  # collapse: the spread is below this
    lost: float = 0.5  # … and below this fraction of the widest spread that the member ever had,
    slow_start: int = 1000  # … or the member is older than this many steps, even if its spread was never wider
    warm_up: int = 200  # age in steps before which none of the following begins: a discriminator has to learn first
    returns: float = 0.5  # cycling: `returns` is at or below this
    tells: float = 0.52  # dead critic: `tells` is at or below this,
    differs: float = 0.75  # … while `differs` is at or above this: nearest neighbours separate samples from real images
    copies: float = 0.4  # memorising: `copies` is at or above this
    # The number of bad checks in a row that raises each of `ALARMS`; as many good ones end it. A good generator can
    # stay ahead of a learning discriminator for several looks, so the alarm for a dead one waits longest.
    patience: tuple[int, ...] = (1, 1, 3, 4, 8, 3)


LIMITS = Limits()


def judge(
    scores: dict[str, Tensor], peak: Tensor, age: Tensor, falling: Tensor, limits: Limits = LIMITS
) -> tuple[Tensor, Tensor]:
    """Return bool (bad [N, 4], known [N, 4]) for the four alarms that depend on the scores of a look.

    `bad` is True if the scores are beyond the limits, `known` is False if a score is not finite.

    Args:
        scores: The scores of the look [N], by name; see `monitor.py`.
        peak: [N] the widest spread so far.
        age: [N] steps since the member's first step, or since it was repaired.
        falling: [N] whether the spread was bad at the last look. It stays bad until the spread reaches `limits.spread`, not until
            it is a little above `limits.lost` of its peak.
    """
    spread, returns, tells, differs, copies = (scores[k] for k in ("spread", "returns", "tells", "differs", "copies"))
    lost = (spread < limits.lost * peak) | falling | (age >= limits.slow_start)
    warm = age >= limits.warm_up
    bad = [
        (spread < limits.spread) & lost,
        (returns <= limits.returns) & warm,
        (tells <= limits.tells) & (differs >= limits.differs) & warm,
        (copies >= limits.copies) & warm,
    ]
    known = [torch.isfinite(v) for v in (spread, returns, tells + differs, copies)]
    return torch.stack(bad, 1), torch.stack(known, 1)


class Alarms:
    """Track the alarms of all members, in tensors [N, alarms] that are saved with every checkpoint."""

    def __init__(self, size: int, remembered: State | None = None) -> None:
        """Start without alarms, or with those of a checkpoint.

        Args:
            size: The number of members of the whole herd.
            remembered: The tensors of the checkpoint; None: this is a new run.
        """
        self._patience = torch.tensor(LIMITS.patience)
        self.state: State = {
            "watch.bad": torch.zeros(size, len(ALARMS), dtype=torch.int64),  # the number of bad checks in a row
            "watch.good": torch.zeros(size, len(ALARMS), dtype=torch.int64),  # the number of good checks in a row
            "watch.ill": torch.zeros(size, len(ALARMS), dtype=torch.bool),  # whether the alarm has begun and not ended
        }
        recall(self.state, remembered)

    def note(self, first: int, bad: Tensor, known: Tensor) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Count the results of a check, and return the alarms that began and those that ended, as pairs (member, alarm).

        Args:
            first: The position in `ALARMS` of the first alarm that was checked.
            bad: bool [N, checked alarms], True if the check found the problem.
            known: bool [N, checked alarms], False for what could not be checked: it changes nothing.
        """
        checked = slice(first, first + bad.shape[1])
        bads, goods, ill = (self.state[f"watch.{k}"][:, checked] for k in ("bad", "good", "ill"))
        bads.copy_(torch.where(known, torch.where(bad, bads + 1, 0), bads))
        goods.copy_(torch.where(known, torch.where(bad, 0, goods + 1), goods))
        begun = ~ill & (bads >= self._patience[checked])
        over = ill & (goods >= self._patience[checked])
        ill.copy_((ill | begun) & ~over)
        return tuple([(m, ALARMS[first + a]) for m, a in each.nonzero().tolist()] for each in (begun, over))  # type: ignore[return-value]

    def is_ill(self, member: int) -> bool:
        """Return whether a member has any alarm at the moment."""
        return bool(self.state["watch.ill"][member].any())

    def forget(self, member: int) -> None:
        """Forget all checks and alarms of a member, for example after a repair."""
        for value in self.state.values():
            value[member] = 0
