"""What a recipe may say: every knob with its meaning and its default, and nothing that needs torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_serializer, model_validator

from ganherd.recipe.base import (
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
    parse_budget,
    parse_bytes,
    refuse,
    steps_of,
)
from ganherd.recipe.net_config import NetConfig, NetsConfig
from ganherd.recipe.strategy_config import StrategyConfig

__all__ = [
    "ALSO_CALLED",
    "LOSSES",
    "NetConfig",
    "Recipe",
    "Section",
    "parse_budget",
    "parse_bytes",
    "refuse",
]


class DataConfig(Section):
    source: str = "digits"  # digits, mnist, cifar10, cifar100, ring8, grid25, r15, or a path (.npz, idx, a folder)
    partition: Literal["by-class", "all", "diet"] = "by-class"
    diet: float = Field(1.0, gt=0, le=1)  # the fraction of the data that each member sees (partition: diet)
    holdout: float = Field(0.2, ge=0, lt=1)  # per class, where the source has no test set of its own
    epoch: Literal["largest", "smallest", "mean"] = "largest"  # whose data one epoch goes through once
    size: int | None = Field(None, ge=2)  # images of a folder are resized to this many pixels
    bad_images: Literal["refuse", "skip"] = "refuse"  # files of a folder that are no images
    points: int | None = Field(None, ge=1)  # toys: how many points are drawn (or kept, for r15)

    @model_validator(mode="after")
    def _diet_is_a_partition(self) -> DataConfig:
        if self.diet < 1 and self.partition != "diet":
            raise refuse(
                "data.diet data.partition",
                f"data.diet {self.diet:g} has no effect with data.partition {self.partition}: "
                "set data.partition to diet, or data.diet to 1",
            )
        return self


class OriginConfig(Section):
    """A member of a finished run, to start from."""

    run: str = Field(alias="from")
    member: int = Field(ge=0)
    replica: int = Field(0, ge=0)  # of several seeds, counted from 0

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"from": self.run, "member": self.member, "replica": self.replica}


class FirstPhaseConfig(Section):
    """What is trained before the herd itself, and how much of the budget it gets."""

    recipe: str  # a packaged one or a file; data (but its partition), nets' sizes, seeds, engine, precision: the herd's
    share: float = Field(gt=0, lt=1)


class HerdConfig(Section):
    # how many (default: one per class, or 1 where members share the data); or those of finished runs to start from, with
    # their nets, as [{from: RUN, member: 2}, …]
    members: Annotated[int, Field(ge=1)] | Annotated[list[OriginConfig], Field(min_length=1)] | None = None
    start_from: str | None = None  # a finished run: all start from its members of the same number, or from its only one
    # two phases: another recipe is trained first, and all start from it; where start_from names a run, that comes before it
    first: FirstPhaseConfig | None = None
    # a finished run, a member for each class: those classes stay as they are, and only what it lacks is trained
    grow_from: str | None = None
    seeds: int = Field(1, ge=1)  # replicas: independent copies stacked, with seeds seed, seed + 1, …

    @property
    def count(self) -> int | None:
        return len(self.members) if isinstance(self.members, list) else self.members

    @model_validator(mode="after")
    def _one_origin(self) -> HerdConfig:
        if isinstance(self.members, list) and self.start_from is not None:
            raise refuse(
                "herd.start_from herd.members",
                "herd.start_from and a list of herd.members both say where members start from: leave one out",
            )
        if isinstance(self.members, list) and self.first is not None:
            raise refuse(
                "herd.first herd.members",
                "herd.first and a list of herd.members both say where members start from: leave one out",
            )
        if isinstance(self.members, list) and self.grow_from is not None:
            raise refuse(
                "herd.grow_from herd.members",
                "herd.grow_from and a list of herd.members both say who the members are: leave one out",
            )
        return self


class LossConfig(Section):
    name: LossName | Annotated[list[LossName], Field(min_length=1)] = "wasserstein-gp"  # for all, or for each member
    gp_weight: float = Field(10.0, ge=0)  # wasserstein-gp
    clip: float = Field(0.01, gt=0)  # wasserstein: D's parameters are clipped to ± this
    clip_what: Literal["all", "weights"] = "all"  # weights: not the gain and shift of batch norm
    r1_weight: float = Field(0.0, ge=0)  # gamma of the R1 penalty, half of which is added to any discriminator's loss
    class_weight: float = Field(1.0, ge=0)  # discriminators that also tell classes (acgan): of the price of wrong ones
    class_weight_g: float | None = Field(None, ge=0)  # … for the generator; default: the same


class OptimConfig(Section):
    """Adam's settings, for each member its own."""

    lr_g: PerMember = 2e-4
    lr_d: PerMember = 2e-4
    beta1: DecayPerMember = 0.5
    beta2: DecayPerMember = 0.999
    eps: float = Field(1e-8, gt=0)
    grad_clip: float | None = Field(None, gt=0)  # largest gradient norm, for each member and net


