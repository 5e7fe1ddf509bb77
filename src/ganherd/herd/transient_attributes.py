"""Restore attributes that a forward pass assigns to a module, so that no later call finds tensors of an earlier one.

Members (GANs) take turns in one module.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ganherd.herd.state import Blueprint


@contextmanager
def attributes_restored(net: Blueprint) -> Iterator[None]:
    """Restore the attributes that a forward pass inside this context assigns, even if it fails.

    Under `vmap` they would hold tensors that cannot be read afterwards. Containers that existed before, e.g. lists,
    also get their former contents back. The attributes are those that were observed when the net was tried out
    (`net.traits`).
    """
    layers = [(vars(net.module.get_submodule(layer)), name) for layer, name in net.traits.transient_attributes]
    before = [(own, name, own[name]) for own, name in layers if name in own]
    contents = [each for _, _, value in before for each in _contents(value)]
    try:
        yield
    finally:
        for own, name in layers:
            own.pop(name, None)
        for own, name, value in before:
            own[name] = value
        for each in contents:
            each.restore()


class _Contents:
    """A copy of the contents that a container has when this object is created."""

    def __init__(self, container: MutableMapping[Any, Any] | MutableSequence[Any] | MutableSet[Any]) -> None:
        self._container = container
        self._items = list(container.items() if isinstance(container, MutableMapping) else container)

    @property
    def inner(self) -> list[Any]:
        """Return the values in the container."""
        return [item for _, item in self._items] if isinstance(self._container, MutableMapping) else self._items

    def restore(self) -> None:
        """Give the container its contents back."""
        self._container.clear()
        if isinstance(self._container, MutableMapping):
            self._container.update(self._items)
        elif isinstance(self._container, MutableSequence):
            self._container.extend(self._items)
        else:
            self._container |= set(self._items)


def _contents(value: object) -> Iterator[_Contents]:
    """Yield the contents of a container and of all containers inside of it; nothing for other values."""
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, (MutableMapping, MutableSequence, MutableSet)):
        own = _Contents(value)
        yield own
        for inner in own.inner:
            yield from _contents(inner)
