"""Handle the errors that end a training: record the state in run.json, and explain how to continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ganherd.comm.communicator import RankLost
from ganherd.training.setup.disk import advice_on
from ganherd.util.errors import Interrupted, RunFailed, UserError
from ganherd.util.memory import is_out_of_memory, reason

if TYPE_CHECKING:
    from ganherd.training.session import Session


@contextmanager
def reported_end(session: Session) -> Iterator[None]:
    """Record in run.json why the block of this context failed, and raise an error that says how to continue the run.

    The block trains and finishes the run of `session`.
    """
    saved_before = session.resumed.saved if session.resumed else 0
    try:
        yield
    except Interrupted as error:
        raise _interrupted(session, f"{error} Nothing is lost; ", reason=str(error)) from None
    except RankLost as error:
        assert session.recovery is not None
        if session.recovery.continues(session):
            raise
        raise session.recovery.ended(error, "; the last checkpoint is whole") from error
    except KeyboardInterrupt:
        # only the first rank reports a Ctrl-C: it received the signal too, or notices that this rank is gone
        if not session.ranks.is_first:
            raise SystemExit(75) from None
        trained = session.trainer is not None and session.trainer.is_trained
        what = "after the last step, which is saved" if trained else "at once, without a checkpoint of this moment"
        raise _interrupted(session, f"stopped {what}; ", reason=f"stopped {what}.") from None
    except (RunFailed, UserError) as error:
        # A mistake in a function of the user's can be corrected, and the run resumed.
        _record_state(session, "failed" if isinstance(error, RunFailed) else "interrupted", str(error))
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        trainer = session.trainer
        at = f" at step {trainer.step:,}" if trainer else ""
        # without a new checkpoint a resumed run would fail at the same step, and a scheduler that restarts jobs after
        # exit code 75 would restart it forever
        is_further = trainer is not None and (trainer.state.saved or 0) > saved_before
        text = (
            f"memory ran out{at} ({reason(error)}); the last checkpoint is whole. A new run needs less memory with fewer "
            f"members, a smaller train.batch or a smaller engine.chunk. To continue this one, free memory or use more ranks; "
        )
        kind = Interrupted if is_further else RunFailed
        raise _interrupted(session, text, kind, reason=f"memory ran out{at} ({reason(error)}).") from error
    except OSError as error:  # the disk is full or gone while records, pictures or the mixture are written
        what = f"{error.strerror or error} while writing to {session.folder.path}"
        raise _interrupted(
            session, f"{what}; the last checkpoint is whole. {advice_on(error)}", reason=f"{what}."
        ) from error


def _interrupted(session: Session, text: str, kind: type[Exception] = Interrupted, *, reason: str) -> Exception:
    """Record that the run is interrupted and why, and return an error that ends with the command that continues it."""
    _record_state(session, "interrupted", reason)
    return kind(f"{text}resume it with: {session.resume_command}")


def _record_state(session: Session, state: str, reason: str) -> None:
    """Write the state and its reason to run.json, if the disk allows it."""
    # If it does not, run.json still says `running`. No process holds the lock of the run then, so it is reported as
    # `killed`.
    with suppress(OSError):
        session.folder.write_info(state=state, reason=reason)
