"""Build the herd of a recipe, ready for its first step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.comm.ranks import Ranks
from ganherd.data import dataset as source
from ganherd.herd.breeds import new_breeds
from ganherd.herd.checks.device_check import refuse_cpu_only
from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.checks.trial import batch_sizes, first_that_runs
from ganherd.herd.checks.tryout import CannotRun, try_out
from ganherd.herd.engine.device import DTYPES, device_of
from ganherd.herd.engine.engines import Herd
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import ModuleTraits, Seat, State, takes_label
from ganherd.herd.step.pace import Pace, paces
from ganherd.herd.stream_feed import make_feed
from ganherd.nets.catalog import is_packaged
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy.spans import in_steps
from ganherd.training.setup.member_data import MemberData, cut
from ganherd.training.setup.member_settings import rules_of, settings_of
from ganherd.training.variants import finetune as origins
from ganherd.training.variants import grow
from ganherd.util.errors import UserError, with_type
from ganherd.util.registry import STRATEGIES, load_target
from ganherd.util.user_code import importable_from

Shape = tuple[int, ...]


@dataclass
class PreparedHerd:
    """A herd with the data that it was built from. The herd has the members of this rank; `data` has those of all ranks."""

    data: MemberData
    herd: Herd
    ranks: Ranks
    notes: list[str]
    origins: list[dict[str, Any]] = field(default_factory=list)  # [n] what the rank's members started from, if anything
    trusted: bool = False  # whether code of the user's own may be imported
    kept: list[int] = field(default_factory=list)  # members of a run that is grown: they are not trained in this one
    among: int = 0  # if these are some members of a herd by themselves: how many it has …
    numbers: tuple[int, ...] = ()  # … and the number there of each

    def only(self, members: Sequence[int], state: State) -> PreparedHerd:
        """Return some of this rank's members by themselves, numbered from 0 in this order, with this state [n, …]."""
        rows = [self.own.index(member) for member in members]
        return replace(
            self,
            data=self.data.select(members),
            herd=replace(self.herd, state=state, feed=self.herd.feed.select(rows)),
            ranks=Ranks.single_process(len(members)),
            origins=[],
            kept=[],
            among=self.size,
            numbers=tuple(members),
        )

    @property
    def recipe(self) -> Recipe:
        return self.data.recipe

    @property
    def dataset(self) -> source.Dataset:
        return self.data.dataset

    @property
    def label(self) -> np.ndarray:
        """[N] the class that each member stands for; -1: none."""
        return self.data.label

    @property
    def count(self) -> np.ndarray:
        """[N] the number of images that each member sees."""
        return self.data.count

    @property
    def seats(self) -> list[Seat]:
        return self.data.seats

    @property
    def steps_per_epoch(self) -> float:
        return self.data.steps_per_epoch

    def number_of(self, member: int) -> int:
        """Return the number of a member in checkpoints."""
        return self.numbers[member] if self.numbers else member

    @property
    def size(self) -> int:
        """Members of all replicas on all ranks."""
        return len(self.seats)

    @property
    def members(self) -> int:
        """Members of one replica."""
        return self.size // self.recipe.herd.seeds

    @property
    def own(self) -> tuple[int, ...]:
        """[n] the members of this rank: row r of the herd is member own[r]."""
        return self.ranks.local_members

    @property
    def pace(self) -> Pace:
        """[N] own steps of each member of the herd for one step of the run."""
        pace = paces(self.recipe.strategy.settings.paces)
        return tuple(pace[seat.slot] if pace else Fraction(1) for seat in self.seats)

    def made(self, step: int) -> list[int]:
        """Return [N] the steps that each member has made at a step of the run."""
        return [int(step * pace) for pace in self.pace]

    def labels_of(self, member: int) -> Sequence[int]:
        """Return the labels of what a member generates: its own, or all."""
        own = int(self.label[member])
        return [own] if own >= 0 else range(len(self.dataset.labels))

    def name_of(self, member: int) -> str:
        """Return the name of a member for people, with its seed if there are several."""
        name = self.slot_name(member)
        return name + (f" of seed {self.seats[member].seed}" if self.recipe.herd.seeds > 1 else "")

    def slot_name(self, member: int) -> str:
        """Return the name of a member without its seed: its label, and its generator if there are breeds."""
        slot, label = self.seats[member].slot, int(self.label[member])
        words = [self.dataset.labels[label]] if label >= 0 else []
        words += [self.herd.breeds.of(slot).name] if len(self.herd.breeds.all) > 1 else []
        return f"member {slot}" + (f" ({', '.join(words)})" if words else "")


