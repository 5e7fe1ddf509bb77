"""The end of a run: the mixture, its scores, its pictures and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ganherd import scoring
from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.checks.module_copies import twin
from ganherd.herd.rng import PRIORS
from ganherd.herd.state import State, bases, buffers_of
from ganherd.mixture.generators import Generators
from ganherd.mixture.mixture import Mixture, recalibrate_batch_norm
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.recipe.schema import NetConfig, Recipe
from ganherd.runs.folder import RunFolder, write_aside
from ganherd.runs.records import plain
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.progress import Progress
from ganherd.viz import pictures


def make_mixture(
    assembly: PreparedHerd, step: int, neighbourhoods: Neighbourhoods | None = None, exported: State | None = None
) -> Mixture:
    """The mixture of all members; `exported`: their generators, as `exports` has them; none: those of this process.

    Where neighbourhoods made mixtures of their own, the whole is that of the best, in each replica its own.
    """
    herd, recipe = assembly.herd, assembly.recipe
    nets = recipe.nets.each(assembly.members)
    rows = exports(assembly) if exported is None else exported
    slots = [seat.slot for seat in assembly.seats]
    breeds = [
        (breed, net, herd.breeds.rows(breed, slots)) for breed, (net, _) in zip(herd.breeds.all, nets, strict=True)
    ]
    made = Mixture(
        labels=assembly.dataset.labels,
        shape=assembly.dataset.shape,
        offset=assembly.dataset.offset,
        scale=assembly.dataset.scale,
        latent=herd.rules.latent,
        prior=herd.rules.prior
        if herd.rules.prior != "mixed"
        else tuple(recipe.nets.prior_of(slot) for slot in slots[: assembly.members]),
        label_of=assembly.label[: assembly.members],
        weights=member_weights(recipe, assembly),
        label_weights=label_weights(recipe, assembly),
        seeds=[recipe.run.seed + r for r in range(recipe.herd.seeds)],
        step=step,
        breeds=tuple(_generators(rows, *each) for each in breeds),
        neighbourhoods=neighbourhoods,
        stream_version=rng.version(),
    )
    if neighbourhoods is None:
        return made
    each = np.stack([made.neighbourhood(cell).weights_of(r) for r, cell in enumerate(neighbourhoods.best)])
    return replace(made, weights=each if len(each) > 1 else each[0])


def exports(assembly: PreparedHerd, instead: State | None = None) -> State:
    """Of this rank's generators the weights that are exported (the running average where there is one), and all buffers, batch
    norm re-estimated; rows as in the herd's state. `instead`: other parameters and buffers than those of now."""
    herd = assembly.herd
    state = herd.state if instead is None else {**herd.state, "g.ema": instead["g.params"], **instead}
    slots, keys, priors = herd.state["set.slot"].tolist(), bases(herd.state).tolist(), herd.priors(slice(0, herd.size))
    out: State = {"g.params": state.get("g.ema", state["g.params"]).detach().cpu()}
    for breed in herd.breeds.all:
        for name, (shape, dtype) in breed.g.buffers.items():
            out[f"g.buffers.{breed.mark}{name}"] = torch.zeros(herd.size, *shape, dtype=dtype)
        weights, buffers = breed.g.views(breed.view(out)["g.params"]), buffers_of(breed.view(state), "g")
        for row in herd.breeds.rows(breed, slots):
            if assembly.own[row] in assembly.kept:  # as the run that was grown has it
                for name, value in buffers.items():
                    out[f"g.buffers.{breed.mark}{name}"][row] = value[row].cpu()
                continue
            found = recalibrate_batch_norm(
                breed.g.module,
                {name: value[row] for name, value in weights.items()},
                {name: value[row].cpu() for name, value in buffers.items()},
                herd.rules.latent,
                herd.rules.prior if priors is None else PRIORS[int(priors[row])],
                assembly.labels_of(assembly.own[row]),
                keys[row],
                herd.device,
            )
            for name, value in found.items():
                out[f"g.buffers.{breed.mark}{name}"][row] = value
    return out


def _generators(exported: State, breed: Breed, net: NetConfig, rows: Sequence[int]) -> Generators:
    """Those of one breed, which are these rows of what was exported."""
    own = {name: value[list(rows)] for name, value in breed.view(exported).items()}
    views = {name: value.clone() for name, value in breed.g.views(own["g.params"]).items()}
    module = twin(breed.g.module).cpu()
    return Generators(net, len(breed.slots), module, views, buffers_of(own, "g"))


def label_weights(recipe: Recipe, assembly: PreparedHerd) -> np.ndarray:
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


def member_weights(recipe: Recipe, assembly: PreparedHerd) -> np.ndarray:
    """[members] p(y) of the class that each stands for, shared among those that stand for the same; else equal."""
    label = assembly.label[: assembly.members]
    if (label < 0).any():
        return np.full(len(label), 1.0 / len(label))
    weights = label_weights(recipe, assembly)[label] / np.bincount(label)[label]
    return np.asarray(weights / weights.sum())


def write_scores(folder: RunFolder, mixture: Mixture, assembly: PreparedHerd, progress: Progress) -> dict[str, Any]:
    """scores.json, where it is wanted; a mixture that cannot be scored, as with a member left NaN by policy, still ends its run."""
    if not assembly.recipe.run.scores:
        folder.scores_path.unlink(missing_ok=True)  # those of an earlier step
        return {}
    try:
        found = scoring.score_seeds(mixture, assembly.dataset, progress=progress.say)
    except UserError as error:
        progress.say(f"not scored: {error}")
        found = {"skipped": dict.fromkeys(scoring.known_metrics(None), str(error).rstrip("."))}
    write_aside(folder.scores_path, json.dumps(plain({"scores": found}), indent=1) + "\n")
    return found


def write_picture(folder: RunFolder, mixture: Mixture, assembly: PreparedHerd) -> None:
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
