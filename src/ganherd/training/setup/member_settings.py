"""Convert a recipe for the training step: into settings in which members may differ, and rules for all members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ganherd.herd.rng import PRIORS
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.schedules import SettingSchedule
from ganherd.losses.adversarial import Game
from ganherd.recipe.member_values import SCHEDULED
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError

_LONG_AGO = -(2**40)  # a step before any other, for members that have not met yet


def settings_of(recipe: Recipe, members: int) -> tuple[list[dict[str, list[Any]]], tuple[str, ...]]:
    """Return (settings, names of losses).

    The settings have an entry for each trial of a sweep (one entry if it is no sweep): a list [members] by the name of
    the setting. A member's setting `loss` is an index into the names of losses.

    Args:
        members: The number of members in one replica.
    """
    trials = recipe.each_trial
    chosen = [each_value(trial, "loss.name", trial.loss.name, members) for trial in trials]
    mutation = recipe.strategy.settings.mutation_rules
    # the losses that mutation draws from come first; a loss that is listed twice is drawn twice as often
    others = dict.fromkeys(name for names in chosen for name in names if name not in mutation.losses)
    distinct = (*mutation.losses, *others)
    mixed, own = prior_of(recipe) == "mixed", _own_settings(recipe)
    shrinks, has_lecam = shrinking(recipe), any(_values(recipe, "lecam"))  # outside of the loop: they read all trials
    each = []
    for trial, names in zip(trials, chosen, strict=True):
        settings = _numbers(trial, members, own, shrinks)
        if mutation.learning_rate != "off":
            # mutation is relative to the initial rates, as in the reference
            settings |= {"lr0_g": settings["lr_g"], "lr0_d": settings["lr_d"]}
        priors = each_value(trial, "nets.prior", trial.nets.prior, members)
        if mixed:
            settings["prior"] = [PRIORS.index(name) for name in priors]
        settings["loss"] = [distinct.index(name) for name in names]
        if has_lecam:
            settings |= {"lecam_real": [0.0] * members, "lecam_fake": [0.0] * members}  # means of the logits
        if recipe.strategy.settings.rate_smoothing != "0":
            settings["met"] = [_LONG_AGO] * members  # the step of its last swap
        each.append(settings)
    return each, distinct


def _numbers(recipe: Recipe, members: int, own: Sequence[str], shrinks: Sequence[str]) -> dict[str, list[Any]]:
    """Return those settings that are numbers: a list [members] by name.

    Args:
        own: Names of `_OWN` settings in which members differ.
        shrinks: Which of `weight_decay` and `l2_weight` are used.
    """
    optim = recipe.optim
    numbers = {
        "lr_g": each_value(recipe, "optim.lr_g", optim.lr_g, members),
        "lr_d": each_value(recipe, "optim.lr_d", optim.lr_d, members),
        "beta1": each_value(recipe, "optim.beta1", optim.beta1, members),
        "beta2": each_value(recipe, "optim.beta2", optim.beta2, members),
        **{name: each_value(recipe, f"optim.{name}", getattr(optim, name), members) for name in shrinks},
        "input_noise": each_value(recipe, "train.input_noise", recipe.train.input_noise, members),
    }
    for name in own:
        key, value = _OWN[name]
        numbers[name] = [
            one or 0.0 for one in each_value(recipe, key, value(recipe), members)
        ]  # no running average: a decay of 0
    return {name: [float(value) for value in values] for name, values in numbers.items()}


# Settings that a step takes from the rules for all members, unless members differ in them: by name, the key of the
# recipe and a function that reads its value.
_OWN: dict[str, tuple[str, Callable[[Recipe], Any]]] = {
    "gp_weight": ("loss.gp_weight", lambda recipe: recipe.loss.gp_weight),
    "r1": ("loss.r1_weight", lambda recipe: recipe.loss.r1_weight),
    "r2": ("loss.r2_weight", lambda recipe: recipe.loss.r2_weight),
    "lecam": ("loss.lecam_weight", lambda recipe: recipe.loss.lecam_weight),
    "consistency": ("loss.consistency_weight", lambda recipe: recipe.loss.consistency_weight),
    "consistency_fake": ("loss.consistency_weight_fake", lambda recipe: recipe.loss.consistency_weight_fake),
    "ema_decay": ("train.ema", lambda recipe: recipe.train.ema),
    "augment_probability": ("train.augment_probability", lambda recipe: recipe.train.augment_probability),
}


def _values(recipe: Recipe, name: str) -> list[Any]:
    """Return the distinct values that a setting of `_OWN` has over all trials and members."""
    values: list[Any] = []
    for trial in recipe.each_trial:
        value = _OWN[name][1](trial)
        values += [one for one in (value if isinstance(value, list) else [value]) if one not in values]
    return values


def _own_settings(recipe: Recipe) -> list[str]:
    """Return the names of the settings of `_OWN` in which members differ, or may differ later in the training."""
    steered = {"augment_probability"} if recipe.train.augment_target is not None else set()
    return [name for name in _OWN if name in steered or len(set(_values(recipe, name))) > 1]


def prior_of(recipe: Recipe) -> str:
    """Return the prior (distribution of the noise) of all members, or "mixed" if they differ."""
    given = recipe.nets.prior
    return given if isinstance(given, str) else given[0] if len(set(given)) == 1 else "mixed"


def schedules_of(recipe: Recipe, spans: Mapping[str, int]) -> tuple[SettingSchedule, ...]:
    """Return the schedules of a recipe.

    Args:
        spans: Their start and duration in steps, by the names of `schedule_spans`.
    """
    return tuple(
        SettingSchedule(
            tuple(SCHEDULED[key] for key in one.keys),
            one.shape,
            spans[f"schedule-{number}-start"],
            spans[f"schedule-{number}-over"],
            one.first,
            one.last,
        )
        for number, one in enumerate(recipe.train.schedules)
    )


def idle_schedules(recipe: Recipe, rules: StepRules) -> list[str]:
    """Return a note for each setting that a schedule changes without any effect.

    This is no error, because comparisons may set a weight to 0 on purpose.
    """
    notes = []
    for key in dict.fromkeys(key for one in recipe.train.schedules for key in one.keys):
        section, name = key.split(".")
        values = [getattr(getattr(trial, section), name) for trial in recipe.each_trial]
        acts = "beta" in name or any(any(value) if isinstance(value, list) else value for value in values)
        if key == "train.augment_probability" and not rules.augment:
            notes.append(f"train.schedules moves {key} without effect, because nothing is augmented: set train.augment")
        elif key == "loss.gp_weight" and not rules.game.penalty:
            losses = rules.game.d_name or ", ".join(dict.fromkeys(rules.game.names))
            notes.append(
                f"train.schedules moves {key} without effect, because the loss {losses} has no gradient penalty"
            )
        elif not acts and (name != "augment_probability" or rules.augment_target is None):
            notes.append(f"train.schedules multiplies {key}, which is 0, without effect: set {key} above 0")
    return notes


def uneven_records(recipe: Recipe, rules: StepRules, on_gpu: bool) -> list[str]:
    """Return a note, in a list, if the interval of records splits groups of steps that a GPU could run as a whole."""
    every, period = recipe.run.record_every, rules.period
    if not on_gpu or every % period == 0:
        return []
    return [
        f"run.record_every is {every}: on a GPU a multiple of {period} trains faster, because steps repeat in groups of "
        f"{period} (train.skip_d, loss.r1_every)"
    ]


def schedule_spans(recipe: Recipe) -> dict[str, str]:
    """Return the start and the duration of each of the recipe's schedules, as the recipe has them, by name."""
    each = enumerate(recipe.train.schedules)
    return {f"schedule-{number}-{name}": getattr(one, name) for number, one in each for name in ("start", "over")}


