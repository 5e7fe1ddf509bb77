"""Record the tile shapes of a run's GPU kernels (the blocks in which they compute) in run.json.

A resumed run uses the same shapes, so that it adds numbers in the same order and gets the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.runs.folder import RunFolder
from ganherd.training.callbacks import Callback

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class TileRecord(Callback):
    """Use the tile shapes that run.json records, and add to it the shapes that any rank uses for the first time."""

    def __init__(self, folder: RunFolder) -> None:
        from ganherd.herd.lowering.kernels import tiles  # needs Triton

        self._folder, self._recorded = folder, dict(folder.info.tiles or {})
        self._used = tiles.used
        tiles.start_run(self._recorded)

    def on_start(self, trainer: Trainer) -> None:
        """Record the shapes before the first step.

        They are known by then, because the engine has compiled its kernels.
        """
        self._record(trainer)

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """Record shapes that are new, for example because fewer members are trained."""
        self._record(trainer)

    def _record(self, trainer: Trainer) -> None:
        """Add tile shapes that any rank has used since the last call to run.json. Called by all ranks together."""
        shapes = dict(self._recorded)
        for used in trainer.ranks.all_gather_json(self._used()):
            shapes |= used
        if shapes != self._recorded and trainer.ranks.is_first:
            self._folder.write_info(tiles=shapes)
        self._recorded = shapes
