"""A run at one step, as a checkpoint or a copy in memory holds it: all that it goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ganherd.errors import Interrupted
from ganherd.herd.state import State
from ganherd.run import checkpoint

if TYPE_CHECKING:
    from ganherd.run.loop import Trainer


def save(trainer: Trainer) -> None:
    """A checkpoint; the newest, the best and the one to roll back to are kept."""
    step, ranks, folder = trainer.step, trainer.ranks, trainer.folder.checkpoints
    score, _ = trainer.preview.look()
    if step == 0 or trainer.due(trainer.settings.checkpoint_every):
        trainer.last_good = step
        if score == score and (trainer.best is None or score < trainer.best[0]):
            trainer.best = (score, step)
        trainer.event("checkpoint", score=score, best=trainer.best[1] if trainer.best else None)
    known = {**facts(trainer), "score": score}
    known["bytes"] = {name: lines.settle() for name, lines in trainer.lines.items()}
    try:
        checkpoint.save(folder, step, state(trainer), trainer.blueprints, known, ranks)
    except OSError as error:
        before = "the one before is whole" if trainer.saved is not None else "it is the first one"
        why = f"the checkpoint of step {step} could not be written ({error.strerror}); {before}."
        trainer.strategy.leave()
        ranks.end(Interrupted(why))
    trainer.saved = step
    if ranks.is_first:
        kept = [trainer.last_good, trainer.best[1] if trainer.best else None]
        checkpoint.prune(folder, trainer.settings.keep, kept)


def state(trainer: Trainer) -> State:
    """Everything of this rank's members [n, …] that a run goes on with."""
    of_all = (*trainer.alarms.state.items(), *trainer.rest.state.items())
    known = {name: value[trainer.own] for name, value in of_all}
    return {**trainer.herd.state, **trainer.watch.state, **known, **trainer.strategy.state}


def facts(trainer: Trainer) -> dict[str, Any]:
    """What else it goes on with, of the whole herd."""
    return {
        **trainer.tally.facts(),
        "last_good": trainer.last_good,
        "best": trainer.best,
        "repairs": trainer.repairs,
        "seconds": trainer.seconds,
        "over": trainer.over,
    }
