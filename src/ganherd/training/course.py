"""A run that is ready, from its next step to its report: what is said on the way, and what is left behind however it ends."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

from ganherd.comm.communicator import RankLost
from ganherd.herd.engine.engines import Plan
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.conclude import Run, conclude, conclude_part
from ganherd.training.loop import Trainer
from ganherd.training.ranks import spares
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.ready import beating
from ganherd.training.recording import trackers
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.training.setup.disk import advice_on
from ganherd.training.setup.identity import versions
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted, RunFailed, UserError
from ganherd.util.memory import is_out_of_memory, reason
from ganherd.util.progress import Progress, duration


def train_on(
    rescue: Recovery,
    assembly: PreparedHerd,
    plan: Plan,
    folder: RunFolder,
    budget: Budget,
    quiet: bool,
    meetings: dict[str, int],
    resumed: checkpoint.Checkpoint | None,
    paced: dict[str, Any] | None = None,
    source: str = "start",
) -> Run:
    """`resumed`: where it goes on; none: with its first step. `source`: where the members' state is from."""
    ranks = assembly.ranks
    names = [assembly.name_of(member) for member in range(assembly.size)]
    progress = Progress(names, quiet or not ranks.is_first)
    again = f"resume it with: {rescue.again() if rescue.path else folder.again}"
    trained, stop, trainer, saved_before = False, StopRequest(), None, 0
    with ExitStack() as closing:
        closing.callback(progress.close)
        try:
            tracking = trackers.Trackers(folder, assembly.recipe, ranks.is_first)
            closing.callback(tracking.close)
            strategy = make_strategy(assembly, meetings)
            trainer = Trainer(assembly, plan, folder, budget, progress, resumed, tracking.record, paced, strategy)
            closing.callback(trainer.close)
            trainer.rescue = rescue
            saved_before = trainer.saved or 0
            over = "" if ranks.is_single_process else f" on {len(ranks.placement.ranks)} ranks"
            if not ranks.is_single_process:
                trainer.heart = closing.enter_context(beating(ranks, folder.path, trainer))
            progress.say(
                f"{folder.path} has made all of its {budget.steps:,} steps: a larger --budget goes on with it"
                if trainer.step >= budget.steps
                else f"{folder.path}: {assembly.size} members{over}, step {trainer.step:,} to {budget.steps:,}, "
                f"{plan.describe(assembly.herd.size)}"
            )
            if not ranks.job.detects_loss:  # the launcher would end all at once
                progress.say(f"should a rank be killed, the job ends; go on with: {rescue.again()}")
            rescue.tell(trainer, source)
            trainer.event("resume" if resumed else "start", engine=vars(plan), versions=versions())
            progress.start(budget.steps, budget.deadline)
            stop.name = rescue.asked
            with stop, spares.listening(ranks, folder.path, stop):
                trainer.train(stop)
                trained = True
                progress.close()
                is_part = "part" in folder.info
                progress.say(f"trained in {duration(trainer.seconds)}{'.' if is_part else '; making the mixture…'}")
                stop.at_once()
                done = conclude_part(trainer) if is_part else conclude(trainer, progress)
                rescue.done = done if ranks.is_first else None
                ranks.finish()
                return done
        except Interrupted as error:
            _leave(folder, "interrupted")
            raise Interrupted(f"{error} Nothing is lost; {again}") from None
        except RankLost as error:
            if ranks.job.survives_loss:  # those that are left meet again in `Recovery.through`
                rescue.trainer, rescue.signals.name = trainer, rescue.asked or stop.name
                raise
            raise rescue.ended(error, "; the last checkpoint is whole") from error
        except KeyboardInterrupt:
            if not ranks.is_first:  # which was asked as well, or misses this one: it tells
                raise SystemExit(75) from None
            _leave(folder, "interrupted")
            what = "after the last step, which is saved" if trained else "at once, without a checkpoint of this moment"
            raise Interrupted(f"stopped {what}; {again}") from None
        except RunFailed:
            _leave(folder, "failed")
            raise
        except UserError:  # as of a function of the user's own: mended, the run goes on
            _leave(folder, "interrupted")
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            _leave(folder, "interrupted")
            at = f" at step {trainer.step:,}" if trainer else ""
            # without a new checkpoint the same would happen again, and a scheduler that restarts on 75 would never end
            is_further = trainer is not None and (trainer.saved or 0) > saved_before
            raise (Interrupted if is_further else RunFailed)(
                f"memory ran out{at} ({reason(error)}); the last checkpoint is whole. A new run needs less memory with fewer "
                f"members, a smaller train.batch or a smaller engine.chunk. To continue this one, free memory or use more "
                f"ranks; {again}"
            ) from error
        except OSError as error:  # a disk that is full or gone while records, pictures or the mixture are written
            _leave(folder, "interrupted")
            raise Interrupted(
                f"{error.strerror or error} while writing to {folder.path}; the last checkpoint is whole. "
                f"{advice_on(error)}{again}"
            ) from error


def _leave(folder: RunFolder, state: str) -> None:
    # on a full disk it stays `running`; without a process that holds the lock, that is `killed`
    with suppress(OSError):
        folder.write_info(state=state)
