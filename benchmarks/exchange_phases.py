"""Measure what the time of an exchange between ranks is spent on: copies, messages, page faults. Prints a table.

    torchrun --standalone --nproc-per-node 4 benchmarks/exchange_phases.py
    mpiexec -n 4 python benchmarks/exchange_phases.py --members 8 -o phases.json

Cells of a torus have the nets of the cellular paper and Adam's moments. Two lists of wanted cells are measured: the
neighbours of each rank's cells, and all cells. Both travel as one message for each peer, so an all-gather differs only in its
bytes; on a 2 × 2 grid in two halves the lists are the same. The order of the two changes from round to round, since the
first one after other work finds colder memory. CPU seconds and page faults are those of the first rank, and say more than the
clock does on a machine that is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.placement import place
from ganherd.comm.row_messages import Layout, routes
from ganherd.strategies.cellular.topology import torus
from ganherd.util.host import cores, give_back
from ganherd_benchmarks.scaling_rank import near_square
from provenance import provenance

PARAMETERS = {"g": 283_920, "d": 267_009}  # of the MLPs of the cellular paper
PHASES = ("pack", "local", "start", "wait", "assemble")
HOST = torch.device("cpu")


def exchange(
    comm: Communicator, state: dict[str, torch.Tensor], placement: Placement, wanted: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Make the steps of `Communicator.fetch`, and return the milliseconds of each, CPU milliseconds and page faults."""
    give_back()  # like training after its evaluations
    comm.barrier()
    faults, cpu, marks = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time(), [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    ways, layout = routes(placement.locations(), wanted, comm.rank), Layout.of(state)
    outgoing = layout.pack_all(state, ways.send, HOST)
    mark()
    incoming = {peer: layout.empty(len(members), HOST) for peer, members in ways.receive.items()}
    members = layout.copy_local(state, ways)
    mark()
    work = comm._start(outgoing, incoming, HOST)
    mark()
    work.wait()
    mark()
    layout.assemble(members, ways, incoming)
    mark()
    spent = {name: 1e3 * (marks[n + 1] - marks[n]) for n, name in enumerate(PHASES)}
    return {
        **spent,
        "total": 1e3 * (marks[-1] - marks[0]),
        "cpu": 1e3 * (time.process_time() - cpu),
        "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
        "mib": sum(message.numel() for message in incoming.values()) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, help="Cells of all ranks. Default: two for each rank.")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    comm = connect(detect(os.environ))
    members = args.members or 2 * comm.world_size
    grid = near_square(members)
    placement, topology = place(members, comm.world_size, grid=grid), torus(*grid)
    own = len(placement.ranks[comm.rank])
    state = {f"{net}.{name}": torch.zeros(own, n) for net, n in PARAMETERS.items() for name in ("params", "m", "v")}
    near = [sorted({m for cell in cells for m in topology.members(cell)}) for cells in placement.ranks]
    lists = [("neighbours", near), ("all-gather", [list(range(members))] * comm.world_size)]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name, _ in lists}
    for turn in range(args.rounds):
        for name, wanted in lists if turn % 2 else lists[::-1]:
            rounds[name].append(exchange(comm, state, placement, wanted))
    rows = [
        {"exchange": name, **{key: round(median(each[key] for each in spent[1:]), 3) for key in spent[0]}}
        for name, spent in rounds.items()
    ]
    if comm.rank == 0:
        facts = {"communicator": comm.name, "ranks": comm.world_size, "members": members, "rounds": args.rounds}
        print(json.dumps(facts), *map(json.dumps, rows), sep="\n")
        if args.output is not None:
            machine = f"{platform.machine()}, {cores()} cores"
            args.output.write_text(
                json.dumps({**provenance(), "machine": machine, **facts, "rows": rows}, indent=1) + "\n"
            )
    comm.close()


if __name__ == "__main__":
    main()
