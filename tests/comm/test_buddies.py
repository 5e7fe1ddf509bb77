"""Members of ranks that are gone come back from another rank's memory, all as they were at one step, or are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from comm.launch import job
from ganherd.comm.backends.local import Local
from ganherd.comm.buddies import Buddies
from ganherd.comm.placement import place


@pytest.mark.parametrize("ranks", [4, 5])
def test_lost_members_are_restored_from_buddy_copies(ranks: int, tmp_path: Path) -> None:
    code, said = job("forked", ranks, "rank_with_buddy.py", tmp_path)
    assert code == 0, said
    assert len(list(tmp_path.iterdir())) == ranks, said


def test_a_single_rank_copies_its_own_members() -> None:
    buddies, state = Buddies(), {"g.params": torch.arange(6.0).view(3, 2)}
    buddies.refresh(Local(), place(3, 1), state, 5, {"seconds": 1.5})
    before = state["g.params"].clone()
    state["g.params"].zero_()
    found = buddies.find(Local(), range(4))
    assert (found.step, found.missing, found.facts) == (5, (3,), ({"seconds": 1.5},))
    assert torch.equal(found.fetch(Local(), [[2, 0]])["g.params"], before[[2, 0]])
