"""Build the nets of one GAN from a recipe: registered nets by name, others by `package.module:Class` if trusted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ganherd.nets import catalog
from ganherd.util import memory_objects
from ganherd.util.errors import UserError
from ganherd.util.registry import load_target
from ganherd.util.user_code import import_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ganherd.recipe.schema import NetConfig

_ROWS = (4, 48)  # of the inputs from which lazy layers learn their sizes


def build_generator(
    net: NetConfig, shape: tuple[int, ...], latent: int, classes: int = 0, *, trust_code: bool = False
) -> nn.Module:
    """Return a generator, initialised from the current random state of PyTorch.

    >>> from ganherd.recipe.schema import NetConfig
    >>> type(build_generator(NetConfig(name="small"), (1, 8, 8), latent=32)).__name__
    'SmallGenerator'
    """
    return _build("generator", net, {"shape": tuple(shape), "latent": latent, "classes": classes}, trust_code)


def build_discriminator(
    net: NetConfig, shape: tuple[int, ...], classes: int = 0, *, trust_code: bool = False
) -> nn.Module:
    """Return a discriminator, initialised from the current random state of PyTorch.

    >>> from ganherd.recipe.schema import NetConfig
    >>> type(build_discriminator(NetConfig(name="small"), (1, 8, 8))).__name__
    'SmallDiscriminator'
    """
    return _build("discriminator", net, {"shape": tuple(shape), "classes": classes}, trust_code)


def _build(role: catalog.Role, net: NetConfig, given: Mapping[str, Any], trust_code: bool) -> nn.Module:
    if catalog.is_foreign(net.name):
        return _build_foreign(role, net.name, given, net.settings, trust_code)
    settings = catalog.check(role, net.name, net.settings)
    catalog.check_shape(role, net.name, given["shape"])
    spec = catalog.specs(role)[net.name]
    conditional = bool(settings.pop("label", False))
    if (spec.labelled or conditional) and given["classes"] < 1:
        other = "set its label to false" if conditional else "use residual"
        raise UserError(f"the {role} {net.name} uses labels, but this data has no labels: {other}")
    make = partial(load_target(spec.target), **settings)
    if conditional:
        from ganherd.nets.common import blocks

        wrap = blocks.LabelledGenerator if role == "generator" else blocks.LabelledDiscriminator
        return wrap(make, **given)
    # only labelled nets take the number of classes: a member that is trained on one class is unconditional
    module: nn.Module = make(**{key: value for key, value in given.items() if key != "classes" or spec.labelled})
    return module


def _build_foreign(
    role: catalog.Role, name: str, given: Mapping[str, Any], settings: Mapping[str, Any], trust_code: bool
) -> nn.Module:
    """Build a user's net. Its class, or the function that builds it, gets shape, latent and classes only if it takes these."""
    cls = load_own(name, role, trust_code)
    from torch import nn

    in_memory = memory_objects.is_in_memory(name)
    name = memory_objects.label_of(name)
    is_function = in_memory and not inspect.isclass(cls)
    if not (is_function or (inspect.isclass(cls) and issubclass(cls, nn.Module))):
        raise UserError(f"the {role} {name} is not a class derived from torch.nn.Module")
    signature = inspect.signature(cls)
    arguments = {k: v for k, v in given.items() if k in signature.parameters} | dict(settings)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"the {role} {name} does not take these settings ({error}): its constructor is "
            f"{getattr(cls, '__name__', name)}{signature}"
        ) from None
    try:
        module = cls(**arguments)
        if isinstance(module, nn.Module):
            return _with_sizes(module, given)
    except Exception as error:
        raise UserError(f"the {role} {name} could not be built: {_one_line(error)}") from error
    raise UserError(f"the {role} {name} returns a {type(module).__name__}: it must return a torch.nn.Module")


def _with_sizes(module: nn.Module, given: Mapping[str, Any]) -> nn.Module:
    """Initialise lazy layers by one forward pass over zeros, and restore all buffers that the pass changed."""
    from torch.nn.parameter import is_lazy

    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return module
    before: dict[tuple[nn.Module, str], tuple[Tensor, Tensor]] = {}  # each buffer, and a copy of what it held at first

    def remember(layer: nn.Module, *_: Any) -> None:
        for name, buffer in layer.named_buffers(recurse=False):
            if not is_lazy(buffer):
                before.setdefault((layer, name), (buffer, buffer.clone()))

    for layer in module.modules():
        remember(layer)
    hooks = [layer.register_forward_pre_hook(remember) for layer in module.modules()]  # after a lazy layer got its size
    try:
        _pass_over_zeros(module, (given["latent"],) if "latent" in given else given["shape"])
    finally:
        for hook in hooks:
            hook.remove()
    for (layer, name), (buffer, value) in before.items():
        layer._buffers[name] = buffer.copy_(value)
    return module


def _pass_over_zeros(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Call a module once with a batch of zeros; with a larger batch if it refuses a small one."""
    import torch

    for rows in _ROWS:
        labels = [torch.zeros(rows, dtype=torch.int64)] if "y" in inspect.signature(module.forward).parameters else []
        try:
            with torch.no_grad():
                module(torch.zeros(rows, *shape), *labels)
            return
        except Exception:
            if rows == _ROWS[-1]:
                raise


def load_own(name: str, what: str, trust_code: bool) -> Any:
    """Import a user's `package.module:name` if it is trusted, or return the object in memory that has the name.

    Args:
        what: What messages call it.
    """
    if memory_objects.is_in_memory(name) and trust_code:
        try:
            return memory_objects.find(name).value
        except UserError as error:
            raise UserError(f"the {what} {error}") from None
    if not trust_code:
        if memory_objects.is_in_memory(name):
            raise UserError(
                f"the {what} {memory_objects.label_of(name)} is an object of the Python process that trained it: give it again in "
                "Python, with nets= of ganherd.load or ganherd.Run."
            )
        raise UserError(
            f"the {what} {name} is code that is not ganherd's: give --trust-code (trust_code=True in Python) if you trust it."
        )
    try:
        return import_name(name)
    except Exception as error:  # whatever the user's module raises while it is imported
        module, _, own = name.partition(":")
        if module == "__main__":
            raise UserError(
                f"the {what} {own} was defined in the script or notebook that trained it, and is not in this one: "
                "define it here too, or move it into another module and train again."
            ) from None
        raise UserError(f"the {what} {name} could not be imported: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
