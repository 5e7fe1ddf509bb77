"""From a recipe to a herd that is ready for its first step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ganherd import nets
from ganherd.data import partition as parts
from ganherd.data import source
from ganherd.data.stream_feed import make_feed
from ganherd.errors import UserError
from ganherd.herd.breeds import new_breeds
from ganherd.herd.engine import Herd
from ganherd.herd.pace import paces
from ganherd.herd.state import Seat, takes_label
from ganherd.herd.step import Rules
from ganherd.herd.streams import PRIORS, MemberRandomness
from ganherd.losses import Game
from ganherd.recipe import Recipe
from ganherd.recipe_strategy import in_steps
from ganherd.run import origins
from ganherd.strategies.share import shared_parts

DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}
_LONG_AGO = -(2**40)


@dataclass
class Assembly:
    """A herd with what it was made from."""

    recipe: Recipe
    dataset: source.Dataset
    label: np.ndarray  # [N] the class each member stands for; -1: none
    count: np.ndarray  # [N] images that each member sees
    seats: list[Seat]
    herd: Herd
    notes: list[str]
    origins: list[dict[str, Any]] = field(default_factory=list)  # [N] what each member started from; empty: nothing
    trusted: bool = False  # whether code of the user's own may be imported

    @property
    def members(self) -> int:
        """Members of one replica."""
        return self.herd.size // self.recipe.herd.seeds

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which the member that the recipe names goes through its data once."""
        batches = self.herd.feed.batches_per_epoch
        whose = {"largest": batches.max(), "smallest": batches.min(), "mean": batches.mean()}[self.recipe.data.epoch]
        return float(whose) / self.recipe.train.n_critic

    def name_of(self, member: int) -> str:
        """How people speak of a member: with its seed, where there are several."""
        name = self.slot_name(member)
        return name + (f" of seed {self.seats[member].seed}" if self.recipe.herd.seeds > 1 else "")

    def slot_name(self, member: int) -> str:
        """With its label, and with its generator where there are breeds; the same in every replica."""
        slot, label = member % self.members, int(self.label[member])
        words = [self.dataset.labels[label]] if label >= 0 else []
        words += [self.herd.breeds.of(slot).name] if len(self.herd.breeds.all) > 1 else []
        return f"member {slot}" + (f" ({', '.join(words)})" if words else "")


def assemble(recipe: Recipe, trust_code: bool = False, begins: bool = True) -> Assembly:
    """Loads the data, cuts it by member, draws the initial weights, and puts everything on the device.

    `begins`: with its first step. Only then the runs that members start from are read; else a checkpoint has their weights.
    """
    recipe = origins.resolved(recipe) if begins else recipe
    dataset = source.load(recipe.data)
    if not dataset.is_image and (recipe.train.augment or recipe.train.flip):
        raise UserError(f"train.augment and train.flip change images, and {dataset.name} has points: leave them out.")
    if recipe.run.validation and not len(dataset.x_test):
        raise UserError(f"run.validation is of held-out data, and {dataset.name} has none: set data.holdout.")
    device = device_of(recipe)
    dtype = DTYPES[recipe.train.precision]
    seeds = [recipe.run.seed + r for r in range(recipe.herd.seeds)]
    together = recipe.strategy.cellular.population if recipe.strategy.name == "cellular" else 1
    batch = recipe.train.batch
    cuts = [parts.partition(dataset, recipe.data, recipe.members, batch, seed, together) for seed in seeds]
    members = len(cuts[0].count)
    seats = [Seat(seed, slot) for seed in seeds for slot in range(members)]
    classes = len(dataset.labels)
    each, slot = [], 0
    for net, count in recipe.nets.each(members):
        make_g, make_d = makers(recipe, dataset.shape, classes, trust_code, slot)
        each.append((net.name, make_g, count))
        slot += count
    settings, losses = _settings(recipe, members)
    ema = recipe.train.ema is not None
    breeds, d, state = new_breeds(each, make_d, seats, settings, dtype, ema)
    for name, make_g, _ in each:
        _try_once(name, make_g, make_d, recipe, dataset)
    shared_parts(recipe.strategy.share, breeds, d, members)  # a layer that is not there is said before anything begins
    if len({breed.g.takes_label for breed in breeds.all}) > 1:
        raise UserError("nets.breeds has generators that take the label and others that do not: take all of one kind.")
    for blueprint in (*(breed.g for breed in breeds.all), d):
        blueprint.module.to(device)
    feed = make_feed(
        dataset.x,
        dataset.y,
        np.concatenate([cut.index for cut in cuts]),
        np.concatenate([cut.count for cut in cuts]),
        recipe.train.batch,
        dataset.offset,
        dataset.scale,
        dtype,
        device,
    )
    herd = Herd(breeds, d, state, _rules(recipe, losses), feed, device)
    started = origins.start(herd, recipe, dataset.shape, trust_code) if begins else []
    runs = dict.fromkeys((one["from"], one["step"]) for one in started)
    told = [f"members start from {run} (step {step:,}); Adam starts anew" for run, step in runs]
    made = Assembly(
        recipe,
        dataset,
        np.concatenate([cut.label for cut in cuts]),
        np.concatenate([cut.count for cut in cuts]),
        seats,
        herd,
        [*dataset.notes, *cuts[0].notes, *told],
        started,
        trust_code,
    )
    if recipe.strategy.name == "gap" and (smoothing := recipe.strategy.gap.smoothing) != "0":
        herd.rules = replace(herd.rules, smoothing=in_steps(smoothing, made.steps_per_epoch))
    if pace := recipe.strategy.gap.pace:
        herd.pace = paces(pace) * recipe.herd.seeds
    return made


