"""The end of a run: the mixture, its scores, its pictures and the report."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ganherd import pictures, scores
from ganherd.errors import UserError
from ganherd.herd.breeds import Breed
from ganherd.herd.state import bases, buffers_of
from ganherd.herd.streams import PRIORS
from ganherd.mixture import Mixture, recalibrated
from ganherd.mixture_breeds import Generators
from ganherd.mixture_file import Neighbourhoods
from ganherd.recipe import Net, Recipe
from ganherd.run.assemble import Assembly
from ganherd.run.folder import RunFolder, write_aside
from ganherd.run.progress import Progress
from ganherd.run.record import plain


def make_mixture(assembly: Assembly, step: int, neighbourhoods: Neighbourhoods | None = None) -> Mixture:
    """Generators with the weights that are exported (the running average where there is one), batch norm re-estimated.

    Where neighbourhoods made mixtures of their own, the whole is that of the best, in each replica its own.
    """
    herd, recipe = assembly.herd, assembly.recipe
    chosen = herd.priors(slice(0, assembly.members))
    nets = recipe.nets.each(assembly.members)
    made = Mixture(
        labels=assembly.dataset.labels,
        shape=assembly.dataset.shape,
        offset=assembly.dataset.offset,
        scale=assembly.dataset.scale,
        latent=herd.rules.latent,
        prior=herd.rules.prior if chosen is None else tuple(PRIORS[number] for number in chosen.tolist()),
        label_of=assembly.label[: assembly.members],
        weights=member_weights(recipe, assembly),
        label_weights=label_weights(recipe, assembly),
        seeds=[recipe.run.seed + r for r in range(recipe.herd.seeds)],
        step=step,
        breeds=tuple(_exported(assembly, breed, net) for breed, (net, _) in zip(herd.breeds.all, nets, strict=True)),
        neighbourhoods=neighbourhoods,
    )
    if neighbourhoods is None:
        return made
    each = np.stack([made.neighbourhood(cell).weights_of(r) for r, cell in enumerate(neighbourhoods.best)])
    return replace(made, weights=each if len(each) > 1 else each[0])


def _exported(assembly: Assembly, breed: Breed, net: Net) -> Generators:
    """The generators of one breed."""
    herd = assembly.herd
    rows = herd.breeds.rows(breed, herd.state["set.slot"].tolist())
    state = breed.view(herd.state)
    weights = state.get("g.ema", state["g.params"])[rows].detach().cpu()
    views = {name: value.clone() for name, value in breed.g.views(weights).items()}
    buffers: dict[str, list[torch.Tensor]] = {name: [] for name in breed.g.buffers}
    keys, priors = bases(state).tolist(), herd.priors(slice(0, herd.size))
    for number, member in enumerate(rows):
        found = recalibrated(
            breed.g.module,
            {name: value[number] for name, value in views.items()},
            {name: value[member].cpu() for name, value in buffers_of(state, "g").items()},
            herd.rules.latent,
            herd.rules.prior if priors is None else PRIORS[int(priors[member])],
            len(assembly.dataset.labels),
            keys[member],
            herd.device,
        )
        for name, value in found.items():
            buffers[name].append(value)
    module = copy.deepcopy(breed.g.module).cpu().eval()
    stacked = {name: torch.stack(values) for name, values in buffers.items()}
    return Generators(net, len(breed.slots), module, views, stacked)


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
    """scores.json; a mixture that cannot be scored, as with a member left NaN by policy, still ends its run."""
    try:
        found = scores.score_seeds(mixture, assembly.dataset, progress=progress.say)
    except UserError as error:
        progress.say(f"not scored: {error}")
        found = {"skipped": dict.fromkeys(scores.known_metrics(None), str(error).rstrip("."))}
    write_aside(folder.scores_path, json.dumps(plain({"scores": found}), indent=1) + "\n")
    return found


def write_picture(folder: RunFolder, mixture: Mixture, assembly: Assembly) -> None:
    """samples/final.png: what the mixture makes, a row for each label; a label whose member is broken has none."""
    stands = np.arange(len(mixture.labels)) if mixture.takes_label else np.unique(mixture.label_of)
    if mixture.is_image and (stands >= 0).all():
        asked: list[int | None] = stands[:50].tolist()
        count = 12
    else:
        asked, count = [None], 144 if mixture.is_image else 2500
    each = []
    for label in asked:
        with suppress(UserError):
            each.append(mixture.sample(count, label=label))
    if not each:
        return
    x, y, member = (np.concatenate([getattr(drawn, field) for drawn in each]) for field in ("x", "y", "member"))
    data = None if mixture.is_image else assembly.dataset.x
    labelled = asked != [None]
    picture = pictures.draw_samples(
        x, y if labelled else None, mixture.labels if labelled else (), member=None if labelled else member, data=data
    )
    pictures.save(picture, folder.samples / "final.png")
