"""A rank that trains runs one after another, in each of which one rank is killed: `rank_is_killed.py ENGINE FOLDER '[{…}, …]'`.

A run: {"name", "recipe", "victim": which rank, "also": others, "step": from which on, "seconds": how long after that}. A rank that
is killed leaves a file FOLDER/NAME.killed with the step that it was at. Ranks that were started again go on where they were. In a
run with "refused", no rank is killed: the disk of the last one may only be read from that step on. In one with "dies", ranks are
killed at places: [[rank, place, step], …], when they come there at that step or later. Every step that an engine makes of a member
is a line "SLOT STEP" in a file FOLDER/NAME.steps-PROCESS.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
import tiny_runs

from ganherd.comm.backends.detect import connect
from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import open_job
from ganherd.herd.engine import engines
from ganherd.recipe import recipe_file
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import loop, session
from ganherd.training.health.monitor import Monitor
from ganherd.training.health.response import Health
from ganherd.training.ranks import catch_up, rank_sync
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.recording.recorder import Recorder
from ganherd.training.setup import net_guard

PLACES: dict[str, tuple[Any, str, bool]] = {  # where a rank dies: in front of a function, or after it
    "record": (Recorder, "record", False),
    "recorded": (Recorder, "record", True),
    "looked": (Monitor, "look", True),
    "healed": (Health, "heal", True),
    "checkpoint": (checkpoint, "_write_members", True),
    "checkpoint done": (checkpoint, "save", True),
    "copies": (Buddies, "refresh", False),
    "copies done": (Buddies, "refresh", True),
    "heard": (rank_sync.RankSync, "heard", False),
    "heard it": (rank_sync.RankSync, "heard", True),
    "catching up": (catch_up.Follower, "tick", False),
    "caught up": (catch_up.Follower, "follow", True),
    "going on": (Recovery, "start_over", False),
    "mixture": (session, "finish_run", False),
}


def die_at(patch: pytest.MonkeyPatch, marker: Path, place: str, step: int) -> None:
    owner, name, after = PLACES[place]
    function: Callable[..., Any] = getattr(owner, name)
    tick, attend, at = loop.Trainer.tick, loop.Trainer.attend, [0]

    def noting(trainer: loop.Trainer, now: int) -> None:
        tick(trainer, now)
        at[0] = now

    def attending(trainer: loop.Trainer) -> None:
        at[0] = max(at[0], trainer.step)  # a rank whose members all rest comes here without a step
        attend(trainer)

    def dying(*given: Any, **named: Any) -> Any:
        done = function(*given, **named) if after or at[0] < step else None
        if at[0] >= step:
            marker.write_text(json.dumps({"step": at[0]}))
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    patch.setattr(loop.Trainer, "tick", noting)
    patch.setattr(loop.Trainer, "attend", attending)
    patch.setattr(owner, name, dying)


def count_steps(patch: pytest.MonkeyPatch, path: Path) -> None:
    one, file = engines.Engine._train_block, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    examine, counts = net_guard.examine, [True]

    def counting(engine: engines.Engine, breed: Any, state: Any, block: Any, base: Any, sums: Any, step: int) -> None:
        one(engine, breed, state, block, base, sums, step)
        if counts[0]:
            os.write(file, "".join(f"{slot} {step}\n" for slot in state["set.slot"].tolist()).encode())

    def uncounted(*given: Any) -> None:
        counts[0] = False  # the comparison of the nets with plain PyTorch trains other members
        examine(*given)
        counts[0] = True

    patch.setattr(engines.Engine, "_train_block", counting)
    patch.setattr(net_guard, "examine", uncounted)


class Victim:
    """Dies once, at any moment: in the middle of a step, a message, a checkpoint or a mixture."""

    def __init__(self, marker: Path, step: int, seconds: float) -> None:
        self.marker, self.step, self.seconds = marker, step, seconds
        self.timer: threading.Timer | None = None
        self.at = 0

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        tick = loop.Trainer.tick

        def noting(trainer: loop.Trainer, step: int) -> None:
            tick(trainer, step)
            self.at = step
            if step >= self.step and self.timer is None:
                self.timer = threading.Timer(self.seconds, self.die)
                self.timer.start()

        patch.setattr(loop.Trainer, "tick", noting)

    def die(self) -> None:
        self.marker.write_text(json.dumps({"step": self.at}))
        os.kill(os.getpid(), signal.SIGKILL)


def refuse(patch: pytest.MonkeyPatch, at: int) -> None:
    tick = loop.Trainer.tick

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def acting(trainer: loop.Trainer, step: int) -> None:
        tick(trainer, step)
        if step == at:
            patch.setattr(checkpoint, "_write", read_only)

    patch.setattr(loop.Trainer, "tick", acting)


def train(comm: Communicator, folder: Path, run: dict[str, Any]) -> None:
    path, marker = folder / run["name"], folder / f"{run['name']}.killed"
    is_begun = (path / "run.json").is_file()
    if is_begun and RunFolder(path).info.state == "finished":
        return
    with pytest.MonkeyPatch.context() as patch:
        victim = Victim(marker, run.get("step", 0), run.get("seconds", 0.0))
        if run.get("refused") and comm.rank == comm.world_size - 1:
            refuse(patch, run["refused"])
        victims = (
            [victim % comm.world_size for victim in (run["victim"], *run.get("also", ()))] if "victim" in run else []
        )
        if comm.rank in victims and not marker.exists():
            victim.watch(patch)
        count_steps(patch, folder / f"{run['name']}.steps-{os.getpid()}")
        for rank, place, step in run.get("dies", ()):
            if comm.rank == rank:
                die_at(patch, marker, place, step)
        if is_begun:
            session.resume(path, quiet=True, job=comm)
        else:
            session.train(recipe_file.load(run["recipe"]), path, quiet=True, job=comm)
        if victim.timer:  # it came to the end before
            victim.timer.join()


def main(engine: str, folder: str, runs: str) -> None:
    tiny_runs.skip_products(pytest.MonkeyPatch())
    with open_job(lambda: connect(engine)) as comm:
        for run in json.loads(runs):
            train(comm.latest, Path(folder), run)


if __name__ == "__main__":
    processes.run_main(main)
