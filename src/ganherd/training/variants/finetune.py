"""Fine-tune: start the members of a new run from members of finished runs, with their nets, prior and weights.

A member takes both nets with their buffers and the running average of the generator's weights, if there is one; Adam
starts from zero. If the finished run is one conditional GAN and each new member has a class, a member takes the nets of
its class (`class_start`). The first checkpoint holds the weights that members started from, so that a run can be
resumed without the runs that it started from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd import nets
from ganherd.herd.breeds import Breeds
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import Blueprint, State, finite_members, take_
from ganherd.mixture import mixture_files
from ganherd.nets.catalog import is_strange
from ganherd.recipe import recipe_file
from ganherd.recipe.net_config import BreedConfig, NetConfig, NetsConfig
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sections.herd_config import OriginConfig
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, mixture_of
from ganherd.training.variants.class_start import ByClass
from ganherd.util.errors import UserError
from ganherd.util.user_code import importable_from

if TYPE_CHECKING:
    from ganherd.training.setup.member_data import MemberData


@dataclass(frozen=True)
class OriginRun:
    """A finished run that members start from."""

    path: str
    folder: RunFolder
    recipe: Recipe
    facts: mixture_files.MixtureFacts

    @classmethod
    def open(cls, path: str, members: int = 1) -> OriginRun:
        """Open a finished run.

        Args:
            members: The number of members that are needed, for the command that the error suggests.

        Raises:
            UserError: The run does not exist or is not finished. If its name is that of a recipe, the error shows how to train it.
        """
        name = Path(path).name
        if not Path(path).exists() and name in dict(recipe_file.names()):
            more = f" --set herd.members={members}" if members > 1 else ""
            raise UserError(
                f"there is no run {path} to start from: `ganherd train {name}{more} --run {path}` makes it."
            )
        folder = RunFolder.open(path)
        if folder.info.state != "finished":
            raise UserError(f"{path} is not finished, so no member can start from it: `{folder.again}`.")
        return cls(path, folder, folder.recipe, mixture_files.read_facts(mixture_of(path)))

    @property
    def members(self) -> int:
        """The number of members in one replica of the run."""
        return len(self.facts.label_of)

    @property
    def replicas(self) -> int:
        """The number of replicas (copies of the herd with other seeds) in the run."""
        return len(self.facts.seeds)

    def net(self, member: int) -> NetConfig:
        """Return the generator of a member."""
        return [net for net, count in self.recipe.nets.each(self.members) for _ in range(count)][member]

    def check(self, member: int, replica: int) -> None:
        """Raise a `UserError` if this run does not have this member or replica."""
        for what, number, there in (("member", member, self.members), ("replica", replica, self.replicas)):
            if number >= there:
                raise UserError(
                    f"herd.members asks for {what} {number} of {self.path}, which has {there}, counted from 0."
                )

    def read(
        self, wanted: Mapping[int, tuple[int, int]], trust_code: bool
    ) -> Iterator[tuple[int, State, dict[str, Any]]]:
        """Read members from the newest complete checkpoint.

        Args:
            wanted: For each row of a new herd, the member and the replica of this run that it starts from.
            trust_code: Whether code of the user's own may be imported to build nets.

        Yields:
            For each row: the row, the state [1, …] to start from, and its origin as run.json records it.
        """
        own, shape, classes = self.recipe.nets, tuple(self.facts.shape), len(self.facts.labels)
        with importable_from(self.recipe.code):
            each = [
                (net.name, Blueprint(nets.build_generator(net, shape, own.latent, classes, trust_code=trust_code)), n)
                for net, n in own.each(self.members)
            ]
            d = Blueprint(nets.build_discriminator(own.discriminator, shape, classes, trust_code=trust_code))
        breeds = Breeds(each)
        numbers = {row: replica * self.members + member for row, (member, replica) in wanted.items()}
        saved = sorted(set(numbers.values()))
        last, _ = checkpoint.newest(self.folder.checkpoints, {"g": breeds, "d": d}, saved)
        for row, (member, replica) in wanted.items():
            at = saved.index(numbers[row])
            state = {name: value[[at]] for name, value in breeds.of(member).view(last.state).items()}
            yield row, state, {"from": self.path, "member": member, "replica": replica, "step": last.step}

    def must_have(self, members: int | None, seeds: int, key: str = "herd.start_from") -> None:
        """Refuse a herd with another number of members or seeds than this run, unless this run has only one.

        Args:
            members: The number of members of the herd; None if it is not known yet.
            seeds: The number of replicas of the herd.
            key: The recipe's key that names this run, for the message.

        Raises:
            UserError: The numbers differ.
        """
        for mine, theirs, what in ((members, self.members, "members"), (seeds, self.replicas, "replicas")):
            if mine is not None and theirs not in (1, mine):
                raise UserError(
                    f"{key}: {self.path} has {theirs} {what} and this herd {mine}: "
                    "they must be as many, or the run must have one."
                )


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe, completed with the nets of the runs that members start from.

    `herd.members` is set, too, if nothing else decides the number of members. A recipe whose members start from fresh
    weights is returned as it is.
    """
    herd, data = recipe.herd, recipe.data
    if isinstance(herd.members, list):
        needed: dict[str, int] = {}
        for origin in herd.members:
            needed[origin.run] = max(needed.get(origin.run, 0), origin.member + 1)
        sources = {path: OriginRun.open(path, members) for path, members in needed.items()}
        for origin in herd.members:
            sources[origin.run].check(origin.member, origin.replica)
        inherited = _nets([(sources[origin.run], origin.member) for origin in herd.members])
    elif path := herd.start_from or herd.grow_from:
        source = OriginRun.open(path)
        sources = {path: source}
        inherited = _nets([(source, member) for member in range(source.members)])
        if herd.start_from is not None:
            # neither the data nor the strategy decides the number of members
            is_free = recipe.data.partition != "by-class" and recipe.strategy.settings.num_members is None
            if herd.count is None and source.members > 1 and is_free:
                herd = herd.model_copy(update={"members": source.members})
            source.must_have(herd.count or recipe.members, herd.replicas)
            inherited = as_taken(recipe, inherited)
        else:
            numbers = {
                label: number for number, label in enumerate(source.facts.labels)
            } | source.recipe.data.held_out_as
            data = data.model_copy(update={"held_out_as": numbers})  # kept members have learnt from the other rows
    else:
        return recipe
    foreign = next((net.name for net in inherited.all if is_strange(net.name)), None)
    given = recipe.nets.thawed
    if given != inherited and foreign:
        raise UserError(
            f"{' or '.join(sources)} names the net {foreign}, which is not ganherd's: if you trust it, write its nets "
            "section into your recipe."
        )
    if given not in (inherited, NetsConfig()):
        raise UserError(
            "nets are those of the runs that members start from: leave nets out of the recipe, except nets.frozen."
        )
    nets = {**inherited.model_dump(), "frozen": recipe.nets.frozen}
    whole = {**recipe.model_dump(), "nets": nets, "herd": herd.model_dump(), "data": data.model_dump()}
    return recipe_file.load(whole, is_own=False)


