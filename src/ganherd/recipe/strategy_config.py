"""The section `strategy` of a recipe: the name of a registered strategy, and a section with its settings.

The section is read as a class of its own for each strategy, because each has other settings. These classes are created
when they are first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, create_model
from pydantic.fields import FieldInfo

from ganherd.recipe.base import Section, refuse
from ganherd.recipe.strategy.cellular_config import CellularConfig
from ganherd.recipe.strategy.data_parallel_config import DataParallelConfig
from ganherd.recipe.strategy.gap_config import GapConfig
from ganherd.recipe.strategy.share_config import ShareConfig
from ganherd.recipe.strategy.strategy_settings import StrategySettings, StrategySpec
from ganherd.util.registry import STRATEGIES
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

DEFAULT = "independent"
SHARE = "share"  # key of the settings of shared layers, which members can average with every strategy

STRATEGIES.add(DEFAULT, StrategySpec("ganherd.strategies.share:Share", ShareConfig, SHARE))
STRATEGIES.add("gap", StrategySpec("ganherd.strategies.gap.gap:Gap", GapConfig, "gap"))
STRATEGIES.add("cellular", StrategySpec("ganherd.strategies.cellular.cellular:Cellular", CellularConfig, "cellular"))
STRATEGIES.add(
    "data-parallel",
    StrategySpec("ganherd.strategies.data_parallel:DataParallel", DataParallelConfig, "data_parallel"),
)
STRATEGIES.seal()


class StrategyConfig(Section):
    """Which members meet, and when. Each strategy has a subclass with one more field: the section of its settings."""

    name: str = DEFAULT

    @property
    def settings(self) -> StrategySettings:
        """The settings of the named strategy."""
        settings: StrategySettings = getattr(self, section_of(self.name))
        return settings

    @property
    def added_share(self) -> ShareConfig:
        """The layers that members average in addition to what the strategy does.

        They are empty if averaging layers is the strategy itself (`independent`).
        """
        share = getattr(self, SHARE, None)
        return share if isinstance(share, ShareConfig) and share is not self.settings else ShareConfig()

    @property
    def meets(self) -> bool:
        """Whether the training of a member ever depends on another member."""
        return self.settings.meets or self.added_share.layers

    @property
    def spans(self) -> Mapping[str, str]:
        """The settings that are lengths of time, such as 0.5epochs, by name; they become steps when a run starts."""
        share = self.added_share
        return {**self.settings.spans, **({SHARE: share.every} if share.layers else {})}

    def check(self, recipe: Recipe) -> None:
        """Raise an error if the strategy's settings do not fit each other, or the rest of the recipe."""
        self.settings.check(recipe)
        if self.added_share.layers and (unsynced := self.settings.unsynced_key):
            raise refuse(
                f"strategy.share {unsynced.split()[0]}",
                f"strategy.share averages layers of all members at the same step, and with {unsynced} ranks are not at the "
                "same step: leave one of them out",
            )

    @classmethod
    def known_fields(cls) -> dict[str, FieldInfo]:
        """Return the fields: `name`, and the section of each strategy that is known without importing plug-ins."""
        fields = dict(cls.model_fields)
        for name in STRATEGIES:
            fields |= _member(name, STRATEGIES[name]).model_fields
        return fields

    def with_settings(self, settings: StrategySettings) -> StrategyConfig:
        """Return a copy of the section with these settings of the named strategy."""
        return self.model_copy(update={section_of(self.name): settings})

    def __reduce__(self) -> tuple[Any, ...]:
        return read_strategy, (self.model_dump(),)  # pickle could not find the class, which is created at run time


def section_of(name: str) -> str:
    """Return the key of a strategy's settings below `strategy`.

    >>> section_of("gap"), section_of("independent")
    ('gap', 'share')
    """
    return STRATEGIES[name].section or name.rpartition(":")[2].rpartition(".")[2]


class UnreadSettings(StrategySettings):
    """Stand-in for the settings of a strategy from a plug-in that may not be imported.

    A run with such a strategy can be looked at, sampled and scored, but not trained.
    """

    @property
    def exchanges_nets(self) -> bool:
        return False


class UnreadStrategyConfig(StrategyConfig):
    """The section `strategy` that names a plug-in that may not be imported; its keys are stored without a check."""

    model_config = ConfigDict(extra="allow")

    @property
    def settings(self) -> StrategySettings:
        return UnreadSettings()

    def with_settings(self, settings: StrategySettings) -> StrategyConfig:
        return self


@cache
def _member(name: str, spec: StrategySpec) -> type[StrategyConfig]:
    """Create the class of the section `strategy` for the strategy of this name, with a field for its settings."""
    fields: dict[str, Any] = {
        "name": (Literal[name], name),
        SHARE: (ShareConfig, Field(default_factory=ShareConfig)),
        section_of(name): (spec.settings, Field(default_factory=spec.settings)),
    }
    return create_model(f"StrategyConfig_{name}", __base__=StrategyConfig, **fields)


def read_strategy(value: Any) -> Any:
    """Check the section `strategy` of a recipe, and return it as an object of the class for the strategy that it names.

    Recipes that earlier versions wrote hold settings of all strategies. Those of strategies other than the named one
    are dropped if they are defaults, and refused otherwise. A value that is not a mapping is returned unchanged.
    """
    if not isinstance(value, dict):
        return value
    name = value.get("name", DEFAULT)
    if not isinstance(name, str) or not STRATEGIES.accepts(name):
        names = STRATEGIES.names()
        raise refuse(
            "strategy.name",
            f"strategy.name must be one of {', '.join(names)}, not {name!r}{did_you_mean(str(name), names)}",
        )
    if not STRATEGIES.may_load(name):
        return UnreadStrategyConfig.model_validate(value)
    sections = {section_of(other): other for other in STRATEGIES}
    known = _member(name, STRATEGIES[name]).model_fields
    others = {key: other for key, other in sections.items() if key in value and key not in known}
    for section, other in others.items():
        if getattr(_member(other, STRATEGIES[other]).model_validate({section: value[section]}), section) != (
            STRATEGIES[other].settings()
        ):
            raise refuse(
                f"strategy.{section} strategy.name",
                f"strategy.{section} has no effect with strategy.name {name}: set strategy.name to {other}, or leave it out",
            )
    own = {key: inner for key, inner in value.items() if key not in others}
    return _member(name, STRATEGIES[name]).model_validate(own)


def settings_of(recipe: Mapping[str, Any]) -> StrategySettings:
    """Return the settings of the strategy of a recipe that is plain data, such as the recipe.yaml of a run.

    >>> settings_of({"strategy": {"name": "cellular", "cellular": {"grid": [2, 2]}}}).num_members
    4
    """
    config: StrategyConfig = read_strategy(dict(recipe.get("strategy") or {}))
    return config.settings


AnyStrategy = Annotated[SerializeAsAny[StrategyConfig], BeforeValidator(read_strategy)]
