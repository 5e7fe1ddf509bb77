"""The Python API: `train` a recipe, `resume` a run, `load` a mixture. A finished run gets a picture, scores and a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.mixture import mixture
from ganherd.mixture.sampling import heading
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe
from ganherd.runs.records import plain
from ganherd.runs.results.verdict_record import VERDICT
from ganherd.training import session
from ganherd.training.finish import Finisher, Product, Run
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.files import atomic_write
from ganherd.viz import pictures
from ganherd.viz.sheets import draw_samples

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture

__all__ = ["FINISHERS", "Interrupted", "Recipe", "Run", "UserError", "load", "resume", "train"]


class PictureFinisher(Finisher):
    """Draw samples/final.png: samples of the mixture, one row for each label."""

    def on_mixture(self, product: Product) -> None:
        mixture = product.mixture
        labels = np.arange(len(mixture.labels)) if mixture.takes_label else np.unique(mixture.label_of)
        if mixture.is_image and (labels >= 0).all():
            wanted: list[int | None] = labels[:50].tolist()
            count = 12
        else:
            wanted, count = [None], 144 if mixture.is_image else 2500
        each = []
        for label in wanted:
            with suppress(UserError):  # a label whose member is broken has no row
                each.append(mixture.sample(count, label=label))
        if not each:
            return
        x, y, member = (np.concatenate([getattr(drawn, field) for drawn in each]) for field in ("x", "y", "member"))
        labelled = wanted != [None]
        number = f"{count} samples of each label" if labelled else f"{len(x):,} samples"
        picture = draw_samples(
            x,
            y if labelled else None,
            mixture.labels if labelled else (),
            member=None if labelled else member,
            data=None if mixture.is_image else product.dataset.x,
            view=product.dataset.view_of(x),
            heading=heading(product.folder, mixture, number),
        )
        pictures.save(picture, product.folder.samples / "final.png")


class ScoreFinisher(Finisher):
    """Write scores and the verdict to scores.json if the recipe asks for scores.

    A mixture that cannot be scored or judged still finishes its run.
    """

    def on_mixture(self, product: Product) -> None:
        if not product.recipe.run.scores:
            product.folder.scores_path.unlink(missing_ok=True)  # scores of an earlier step
            return
        from ganherd import scoring  # after the training: neither its first step nor its mixture needs them
        from ganherd.scoring.verdicts.run_verdict import judge_contexts

        contexts = scoring.contexts(product.mixture, product.dataset, progress=product.log)
        try:
            names = scoring.known_metrics(None, dataset=product.dataset)
            product.scores = scoring.score_contexts(contexts, names)
        except UserError as error:  # for example, a member was left NaN by policy
            product.log(f"not scored: {error}")
            product.scores = {"skipped": dict.fromkeys(scoring.known_metrics(None), str(error).rstrip("."))}
        content: dict[str, Any] = {"scores": product.scores}
        try:
            content[VERDICT] = judge_contexts(contexts, product.folder).as_json()
        except UserError as error:
            product.log(f"no verdict: {error}")
        atomic_write(product.folder.scores_path, json.dumps(plain(content), indent=1) + "\n")


class ReportFinisher(Finisher):
    """Write report.html."""

    def on_finished(self, product: Product) -> None:
        from ganherd import report

        report.write(product.folder, mixture=product.mixture, dataset=product.dataset)


FINISHERS: tuple[Finisher, ...] = (PictureFinisher(), ScoreFinisher(), ReportFinisher())


def train(
    recipe: str | Path | dict[str, Any] | Recipe = "digits-wcgan",
    overrides: Sequence[str] = (),
    *,
    run: str | Path | None = None,
    quiet: bool = False,
    trust_code: bool = False,
    finishers: Sequence[Finisher] | None = None,
) -> Run:
    """Train a recipe in a new run folder.

    Args:
        recipe: The name of a packaged recipe, a file, a mapping or a `Recipe`. In a mapping, nets (`nets.generator`,
            `nets.discriminator`, those of `nets.breeds`) may be classes: your own plain `nn.Module`s for one GAN.
        overrides: Settings such as `train.budget=500steps`.
        run: The new folder. Default: `runs/NNNNN-NAME`.
        trust_code: Also allow TorchScript, and the modules that a recipe file in a run folder names. Modules that your own
            recipe names are always imported.
        finishers: What to make from the trained mixture. Default: a picture, scores and a report.
    """
    if isinstance(recipe, dict):
        recipe = _with_names(recipe)
    name = Path(recipe).stem if isinstance(recipe, (str, Path)) else "run"
    loaded = recipe_file.load(recipe, overrides)
    trust.check_recipe(loaded, recipe, trust_code)
    origin = {"recipe": name, "changes": list(overrides)}
    return session.train(
        loaded, run, name, quiet, finishers=FINISHERS if finishers is None else finishers, origin=origin
    )


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    quiet: bool = False,
    trust_code: bool = False,
    finishers: Sequence[Finisher] | None = None,
) -> Run:
    """Continue an interrupted run exactly. `overrides` may give it a longer train.budget.

    Args:
        trust_code: Allow code that the run names and that is not ganherd's own.
        finishers: What to make from the trained mixture. Default: a picture, scores and a report.
    """
    return session.resume(path, overrides, quiet, trust_code, finishers=FINISHERS if finishers is None else finishers)


def load(path: str | Path, *, trust_code: bool = False) -> Mixture:
    """Return the mixture of a run.

    Loading executes no code of the run, unless `trust_code` allows it to import the nets that the run names.
    """
    return mixture.load(path, trust_code)


def _with_names(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with each class among its nets replaced by the name under which it can be imported."""
    nets = recipe.get("nets")
    if not isinstance(nets, dict):
        return recipe

    named = {key: _with_name(key, value) for key, value in nets.items()}
    if isinstance(nets.get("breeds"), list):
        named["breeds"] = [
            {**breed, "generator": _with_name("breeds", breed.get("generator"))} if isinstance(breed, dict) else breed
            for breed in nets["breeds"]
        ]
    return {**recipe, "nets": named}


def _with_name(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "name": _with_name(key, value.get("name"))}
    if not isinstance(value, type):
        if hasattr(value, "forward"):
            raise UserError(
                f"nets.{key} is a module: give its class, {type(value).__name__}, so that each member has one."
            )
        return value
    if "<locals>" in value.__qualname__:
        raise UserError(
            f"nets.{key}: {value.__name__} is defined inside of a function, so it cannot be imported when the run is resumed; "
            "define it at the top of a script or module."
        )
    return f"{value.__module__}:{value.__qualname__}"
