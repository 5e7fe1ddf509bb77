"""Make the files of a finished run: weights of members, a picture, scores with a verdict, and a report."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np

from ganherd.features.material import MetricSkipped
from ganherd.mixture.sample_files import heading
from ganherd.runs.records import plain
from ganherd.runs.results.verdict_record import VERDICT
from ganherd.training.finish import Finisher, Product
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write
from ganherd.util.meter import Detail
from ganherd.viz import pictures
from ganherd.viz.sheets import draw_samples


class MemberWeightFinisher(Finisher):
    """Choose the weights of the members of each class by a score, if classes have several members.

    Runs on a grid are skipped: training has chosen the weights of their neighbourhoods already.
    """

    def on_mixture(self, product: Product) -> None:
        by, herd = product.recipe.run.member_weights, product.recipe.herd
        is_one_gan = product.recipe.strategy.settings.is_one_gan
        if herd.per_class == 1 or by == "equal" or product.mixture.neighbourhoods is not None or is_one_gan:
            return
        from ganherd.scoring.member_weights import weigh_members

        try:
            weighed = weigh_members(product.mixture, product.dataset, by)
        except (UserError, MetricSkipped) as error:
            product.log(f"Members of each class keep equal weights: {error}")
            return
        product.mixture = weighed.mixture
        product.mixture.save(product.folder.mixture)
        change = f"{weighed.before:.4g} with equal weights, {weighed.after:.4g} with these"
        product.log(Detail(f"Members of each class weighted by {by} (mean over classes: {change})."))


class PictureFinisher(Finisher):
    """Draw samples/final.png: samples of the mixture, one row for each label."""

    def on_mixture(self, product: Product) -> None:
        mixture = product.mixture
        labels = np.arange(len(mixture.labels)) if mixture.takes_label else np.unique(mixture.label_of)
        if mixture.is_image and (labels >= 0).all():
            wanted: list[str | None] = [mixture.labels[k] for k in labels[:50]]
            count = 12
        else:
            wanted, count = [None], 144 if mixture.is_image else 2500
        each = []
        for label in wanted:
            with suppress(UserError):  # leave out a label whose member is broken
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
    """Write scores and the verdict to scores.json, if `run.scores` of the recipe is set.

    If the mixture cannot be scored or judged, the reason is logged and the run still finishes.
    """

    def on_mixture(self, product: Product) -> None:
        if not product.recipe.run.scores:
            product.folder.scores_path.unlink(missing_ok=True)  # scores of an earlier step
            return
        from ganherd import scoring  # imported here, because training does not need it
        from ganherd.scoring.verdicts.run_verdict import judge_contexts

        contexts = scoring.contexts(product.mixture, product.dataset, progress=product.log)
        more = product.recipe.run.metrics
        names, skipped = scoring.known_metrics(None, dataset=product.dataset), {}
        try:
            names = scoring.known_metrics(None, dataset=product.dataset, more=more)
        except UserError as error:
            product.log(f"run.metrics are not scored: {error}")
            more_names = [entry if isinstance(entry, str) else entry.name for entry in more]
            skipped = dict.fromkeys(more_names, str(error).rstrip("."))
        try:
            product.scores = scoring.score_contexts(contexts, names)
        except UserError as error:  # e.g. a member is NaN, because the recipe does not repair it
            product.log(f"not scored: {error}")
            product.scores = {"skipped": dict.fromkeys(names, str(error).rstrip("."))}
        if skipped:
            product.scores = {**product.scores, "skipped": {**product.scores.get("skipped", {}), **skipped}}
        content: dict[str, Any] = {"scores": product.scores}
        try:
            content[VERDICT] = judge_contexts(contexts, product.folder).as_json()
        except UserError as error:
            product.log(f"no verdict: {error}")
        atomic_write(product.folder.scores_path, json.dumps(plain(content), indent=1) + "\n")


class ReportFinisher(Finisher):
    """Write report.html into the run folder."""

    def on_finished(self, product: Product) -> None:
        from ganherd import report

        report.write(product.folder, mixture=product.mixture, dataset=product.dataset)
