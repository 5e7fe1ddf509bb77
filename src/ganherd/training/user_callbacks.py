"""Call the callbacks of users: report their errors in a sentence, and refuse undeclared changes of the members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ganherd.herd.state import State
from ganherd.training.callbacks import Callback
from ganherd.util.errors import UserError, with_type
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class UserCallback(Callback):
    """Wrap a callback of the user.

    If it fails, or changes members without declaring it, raise a `UserError` that names it.
    """

    def __init__(self, callback: Callback, log: Callable[[str], None]) -> None:
        self.callback, self._log, self.every = callback, log, callback.every

    @property
    def name(self) -> str:
        """The name of the callback's class."""
        return type(self.callback).__name__

    def implements(self, hook: str) -> bool:
        return self.callback.implements(hook)

    def call(self, hook: str, trainer: Trainer, *values: Any) -> None:
        """Call a hook of the callback, and raise a `UserError` if it fails or changes members without declaring it."""
        if not self.implements(hook):
            return
        before = _versions(trainer.herd.state)
        try:
            self.callback.call(hook, trainer, *values)
        except Exception as error:
            raise UserError(
                f"the callback {self.name} failed in {hook} at step {trainer.step:,} ({with_type(error)}): correct it, and resume "
                f"the run from its last checkpoint with `{trainer.folder.again}` or Run.resume."
            ) from error
        if not self.callback.changes_result and _versions(trainer.herd.state) != before:
            raise UserError(
                f"the callback {self.name} changed the members in {hook} at step {trainer.step:,}: set changes_result = True in "
                "its class if that is meant."
            )

    def close(self) -> None:
        try:
            self.callback.close()
        except Exception as error:
            self._log(f"note: the callback {self.name} failed in close ({with_type(error)}).")


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Raise `UserError` unless all of these are callbacks whose `on_…` methods are hooks and whose `every` is valid."""
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks is a {type(callbacks).__name__}: give a list of them.")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            what = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            hint = "give an instance of it" if isinstance(callback, type) else "derive its class from ganherd.Callback"
            raise UserError(f"{what} is not a callback: {hint}.")
        hooks = {name for name in dir(Callback) if name.startswith("on_")}
        for name in dir(callback):
            if name.startswith("on_") and name not in hooks:
                raise UserError(
                    f"{type(callback).__name__}.{name} is not a hook{did_you_mean(name, hooks, ' ({})')}: rename it, because no "
                    "other method may begin with on_."
                )
        if not isinstance(callback.every, int) or callback.every < 0:
            raise UserError(f"{type(callback).__name__}.every must be a number of steps, not {callback.every!r}.")
        callback.fingerprint()  # computed now and cached, because the training may change the callback


def _versions(state: State) -> list[tuple[int, int]]:
    """Return the identity and version counter of each tensor: they change when it is replaced or written."""
    return [(id(value), value._version) for value in state.values()]
