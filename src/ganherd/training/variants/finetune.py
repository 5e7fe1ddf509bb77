"""Fine-tuning: members that start from those of finished runs, with their nets, their prior and their weights.

Both nets of a member are taken over with their buffers and, where there is one, the running average; Adam starts anew. Where
the run has one conditional GAN and each member here is of a class, it takes that class's own nets out of it (`nets.of_class`).
What a run started from lies in its first checkpoint, so that it can be resumed without those runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ganherd import nets
from ganherd.herd.breeds import Breeds
from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import Blueprint, Seat, State, take_
from ganherd.mixture import mixture_files
from ganherd.nets.catalog import is_foreign
from ganherd.recipe import recipe_file
from ganherd.recipe.net_config import BreedConfig, NetConfig, NetsConfig
from ganherd.recipe.schema import OriginConfig, Recipe
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, mixture_of
from ganherd.training.variants.class_start import ByClass
from ganherd.util.errors import UserError
from ganherd.util.user_code import importable_from


@dataclass(frozen=True)
class OriginRun:
    """A finished run that members start from."""

    path: str
    folder: RunFolder
    recipe: Recipe
    facts: mixture_files.MixtureFacts

    @classmethod
    def open(cls, path: str, members: int = 1) -> OriginRun:
        """`members`: how many are asked of it; what would train it is told, where its name says the recipe."""
        name = Path(path).name
        if not Path(path).exists() and name in dict(recipe_file.names()):
            more = f" --set herd.members={members}" if members > 1 else ""
            raise UserError(
                f"there is no run {path} to start from: `ganherd train {name}{more} --run {path}` makes it."
            )
        folder = RunFolder.open(path)
        state = str(folder.info.state)
        if state != "finished":
            raise UserError(f"{path} is not finished, so no member can start from it: `{folder.again}`.")
        return cls(path, folder, folder.recipe, mixture_files.read_facts(mixture_of(path)))

    @property
    def members(self) -> int:
        return len(self.facts.label_of)

    @property
    def replicas(self) -> int:
        return len(self.facts.seeds)

    def net(self, member: int) -> NetConfig:
        return [net for net, count in self.recipe.nets.each(self.members) for _ in range(count)][member]

    def check(self, member: int, replica: int) -> None:
        if member >= self.members:
            raise UserError(
                f"herd.members asks for member {member} of {self.path}, which has {self.members}, counted from 0."
            )
        if replica >= self.replicas:
            raise UserError(
                f"herd.members asks for replica {replica} of {self.path}, which has {self.replicas}, counted from 0."
            )

    def must_have(self, members: int | None, seeds: int, key: str = "herd.start_from") -> None:
        """Enough for a herd that starts from it as a whole; `members`: none, where the data will say it."""
        for mine, theirs, what in ((members, self.members, "members"), (seeds, self.replicas, "replicas")):
            if mine is not None and theirs not in (1, mine):
                raise UserError(
                    f"{key}: {self.path} has {theirs} {what} and this herd {mine}: "
                    "they must be as many, or the run must have one."
                )


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with the nets of the members that it starts from; as it is, where it starts from none."""
    herd = recipe.herd
    if isinstance(herd.members, list):
        needed = {
            path: max(o.member for o in herd.members if o.run == path) + 1 for path in (o.run for o in herd.members)
        }
        sources = {path: OriginRun.open(path, members) for path, members in needed.items()}
        for origin in herd.members:
            sources[origin.run].check(origin.member, origin.replica)
        found = _nets([(sources[origin.run], origin.member) for origin in herd.members])
    elif herd.start_from is None and herd.grow_from is not None:
        source = OriginRun.open(herd.grow_from)
        sources = {herd.grow_from: source}
        found = _nets([(source, member) for member in range(source.members)])
    elif herd.start_from is not None:
        source = OriginRun.open(herd.start_from)
        sources = {herd.start_from: source}
        if herd.count is None and source.members > 1 and _is_free(recipe):
            herd = herd.model_copy(update={"members": source.members})
        source.must_have(herd.count or recipe.members, herd.seeds)
        found = as_taken(recipe, _nets([(source, member) for member in range(source.members)]))
    else:
        return recipe
    foreign = next((net.name for net in found.all if is_foreign(net.name)), None)
    if recipe.nets != found and foreign:
        raise UserError(
            f"{' or '.join(sources)} names the net {foreign}, which is not ganherd's: if you trust it, write its nets "
            "section into your recipe."
        )
    if recipe.nets not in (found, NetsConfig()):
        raise UserError("nets are those of the runs that members start from: leave nets out of the recipe.")
    return recipe_file.load({**recipe.model_dump(), "nets": found.model_dump(), "herd": herd.model_dump()})


