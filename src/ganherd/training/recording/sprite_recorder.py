"""Save sprites while a run trains: a few small samples of every member on fixed noise, at evenly spaced steps.

The number of saved steps is limited: as the run gets longer, earlier steps are deleted so that the rest is evenly
spaced again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ganherd.data.units import to_data
from ganherd.runs.series import sprite_files
from ganherd.training.callbacks import Callback
from ganherd.training.recording.sprite_format import SpriteFormat
from ganherd.util import files

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer

_LEAST = 4  # the least number of samples to generate at once, because nets of users may not run with fewer


class SpriteRecorder(Callback):
    """Save a sheet of sprites of all members when one is due, and after the last step. Only the first rank writes.

    The noise has separate random keys and is the same at every step, so saving sprites does not change the training.
    """

    def __init__(self, trainer: Trainer) -> None:
        settings, prepared = trainer.schedule.settings, trainer.prepared
        self._every, self._most = settings.record_every, settings.sprites
        self._folder, self._prepared = trainer.folder.sprites, prepared
        self._format = SpriteFormat(prepared)

    def on_start(self, trainer: Trainer) -> None:
        step, folder = trainer.step, self._folder
        if trainer.ranks.is_first:
            files.sweep(folder, seconds=-1.0)  # no other process writes here
            # delete sheets of steps that a resumed run repeats; if the recipe now wants no sprites, delete all sheets
            earlier = (saved for saved in sprite_files.saved_sheets(folder) if saved <= step)
            sprite_files.keep_only(folder, self._thinned(earlier, step) if self._most else ())
            if self._most:
                sprite_files.write_index(folder, self._format.index())
        if self._most and step == 0:
            self._save(trainer)

    def on_stop(self, trainer: Trainer) -> None:
        if self._is_due(trainer.step):
            self._save(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if self._most and not self._is_due(trainer.step):
            self._save(trainer)

    def _is_due(self, step: int) -> bool:
        """Return whether a sheet is saved at this step."""
        return self._most > 0 and sprite_files.is_saved_at(step, self._every, self._most)

    def _thinned(self, steps: Iterable[int], step: int) -> list[int]:
        """Return those of the saved `steps` that are still to be kept when the run is at `step`."""
        every = sprite_files.interval(step, self._every, self._most)
        return [saved for saved in steps if saved % every == 0]

    def _save(self, trainer: Trainer) -> None:
        """Save the sheet of the current step, and delete earlier ones if they are too many.

        Called by all ranks together.
        """
        step, folder = trainer.step, self._folder
        form = self._format
        own = trainer.preview.generate(max(form.samples, _LEAST))[:, : form.samples]
        x = form.shrink(to_data(own.float(), self._prepared.dataset))  # [n, samples, …]
        everyone = range(self._prepared.size)
        x = trainer.ranks.fetch_to_first({"sprites": x}, everyone)["sprites"]
        if not trainer.ranks.is_first:
            return
        files.atomic_write(sprite_files.sheet_path(folder, step, form.kind), form.encode(x), sync=False)
        sprite_files.keep_only(folder, [*self._thinned(sprite_files.saved_sheets(folder), step), step])
