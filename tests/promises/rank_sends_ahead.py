"""A rank that writes down what follows what at its meetings: `rank_sends_ahead.py FOLDER NAME RECIPE …`, started by its test.

Each recipe is trained undisturbed, then stopped right after a meeting, while members are on their way, and gone on with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs

from ganherd.comm.backends.detect import connect
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import open_job
from ganherd.comm.row_messages import Fetch
from ganherd.recipe import recipe_file
from ganherd.runs import checkpoint
from ganherd.strategies.mixing.neighbourhood_mixtures import NeighbourhoodMixtures
from ganherd.training import loop, session
from ganherd.util.errors import Interrupted

MEETING = 8  # a step at which members meet, of both strategies


def written_down(patch: pytest.MonkeyPatch, log: list[str]) -> None:
    def logs(owner: Any, name: str, word: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def logged(*words: Any, **more: Any) -> Any:
            log.append(word)
            return work(*words, **more)

        patch.setattr(owner, name, logged)

    logs(Communicator, "begin_fetch", "begin")
    logs(Fetch, "wait", "wait")
    logs(checkpoint, "save", "save")
    logs(NeighbourhoodMixtures, "evolve", "mixture")


def stopped(patch: pytest.MonkeyPatch) -> None:
    tick = loop.Trainer.tick

    def acting(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == MEETING and self.ranks.is_first:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(loop.Trainer, "tick", acting)


def main(folder: Path, *jobs: str) -> None:
    tiny_runs.skip_products(pytest.MonkeyPatch())
    with open_job(lambda: connect("torch")) as comm:
        for name, text in zip(jobs[::2], jobs[1::2], strict=True):
            recipe = recipe_file.load(json.loads(text))
            log: list[str] = []
            with pytest.MonkeyPatch.context() as patch:
                written_down(patch, log)
                session.train(recipe, folder / name, quiet=True, job=comm)
            (folder / f"{name}-{comm.rank}.json").write_text(json.dumps(log))
            with pytest.MonkeyPatch.context() as patch, pytest.raises((Interrupted, SystemExit)):
                stopped(patch)
                session.train(recipe, folder / f"{name}-stopped", quiet=True, job=comm)
            session.resume(folder / f"{name}-stopped", quiet=True, job=comm)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
