"""The end of a run: the mixture, its scores, its pictures and the report."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from ganherd import pictures, scores
from ganherd.errors import UserError
from ganherd.herd.state import bases, buffers_of
from ganherd.mixture import Mixture, recalibrated
from ganherd.recipe import Recipe
from ganherd.run.assemble import Assembly
from ganherd.run.folder import RunFolder, write_aside
from ganherd.run.progress import Progress
from ganherd.run.record import plain


def make_mixture(assembly: Assembly, step: int) -> Mixture:
    """Generators with the weights that are exported (the running average where there is one), batch norm re-estimated."""
    herd, recipe = assembly.herd, assembly.recipe
    views = {
        k: v.detach().cpu().clone() for k, v in herd.g.views(herd.state.get("g.ema", herd.state["g.params"])).items()
    }
    buffers: dict[str, list[torch.Tensor]] = {name: [] for name in herd.g.buffers}
    for member, key in enumerate(bases(herd.state).tolist()):
        own = {name: value[member] for name, value in views.items()}
        kept = {name: value[member].cpu() for name, value in buffers_of(herd.state, "g").items()}
        found = recalibrated(
            herd.g.module, own, kept, herd.rules.latent, herd.rules.prior, len(assembly.dataset.labels), key
        )
        for name, value in found.items():
            buffers[name].append(value)
    return Mixture(
        labels=assembly.dataset.labels,
        shape=assembly.dataset.shape,
        offset=assembly.dataset.offset,
        scale=assembly.dataset.scale,
        latent=herd.rules.latent,
        prior=herd.rules.prior,
        generator=recipe.nets.generator,
        label_of=assembly.label[: assembly.members],
        weights=member_weights(recipe, assembly),
        label_weights=label_weights(recipe, assembly),
        seeds=[recipe.run.seed + r for r in range(recipe.herd.seeds)],
        step=step,
        params=views,
        buffers={name: torch.stack(values) for name, values in buffers.items()},
        module=herd.g.module.cpu().eval(),
    )


def label_weights(recipe: Recipe, assembly: Assembly) -> np.ndarray:
    """[classes] p(y): the data's frequencies, uniform, or as given."""
    labels, given = assembly.dataset.labels, recipe.run.weights
    if not labels:
        return np.zeros(0)
    if given == "uniform":
        return np.full(len(labels), 1.0 / len(labels))
    if given == "data":
        counts = np.bincount(assembly.dataset.y[assembly.dataset.y >= 0], minlength=len(labels)).astype(np.float64)
        return np.asarray(counts / counts.sum())
    assert isinstance(given, dict)
    unknown = [name for name in given if name not in labels]
    if unknown:
        raise UserError(f"run.weights names the label {unknown[0]!r}; the data has {', '.join(labels)}.")
    weights = np.array([float(given.get(name, 0.0)) for name in labels])
    if weights.min() < 0 or not weights.sum() > 0:
        raise UserError("run.weights must be numbers of at least 0, and not all 0.")
    return np.asarray(weights / weights.sum())


def member_weights(recipe: Recipe, assembly: Assembly) -> np.ndarray:
    """[members] p(y) of the class that each stands for, shared among those that stand for the same; else equal."""
    label = assembly.label[: assembly.members]
    if (label < 0).any():
        return np.full(len(label), 1.0 / len(label))
    weights = label_weights(recipe, assembly)[label] / np.bincount(label)[label]
    return np.asarray(weights / weights.sum())


def write_scores(folder: RunFolder, mixture: Mixture, assembly: Assembly, progress: Progress) -> dict[str, Any]:
    """scores.json; with several seeds the value is their mean, and each seed's stands beside it."""
    tell = progress.say
    each = [scores.score(mixture, assembly.dataset, replica=r, progress=tell) for r in range(mixture.replicas)]
    found = each[0]
    for name in found if mixture.replicas > 1 else ():
        if name != "skipped":
            values = [one[name]["value"] for one in each]
            found[name] |= {
                "value": float(np.mean(values)),
                "per_seed": values,
                "seeds": mixture.seeds,
                "std": float(np.std(values, ddof=1)),
            }
    write_aside(folder.scores_path, json.dumps(plain({"scores": found}), indent=1) + "\n")
    return found


def write_picture(folder: RunFolder, mixture: Mixture, assembly: Assembly) -> None:
    """samples/final.png: what the mixture makes, a row for each label."""
    if mixture.is_image and (mixture.label_of >= 0).all():
        each = [mixture.sample(12, label=int(k)) for k in sorted(set(mixture.label_of.tolist()))[:50]]
        x, y = np.concatenate([s.x for s in each]), np.concatenate([s.y for s in each])
        pictures.save(pictures.draw_samples(x, y, mixture.labels), folder.samples / "final.png")
    else:
        drawn = mixture.sample(144 if mixture.is_image else 2500)
        data = None if mixture.is_image else assembly.dataset.x
        pictures.save(
            pictures.draw_samples(drawn.x, None, (), member=drawn.member, data=data), folder.samples / "final.png"
        )
