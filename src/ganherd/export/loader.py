"""Load a model that `ganherd export` wrote, and draw samples. This file needs only PyTorch.

Example: `images, labels = load("model.safetensors").sample(seeds=[0, 1, 2], label=3)`. A seed and a label always give
the same sample.
"""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_LAYERS: dict[str, Any] = {  # the function of each kind of layer; a layer's settings are keyword arguments
    "linear": F.linear, "conv2d": F.conv2d, "conv_transpose2d": F.conv_transpose2d, "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "rsqrt": torch.rsqrt, "add": torch.add, "mul": torch.mul, "matmul": torch.matmul,
    "softmax": F.softmax, "permute": torch.permute, "max_pool2d": F.max_pool2d, "slice": torch.narrow,
    "upsample": F.interpolate, "concat": lambda *x, dim: torch.cat(x, dim), "embedding": lambda y, w: w[y],
    "affine": lambda x, gain, shift: x * gain + shift, "reshape": lambda x, shape: x.reshape(len(x), *shape),
}  # fmt: skip
_GOLDEN = -7046029254386353131  # a constant of splitmix64 as a signed number, like those in `_mix`


def _mix(x: Tensor) -> Tensor:
    for bits, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        x = (x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))) * factor
    return x


def _random_bits(seeds: Tensor, purpose: int, count: int) -> Tensor:
    keys = _mix((_mix(seeds + _GOLDEN) ^ purpose) + _GOLDEN)
    return _mix(keys[:, None] + (torch.arange(count, device=seeds.device) + 1) * _GOLDEN)  # [B, count]


class Model:
    """The members (generators) of a mixture: `facts` has labels, shapes and layers, `tensors` the weights by name."""

    def __init__(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.facts, self.tensors = facts, tensors

    def to(self, device: str) -> "Model":
        """Return the model on another device."""
        return Model(self.facts, {name: value.to(device) for name, value in self.tensors.items()})

    def noise(self, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise of seeds [B] in two forms, normal and uniform in [-1, 1), both [B, latent]."""
        bits = _random_bits(seeds, 8, self.facts["latent"])
        high, low = ((bits >> shift & 0xFFFFFF).float() * 2.0**-24 for shift in (40, 0))
        return torch.sqrt(-2 * torch.log1p(-high)) * torch.cos(2 * math.pi * low), high * 2 - 1

    def route(self, seeds: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the member of each sample from its seed, and the label if that is -1; return both, [B] each."""
        u = _random_bits(seeds, 9, 2) >> 40 & 0xFFFFFF
        member = (u[:, :1] >= torch.tensor(self.facts["member_thresholds"], device=u.device)[labels + 1]).sum(1)
        if not self.facts["takes_label"]:
            return member, torch.tensor(self.facts["label_of"], device=u.device)[member]
        drawn = (u[:, 1:] >= torch.tensor(self.facts["label_thresholds"], device=u.device)).sum(1)
        return member, torch.where(labels < 0, drawn, labels)

    def generate(self, member: int, z: Tensor, labels: Tensor) -> Tensor:
        """Return a member's samples for noise z [B, latent] and labels [B]: uint8 images, or float32 points or rows."""
        net, row = self.facts["members"][member]
        values: dict[str, Tensor] = {"z": z, "y": labels}
        for name, layer, inputs, settings in self.facts["nets"][net]:
            weights = {k: self.tensors[k][row % len(self.tensors[k])] for k in inputs if k not in values}
            values[name] = _LAYERS[layer](*((values | weights)[k] for k in inputs), **settings)
        scale, offset = (torch.tensor(self.facts[key], device=z.device) for key in ("scale", "offset"))
        x = values[name] * scale + offset
        return torch.clamp(x.round(), 0, 255).byte() if self.facts["image"] else x

    @torch.no_grad()
    def sample(self, seeds: Sequence[int], label: int | str | Sequence[int] = -1) -> tuple[Tensor, Tensor]:
        """Return one sample for each seed [n, …], and the labels of the samples [n].

        Args:
            label: One label for all samples, by its name or by its number in `facts["labels"]`; a list of a number for each; or -1
                to draw them at random.
        """
        names: list[str] = self.facts["labels"]
        if isinstance(label, str) and label not in names:
            raise ValueError(f"there is no label {label!r}; there are {', '.join(names)}")
        device = next(iter(self.tensors.values())).device
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=device)
        labels = torch.as_tensor(names.index(label) if isinstance(label, str) else label, device=device).expand(
            len(seed)
        )
        if ((labels < -1) | (labels >= len(names))).any():
            raise ValueError(f"labels are -1 for any, or numbers below {len(names)}")
        if not len(seed):
            kind = torch.uint8 if self.facts["image"] else torch.float32
            return torch.zeros(0, *self.facts["shape"], dtype=kind, device=device), labels
        member, labels = self.route(seed, labels)
        noise = self.noise(seed)
        out: list[Any] = [None] * len(seed)
        for k in member.unique().tolist():
            rows = (member == k).nonzero()[:, 0]
            for i, x in zip(rows, self.generate(k, noise[self.facts["uniform"][k]][rows], labels[rows]), strict=True):
                out[i] = x
        return torch.stack(out), labels


def load(path: str) -> Model:
    """Read a model.safetensors: 8 bytes with the length of its header, the header as JSON, then the weights."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        content = bytearray(file.read())
    facts, tensors = json.loads(header.pop("__metadata__")["ganherd"]), {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        tensors[name] = torch.frombuffer(content[first:last], dtype=torch.float32).reshape(entry["shape"])
    return Model(facts, tensors)


if __name__ == "__main__":
    samples, their_labels = load("model.safetensors").sample(range(8))
    print(tuple(samples.shape), samples.dtype, "labels", their_labels.tolist())
