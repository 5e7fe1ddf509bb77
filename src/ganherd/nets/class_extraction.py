"""Extract the nets of one class from a conditional GAN: residual nets without a label that compute the same for that class.

A conditional generator normalises by the statistics of mixed batches, while that of one class sees only its own. The gains and
shifts of the extracted net compensate for the difference, layer by layer, so that it generates the same images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ganherd.nets.common.spectral import Spectral
from ganherd.nets.conditional import ConditionalDiscriminator, ConditionalGenerator, ConditionalNorm

Named = dict[str, Tensor]  # parameters and buffers of one net


@dataclass(frozen=True)
class _Norm:
    """A batch norm of the conditional generator, with the gain and the shift of every class, or one for all classes."""

    layer: Any  # BatchNorm2d
    gain: Tensor  # [classes, C], or [1, C]
    shift: Tensor

    def of_class(self, label: int, moments: dict[int, tuple[Tensor, Tensor]]) -> Named:
        at, eps = label % len(self.gain), self.layer.eps
        (mean, var), (own_mean, own_var) = moments[-1], moments[label]
        slope = self.gain[at] / torch.sqrt(var + eps)  # [C]
        return {
            "weight": slope * torch.sqrt(own_var + eps),
            "bias": self.shift[at] + slope * (own_mean - mean),
            "running_mean": own_mean,
            "running_var": own_var,
            "num_batches_tracked": self.layer.num_batches_tracked.clone(),
        }


def generators(conditional: ConditionalGenerator, z: Tensor, y: Tensor) -> Iterator[Named]:
    """Yield the state of a residual generator for each class in y, in order.

    In training mode each computes for its class what the conditional generator computes for the batch z, y.

    Args:
        conditional: The conditional generator.
        z: Noise [B, Z].
        y: Labels [B], with each class about as often as in the data.
    """
    norms = _norms(conditional)
    moments = _moments(conditional, norms, z, y)
    state = conditional.state_dict()
    others = {name for name in state if not any(name.startswith(f"{norm}.") for norm in norms)}
    for label in y.unique().tolist():
        own = {name: state[name].clone() for name in others}
        for name, norm in norms.items():
            own.update({f"{name}.{part}": value for part, value in norm.of_class(label, moments[name]).items()})
        yield own


def discriminator(conditional: ConditionalDiscriminator, label: int) -> Named:
    """Return the state of the residual discriminator of one class: its head is the conditional head plus the class vector.

    With spectral norm that sum is divided by its length, so logits are the same up to a factor.
    """
    own = {name: value.clone() for name, value in conditional.state_dict().items() if not name.startswith("project.")}
    head: Any = conditional.head
    name = "head.weight"
    if isinstance(head, nn.Sequential):  # after a minibatch deviation
        name, head = f"head.{len(head) - 1}.weight", head[-1]
    weight, project = _weight(head).clone(), _weight(conditional.project)[label]
    weight[:, : len(project)] += project
    own[name] = weight
    return own


def _norms(conditional: ConditionalGenerator) -> dict[str, _Norm]:
    """Return the norms by their names in the residual generator."""
    norms: dict[str, _Norm] = {}
    for name, layer in conditional.named_modules():
        if isinstance(layer, ConditionalNorm):
            norms[name] = _Norm(layer.norm, layer.gain.weight.detach(), layer.shift.weight.detach())
        elif isinstance(layer, nn.BatchNorm2d) and name.rpartition(".")[0] not in norms:
            norms[name] = _Norm(layer, layer.weight.detach()[None], layer.bias.detach()[None])
    return norms


def _moments(
    conditional: ConditionalGenerator, norms: dict[str, _Norm], z: Tensor, y: Tensor
) -> dict[str, dict[int, tuple[Tensor, Tensor]]]:
    """Return mean and variance [C] of the input of each norm: of every class, and under -1 of the whole batch."""
    moments: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def see(name: str, _: nn.Module, inputs: tuple[Tensor]) -> None:
        parts = {-1: inputs[0], **{label: inputs[0][y == label] for label in y.unique().tolist()}}
        moments[name] = {label: (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for label, x in parts.items()}

    hooks = [norm.layer.register_forward_pre_hook(partial(see, name)) for name, norm in norms.items()]
    before = {name: value.clone() for name, value in conditional.named_buffers()}
    with torch.no_grad():
        conditional.train()(z, y)
        conditional.load_state_dict(before, strict=False)  # the pass only measured
    for hook in hooks:
        hook.remove()
    return moments


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight that the layer applies."""
    layer.eval()
    weight: Any = layer.divided() if isinstance(layer, Spectral) else layer.weight
    return weight.detach()  # type: ignore[no-any-return]
