"""Train one small classifier on real images, generated ones or both, and measure its accuracy on held-out data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.data.dataset import Dataset
from ganherd.data.units import to_model
from ganherd.features.classifier import BATCH, STEPS, ImageNet, PointNet
from ganherd.features.extract import best_device
from ganherd.features.one_cycle import OneCycleAdam


@dataclass(frozen=True)
class Images:
    """Images (or points or rows) in the units of the data, with their labels. May be empty."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


def steps_for(images: int) -> int:
    """Return the steps of about two epochs, within the limits of the classifier that the scores use."""
    return min(max(2 * images // BATCH, STEPS[0]), STEPS[1])


def accuracy(data: Dataset, real: Images, generated: Images, steps: int, seed: int) -> float:
    """Return the accuracy on held-out images. If there are both kinds of images, half of every batch is of each."""
    device = best_device()
    net = _fresh(data, seed).to(device)
    optimiser = OneCycleAdam(net.parameters(), steps)
    kinds = [kind for kind in (real, generated) if len(kind)]
    orders = [_order(len(kind), steps, BATCH // len(kinds), seed + number) for number, kind in enumerate(kinds)]
    net.train()
    with torch.enable_grad():
        for step in range(steps):
            rows = [order[step] for order in orders]
            x = np.concatenate([kind.x[own] for kind, own in zip(kinds, rows, strict=True)])
            y = np.concatenate([kind.y[own] for kind, own in zip(kinds, rows, strict=True)])
            optimiser.update(F.cross_entropy(net(_units(x, data, device)), torch.from_numpy(y).to(device)))
    return _right(net, data, device)


def _fresh(data: Dataset, seed: int) -> nn.Module:
    """Return an untrained classifier for the data, initialised by the seed."""
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it is
        torch.manual_seed(seed)
        kind = ImageNet if data.is_image else PointNet
        return kind(data.shape, len(data.labels))


def _order(n: int, steps: int, size: int, seed: int) -> np.ndarray:
    """Return the row numbers of each batch, int64 [steps, size]; every epoch has all n rows in a new order."""
    random = np.random.default_rng(seed)
    epochs = -(-steps * size // n)
    return np.concatenate([random.permutation(n) for _ in range(epochs)])[: steps * size].reshape(steps, size)


def _right(net: nn.Module, data: Dataset, device: torch.device) -> float:
    """Return the share of held-out rows with a label that the classifier predicts right."""
    rows = np.flatnonzero(data.y_test >= 0)
    right = 0
    net.eval()
    with torch.no_grad():
        for start in range(0, len(rows), 1024):
            own = rows[start : start + 1024]
            predicted = net(_units(data.x_test[own], data, device)).argmax(1).cpu().numpy()
            right += int((predicted == data.y_test[own]).sum())
    return right / len(rows)


def _units(x: np.ndarray, data: Dataset, device: torch.device) -> Tensor:
    """Return rows in the units of the data as a float tensor in the units of the nets."""
    return to_model(torch.from_numpy(np.asarray(x)).to(device).float(), data)
