"""Registries of everything that users can add by name: losses, metrics, strategies, data, nets, augmentations, engines.

Users add entries with `ganherd.register`. An installed package (a plug-in) announces its entries as entry points of the
registry's group, such as `ganherd.metrics`; a recipe can also name an entry as `package.module:name`. In both cases the
module is imported only when the entry is looked up.

Such an import needs permission: the user names the entry, in a recipe or as an option, or gives `--trust-code`. The
recipe in a run folder gives no permission, because the folder may come from a stranger.
"""

from __future__ import annotations

import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ganherd.util.errors import UserError, with_type
from ganherd.util.plugin_leave import is_trusting, recorded_package, vouches
from ganherd.util.text import did_you_mean
from ganherd.util.user_code import load_own

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ganherd.data.readers.named import NamedSource
    from ganherd.herd.engine.engine_specs import EngineSpec
    from ganherd.losses import LossSpec
    from ganherd.metrics.metric_registry import Metric
    from ganherd.nets.net_spec import NetSpec
    from ganherd.recipe.augment_config import AugmentationSpec
    from ganherd.recipe.strategy.strategy_settings import StrategySpec

T = TypeVar("T")
D = TypeVar("D")
Settings = dict[str, Any]  # settings of a net, a loss or another entry, by the names of the settings
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def load_target(target: Any) -> Any:
    """Import and return the object that the text `module:attribute` names; return anything that is not text unchanged.

    >>> load_target("math:pi") == load_target(3.141592653589793)
    True
    """
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