def as_resolved(recipe: Recipe, before: Recipe) -> Recipe:
    """The recipe with what was taken from other runs when `before` was resolved, without those runs."""
    if recipe.herd.first is not None and recipe.herd.start_from is None and before.herd.first is None:
        second = {"first": None, "start_from": before.herd.start_from}
        recipe = recipe.model_copy(update={"herd": recipe.herd.model_copy(update=second)})
    if recipe.herd.start_from is None and recipe.herd.grow_from is None and not isinstance(recipe.herd.members, list):
        return recipe
    herd = recipe.herd
    if herd.members is None and herd.start_from == before.herd.start_from:
        herd = herd.model_copy(update={"members": before.herd.members})
    return recipe.model_copy(update={"herd": herd, "nets": before.nets if recipe.nets == NetsConfig() else recipe.nets})


def _is_free(recipe: Recipe) -> bool:
    """Whether neither the data nor the strategy says how many members there are."""
    return recipe.data.partition != "by-class" and recipe.strategy.settings.num_members is None


def _nets(each: Sequence[tuple[OriginRun, int]]) -> NetsConfig:
    """The nets of a herd of these members, in this order: neighbours with the same generator are one breed."""
    first = each[0][0]
    for source, _ in each:
        for what in ("discriminator", "latent"):
            one, other = (getattr(run.recipe.nets, what) for run in (first, source))
            if one != other:
                shown = [getattr(value, "name", value) for value in (one, other)]
                raise UserError(
                    f"{first.path} and {source.path} cannot be one herd, since nets.{what} must be the same for all: "
                    f"{shown[0]} and {shown[1]}{' differ in their settings' if shown[0] == shown[1] else ''}."
                )
    priors = [source.recipe.nets.prior_of(member) for source, member in each]
    breeds = [
        BreedConfig(generator=net, members=len(list(own)))
        for net, own in groupby(source.net(member) for source, member in each)
    ]
    return NetsConfig(
        generator=breeds[0].generator,
        discriminator=first.recipe.nets.discriminator,
        breeds=breeds if len(breeds) > 1 else [],
        latent=first.recipe.nets.latent,
        prior=priors[0] if len(set(priors)) == 1 else priors,
    )


def as_taken(recipe: Recipe, found: NetsConfig) -> NetsConfig:
    """The nets of a run as a herd takes them: a member of one class has its part of conditional ones."""
    return _of_class(found) if recipe.data.partition == "by-class" and recipe.nets != found else found


def _of_class(found: NetsConfig) -> NetsConfig:
    """The nets of a member that stands for one class of conditional ones; all others as they are."""
    if {found.generator.name, found.discriminator.name} != {"conditional"} or found.breeds:
        return found
    own = {
        what: NetConfig(name="residual", settings=getattr(found, what).settings)
        for what in ("generator", "discriminator")
    }
    return found.model_copy(update=own)


# -- weights ----------------------------------------------------------------------------------------------------------