def makers(
    recipe: Recipe, shape: tuple[int, ...], classes: int, trust_code: bool, slot: int = 0
) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    """Functions that build one generator, one discriminator, of the members in that slot."""
    net = [net for net, count in recipe.nets.each(slot + 1) for _ in range(count)][slot]

    def make_g() -> nn.Module:
        return nets.build_generator(net, shape, recipe.nets.latent, classes, trust_code=trust_code)

    def make_d() -> nn.Module:
        return nets.build_discriminator(recipe.nets.discriminator, shape, classes, trust_code=trust_code)

    return make_g, make_d


def device_of(recipe: Recipe) -> torch.device:
    name = recipe.engine.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and recipe.engine.name != "loop" else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "engine.device is cuda, but PyTorch sees no GPU here; `ganherd doctor` says what this machine has."
        )
    if recipe.engine.name == "graph" and not name.startswith("cuda"):
        raise UserError("engine.name is graph, which needs a GPU, and PyTorch sees none here; take fused or auto.")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError(f"engine.device {name!r} is not a device; write auto, cpu, cuda or cuda:1.") from error


def set_precision(recipe: Recipe) -> None:
    """Whether float32 products on a GPU may run as TF32."""
    fast = recipe.train.precision in ("tf32", "bf16")
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32 = fast


def _settings(recipe: Recipe, members: int) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """Per-member settings of one replica, and the losses that `loss` counts into."""
    optim, loss = recipe.optim, recipe.loss.name
    chosen = _each("loss.name", loss, members)
    mutation = recipe.strategy.cellular.mutation
    # those that are drawn among come first, one that is drawn twice as often twice
    distinct = (*mutation.losses, *dict.fromkeys(name for name in chosen if name not in mutation.losses))
    floats = {
        "lr_g": _each("optim.lr_g", optim.lr_g, members),
        "lr_d": _each("optim.lr_d", optim.lr_d, members),
        "beta1": _each("optim.beta1", optim.beta1, members),
        "beta2": _each("optim.beta2", optim.beta2, members),
        "input_noise": _each("train.input_noise", recipe.train.input_noise, members),
    }
    seeds = recipe.herd.seeds
    settings: dict[str, list[Any]] = {
        name: [float(value) for value in values] * seeds for name, values in floats.items()
    }
    if recipe.strategy.name == "cellular" and mutation.learning_rate != "off":
        settings |= {
            "lr0_g": settings["lr_g"],
            "lr0_d": settings["lr_d"],
        }  # what the reference's mutation is measured by
    priors = _each("nets.prior", recipe.nets.prior, members)
    if prior_of(recipe) == "mixed":
        settings["prior"] = [PRIORS.index(name) for name in priors] * seeds
    settings["loss"] = [distinct.index(name) for name in chosen] * seeds
    if recipe.strategy.name == "gap" and recipe.strategy.gap.smoothing != "0":
        settings["met"] = [_LONG_AGO] * members * seeds  # the step of its last swap
    return settings, distinct


