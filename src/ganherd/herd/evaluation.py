"""Call a net in evaluation mode with the weights of any member (GAN).

In plain PyTorch one loads the weights, calls `eval()`, then calls the net. A user's net may do work in `eval()` or in
the first call after it, e.g. merge or cache weights. For such a net a fresh copy of the module is made for each call;
for all others, one module is used for all members.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ganherd.herd.checks.hidden_state.comparable import differing_names, equal
from ganherd.herd.checks.hidden_state.python_state import copy_attributes, copy_numbers
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.parameter_names import call_with_tensors, canonical_names

Tensors = dict[str, Tensor]


def member_module(template: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a copy of a net with these parameters and buffers, for which `eval()` is called after they are loaded.

    Args:
        template: The net as it trains; `eval()` was never called on it.
        tensors: Parameters and buffers by canonical name; they are copied.
    """
    module = copy_module(template)
    names = canonical_names(module)
    first = next((tensors[name] for name, _ in module.named_parameters()), torch.empty(0))
    module.to(first.device, first.dtype)
    for prefix, layer in module.named_modules():
        for path, parameter in layer.named_parameters(prefix, recurse=False, remove_duplicate=False):
            parameter.data = tensors[names[path]].detach().clone()
        for path, _ in layer.named_buffers(prefix, recurse=False, remove_duplicate=False):
            layer._buffers[path.rpartition(".")[2]] = tensors[names[path]].detach().clone()
    return module.eval()


class EvaluationCall:
    """A net in evaluation mode that can be called with the weights of any member."""

    def __init__(self, template: nn.Module) -> None:
        self._template = template
        self._shared: nn.Module | None = None
        self._needs_copies = None if _is_foreign(template) else False  # None: decided at the first call

    def __call__(self, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> Any:
        """Return the output of a member's net.

        Args:
            tensors: The member's parameters and buffers by canonical name; buffers may change.
            inputs: Arguments of the net.
            key: The key of the random draws inside the net.
        """
        if self.needs_copies(tensors, inputs, key):
            module = member_module(self._template, tensors)
            with MemberRandomness(key):
                return module(*inputs)
        if self._shared is None:
            self._shared = copy_module(self._template).eval()
        with MemberRandomness(key):
            return call_with_tensors(self._shared, tensors, inputs)

    def needs_copies(self, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> bool:
        """Return whether each call needs a fresh copy of the net.

        This is determined at the first call, with the tensors of one member; the arguments are those of `__call__`.
        """
        if self._needs_copies is None:
            self._needs_copies = _works_in_evaluation(self._template, tensors, inputs, key)
        return self._needs_copies


def _is_foreign(module: nn.Module) -> bool:
    """Return whether any layer of a module is of a class of neither PyTorch nor ganherd."""
    return not all(type(layer).__module__.startswith(("torch.nn.", "ganherd.")) for layer in module.modules())


def _works_in_evaluation(template: nn.Module, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> bool:
    """Return whether calls in evaluation mode need a fresh copy of the net.

    This is so if a layer overrides `train()` or `eval()`, if a call changes the net, or if a module without its own
    weights gives another output than a fresh copy.
    """
    kinds = {type(layer) for layer in template.modules()}
    if any(kind.train is not nn.Module.train or kind.eval is not nn.Module.eval for kind in kinds):
        return True
    module = member_module(template, tensors)
    attributes, numbers = copy_attributes(module), copy_numbers(module)
    again = tuple(value.clone() for value in inputs)  # a net may change its inputs
    with MemberRandomness(key):
        output = module(*(value.clone() for value in inputs))
    if differing_names(attributes, copy_attributes(module)) or differing_names(numbers, copy_numbers(module)):
        return True
    copied = {name: value.clone() for name, value in tensors.items()}
    try:
        with MemberRandomness(key):
            return not equal(output, call_with_tensors(copy_module(template).eval(), copied, again))
    except (RuntimeError, KeyError, AttributeError):  # the net has other parameters in evaluation mode
        return True
