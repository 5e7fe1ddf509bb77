"""What the machine of a rank has, for those who look at a run from elsewhere."""

from __future__ import annotations

from collections import Counter

from ganherd.util import host


def machine() -> dict[str, int | str]:
    """Cores that this process may use, bytes of memory, GPUs in words, versions; what cannot be found out is 0, or empty.

    >>> sorted(machine())
    ['cores', 'ganherd', 'gpus', 'memory', 'torch']
    """
    import torch

    from ganherd.comm.handshake import versions

    found = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    own = versions()
    return {
        "ganherd": own["ganherd"],
        "torch": own["torch"],
        "cores": host.cores(),
        "memory": host.memory(),
        "gpus": in_words([torch.cuda.get_device_name(gpu) for gpu in found]),
    }


def in_words(names: list[str]) -> str:
    """
    >>> in_words(["H200", "H200", "T4"]), in_words([])
    ('2 × H200, T4', '')
    """
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in Counter(names).items())
