"""Registries of everything that users can add by name: strategies, losses, nets, metrics, data sources and engines.

A module of your own adds an entry with a decorator, and a recipe names it:

    from ganherd.util.registry import METRICS

    @METRICS.register("sharpness", about="mean gradient of the samples", best=math.inf, direction="higher")
    def sharpness(context): ...

An installed package announces its entries as entry points of the registry's group, such as `ganherd.metrics`. The module that
an entry point names is imported when its entry is looked up, and not before.
"""

from __future__ import annotations

import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from ganherd.data.readers.named import NamedSource
    from ganherd.herd.engine.engine_specs import EngineSpec
    from ganherd.losses.adversarial import Loss
    from ganherd.metrics.metric_registry import Metric
    from ganherd.nets.catalog import NetSpec
    from ganherd.recipe.strategy.strategy_settings import StrategySpec

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


def load_target(target: Any) -> Any:
    """Return what `module:attribute` names, imported now; anything but text is returned as it is.

    >>> load_target("math:pi") == load_target(3.141592653589793)
    True
    """
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


class _Lazy:
    """An entry that is imported when it is looked up."""

    def __init__(self, target: str) -> None:
        self.target = target


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name, in the order in which they were registered.

    Iterating yields the entries that are known without importing a plugin; `names` yields those of plugins, too.

    Args:
        kind: What an entry is called in messages.
        group: The group of entry points that announces entries of other packages.
        home: The module that registers ganherd's own entries; it is imported when the registry is first used. It may be
            followed by the class of the entries, as `module:Class`: a decorated object becomes its first argument.
    """

    def __init__(self, kind: str, group: str, home: str = "") -> None:
        self.kind, self.group = kind, group
        self._home, has_class, _ = home.partition(":")
        self._entry = home if has_class else ""
        self._entries: dict[str, T | _Lazy] = {}
        self._own: frozenset[str] = frozenset()

    def register(self, name: str, value: T | None = None, /, **facts: Any) -> Callable[[Any], Any]:
        """Register a value, or whatever the returned decorator decorates; `facts` are the other fields of its entry.

        >>> losses = Registry[str]("loss", "example.losses")
        >>> _ = losses.register("hinge", "an entry")
        >>> losses["hinge"]
        'an entry'
        """

        def decorate(target: Any) -> Any:
            self._add(name, load_target(self._entry)(target, **facts) if self._entry else target)
            return target

        if value is not None:
            self._add(name, value)
        return decorate

    def register_lazy(self, name: str, target: str) -> None:
        """Register `module:attribute`, which is imported when the entry is looked up."""
        self._add(name, _Lazy(target))

    def _add(self, name: str, value: T | _Lazy) -> None:
        self._load_home()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a {self.kind}: use letters, digits, - and _")
        if name in self._own:
            raise UserError(f"ganherd has a {self.kind} named {name!r} already; register yours under another name.")
        self._entries[name] = value

    def _load_home(self) -> None:
        """Import the module with ganherd's own entries, so that they come first."""
        if self._home:
            home, self._home = self._home, ""
            importlib.import_module(home)

    def seal(self) -> None:
        """Protect the entries that are registered so far, which are ganherd's own; called at the end of their module."""
        self._own = frozenset(self._entries)

    def is_own(self, name: str) -> bool:
        """Return whether an entry is one of ganherd's own, which ganherd's tests cover."""
        self._load_home()
        return name in self._own

    def unregister(self, name: str) -> None:
        """Remove an entry that a user or a plugin has registered. ganherd's own entries cannot be removed."""
        if name not in self._own:
            self._entries.pop(name, None)

    def __getitem__(self, name: str) -> T:
        self._load_home()
        if name not in self._entries:
            self._load_plugin(name)
        value = self._entries[name]
        if isinstance(value, _Lazy):
            value = self._entries[name] = load_target(value.target)
        return value

    def __contains__(self, name: object) -> bool:
        self._load_home()
        return name in self._entries or (isinstance(name, str) and name in self._plugins())

    def __iter__(self) -> Iterator[str]:
        self._load_home()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self._load_home()
        return len(self._entries)

    def names(self) -> list[str]:
        """Return all names: ganherd's own, then registered ones, then those of plugins that are not imported yet."""
        return list(dict.fromkeys([*self, *self._plugins()]))

    def packages(self) -> dict[str, str]:
        """Return the names that plugins announce and that are not imported yet, each with its package."""
        plugins = self._plugins()
        return {name: _package(plugins[name]) for name in plugins if name not in self._entries}

    def unknown(self, name: str, also: Mapping[str, str] | None = None, among: str = "") -> str:
        """Return a sentence about a name that is not registered.

        Args:
            also: Other words for entries, which are only ever suggested.
            among: What a user can write in addition to the names, for example `and your own`.
        """
        names = self.names()
        listed = f"{', '.join(names)}{among and f' {among}'}"
        word = name.strip().lower()
        hint = did_you_mean((also or {}).get(word.replace("_", "-"), word), names)
        return f"there is no {self.kind} {name!r} (there are {listed}){hint}"

    def _plugins(self) -> dict[str, EntryPoint]:
        return _announced(self.group, tuple(sys.path))

    def _load_plugin(self, name: str) -> None:
        """Import the plugin that announces the name, which registers it.

        Raises:
            KeyError: No plugin announces it.
            UserError: The plugin cannot be imported, or does not register the name.
        """
        plugin = self._plugins()[name]
        package = _package(plugin)
        try:
            plugin.load()
        except Exception as error:  # whatever a module of another package raises while it is imported
            reason = " ".join(str(error).split()) or "no reason given"
            raise UserError(
                f"the {self.kind} {name!r} of the package {package} cannot be imported ({type(error).__name__}: {reason}): "
                "update or remove that package."
            ) from error
        if name not in self._entries:
            raise UserError(
                f"the package {package} announces a {self.kind} {name!r}, but {plugin.value} does not register it: update or "
                "remove that package."
            )


@cache
def _announced(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; `path` is sys.path, which decides what is installed."""
    return {point.name: point for point in entry_points(group=group) if _NAME.fullmatch(point.name)}


def _package(plugin: EntryPoint) -> str:
    return plugin.dist.name if plugin.dist is not None else plugin.value


STRATEGIES: Registry[StrategySpec] = Registry(
    "strategy", "ganherd.strategies", "ganherd.recipe.strategy_config:StrategySpec"
)
LOSSES: Registry[Loss] = Registry("loss", "ganherd.losses", "ganherd.losses")
GENERATORS: Registry[NetSpec] = Registry("generator", "ganherd.generators", "ganherd.nets.catalog:NetSpec")
DISCRIMINATORS: Registry[NetSpec] = Registry("discriminator", "ganherd.discriminators", "ganherd.nets.catalog:NetSpec")
METRICS: Registry[Metric] = Registry("metric", "ganherd.metrics", "ganherd.metrics.metric_registry:Metric")
DATA_SOURCES: Registry[NamedSource] = Registry(
    "data source", "ganherd.data_sources", "ganherd.data.readers.named:NamedSource"
)
ENGINES: Registry[EngineSpec] = Registry("engine", "ganherd.engines", "ganherd.herd.engine.engine_specs:EngineSpec")
