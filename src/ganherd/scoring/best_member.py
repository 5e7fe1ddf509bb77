"""Choose the best generator of a run and save it as a mixture: the last line of GAP's Algorithm 1, by GAM-II or another score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ganherd.scoring import ensembles
from ganherd.scoring.ensembles import EnsembleResult
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.meter import Progress

FOLDER = "mixture-best"
CONTEST = "gam2"


@dataclass(frozen=True)
class BestGenerator:
    """The best generator of a run by GAM-II, and the folder of its mixture."""

    folder: Path
    member: int
    replica: int
    value: float | None
    table: str  # of the contest

    def facts(self) -> JsonObject:
        """Return what `--json` prints."""
        own = {"mixture": str(self.folder), "by": CONTEST}
        return {**own, "member": self.member, "replica": self.replica, "value": self.value}

    def __str__(self) -> str:
        return f"{self.table}\n\nbest by GAM-II: member {self.member}\n\n{self.folder}"


def choose_best(
    run: str | Path,
    by: str = "fid",
    samples: int = 1000,
    seed: int = 0,
    *,
    judges: Sequence[str | Path] = (),
    network: str | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> BestGenerator | EnsembleResult:
    """Choose the best generator of a run, and save it in the run's folder.

    Args:
        run: The run folder.
        by: gam2, or a score of `recipe.mixture_scores`. Such a score is measured again on fresh samples, next to the mixture's.
        samples: The number of samples of each generator.
        seed: The seed of the samples.
        judges: Other runs whose discriminators judge, for gam2. Without any, those of the run itself judge the generators
            that they did not meet.
        network: The network of the features; None: that of the run's recorded scores, or the best one here.
        trust_code: Whether the user's nets and functions may be loaded.
        progress: Receives lines about the progress.
    """
    if by != CONTEST and judges:
        raise UserError(f"--judges is for --by {CONTEST}: other scores need no judges.")
    if by != CONTEST:
        return ensembles.find(
            run,
            1,
            by,
            samples=samples,
            seed=seed,
            network=network,
            trust_code=trust_code,
            progress=progress,
            target=FOLDER,
        )
    from ganherd.mixture import mixture
    from ganherd.scoring.several_runs import score_runs

    if network is not None:
        raise UserError("GAM-II is judged by the run's discriminators: leave --network out.")
    if (mixture.load(run, trust_code).label_of >= 0).any():
        raise UserError(ensembles.ONE_CLASS_EACH)
    scored = score_runs([run], [CONTEST], samples, seed, trust_code, progress, judges)
    entry = scored.runs[str(run)][CONTEST]
    member, replica = entry.get("best_member"), entry.get("best_replica")
    if member is None or replica is None:
        raise UserError("GAM-II finds no best generator: all are alike by the judges, or none is judged.")
    target = Path(run) / FOLDER
    mixture.load(run, trust_code).only_replica(replica).alone(member).save(target)
    return BestGenerator(target, member, replica, entry.get("best_value"), scored.contest)
