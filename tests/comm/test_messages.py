"""Messages between ranks: whoever wants members gets them in the order of wanting, and what several want is packed once."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ganherd.comm import row_messages
from ganherd.comm.row_messages import Layout, routes

HOST = torch.device("cpu")
HOME = {member: (member % 3, member // 3) for member in range(7)}  # three ranks
WANTED = st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=3, max_size=3)


def of(rank: int) -> dict[str, torch.Tensor]:
    """The state of a rank: every number tells its member."""
    own = torch.tensor([float(member) for member, (home, _) in HOME.items() if home == rank])
    return {"g.params": own[:, None].repeat(1, 5), "set.lr": own.double(), "d.params": -own[:, None].repeat(1, 2)}


@given(WANTED)
def test_wanted_members_arrive_as_they_were_when_sent(wanted: list[list[int]]) -> None:
    states, every = [of(rank) for rank in range(3)], [routes(HOME, wanted, rank) for rank in range(3)]
    layout = Layout.of(states[0])
    sent = [layout.pack_all(state, way.send, HOST) for state, way in zip(states, every, strict=True)]
    own = [layout.copy_local(state, way) for state, way in zip(states, every, strict=True)]
    for value in itertools.chain.from_iterable(state.values() for state in states):
        value.fill_(torch.nan)
    for rank, way in enumerate(every):
        found = layout.assemble(own[rank], way, {peer: sent[peer][rank] for peer in way.receive})
        assert list(found) == list(states[rank])
        assert found["set.lr"].tolist() == wanted[rank]
        assert found["g.params"].tolist() == [[float(member)] * 5 for member in wanted[rank]]


def test_peers_that_want_the_same_members_share_one_message() -> None:
    """A cell with four neighbours, each on a rank of its own, takes the room of one message and not of four."""
    state = of(0)
    sent = Layout.of(state).pack_all(state, {1: [0, 1], 2: [0, 1], 3: [0]}, HOST)
    assert sent[1].data_ptr() == sent[2].data_ptr() != sent[3].data_ptr()


@pytest.mark.parametrize(("most_runs", "huge"), [(0, 2**22), (8, 1)])
def test_results_do_not_depend_on_how_rows_are_copied(
    most_runs: int, huge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through an index or run by run, in memory of torch or in huge pages."""
    monkeypatch.setattr(row_messages, "_MOST_RUNS", most_runs)
    monkeypatch.setattr(row_messages, "_HUGE", huge)
    wanted = [[6, 0, 3, 1, 1], [2, 5, 4], [0, 3, 6]]
    ways = [routes(HOME, wanted, rank) for rank in range(3)]
    layout = Layout.of(of(0))
    sent = [layout.pack_all(of(rank), ways[rank].send, HOST) for rank in range(3)]
    for rank, way in enumerate(ways):
        members = layout.assemble(
            layout.copy_local(of(rank), way), way, {peer: sent[peer][rank] for peer in way.receive}
        )
        assert members["set.lr"].tolist() == wanted[rank] and members["g.params"].is_contiguous()
        assert members["d.params"].tolist() == [[-float(member)] * 2 for member in wanted[rank]]
