"""Call a net in evaluation mode with the weights of any member.

In plain PyTorch a member's weights are loaded, then `eval()` is called, then the net. A user's net may work in `eval()` or in its
first call after it, e.g. merge or cache weights. Such a net gets a fresh copy for each call; all others share one module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ganherd.herd.checks.hidden_state.comparable import different, equal
from ganherd.herd.checks.hidden_state.python_state import kept_by
from ganherd.herd.checks.module_copies import twin
from ganherd.herd.parameter_names import called, kept
from ganherd.herd.rng import MemberRandomness

Tensors = dict[str, Tensor]


def own_module(template: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a copy of a net with these parameters and buffers, in evaluation mode as of the moment they were loaded.

    Args:
        template: The net as it trains; `eval()` was never called on it.
        tensors: By the names that they are kept under; they are copied.
    """
    module = twin(template)
    names = kept(module)
    first = next((tensors[name] for name, _ in module.named_parameters()), torch.empty(0))
    module.to(first.device, first.dtype)
    for prefix, layer in module.named_modules():
        for place, parameter in layer.named_parameters(prefix, recurse=False, remove_duplicate=False):
            parameter.data = tensors[names[place]].detach().clone()
        for place, _ in layer.named_buffers(prefix, recurse=False, remove_duplicate=False):
            layer._buffers[place.rpartition(".")[2]] = tensors[names[place]].detach().clone()
    return module.eval()


class EvaluationCall:
    """A net in evaluation mode, for any member."""

    def __init__(self, template: nn.Module) -> None:
        self._template = template
        self._shared: nn.Module | None = None
        self._needs_copies = None if _is_foreign(template) else False  # None: its first call shows

    def __call__(self, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> Any:
        """Return what a member's net answers; buffers in `tensors` may change.

        Args:
            tensors: The member's parameters and buffers.
            key: What the net draws by itself comes from this key.
        """
        if self.needs_copies(tensors, inputs, key):
            module = own_module(self._template, tensors)
            with MemberRandomness(key):
                return module(*inputs)
        if self._shared is None:
            self._shared = twin(self._template).eval()
        with MemberRandomness(key):
            return called(self._shared, tensors, inputs)

    def needs_copies(self, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> bool:
        """Return whether each call needs a fresh copy; found out once, with the numbers of one member."""
        if self._needs_copies is None:
            self._needs_copies = _works_in_evaluation(self._template, tensors, inputs, key)
        return self._needs_copies


def _is_foreign(module: nn.Module) -> bool:
    return not all(type(layer).__module__.startswith(("torch.nn.", "ganherd.")) for layer in module.modules())


def _works_in_evaluation(template: nn.Module, tensors: Tensors, inputs: tuple[Tensor, ...], key: Tensor) -> bool:
    """Return whether `eval()` or a call after it changes anything, or a shared module answers otherwise than a fresh one."""
    if any(
        type(layer).train is not nn.Module.train or type(layer).eval is not nn.Module.eval
        for layer in template.modules()
    ):
        return True
    module = own_module(template, tensors)
    before = kept_by(module), _numbers(module)
    with MemberRandomness(key):
        answer = module(*inputs)
    if different(before[0], kept_by(module)) or different(before[1], _numbers(module)):
        return True
    copied = {name: value.clone() for name, value in tensors.items()}
    try:
        with MemberRandomness(key):
            return not equal(answer, called(twin(template).eval(), copied, inputs))
    except (RuntimeError, KeyError, AttributeError):  # it has other parameters in evaluation mode
        return True


def _numbers(module: nn.Module) -> Tensors:
    return {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}
