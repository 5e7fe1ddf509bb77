"""Model what ranks wait for: a message of b bytes takes α + β·b seconds, and so on. Predict 10 to 2,000 ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ganherd.comm.placement import border
from ganherd_benchmarks.scaling_rank import near_square

RANKS = (10, 20, 50, 100, 200, 500, 1000, 2000)
STRATEGIES = ("independent", "gap", "cellular", "cellular, all-gather")
# Table III of the cellular paper: minutes of grids with one cell a process; weak scaling, since a grid has one rank a cell
PAPER = {4: 39.81, 9: 73.24, 16: 126.68}


@dataclass(frozen=True)
class MessageCost:
    """The seconds of a message: α + β · bytes."""

    alpha: float
    beta: float

    def __call__(self, bytes_: float, messages: float = 1.0) -> float:
        return self.alpha * messages + self.beta * bytes_


def fit(bytes_: Sequence[float], seconds: Sequence[float]) -> MessageCost:
    """Fit α and β, both at least 0, by least squares of the relative error: small messages count as much as large ones.

    >>> line = fit([0, 1000, 2000], [0.001, 0.002, 0.003])
    >>> f"{line.alpha:.4f} {line.beta:.1e}"
    '0.0010 1.0e-06'
    """
    x, t = np.asarray(bytes_, float), np.asarray(seconds, float)
    rows = np.stack([1 / t, x / t], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)
    if alpha < 0:
        alpha, beta = 0.0, float((x / t).sum() / ((x / t) ** 2).sum())
    if beta < 0:
        alpha, beta = float((1 / t).sum() / (1 / t**2).sum()), 0.0
    return MessageCost(float(alpha), float(beta))


@dataclass(frozen=True)
class RankWork:
    """The work of one rank from one exchange to the next."""

    members: int  # of a rank
    compute: float  # seconds of the steps between two exchanges
    net_bytes: int  # of a discriminator that is swapped
    cell_bytes: int  # of a cell that neighbours fetch: its nets, and statistics of its samples


@dataclass(frozen=True)
class Waits:
    """What ranks wait for apart from exchanges, fitted to measurements; the shape of the run that has to bear it."""

    record: MessageCost  # seconds by the number of ranks: an all-gather passes from rank to rank
    checkpoint: MessageCost  # seconds by the bytes of the whole herd: all ranks write to one file system
    member_bytes: int  # of a checkpoint
    start: float  # seconds until the slowest process is ready
    spread: float  # standard deviation of a rank's seconds for `spread_steps` steps
    spread_steps: int
    record_every: int
    checkpoint_every: int
    run_steps: int

    def of_round(self, ranks: int, members: int, every: int, meets: bool) -> dict[str, float]:
        """Return the seconds of each kind of wait that fall to one round of `every` steps.

        Ranks wait for the slowest wherever they synchronise: at records, and at exchanges if members meet. The slowest of n
        ranks is √(2·ln n) standard deviations late, if delays are independent.

        Args:
            members: The number of members of all ranks.
        """
        steps = min(every, self.record_every) if meets else self.record_every  # between two synchronisations
        late = self.spread * math.sqrt(steps / self.spread_steps) * math.sqrt(2 * math.log(ranks))
        return {
            "record": self.record(ranks) * every / self.record_every,
            "checkpoint": self.checkpoint(self.member_bytes * members) * every / self.checkpoint_every,
            "start": self.start * every / self.run_steps,
            "slowest": late * every / steps,
        }


def exchange(strategy: str, ranks: int, work: RankWork, line: MessageCost) -> tuple[float, float]:
    """Return the messages and bytes that a rank receives for each exchange, without the few numbers that all share.

    >>> exchange("cellular, all-gather", 16, RankWork(1, 1.0, 10, 100), MessageCost(0, 0))[1]
    1500.0
    >>> exchange("cellular", 16, RankWork(1, 1.0, 10, 100), MessageCost(0, 0))
    (4.0, 400.0)
    """
    own, everyone = work.members, work.members * ranks
    if strategy == "independent" or ranks == 1:
        return 0.0, 0.0
    if strategy == "gap":  # a partner is any other member
        away = own * (everyone - own) / (everyone - 1)
        peers = (ranks - 1) * (1 - (1 - 1 / (ranks - 1)) ** away)
        return peers, away * work.net_bytes
    if strategy == "cellular":
        return tuple(map(float, np.multiply(torus_border(ranks, own), (1, work.cell_bytes))))  # type: ignore[return-value]
    return float(ranks - 1), float((everyone - own) * work.cell_bytes)


@cache
def torus_border(ranks: int, own: int) -> tuple[int, int]:
    """Return the peers and cells that a rank fetches from, for a nearly square grid of nearly square blocks.

    >>> torus_border(16, 1), torus_border(4, 4), torus_border(2, 1)
    ((4, 4), (2, 8), (1, 1))
    """
    rows, columns = near_square(ranks)
    height, width = near_square(own)
    across, down = min(2, columns - 1), min(2, rows - 1)  # other ranks to the sides, above and below
    return across + down, border(rows * height, columns * width, height, width)


def predict(
    strategy: str, ranks: int, work: RankWork, line: MessageCost, waits: Waits | None = None, every: int = 1
) -> dict[str, Any]:
    """Predict the seconds of one round (steps, exchange and waits), and the efficiency: the share of the steps.

    Args:
        waits: None: exchanges only.
        every: The steps of a round.
    """
    messages, bytes_ = exchange(strategy, ranks, work, line)
    shared = math.ceil(math.log2(ranks)) * line.alpha if ranks > 1 and strategy != "independent" else 0.0
    took = line(bytes_, messages) + shared
    waiting = waits.of_round(ranks, work.members * ranks, every, strategy != "independent") if waits else {}
    seconds = work.compute + took + sum(waiting.values())
    return {
        "strategy": strategy,
        "ranks": ranks,
        "messages": messages,
        "bytes": bytes_,
        "exchange_seconds": took,
        "waits": waiting,
        "seconds": seconds,
        "efficiency": work.compute / seconds,
    }


def paper() -> list[dict[str, Any]]:
    """Return the rows of the cellular paper: minutes, and weak-scaling efficiency relative to its smallest grid.

    >>> [(row["ranks"], round(row["efficiency"], 2)) for row in paper()]
    [(4, 1.0), (9, 0.54), (16, 0.31)]
    """
    first = PAPER[4]
    return [{"ranks": cells, "minutes": t, "efficiency": first / t} for cells, t in PAPER.items()]
