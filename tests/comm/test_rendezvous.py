"""Ranks of torch.distributed meet those of their own attempt alone, and end where a rank falls silent."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

import pytest
import torch.distributed as dist
import warm_python
from processes import environment

from ganherd.comm.backends.rendezvous import lost_after, meet
from ganherd.util.errors import UserError


def together(*work: Callable[[], str]) -> list[str]:
    """What each answers, all at once."""
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda n=n, w=w: found.update({n: w()})) for n, w in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[number] for number in range(len(work))]


def test_every_attempt_gets_a_unique_name_in_the_same_store() -> None:
    store, seen = dist.HashStore(), set()
    for _ in range(5):
        names = together(*(lambda rank=rank: meet(store, rank, 3, 20.0) for rank in range(3)))
        assert len(set(names)) == 1
        seen.add(names[0])
    assert len(seen) == 5


def test_ranks_that_died_in_an_earlier_attempt_do_not_count() -> None:
    """A rank says its word and is killed; another takes its place while the first rank already waits."""
    store = dist.HashStore()
    for rank, missing in ((0, "rank 1, rank 2, which did not start"), (1, "rank 2, which did not start")):
        with pytest.raises(UserError, match=f"Rank {rank} on .* waited 0.05 seconds for {missing}"):
            meet(store, rank, 3, 0.05)
    first = threading.Event()

    def late(rank: int) -> str:
        first.wait(0.3)
        return meet(store, rank, 3, 20.0)

    names = together(lambda: meet(store, 0, 3, 20.0), lambda: late(1), lambda: late(2))
    assert len(set(names)) == 1


def test_attempts_with_different_world_sizes_do_not_mix() -> None:
    """A host is lost, and those left meet as fewer: what was said for more does not count."""
    store = dist.HashStore()
    before = together(*(lambda rank=rank: meet(store, rank, 3, 20.0) for rank in range(3)))
    after = together(*(lambda rank=rank: meet(store, rank, 2, 20.0) for rank in range(2)))
    assert len(set(after)) == 1 and after[0] != before[0]


SILENT = """
import sys, threading
import torch.distributed as dist
from ganherd.comm.backends.rendezvous import LivenessRing
class Hangs:
    def set(self, *words): threading.Event().wait()
store = dist.HashStore()
watch = LivenessRing(Hangs if sys.argv[1] == "hangs" else lambda: store, "attempt", 1, 3, 1.5)
if sys.argv[1] == "closed":
    watch.close()
for beat in range(30):
    if sys.argv[1] not in ("silent", "hangs"):
        store.set("attempt/alive/0", str(beat))
    threading.Event().wait(0.1)
print("went on")
"""


@pytest.mark.parametrize(
    ("other", "who"), [("silent", "rank 0"), ("hangs", "the store"), ("alive", ""), ("closed", "")]
)
def test_a_rank_ends_if_the_previous_rank_or_the_store_falls_silent(other: str, who: str) -> None:
    done = subprocess.run(
        [warm_python.python(), "-c", SILENT, other], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == bool(who), done.stderr
    assert done.stdout == ("" if who else "went on\n")
    assert not who or f"ganherd: rank 1 ends: nothing was heard of {who} for 1.5 seconds." in done.stderr


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_an_invalid_lost_after_setting_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="GANHERD_LOST_AFTER=.*: give seconds, or 0 for never"):
        lost_after(text)
