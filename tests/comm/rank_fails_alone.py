"""Ranks of a job of which only the second one runs out of memory, while the first waits for it."""

import os

from ganherd.comm.detect import connect, detect
from ganherd.errors import Interrupted
from ganherd.run.ranks import job

with job(lambda: connect(detect(os.environ))) as comm:
    if comm.rank == 1:
        raise Interrupted("memory ran out; resume it with: ganherd train --resume RUN")
    comm.barrier()
