"""Choose the device and the arithmetic precision of a run."""

from __future__ import annotations

import torch

from ganherd.herd import rng
from ganherd.herd.engine.device_memory import avoid_fragments
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError
from ganherd.util.registry import ENGINES

DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}


def device_of(recipe: Recipe, local_rank: int | None = None) -> torch.device:
    """Return the device that a recipe asks for, and prepare PyTorch's memory and Triton's cache for a GPU.

    Args:
        local_rank: The number of this process among those of a distributed run on this host; they are assigned its GPUs
            in turn. None: the run has only this process.

    Raises:
        UserError: If the device does not exist here.
    """
    name = recipe.engine.device
    engine = None if recipe.engine.name == "auto" else ENGINES[recipe.engine.name]
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and not (engine and engine.one_by_one) else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "engine.device is cuda, but PyTorch sees no GPU here; `ganherd doctor` lists what this machine has."
        )
    if engine and engine.needs_gpu and not name.startswith("cuda"):
        raise UserError(
            f"engine.name is {recipe.engine.name}, which needs a GPU, and PyTorch sees none here; take fused or auto."
        )
    if name == "cuda" and local_rank is not None:
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
        torch.cuda.set_device(name)  # kernels are compiled and graphs captured for the current device
    if name.startswith("cuda"):
        avoid_fragments()
    if name.startswith("cuda") and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels import compile_ahead

        compile_ahead.use_cache()
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError(f"engine.device {name!r} is not a device; write auto, cpu, cuda or cuda:1.") from error


def missing_gpu(recipe: Recipe) -> list[str]:
    """Return a list with a warning if the recipe is meant for a GPU and there is none; otherwise an empty list."""
    engine = recipe.engine
    if not engine.without_gpu or engine.device != "auto" or torch.cuda.is_available():
        return []
    return [f"this recipe is meant for a GPU, and PyTorch sees none here: {engine.without_gpu}"]


def set_precision(recipe: Recipe) -> None:
    """Allow or forbid TF32 for float32 products on a GPU, as the recipe's precision requires."""
    fast = recipe.train.precision in ("tf32", "bf16")
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast
