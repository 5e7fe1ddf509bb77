"""`mpiexec -n 4 python -m ganherd.comm`: whether the ranks of a job find each other, where they run, how fast they exchange."""

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

_BYTES = 4 * 2**20  # of the member that each rank sends to the next


def main() -> None:
    try:
        comm = connect(detect(os.environ))
    except UserError as error:
        print(f"ganherd: {error}", file=sys.stderr)
        sys.exit(2)
    threads = torch.get_num_threads()
    found = [json.loads(each) for each in comm.collect(json.dumps([os.getpid(), threads]).encode())]
    took = max(float(each) for each in comm.collect(str(pass_on(comm)).encode()))
    if comm.rank == 0:
        print(f"{comm.name}, {comm.size} rank{'s' * (comm.size != 1)}")
        for rank, ((pid, count), host) in enumerate(zip(found, comm.hosts, strict=True)):
            print(f"  rank {rank} on {host}, process {pid}, {count} thread{'s' * (count != 1)}")
        if comm.size > 1:
            print(f"a member of {_BYTES / 2**20:.0f} MiB goes from every rank to the next in {1e3 * took:.1f} ms")
    comm.close()


def pass_on(comm: Communicator) -> float:
    """Seconds, the median of five after a first one."""
    placement = place(comm.size, comm.size)
    state, took = {"member": torch.zeros(1, _BYTES, dtype=torch.uint8)}, []
    for _ in range(6):
        comm.barrier()
        began = time.perf_counter()
        comm.fetch(state, placement, [[(rank + 1) % comm.size] for rank in range(comm.size)])
        took.append(time.perf_counter() - began)
    return sorted(took[1:])[2]


if __name__ == "__main__":
    main()
