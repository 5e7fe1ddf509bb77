"""Score a run against the data of its recipe, and store the scores in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.features.material import Annealing, MetricSkipped
from ganherd.runs.results.verdict_record import VERDICT, VerdictRecord, read_verdict
from ganherd.runs.score_entry import Scores
from ganherd.scoring.result import SKIPPED
from ganherd.util import files, text
from ganherd.util.errors import UserError, few, whole_number
from ganherd.util.files import atomic_write
from ganherd.util.meter import Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.real_features import RealFeatures
    from ganherd.runs.folder import RunFolder


def score_run(
    run: str | Path,
    metrics: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
    *,
    network: str | None = None,
    head: str | Path | None = None,
    per: str | None = None,
    annealing: Annealing = Annealing(),
    store: bool = True,
) -> Scores:
    """Measure and return scores of a run, and store them in its scores.json next to those of other metrics.

    Args:
        run: The run folder.
        metrics: Names of metrics; None: all that are usual for the data and those of the recipe, together with the pictures.
        samples: The number of samples; None: see `default_samples`. If AIS is the only metric, the number of its images.
        seed: The seed of the samples.
        trust_code: Whether the user's nets may be built.
        progress: Receives lines about the progress.
        network: inception, classifier, lipizzaner-mnist, pixels, the path of a .pt or .npz, or your own
            `package.module:Class`; your own class or TorchScript needs `trust_code`. None: that of the run's recorded scores.
        head: A classifier for inception.
        per: "class", "member" or "neighbourhood": score each of these, too.
        annealing: Settings of AIS.
        store: False: leave the run as it is, and draw no pictures.
    """
    from ganherd.data.dataset import load
    from ganherd.runs.folder import RunFolder, mixture_version, refuse_changed_mixture
    from ganherd.scoring import contexts, known_metrics, score_contexts

    samples = None if samples is None else whole_number("samples", samples, 1)
    known_metrics(metrics, "score")  # reports a misspelt name before anything is loaded
    folder = RunFolder.open(run)
    refuse_trials(folder)
    from ganherd.mixture import mixture

    version = mixture_version(run)
    loaded = mixture.load(run, trust_code)  # first, so that untrusted code is refused before data is read
    data = load(folder.recipe.data)
    names = known_metrics(metrics, "score", data, folder.recipe.run.metrics)
    if names == ["ais"] and annealing.points is None:
        annealing = replace(annealing, points=samples)
    default = None if head else recorded_network(folder.scores_path, data)
    samples = default_samples(data, network or default) if samples is None else samples
    reference = reference_for(data, network, samples, head, trust_code, progress, default)
    each = contexts(loaded, data, samples, seed, progress, reference=reference, per=per, annealing=annealing)
    scores = score_contexts(each, names)
    if not store:
        return scores
    verdict = None
    if metrics is None:
        from ganherd.scoring.verdicts.run_verdict import judge_contexts

        verdict = judge_contexts(each, folder)
    refuse_changed_mixture(run, version)
    keep(run, scores, names, verdict)
    if metrics is None:  # the usual metrics come with the pictures
        from ganherd.scoring import gallery

        gallery.make(folder.path, loaded, data, reference, seed, progress)
    return scores


def refuse_trials(folder: RunFolder) -> None:
    """Refuse a run of a sweep, whose replicas have different settings: a mean over them says nothing."""
    if folder.recipe_path.is_file() and (number := len(folder.recipe.herd.trials)):
        raise UserError(
            f"{folder.path} holds {number} trials of a sweep, which are scored one by one: "
            f"`ganherd sweep --resume {folder.path.parent}` shows them."
        )


def keep(run: str | Path, scores: Scores, names: Sequence[str] = (), verdict: VerdictRecord | None = None) -> None:
    """Write scores into the scores.json of a run; they replace recorded scores of the same names.

    A recorded score with more samples by the same network is not replaced, which a message reports. It only gets the fields
    that it lacks, such as the values of members.

    Args:
        run: The run folder.
        scores: The new scores, with the reasons for skipped metrics.
        names: The metrics that were requested: recorded ones that were now skipped are removed.
        verdict: The new verdict; None: the recorded one stays.
    """
    from ganherd.runs.folder import RunFolder
    from ganherd.runs.records import plain

    path = RunFolder.open(run).scores_path
    old = _read(path)
    better = [name for name in scores if _is_better(old.get(name), scores[name])]
    if better:
        text.say(f"note: {path} keeps the recorded values of {few(better, 5)}, which have more samples")
    scores = {name: {**entry, **old[name]} if name in better else entry for name, entry in scores.items()}
    others = {name: entry for name, entry in old.items() if name not in (*names, *scores, SKIPPED)}
    before = reasons if isinstance(reasons := old.get(SKIPPED), dict) else {}
    skipped = {n: why for n, why in before.items() if n not in (*names, *scores)} | scores.get(SKIPPED, {})
    out = {**others, **{n: e for n, e in scores.items() if n != SKIPPED}} | ({SKIPPED: skipped} if skipped else {})
    verdict = verdict or read_verdict(path)
    with_verdict = {} if verdict is None else {VERDICT: verdict.as_json()}
    try:
        atomic_write(path, json.dumps(plain({"scores": out, **with_verdict}), indent=1, allow_nan=False) + "\n")
    except OSError as error:  # a run on a read-only disk can be scored too
        text.say(f"note: {path} cannot be written ({error.strerror}), so these scores are not kept")


def _is_better(recorded: Any, entry: Any) -> bool:
    """Return whether a recorded score has more samples than a new one by the same network; False if it is damaged."""
    if not isinstance(recorded, dict) or recorded.get("network") != entry.get("network"):
        return False
    samples, more = entry.get("samples"), recorded.get("samples")
    return isinstance(samples, int) and isinstance(more, int) and more > samples


def default_samples(data: Dataset, network: str | None) -> int:
    """Return how many samples a score takes by default: 1,000; 10,000 for Inception on a GPU."""
    from ganherd.features import networks
    from ganherd.features.extract import best_device
    from ganherd.recipe.trust import script_of

    wanted = network or networks.choose(data)
    heavy = wanted == "inception" or script_of(wanted) is not None
    return 10_000 if heavy and best_device().type == "cuda" else 1_000


def recorded_network(scores: Path, data: Dataset) -> str | None:
    """Return the network of the recorded feature scores of a run, so that all its scores can be compared.

    It is None if there are none, or if that network is not ganherd's own, not available, or not for this data.
    """
    from ganherd.features import networks

    entries = _read(scores)
    for entry in (entries.get("fid"), *entries.values()):  # FID first, because runs are compared by it
        if isinstance(entry, dict) and "real_samples" in entry and isinstance(entry.get("network"), str):
            return networks.known_as(entry["network"], data)
    return None


def reference_for(
    data: Dataset,
    network: str | None,
    samples: int,
    head: str | Path | None,
    trust_code: bool,
    progress: Progress | None,
    default: str | None = None,
) -> RealFeatures:
    """Return the features of the real data by the requested network, the default, or the best one that is available.

    If no network was requested, a line of progress names the one that is used, and a better one that is available.
    """
    from ganherd.features import networks
    from ganherd.features.real_features import RealFeatures

    best = networks.choose(data)
    wanted = network or ("inception" if head else default or best)
    reference = RealFeatures(data, wanted, samples, Path(head) if head else None, trust_code, progress)
    try:
        name = reference.network.name
    except MetricSkipped:
        return reference  # scores that need it are left out with the reason
    if progress and not network:
        other = f"--network {best} is here, too" if best != wanted and not head else "--network chooses another"
        whose = ", as in the run's recorded scores" if wanted == default else ""
        progress(f"network of the feature scores: {name}{whose} ({other})")
    return reference


def _read(path: Path) -> Scores:
    """Return the scores of a scores.json; empty if it is missing or damaged."""
    try:
        content = files.read_json(path)["scores"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return content if isinstance(content, dict) else {}
