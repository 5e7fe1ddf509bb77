"""Call a net in evaluation mode with the weights of any member.

In plain PyTorch you load the weights, call `eval()`, then call the net. A user's net may do work in `eval()` or in the first call
after it, e.g. merge or cache weights. Such a net gets a fresh copy for each call; all others share one module.
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
    """Return a copy of a net in evaluation mode; `eval()` is called after these parameters and buffers are loaded.

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
    """Call a net in evaluation mode, with the weights of any member."""

    def __init__(self, template: nn.Module) -> None:
        self._template = template
        self._shared: nn.Module | None = None
        self._needs_copies = None if _is_foreign(template) else False  # None: decided at the first call

    def __call__(self, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> Any:
        """Return the output of a member's net.

        Args:
            tensors: The member's parameters and buffers by canonical name; buffers may change.
            key: The random key for draws inside the net.
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
        """Return whether each call needs a fresh copy of the net; determined once, with the tensors of one member."""
        if self._needs_copies is None:
            self._needs_copies = _works_in_evaluation(self._template, tensors, inputs, key)
        return self._needs_copies


def _is_foreign(module: nn.Module) -> bool:
    """Return whether any layer is neither PyTorch's nor ganherd's."""
    return not all(type(layer).__module__.startswith(("torch.nn.", "ganherd.")) for layer in module.modules())


def _works_in_evaluation(template: nn.Module, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> bool:
    """Return whether `eval()` or a call after it changes the net, or a shared module gives another output than a fresh copy."""
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
