"""Mixtures of any generator with random weights, for tests of exports."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganherd import nets
from ganherd.mixture.generators import Generators
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.net_config import NetConfig

LABELS = ("zero", "one", "two")
LATENT = 5


def generators(name: str, settings: dict[str, Any], shape: tuple[int, ...], members: int, seed: int = 0) -> Generators:
    """Return generators of a net, each with its own weights and batch-norm statistics."""
    torch.manual_seed(seed)
    net = NetConfig.model_validate({"name": name, **settings})
    modules = [nets.build_generator(net, shape, LATENT, len(LABELS), trust_code=True) for _ in range(members)]
    for module in modules:
        for parameter in module.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        for buffer in module.buffers():
            buffer.add_((0.2 * torch.rand(buffer.shape)).to(buffer.dtype))
    params, buffers = (
        {
            name: torch.stack([dict(values(module))[name].detach() for module in modules])
            for name, _ in values(modules[0])
        }
        for values in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers)
    )
    return Generators(net, members, modules[0], params, buffers)


def mixture(*breeds: Generators, shape: tuple[int, ...], takes_label: bool = False, **changes: Any) -> Mixture:
    """Return a mixture of three members with different weights and priors."""
    centre = 127.5 if len(shape) == 3 else 1.0
    values: dict[str, Any] = {
        "labels": LABELS, "shape": shape, "offset": centre, "scale": centre, "latent": LATENT,
        "prior": ("normal", "uniform", "normal"), "label_of": np.array([-1] * 3 if takes_label else [0, 1, 2]),
        "weights": np.array([0.5, 0.3, 0.2]), "label_weights": np.array([0.2, 0.3, 0.5]), "seeds": [0], "step": 1,
    }  # fmt: skip
    return Mixture(**values | changes, breeds=breeds)
