"""The ranks introduce themselves: where each runs, and whether all of them run the same ganherd on the same recipe."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable

from ganherd.comm.communicator import Communicator
from ganherd.util.errors import UserError, few

_NAMED = 3  # ranks in a sentence


def introduce(comm: Communicator) -> None:
    """Every rank learns the hosts of all; raises `UserError`, on all of them, where versions differ."""
    everyone = [json.loads(each) for each in comm.collect(json.dumps([platform.node(), versions()]).encode())]
    comm.hosts = tuple(host for host, _ in everyone)
    first = everyone[0][1]
    for package in first:
        other = [rank for rank, (_, own) in enumerate(everyone) if own.get(package) != first[package]]
        if other:
            theirs = everyone[other[0]][1].get(package)
            raise UserError(
                f"the ranks do not run the same software: {package} is {first[package]} on {_named(comm, [0])}, and "
                f"{theirs} on {_named(comm, other)}; use one environment on all hosts."
            )


def agree(comm: Communicator, what: str, text: str) -> None:
    """All ranks were given the same text, as a recipe with its overrides; else `UserError`, on all of them."""
    digests = comm.collect(hashlib.sha256(text.encode()).digest())
    other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if not other:
        return
    difference = _difference(comm.broadcast(text.encode()).decode(), text)
    told = json.loads(comm.collect(json.dumps(difference).encode())[other[0]])
    raise UserError(
        f"{_named(comm, other)} was given another {what} than rank 0 ({told}): start all ranks with the same one."
    )


def versions() -> dict[str, str]:
    """What must be the same for all ranks to compute the same numbers."""
    import numpy
    import torch

    from ganherd.util.version import __version__

    return {
        "ganherd": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def _difference(theirs: str, own: str) -> str:
    """The first line that differs.

    >>> _difference("train:\\n  batch: 64", "train:\\n  batch: 32")
    "'batch: 32' in place of 'batch: 64'"
    """
    first, second = theirs.splitlines(), own.splitlines()
    longest = max(len(first), len(second))
    pairs = zip(*(lines + [""] * (longest - len(lines)) for lines in (first, second)), strict=True)
    before, after = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return f"{after!r} in place of {before!r}"


def _named(comm: Communicator, ranks: Iterable[int]) -> str:
    """Ranks with their hosts, the first few of them."""
    return few([f"rank {rank}" + (f" on {comm.hosts[rank]}" if comm.hosts else "") for rank in ranks], _NAMED)
