"""Score several runs side by side: each on its own, then all together by GAM or GAM-II."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.runs.folder import RunFolder
from ganherd.runs.results.verdict_record import VERDICT, VerdictRecord
from ganherd.runs.score_entry import Scores
from ganherd.scoring.one_run import keep, score_run
from ganherd.scoring.score_table import brief, full, side_by_side
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject, atomic_write
from ganherd.util.meter import Detail, Progress
from ganherd.util.terminal.screen import Block, as_text

if TYPE_CHECKING:
    from ganherd.metrics.gam.gam_table import GamRow


@dataclass(frozen=True)
class ScoredRun:
    """The scores of each run, or of one set of samples, by path; `str` returns them as a table."""

    runs: Mapping[str, Scores]
    real: str = ""  # the data that a set was scored against; empty: that of the run
    contest: str = ""  # the table of GAM-II
    contested: Sequence[GamRow] = ()  # its rows, by kind and run
    per: str | None = None  # the groups that have scores, too: class, member or neighbourhood
    verdicts: Mapping[str, VerdictRecord] = field(default_factory=dict)  # by run, if all usual metrics were measured

    def __str__(self) -> str:
        return as_text(*self.screen(verbose=True))

    def screen(self, verbose: bool = False) -> list[Block]:
        """Return the tables for a terminal: short for one run, unless `verbose`; several are next to each other."""
        if len(self.runs) > 1:
            blocks = side_by_side(self.runs, bool(self.per))
        else:
            scores = next(iter(self.runs.values()))
            blocks = full(scores) if verbose else brief(scores, bool(self.per))
        return [*blocks, *(["", self.contest] if self.contest else [])]

    def facts(self) -> JsonObject:
        """Return what `--json` prints: `scores` of one run, or `runs` with those of each; and `gam2` if GAM-II was measured."""
        held = {"gam2": {"rows": list(self.contested), "table": self.contest}} if self.contest else {}
        verdicts = {run: {VERDICT: verdict.as_json()} for run, verdict in self.verdicts.items()}
        each = {run: {"scores": scores, **verdicts.get(run, {})} for run, scores in self.runs.items()}
        return (next(iter(each.values())) if len(each) == 1 else {"runs": each}) | held

    def write(self, path: Path) -> None:
        """Write `facts` to a file as JSON; for a set of samples, with the names of the real data and of the set."""
        from ganherd.runs.records import plain

        of = {"real": self.real, "fake": next(iter(self.runs))} if self.real else {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(plain({**of, **self.facts()}), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"-o {path} cannot be written: {error.strerror}.") from error


def score_runs(
    runs: Sequence[str | Path],
    metrics: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
    judges: Sequence[str | Path] = (),
    **settings: Any,
) -> ScoredRun:
    """Score each run with `score_run`, and all runs together with GAM or GAM-II if one of these is requested.

    The best member of each run by GAM-II is marked in its mixture.

    Args:
        judges: Further runs whose discriminators judge; nothing is written to them.
    """
    names = None if metrics is None else known_metrics(metrics, "score")
    contests = [name for name in names or () if METRICS[name].contest]
    others = None if names is None else [name for name in names if name not in contests]
    if len({str(run) for run in runs}) < len(runs):
        raise UserError("a run is named twice: compare runs that are different.")
    scores: dict[str, Scores] = {str(run): {} for run in runs}
    for number, run in enumerate(runs):
        if progress and len(runs) > 1 and others != []:
            progress(Detail(f"{run} ({number + 1} of {len(runs)})"))
        if others != []:
            # The number is that of the contest, not that of the images of AIS
            own = None if contests and others == ["ais"] else samples
            scores[str(run)] |= score_run(run, others, own, seed, trust_code, progress, **settings)
    recorded = {str(run): RunFolder(run).verdict for run in runs} if names is None else {}
    verdicts = {run: verdict for run, verdict in recorded.items() if verdict is not None}
    result = ScoredRun(scores, per=settings.get("per"), verdicts=verdicts)
    if not contests:
        return result
    if "gam" in contests and len(runs) < 2:
        raise UserError("GAM is a battle between runs: name at least two.")
    from ganherd.metrics.gam import gam
    from ganherd.scoring import gam_runs

    contenders = [*runs, *judges]
    held = gam_runs.contest(contenders, samples or gam.SAMPLES, seed, trust_code=trust_code, progress=progress)
    for run, group in zip(runs, held.groups, strict=False):  # without the judges
        ask = {"gam2": held.entry, "gam": held.battles}
        entries = {name: {**ask[name](group), "resizing": "none"} for name in contests}
        keep(run, entries)
        scores[str(run)] |= entries
        if "gam2" in entries:
            _mark(run, entries["gam2"])
    if "gam2" not in contests:
        return result
    return replace(result, contest=f"GAM-II\n{held}", contested=held.summary())


def _mark(run: str | Path, entry: Mapping[str, Any]) -> None:
    """Record the run's best member by GAM-II in its mixture; record none if no member could be judged."""
    from ganherd.mixture import mixture_files
    from ganherd.runs.folder import mixture_of

    winner = None
    if entry["best_member"] is not None:
        winner = mixture_files.BestMember(
            member=entry["best_member"], replica=entry["best_replica"], value=entry["best_value"]
        )
    with suppress(OSError):  # a run on a read-only disk can be scored too
        mixture_files.set_winner(mixture_of(run), winner)
