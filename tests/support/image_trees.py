"""Trees of small images for the tests of prepared data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ganherd.data.shards.prepare import prepare
from ganherd.data.shards.shards import Index
from ganherd.util.errors import UserError

COUNTS = {"ant": 9, "bee": 5, "cat": 14}


def tree(root: Path, counts: dict[str, int] = COUNTS, colour: bool = True) -> Path:
    """PNGs of several sizes, no two alike."""
    random = np.random.default_rng(0)
    for name, n in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(n):
            height, width = random.integers(5, 14, 2)
            shape = (height, width, 3) if colour else (height, width)
            Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(root / name / f"{i:02}.png")
    return root


def prepared(root: Path, size: int = 6, counts: dict[str, int] = COUNTS) -> Path:
    prepare(tree(root / "tree", counts), root / "out", size, jobs=1)
    return root / "out"


def shards(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "shards").iterdir())}


def facts(index: Index) -> dict[str, str]:
    """Why each skipped file was skipped."""
    return {one.file: one.why for one in index.skipped}


def refused(call: Callable[[], Any]) -> str:
    """The one sentence with which it is refused."""
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)