def as_resolved(recipe: Recipe, before: Recipe) -> Recipe:
    """Return what `resolved` would return for a recipe, without reading the runs that members start from.

    Args:
        recipe: The recipe as the user gives it now.
        before: The recorded recipe of the same run, which `resolved` has completed.
    """
    if recipe.herd.first is not None and recipe.herd.start_from is None and before.herd.first is None:
        second = {"first": None, "start_from": before.herd.start_from}
        recipe = recipe.model_copy(update={"herd": recipe.herd.model_copy(update=second)})
    if recipe.herd.start_from is None and recipe.herd.grow_from is None and not isinstance(recipe.herd.members, list):
        return recipe
    herd = recipe.herd
    if herd.members is None and herd.start_from == before.herd.start_from:
        herd = herd.model_copy(update={"members": before.herd.members})
    nets = recipe.nets
    if nets.thawed == NetsConfig():
        nets = before.nets.model_copy(update={"frozen": nets.frozen})
    data = recipe.data
    if recipe.herd.grow_from is not None:
        data = data.model_copy(update={"held_out_as": before.data.held_out_as})
    return recipe.model_copy(update={"herd": herd, "nets": nets, "data": data})


def _nets(each: Sequence[tuple[OriginRun, int]]) -> NetsConfig:
    """Return the nets of a herd that starts from these members (run, number), in this order.

    Consecutive members with the same generator become one breed.
    """
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


def as_taken(recipe: Recipe, inherited: NetsConfig) -> NetsConfig:
    """Return the nets of a herd that starts from a run with the nets `inherited`, with no frozen layers.

    These are the same nets, with one exception: if each member has one class and the run's nets are conditional,
    members get their unconditional form.
    """
    is_conditional = {inherited.generator.name, inherited.discriminator.name} == {"conditional"}
    inherited = inherited.thawed
    by_class = recipe.data.partition == "by-class" and recipe.nets.thawed != inherited
    if not by_class or not is_conditional or inherited.breeds:
        return inherited
    own = {
        what: NetConfig(name="residual", settings=getattr(inherited, what).settings)
        for what in ("generator", "discriminator")
    }
    return inherited.model_copy(update=own)


# -- weights ----------------------------------------------------------------------------------------------------------


