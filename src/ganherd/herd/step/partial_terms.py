"""Terms of a loss that only some members have. Forward passes for them must not change the buffers of the other members.

Buffers are the running statistics of batch norm and the vectors of spectral norm, which change with each pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ganherd.herd.state import State
from ganherd.herd.step.opponents import choose_members


def having(state: State, setting: str) -> Tensor | None:
    """Return which members have a term, by the weight that is its setting, bool [N]; None if all have the same weight."""
    own = state.get(f"set.{setting}")
    return None if own is None else own > 0


@contextmanager
def only_for(members: Tensor | None, buffers: State) -> Iterator[None]:
    """Within the context, buffers change for these members only.

    Args:
        members: bool [N]; None: all members.
        buffers: The buffers of all members by name, tensors [N, …].
    """
    before = {} if members is None else {name: value.clone() for name, value in buffers.items()}
    yield
    if members is not None:
        for name, value in choose_members(members, buffers, before).items():
            buffers[name].data.copy_(value)  # hidden from autograd, which may have saved a constant buffer
