"""Build the herd of a recipe, ready for its first step.

A member has a slot (its place in one replica, from 0) and a number (its place among the members of all replicas). In
shapes, N is the number of members of all replicas, and n the number of those on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.comm.ranks import Ranks
from ganherd.herd.batch_feed import BatchPlan
from ganherd.herd.breeds import new_breeds
from ganherd.herd.checks.net_pair import NetPair
from ganherd.herd.checks.trial import LOOK_SAMPLES, batch_sizes, first_that_runs
from ganherd.herd.checks.tryout import CannotRun, refuse_cpu_only, try_other_batch, try_out
from ganherd.herd.engine.device import DTYPES, device_of
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import ModuleTraits, Seat, State, new_state
from ganherd.herd.step.pace import Pace, paces
from ganherd.herd.streamed_batch_feed import make_feed
from ganherd.herd.threaded_init import PackagedNet
from ganherd.losses.adversarial import Game
from ganherd.nets.catalog import is_packaged
from ganherd.recipe.base import in_steps
from ganherd.recipe.schema import Recipe
from ganherd.training.setup.build_strategy import check_nets
from ganherd.training.setup.member_data import MemberData, cut
from ganherd.training.setup.member_settings import averages, idle_schedules, rules_of, settings_of, uneven_records
from ganherd.training.variants import finetune as origins
from ganherd.training.variants import grow, member_dropout
from ganherd.util.errors import UserError, few
from ganherd.util.objects.memory_objects import label_of
from ganherd.util.text import did_you_mean, listed, member_labels
from ganherd.util.user_code import importable_from

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PreparedHerd(MemberData):
    """The data of all members of a run, and the herd that was built from it: the members of this rank."""

    herd: StackedHerd
    ranks: Ranks
    origins: list[dict[str, Any]] = field(default_factory=list)  # [n] the run and member that each member started from
    trusted: bool = False  # whether code of the user's own may be imported
    frozen_members: list[int] = field(default_factory=list)  # taken from a finished run (`grow`) and never trained
    among: int = 0  # if this is a subset of a herd (see `only`): the number of members of the whole herd; otherwise 0
    numbers: tuple[int, ...] = ()  # … and for each member of the subset its number in the whole herd

    def only(self, members: Sequence[int], state: State) -> PreparedHerd:
        """Return a herd of only these members of this rank, numbered from 0 in this order, with this state [n, …]."""
        rows = [self.own.index(member) for member in members]
        return replace(
            self.select(members),
            herd=replace(self.herd, state=state, feed=self.herd.feed.select(rows)),
            ranks=Ranks.single_process(len(members)),
            origins=[],
            frozen_members=[],
            among=self.size,
            numbers=tuple(members),
        )

    def number_of(self, member: int) -> int:
        """Return the number that a member has in checkpoints: in a subset of a herd, that of the whole herd."""
        return self.numbers[member] if self.numbers else member

    @property
    def members(self) -> int:
        """The number of members in one replica."""
        return self.size // self.recipe.herd.replicas

    @property
    def group_members(self) -> int:
        """The number of members that can meet each other.

        These are the members of one class if a class has several, otherwise those of one replica.
        """
        per_class = self.recipe.herd.per_class
        return per_class if per_class > 1 else self.members

    @property
    def own(self) -> tuple[int, ...]:
        """[n] the numbers of this rank's members: row r of the herd's state is member own[r]."""
        return self.ranks.local_members

    @property
    def pace(self) -> Pace:
        """[N] the number of steps that each member makes per step of the run."""
        pace = paces(self.recipe.strategy.settings.paces)
        return tuple(pace[seat.slot % len(pace)] if pace else Fraction(1) for seat in self.seats)

    def member_steps(self, step: int) -> list[int]:
        """Return the number of steps that each member has made at a step of the run [N]."""
        return [int(step * pace) for pace in self.pace]

    def labels_of(self, member: int) -> Sequence[int]:
        """Return the labels of the images that a member generates: its own class, or all classes if it has none."""
        own = int(self.label[member])
        return [own] if own >= 0 else range(len(self.dataset.labels))

    def name_of(self, member: int) -> str:
        """Return a readable name of a member, with its trial and its seed if there are several."""
        name = self.slot_name(member)
        seat, herd = self.seats[member], self.recipe.herd
        words = [herd.trial_name(seat.trial)] if herd.trials else []
        words += [f"seed {seat.seed}"] if herd.seeds > 1 else []
        return name + (f" of {', '.join(words)}" if words else "")

    def slot_name(self, member: int) -> str:
        """Return the name of a member without its seed: its label, and its generator if there are breeds."""
        slot, label = self.seats[member].slot, self.label_name(member)
        words = [label] if label else []
        words += [self.herd.breeds.of(slot).name] if len(self.herd.breeds.all) > 1 else []
        return f"member {slot}" + (f" ({', '.join(words)})" if words else "")

    def label_name(self, member: int) -> str:
        """Return a member's label: `7`, or `7.2` for the third of several members of class 7; empty without a class."""
        per_class = self.recipe.herd.per_class
        of_class = member_labels(self.dataset.labels, [int(self.label[member])] * per_class)
        return of_class[self.seats[member].slot % per_class]

    def makers(self, slot: int) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Return functions that each build a new generator, or discriminator, like that of the members in a slot."""
        # trusted: `assemble` was allowed to build a net of the user's own already
        return makers(self.recipe, self.dataset.shape, len(self.dataset.labels), trust_code=True, slot=slot)

    def fresh_member(self, member: int, life: int) -> State:
        """Return the state [1, …] of a member with fresh weights.

        Args:
            life: How often the member got fresh weights or was repaired, which selects the random stream of the
                weights.
        """
        seat, state = replace(self.seats[member], life=life), self.herd.state
        fresh = new_state(*self.makers(seat.slot), [seat], {}, state["g.params"].dtype, "g.ema" in state)[2]
        return fresh | member_dropout.rates_in(state, self.herd.d.module, self.own.index(member))


def assemble(recipe: Recipe, trust_code: bool = False, begins: bool = True) -> PreparedHerd:
    """Load the data, divide it among the members, draw the initial weights and put everything on the device.

    The herd has all members: this is for a single process.

    Args:
        trust_code: Whether code of the user's own may be imported.
        begins: Whether the run starts with its first step. False: the weights come from a checkpoint, so the runs that members
            start from are not read.
    """
    data = cut(recipe, begins)
    with importable_from(recipe.code):
        return put_together(data, Ranks.single_process(data.size), trust_code, begins)


def put_together(data: MemberData, ranks: Ranks, trust_code: bool = False, begins: bool = True) -> PreparedHerd:
    """Build the herd of one rank.

    The arguments are those of `assemble`, with the data and the placement of all members.
    """
    recipe, dataset, own = data.recipe, data.dataset, ranks.local_members
    device = device_of(recipe, None if ranks.is_single_process else ranks.job.local_rank)
    dtype = DTYPES[recipe.train.precision]
    classes = len(dataset.labels)
    each, slot = [], 0
    for net, count in recipe.nets.each(data.slots):
        make_g, make_d = makers(recipe, dataset.shape, classes, trust_code, slot)
        each.append((net.name, make_g, count))
        slot += count
    settings, losses = settings_of(recipe, data.slots)
    ema = averages(recipe)
    seats = [data.seats[m] for m in own]
    seated = seats + _of_other_breeds(seats, [count for *_, count in each])
    chosen = {name: [settings[seat.trial][name][seat.slot] for seat in seated] for name in settings[0]}
    breeds, d, state = new_breeds(each, make_d, seated, chosen, dtype, ema)
    if len(seated) > len(own):
        state = {name: value[: len(own)].clone() for name, value in state.items()}
    if member_dropout.varies(recipe):
        build = partial(nets.build_discriminator, shape=dataset.shape, classes=classes, trust_code=trust_code)
        member_dropout.set_rates_(state, recipe, data.slots, seats, build)
    for name, make_g, _ in each:
        pair = NetPair(label_of(name), label_of(recipe.nets.discriminator.name), make_g, make_d, classes)
        may_draw = not (is_packaged(name) and is_packaged(recipe.nets.discriminator.name))  # `try_out` names what draws
        pair.refuse_misfits(recipe.nets.latent, dataset.shape, recipe.train.batch, may_draw)
    for blueprint, make, named, is_g in (
        *((breed.g, make_g, name, True) for breed, (name, make_g, _) in zip(breeds.all, each, strict=True)),
        (d, make_d, recipe.nets.discriminator.name, False),
    ):
        if not is_packaged(named):
            shape = (recipe.nets.latent,) if is_g else dataset.shape
            traits = partial(_traits, make, shape, blueprint.takes_label, classes, dtype, device)
            look_rows = LOOK_SAMPLES if is_g or recipe.run.watch.every != 0 else None
            blueprint.adopt(first_that_runs(partial(traits, look_rows), batch_sizes(recipe.train.batch), CannotRun))
    check_nets(recipe, breeds, d, data.slots)
    if len({breed.g.takes_label for breed in breeds.all}) > 1:
        raise UserError("nets.breeds has generators that take the label and others that do not: take all of one kind.")
    for blueprint in (*(breed.g for breed in breeds.all), d):
        blueprint.module.to(device)
    batch, offset, scale = recipe.train.batch, dataset.offset, dataset.scale
    batches = BatchPlan(data.rows(own), data.count[list(own)], batch, offset, scale, dtype)
    feed = make_feed(dataset.x, dataset.y, batches, device)
    herd = StackedHerd(breeds, d, state, rules_of(recipe, losses), feed, device)
    started = origins.start(herd, data, own, trust_code) if begins else []
    if (smoothing := recipe.strategy.settings.rate_smoothing) != "0":
        herd.rules = replace(herd.rules, smoothing=in_steps(smoothing, data.steps_per_epoch))
    if pace := recipe.strategy.settings.paces:
        herd.pace = tuple(paces(pace)[seat.slot % len(pace)] for seat in seats)
    frozen = grow.frozen_members(data) if begins else {}
    if frozen:
        rows = {row: frozen[member] for row, member in enumerate(own) if member in frozen}
        grown = grow.start(herd, recipe, rows, trust_code)
        started = [grown.get(row, origin) for row, origin in enumerate(started or [{} for _ in own])]
    of_settings = [*idle_schedules(recipe, herd.rules), *uneven_records(recipe, herd.rules, herd.device.type == "cuda")]
    of_nets = _sigmoid_notes(recipe, pair, herd.rules.game, dataset.shape)
    of_kept = grow.notes(data) if begins else []
    notes = (*dataset.notes, *data.notes, *of_nets, *origins.notes(started), *of_kept, *of_settings)
    light = replace(data, index=data.index[:, :0], notes=notes)  # the feed has the rows now
    return PreparedHerd(
        **vars(light), herd=herd, ranks=ranks, origins=started, trusted=trust_code, frozen_members=list(frozen)
    )


def _traits(
    make: Callable[[], nn.Module],
    shape: Shape,
    label: bool,
    classes: int,
    dtype: torch.dtype,
    device: torch.device,
    look_rows: int | None,
    rows: int,
) -> ModuleTraits:
    """Try a user's net out on the CPU and on the device of the run, and return its traits (how engines can run it).

    Args:
        make: Builds the net.
        shape: The shape of one input.
        label: Whether the net takes labels as well.
        look_rows: Size of the batches that looks (health checks) use; None: no look calls the net.
        rows: The size of the batches of random inputs.
    """

    def inputs(number: int, count: int = rows) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        x = torch.rand(count, *shape, generator=generator, dtype=dtype) * 2 - 1
        return (x, torch.randint(max(classes, 1), (count,), generator=generator)) if label else (x,)

    traits = try_out(make, inputs, dtype)
    if look_rows:
        traits = try_other_batch(make, inputs(0), inputs(0, look_rows), dtype, traits)
    if device.type != "cpu":
        refuse_cpu_only(make, inputs(0), dtype, device)
    return traits


def _of_other_breeds(seats: Sequence[Seat], counts: Sequence[int]) -> list[Seat]:
    """Return one more seat for each breed without a member on this rank, so that the rank builds the breed's net, too.

    Args:
        seats: The seats (places in their replica) of this rank's members.
        counts: The number of slots of each breed (members with the same generator architecture).
    """
    ends, slots = list(accumulate(counts)), {seat.slot for seat in seats}
    others = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [Seat(seats[0].seed, breed.start) for breed in others if not slots & set(breed)]


def makers(
    recipe: Recipe, shape: Shape, classes: int, trust_code: bool, slot: int = 0
) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    """Return functions that each build a new generator, or discriminator, of the members in a slot.

    Args:
        shape: The shape of one image.
        classes: The number of classes of the data.
        trust_code: Whether code of the user's own may be imported.
        slot: The place of the members in their replica.
    """
    net = [net for net, count in recipe.nets.each(slot + 1) for _ in range(count)][slot]

    def make_g() -> nn.Module:
        with importable_from(recipe.code):
            return nets.build_generator(net, shape, recipe.nets.latent, classes, trust_code=trust_code)

    def make_d() -> nn.Module:
        with importable_from(recipe.code):
            build = partial(nets.build_discriminator, shape=shape, classes=classes, trust_code=trust_code)
            if member_dropout.varies(recipe):
                module = member_dropout.build_varied(recipe, build)
            else:
                module = build(recipe.nets.discriminator)
        return _freeze(module, recipe.nets.frozen)

    return (
        PackagedNet(make_g) if is_packaged(net.name) else make_g,
        PackagedNet(make_d) if is_packaged(recipe.nets.discriminator.name) else make_d,
    )


def _freeze(module: nn.Module, layers: Sequence[str]) -> nn.Module:
    """Freeze the parameters of the layers with these names, and return the module."""
    names = [name for name, _ in module.named_parameters()]
    for layer in layers:
        own = [name for name in names if name == layer or name.startswith(f"{layer}.")]
        if not own:
            known = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            hint = did_you_mean(layer, known) or f"; it has {few(known, 10)}"
            raise UserError(f"nets.frozen names {layer!r}, and the discriminator has no such layer{hint}")
        for name in own:
            module.get_parameter(name).requires_grad_(False)
    return module


def _sigmoid_notes(recipe: Recipe, pair: NetPair, game: Game, shape: Shape) -> list[str]:
    """Return a note if a user's own discriminator returns probabilities, and losses need logits or may need them.

    Args:
        shape: The shape of one sample of the data.
    """
    own, losses = not is_packaged(recipe.nets.discriminator.name), game.of_logits or game.perhaps_of_logits
    if not own or not losses or not pair.returns_probabilities(shape, recipe.train.batch):
        return []
    seen = f"all outputs of the discriminator {pair.discriminator} lie between 0 and 1, as after a sigmoid"
    if not game.of_logits:
        return [f"{seen}: leave it out if the loss {listed(losses)} takes logits"]
    are = f"loss {losses[0]} is" if len(losses) == 1 else f"losses {listed(losses)} are"
    return [f"{seen}, but the {are} made for logits: leave the sigmoid out"]
