"""The settings with which grids of the cellular papers are measured, on MNIST or on images that cost the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ganherd.data.readers.named import find
from ganherd.features.lipizzaner import FILE
from ganherd.util.files import JsonObject
from ganherd.util.paths import data_home

AS_CODED = "mnist-cellular-2x2"  # the nets of the reference implementation
AS_PRINTED = "mnist-cellular-2x2-paper"  # Table I of the cellular paper
IMAGES = 60_000


def settings(folder: Path, log: Callable[[str], None], network: str | None = None) -> list[str]:
    """Return the overrides of a recipe that make it like the reference: no penalty, mutated learning rates.

    Args:
        folder: Takes what has to be made: random images if MNIST is missing, and random weights of the network.
        network: The network that scores the mixtures; None: that of the papers, with random weights if it is missing.
    """
    source = "mnist"
    if find("mnist") is None:
        log("MNIST is missing: random images of the same shape and number are used, which cost the same")
        source = str(folder / "made.npz")
        pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 1, 28, 28), np.uint8)
        np.savez(source, x=pixels, y=np.arange(IMAGES) % 10)
    if network is None and (data_home() / FILE).is_file():
        network = "lipizzaner-mnist"
    elif network is None:
        log("the small classifier of the papers is missing: random weights are used, which cost the same")
        network = str(folder / FILE)
        _write_net(Path(network))
    return [
        f"data.source={source}",
        *(["data.holdout=0"] if source != "mnist" else []),  # random images have no held-out part
        "loss.r1_weight=0",
        "strategy.cellular.mutation.learning_rate=reference",
        f"strategy.cellular.mixing.network={network}",
        "strategy.cellular.mixing.keep=last",
    ]


def grid_setting(grid: int) -> str:
    """Return the override for an n × n grid."""
    return f"strategy.cellular.grid=[{grid}, {grid}]"


def _write_net(path: Path) -> None:
    """Write random weights for the network of the papers."""
    import torch

    from ganherd.features.lipizzaner import LipizzanerNet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = LipizzanerNet()
    arrays: JsonObject = {name: value.detach().numpy() for name, value in net.named_parameters()}
    np.savez(path, **arrays)