def prior_of(recipe: Recipe) -> str:
    """The prior of all members, or mixed."""
    given = recipe.nets.prior
    return given if isinstance(given, str) else given[0] if len(set(given)) == 1 else "mixed"


def _each(key: str, value: Any, members: int) -> Sequence[Any]:
    if not isinstance(value, list):
        return [value] * members
    if len(value) != members:
        raise UserError(
            f"{key} lists {len(value)} values, but the herd has {members} members; give one value, or one for each."
        )
    return value


def _rules(recipe: Recipe, losses: tuple[str, ...]) -> Rules:
    train, noise = recipe.train, recipe.train.input_noise
    mutation = recipe.strategy.cellular.mutation
    wanders = recipe.strategy.name == "cellular" and mutation.each == "batch"
    return Rules(
        game=Game(losses, mutation.d_loss),
        batch=train.batch,
        latent=recipe.nets.latent,
        prior=prior_of(recipe),
        n_critic=train.n_critic,
        skip_d=train.skip_d,
        order=train.order,
        gp_weight=recipe.loss.gp_weight,
        clip=recipe.loss.clip,
        clip_what=recipe.loss.clip_what,
        grad_clip=recipe.optim.grad_clip,
        eps=recipe.optim.eps,
        ema=train.ema,
        input_noise=any(noise) if isinstance(noise, list) else noise > 0,
        input_noise_steps=train.input_noise_steps,
        input_noise_decay=train.input_noise_decay,
        input_noise_on=train.input_noise_on,
        precision=train.precision,
        r1=recipe.loss.r1_weight,
        flip=train.flip,
        augment=tuple(train.augment),
        wander=mutation.learning_rate if wanders else "off",
        wander_strength=mutation.strength,
        wander_probability=mutation.probability,
        drawn_losses=len(mutation.losses) if mutation.loss_each == "batch" else 0,
    )


def _try_once(
    name: str,
    make_g: Callable[[], nn.Module],
    make_d: Callable[[], nn.Module],
    recipe: Recipe,
    dataset: source.Dataset,
) -> None:
    """Two images through a plain pair of the nets: what does not fit is said in one sentence, before anything is stacked."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        g, d = make_g(), make_d()
        before = torch.random.get_rng_state()
        y = torch.zeros(2, dtype=torch.int64)
        try:
            label = (y,) if takes_label(g) else ()
            with MemberRandomness(torch.tensor(0)):
                x = g(torch.randn(2, recipe.nets.latent), *label)
            made = tuple(x.shape)
            if made == (2, *dataset.shape):
                with MemberRandomness(torch.tensor(1)):
                    answered = tuple(d(x, *((y,) if takes_label(d) else ())).shape)
        except UserError:
            raise
        except Exception as error:
            first_line = (str(error) or "no reason given").splitlines()[0]
            raise UserError(
                f"the nets {name} and {recipe.nets.discriminator.name} do not run on data of shape "
                f"{dataset.shape} with latent {recipe.nets.latent}: {type(error).__name__}: {first_line}"
            ) from error
        if made != (2, *dataset.shape):
            raise UserError(f"the generator {name} makes images of shape {made[1:]}, but the data has {dataset.shape}.")
        if math.prod(answered) != 2:
            raise UserError(
                f"the discriminator {recipe.nets.discriminator.name} answers {answered} for two images; "
                "it must give one logit for each."
            )
        if not torch.equal(before, torch.random.get_rng_state()):
            raise UserError(
                "the nets draw random numbers where ganherd cannot give each member its own (dropout inside of attention "
                "does so): use randn, rand or nn.Dropout instead."
            )
