"""Extract the nets of one class from a conditional GAN: residual nets without a label that compute the same for that class.

The batch norms of a conditional generator normalise by the statistics of batches with all classes, while those of the
extracted generator see images of one class only. The gain and the shift of each norm compensate for the difference, so
that the extracted net generates the same images.
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

Named = dict[str, Tensor]  # the parameters and buffers of one net by name


@dataclass(frozen=True)
class _Norm:
    """A batch norm of the conditional generator, with a gain and a shift for every class, or one for all classes."""

    layer: Any  # BatchNorm2d
    gain: Tensor  # [classes, C], or [1, C] if all classes have the same
    shift: Tensor  # like `gain`

    def of_class(self, label: int, moments: dict[int, tuple[Tensor, Tensor]]) -> Named:
        """Return the parameters and buffers of a plain batch norm that computes the same on inputs of one class.

        For an input x the conditional norm computes gain · (x - mean) / std + shift, with moments of all classes. The
        plain norm uses the moments of its class; its weight and bias follow from the equality of both for every x.

        Args:
            label: The class.
            moments: Mean and variance [C] of the norm's input, by class, and under -1 those of all classes.
        """
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
    """Yield the parameters and buffers of a residual generator for each class in y, in ascending order of the classes.

    In training mode, the generator of a class computes for noise of that class what the conditional generator computes
    for the whole batch z, y.

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
    """Return the parameters and buffers of a residual discriminator for one class.

    The conditional logit is head · f + class vector · f for features f, so the weight of the new head is the sum of the
    two. With spectral norm this sum is divided by its length, so logits are the same up to a factor.
    """
    own = {name: value.clone() for name, value in conditional.state_dict().items() if not name.startswith("project.")}
    head: Any = conditional.head
    name = "head.weight"
    if isinstance(head, nn.Sequential):  # a `MinibatchDeviation`, then the head
        name, head = f"head.{len(head) - 1}.weight", head[-1]
    weight, project = _weight(head).clone(), _weight(conditional.project)[label]
    weight[:, : len(project)] += project
    own[name] = weight
    return own


def _norms(conditional: ConditionalGenerator) -> dict[str, _Norm]:
    """Return all batch norms of a conditional generator, by the names that they have in a residual generator."""
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
    """Return mean and variance [C] of the input of each norm, by class, and under -1 those of the whole batch.

    They are measured in one forward pass for noise z [B, Z] and labels y [B]; the net's buffers are restored
    afterwards.
    """
    moments: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def see(name: str, _: nn.Module, inputs: tuple[Tensor]) -> None:
        parts = {-1: inputs[0], **{label: inputs[0][y == label] for label in y.unique().tolist()}}
        moments[name] = {label: (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for label, x in parts.items()}

    hooks = [norm.layer.register_forward_pre_hook(partial(see, name)) for name, norm in norms.items()]
    before = {name: value.clone() for name, value in conditional.named_buffers()}
    try:
        with torch.no_grad():
            conditional.train()(z, y)
    finally:  # also if memory is not enough for the pass
        conditional.load_state_dict(before, strict=False)  # the pass only measured
        for hook in hooks:
            hook.remove()
    return moments


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight that a layer applies in evaluation mode: with spectral norm, after the division."""
    layer.eval()
    weight: Any = layer.divided() if isinstance(layer, Spectral) else layer.weight
    return weight.detach()  # type: ignore[no-any-return]
