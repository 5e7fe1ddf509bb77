"""Build the nets of one GAN from a recipe: registered nets by name, others by `package.module:Class` if trusted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ganherd.nets import catalog
from ganherd.util.errors import UserError
from ganherd.util.objects import memory_objects
from ganherd.util.registry import load_target
from ganherd.util.user_code import load_own as load_own

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ganherd.recipe.schema import NetConfig

_ROWS = (4, 48)  # batch sizes to try when lazy layers learn their sizes from a forward pass


def build_generator(
    net: NetConfig, shape: tuple[int, ...], latent: int, classes: int = 0, *, trust_code: bool = False
) -> nn.Module:
    """Return a generator, initialised from the current random state of PyTorch.

    Args:
        net: The name and the settings of the net.
        shape: The shape of one sample.
        latent: The length of the noise.
        classes: The number of classes in the data; 0 for data without labels.
        trust_code: Whether a user's own class may be imported.

    Raises:
        UserError: The net is unknown, not trusted, or does not fit the data.

    >>> from ganherd.recipe.schema import NetConfig
    >>> type(build_generator(NetConfig(name="small"), (1, 8, 8), latent=32)).__name__
    'SmallGenerator'
    """
    return _build("generator", net, {"shape": tuple(shape), "latent": latent, "classes": classes}, trust_code)


def build_discriminator(
    net: NetConfig, shape: tuple[int, ...], classes: int = 0, *, trust_code: bool = False
) -> nn.Module:
    """Return a discriminator, initialised from the current random state of PyTorch; arguments as in `build_generator`.

    If the setting `dropout` is a list, one probability for each member, the net has dropout layers that members can
    differ in.

    >>> from ganherd.recipe.schema import NetConfig
    >>> type(build_discriminator(NetConfig(name="small"), (1, 8, 8))).__name__
    'SmallDiscriminator'
    """
    make = partial(_build, "discriminator", given={"shape": tuple(shape), "classes": classes}, trust_code=trust_code)
    rates = net.settings.get("dropout")
    if isinstance(rates, list) and catalog.is_packaged(net.name):  # one probability for each member
        from ganherd.nets.common.varied_dropout import build_with_rates

        return build_with_rates(net, rates, make)
    return make(net)


def _build(role: catalog.Role, net: NetConfig, given: Mapping[str, Any], trust_code: bool) -> nn.Module:
    """Build a net; `given` holds what its constructor gets in addition to its settings: shape, latent and classes."""
    if catalog.is_foreign(net.name):
        return _build_foreign(role, net.name, load_own(net.name, role, trust_code), given, net.settings)
    if not catalog.is_packaged(net.name):
        if not catalog.specs(role).is_known(net.name):  # from a mixture's file; recipes are checked earlier
            raise UserError(catalog.specs(role).unknown(net.name))
        return _build_foreign(role, net.name, catalog.specs(role)[net.name].target, given, net.settings)
    settings = catalog.check(role, net.name, net.settings)
    catalog.check_shape(role, net.name, given["shape"])
    spec = catalog.specs(role)[net.name]
    conditional = bool(settings.pop("label", False))
    if (spec.labelled or conditional) and given["classes"] < 1:
        other = "set its label to false" if conditional else "use residual"
        raise UserError(f"the {role} {net.name} uses labels, but this data has no labels: {other}")
    group, packing = settings.pop("minibatch_std", 0), settings.pop("packing", 1)
    make: Callable[..., nn.Module] = partial(load_target(spec.target), **settings)
    if group > 1:
        make = partial(_with_deviation, make, group)
    if packing > 1:
        from ganherd.nets.common.sample_groups import PackedDiscriminator

        return PackedDiscriminator(make, given["shape"], packing)
    if conditional:
        from ganherd.nets.common import blocks

        wrap = blocks.LabelledGenerator if role == "generator" else blocks.LabelledDiscriminator
        return (blocks.ClassHeadDiscriminator if spec.class_head else wrap)(make, **given)
    # Only labelled nets take the number of classes. Others are unconditional, e.g. if each member is trained on one
    # class.
    module: nn.Module = make(**{key: value for key, value in given.items() if key != "classes" or spec.labelled})
    return module


def _with_deviation(make: Callable[..., nn.Module], group: int, **given: Any) -> nn.Module:
    """Build a discriminator by `make(**given)`, and add a minibatch standard deviation over groups of samples."""
    from ganherd.nets.common.sample_groups import with_deviation

    return with_deviation(make(**given), group)


def _build_foreign(
    role: catalog.Role, name: str, cls: Any, given: Mapping[str, Any], settings: Mapping[str, Any]
) -> nn.Module:
    """Build a user's net from its class, or from a function that returns it.

    Args:
        role: `generator` or `discriminator`, for messages.
        name: The name of the net.
        cls: The class or the function.
        given: The facts that it is called with if it has parameters of these names: shape, latent, classes.
        settings: The settings in the recipe, further arguments.

    Raises:
        UserError: It does not take the settings, fails, or returns no module.
    """
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
    """Give lazy layers their sizes by one forward pass over zeros, and return the module.

    Buffers that the pass changed are restored. `given` holds the shape of a sample and, for generators, the length of
    the noise (`latent`).
    """
    from torch.nn.parameter import is_lazy

    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return module
    before: dict[tuple[nn.Module, str], tuple[Tensor, Tensor]] = {}  # each buffer, and a copy of its first values

    def remember(layer: nn.Module, *_: Any) -> None:
        for name, buffer in layer.named_buffers(recurse=False):
            if not is_lazy(buffer):
                before.setdefault((layer, name), (buffer, buffer.clone()))

    for layer in module.modules():
        remember(layer)
    # A hook runs just before the layer's forward, when a lazy layer has got its size and thereby its buffers.
    hooks = [layer.register_forward_pre_hook(remember) for layer in module.modules()]
    try:
        _pass_over_zeros(module, (given["latent"],) if "latent" in given else given["shape"])
    finally:
        for hook in hooks:
            hook.remove()
    for (layer, name), (buffer, value) in before.items():
        layer._buffers[name] = buffer.copy_(value)
    return module


def _pass_over_zeros(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Call a module with a batch of zeros of this shape; if it raises an error for a small batch, with a larger one.

    A module whose forward has a parameter `y` gets zeros as labels.
    """
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


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