def start(
    herd: Herd,
    recipe: Recipe,
    shape: tuple[int, ...],
    trust_code: bool,
    seats: Sequence[Seat],
    members: int,
    classes: Sequence[str],
) -> list[dict[str, Any]]:
    """Gives the members of a new herd the weights that they start from, and says of each where these are from.

    `seats`: of the herd's members, which may be some of the recipe's; `members`: of one replica of those; `classes`: the name of
    each one's, empty where it stands for none.
    """
    everyones = _origins(recipe, members)
    origins = [everyones[(seat.seed - recipe.run.seed) * members + seat.slot] for seat in seats] if everyones else []
    told: list[dict[str, Any]] = [{} for _ in origins]
    for path in dict.fromkeys(origin.run for origin in origins):
        source = OriginRun.open(path)
        if tuple(source.facts.shape) != shape:
            raise UserError(
                f"{path} was trained on data of shape {tuple(source.facts.shape)}, and this data has {shape}: "
                "its members cannot be trained on here."
            )
        rows = [row for row, origin in enumerate(origins) if origin.run == path]
        wanted = [origins[row].replica * source.members + origins[row].member for row in rows]
        breeds, found = read(source, sorted(set(wanted)), trust_code)
        conditional = source.recipe.nets.discriminator != recipe.nets.discriminator  # see `resolved`
        apart: dict[int, ByClass] = {}
        for row, number in zip(rows, wanted, strict=True):
            at, member = sorted(set(wanted)).index(number), origins[row].member
            part = {name: value[[at]] for name, value in breeds.of(member).view(found.state).items()}
            if conditional:
                apart[number] = apart.get(number) or ByClass(source, part)
                part = apart[number].state(classes[row], herd.g, herd.d)
            told[row] = {"from": path, "member": member, "replica": origins[row].replica, "step": found.step}
            told[row]["sha256"] = take(herd, row, part, f"member {member} of {path}")
    return told


def notes(started: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a person is told of it."""
    runs = dict.fromkeys((one["from"], one["step"], "kept" in one) for one in started if one)
    return [
        f"classes of {run} (step {step:,}) are kept as they are"
        if kept
        else f"members start from {run} (step {step:,}); Adam starts anew"
        for run, step, kept in runs
    ]


def _origins(recipe: Recipe, members: int) -> list[OriginConfig]:
    """[N] where each member of the herd starts from; none: nowhere."""
    herd = recipe.herd
    if isinstance(herd.members, list):
        return list(herd.members) * herd.seeds
    if herd.start_from is None:
        return []
    source = OriginRun.open(herd.start_from)
    source.must_have(members, herd.seeds)
    return [
        OriginConfig.model_validate({"from": source.path, "member": m % source.members, "replica": r % source.replicas})
        for r in range(herd.seeds)
        for m in range(members)
    ]


def read(source: OriginRun, members: list[int], trust_code: bool) -> tuple[Breeds, checkpoint.Checkpoint]:
    """Those members out of the run's last whole checkpoint, and its breeds."""
    facts, own = source.facts, source.recipe.nets
    shape, classes = tuple(facts.shape), len(facts.labels)
    with importable_from(source.recipe.code):
        each = [
            (net.name, Blueprint(nets.build_generator(net, shape, own.latent, classes, trust_code=trust_code)), count)
            for net, count in own.each(source.members)
        ]
        d = Blueprint(nets.build_discriminator(own.discriminator, shape, classes, trust_code=trust_code))
    breeds = Breeds(each)
    found, _ = checkpoint.newest(source.folder.checkpoints, {"g": breeds, "d": d}, members)
    return breeds, found


def take(herd: Herd, row: int, part: State, name: str) -> str:
    """Writes one member's nets into a row of the herd; says the sha256 of what was written."""
    mine = herd.breed_of(row).view(herd.state)
    parts = ("g.params", "g.ema", "d.params", "g.buffers.", "d.buffers.")
    target = {key: value for key, value in mine.items() if key.startswith(parts)}
    average = {"g.ema": part["g.params"], "g.ema.t": part["g.adam.t"]}  # of a run without one
    given = {**average, **{key: value for key, value in part.items() if key.startswith(parts)}}
    if wrong := [key for key, value in target.items() if key not in given or given[key].shape[1:] != value.shape[1:]]:
        raise UserError(
            f"{name} does not fit this herd: its {wrong[0]} is of another shape, as is that of nets with `label: true` where there "
            "are more classes."
        )
    if not all(bool(torch.isfinite(value).all()) for value in given.values()):
        raise UserError(f"{name} is not finite, so nothing can start from it: take another member.")
    take_(target, given, [row], [0])
    digest = hashlib.sha256()
    for key in sorted(target):
        digest.update(key.encode() + given[key].contiguous().numpy().tobytes())
    return digest.hexdigest()
