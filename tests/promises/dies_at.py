"""Train runs that die by SIGKILL right after a step: `dies_at.py '[recipe, run, step]' …`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest
import tiny_runs
import torch

from ganherd.training import loop


def train(recipe: dict[str, Any], run: str, last: int) -> None:
    tick = loop.Trainer.tick

    def dying(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.Trainer.tick = dying  # type: ignore[method-assign]
    torch.set_num_threads(1)
    tiny_runs.train(run, recipe)  # type: ignore[arg-type]


if __name__ == "__main__":
    tiny_runs.skip_products(pytest.MonkeyPatch())
    for job in sys.argv[1:]:
        child = os.fork()  # with everything imported already
        if child == 0:
            train(*json.loads(job))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, job
