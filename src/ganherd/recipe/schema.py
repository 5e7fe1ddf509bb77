"""A whole recipe: its sections, and checks of settings across sections. PyTorch is not imported.

A replica is one of several independent copies of the herd, one for each seed of each trial. A trial is one combination
of settings in a sweep.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, ValidationError, model_validator

from ganherd.recipe.base import Section, parse_budget, parse_bytes, refuse
from ganherd.recipe.member_values import TRIAL_KEYS
from ganherd.recipe.net_config import NetConfig, NetsConfig
from ganherd.recipe.plugins.recipe_plugins import plugins_of
from ganherd.recipe.sections.data_config import DataConfig
from ganherd.recipe.sections.herd_config import HerdConfig
from ganherd.recipe.sections.loss_config import LossConfig
from ganherd.recipe.sections.run_config import RunConfig
from ganherd.recipe.sections.train_config import EngineConfig, OptimConfig, TrainConfig
from ganherd.recipe.strategy_config import AnyStrategy, read_strategy
from ganherd.util.registry import is_target
from ganherd.util.text import did_you_mean

__all__ = ["DataConfig", "NetConfig", "Recipe", "parse_budget", "parse_bytes"]


class Recipe(Section):
    """A whole recipe."""

    about: str = ""  # one line that describes the recipe
    # folders of your own modules (`package.module:Name`); default: the recipe's folder and the current folder, if they hold them
    code: list[str] = []
    data: DataConfig = Field(default_factory=DataConfig)
    herd: HerdConfig = HerdConfig()
    nets: NetsConfig = Field(default_factory=NetsConfig)
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    strategy: AnyStrategy = Field(default_factory=lambda: read_strategy({}))
    engine: EngineConfig = EngineConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _has_neighbours(self) -> Recipe:
        """Refuse the repair policy `neighbour` if neighbours generate other classes, or if there are no neighbours."""
        for key in [key for key, policy in self.run.policies.items() if policy == "neighbour"]:
            if self.data.partition == "by-class" and self.herd.per_class == 1:
                raise refuse(
                    f"{key} data.partition herd.per_class",
                    f"{key} cannot be neighbour with data.partition by-class, with which a neighbour generates images of another "
                    "class: set it to rollback or reseed, or set herd.per_class",
                )
            if (self.meeting_members or 1) < 2:
                raise refuse(
                    f"{key} herd.members",
                    f"{key} cannot be neighbour in a herd of one member: set it to rollback or reseed",
                )
        return self

    @model_validator(mode="after")
    def _packs_are_full(self) -> Recipe:
        """Refuse a batch that does not divide into packs: samples that the discriminator judges together."""
        samples = self.nets.packing
        if self.train.batch % samples:
            raise refuse(
                "train.batch nets.discriminator.settings.packing",
                f"train.batch {self.train.batch} does not divide into packs of {samples} (nets.discriminator.packing): take a "
                f"multiple of {samples}",
            )
        return self

    @model_validator(mode="after")
    def _can_meet(self) -> Recipe:
        """Refuse a strategy that exchanges nets between classes, and settings that the strategy refuses."""
        by_class, per_class = self.data.partition == "by-class", self.herd.per_class
        if per_class > 1 and not by_class:
            raise refuse(
                "herd.per_class data.partition",
                f"herd.per_class {per_class} needs members of one class each: set data.partition to by-class, or set "
                "herd.members instead",
            )
        if per_class > 1 and len(self.nets.breeds) > 1:
            raise refuse(
                "herd.per_class nets.breeds",
                "herd.per_class gives all members the same nets: leave nets.breeds out",
            )
        if self.strategy.settings.exchanges_nets and by_class and per_class == 1:
            raise refuse(
                "strategy.name data.partition herd.per_class",
                f"strategy.name {self.strategy.name} lets members meet, and with data.partition by-class each sees another "
                "class: set herd.per_class to several members of each class, or data.partition to all or diet",
            )
        self.strategy.check(self)
        return self

    @model_validator(mode="after")
    def _may_rest(self) -> Recipe:
        """Check the settings that stop or freeze single members (`train.stop`, `herd.grow_from`).

        Refuse them for members that meet others, and refuse a stop whose metric is never measured.
        """
        meets = self.strategy.meets
        if self.herd.grow_from is not None and (meets or self.data.partition != "by-class"):
            raise refuse(
                "herd.grow_from data.partition strategy.name",
                "herd.grow_from adds classes to members that never meet: set data.partition to by-class and strategy.name "
                "to independent",
            )
        if self.herd.grow_from is not None and self.herd.per_class > 1:
            raise refuse(
                "herd.grow_from herd.per_class",
                "herd.grow_from adds classes with one member each: leave herd.per_class out",
            )
        if not self.train.stop.patience:
            return self
        if meets:
            key = self.strategy.settings.meets_key
            raise refuse(
                f"train.stop {key}",
                f"train.stop stops members one by one, and with {key} they meet: leave one of the two out",
            )
        if self.train.stop.metric == "differs" and self.run.watch.every == 0:
            raise refuse(
                "train.stop.metric run.watch.every",
                "train.stop.metric differs is taken by run.watch, and run.watch.every is 0: set it to auto, or the metric "
                "to gap",
            )
        return self

    @model_validator(mode="after")
    def _breeds_fit(self) -> Recipe:
        """Refuse a number of members that is not that of the breeds, and the exchange of generators between breeds."""
        count = sum(breed.members for breed in self.nets.breeds)
        if count and self.herd.count not in (None, count):
            raise refuse(
                "herd.members nets.breeds",
                f"herd.members {self.herd.count} is not the {count} members of nets.breeds: leave herd.members out",
            )
        moves = self.strategy.settings.replaces_generators
        if moves and not self.nets.alike:
            what = "nets.breeds" if len(self.nets.breeds) > 1 else "nets.prior"
            raise refuse(
                f"{moves.split()[0]} {what}",
                f"{moves} puts a generator in another's place, and with {what} they are of different kinds: take strategy.name "
                "gap and swap discriminators",
            )
        return self

    @model_validator(mode="after")
    def _trials_fit(self) -> Recipe:
        """Refuse trials that vary a setting that all members share, set different keys, or have wrong values."""
        trials = self.herd.trials
        for key in (key for trial in trials for key in trial if key not in TRIAL_KEYS):
            raise refuse(
                "herd.trials",
                f"herd.trials cannot vary {key}{did_you_mean(key, TRIAL_KEYS)}; members may differ in {', '.join(TRIAL_KEYS)}",
            )
        if any(trial.keys() != trials[0].keys() for trial in trials):
            raise refuse("herd.trials", "herd.trials must set the same keys in every entry")
        for number, trial in enumerate(trials):
            for key, value in trial.items():
                try:
                    self._with_setting(key, value)
                except ValidationError as error:
                    wrong = error.errors()[0]
                    why = wrong.get("ctx", {}).get("sentence") or f"{key} cannot be {value!r}: {wrong['msg']}"
                    raise refuse("herd.trials", f"herd.trials, entry {number}: {why}") from None
        return self

    @model_validator(mode="after")
    def _has_signs(self) -> Recipe:
        """Refuse adaptive augmentation with losses for which the sign of a logit does not mean real or generated.

        These are the losses of all trials, and those that a strategy draws.
        """
        if self.train.augment_target is None:
            return self
        mutation = self.strategy.settings.mutation_rules
        of_trials = [("loss.name", name) for trial in self.each_trial for name in trial.loss.names]
        of_mutation = [("strategy.cellular.mutation.losses", name) for name in mutation.losses]
        common = mutation.d_loss  # if it is set, all discriminators are trained with it
        used = [("strategy.cellular.mutation.d_loss", common)] if common else [*of_trials, *of_mutation]
        critics = [(key, name) for key, name in used if name.startswith(("wasserstein", "relativistic"))]
        if critics:
            key, name = critics[0]
            raise refuse(
                f"train.augment_target {key} herd.trials",
                f"train.augment_target needs logits whose sign says real or generated, and those of {key} {name} have no such "
                "sign: take hinge or non-saturating, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def _betas_stay_betas(self) -> Recipe:
        """Refuse schedules that move a beta of Adam to 1, which would divide by 0, or below 0."""
        for name in ("beta1", "beta2"):
            ends = [(one.first, one.last) for one in self.train.schedules if f"optim.{name}" in one.keys]
            if not ends:
                continue
            each = [getattr(trial.optim, name) for trial in self.each_trial]
            least = min(min(beta) if isinstance(beta, list) else beta for beta in each)
            if any(0 in pair for pair in ends):
                why = f"a factor of 0 on 1 - optim.{name} makes it 1, with which Adam divides by 0"
            elif (1.0 - least) * math.prod(max(pair) for pair in ends) > 1.0 + 1e-9:
                why = f"the factors on 1 - optim.{name} make it negative: its value is {least:g}"
            else:
                continue
            raise refuse(
                f"train.schedules optim.{name}",
                f"train.schedules moves optim.{name} out of [0, 1): {why}; give other values of first and last",
            )
        return self

    def _with_setting(self, key: str, value: Any) -> Recipe:
        """Return a copy of the recipe with this value of a setting, such as `optim.lr_g`, checked by its section."""
        section, name, *inner = key.split(".")
        old = getattr(self, section)
        if inner:  # the setting of a net, such as nets.discriminator.dropout
            net = getattr(old, name)
            value = {"name": net.name, "settings": {**net.settings, inner[0]: value}}
        new = type(old).model_validate({**old.model_dump(), name: value})
        return self.model_copy(update={section: new})

    @property
    def replica_seeds(self) -> list[int]:
        """The seed of each replica."""
        return [self.run.seed + r % self.herd.seeds for r in range(self.herd.replicas)]

    @property
    def replica_trials(self) -> list[int]:
        """The number of the trial that each replica belongs to."""
        return [r // self.herd.seeds for r in range(self.herd.replicas)]

    @property
    def each_trial(self) -> list[Recipe]:
        """The recipe of each trial; the recipe itself if there are no trials."""
        out = []
        for trial in self.herd.trials or [{}]:
            one = self
            for key, value in trial.items():
                one = one._with_setting(key, value)
            out.append(one)
        return out

    @property
    def own_names(self) -> list[str]:
        """Names of the user's own code in this recipe, of the form `package.module:name`."""
        return [*(name for _, name in plugins_of(self) if is_target(name)), *self.strategy.settings.own_code]

    @property
    def members(self) -> int | None:
        """The number of members of one replica; None if unstated: `herd.per_class` for each class, or 1."""
        settings, bred = self.strategy.settings, sum(breed.members for breed in self.nets.breeds)
        if self.data.partition == "by-class":  # A strategy then requires a number of members per class.
            return self.herd.count or bred or None
        return settings.num_members or self.herd.count or bred or settings.default_members

    @property
    def torus(self) -> tuple[int, int] | None:
        """Rows and columns of the grid on which all members lie, for pictures; None without a single grid."""
        return self.strategy.settings.torus if self.herd.per_class == 1 else None

    @property
    def meeting_members(self) -> int | None:
        """The number of members that can meet: those of one class, or those of a replica if all share the data.

        None if the recipe does not decide it.
        """
        return self.herd.per_class if self.data.partition == "by-class" else self.members