def shrinking(recipe: Recipe) -> list[str]:
    """Return which of `weight_decay` and `l2_weight` are above 0 for any member."""

    def acts(name: str) -> bool:
        each = [getattr(trial.optim, name) for trial in recipe.each_trial]
        return any(any(value) if isinstance(value, list) else value > 0 for value in each)

    return [name for name in ("weight_decay", "l2_weight") if acts(name)]


def averages(recipe: Recipe) -> bool:
    """Return whether a running average (EMA) of the generator's weights is used for any member."""
    return any(value is not None for value in _values(recipe, "ema_decay"))


def each_value(recipe: Recipe, key: str, value: Any, members: int) -> Sequence[Any]:
    """Return the value of a key for each member.

    A single value is for all members. A list has a value for each member of a replica, or for each member of a class;
    the latter is used for every class.

    Args:
        key: The key, for the error message.
        members: The number of members in one replica.
    """
    if not isinstance(value, list):
        return [value] * members
    per_class = recipe.herd.per_class
    if len(value) not in (members, *([per_class] if per_class > 1 else [])):
        inside = f" ({per_class} of each class)" if per_class > 1 else ""
        raise UserError(
            f"{key} lists {len(value)} values, but the herd has {members} members{inside}; give one value, or one for each."
        )
    return value * (members // len(value))


def rules_of(recipe: Recipe, losses: tuple[str, ...]) -> StepRules:
    """Return the rules of a step, which are the same for all members.

    Args:
        losses: The names that `settings_of` returns.
    """
    train, noises = recipe.train, [trial.train.input_noise for trial in recipe.each_trial]
    most = {name: max(value or 0.0 for value in _values(recipe, name)) for name in _OWN}
    mutation = recipe.strategy.settings.mutation_rules
    return StepRules(
        game=Game(losses, mutation.d_loss, recipe.loss.settings_by_name),
        batch=train.batch,
        latent=recipe.nets.latent,
        packing=recipe.nets.packing,
        prior=prior_of(recipe),
        n_critic=train.n_critic,
        skip_d=train.skip_d,
        order=train.order,
        fakes=train.fakes,
        gp_weight=most["gp_weight"],
        clip=recipe.loss.clip,
        clip_what=recipe.loss.clip_what,
        grad_clip=recipe.optim.grad_clip,
        eps=recipe.optim.eps,
        ema=most["ema_decay"] if averages(recipe) else None,
        input_noise=any(any(noise) if isinstance(noise, list) else noise > 0 for noise in noises),
        input_noise_steps=train.input_noise_steps,
        input_noise_decay=train.input_noise_decay,
        input_noise_on=train.input_noise_on,
        precision=train.precision,
        r1=most["r1"],
        r2=most["r2"],
        r1_every=recipe.loss.r1_every,
        slope_noise=recipe.loss.slope_noise,
        lecam=most["lecam"],
        lecam_start=recipe.loss.lecam_start,
        consistency=most["consistency"],
        consistency_fake=most["consistency_fake"],
        consistency_augment=tuple(recipe.loss.consistency_augment),
        class_d=recipe.loss.class_weight,
        class_g=recipe.loss.class_weight if recipe.loss.class_weight_g is None else recipe.loss.class_weight_g,
        flip=train.flip,
        augment=tuple(train.augment),
        augment_probability=most["augment_probability"],
        augment_target=train.augment_target,
        augment_images=train.augment_images,
        weight_decay="weight_decay" in shrinking(recipe),
        l2="l2_weight" in shrinking(recipe),
        wander=mutation.learning_rate if mutation.each == "batch" else "off",
        wander_strength=mutation.strength,
        wander_probability=mutation.probability,
        drawn_losses=len(mutation.losses) if mutation.loss_each == "batch" else 0,
    )
