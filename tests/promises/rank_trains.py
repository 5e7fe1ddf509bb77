"""A rank that trains runs one after another: `rank_trains.py ENGINE '["begin", recipe, run]' '["resume", overrides, run]' …`.

`stop` is `begin` with a SIGTERM that the last rank alone gets, at step 7. `unlike` is `begin` on hosts of which the first is three
times as fast as the others; a resume there has nothing to measure.
"""

from __future__ import annotations

import json
import os
import signal

import processes
import pytest
import tiny_runs

from ganherd.comm.backends.detect import connect
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import open_job
from ganherd.recipe import recipe_file
from ganherd.training import loop, session
from ganherd.training.ranks import balance
from ganherd.util.errors import Interrupted


def stopped(comm: Communicator, patch: pytest.MonkeyPatch) -> None:
    tick = loop.Trainer.tick

    def acting(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 7 and self.ranks.local_members[-1] == self.ranks.num_members - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(loop.Trainer, "tick", acting)


def unlike(comm: Communicator, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(comm, "hosts", ("fast", *(f"slow{rank}" for rank in range(1, comm.world_size))))
    patch.setattr(balance, "measured", lambda assembly: 3.0 if comm.rank == 0 else 1.0 + 0.1 * comm.rank)


def main(engine: str, *jobs: str) -> None:
    tiny_runs.skip_products(pytest.MonkeyPatch())
    with open_job(lambda: connect(engine)) as comm:
        for each in jobs:
            how, given, run = json.loads(each)
            if how == "resume":
                session.resume(run, given, quiet=True, job=comm)
                continue
            with pytest.MonkeyPatch.context() as patch:
                if how == "stop":
                    stopped(comm, patch)
                if how == "unlike":
                    unlike(comm, patch)
                try:
                    session.train(recipe_file.load(given), run, quiet=True, job=comm)
                    assert how != "stop"
                except (Interrupted, SystemExit) as ended:
                    if how != "stop":
                        raise
                    is_code = isinstance(ended, SystemExit) and ended.code == 75
                    assert is_code == (comm.rank > 0), ended


if __name__ == "__main__":
    processes.run_main(main)
