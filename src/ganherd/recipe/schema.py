"""The settings of a recipe, with their meaning and their defaults. Importing this module does not import PyTorch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ganherd.recipe.augment_config import Augmentation
from ganherd.recipe.base import (
    Budget,
    Bytes,
    ChancePerMember,
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
from ganherd.recipe.member_values import TRIAL_KEYS, ScheduleConfig, Trial, name_of_trial
from ganherd.recipe.net_config import NetConfig, NetsConfig
from ganherd.recipe.plugins.plugin_settings import full_settings
from ganherd.recipe.plugins.recipe_plugins import is_named_source, plugins_of
from ganherd.recipe.strategy_config import AnyStrategy, read_strategy
from ganherd.util.registry import DATA_SOURCES, ENGINES, LOSSES, is_target
from ganherd.util.text import did_you_mean

__all__ = ["NetConfig", "Recipe", "parse_budget", "parse_bytes"]


class DataConfig(Section):
    """The training data, and the rows of it that each member sees."""

    # a name of `ganherd data list`, a path (.npz, .npy, .csv, .txt, .parquet, .tar, idx files, a folder), a pattern of files
    # such as images-{000..009}.tar, or hf:owner/name; options follow after #, such as #image=photo,label=breed,split=train
    source: str = "digits"
    # by-class: one member per class; all: every member sees all rows; diet: every member sees its own random fraction
    partition: Literal["by-class", "all", "diet"] = "by-class"
    diet: float = Field(1.0, gt=0, le=1)  # fraction of the data that each member sees (partition: diet)
    holdout: float = Field(0.2, ge=0, lt=1)  # fraction of each class that is held out, if the source has no test set
    epoch: Literal["largest", "smallest", "mean"] = "largest"  # member whose data one epoch goes through once
    size: int | None = Field(None, ge=2)  # width and height, in pixels, to which images are cropped and resized
    bad_images: Literal["refuse", "skip"] = "refuse"  # what to do with files that are not images
    points: int | None = Field(None, ge=1)  # number of training points that are drawn (toys) or kept (r15)
    label: str | None = None  # column of a table (.csv, .tsv, .txt) with the labels; null: label, class, target or y
    settings: dict[str, Any] = Field({}, validate_default=True)  # settings of a data source of your own

    @field_validator("settings")
    @classmethod
    def _fit_the_source(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        source = info.data.get("source", "")
        if is_named_source(source):
            DATA_SOURCES.accepts(source)
            return full_settings(DATA_SOURCES, source, settings, "data.settings")
        if settings:
            hint = did_you_mean(source, DATA_SOURCES.names(), " ({})")
            raise refuse(
                "data.source data.settings",
                f"data.settings is for a data source by name, and there is none named {source!r}{hint}: install the package that "
                "it comes from, or leave data.settings out",
            )
        return settings

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

    run: str = Field(alias="from")  # folder of the run
    member: int = Field(ge=0)  # number of the member
    replica: int = Field(0, ge=0)  # number of the replica, if the run has several seeds

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"from": self.run, "member": self.member, "replica": self.replica}


class FirstPhaseConfig(Section):
    """A first phase: another recipe that is trained before the herd."""

    # a packaged recipe or a file; its data (not the partition), sizes of nets, seeds, engine and precision become the herd's
    recipe: str
    share: float = Field(gt=0, lt=1)  # fraction of the budget


class HerdConfig(Section):
    """The members of the herd, and what they start from."""

    # number of members (default: one per class, or 1 if members share the data); or members of finished runs to start from,
    # with their nets, such as [{from: RUN, member: 2}, …]
    members: Annotated[int, Field(ge=1)] | Annotated[list[OriginConfig], Field(min_length=1)] | None = None
    start_from: str | None = (
        None  # a finished run: each member starts from the member of its number, or from the only one
    )
    # another recipe that is trained first, and from which all members start; start_from takes precedence
    first: FirstPhaseConfig | None = None
    # a finished run with one member per class: its members stay as they are, and only missing classes are trained
    grow_from: str | None = None
    seeds: int = Field(1, ge=1)  # number of replicas: independent copies of the herd with the seeds seed, seed + 1, …
    # settings in which copies of the herd differ, such as [{train.ema: 0.9}, {train.ema: 0.99}]: a copy for each entry and seed,
    # all with the same data and noise (`ganherd sweep` writes them)
    trials: list[Trial] = []

    @property
    def replicas(self) -> int:
        """The number of copies of the herd: one for each seed of each trial, trial by trial."""
        return self.seeds * max(1, len(self.trials))

    def trial_name(self, number: int) -> str:
        """Return the settings of a trial in words."""
        return name_of_trial(self.trials[number])

    @property
    def count(self) -> int | None:
        """The number of members, if the recipe states it."""
        return len(self.members) if isinstance(self.members, list) else self.members

    @model_validator(mode="after")
    def _one_origin(self) -> HerdConfig:
        for key in ("start_from", "first", "grow_from"):
            if isinstance(self.members, list) and getattr(self, key) is not None:
                raise refuse(
                    f"herd.{key} herd.members",
                    f"herd.{key} and a list of herd.members both set what members start from: leave one out",
                )
        return self


class LossConfig(Section):
    """The losses of generators and discriminators."""

    name: LossName | Annotated[list[LossName], Field(min_length=1)] = "wasserstein-gp"  # one for all, or one per member
    gp_weight: PerMember = 10.0  # weight of the gradient penalty (wasserstein-gp)
    clip: float = Field(0.01, gt=0)  # largest absolute value of a critic's parameters (wasserstein)
    clip_what: Literal["all", "weights"] = (
        "all"  # parameters that are clipped; weights: not the gain and shift of batch norm
    )
    r1_weight: PerMember = 0.0  # gamma of the R1 penalty, half of which is added to the discriminator's loss
    r2_weight: PerMember = 0.0  # gamma of the R2 penalty, the same at generated images
    # standard deviation of noise on images by which R1 and R2 are estimated, without second derivatives; 0: exactly, with them
    slope_noise: float = Field(0.0, ge=0)
    lecam_weight: PerMember = 0.0  # weight of the LeCam regulariser, for few images
    lecam_start: Steps = 1000  # steps after which it counts
    # weight of the squared difference between logits of real images and of the same ones augmented (consistency regularisation)
    consistency_weight: PerMember = 0.0
    consistency_weight_fake: PerMember = 0.0  # the same for generated images (balanced consistency)
    consistency_augment: list[Augmentation] = ["flip", "translation"]  # these augmentations
    class_weight: float = Field(1.0, ge=0)  # weight of the class loss, for discriminators that also classify (acgan)
    class_weight_g: float | None = Field(
        None, ge=0
    )  # weight of the class loss for the generator; default: class_weight
    settings: dict[str, Any] = Field({}, validate_default=True)  # settings of a loss of your own

    @property
    def names(self) -> list[str]:
        """The names of the losses, each once."""
        return list(dict.fromkeys(self.name)) if isinstance(self.name, list) else [self.name]

    @property
    def uses_consistency(self) -> bool:
        """Whether logits of images are compared with those of augmented ones."""
        return any(
            any(weight) if isinstance(weight, list) else weight
            for weight in (self.consistency_weight, self.consistency_weight_fake)
        )

    @model_validator(mode="after")
    def _something_to_compare(self) -> LossConfig:
        if self.uses_consistency and not self.consistency_augment:
            raise refuse(
                "loss.consistency_augment",
                "loss.consistency_weight compares images with augmented ones, and loss.consistency_augment is empty: list some",
            )
        return self

    @property
    def settings_by_name(self) -> dict[str, dict[str, Any]]:
        """The settings of each loss."""
        return dict.fromkeys(self.names, self.settings) if self.settings else {}

    @field_validator("settings")
    @classmethod
    def _fit_the_loss(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" not in info.data:  # a mistake, which is reported
            return settings
        name = info.data["name"]
        names = sorted(set(name)) if isinstance(name, list) else [name]
        if len(names) == 1:
            return full_settings(LOSSES, names[0], settings, "loss.settings")
        if settings:
            raise refuse(
                "loss.settings loss.name", "loss.settings is for one loss, and loss.name has several: leave it out"
            )
        return settings


class OptimConfig(Section):
    """Settings of Adam: one value for all members, or one per member."""

    lr_g: PerMember = 2e-4  # learning rate of the generator
    lr_d: PerMember = 2e-4  # learning rate of the discriminator
    beta1: DecayPerMember = 0.5  # decay of the first moment
    beta2: DecayPerMember = 0.999  # decay of the second moment
    weight_decay: PerMember = (
        0.0  # shrinks all weights by this fraction times the learning rate at each update, as in AdamW
    )
    eps: float = Field(1e-8, gt=0)  # added to the denominator
    grad_clip: float | None = Field(None, gt=0)  # largest gradient norm of each member's net; null: no clipping


class StopConfig(Section):
    """When members stop. A member has converged if its metric, averaged over a window of steps, hardly improves any more."""

    patience: Steps = 0  # steps of a window (metric differs: at least ten looks); 0: no member stops
    # differs: accuracy with which nearest neighbours separate samples from data (measured by run.watch); gap: difference of the
    # discriminator's outputs on real and generated, which estimates the distance for a Wasserstein loss
    metric: Literal["differs", "gap"] = "differs"
    least: float = Field(0.02, ge=0, lt=1)  # relative improvement below which a member has converged


class TrainConfig(Section):
    """The length of the training, and what a step does."""

    budget: Budget = "2000steps"  # steps, epochs, or time up to the saved mixture: 5000steps, 20epochs, 90s, 10m, 2h
    batch: int = Field(64, ge=1)  # samples per member and update
    n_critic: int = Field(1, ge=1)  # discriminator updates for each generator update, on fresh batches
    skip_d: int = Field(0, ge=0)  # the discriminator is updated at every (skip_d + 1)-th step only
    order: Literal["d-g", "g-d"] = "d-g"  # which net of a member is updated first
    fakes: Literal["fresh", "shared"] = (
        "fresh"  # fresh: each update draws new samples; shared: both of a step use the same
    )
    input_noise: PerMember = 0.0  # standard deviation of noise that is added to the discriminator's input
    input_noise_steps: Steps = 0  # steps after which the input noise has decayed to 0; 0: it does not decay
    # linear; or steps, as in the GAP authors' code: all of the noise for the first half of the steps, then a third
    input_noise_decay: Literal["linear", "steps"] = "linear"
    input_noise_on: Literal["both", "real"] = "both"  # inputs that get the noise: real and generated, or real only
    flip: bool = False  # mirror half of the real images
    # DiffAugment: changes of real and generated images before the discriminator sees them
    augment: list[Augmentation] = []
    augment_probability: ChancePerMember = 1.0  # probability that an image is augmented
    # adaptive augmentation: steer that probability of each member until its discriminator is this sure of real images (the mean
    # sign of its logits; ADA has 0.6); null: the probability stays
    augment_target: float | None = Field(None, gt=-1, lt=1)
    augment_images: int = Field(500_000, ge=1)  # real images in which it moves from 0 to 1 at most
    # decay of the running average of the generator's weights, which the mixture uses; lower in the first steps
    ema: DecayPerMember | None = None
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"  # tf32, bf16: products on a GPU only
    # factors of settings that move while training, such as [{keys: [optim.lr_g, optim.lr_d], shape: cosine, last: 0}]
    schedules: list[ScheduleConfig] = []
    stop: StopConfig = StopConfig()  # stop members that have converged, so that the device trains the others

    @model_validator(mode="after")
    def _something_to_steer(self) -> TrainConfig:
        if self.augment_target is not None and not self.augment:
            raise refuse(
                "train.augment_target train.augment",
                "train.augment_target steers the probability of augmentation, and train.augment is empty: list some",
            )
        return self

    @model_validator(mode="after")
    def _updates_fit(self) -> TrainConfig:
        if self.input_noise_decay == "steps" and not self.input_noise_steps:
            raise refuse(
                "train.input_noise_decay train.input_noise_steps",
                "train.input_noise_decay steps needs train.input_noise_steps: the number of steps over which it decays",
            )
        if self.fakes == "shared" and self.n_critic > 1:
            raise refuse(
                "train.fakes train.n_critic",
                "train.fakes shared is for one discriminator update a step: set train.n_critic to 1 or train.fakes to fresh",
            )
        return self


def _engine(name: str) -> str:
    if name != "auto" and not ENGINES.accepts(name):
        names = ["auto", *ENGINES.names()]
        raise refuse("", f"engine.name must be one of {', '.join(names)}, not {name!r}{did_you_mean(name, names)}")
    return name


class EngineConfig(Section):
    """How steps are computed on a device."""

    name: Annotated[str, AfterValidator(_engine)] = "auto"  # auto: the fastest on this machine, measured once
    device: Device = "auto"  # auto, cpu, cuda, or one GPU, such as cuda:1
    chunk: int | None = Field(None, ge=1)  # members on the device at once; default: measured
    memory: Bytes | None = None  # memory on the device for the state, such as 4GiB; default: most of what is free
    threads: int | None = Field(None, ge=1)  # threads on a CPU; default: measured
    balance: bool = True  # give faster ranks more members
    without_gpu: str = ""  # advice that is printed on machines without a GPU, for recipes that need one

    @model_validator(mode="after")
    def _graph_needs_a_gpu(self) -> EngineConfig:
        if self.name in ENGINES and ENGINES[self.name].needs_gpu and self.device == "cpu":
            raise refuse(
                "engine.name engine.device",
                f"engine.name {self.name} needs a GPU, and engine.device is cpu: set engine.name to fused or auto",
            )
        return self

    @property
    def needs_whole_herd(self) -> bool:
        """Whether the engine trains only a whole herd whose members all take the same steps."""
        return self.name in ENGINES and ENGINES[self.name].needs_whole_herd


# Response to an alarm about a member. tell: report it; rollback: return to the last checkpoint and halve the learning rates;
# reseed: new weights; neighbour: the weights of the next healthy member (not with data.partition by-class); stop: end the run.
Policy = Literal["tell", "rollback", "reseed", "neighbour", "stop"]


class RepairConfig(Section):
    """Repair of members whose state is not finite, or whose loss diverged."""

    policy: Policy = "rollback"  # response to a member that turned NaN or diverged
    diverged: float = Field(1e6, gt=0)  # absolute value of a loss above which a member has diverged
    # most repairs of one member, after which the run stops; other alarms about it are only reported then
    limit: int = Field(5, ge=0)


class WatchConfig(Section):
    """Cheap scores of every member during training, and the response to an alarm."""

    # steps between looks; auto: looks take 2 % of the work of training, counted from nets and data; 0: never
    every: Literal["auto"] | Steps = "auto"
    collapse: Policy = "tell"  # the samples of a member hardly vary
    cycling: Policy = "tell"  # its samples for the same noise return to earlier ones
    dead_critic: Policy = "tell"  # its discriminator separates real from generated no better than chance
    memorising: Policy = "tell"  # its samples are copies of training images


class RunConfig(Section):
    """What a run records and saves, and how it watches its members."""

    seed: int = Field(0, ge=0)  # seed of all random numbers: the same seed gives the same herd
    record_every: Annotated[int, BeforeValidator(steps_of), Field(ge=1)] = 50  # steps between lines of metrics.jsonl
    sample_every: Steps = 500  # steps between pictures of samples; 0: never
    # most steps at which small samples of all members are saved, for `ganherd ui`: at every record first, and when there are
    # more, every second one is removed; 0: never
    sprites: int = Field(200, ge=0, le=10_000)
    checkpoint_every: Steps = 500  # steps between checkpoints; 0: never
    # steps between copies of members in another rank's memory, for jobs that survive the loss of a rank; 0: never
    buddy_every: Steps = 100
    # with every record: the discriminators' loss on this many training images and as many held-out ones; 0: never
    validation: int = Field(0, ge=0)
    keep: int = Field(3, ge=1)  # number of latest checkpoints that are kept, in addition to the best
    weights: Literal["data", "uniform"] | dict[str, Positive] = (
        "data"  # p(y) of the mixture: as in the data, equal, or given
    )
    scores: bool = True  # score the mixture at the end; `ganherd score` does so later
    repair: RepairConfig = RepairConfig()
    watch: WatchConfig = WatchConfig()
    tensorboard: bool = False  # write metrics for TensorBoard
    wandb: Literal["off", "offline", "online"] = "off"  # log to Weights & Biases
    mlflow: bool = False  # log to MLflow: to its server at MLFLOW_TRACKING_URI, or into the folder mlruns of the run

    @field_validator("sprites")
    @classmethod
    def _first_and_last(cls, value: int) -> int:
        if value == 1:
            raise ValueError("must be 0 or at least 2: the first and the last step are always saved")
        return value

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(value, dict) and not any(value.values()):
            raise ValueError("must give at least one label a weight above zero")
        return value


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
        """Refuse the policy neighbour if a neighbour generates images of another class, or if there is none."""
        policies = {f"run.watch.{name}": value for name, value in self.run.watch if name != "every"}
        policies["run.repair.policy"] = self.run.repair.policy
        for key in [key for key, policy in policies.items() if policy == "neighbour"]:
            if self.data.partition == "by-class":
                raise refuse(
                    f"{key} data.partition",
                    f"{key} cannot be neighbour with data.partition by-class, with which a neighbour generates images of another "
                    "class: set it to rollback or reseed",
                )
            if (self.members or 1) < 2:
                raise refuse(
                    f"{key} herd.members",
                    f"{key} cannot be neighbour in a herd of one member: set it to rollback or reseed",
                )
        return self

    @model_validator(mode="after")
    def _has_signs(self) -> Recipe:
        """Refuse adaptive augmentation for critics, whose values have no zero."""
        critics = [name for name in self.loss.names if name.startswith(("wasserstein", "relativistic"))]
        if self.train.augment_target is not None and critics:
            raise refuse(
                "train.augment_target loss.name",
                f"train.augment_target needs logits whose sign says real or generated, and those of loss.name {critics[0]} "
                "have no such sign: take hinge or non-saturating, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def _can_meet(self) -> Recipe:
        """Refuse members that exchange nets but see different classes, and whatever the strategy refuses."""
        if self.strategy.settings.exchanges_nets and self.data.partition == "by-class":
            raise refuse(
                "strategy.name data.partition",
                f"strategy.name {self.strategy.name} lets members meet, and with data.partition by-class each sees another "
                "class: set data.partition to all or diet",
            )
        self.strategy.settings.check(self)
        return self

    @model_validator(mode="after")
    def _may_rest(self) -> Recipe:
        """Refuse settings that stop or freeze members that others meet, and a stop whose metric is never measured."""
        meets = self.strategy.meets
        if self.herd.grow_from is not None and (meets or self.data.partition != "by-class"):
            raise refuse(
                "herd.grow_from data.partition strategy.name",
                "herd.grow_from adds classes to members that never meet: set data.partition to by-class and strategy.name "
                "to independent",
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
        """Refuse another number of members than that of the breeds, and strategies that exchange their generators."""
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
        """Refuse trials that differ in settings that all members share, and those whose values are wrong."""
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
                section, name = key.split(".")
                try:
                    self._with_setting(section, name, value)
                except ValidationError as error:
                    wrong = error.errors()[0]
                    why = wrong.get("ctx", {}).get("sentence") or f"{key} cannot be {value!r}: {wrong['msg']}"
                    raise refuse("herd.trials", f"herd.trials, entry {number}: {why}") from None
        return self

    def _with_setting(self, section: str, name: str, value: Any) -> Recipe:
        """Return the recipe with another value of one setting, checked by its section."""
        old = getattr(self, section)
        new = type(old).model_validate({**old.model_dump(), name: value})
        return self.model_copy(update={section: new})

    @property
    def replica_seeds(self) -> list[int]:
        """The seed of each replica."""
        return [self.run.seed + r % self.herd.seeds for r in range(self.herd.replicas)]

    @property
    def replica_trials(self) -> list[int]:
        """The trial of each replica."""
        return [r // self.herd.seeds for r in range(self.herd.replicas)]

    @property
    def each_trial(self) -> list[Recipe]:
        """The recipe of each trial; the recipe itself if there are no trials."""
        out = []
        for trial in self.herd.trials or [{}]:
            one = self
            for key, value in trial.items():
                section, name = key.split(".")
                one = one._with_setting(section, name, value)
            out.append(one)
        return out

    @property
    def own_names(self) -> list[str]:
        """Names of the user's own code, `package.module:name`."""
        return [*(name for _, name in plugins_of(self) if is_target(name)), *self.strategy.settings.own_code]

    @property
    def members(self) -> int | None:
        """The number of members of one replica; None if the recipe does not set it: one per class, or 1."""
        settings, bred = self.strategy.settings, sum(breed.members for breed in self.nets.breeds)
        return settings.num_members or self.herd.count or bred or settings.default_members
