"""What a recipe may say: every knob with its meaning and its default, and nothing that needs torch."""

from __future__ import annotations

import difflib
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ganherd.recipe_base import (
    ALSO_CALLED,
    LOSSES,
    Budget,
    Bytes,
    DecayPerMember,
    Device,
    LossName,
    PerMember,
    Positive,
    Section,
    Steps,
    nearest,
    parse_budget,
    parse_bytes,
    refuse,
    steps_of,
)
from ganherd.recipe_strategy import Strategy

__all__ = ["ALSO_CALLED", "LOSSES", "Recipe", "Section", "nearest", "parse_budget", "parse_bytes", "refuse"]


class Net(Section):
    """A net by name with its settings; `package.module:Class` names a user's own."""

    name: str
    settings: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`mlp` is short for {name: mlp}; settings may stand beside the name."""
        if isinstance(value, Net):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError("must name a net, as mlp or {name: mlp, activation: tanh}")
        inner, beside = value.get("settings"), {k: v for k, v in value.items() if k not in ("name", "settings")}
        if not isinstance(inner, dict | None):
            raise ValueError("must have a mapping as its settings, as {name: mlp, settings: {activation: tanh}}")
        if twice := sorted(set(inner or {}) & set(beside)):
            raise ValueError(f"must have its setting {twice[0]!r} once: beside the name or under settings")
        return {"name": value["name"], "settings": _plain({**(inner or {}), **beside})}


def _plain(value: Any) -> Any:
    """Settings are what YAML can hold, so that a recipe can be written down and read back the same."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"must have settings of text, finite numbers, true or false and lists of these ({value!r} is none)"
    )


class Data(Section):
    source: str = "digits"  # digits, mnist, cifar10, cifar100, ring8, grid25, r15, or a path (.npz, idx, a folder)
    partition: Literal["by-class", "all", "diet"] = "by-class"
    diet: float = Field(1.0, gt=0, le=1)  # the fraction of the data that each member sees (partition: diet)
    holdout: float = Field(0.2, ge=0, lt=1)  # per class, where the source has no test set of its own
    epoch: Literal["largest", "smallest", "mean"] = "largest"  # whose data one epoch goes through once
    size: int | None = Field(None, ge=2)  # images of a folder are resized to this many pixels
    bad_images: Literal["refuse", "skip"] = "refuse"  # files of a folder that are no images
    points: int | None = Field(None, ge=1)  # toys: how many points are drawn (or kept, for r15)

    @model_validator(mode="after")
    def _diet_is_a_partition(self) -> Data:
        if self.diet < 1 and self.partition != "diet":
            raise refuse(
                "data.diet data.partition",
                f"data.diet {self.diet:g} has no effect with data.partition {self.partition}: "
                "set data.partition to diet, or data.diet to 1",
            )
        return self


class Herd(Section):
    members: int | None = Field(None, ge=1)  # default: one per class, or 1 where members share the data
    seeds: int = Field(1, ge=1)  # replicas: independent copies stacked, with seeds seed, seed + 1, …


class Nets(Section):
    generator: Net = Field(Net(name="small"), validate_default=True)
    discriminator: Net = Field(Net(name="small"), validate_default=True)
    latent: int = Field(32, ge=1)  # how many numbers a generator makes one sample from
    prior: Literal["normal", "uniform"] = "normal"  # how they are drawn: N(0, 1), or even in [-1, 1]

    @field_validator("generator", "discriminator")
    @classmethod
    def _in_catalog(cls, net: Net, info: ValidationInfo) -> Net:
        """The named net exists and takes these settings; those not given are written out."""
        from ganherd.nets import catalog  # here, because building nets needs recipes in turn

        role: catalog.Role = "generator" if info.field_name == "generator" else "discriminator"
        known, key = catalog.specs(role), f"nets.{role}"
        if catalog.is_foreign(net.name):
            return net  # a user's own class is looked at only when it is trusted
        if net.name not in known:
            also = nearest(net.name, known)
            raise refuse(key, f"there is no {role} {net.name!r} (there are {', '.join(known)} and your own){also}")
        settings = known[net.name].settings
        for name in net.settings:
            if name not in settings:
                hint = nearest(f"{key}.{name}", [f"{key}.{n}" for n in difflib.get_close_matches(name, settings)])
                takes = f" ({role} {net.name} takes {', '.join(settings) or 'none'})"
                raise refuse(f"{key}.settings.{name}", f"unknown key '{key}.{name}'{takes}{hint}")
        full = {}
        for name, setting in settings.items():
            value = net.settings.get(name, setting.default)
            try:
                full[name] = setting.check(value)
            except ValueError as error:
                raise refuse(f"{key}.settings.{name}", f"{key}.{name} {error}, not {value!r}") from None
        return Net(name=net.name, settings=full)


class Loss(Section):
    name: LossName | Annotated[list[LossName], Field(min_length=1)] = "wasserstein-gp"  # for all, or for each member
    gp_weight: float = Field(10.0, ge=0)  # wasserstein-gp
    clip: float = Field(0.01, gt=0)  # wasserstein: D's parameters are clipped to ± this
    clip_what: Literal["all", "weights"] = "all"  # weights: not the gain and shift of batch norm


class Optim(Section):
    """Adam's settings, for each member its own."""

    lr_g: PerMember = 2e-4
    lr_d: PerMember = 2e-4
    beta1: DecayPerMember = 0.5
    beta2: DecayPerMember = 0.999
    eps: float = Field(1e-8, gt=0)
    grad_clip: float | None = Field(None, gt=0)  # largest gradient norm, for each member and net


