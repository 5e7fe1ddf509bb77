"""The section `run` of a recipe: what a run records and saves, and how it watches and repairs its members."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from ganherd.recipe.base import Positive, Section, Steps, steps_of
from ganherd.recipe.plugins.named_entry import MetricName

# Response to an alarm about a member. tell: report it; rollback: return to the last checkpoint and halve the learning rates;
# reseed: new weights; neighbour: the weights of the next healthy member (of the same class); stop: end the run.
Policy = Literal["tell", "rollback", "reseed", "neighbour", "stop"]


class RepairConfig(Section):
    """Repair of members whose state is not finite, or whose loss diverged."""

    policy: Policy = "rollback"  # response to a member that turned NaN or diverged
    diverged: float = Field(1e6, gt=0)  # absolute value of a loss above which a member has diverged
    # most repairs of one member, after which the run stops; other alarms about it are only reported then
    limit: int = Field(5, ge=0)


class WatchConfig(Section):
    """Cheap scores of every member during training, and the response to an alarm."""

    # steps between computations of the scores; auto: they take 2 % of the work of training, counted from nets and
    # data; 0: never
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
    # p(y) of the mixture: as in the data, equal, or given
    weights: Literal["data", "uniform"] | dict[str, Positive] = "data"
    # weights of the members of one class (herd.per_class) in the mixture: equal, or those with which the samples of the class
    # score best against its training data; grids choose theirs by strategy.cellular.mixing
    member_weights: Literal["equal", "fid", "kid", "precision", "density", "coverage"] = "fid"
    scores: bool = True  # score the mixture at the end; `ganherd score` does so later
    # metrics of these scores in addition to the usual ones, such as [memorisation, {name: contrast, window: 3}] with the settings
    # of a metric of your own
    metrics: list[MetricName] = []
    repair: RepairConfig = RepairConfig()
    watch: WatchConfig = WatchConfig()
    tensorboard: bool = False  # write metrics for TensorBoard
    wandb: Literal["off", "offline", "online"] = "off"  # log to Weights & Biases
    mlflow: bool = False  # log to MLflow: to its server at MLFLOW_TRACKING_URI, or into the folder mlruns of the run

    @property
    def policies(self) -> dict[str, str]:
        """The response to each alarm about a member, by the key that sets it."""
        watched = {f"run.watch.{name}": policy for name, policy in self.watch if name != "every"}
        return {**watched, "run.repair.policy": self.repair.policy}

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
