"""A run at one step, as a checkpoint or a copy in memory holds it: all that it goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ganherd.herd.state import State
from ganherd.runs import checkpoint
from ganherd.training.setup.disk import advice_on
from ganherd.util.errors import Interrupted

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


def save(trainer: Trainer) -> None:
    """A checkpoint; the newest, the best and the one to roll back to are kept. It may still be being written: see `settle`."""
    step, ranks, folder = trainer.step, trainer.ranks, trainer.folder.checkpoints
    score, _ = trainer.preview.look(step)
    if step == 0 or trainer.due(trainer.settings.checkpoint_every):
        trainer.last_good = step
        if score == score and (trainer.best is None or score < trainer.best[0]):
            trainer.best = (score, step)
        trainer.event("checkpoint", score=score, best=trainer.best[1] if trainer.best else None)
    settle(trainer)
    known = {**facts(trainer), "score": score}
    known["bytes"] = {name: lines.settle() for name, lines in trainer.lines.items()}
    kept = [trainer.last_good, trainer.best[1] if trainer.best else None]
    held = state(trainer) if trainer.behind is None else trainer.behind.copy(state(trainer))

    def write() -> None:
        checkpoint.save(folder, step, held, trainer.blueprints, known, ranks)
        if ranks.is_first:
            checkpoint.prune(folder, trainer.settings.keep, kept)

    try:
        if trainer.behind is None:
            write()
        else:
            trainer.behind.do(write)
    except OSError as error:
        _give_up(trainer, step, error)
    trainer.saved = step


def settle(trainer: Trainer) -> None:
    """Until the last checkpoint is on the disk, where it is written while the herd trains on."""
    if trainer.behind is not None:
        try:
            trainer.behind.wait()
        except OSError as error:
            _give_up(trainer, trainer.saved, error)


def _give_up(trainer: Trainer, step: int | None, error: OSError) -> None:
    before = "the one before is whole" if checkpoint.steps(trainer.folder.checkpoints) else "it is the first one"
    why = (
        f"the checkpoint of step {step} could not be written ({error.strerror}); {before}. {advice_on(error)}".rstrip()
    )
    trainer.strategy.on_stop()
    trainer.ranks.finish(Interrupted(why))


def state(trainer: Trainer) -> State:
    """Everything of this rank's members [n, …] that a run goes on with."""
    return {**trainer.herd.state, **remembered(trainer)}


def remembered(trainer: Trainer) -> State:
    """The same, but for the herd's own rows: what is known of its members, which changes only where the loop stops."""
    of_all = (*trainer.alarms.state.items(), *trainer.rest.state.items())
    known = {name: value[trainer.own] for name, value in of_all}
    return {**trainer.watch.state, **known, **trainer.strategy.state}


def facts(trainer: Trainer) -> dict[str, Any]:
    """What else it goes on with, of the whole herd; all ranks ask for it together."""
    return {"sums": trainer.tally.everyones().tolist(), **known(trainer)}


def known(trainer: Trainer) -> dict[str, Any]:
    """What of it every rank knows."""
    return {
        "recorded": trainer.tally.since,
        "last_good": trainer.last_good,
        "best": trainer.best,
        "repairs": list(trainer.repairs),
        "seconds": trainer.seconds,
        "over": trainer.over,
    }
