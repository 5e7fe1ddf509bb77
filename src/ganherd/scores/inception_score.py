"""Inception or classifier score: exp of the mean divergence of p(y | x) from p(y), over splits of the samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ganherd.data.keyed import shuffle
from ganherd.scores.groups import entries, wanted_groups
from ganherd.scores.material import LeftOut, Material

SPLITS = 10
FEW = 100  # samples of a split: fewer cannot show many classes


def inception_score(logits: Tensor, splits: int = SPLITS) -> tuple[float, float]:
    """(mean, standard deviation) over the splits of logits [n, classes], taken in their order.

    >>> inception_score(torch.eye(4).repeat(5, 1) * 1000, splits=1)[0]
    4.0
    """
    logs = logits.double().log_softmax(1)
    found = torch.stack([_one(part) for part in logs.chunk(splits)])
    return float(found.mean()), float(found.std()) if len(found) > 1 else math.nan


def _one(logs: Tensor) -> Tensor:
    marginal = logs.exp().mean(0, keepdim=True).log()
    return (logs.exp() * (logs - marginal)).nan_to_num(0.0).sum(1).mean().exp()


def measure_classifier(material: Material) -> dict[str, Any]:
    """By the network of the other scores if it tells classes apart, else by the classifier of the data."""
    fake = material.features
    if fake.logits is not None and not material.reference.network.name.startswith("inception"):
        return _measure(material, fake.logits, material.reference.beside(fake))
    judge = material.classifier
    beside = {"samples": len(fake), "network": judge.name, "held_out_accuracy": judge.held_out_accuracy}
    return _measure(material, torch.from_numpy(judge.logits(material.free.x)), beside)


def measure_inception(material: Material) -> dict[str, Any]:
    network = material.reference.network
    fake = material.features if network.name.startswith("inception") else None
    if fake is None:
        raise LeftOut(f"the network here is {network.name}: give --network inception and a classifier --head")
    if fake.logits is None:
        raise LeftOut(
            "the network of FID has no classifier: give one with --head FILE.npz (weight [classes, 2048], bias)"
        )
    return _measure(material, fake.logits, material.reference.beside(fake))


def _measure(material: Material, logits: Tensor, beside: dict[str, Any]) -> dict[str, Any]:
    n = len(logits)
    splits = SPLITS if n >= 2 * SPLITS else 1
    order = torch.from_numpy(shuffle(n, "inception score", material.seed)).to(logits.device)
    value, std = inception_score(logits[order], splits)
    out = {"value": value, **beside, "splits": splits, "classes": logits.shape[1]}
    if splits > 1:
        error = 1.96 * std / math.sqrt(splits)
        how = f"{splits} splits of {n // splits:,}"
        out |= {"std": std, "interval": {"low": value - error, "high": value + error, "level": 0.95, "how": how}}
    if material.per and beside.get("resizing"):
        groups = [group for group in wanted_groups(material) if group.fake.logits is not None]
        values = [inception_score(group.fake.logits, 1)[0] for group in groups if group.fake.logits is not None]
        out |= entries(material.per, groups, values)
    if n // splits < FEW:
        out["warning"] = f"a split has only {n // splits} samples for {logits.shape[1]} classes: ask for more"
    return out
