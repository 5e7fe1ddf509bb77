"""Exchange host names between ranks, check that all run the same software on the same recipe, and describe a machine."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterable

from ganherd.comm.communicator import Communicator
from ganherd.util import host
from ganherd.util.errors import UserError, few

_NAMED = 3  # ranks that a message lists


def introduce(comm: Communicator) -> None:
    """Set `comm.hosts` on every rank, and check that all ranks run the same software.

    Raises:
        UserError: Software versions differ between ranks; raised on all of them.
    """
    introductions = comm.all_gather_bytes(json.dumps([platform.node(), versions()]).encode())
    ranks = [json.loads(each) for each in introductions]
    comm.hosts = tuple(name for name, _ in ranks)
    first = ranks[0][1]
    for package in first:
        differing = [rank for rank, (_, installed) in enumerate(ranks) if installed.get(package) != first[package]]
        if differing:
            other = ranks[differing[0]][1].get(package)
            raise UserError(
                f"the ranks do not run the same software: {package} is {first[package]} on {_named(comm, [0])}, and "
                f"{other} on {_named(comm, differing)}; use one environment on all hosts."
            )


def agree(comm: Communicator, what: str, text: str) -> None:
    """Check that all ranks were started with the same text, e.g. a recipe with its overrides.

    Args:
        comm: All ranks of the job.
        what: The name of the text in the message.
        text: The text of this rank.

    Raises:
        UserError: The text differs between ranks; raised on all of them.
    """
    digests = comm.all_gather_bytes(hashlib.sha256(text.encode()).digest())
    differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if not differing:
        return
    difference = _difference(comm.broadcast(text.encode()).decode(), text)
    shown = json.loads(comm.all_gather_bytes(json.dumps(difference).encode())[differing[0]])
    raise UserError(
        f"{_named(comm, differing)} was given another {what} than rank 0 ({shown}): start all ranks with the same one."
    )


def versions() -> dict[str, str]:
    """Return the versions that must match for all ranks to compute the same numbers."""
    import numpy
    import torch

    from ganherd.util.version import __version__

    return {
        "ganherd": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def machine() -> dict[str, int | str]:
    """Return facts about this machine: cores that this process may use, bytes of memory, names of GPUs, and versions.

    A fact that is not known is 0 or empty.

    >>> sorted(machine())
    ['cores', 'ganherd', 'gpus', 'memory', 'torch']
    """
    import torch

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    installed = versions()
    return {
        "ganherd": installed["ganherd"],
        "torch": installed["torch"],
        "cores": host.cores(),
        "memory": host.memory(),
        "gpus": count_names([torch.cuda.get_device_name(gpu) for gpu in gpus]),
    }


def count_names(names: list[str]) -> str:
    """Return each different name once, with the number of times that it occurs.

    >>> count_names(["H200", "H200", "T4"]), count_names([])
    ('2 × H200, T4', '')
    """
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in Counter(names).items())


def _difference(expected: str, actual: str) -> str:
    """Return a phrase about the first line in which two texts differ.

    >>> _difference("train:\\n  batch: 64", "train:\\n  batch: 32")
    "'batch: 32' in place of 'batch: 64'"
    """
    first, second = expected.splitlines(), actual.splitlines()
    longest = max(len(first), len(second))
    pairs = zip(*(lines + [""] * (longest - len(lines)) for lines in (first, second)), strict=True)
    before, after = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return f"{after!r} in place of {before!r}"


def _named(comm: Communicator, ranks: Iterable[int]) -> str:
    """Return a phrase that names the first few of these ranks with their hosts."""
    return few([f"rank {rank}" + (f" on {comm.hosts[rank]}" if comm.hosts else "") for rank in ranks], _NAMED)
