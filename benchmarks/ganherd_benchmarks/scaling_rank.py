"""One rank of the scaling benchmark: train its members, exchange like each strategy, and measure both."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from ganherd.bench.cases import as_file, known, recipe_of
from ganherd.bench.engine_rates import synchronize
from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.placement import place
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engines import Plan, StackedHerd, make_engine
from ganherd.herd.engine.engines import place_state as put
from ganherd.strategies.cellular.topology import torus
from ganherd.strategies.gap.gap import swapped_tensors
from ganherd.training.setup.assemble import assemble
from ganherd.util import host
from ganherd.util.files import JsonObject
from ganherd_benchmarks import scaling_waits

Row = JsonObject
_MESSAGES = tuple(2**power for power in range(10, 24))  # bytes, up to 8 MiB
_TRIES = 7
_FEATURES = 64  # of the small classifier that scores mixtures


@dataclass(frozen=True)
class RankRequest:
    """What to measure, the same on every rank."""

    case: str
    members: int  # of a rank, in weak scaling
    ranks: tuple[int, ...]
    steps: int  # from one exchange to the next
    rounds: int
    device: str
    launched: float | None = (
        None  # when the ranks were started, on the clock of `time.monotonic`; None: not by the benchmark
    )


def measure(comm: Communicator, request: RankRequest) -> JsonObject | None:
    """Return rows of scaling, of waits and of messages; None on all ranks but the first. Called by all ranks."""
    start = scaling_waits.start_seconds(comm, request.launched)
    facts = [
        json.loads(each) for each in comm.all_gather_bytes(json.dumps([comm.hosts[comm.rank], host.cores()]).encode())
    ]
    cores = sum({name: count for name, count in facts}.values())
    if request.device == "cuda":
        torch.cuda.set_device(comm.local_rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    ranks = [number for number in request.ranks if number <= comm.world_size]
    rows: list[Row] = []
    waits: list[Row] = []
    for kind in ("weak", "strong"):
        for number in ranks:
            part = comm.new_group(range(number))
            if part is not None:
                members = request.members * (number if kind == "weak" else max(ranks))
                found, wait = _round(part, members, request, with_waits=kind == "weak")
                rows += [{"kind": kind, **row, "cores": cores} for row in found]
                waits += wait
            comm.barrier()  # the other ranks wait here, and use no processor time
    messages = _messages(comm)
    if comm.rank != 0:
        return None
    job = {"engine": comm.name, "hosts": len(set(comm.hosts)), "cores": cores, "start_seconds": start}
    return {"rows": rows, "waits": waits, "messages": messages, **job}


def _round(comm: Communicator, members: int, request: RankRequest, with_waits: bool) -> tuple[list[Row], list[Row]]:
    """Measure steps, exchanges and, if asked, waits of the members on these ranks; the time of the slowest rank counts."""
    grid = near_square(members)
    order, blocks = place(members, comm.world_size), place(members, comm.world_size, grid=grid)
    herd = _herd(len(order.ranks[comm.rank]), request)
    engine, sums, steps = make_engine(herd, _plan(herd)), herd.zero_sums(), 0
    engine.advance(0, 2, sums)
    exchanges = _exchanges(herd, comm, order, blocks, grid)
    took: dict[str, list[float]] = {name: [] for name in ("compute", "cpu", *exchanges)}
    bytes_: dict[str, int] = {}
    for turn in range(request.rounds):
        # Each exchange is first in turn: the first one after the steps finds memory that these have displaced from caches.
        in_turn = [*exchanges.items()][turn % len(exchanges) :] + [*exchanges.items()][: turn % len(exchanges)]
        comm.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        engine.advance(steps, steps + request.steps, sums)
        synchronize(herd.device)
        steps += request.steps
        took["compute"].append(time.perf_counter() - began)
        took["cpu"].append(time.process_time() - cpu)
        for name, (state, placement, wanted) in in_turn:
            comm.barrier()
            before, began = comm.bytes_received, time.perf_counter()
            comm.fetch(state, placement, wanted if name != "gap" else _partners(members, placement, turn))
            synchronize(herd.device)
            took[name].append(time.perf_counter() - began)
            bytes_[name] = max(bytes_.get(name, 0), comm.bytes_received - before)
    own = {name: median(each) for name, each in took.items()}
    everyone = [json.loads(each) for each in comm.all_gather_bytes(json.dumps([own, bytes_]).encode())]
    slowest = {name: max(times[name] for times, _ in everyone) for name in own}
    spread = scaling_waits.spread(comm, took["compute"])
    rows = [
        {
            "strategy": name,
            "ranks": comm.world_size,
            "members": members,
            "compute_seconds": slowest["compute"],
            "cpu_seconds": slowest["cpu"],
            "exchange_seconds": slowest.get(name, 0.0),
            "seconds": slowest["compute"] + slowest.get(name, 0.0),
            "bytes": max(received.get(name, 0) for _, received in everyone),
            "member_bytes": _width(exchanges[name][0]) if name in exchanges else 0,
        }
        for name in ("independent", *exchanges)
    ]
    return rows, [{**scaling_waits.measure(comm, herd, order), "spread_seconds": spread}] if with_waits else []


def near_square(number: int) -> tuple[int, int]:
    """Return the rows and columns of the grid with this many cells that is closest to a square.

    >>> near_square(12), near_square(7)
    ((3, 4), (1, 7))
    """
    rows = next(n for n in range(math.isqrt(number), 0, -1) if number % n == 0)
    return rows, number // rows


def _exchanges(
    herd: StackedHerd, comm: Communicator, order: Placement, blocks: Placement, grid: tuple[int, int]
) -> JsonObject:
    """Return by strategy the tensors to exchange, the placement of the members, and the members that each rank fetches."""
    cells, topology = blocks.ranks, torus(*grid)
    nets = {name: value for name, value in herd.state.items() if name.startswith(("g.", "d.")) or name == "set.lr_g"}
    # as many rows as the rank has cells; which rows does not matter
    rows = [n % herd.num_members for n in range(len(cells[comm.rank]))]
    nets = {name: value[rows] for name, value in nets.items()}
    # what mixtures are scored by: mean and covariance of the features of samples
    nets["mean"] = torch.zeros(len(rows), _FEATURES, dtype=torch.float64, device=herd.device)
    nets["cov"] = torch.zeros(len(rows), _FEATURES, _FEATURES, dtype=torch.float64, device=herd.device)
    critics = {name: herd.state[name] for name in swapped_tensors(herd.state, "d", "weights")}
    near = [sorted({m for cell in own for m in topology.members(cell)}) for own in cells]
    everyone = [list(range(blocks.num_members))] * len(cells)
    return {
        "gap": (critics, order, ()),
        "cellular": (nets, blocks, near),
        "cellular, all-gather": (nets, blocks, everyone),
    }


def _partners(members: int, placement: Placement, turn: int) -> list[list[int]]:
    """Return the member from which each member gets its discriminator: random pairs."""
    order = np.random.default_rng(turn).permutation(members)
    partner = np.arange(members)
    for a, b in zip(order[: members // 2], order[members // 2 :], strict=False):
        partner[a], partner[b] = b, a
    return [[int(partner[m]) for m in own] for own in placement.ranks]


def _messages(comm: Communicator) -> list[Row]:
    """Measure the seconds of a message between two ranks, on two hosts if there are two, for several sizes."""
    far = next((rank for rank, host in enumerate(comm.hosts) if host != comm.hosts[0]), 1)
    pair = comm.new_group([0, far]) if comm.world_size > 1 else None
    rows = []
    for size in _MESSAGES if pair is not None else ():
        assert pair is not None
        took, state = [], {"message": torch.zeros(1, size, dtype=torch.uint8)}
        for _ in range(_TRIES):
            pair.barrier()
            began = time.perf_counter()
            pair.fetch(state, Placement(((0,), (1,))), [[1], [0]])
            took.append(time.perf_counter() - began)
        slower = max(json.loads(each) for each in pair.all_gather_bytes(json.dumps(median(took[1:])).encode()))
        rows.append({"bytes": size, "seconds": slower})
    comm.barrier()
    return rows


def _herd(members: int, request: RankRequest) -> StackedHerd:
    case = known(request.case)
    with as_file(case) as path:
        recipe = recipe_of(case, members, path, request.device, "float32")
        set_precision(recipe)
        herd = assemble(recipe).herd
    put(herd, _plan(herd))
    return herd


def _plan(herd: StackedHerd) -> Plan:
    return Plan("fused", herd.num_members, 1, herd.device.type)


def _width(state: dict[str, Tensor]) -> int:
    return sum(value[0].numel() * value.element_size() for value in state.values())


def main(words: Sequence[str]) -> None:
    """Measure what the first word requests, as JSON; the first rank writes the result to the path in the second word."""
    facts = json.loads(words[0])
    comm = connect(detect(os.environ))
    result = measure(comm, RankRequest(**{**facts, "ranks": tuple(facts["ranks"])}))
    if result is not None:
        Path(words[1]).write_text(json.dumps(result), encoding="utf-8")
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
