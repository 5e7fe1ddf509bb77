"""Growing a herd: the classes of a finished run stay as they are, to the bit, and only those that it lacks are trained.

A class that is kept is a member that rests from the first step on, with the weights and statistics of that run's mixture. All
of it lies in the first checkpoint, so that the grown run needs the other one no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import take_
from ganherd.mixture import mixture
from ganherd.recipe.schema import Recipe
from ganherd.recipe.trust import covers
from ganherd.training.setup.member_data import MemberData
from ganherd.training.variants import finetune
from ganherd.util.errors import UserError


def kept(made: MemberData) -> dict[int, tuple[int, int]]:
    """The members [of all replicas] that are kept: each one's number and replica in the run that is grown."""
    path = made.recipe.herd.grow_from
    if path is None:
        return {}
    source, data = finetune.OriginRun.open(path), made.dataset
    facts = source.facts
    if min(facts.label_of) < 0 or len(source.recipe.nets.each(source.members)) > 1:
        raise UserError(f"herd.grow_from: the members of {path} do not stand for a class each, so it cannot be grown.")
    source.must_have(None, made.recipe.herd.seeds, "herd.grow_from")
    if (tuple(facts.shape), facts.offset, facts.scale) != (data.shape, data.offset, data.scale):
        raise UserError(f"herd.grow_from: {path} was trained on data of another shape or range than {data.name}.")
    theirs = {facts.labels[label]: member for member, label in enumerate(facts.label_of)}
    ours = {data.labels[label] for label in np.unique(data.y).tolist() if label >= 0}
    if gone := sorted(theirs.keys() - ours):
        raise UserError(
            f"herd.grow_from: {data.name} has no class {gone[0]!r}, which {path} has: give data of all classes."
        )
    if not ours - theirs.keys():
        raise UserError(
            f"herd.grow_from: {path} has every class of {data.name} already; to train one anew: "
            f"{source.folder.again} --retrain CLASS"
        )
    out = {}
    for number, (label, seat) in enumerate(zip(made.label.tolist(), made.seats, strict=True)):
        if (name := data.labels[label]) in theirs:
            out[number] = theirs[name], (seat.seed - made.recipe.run.seed) % source.replicas
    return out


def start(
    herd: Herd,
    recipe: Recipe,
    found: Mapping[int, tuple[int, int]],
    own: Sequence[int],
    started: list[dict[str, Any]],
    trust_code: bool,
) -> list[dict[str, Any]]:
    """Gives the members that are kept (`found`) their nets; says, for each of the herd's (`own` of all), where it is from."""
    path = str(recipe.herd.grow_from)
    source = finetune.OriginRun.open(path)
    told = started or [{} for _ in own]
    rows = [row for row, member in enumerate(own) if member in found]
    if not rows:
        return told
    exported = mixture.load(path, trust_code and covers(recipe, source.facts))
    wanted = {row: found[own[row]][1] * source.members + found[own[row]][0] for row in rows}
    members = sorted(set(wanted.values()))
    breeds, last = finetune.read(source, members, trust_code)
    for row, number in wanted.items():
        member, replica = found[own[row]]
        at = members.index(number)
        part = {name: value[[at]] for name, value in breeds.of(member).view(last.state).items()}
        told[row] = {"from": path, "member": member, "replica": replica, "step": last.step, "kept": True}
        told[row]["sha256"] = finetune.take(herd, row, part, f"member {member} of {path}")
        _as_exported(herd, row, exported.generator(member, replica)[1])
    return told


def _as_exported(herd: Herd, row: int, own: dict[str, torch.Tensor]) -> None:
    """What the mixture will take from here is what the other mixture has, with batch norm's statistics as they were found."""
    weights = torch.cat([own[name].reshape(-1) for name in herd.g.shapes]) if herd.g.shapes else torch.zeros(0)
    name = "g.ema" if "g.ema" in herd.state else "g.params"
    given = {name: weights[None], **{f"g.buffers.{key}": own[key][None] for key in herd.g.buffers}}
    take_({key: herd.state[key] for key in given}, given, [row], [0])
