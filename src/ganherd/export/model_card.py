"""Write the model card (README.md) of a folder for the Hugging Face Hub: what the model is, its scores and its limits.

Everything comes from the run's files. They may be a stranger's, so all text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jinja2
import yaml

from ganherd.export.portable_model import PortableModel, samplable_labels
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import RunInfo
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.runs.run_status import current_verdict
from ganherd.scoring.result import Score, measured
from ganherd.util import files
from ganherd.util.errors import UserError, counted
from ganherd.util.text import duration, one_line

PICTURE, SHOWN = "samples.png", 64
_TAGS = {"images": "image-generation", "points": "density-estimation", "rows": "tabular"}
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")


def check_licence(licence: str) -> None:
    """Raise a UserError unless the licence is an identifier such as `mit`, or empty."""
    if licence and not _LICENCE.fullmatch(licence):
        raise UserError(
            f"--license {licence}: give an identifier of the Hub in lower case, e.g. mit, cc-by-4.0 or other."
        )


def write_card_files(
    folder: Path,
    run: RunFolder,
    mixture: Mixture,
    model: PortableModel,
    licence: str = "",
    replica: int = 0,
    whole: bool = True,
) -> None:
    """Write README.md and the picture of samples that it shows.

    Args:
        folder: The folder of the export.
        mixture: The exported mixture.
        model: The same as a portable model.
        licence: The identifier of a licence; empty: a note that none was chosen.
        replica: The replica (copy of the herd with another seed) that is exported.
        whole: True if the run's scores were measured on exactly what is exported; False for another replica or one
            member.
    """
    from ganherd.mixture import sample_files

    samples = mixture.portable().sample(SHOWN if mixture.is_image else 1000, replica=replica)
    sample_files.write(samples, str(folder / PICTURE))
    files.atomic_write(folder / "README.md", card(run, mixture, model, licence, whole), sync=False)


def card(run: RunFolder, mixture: Mixture, model: PortableModel, licence: str, whole: bool = True) -> str:
    """Return the text of the model card, Markdown with a YAML header; for the arguments see `write_card_files`."""
    facts, title = model.facts, _escaped(model.facts["title"])
    scores, verdict = _scores(run.scores_path), current_verdict(run, mixture.step)
    info, recipe = _recorded(run)
    front = {
        "license": licence or "unknown",
        "library_name": "pytorch",
        "pipeline_tag": "unconditional-image-generation" if mixture.is_image else None,
        "tags": ["gan", "ganherd", _TAGS[mixture.kind]],
    }
    output = f"uint8 {[8, *mixture.shape]}" if mixture.is_image else f"float32 {[8, *mixture.shape]}"
    known = samplable_labels(facts)
    body = _template().render(
        title=title,
        summary=_summary(mixture, len(facts["members"])),
        pictured=f"{SHOWN if mixture.is_image else '1,000'} samples, seeds 0 and up, not selected.",
        example_label=f", label={known[0]}" if known else "",
        output=output,
        columns=", ".join(_escaped(name) for name in mixture.columns),
        labels=", ".join(_label(y, facts["labels"][y]) for y in known),
        data=_data(recipe, scores),
        scores=[_row(score) for score in scores.values()],
        scored="Intervals are those of sampling this one mixture; another training run would differ more."
        if whole
        else "The scores, the verdict and the memorisation are those of the whole mixture, not of this part of it alone.",
        verdict=f"{_escaped(f'{verdict.word}: {verdict.reason}.')} (by `ganherd check`)"  # what to try is for the author
        if verdict
        else "This run was not judged.",
        memorisation=_memorisation(scores.get("memorisation"), verdict),
        limits=list(_limits(mixture, scores, verdict)),
        training=[(name, _escaped(value)) for name, value in _training(mixture, info, recipe)],
        licence=f"`{licence}`, for the weights and the loader. The data has its own licence."
        if licence
        else "No licence was chosen. Before you publish this folder, set `license` at the top of this file "
        "(or export again with `--license`). The data has its own licence.",
    )
    chosen = {key: value for key, value in front.items() if value is not None}
    return f"---\n{yaml.safe_dump(chosen, sort_keys=False)}---\n\n{body}"


def _template() -> jinja2.Template:
    text = (resources("ganherd.export") / "templates" / "model_card.md.j2").read_text(encoding="utf-8")
    return jinja2.Environment(keep_trailing_newline=True, trim_blocks=True, autoescape=False).from_string(text)


def _escaped(text: object) -> str:
    """Escape text so that Markdown shows it literally, in one line of at most 400 characters.

    >>> _escaped("<b>|`x`")
    '&lt;b&gt;\\\\|\\\\`x\\\\`'
    """
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(one_line(str(text), 400), quote=False))


def _label(number: int, name: str) -> str:
    """Return the number of a label, with its name in brackets if that differs from the number.

    >>> _label(3, "3"), _label(0, "cat")
    ('3', '0 (cat)')
    """
    return str(number) if name == str(number) else f"{number} ({_escaped(name)})"


def _recorded(run: RunFolder) -> tuple[RunInfo, Recipe | None]:
    """Return run.json and the recipe; an empty `RunInfo` and None if one of them cannot be read."""
    try:
        return run.info, run.recipe
    except (UserError, OSError):
        return RunInfo(), None


def _scores(path: Path) -> dict[str, Score]:
    """Return the scores of a run by name, from its scores.json; empty if it was not scored."""
    try:
        entries = files.read_json(path)["scores"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: score for name, score in measured(entries).items() if score.value is not None}


def _row(score: Score) -> list[str]:
    return [_escaped(cell or "–") for cell in (
        score.title, score, score.span, score.samples, score.network, score.goal,
    )]  # fmt: skip


def _summary(mixture: Mixture, members: int) -> str:
    size = " x ".join(map(str, mixture.shape[1:])) if mixture.is_image else ""
    what = "points" if mixture.kind == "points" else f"rows of {counted(mixture.shape[0], 'columns')}"
    if mixture.is_image:
        what = f"{'grey' if mixture.shape[0] == 1 else 'colour'} images of {size} pixels"
    each = " Each generator makes one label." if not mixture.takes_label and (mixture.label_of >= 0).all() else ""
    return f"A mixture of {counted(members, 'generators')} that makes {what}, trained as one herd of GANs with ganherd.{each}"


def _data(recipe: Recipe | None, scores: Mapping[str, Score]) -> str:
    if recipe is None:
        return "The recipe of this run is missing, so its data is not known."
    source = str(recipe.data.source).replace("\\", "/").rstrip("/").rpartition("/")[2]  # the name only, no path
    rows = next((one.entry["real_samples"] for one in scores.values() if "real_samples" in one.entry), None)
    count = f", {rows:,} training rows" if isinstance(rows, int) else ""
    held = f" {recipe.data.holdout:.0%} of it was held out of training." if recipe.data.holdout else ""
    return f"Trained on {_escaped(source)}{count} (partition: {recipe.data.partition}).{held}"


def _memorisation(score: Score | None, verdict: VerdictRecord | None) -> str:
    """Return a sentence about the share of samples that copy training data, from the score or from the verdict."""
    meaning = "share of samples that look like copies of one training row; 5 % is what unseen real data shows"
    if score is not None:
        return f"{_escaped(score.with_span)}, of {_escaped(score.samples)} samples ({meaning})."
    evidence: Mapping[str, Any] = verdict.evidence if verdict else {}
    copies, samples = evidence.get("copies"), evidence.get("samples")
    if isinstance(copies, int | float) and isinstance(samples, int):
        held_out = (
            f", against {evidence['held_out']:,} held-out rows" if isinstance(evidence.get("held_out"), int) else ""
        )
        return f"{copies:.1%} of {samples:,} samples ({meaning}){held_out}."
    return "Not measured: `ganherd score --metrics memorisation` measures it if data was held out."


def _limits(mixture: Mixture, scores: Mapping[str, Score], verdict: VerdictRecord | None) -> Iterator[str]:
    """Yield sentences about the limits of the model, e.g. a bad verdict, a fixed size of images, or missing labels."""
    if verdict is not None and verdict.word != "good":
        yield f"The verdict on it is: {verdict.word}."
    worse = [one.name for one in verdict.members if one.word != "good"] if verdict else []
    if worse:
        yield f"These members or classes were not judged good: {_escaped(', '.join(worse))}."
    if not scores:
        yield "It was not scored: nothing is known about the quality of its samples."
    yield "It makes samples like those of its training data only, with the same gaps and biases."
    if mixture.is_image:
        yield f"Images have {' x '.join(map(str, mixture.shape[1:]))} pixels; there is no text prompt and no other size."
    if not mixture.labels:
        yield "It has no labels: samples cannot be asked for by class."


def _training(mixture: Mixture, info: RunInfo, recipe: Recipe | None) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the most important settings and facts of the training."""
    yield "steps", f"{mixture.step:,}"
    yield "members of the herd", f"{mixture.members:,}"
    if recipe is not None:
        nets = recipe.nets
        yield "generator", " and ".join(dict.fromkeys(breed.net.name for breed in mixture.breeds))
        yield "discriminator", nets.discriminator.name
        yield "noise", f"{mixture.latent} numbers, {mixture.prior if isinstance(mixture.prior, str) else 'mixed'}"
        yield "loss", ", ".join([recipe.loss.name] if isinstance(recipe.loss.name, str) else recipe.loss.name)
        yield "strategy", getattr(recipe.strategy, "name", str(recipe.strategy))
        yield "batch", str(recipe.train.batch)
        yield "learning rates (generator, discriminator)", f"{recipe.optim.lr_g}, {recipe.optim.lr_d}"
    yield "seed", ", ".join(map(str, mixture.seeds))
    if info.seconds is not None:
        yield "time", duration(info.seconds)
    yield from (info.versions or {}).items()
