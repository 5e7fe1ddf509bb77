"""Grow a herd: take over the classes of a finished run bit for bit, and train only the classes that it lacks.

The members that are taken over are frozen: they have the weights and batch-norm statistics of the finished run's
mixture and are never trained. The first checkpoint holds them, so the new run does not need the finished one any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ganherd.data.shards import shards
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import take_
from ganherd.mixture import mixture
from ganherd.recipe.schema import Recipe
from ganherd.recipe.trust import covers
from ganherd.training.setup.member_data import MemberData
from ganherd.training.variants import finetune
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.paths import expanded


def frozen_members(members: MemberData) -> dict[int, tuple[int, int]]:
    """Return the members that are frozen, i.e. taken from the finished run and not trained, of all replicas.

    Returns:
        For the number of each frozen member, its (member, replica) in the finished run. Empty if the recipe grows no
        run.

    Raises:
        UserError: The finished run cannot be grown with this data.
    """
    path = members.recipe.herd.grow_from
    if path is None:
        return {}
    source, data = finetune.OriginRun.open(path), members.dataset
    facts = source.facts
    if min(facts.label_of) < 0 or len(source.recipe.nets.each(source.members)) > 1:
        raise UserError(f"herd.grow_from: the members of {path} do not have one class each, so it cannot be grown.")
    source.must_have(None, members.recipe.herd.replicas, "herd.grow_from")
    units = [tuple(unit) if isinstance(unit, list) else unit for unit in (facts.offset, facts.scale)]
    if (tuple(facts.shape), *units) != (data.shape, data.offset, data.scale):
        raise UserError(f"herd.grow_from: {path} was trained on data of another shape or range than {data.name}.")
    if len(set(facts.label_of)) < len(facts.label_of):
        raise UserError(f"herd.grow_from: {path} has several members of a class, so it cannot be grown.")
    theirs = {facts.labels[label]: member for member, label in enumerate(facts.label_of)}
    ours = {data.labels[label] for label in np.unique(data.y).tolist() if label >= 0}
    if gone := sorted(theirs.keys() - ours):
        raise UserError(
            f"herd.grow_from: {data.name} has no class {gone[0]!r}, which {path} has: give data of all classes."
        )
    if not ours - theirs.keys():
        raise UserError(
            f"herd.grow_from: {path} has every class of {data.name} already; to retrain one: "
            f"{source.folder.again} --retrain CLASS"
        )
    out = {}
    for number, (label, seat) in enumerate(zip(members.label.tolist(), members.seats, strict=True)):
        if (name := data.labels[label]) in theirs:
            out[number] = theirs[name], (seat.seed - members.recipe.run.seed) % source.replicas
    return out


def notes(members: MemberData) -> list[str]:
    """Return a note if rows that kept members have learnt from may be held out now, because images of their classes changed."""
    path, data = members.recipe.herd.grow_from, members.dataset
    if path is None or data.holdout is None or not isinstance(data.x, np.ndarray):
        return []
    source = finetune.OriginRun.open(path)
    if shards.is_prepared(expanded(source.recipe.data.source)):  # its digest is not that of the images
        return []
    labels = source.facts.labels
    their_number = np.array(
        [*(labels.index(label) if label in labels else -1 for label in data.labels), -1], data.y.dtype
    )
    own, test = their_number[data.y], their_number[data.y_test]
    same_classes = replace(
        data,
        x=data.x[own >= 0],
        y=own[own >= 0],
        x_test=data.x_test[test >= 0],
        y_test=test[test >= 0],
        labels=tuple(labels),
    )
    if same_classes.digest == source.folder.info.data:
        return []
    return [
        f"the data of the classes that are kept is not that of {path}: rows that their members learnt from may be held out now, so "
        "that scores against held-out rows may be too good"
    ]


def start(
    herd: StackedHerd, recipe: Recipe, wanted: Mapping[int, tuple[int, int]], trust_code: bool
) -> dict[int, JsonObject]:
    """Copy the nets of frozen members into rows of the herd, and return the origin of each by its row, for run.json.

    Args:
        wanted: For each row of a frozen member, its (member, replica) in the finished run.
        trust_code: Whether code of the user's own may be imported to build nets.
    """
    if not wanted:
        return {}
    path = str(recipe.herd.grow_from)
    source = finetune.OriginRun.open(path)
    exported, origins = mixture.load(path, trust_code and covers(recipe, source.facts)), {}
    for row, member_state, origin in source.read(wanted, trust_code):
        member, replica = wanted[row]
        digest = finetune.take(herd, row, member_state, f"member {member} of {path}")
        origins[row] = {**origin, "kept": True, "sha256": digest}
        _as_exported(herd, row, exported.generator(member, replica)[1])
    return origins


def _as_exported(herd: StackedHerd, row: int, own: dict[str, torch.Tensor]) -> None:
    """Write an exported generator into a row, so that the new run exports it with the same numbers.

    Args:
        own: Parameters and buffers, batch-norm statistics included, from the finished run's mixture.
    """
    weights = torch.cat([own[name].reshape(-1) for name in herd.g.shapes]) if herd.g.shapes else torch.zeros(0)
    name = "g.ema" if "g.ema" in herd.state else "g.params"
    rows = {name: weights[None], **{f"g.buffers.{key}": own[key][None] for key in herd.g.buffers}}
    take_({key: herd.state[key] for key in rows}, rows, [row], [0])
