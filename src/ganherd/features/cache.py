"""Cache computed tensors on disk by a key that names their inputs: tensors as safetensors, facts about them as JSON."""

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
    """Return the folder for cached items of a kind, e.g. "features": in $GANHERD_CACHE, or in ~/.cache/ganherd."""
    return cache_home() / kind


def path_of(kind: str, key: str) -> Path:
    """Return the path of the cached tensors of a key, a text that names everything the content depends on."""
    return cache_folder(kind) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def read(path: Path, key: str) -> tuple[dict[str, Tensor], JsonObject] | None:
    """Return the cached tensors by their names, and the facts about them; None if they must be computed (again).

    That is so if the files are missing or damaged, or belong to another key. The tensors are memory-mapped, so that all
    processes of a host share their memory.
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
    """Write tensors and facts about them to the cache; several processes may do so at once. A full disk is ignored."""
    raw = save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
    facts = {**facts, "key": key, "sha256": hashlib.sha256(raw).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.atomic_write(path, raw, sync=False)
        files.atomic_write(path.with_suffix(".json"), json.dumps(facts, indent=1).encode(), sync=False)
    except OSError:
        return  # the disk is read-only or full: the content is computed again next time