class StopConfig(Section):
    """When a member has converged: its metric, averaged over some steps, is hardly better than over as many before."""

    patience: Steps = 0  # so many; for differs at least ten looks; 0: nobody stops
    # differs: how well nearest neighbours tell its samples from its data (taken by run.watch); gap: how far apart its
    # discriminator holds real and generated, which is an estimate of the distance for a Wasserstein loss
    metric: Literal["differs", "gap"] = "differs"
    least: float = Field(0.02, ge=0, lt=1)  # the part by which it must be less to go on


class TrainConfig(Section):
    budget: Budget = "2000steps"  # 5000steps, 20epochs, 90s, 10m, 2h
    batch: int = Field(64, ge=1)
    n_critic: int = Field(1, ge=1)  # discriminator updates for each generator update, on fresh batches
    skip_d: int = Field(0, ge=0)  # the discriminator learns only at every (skip_d + 1)-th step
    order: Literal["d-g", "g-d"] = "d-g"
    # whether each update draws samples of its own, or both of a step share those that the generator is judged by
    fakes: Literal["fresh", "shared"] = "fresh"
    input_noise: PerMember = 0.0  # standard deviation of noise added to what the discriminator sees
    input_noise_steps: Steps = 0  # … decaying to none over so many steps (0: it stays)
    # linear; or steps, as in the GAP authors' code: whole for the first half of them, a third for the second
    input_noise_decay: Literal["linear", "steps"] = "linear"
    input_noise_on: Literal["both", "real"] = "both"  # what it is added to: real and generated, or real only
    flip: bool = False  # half of the real images are mirrored
    # DiffAugment: what is done to real and generated images alike before the discriminator sees them
    augment: list[Literal["colour", "translation", "cutout", "flip"]] = []
    # decay of the running average of the generator's weights, which are then the mixture's; less at first, in short runs
    ema: float | None = Field(None, gt=0, lt=1)
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"
    stop: StopConfig = (
        StopConfig()
    )  # members that have converged rest, and the others get the device (strategy independent)

    @model_validator(mode="after")
    def _noise_decays(self) -> TrainConfig:
        if self.input_noise_decay == "steps" and not self.input_noise_steps:
            raise refuse(
                "train.input_noise_decay train.input_noise_steps",
                "train.input_noise_decay steps needs train.input_noise_steps: over how many steps it decays",
            )
        return self

    @model_validator(mode="after")
    def _one_update_shares(self) -> TrainConfig:
        if self.fakes == "shared" and self.n_critic > 1:
            raise refuse(
                "train.fakes train.n_critic",
                "train.fakes shared is for one discriminator update a step: set train.n_critic to 1 or train.fakes to fresh",
            )
        return self


