"""Load the small MNIST network of the papers on cellular GAN training, whose FID uses its ten logits as features."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.features.material import MetricSkipped
from ganherd.util.errors import UserError
from ganherd.util.files import sha256_of

FILE = "lipizzaner_mnist_cnn.npz"
RESIZING = "none, pixels in [−1, 1]"


class LipizzanerNet(nn.Module):
    """Map uint8 images [B, 1, 28, 28] to 10 logits, which are also the features. Its MNIST test accuracy is 99.27 %."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = (x.float() - 127.5) / 127.5
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        logits = self.fc2(F.relu(self.fc1(x.flatten(1))))  # [B, 10]
        return logits, logits


def load(path: Path | None) -> tuple[LipizzanerNet, str]:
    """Return the network with the weights of an .npz, and the sha256 of that file.

    Args:
        path: The file; None: the one in the data folder.

    Raises:
        MetricSkipped: No path is given, and there is no file in the data folder.
        UserError: The file is missing, or does not contain these weights.
    """
    from ganherd.util.paths import data_home

    place = path or data_home() / FILE
    if not place.is_file():
        if path is not None:
            raise UserError(f"there is no file {path}: give the .npz with the weights of lipizzaner-mnist.")
        raise MetricSkipped(
            f"the network lipizzaner-mnist is not on this machine: put its weights at {place}, or give them with --network FILE.npz"
        )
    net = LipizzanerNet()
    wanted = {name: tuple(p.shape) for name, p in net.named_parameters()}
    try:
        if place.stat().st_size > 2**20:
            raise ValueError("it is too large")
        with np.load(place, allow_pickle=False) as file:
            if set(file.files) != set(wanted):
                raise ValueError(f"it has the arrays {', '.join(sorted(file.files)) or 'none'}")
            arrays = {name: np.asarray(file[name], np.float32) for name in wanted}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{place} does not hold the weights of lipizzaner-mnist: {error}.") from error
    for name, shape in wanted.items():
        if arrays[name].shape != shape or not math.isfinite(float(np.abs(arrays[name]).sum())):
            raise UserError(f"{place} does not hold the weights of lipizzaner-mnist: {name} is {arrays[name].shape}.")
    net.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    return net.eval(), sha256_of(place)