def start(herd: StackedHerd, data: MemberData, own: Sequence[int], trust_code: bool) -> list[dict[str, Any]]:
    """Copy the weights that members start from into a new herd, and return the origin of each of its members.

    Args:
        herd: The members of this rank, with fresh weights.
        data: The members of the whole run.
        own: The numbers of this rank's members in the whole run.
        trust_code: Whether code of the user's own may be imported to build nets.

    Returns:
        The facts for run.json [n]; empty if members start from fresh weights.
    """
    recipe, shape, members = data.recipe, data.dataset.shape, data.slots
    everyones, seats = _origins(recipe, members), [data.seats[member] for member in own]
    origins = [everyones[(seat.seed - recipe.run.seed) * members + seat.slot] for seat in seats] if everyones else []
    started: list[dict[str, Any]] = [{} for _ in origins]
    for path in dict.fromkeys(origin.run for origin in origins):
        source = OriginRun.open(path)
        if tuple(source.facts.shape) != shape:
            raise UserError(
                f"{path} was trained on data of shape {tuple(source.facts.shape)}, and this data has {shape}: "
                "its members cannot be trained on here."
            )
        conditional = source.recipe.nets.discriminator != recipe.nets.discriminator  # see `resolved`
        by_class: dict[tuple[int, int], ByClass] = {}
        wanted = {row: (one.member, one.replica) for row, one in enumerate(origins) if one.run == path}
        for row, member_state, origin in source.read(wanted, trust_code):
            if conditional:
                by_class[wanted[row]] = by_class.get(wanted[row]) or ByClass(
                    source, member_state, wanted[row][1], herd.device
                )
                label = int(data.label[own[row]])
                name = data.dataset.labels[label] if label >= 0 else ""
                member_state = by_class[wanted[row]].state(name, herd.g, herd.d)
            digest = take(herd, row, member_state, f"member {wanted[row][0]} of {path}")
            started[row] = {**origin, "sha256": digest}
    return started


def notes(started: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for the user about each run that members start from. `started`: the origins of members."""
    runs = dict.fromkeys((one["from"], one["step"], "kept" in one) for one in started if one)
    return [
        f"classes of {run} (step {step:,}) are kept as they are"
        if is_frozen
        else f"members start from {run} (step {step:,}); Adam starts from zero"
        for run, step, is_frozen in runs
    ]


def _origins(recipe: Recipe, members: int) -> list[OriginConfig]:
    """Return the origin of each member [N]; empty if members start from fresh weights."""
    herd = recipe.herd
    if isinstance(herd.members, list):
        return list(herd.members) * herd.replicas
    if herd.start_from is None:
        return []
    source = OriginRun.open(herd.start_from)
    # If the run has one member for each class, all members of a class start from it.
    together = herd.per_class if source.members * herd.per_class == members else 1
    source.must_have(members // together, herd.replicas)
    return [
        OriginConfig.model_validate(
            {"from": source.path, "member": m // together % source.members, "replica": r % source.replicas}
        )
        for r in range(herd.replicas)
        for m in range(members)
    ]


def take(herd: StackedHerd, row: int, member_state: State, name: str) -> str:
    """Write one member's nets into a row of the herd, and return the sha256 of what was written.

    Args:
        member_state: The state [1, …] of the member.
        name: What the error message calls the member.

    Raises:
        UserError: The nets do not fit the herd, or are not finite.
    """
    breed = herd.breed_of(row)
    mine = breed.view(herd.state)
    prefixes = ("g.params", "g.ema", "d.params", "g.buffers.", "d.buffers.")
    target = {key: value for key, value in mine.items() if key.startswith(prefixes)}
    # used if the run has no running average: it then starts with the weights
    average = {"g.ema": member_state["g.params"], "g.ema.t": member_state["g.adam.t"]}
    taken = {**average, **{key: value for key, value in member_state.items() if key.startswith(prefixes)}}
    if wrong := [key for key, value in target.items() if key not in taken or taken[key].shape[1:] != value.shape[1:]]:
        raise UserError(
            f"{name} does not fit this herd: its {wrong[0]} has another shape. Nets with `label: true` only fit data with the same "
            "number of classes."
        )
    nets = {"g": breed.g, "d": herd.d}
    infinite = {f"{kind}.buffers.{buffer}" for kind, net in nets.items() for buffer in net.infinite_buffers}
    if not finite_members(taken, infinite).all():
        raise UserError(f"{name} is not finite, so nothing can start from it: take another member.")
    take_(target, taken, [row], [0])
    digest = hashlib.sha256()
    for key in sorted(target):
        digest.update(key.encode() + taken[key].contiguous().numpy().tobytes())
    return digest.hexdigest()