class Train(Section):
    budget: Budget = "2000steps"  # 5000steps, 20epochs, 90s, 10m, 2h
    batch: int = Field(64, ge=1)
    n_critic: int = Field(1, ge=1)  # discriminator updates for each generator update, on fresh batches
    skip_d: int = Field(0, ge=0)  # the discriminator learns only at every (skip_d + 1)-th step
    order: Literal["d-g", "g-d"] = "d-g"
    input_noise: PerMember = 0.0  # standard deviation of noise added to what the discriminator sees
    input_noise_steps: Steps = 0  # … decaying to none over so many steps (0: it stays)
    ema: float | None = Field(None, gt=0, lt=1)  # decay of the running average of the generator's weights
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"


class Engine(Section):
    name: Literal["auto", "loop", "fused", "graph"] = "auto"
    device: Device = "auto"  # auto, cpu, cuda, cuda:1
    chunk: int | None = Field(None, ge=1)  # members on the device at once; default: measured
    # what the state on the device may take, as 4GiB; default: most of what is free
    memory: Bytes | None = None
    threads: int | None = Field(None, ge=1)  # default: measured

    @model_validator(mode="after")
    def _graph_needs_a_gpu(self) -> Engine:
        if self.name == "graph" and self.device == "cpu":
            raise refuse(
                "engine.name engine.device",
                "engine.name graph captures work of a GPU and engine.device is cpu: set engine.name to fused or auto",
            )
        return self


# What follows an alarm about a member: only say so; back to the last checkpoint with half the learning rates; fresh
# weights; the weights of the next member that is well (not where members stand for classes); the end of the run.
Policy = Literal["tell", "rollback", "reseed", "neighbour", "stop"]


class Repair(Section):
    policy: Policy = "rollback"  # for a member that turned NaN or diverged
    diverged: float = Field(1e6, gt=0)  # a loss beyond this counts as diverged
    # repairs of one member before the run stops; one that is ill otherwise is not repaired any more, and goes on
    limit: int = Field(5, ge=0)


class Watch(Section):
    """Cheap scores of every member while it trains, and what follows where they are an alarm."""

    # steps between looks; auto: measured once so that they cost at most 2 % of the time, and recorded; 0: never
    every: Literal["auto"] | Steps = "auto"
    collapse: Policy = "tell"  # its samples are hardly varied any more
    cycling: Policy = "tell"  # its samples on the same noise come back to where they were
    dead_critic: Policy = "tell"  # its discriminator tells real from generated no better than a coin
    memorising: Policy = "tell"  # its samples are copies of training images


class Run(Section):
    seed: int = Field(0, ge=0)
    record_every: Annotated[int, BeforeValidator(steps_of), Field(ge=1)] = 50
    sample_every: Steps = 500  # 0: never
    checkpoint_every: Steps = 500  # 0: never
    keep: int = Field(3, ge=1)  # checkpoints kept, beside the best
    weights: Literal["data", "uniform"] | dict[str, Positive] = "data"  # p(y) of the mixture
    repair: Repair = Repair()
    watch: Watch = Watch()
    tensorboard: bool = False
    wandb: Literal["off", "offline", "online"] = "off"

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(value, dict) and not any(value.values()):
            raise ValueError("must give at least one label a weight above zero")
        return value


class Recipe(Section):
    about: str = ""  # one line for people
    data: Data = Data()
    herd: Herd = Herd()
    nets: Nets = Field(default_factory=Nets)
    loss: Loss = Loss()
    optim: Optim = Optim()
    train: Train = Train()
    strategy: Strategy = Strategy()
    engine: Engine = Engine()
    run: Run = Run()

    @model_validator(mode="after")
    def _has_neighbours(self) -> Recipe:
        """A neighbour's weights make other images, where members stand for classes."""
        policies = {f"run.watch.{name}": value for name, value in self.run.watch if name != "every"}
        policies["run.repair.policy"] = self.run.repair.policy
        for key in [key for key, policy in policies.items() if policy == "neighbour"]:
            if self.data.partition == "by-class":
                raise refuse(
                    f"{key} data.partition",
                    f"{key} cannot be neighbour with data.partition by-class, where a neighbour makes images of another "
                    "class: set it to rollback or reseed",
                )
            if (self.members or 1) < 2:
                raise refuse(
                    f"{key} herd.members",
                    f"{key} cannot be neighbour in a herd of one member: set it to rollback or reseed",
                )
        return self

    @model_validator(mode="after")
    def _can_meet(self) -> Recipe:
        """Members that meet see data of one kind, and are as many as the strategy needs."""
        name, members = self.strategy.name, self.herd.members
        if name == "independent":
            return self
        if self.data.partition == "by-class":
            raise refuse(
                "strategy.name data.partition",
                f"strategy.name {name} lets members meet, and with data.partition by-class each knows another class: "
                "set data.partition to all or diet",
            )
        if name == "gap" and members == 1:
            raise refuse("strategy.name herd.members", "strategy.name gap needs at least two members: set herd.members")
        cells = self.strategy.cellular
        if name == "cellular" and members not in (None, cells.cells * cells.population):
            raise refuse(
                "herd.members strategy.cellular.grid strategy.cellular.population",
                f"herd.members {members} is not the {cells.cells} cells × {cells.population} individuals of "
                "strategy.cellular: leave herd.members out",
            )
        return self

    @property
    def members(self) -> int | None:
        """Members of one replica, where the recipe alone decides it; else the data does, or one is enough."""
        if self.strategy.name == "cellular":
            return self.strategy.cellular.cells * self.strategy.cellular.population
        return self.herd.members or (4 if self.strategy.name == "gap" else None)
