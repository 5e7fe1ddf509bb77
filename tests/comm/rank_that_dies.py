"""A rank of a job in which the first or the second one does not come to its end; started by the tests beside it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ganherd.comm.backends.detect import connect, detect


def main(how: str, folder: Path) -> None:
    comm = connect(detect(os.environ))
    if comm.rank == 0:
        print(comm.describe_loss("ganherd train --resume RUN"), flush=True)
    comm.barrier()  # a launcher may end all ranks as soon as one has died, so they print before that
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if comm.rank == (0 if how == "first" else 1) and attempt == "0" and how != "all fail":
        if how == "abort":
            comm.abort(3)
        if how == "fail":
            comm.fail(4, patience=0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "all fail":
        comm.fail(4, patience=60.0)
        (folder / f"{comm.rank}-failed").touch()
        sys.exit(5)
    comm.barrier()  # the others wait here for one that never comes
    assert comm.all_gather_bytes(b"here") == [b"here"] * comm.world_size
    (folder / f"{comm.rank}-{attempt}").touch()
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
