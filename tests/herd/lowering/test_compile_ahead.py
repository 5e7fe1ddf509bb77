"""The kernels of a step are known before it runs, compiled in parallel processes, and found by the step and by other users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.further

pytest.importorskip("triton", reason="kernels need Triton")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process without Triton's interpreter, and without a GPU, found out about the kernels of a little herd."""
    folder = tmp_path_factory.mktemp("kernels")
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8))
    nets = {"generator": {"name": "mlp", "hidden": [20]}, "discriminator": {"name": "mlp", "hidden": [20]}, "latent": 7}
    recipe = {
        "data": {"source": str(folder / "data.npz"), "partition": "all", "holdout": 0.0},
        "herd": {"members": 2},
        "nets": nets,
        "train": {"batch": 5, "precision": "tf32"},
        "engine": {"device": "cpu"},
    }
    dropped = ("TRITON_INTERPRET", "TRITON_CACHE_DIR", "GANHERD_SHARED_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["GANHERD_CACHE"] = str(folder / "own")
    (folder / "elsewhere").mkdir()
    script = Path(__file__).with_name("collects_kernels.py")
    words = [sys.executable, str(script), json.dumps(recipe), str(folder / "elsewhere")]
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
    assert answer.returncode == 0, answer.stderr
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


def test_collecting_compiles_nothing(facts: dict[str, Any]) -> None:
    assert facts["collected"] > 3 and facts["collected with boxes"] == 1
    assert facts["compiled while collecting"] == facts["cached before"] == 0


def test_all_kernels_are_compiled_and_each_is_reported(facts: dict[str, Any]) -> None:
    number = facts["collected"]
    assert facts["cached"] == number
    assert facts["reports"] == [[done, number] for done in range(number + 1)]


def test_what_launches_a_kernel_is_built_along_with_it(facts: dict[str, Any]) -> None:
    assert facts["launchers"] == facts["collected"]


def test_kernels_can_be_compiled_while_something_else_runs(facts: dict[str, Any]) -> None:
    assert facts["compiled in the background"] == facts["collected"]


def test_the_step_compiles_nothing_itself(facts: dict[str, Any]) -> None:
    assert facts["found at launch"] == facts["collected"] and facts["compiled at launch"] == 0


def test_a_cache_that_was_moved_can_be_shared(facts: dict[str, Any]) -> None:
    assert facts["cached without the cache"] == 0
    assert facts["cached in the shared cache"] == facts["collected"]