def assemble(recipe: Recipe, trust_code: bool = False, begins: bool = True) -> PreparedHerd:
    """Load the data, divide it among the members, draw the initial weights and put everything on the device.

    Args:
        begins: The run starts with its first step, so the runs that members start from are read. False: a checkpoint has the
            weights.
    """
    made = cut(recipe, begins)
    with importable_from(recipe.code):
        return put_together(made, Ranks.single_process(len(made.seats)), trust_code, begins)


def put_together(made: MemberData, ranks: Ranks, trust_code: bool = False, begins: bool = True) -> PreparedHerd:
    """Build the herd of one rank from the members that it has."""
    recipe, dataset, own = made.recipe, made.dataset, ranks.local_members
    device = device_of(recipe, None if ranks.is_single_process else ranks.job.local_rank)
    dtype = DTYPES[recipe.train.precision]
    classes = len(dataset.labels)
    each, slot = [], 0
    for net, count in recipe.nets.each(made.members):
        make_g, make_d = makers(recipe, dataset.shape, classes, trust_code, slot)
        each.append((net.name, make_g, count))
        slot += count
    settings, losses = settings_of(recipe, made.members)
    ema = recipe.train.ema is not None
    seats = [made.seats[m] for m in own]
    seated = seats + _of_other_breeds(seats, [count for *_, count in each])
    chosen = {name: [values[seat.slot] for seat in seated] for name, values in settings.items()}
    breeds, d, state = new_breeds(each, make_d, seated, chosen, dtype, ema)
    if len(seated) > len(own):
        state = {name: value[: len(own)].clone() for name, value in state.items()}
    for name, make_g, _ in each:
        _try_once(name, make_g, make_d, recipe, dataset)
    for blueprint, make, named, is_g in (
        *((breed.g, make_g, name, True) for breed, (name, make_g, _) in zip(breeds.all, each, strict=True)),
        (d, make_d, recipe.nets.discriminator.name, False),
    ):
        if not is_packaged(named):
            shape = (recipe.nets.latent,) if is_g else dataset.shape
            inputs = partial(_inputs, shape, blueprint.takes_label, classes, dtype)
            tried = partial(_tried, make, inputs, dtype, device)
            blueprint.adopt(first_that_runs(tried, batch_sizes(recipe.train.batch), CannotRun))
    load_target(STRATEGIES[recipe.strategy.name].target).check_nets(recipe.strategy.settings, breeds, d, made.members)
    if len({breed.g.takes_label for breed in breeds.all}) > 1:
        raise UserError("nets.breeds has generators that take the label and others that do not: take all of one kind.")
    for blueprint in (*(breed.g for breed in breeds.all), d):
        blueprint.module.to(device)
    batch, offset, scale = recipe.train.batch, dataset.offset, dataset.scale
    counts = made.count[list(own)]
    feed = make_feed(dataset.x, dataset.y, made.rows(own), counts, batch, offset, scale, dtype, device)
    herd = Herd(breeds, d, state, rules_of(recipe, losses), feed, device)
    names = [dataset.labels[label] if label >= 0 else "" for label in made.label[list(own)].tolist()]
    started = origins.start(herd, recipe, dataset.shape, trust_code, seats, made.members, names) if begins else []
    if (smoothing := recipe.strategy.settings.rate_smoothing) != "0":
        herd.rules = replace(herd.rules, smoothing=in_steps(smoothing, made.steps_per_epoch))
    if pace := recipe.strategy.settings.paces:
        herd.pace = tuple(paces(pace)[seat.slot] for seat in seats)
    kept = grow.kept(made) if begins else {}
    if kept and recipe.herd.grow_from is not None:
        started = grow.start(herd, recipe, kept, own, started, trust_code)
    notes = [*dataset.notes, *made.notes, *origins.notes(started)]
    data = replace(made, index=made.index[:, :0])  # the feed has the rows now
    return PreparedHerd(data, herd, ranks, notes, started, trust_code, list(kept))


def _tried(
    make: Callable[[], nn.Module],
    inputs: Callable[..., tuple[Tensor, ...]],
    dtype: torch.dtype,
    device: torch.device,
    rows: int,
) -> ModuleTraits:
    """Try a net out on the CPU, and on the device of the run."""
    traits = try_out(make, partial(inputs, rows), dtype)
    if device.type != "cpu":
        refuse_cpu_only(make, inputs(rows, 0), dtype, device)
    return traits


