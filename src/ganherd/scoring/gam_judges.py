"""The judges of GAM-II: the discriminators of a run's last whole checkpoint.

Judges are in evaluation mode, except for batch norm, which uses the statistics of its input as in training. An input therefore
holds one set only: real rows, or the samples of one generator. The running statistics cannot be used: they mix real and
generated images of older weights, and after a swap without buffers they belong to another net. With them, trained judges call
all real images fake, or most fakes of their own generator real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.data import dataset
from ganherd.data.units import Units, to_model
from ganherd.features.extract import best_device
from ganherd.herd.evaluation import member_module
from ganherd.herd.lowering.network import logits_of
from ganherd.herd.state import Blueprint, buffers_of, takes_label
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError, first_line

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

_BLOCK = 1000  # rows in one call of a judge; with batch norm, results hardly differ between 50 and 1,000


def norms_of(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the batch norms of a net."""
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@dataclass(frozen=True)
class Judges:
    """The discriminators of one run."""

    module: nn.Module  # in training mode
    params: dict[str, Tensor]  # [N, …]
    buffers: dict[str, Tensor]  # [N, …]
    losses: list[str]  # [N] what each was trained with
    offset: Units
    scale: Units
    step: int

    @property
    def normed(self) -> bool:
        """Return whether the judges have batch norm."""
        return bool(norms_of(self.module))

    def logits(self, member: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the logits of a judge for rows of one set, in the units of the data, float64 [n]."""
        if self.normed and len(x) < 2:
            raise UserError("judges with batch norm look at two samples at least: give a larger -n.")
        like, judge = next(iter(self.params.values())), self._judge(member)
        out = []
        with torch.no_grad():
            # Of equal size, so that no block is tiny
            for rows in np.array_split(np.arange(len(x)), -(-len(x) // _BLOCK)):
                part = torch.from_numpy(np.ascontiguousarray(x[rows])).to(like)
                given: tuple[Tensor, ...] = (to_model(part, self),)
                if takes_label(self.module):
                    given += (torch.from_numpy(y[rows]).to(like.device),)
                out.append(logits_of(judge(*given)).reshape(-1).double().cpu())
        return np.asarray(torch.cat(out).numpy())

    def _judge(self, member: int) -> nn.Module:
        """Return a member's discriminator in evaluation mode, all but batch norm."""
        judge = member_module(
            self.module, {name: value[member] for name, value in (self.params | self.buffers).items()}
        )
        for norm in norms_of(judge):
            norm.train()
            norm.track_running_stats = False  # use the statistics of the batch, and store none
        return judge


def load_judges(run: str | Path, shape: tuple[int, ...], classes: int, trust_code: bool = False) -> Judges:
    """Return the discriminators of a run's newest whole checkpoint."""
    from ganherd.training.setup.assemble import makers

    folder = RunFolder.open(run)
    recipe = folder.recipe
    try:
        d = makers(recipe, shape, classes, trust_code)[1]()
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise UserError(f"the discriminator that {folder.path} names cannot be built: {first_line(error)}.") from error
    net = Blueprint(d)
    newest, damaged = checkpoint.newest(folder.checkpoints, {"d": net})  # without the generators
    del damaged  # an older checkpoint is used then, and its step is reported
    size = len(newest.state["d.params"])
    offset: Units = 127.5
    scale: Units = 127.5
    if len(shape) != 3:  # points and rows are scaled by the training data
        data = dataset.load(recipe.data)
        offset, scale = data.offset, data.scale
    device = best_device()
    params = net.views(newest.state["d.params"])
    return Judges(
        d,
        {name: value.to(device) for name, value in params.items()},
        {name: value.to(device) for name, value in buffers_of(newest.state, "d").items()},
        _losses(recipe, size),
        offset,
        scale,
        newest.step,
    )


def _losses(recipe: Recipe, size: int) -> list[str]:
    """Return the loss that each of N discriminators was trained with."""
    chosen = recipe.loss.name
    each = list(chosen) if isinstance(chosen, list) else [chosen]
    return [each[i % len(each)] for i in range(size)]