class EngineConfig(Section):
    name: Literal["auto", "loop", "fused", "graph"] = "auto"
    device: Device = "auto"  # auto, cpu, cuda, cuda:1
    chunk: int | None = Field(None, ge=1)  # members on the device at once; default: measured
    # what the state on the device may take, as 4GiB; default: most of what is free
    memory: Bytes | None = None
    threads: int | None = Field(None, ge=1)  # default: measured
    balance: bool = True  # on unlike machines the faster ranks get more members
    without_gpu: str = ""  # recipes that are meant for a GPU: what to do where there is none, for people

    @model_validator(mode="after")
    def _graph_needs_a_gpu(self) -> EngineConfig:
        if self.name == "graph" and self.device == "cpu":
            raise refuse(
                "engine.name engine.device",
                "engine.name graph captures work of a GPU and engine.device is cpu: set engine.name to fused or auto",
            )
        return self


# What follows an alarm about a member: only say so; back to the last checkpoint with half the learning rates; fresh
# weights; the weights of the next member that is well (not where members stand for classes); the end of the run.
Policy = Literal["tell", "rollback", "reseed", "neighbour", "stop"]


class RepairConfig(Section):
    policy: Policy = "rollback"  # for a member that turned NaN or diverged
    diverged: float = Field(1e6, gt=0)  # a loss beyond this counts as diverged
    # repairs of one member before the run stops; one that is ill otherwise is not repaired any more, and goes on
    limit: int = Field(5, ge=0)


class WatchConfig(Section):
    """Cheap scores of every member while it trains, and what follows where they are an alarm."""

    # steps between looks; auto: looks take 2 % of the work of training, counted from nets and data; 0: never
    every: Literal["auto"] | Steps = "auto"
    collapse: Policy = "tell"  # its samples are hardly varied any more
    cycling: Policy = "tell"  # its samples on the same noise come back to where they were
    dead_critic: Policy = "tell"  # its discriminator tells real from generated no better than a coin
    memorising: Policy = "tell"  # its samples are copies of training images


