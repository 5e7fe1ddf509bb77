"""Remember how long a recipe takes on this machine from the command to its first step, the first and the last time.

The first time (a cold start) engines are measured and kernels compiled; both are cached for later (warm) starts. The
times are only used for estimates.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import torch

from ganherd.recipe.schema import Recipe
from ganherd.util import files
from ganherd.util.paths import cache_home


def recorded_starts(recipe: Recipe) -> list[float]:
    """Return the seconds of the first and of the last start of a recipe; fewer values if it was started less often."""
    return _read().get(_identity(recipe), [])


def record_start(recipe: Recipe, seconds: float) -> None:
    """Record how long a start took. The first time is never replaced; of the later ones only the last is kept."""
    known = _read()
    identity = _identity(recipe)
    files.write_cache(_path(), {**known, identity: [*known.get(identity, [])[:1], round(seconds, 2)]})


def _path() -> Path:
    """Return the cache file of start times."""
    return cache_home() / "start_times.json"


def _read() -> dict[str, list[float]]:
    """Return the cached seconds of the first and last start by recipe hash; empty if the file is missing or damaged."""
    try:
        known = dict(json.loads(_path().read_text()))
        return {str(name): [float(one) for one in each][:2] for name, each in known.items()}
    except (OSError, ValueError, TypeError):
        return {}


def _identity(recipe: Recipe) -> str:
    """Return a hash of the machine and of all settings of the recipe that the time of a start depends on."""
    settings = recipe.model_dump(
        mode="json", exclude={"run": True, "code": True, "train": {"budget"}, "herd": {"start_from", "first"}}
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    facts = [platform.node(), gpu, torch.__version__, settings]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