def _inputs(
    shape: tuple[int, ...], label: bool, classes: int, dtype: torch.dtype, rows: int, number: int
) -> tuple[Tensor, ...]:
    """Return something to try a net out on: rows of noise, and labels if it takes them."""
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(rows, *shape, generator=generator, dtype=dtype) * 2 - 1
    return (x, torch.randint(max(classes, 1), (rows,), generator=generator)) if label else (x,)


def _of_other_breeds(seats: Sequence[Seat], counts: Sequence[int]) -> list[Seat]:
    """Return a seat of each breed that a rank has no member of, so that the rank knows the net."""
    ends, slots = list(accumulate(counts)), {seat.slot for seat in seats}
    others = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [Seat(seats[0].seed, breed.start) for breed in others if not slots & set(breed)]


def makers(
    recipe: Recipe, shape: tuple[int, ...], classes: int, trust_code: bool, slot: int = 0
) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    """Return functions that build one generator and one discriminator of the members in a slot."""
    net = [net for net, count in recipe.nets.each(slot + 1) for _ in range(count)][slot]

    def make_g() -> nn.Module:
        with importable_from(recipe.code):
            return nets.build_generator(net, shape, recipe.nets.latent, classes, trust_code=trust_code)

    def make_d() -> nn.Module:
        with importable_from(recipe.code):
            return nets.build_discriminator(recipe.nets.discriminator, shape, classes, trust_code=trust_code)

    return make_g, make_d


def _refuse_misplaced_label(net: nn.Module) -> None:
    """Labels are given as the second input, so `y` must be the second argument."""
    given = [p.name for p in inspect.signature(net.forward).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if takes_label(net) and given[1:2] != ["y"]:
        raise UserError(
            f"forward of {type(net).__name__}{assignment_line(net)} must take y as its second argument, after its input."
        )


def _try_once(
    name: str,
    make_g: Callable[[], nn.Module],
    make_d: Callable[[], nn.Module],
    recipe: Recipe,
    dataset: source.Dataset,
) -> None:
    """Call a plain pair of the nets: what does not fit is refused in one sentence, before anything is stacked."""
    own, classes = recipe.nets.discriminator.name, len(dataset.labels)

    def call(rows: int) -> tuple[int, Shape, list[Shape], bool]:
        """(rows, shape of the samples, shapes of what the discriminator answers, whether the nets drew random numbers)"""
        g, d = make_g(), make_d()
        _refuse_misplaced_label(g)
        _refuse_misplaced_label(d)
        before, y = torch.random.get_rng_state(), torch.zeros(rows, dtype=torch.int64)
        with MemberRandomness(torch.tensor(0)):
            x = g(torch.randn(rows, recipe.nets.latent), *((y,) if takes_label(g) else ()))
        if not isinstance(x, torch.Tensor):
            raise UserError(
                f"the generator {name}{assignment_line(g)} returns a {type(x).__name__}: it must return one tensor."
            )
        answered: list[Shape] = []
        if tuple(x.shape) == (rows, *dataset.shape):
            with MemberRandomness(torch.tensor(1)):
                answer = d(x, *((y,) if takes_label(d) else ()))
            parts = (answer[0], answer[1], *answer[2:]) if isinstance(answer, tuple) else (answer,)
            answered = [tuple(part.shape) for part in parts]
        return rows, tuple(x.shape), answered, not torch.equal(before, torch.random.get_rng_state())

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            rows, made, answered, drew = first_that_runs(call, batch_sizes(recipe.train.batch))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the nets {name} and {own} do not run on data of shape "
            f"{dataset.shape} with latent {recipe.nets.latent}: {with_type(error)}."
        ) from error
    if made != (rows, *dataset.shape):
        raise UserError(f"the generator {name} makes images of shape {made[1:]}, but the data has {dataset.shape}.")
    if math.prod(answered[0]) != rows:
        raise UserError(
            f"the discriminator {own} answers {answered[0]} for {rows} images; it must give one logit for each."
        )
    if len(answered) > 1 and answered[1:] != [(rows, classes)]:
        raise UserError(
            f"the discriminator {own} answers {len(answered)} tensors, the second {answered[1]} for {rows} "
            f"images; beside the logits it may say which class it sees, {(rows, classes)} here, and nothing else."
        )
    tried = not (is_packaged(name) and is_packaged(own))  # which names the function that draws
    if drew and not tried:
        raise UserError(
            "the nets draw random numbers where ganherd cannot give each member its own (dropout inside of attention "
            "does so): use randn, rand or nn.Dropout instead."
        )
