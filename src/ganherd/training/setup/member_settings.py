"""Convert a recipe's settings for the training step: those that members may differ in, and the rules for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ganherd.herd.rng import PRIORS
from ganherd.herd.step.rules import StepRules
from ganherd.losses.adversarial import Game
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError

_LONG_AGO = -(2**40)


def settings_of(recipe: Recipe, members: int) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """Return the settings of each member of one replica by name, and the names of the losses.

    The setting `loss` of a member is an index into these names.
    """
    optim, loss = recipe.optim, recipe.loss.name
    chosen = _each("loss.name", loss, members)
    mutation = recipe.strategy.settings.mutation_rules
    # the losses that mutation draws come first; one that is drawn twice as often is listed twice
    distinct = (*mutation.losses, *dict.fromkeys(name for name in chosen if name not in mutation.losses))
    floats = {
        "lr_g": _each("optim.lr_g", optim.lr_g, members),
        "lr_d": _each("optim.lr_d", optim.lr_d, members),
        "beta1": _each("optim.beta1", optim.beta1, members),
        "beta2": _each("optim.beta2", optim.beta2, members),
        "input_noise": _each("train.input_noise", recipe.train.input_noise, members),
    }
    settings: dict[str, list[Any]] = {name: [float(value) for value in values] for name, values in floats.items()}
    if mutation.learning_rate != "off":
        # mutation is relative to the initial rates, as in the reference
        settings |= {"lr0_g": settings["lr_g"], "lr0_d": settings["lr_d"]}
    priors = _each("nets.prior", recipe.nets.prior, members)
    if prior_of(recipe) == "mixed":
        settings["prior"] = [PRIORS.index(name) for name in priors]
    settings["loss"] = [distinct.index(name) for name in chosen]
    if recipe.strategy.settings.rate_smoothing != "0":
        settings["met"] = [_LONG_AGO] * members  # the step of its last swap
    return settings, distinct


def prior_of(recipe: Recipe) -> str:
    """Return the prior of all members, or "mixed" if they differ."""
    given = recipe.nets.prior
    return given if isinstance(given, str) else given[0] if len(set(given)) == 1 else "mixed"


def _each(key: str, value: Any, members: int) -> Sequence[Any]:
    """Return the value of a recipe's key for each member; a single value is for all."""
    if not isinstance(value, list):
        return [value] * members
    if len(value) != members:
        raise UserError(
            f"{key} lists {len(value)} values, but the herd has {members} members; give one value, or one for each."
        )
    return value


def rules_of(recipe: Recipe, losses: tuple[str, ...]) -> StepRules:
    """Return the rules of a step that are the same for all members. `losses`: the names that `settings_of` returns."""
    train, noise = recipe.train, recipe.train.input_noise
    mutation = recipe.strategy.settings.mutation_rules
    return StepRules(
        game=Game(losses, mutation.d_loss),
        batch=train.batch,
        latent=recipe.nets.latent,
        prior=prior_of(recipe),
        n_critic=train.n_critic,
        skip_d=train.skip_d,
        order=train.order,
        fakes=train.fakes,
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
        class_d=recipe.loss.class_weight,
        class_g=recipe.loss.class_weight if recipe.loss.class_weight_g is None else recipe.loss.class_weight_g,
        flip=train.flip,
        augment=tuple(train.augment),
        wander=mutation.learning_rate if mutation.each == "batch" else "off",
        wander_strength=mutation.strength,
        wander_probability=mutation.probability,
        drawn_losses=len(mutation.losses) if mutation.loss_each == "batch" else 0,
    )
