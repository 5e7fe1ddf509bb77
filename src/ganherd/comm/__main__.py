"""Check the ranks of a job: `mpiexec -n 4 python -m ganherd.comm` prints where they run and how fast they exchange members."""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.communicator import Communicator
from ganherd.comm.placement import place
from ganherd.util.errors import UserError

_BYTES = 4 * 2**20  # size of the member that each rank fetches from the next one


def main() -> None:
    """Connect all ranks and print a report on rank 0."""
    try:
        comm = connect(detect(os.environ))
    except UserError as error:
        print(f"ganherd: {error}", file=sys.stderr)
        sys.exit(2)
    processes = comm.all_gather_bytes(json.dumps([os.getpid(), torch.get_num_threads()]).encode())
    seconds = max(float(each) for each in comm.all_gather_bytes(str(time_exchange(comm)).encode()))
    if comm.rank == 0:
        print(f"{comm.name}, {comm.world_size} rank{'s' * (comm.world_size != 1)}")
        for rank, (process, host) in enumerate(zip(processes, comm.hosts, strict=True)):
            pid, threads = json.loads(process)
            print(f"  rank {rank} on {host}, process {pid}, {threads} thread{'s' * (threads != 1)}")
        if comm.world_size > 1:
            print(f"a member of {_BYTES / 2**20:.0f} MiB goes from every rank to the next in {1e3 * seconds:.1f} ms")
    comm.close()


def time_exchange(comm: Communicator) -> float:
    """Return the seconds in which every rank fetches a member of the next rank: the median of five measurements."""
    placement = place(comm.world_size, comm.world_size)
    wanted = [[(rank + 1) % comm.world_size] for rank in range(comm.world_size)]
    state, seconds = {"member": torch.zeros(1, _BYTES, dtype=torch.uint8)}, []
    for _ in range(6):
        comm.barrier()
        began = time.perf_counter()
        comm.fetch(state, placement, wanted)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[1:])[2]


if __name__ == "__main__":
    main()
