"""TensorBoard and Weights & Biases, for those who live there; both are extras and see what metrics.jsonl sees."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ganherd.errors import UserError
from ganherd.recipe import Recipe
from ganherd.run.folder import RunFolder


def check(recipe: Recipe) -> None:
    """Says what is missing, before anything is trained or written."""
    if recipe.run.tensorboard and not find_spec("tensorboard"):
        raise UserError("run.tensorboard needs TensorBoard: pip install 'ganherd[tensorboard]', or set it to false.")
    if recipe.run.wandb != "off" and not find_spec("wandb"):
        raise UserError("run.wandb needs Weights & Biases: pip install 'ganherd[wandb]', or set it to off.")


class Trackers:
    """Hands every record on to the trackers that the recipe asks for."""

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        self._write: list[Callable[[int, dict[str, float]], None]] = []
        self._close: list[Callable[[], None]] = []
        if recipe.run.tensorboard:
            self._tensorboard(folder)
        if recipe.run.wandb != "off":
            self._wandb(folder, recipe)

    def record(self, line: dict[str, Any]) -> None:
        if not self._write:
            return
        values = {
            f"{key}/{m}": v for key in ("loss_g", "loss_d", "real", "fake") for m, v in enumerate(line.get(key) or [])
        }
        values["rate"] = line["rate"]
        for write in self._write:
            write(line["step"], values)

    def close(self) -> None:
        for close in self._close:
            close()

    def _tensorboard(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder.path / "tensorboard"))  # type: ignore[no-untyped-call]

        def write(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

        self._write.append(write)
        self._close.append(writer.close)

    def _wandb(self, folder: RunFolder, recipe: Recipe) -> None:
        import wandb

        run = wandb.init(
            project="ganherd",
            name=folder.path.name,
            dir=str(folder.path),
            mode="online" if recipe.run.wandb == "online" else "offline",
            config=recipe.model_dump(),
        )
        self._write.append(lambda step, values: run.log(values, step=step))
        self._close.append(run.finish)