def is_target(name: str) -> bool:
    """Return whether a name has the form `package.module:name`, in which recipes name a user's own code.

    >>> is_target("mypackage.losses:Relativistic"), is_target("hinge"), is_target("C:/data")
    (True, False, False)
    """
    return _TARGET.fullmatch(name) is not None


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to entries of one kind, e.g. losses, in the order in which they were registered.

    Iterating yields the names that are known without importing a plug-in; `names` also returns those of plug-ins.

    Args:
        kind: What an entry is called in messages, e.g. "loss".
        group: The group of entry points with which other packages announce entries, e.g. `ganherd.losses`.
        home: `module:Class`. The module registers ganherd's own entries; it is imported when the registry is first
            used. The class is that of the entries: `Class.adopt(name, target, …)` checks what a user registers and
            returns its entry.
    """

    def __init__(self, kind: str, group: str, home: str) -> None:
        self.kind, self.group = kind, group
        self._home, self._entry = home.partition(":")[0], home
        self._entries: dict[str, T] = {}
        self._targets: dict[str, Any] = {}  # functions and classes that users registered, by the names of their entries
        self._own: frozenset[str] = frozenset()  # names of ganherd's own entries
        self._vouched: set[str] = set()  # names of plug-ins that may be imported
        self._missing: dict[str, str] = {}  # names that are not known here: the packages that runs record for them

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    # -- registering -------------------------------------------------------------------------------------------------

    def add(self, name: str, entry: T) -> None:
        """Add an entry; raise a `UserError` if the name is invalid or that of one of ganherd's own entries."""
        self._load_home()
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} cannot name a {self.kind}: use letters, digits, - and _.")
        if name in self._own:
            raise UserError(f"ganherd has a {self.kind} named {name!r} already; register yours under another name.")
        self._entries[name] = entry

    def add_variant(self, name: str, entry: T) -> None:
        """Add an entry with certain settings, under a name that includes the settings.

        `names` and iteration leave it out.
        """
        self._entries[name] = entry

    def register(self, name: str, /, **facts: Any) -> Callable[[D], D]:
        """Return a decorator that registers a function or class under a name.

        Args:
            facts: Further arguments of the method `adopt` of the entries' class.

        Raises:
            UserError: The name is taken, or the decorated object does not have the signature of its kind.
        """

        def decorate(target: D) -> D:
            self.add(name, self._adopted(name, target, facts))
            self._targets[name] = target
            return target

        return decorate

    def _adopted(self, name: str, target: Any, facts: Mapping[str, Any]) -> T:
        self._load_home()
        entry: T = load_target(self._entry).adopt(name, target, **facts)
        return entry

    def _load_home(self) -> None:
        """Import the module that registers ganherd's own entries, so that these come first; later calls do nothing."""
        if self._home:
            home, self._home = self._home, ""
            importlib.import_module(home)

    def seal(self) -> None:
        """Protect the entries registered so far as ganherd's own; called at the end of their module."""
        self._own = frozenset(self._entries)

    def is_own(self, name: str) -> bool:
        """Return whether an entry is one of ganherd's own, which ganherd's tests cover."""
        self._load_home()
        return name in self._own

    def unregister(self, name: str) -> None:
        """Remove an entry that a user or a plug-in has registered. ganherd's own entries cannot be removed."""
        if name not in self._own:
            self._entries.pop(name, None)
            self._targets.pop(name, None)

    # -- looking up --------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> T:
        """Return an entry; import its plug-in first if needed and permitted.

        Raises:
            KeyError: There is no such entry.
            UserError: The import is not permitted, the plug-in cannot be imported, or its package is not installed.
        """
        self._load_home()
        if name not in self._entries:
            if not self.is_known(name):
                raise self._absent(name)
            if not self.may_load(name):
                raise UserError(
                    f"the {self.kind} {self.described(name)} is code that is not ganherd's: give --trust-code "
                    "(trust_code=True in Python) if you trust it."
                )
            if is_target(name):
                self._load_named(name)
            else:
                self._load_announced(name)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry, or the default if it is unknown or would need an import that is not permitted."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def __contains__(self, name: object) -> bool:
        """Return whether an entry can be used: it is loaded, or it is that of a plug-in that may be imported."""
        self._load_home()
        return isinstance(name, str) and (name in self._entries or (self.is_known(name) and self.may_load(name)))

    def __iter__(self) -> Iterator[str]:
        self._load_home()
        return iter([name for name in self._entries if _NAME.fullmatch(name)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def is_known(self, name: str) -> bool:
        """Return whether a name is that of an entry or of a plug-in, or has the form `package.module:name`."""
        self._load_home()
        return name in self._entries or is_target(name) or name in self._announced()

    def may_load(self, name: str) -> bool:
        """Return whether an entry may be used: it is loaded, or it is known and the user has permitted its import."""
        self._load_home()
        return name in self._entries or ((name in self._vouched or is_trusting()) and self.is_known(name))

    def is_loaded(self, name: str) -> bool:
        """Return whether an entry is registered already, so that using it imports nothing."""
        self._load_home()
        return name in self._entries

    def vouch(self, name: str) -> None:
        """Permit the import of the plug-in with this name, because the user has named it."""
        self._vouched.add(name)

    def accepts(self, name: str) -> bool:
        """Return whether a recipe may contain this name.

        If the recipe is the user's own, also permit the import of the entry.

        A name is also accepted if the plug-in is not installed but run.json of the run being read records it: a run can
        be read without its plug-ins.
        """
        if self.is_known(name):
            if vouches():
                self.vouch(name)
            return True
        package = recorded_package(self.kind, name)
        if package is not None:
            self._missing[name] = package
        return package is not None

    def names(self) -> list[str]:
        """Return all names: ganherd's own, then registered ones, then those of plug-ins that are not imported yet."""
        return list(dict.fromkeys([*self, *self._announced()]))

    def packages(self) -> dict[str, str]:
        """Return the names of plug-ins that are not imported yet, each with its package."""
        return {name: _package(point) for name, point in self._announced().items() if name not in self._entries}

    def unknown(self, name: str, also: Mapping[str, str] | None = None, among: str = "") -> str:
        """Return an error message about an unknown name: it lists the known names and suggests a similar one.

        Args:
            also: Other words that users write for an entry, each with the entry's name; they are used for the
                suggestion only.
            among: What a user can write in addition to the names, for example `and your own`.
        """
        names = self.names()
        listed = f"{', '.join(names)}{among and f' {among}'}"
        word = name.strip().lower()
        hint = did_you_mean((also or {}).get(word.replace("_", "-"), word), names)
        return f"there is no {self.kind} {name!r} (there are {listed}){hint}"

    def described(self, name: str) -> str:
        """Return the name of an entry for a message, with the package that announces it."""
        point = self._announced().get(name)
        return f"{name!r} of the package {_package(point)}" if point else name

    def module_of(self, name: str) -> str:
        """Return the name of the module that an entry of a user or a plug-in comes from; "" if it is not known."""
        if is_target(name):
            return name.partition(":")[0]
        if point := self._announced().get(name):
            return point.module
        return getattr(self._targets.get(name), "__module__", "")

    def package_of(self, name: str) -> tuple[str, str]:
        """Return name and version of the installed package that an entry comes from; two "" if there is none."""
        point = self._announced().get(name)
        if point is not None and point.dist is not None:
            return point.dist.name, point.dist.version
        return _installed_by(self.module_of(name).partition(".")[0], tuple(sys.path))

    # -- plug-ins ----------------------------------------------------------------------------------------------------

    def _announced(self) -> dict[str, EntryPoint]:
        return _entry_points(tuple(sys.path)).get(self.group, {})

    def _load_announced(self, name: str) -> None:
        """Import the module of the plug-in that announces the name; the module registers the entry."""
        point = self._announced()[name]
        package = _package(point)
        try:
            point.load()
        except UserError:
            raise
        except Exception as error:  # whatever a module of another package raises while it is imported
            raise UserError(
                f"the {self.kind} {name!r} of the package {package} cannot be imported ({with_type(error)}): update or remove "
                "that package."
            ) from error
        if name not in self._entries:
            raise UserError(
                f"the package {package} announces a {self.kind} {name!r}, but {point.value} does not register it: update or "
                "remove that package."
            )

    def _load_named(self, name: str) -> None:
        """Import the object `package.module:name` and add an entry for it; if it is registered, reuse its entry."""
        target = load_own(name, self.kind, trust_code=True)
        registered = next((other for other, own in self._targets.items() if own is target), None)
        self._entries[name] = self._entries[registered] if registered else self._adopted(name, target, {})

    def _absent(self, name: str) -> Exception:
        """Return the error about an unknown entry: KeyError, or UserError if the run that is opened names where it comes from.

        A run records the plug-ins that it was started with; opening it fills `_missing` with those that are not installed.
        """
        if name not in self._missing:
            return KeyError(name)
        package = self._missing[name]
        if not package:
            return UserError(
                f"the {self.kind} {name!r} was registered by a script: import the module that registers it."
            )
        return UserError(
            f"the {self.kind} {name!r} comes from the package {package}, which is not installed here: install it if you trust it."
        )


@cache
def _entry_points(path: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    """Return all installed entry points, by group and name.

    `path` is sys.path: the result is cached until it changes.
    """
    from importlib.metadata import entry_points

    installed = entry_points()
    return {
        group: {point.name: point for point in installed.select(group=group) if _NAME.fullmatch(point.name)}
        for group in installed.groups
    }


@cache
def _installed_by(module: str, path: tuple[str, ...]) -> tuple[str, str]:
    """Return the name and the version of the package that has installed a top-level module; two "" if none has.

    This is faster than `importlib.metadata.packages_distributions`, which parses the lists of files of all installed
    packages.

    Args:
        path: sys.path; the result is cached until it changes.
    """
    from importlib.metadata import distributions

    its_files = re.compile(rf"^{re.escape(module)}(/.*)?\.py,", re.MULTILINE)
    for package in distributions():
        modules = (package.read_text("top_level.txt") or "").split()
        if module in modules or (not modules and its_files.search(package.read_text("RECORD") or "")):
            return package.name, package.version
    return "", ""


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


STRATEGIES: Registry[StrategySpec] = Registry(
    "strategy", "ganherd.strategies", "ganherd.recipe.strategy_config:StrategySpec"
)
LOSSES: Registry[LossSpec] = Registry("loss", "ganherd.losses", "ganherd.losses:LossSpec")
GENERATORS: Registry[NetSpec] = Registry("generator", "ganherd.generators", "ganherd.nets.catalog:NetSpec")
DISCRIMINATORS: Registry[NetSpec] = Registry("discriminator", "ganherd.discriminators", "ganherd.nets.catalog:NetSpec")
METRICS: Registry[Metric] = Registry("metric", "ganherd.metrics", "ganherd.metrics.metric_registry:Metric")
DATA_SOURCES: Registry[NamedSource] = Registry(
    "data source", "ganherd.data_sources", "ganherd.data.readers.named:NamedSource"
)
AUGMENTATIONS: Registry[AugmentationSpec] = Registry(
    "augmentation", "ganherd.augmentations", "ganherd.recipe.augment_config:AugmentationSpec"
)
ENGINES: Registry[EngineSpec] = Registry("engine", "ganherd.engines", "ganherd.herd.engine.engine_specs:EngineSpec")
