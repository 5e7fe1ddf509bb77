"""Cache results by a key that names their inputs: tensors as safetensors, with facts about them as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from ganherd.util import files
from ganherd.util.files import JsonObject
from ganherd.util.paths import cache_home


def cache_folder(kind: str) -> Path:
    """Return the folder for cached items of a kind: under $GANHERD_CACHE, or the user's cache."""
    return cache_home() / kind


def path_of(kind: str, key: str) -> Path:
    """Return the file that belongs to a key, which names everything that the content depends on."""
    return cache_folder(kind) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def read(path: Path, key: str) -> tuple[dict[str, Tensor], JsonObject] | None:
    """Return tensors and facts; None if they are missing, damaged, or have another key: compute them then.

    The tensors are the file's own pages, which all processes of a host share.
    """
    try:
        facts = json.loads(path.with_suffix(".json").read_text())
        if facts["key"] != key or facts["sha256"] != files.sha256_of(path):
            return None
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 - no mapping
    except Exception:  # a cache must never be the reason that a score fails
        return None


def write(path: Path, key: str, tensors: dict[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts; two processes may fill the cache at once."""
    raw = save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
    facts = {**facts, "key": key, "sha256": hashlib.sha256(raw).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.atomic_write(path, raw, sync=False)
        files.atomic_write(path.with_suffix(".json"), json.dumps(facts, indent=1).encode(), sync=False)
    except OSError:
        return  # no cache on a read-only or full disk: it is computed again next time
