"""Ranks of one machine share what they can: what they load is in memory once, and what they free goes back."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from ganherd.training.ranks.spawn import spawn
from ganherd.util.host import give_back

ROLLUP = Path("/proc/self/smaps_rollup")


def taken(name: str) -> int:
    """MiB of this process, by the system's count."""
    lines = ROLLUP.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) >> 10


linux = pytest.mark.skipif(sys.platform != "linux" or not ROLLUP.exists(), reason="only Linux counts this way")


@linux
def test_freed_memory_goes_back_to_the_machine() -> None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        pytest.skip("another C library")
    pieces = [torch.ones(16 << 10) for _ in range(2000)]  # 64 KiB each: too small to be mapped by themselves
    last, before = pieces[-1], taken("Anonymous")
    del pieces
    give_back()
    assert taken("Anonymous") < before - 100 and bool((last == 1).all())


@linux
def test_ranks_that_a_command_starts_share_what_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch by itself is some 140 MiB of each process that loads it."""

    def together(name: str) -> None:
        (tmp_path / f"{name}-{os.environ['RANK']}").touch()
        while len(list(tmp_path.glob(f"{name}-*"))) < 2:
            time.sleep(0.01)

    def main() -> None:
        together("here")
        facts = {"argv": sys.argv[1:], "size": os.environ["WORLD_SIZE"], "leads": os.getsid(0) == os.getpid()}
        facts |= {"anonymous": taken("Anonymous"), "proportional": taken("Pss_Anon")}
        (tmp_path / f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts))
        together("done")
        raise SystemExit(75 * (os.environ["RANK"] == "1"))

    try:
        assert spawn(main, 2, ["train", "--quiet"]) == 75
    finally:
        gc.unfreeze()
    for rank in range(2):
        facts = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert facts["argv"] == ["train", "--quiet"] and facts["size"] == "2" and facts["leads"]
        assert facts["proportional"] < facts["anonymous"] - 50
