"""From a recipe to a herd that is ready for its first step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ganherd import nets
from ganherd.data import partition as parts
from ganherd.data import source
from ganherd.data.feed import Feed
from ganherd.errors import UserError
from ganherd.herd.engine import Herd
from ganherd.herd.state import Seat, new_state, takes_label
from ganherd.herd.step import Rules
from ganherd.herd.streams import MemberRandomness
from ganherd.losses import Game
from ganherd.recipe import Recipe
from ganherd.recipe_strategy import in_steps

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
        """How people speak of a member: its label, and its seed where there are several."""
        slot, label = member % self.members, int(self.label[member])
        name = f"member {slot}" + (f" ({self.dataset.labels[label]})" if label >= 0 else "")
        return name + (f" of seed {self.seats[member].seed}" if self.recipe.herd.seeds > 1 else "")


def assemble(recipe: Recipe, trust_code: bool = False) -> Assembly:
    """Loads the data, cuts it by member, draws the initial weights, and puts everything on the device."""
    dataset = source.load(recipe.data)
    device = device_of(recipe)
    dtype = DTYPES[recipe.train.precision]
    seeds = [recipe.run.seed + r for r in range(recipe.herd.seeds)]
    cuts = [parts.partition(dataset, recipe.data, recipe.members, recipe.train.batch, seed) for seed in seeds]
    members = len(cuts[0].count)
    seats = [Seat(seed, slot) for seed in seeds for slot in range(members)]
    make_g, make_d = makers(recipe, dataset.shape, len(dataset.labels), trust_code)
    settings, losses = _settings(recipe, members)
    ema = recipe.train.ema is not None
    g, d, state = new_state(make_g, make_d, seats, settings, dtype, ema)
    _try_once(make_g, make_d, recipe, dataset)
    for blueprint in (g, d):
        blueprint.module.to(device)
    feed = Feed(
        torch.from_numpy(dataset.x).to(device),
        torch.from_numpy(dataset.y).to(device),
        np.concatenate([cut.index for cut in cuts]),
        np.concatenate([cut.count for cut in cuts]),
        recipe.train.batch,
        dataset.offset,
        dataset.scale,
        dtype,
    )
    herd = Herd(g, d, state, _rules(recipe, losses), feed, device)
    made = Assembly(
        recipe,
        dataset,
        np.concatenate([cut.label for cut in cuts]),
        np.concatenate([cut.count for cut in cuts]),
        seats,
        herd,
        [*dataset.notes, *cuts[0].notes],
    )
    if recipe.strategy.name == "gap" and (smoothing := recipe.strategy.gap.smoothing) != "0":
        herd.rules = replace(herd.rules, smoothing=in_steps(smoothing, made.steps_per_epoch))
    return made


def makers(
    recipe: Recipe, shape: tuple[int, ...], classes: int, trust_code: bool
) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    """Functions that build one generator, one discriminator."""

    def make_g() -> nn.Module:
        return nets.build_generator(recipe.nets.generator, shape, recipe.nets.latent, classes, trust_code=trust_code)

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
    """Per-member settings of one replica, and the distinct losses that `loss` counts into."""
    optim, loss = recipe.optim, recipe.loss.name
    chosen = _each("loss.name", loss, members)
    mutation = recipe.strategy.cellular.mutation
    distinct = tuple(dict.fromkeys([*mutation.losses, *chosen]))  # those that are drawn among come first
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
    settings["loss"] = [distinct.index(name) for name in chosen] * seeds
    if recipe.strategy.name == "gap" and recipe.strategy.gap.smoothing != "0":
        settings["met"] = [_LONG_AGO] * members * seeds  # the step of its last swap
    return settings, distinct


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
        prior=recipe.nets.prior,
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
        precision=train.precision,
        wander=mutation.learning_rate if wanders else "off",
        wander_strength=mutation.strength,
        wander_probability=mutation.probability,
        drawn_losses=len(mutation.losses) if mutation.loss_each == "batch" else 0,
    )


def _try_once(
    make_g: Callable[[], nn.Module], make_d: Callable[[], nn.Module], recipe: Recipe, dataset: source.Dataset
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
                f"the nets {recipe.nets.generator.name} and {recipe.nets.discriminator.name} do not run on data of shape "
                f"{dataset.shape} with latent {recipe.nets.latent}: {type(error).__name__}: {first_line}"
            ) from error
        if made != (2, *dataset.shape):
            raise UserError(
                f"the generator {recipe.nets.generator.name} makes images of shape {made[1:]}, "
                f"but the data has {dataset.shape}."
            )
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
