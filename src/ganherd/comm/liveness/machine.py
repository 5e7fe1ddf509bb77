"""Describe the machine of a rank, for `ganherd status` on another machine."""

from __future__ import annotations

from collections import Counter

from ganherd.util import host


def machine() -> dict[str, int | str]:
    """Return the cores that this process may use, bytes of memory, names of GPUs and versions; 0 or empty if unknown.

    >>> sorted(machine())
    ['cores', 'ganherd', 'gpus', 'memory', 'torch']
    """
    import torch

    from ganherd.comm.handshake import versions

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
    """Return names with their counts.

    >>> count_names(["H200", "H200", "T4"]), count_names([])
    ('2 × H200, T4', '')
    """
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in Counter(names).items())
