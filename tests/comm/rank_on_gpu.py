"""A rank whose members lie on a GPU; started by test_torchrun.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ganherd.comm.backends.detect import connect
from ganherd.comm.placement import place


def main(folder: Path) -> None:
    comm = connect("torch")
    device = torch.device("cuda", 0)
    assert comm._supports_device(device) == (comm.world_size == 1)
    placement = place(4, comm.world_size)
    whole = {"a": torch.arange(4.0).outer(torch.arange(9.0)).to(device), "b": torch.arange(4, device=device) > 1}
    own = list(placement.ranks[comm.rank])
    found = comm.fetch({name: value[own] for name, value in whole.items()}, placement, [[3, 0, 3]] * comm.world_size)
    for name, value in found.items():
        assert value.is_cuda and torch.equal(value, whole[name][[3, 0, 3]]), name
    if comm.world_size == 1:  # what crosses nothing has not called NCCL yet
        comm._start({}, {}, device).wait()
    (folder / f"{comm.world_size}-{comm.rank}").touch()
    comm.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
