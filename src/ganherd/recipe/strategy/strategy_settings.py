"""The base class of the settings of a strategy, and the entry of a strategy in the registry of strategies.

A strategy decides what happens between the members of a herd, such as exchanges of nets. Members meet if it lets one
depend on another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from ganherd.recipe.base import LossName, Section, refuse
from ganherd.util.errors import UserError
from ganherd.util.registry import load_target
from ganherd.util.user_code import must_take

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe


class MutationConfig(Section):
    """Changes of an individual's settings between its updates."""

    # reference: Lipizzaner's Gaussian, which drifts down slowly; lognormal: a factor around 1, which explores
    learning_rate: Literal["off", "reference", "lognormal"] = "reference"
    # reference: alpha; lognormal: standard deviation of the logarithm of the factor
    strength: float = Field(1e-4, gt=0)
    probability: float = Field(0.5, ge=0, le=1)
    each: Literal["batch", "iteration"] = "batch"
    losses: list[LossName] = []  # Mustangs: losses that generators draw from; empty: loss.name
    loss_each: Literal["batch", "iteration", "creation"] = "batch"
    d_loss: LossName | None = None  # loss of the discriminators; null: that of the drawn loss

    @model_validator(mode="after")
    def _has_losses_to_draw(self) -> MutationConfig:
        key = "strategy.cellular.mutation"
        if not self.losses and self.loss_each != "batch":
            raise refuse(
                f"{key}.loss_each {key}.losses",
                f"{key}.loss_each has no effect if no losses are drawn: list some in {key}.losses, or leave it out",
            )
        return self


NO_MUTATION = MutationConfig(learning_rate="off")


class StrategySettings(Section):
    """The settings of a strategy: the section `strategy.NAME` of a recipe.

    Derive from this class for the settings of your own strategy and override what differs. The defaults describe members that
    exchange nets, train at the same pace and keep their settings.
    """

    @property
    def exchanges_nets(self) -> bool:
        """Whether members take over, or train against, nets of others; then all must see the same kind of data."""
        return True

    @property
    def meets(self) -> bool:
        """Whether the training of a member ever depends on another member."""
        return self.exchanges_nets

    @property
    def meets_key(self) -> str:
        """The key of the recipe that lets members meet, for messages."""
        return "strategy.name"

    @property
    def is_one_gan(self) -> bool:
        """Whether all members that meet are copies of one GAN, so that the mixture needs only the first of them."""
        return False

    @property
    def unsynced_key(self) -> str:
        """The key and value that let ranks be at different steps, for messages; empty: all are at the same step."""
        return ""

    @property
    def replaces_generators(self) -> str:
        """The key and value by which a generator may replace another member's, for messages; empty: none does."""
        return ""

    @property
    def num_members(self) -> int | None:
        """The number of members that the settings require; None: any number is possible."""
        return None

    @property
    def default_members(self) -> int | None:
        """The number of members if the recipe does not state it; None: the data decides."""
        return None

    @property
    def group_size(self) -> int:
        """The number of consecutive members that see the same data and stay on one rank."""
        return 1

    @property
    def torus(self) -> tuple[int, int] | None:
        """Rows and columns of a grid whose neighbours should lie on one rank; None: members lie in a row."""
        return None

    @property
    def paces(self) -> Sequence[float]:
        """The speed of each member, of which the fastest is 1; empty: all take the same steps."""
        return ()

    @property
    def rate_smoothing(self) -> str:
        """The length of time after an exchange during which learning rates are smoothed, e.g. 0.05epochs; "0": none."""
        return "0"

    @property
    def mutation_rules(self) -> MutationConfig:
        """How settings of members change between their updates."""
        return NO_MUTATION

    @property
    def spans(self) -> Mapping[str, str]:
        """The settings that are lengths of time, such as 0.5epochs, by name; they become steps when a run starts."""
        return {}

    @property
    def networks(self) -> Mapping[str, str]:
        """The networks with which the strategy extracts features of samples, by the key that names each."""
        return {}

    @property
    def own_code(self) -> list[str]:
        """Names of the form `package.module:name`, in these settings, of the user's code that the strategy imports."""
        return [name for name in self.networks.values() if ":" in name]

    def with_absolute_paths(self, absolute: Callable[[str], str]) -> Self:
        """Return the settings with every path replaced by `absolute(path)`."""
        return self

    def check(self, recipe: Recipe) -> None:
        """Raise `refuse(keys, sentence)` if the settings do not fit the rest of the recipe."""

    def never_due(self, spans: Mapping[str, int], steps: int) -> list[str]:
        """Return a warning for each planned event that a run of `steps` steps does not reach.

        `spans` holds the settings of `self.spans` in steps.
        """
        return []


@dataclass(frozen=True)
class StrategySpec:
    """A strategy that a recipe can name."""

    target: Any  # the class, or `module:Class`, which is imported when the strategy is built
    settings: type[StrategySettings] = StrategySettings
    section: str = ""  # the key of its settings below `strategy`; default: its name
    about: str = ""

    @classmethod
    def adopt(
        cls, name: str, target: Any, *, settings: type[StrategySettings] = StrategySettings, about: str = ""
    ) -> StrategySpec:
        """Check a strategy that a user registers, and return its entry (see `ganherd.register.strategy`)."""
        base = load_target("ganherd.strategies.strategy:Strategy")
        if not (inspect.isclass(target) and issubclass(target, base)):
            raise UserError(f"the strategy {name} must be a class derived from ganherd.register.Strategy.")
        if not (inspect.isclass(settings) and issubclass(settings, StrategySettings)):
            raise UserError(
                f"the settings of the strategy {name} must be a class derived from ganherd.register.StrategySettings."
            )
        own = [
            hook for hook in vars(base) if not hook.startswith("_") and getattr(target, hook) is not getattr(base, hook)
        ]
        for hook in own:
            must_take(
                f"{hook} of the strategy {name}",
                getattr(target, hook),
                *inspect.signature(getattr(base, hook)).parameters,
            )
        if "open" in own and "next_after" not in own:
            raise UserError(
                f"the strategy {name} has open but no next_after, so its members would never meet: add next_after(step), which "
                "returns the step of the next meeting."
            )
        return cls(target, settings, about=about or (inspect.getdoc(target) or "").partition("\n")[0])