class RunConfig(Section):
    seed: int = Field(0, ge=0)
    record_every: Annotated[int, BeforeValidator(steps_of), Field(ge=1)] = 50
    sample_every: Steps = 500  # 0: never
    checkpoint_every: Steps = 500  # 0: never
    # steps between copies of the members in another rank's memory, where a lost rank can be outlived by the others; 0: never
    buddy_every: Steps = 100
    # with every record: the discriminators' loss on this many training images and as many held-out ones; 0: never
    validation: int = Field(0, ge=0)
    keep: int = Field(3, ge=1)  # checkpoints kept, beside the best
    weights: Literal["data", "uniform"] | dict[str, Positive] = "data"  # p(y) of the mixture
    scores: bool = True  # of the mixture, at the end; `ganherd score` measures them later too
    repair: RepairConfig = RepairConfig()
    watch: WatchConfig = WatchConfig()
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
    # folders of your own modules (`package.module:Name`); default: those of the recipe's folder and the current one that hold them
    code: list[str] = []
    data: DataConfig = DataConfig()
    herd: HerdConfig = HerdConfig()
    nets: NetsConfig = Field(default_factory=NetsConfig)
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    strategy: StrategyConfig = StrategyConfig()
    engine: EngineConfig = EngineConfig()
    run: RunConfig = RunConfig()

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
        name, members = self.strategy.name, self.herd.count
        if name == "independent":
            return self
        if self.data.partition == "by-class":
            raise refuse(
                "strategy.name data.partition",
                f"strategy.name {name} lets members meet, and with data.partition by-class each knows another class: "
                "set data.partition to all or diet",
            )
        if name == "gap" and self.members == 1:
            raise refuse("strategy.name herd.members", "strategy.name gap needs at least two members: set herd.members")
        pace, stay, there = self.strategy.gap.pace, self.strategy.gap.stay, self.members or 0
        if pace and len(pace) != there:
            raise refuse(
                "strategy.gap.pace herd.members",
                f"strategy.gap.pace lists {len(pace)} speeds, but the herd has {there} members: give one for each",
            )
        if name == "gap" and max(stay, default=0) >= there:
            raise refuse(
                "strategy.gap.stay herd.members",
                f"strategy.gap.stay names slot {max(stay)}, but {there} members have the slots 0 to {there - 1}",
            )
        if name == "gap" and stay and there - len(set(stay)) < 2:
            raise refuse(
                "strategy.gap.stay herd.members",
                f"strategy.gap.stay leaves {there - len(set(stay))} of {there} members to swap, and a swap takes two: let fewer "
                "stay, or set strategy.name to independent",
            )
        if pace and self.engine.name == "graph":
            raise refuse(
                "strategy.gap.pace engine.name",
                "engine.name graph captures one step of all members, and with strategy.gap.pace each is at its own: "
                "set engine.name to fused or auto",
            )
        if name == "cellular" and self.train.fakes == "shared":
            raise refuse(
                "train.fakes strategy.name",
                "train.fakes shared shows a discriminator its partner's samples, and with strategy.name cellular it meets "
                "others: set train.fakes to fresh",
            )
        cells = self.strategy.cellular
        if name == "cellular" and members not in (None, cells.cells * cells.population):
            raise refuse(
                "herd.members strategy.cellular.grid strategy.cellular.population",
                f"herd.members {members} is not the {cells.cells} cells × {cells.population} individuals of "
                "strategy.cellular: leave herd.members out",
            )
        return self

    @model_validator(mode="after")
    def _may_rest(self) -> Recipe:
        """A member that rests cannot be met, and what says that it may has to be looked at."""
        meets = self.strategy.meets
        if self.herd.grow_from is not None and (meets or self.data.partition != "by-class"):
            raise refuse(
                "herd.grow_from data.partition strategy.name",
                "herd.grow_from adds classes to members that meet nobody: set data.partition to by-class and strategy.name "
                "to independent",
            )
        if not self.train.stop.patience:
            return self
        if meets:
            key = "strategy.name" if self.strategy.name != "independent" else "strategy.share"
            raise refuse(
                f"train.stop {key}",
                f"train.stop lets members rest one by one, and with {key} they meet: leave one of the two out",
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
        """Breeds say how many members there are; their generators stay where they are."""
        count = sum(breed.members for breed in self.nets.breeds)
        if count and self.herd.count not in (None, count):
            raise refuse(
                "herd.members nets.breeds",
                f"herd.members {self.herd.count} is not the {count} members of nets.breeds: leave herd.members out",
            )
        key = {"cellular": "strategy.name", "gap": "strategy.gap.swap"}.get(self.strategy.name, "")
        moves = self.strategy.name == "cellular" or self.strategy.gap.swap == "generators"
        if moves and not self.nets.alike:
            what = "nets.breeds" if len(self.nets.breeds) > 1 else "nets.prior"
            raise refuse(
                f"{key} {what}",
                f"{key} {'cellular' if key.endswith('name') else 'generators'} puts a generator in another's place, "
                f"and with {what} they are of different kinds: take strategy.name gap and swap discriminators",
            )
        return self

    @property
    def own_names(self) -> list[str]:
        """What is named as `package.module:Name`: code of the user's own."""
        cells = self.strategy.cellular
        named = [*(net.name for net in self.nets.all), cells.rewire_by or "", cells.mixing.score, cells.mixing.network]
        return [name for name in named if ":" in name]

    @property
    def members(self) -> int | None:
        """Members of one replica, where the recipe alone decides it; else the data does, or one is enough."""
        if self.strategy.name == "cellular":
            return self.strategy.cellular.cells * self.strategy.cellular.population
        bred = sum(breed.members for breed in self.nets.breeds)
        return self.herd.count or bred or (4 if self.strategy.name == "gap" else None)
