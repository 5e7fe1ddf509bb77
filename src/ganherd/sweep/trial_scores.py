"""Score the trials (settings) of a sweep, all with the same noise and against the same real data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.features.real_features import RealFeatures
from ganherd.metrics.metric_registry import METRICS
from ganherd.metrics.statistics.seeds import together
from ganherd.mixture import mixture as mixtures
from ganherd.runs.score_entry import ScoreEntry
from ganherd.scoring import score
from ganherd.scoring.result import SKIPPED
from ganherd.sweep.sweep_record import TrialScore
from ganherd.util.errors import UserError
from ganherd.util.meter import Detail

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture


class TrialScorer:
    """Measure one metric for the trials of a sweep. Features of the real data are computed once."""

    def __init__(self, dataset: Dataset, metric: str, samples: int, log: Callable[[str], None]) -> None:
        self._dataset, self._metric, self._samples = dataset, metric, samples
        self._log, self._reference = log, RealFeatures(dataset, progress=log)

    def score_trials(self, run: Path, trials: Sequence[tuple[int, int]], seeds: int) -> list[TrialScore]:
        """Return the scores of some trials of a run.

        Args:
            run: The folder of the run.
            trials: For each trial, its number in the sweep and its position among the run's trials.
            seeds: The number of replicas (seeds) of each trial.
        """
        mixture = mixtures.load(run, trust_code=True)  # the code was checked when the sweep was planned
        scores = []
        for done, (number, position) in enumerate(trials, 1):
            self._log(Detail(f"trial {done} of {len(trials)}"))
            scores.append(self.score_mixture(number, mixture, range(position * seeds, (position + 1) * seeds)))
        return scores

    def score_mixture(self, number: int, mixture: Mixture, replicas: Sequence[int]) -> TrialScore:
        """Return the score of a trial: that of its replica, or combined from several.

        Args:
            number: The number of the trial in the sweep.
            mixture: The mixture of the run that trained it.
            replicas: The numbers of its replicas in this mixture.
        """
        entries: list[ScoreEntry] = []
        for replica in replicas:
            try:
                alone = mixture.only_replica(replica)
                scores = score(alone, self._dataset, [self._metric], self._samples, reference=self._reference)
            except UserError as error:  # samples that are not finite
                return TrialScore(trial=number, value=None, why=str(error))
            if self._metric not in scores:
                return TrialScore(trial=number, value=None, why=scores.get(SKIPPED, {}).get(self._metric, ""))
            entries.append(scores[self._metric])
        seeds = [mixture.seeds[replica] for replica in replicas]
        entry = entries[0] if len(entries) == 1 else together(entries, seeds, METRICS[self._metric].bounds)
        interval = entry.get("interval")
        return TrialScore(
            trial=number,
            value=entry.get("value"),
            low=interval["low"] if interval else None,
            high=interval["high"] if interval else None,
            per_seed=[one.get("value") for one in entries],
            samples=entry["samples"],
            network=entry["network"],
        )
