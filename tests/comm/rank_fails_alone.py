"""Ranks of a job of which only the second one runs out of memory, while the first waits for it."""

import os

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.ranks import open_job
from ganherd.util.errors import Interrupted

with open_job(lambda: connect(detect(os.environ))) as comm:
    if comm.rank == 1:
        raise Interrupted("memory ran out; resume it with: ganherd train --resume RUN")
    comm.barrier()
