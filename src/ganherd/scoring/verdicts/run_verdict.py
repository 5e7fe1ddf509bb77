"""Judge a run: from the samples of each replica's mixture and the records of its training to one verdict in scores.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ganherd.features.material import ScoringContext
from ganherd.features.networks import cheap
from ganherd.features.real_features import RealFeatures
from ganherd.runs.folder import RunFolder
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.scoring.verdicts.course import courses
from ganherd.scoring.verdicts.joining import join_replicas, judge_herd
from ganherd.scoring.verdicts.judgement import Course
from ganherd.scoring.verdicts.measurement import EvidenceCollector
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress


def judge_contexts(each: Sequence[ScoringContext], folder: RunFolder | None = None) -> VerdictRecord:
    """Return the verdict on a mixture.

    Args:
        each: What the scores of each replica are computed from; their samples are judged.
        folder: The run, for the alarms of its training; None: samples alone decide.
    """
    first = each[0]
    collector = EvidenceCollector(_reference(first))
    members, step = len(first.mixture.label_of), int(first.mixture.step)
    history = _courses(folder, members * len(each), step)
    records = []
    for context in each:
        own = history[context.replica * members : (context.replica + 1) * members]
        herd, parts = collector.herd(context), list(collector.parts(context))
        network = collector.reference.network.name
        records.append(judge_herd(herd, parts, own, steps=step, network=network, replica=context.replica))
    return join_replicas(records, list(getattr(first.mixture, "seeds", range(len(each)))))


def check_run(
    run: str | Path,
    samples: int = 1000,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
    rejudge: bool = False,
) -> VerdictRecord:
    """Return the verdict on a run: the recorded one if it is about the present mixture, otherwise a new one, which is stored.

    Args:
        run: The run folder.
        samples: The number of samples of each replica.
        seed: The seed of the samples.
        trust_code: Whether the user's nets may be built.
        progress: Receives lines about the progress.
        rejudge: Judge it even if there is a verdict.
    """
    from ganherd.data.dataset import load
    from ganherd.mixture import mixture, mixture_files
    from ganherd.runs.folder import mixture_of, mixture_version, refuse_changed_mixture
    from ganherd.scoring import contexts
    from ganherd.scoring.one_run import keep

    folder = RunFolder.open(run)
    known = folder.verdict
    if known and not rejudge and known.step == mixture_files.read_facts(mixture_of(run)).step:
        return known
    version = mixture_version(run)
    loaded = mixture.load(run, trust_code)  # first, so that untrusted code is refused before data is read
    data = load(folder.recipe.data)
    verdict = judge_contexts(contexts(loaded, data, samples, seed, progress), folder)
    refuse_changed_mixture(run, version)
    keep(run, {}, verdict=verdict)
    return verdict.for_run(folder.again)


def _reference(context: ScoringContext) -> RealFeatures:
    """Return the real features of the network that is cheap everywhere: the limits of verdicts were tuned on it."""
    known = context.against
    if known is not None and known.limit is None and known.wanted in (None, cheap(context.dataset)):
        return known
    return RealFeatures(context.dataset, progress=context.progress)


def _courses(folder: RunFolder | None, members: int, step: int) -> list[Course]:
    """Return what the records of a run say about each member; only the steps if they cannot be read."""
    if folder is not None:
        try:
            return courses(members, step, folder.events())
        except UserError:
            pass  # damaged records: the samples alone decide
    return [Course(step)] * members
