"""Compute the FID of CIFAR-10's training set against its test set, and the time of FID + IFID of 50,000 images. Prints JSON.

    python benchmarks/fid_cifar10.py [--images 50000] [--cpu]

Needs torch, numpy and ganherd; cifar10 and inception-2015-12-05.pt in $GANHERD_DATA (or ~/.cache/ganherd).
FID(train, test) is 3.15 with 50,000 against 10,000. The images that FID + IFID are timed on are the training images
mirrored, so that they are not the data itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch

from ganherd.data.dataset import Dataset, load
from ganherd.features import networks
from ganherd.features.extract import ExtractedFeatures, best_device, extract, moments
from ganherd.features.networks import Network
from ganherd.metrics.frechet import distance, of_groups
from ganherd.metrics.groups import FeatureGroup
from ganherd.recipe.schema import DataConfig


def seconds(start: float) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 3)


def features(
    network: Network, x: np.ndarray, y: np.ndarray, device: torch.device, fast: bool
) -> tuple[ExtractedFeatures, float]:
    start = time.perf_counter()
    features, logits = extract(network, x, device=device, fast=fast)
    return ExtractedFeatures(features, logits, y, np.full(len(y), -1)), seconds(start)


def train_test(
    network: Network, data: Dataset, n: int, device: torch.device, fast: bool
) -> tuple[dict[str, Any], ExtractedFeatures]:
    test = min(n, len(data.x_test))
    if device.type == "cuda":
        extract(network, data.x[:500], device=device, fast=fast)  # warm: the first batches choose kernels
    train, spent = features(network, data.x[:n], data.y[:n], device, fast)
    held_out, _ = features(network, data.x_test[:test], data.y_test[:test], device, fast)
    start = time.perf_counter()
    value = float(distance(moments(held_out.x), train.moments))
    row = {
        "what": "FID(train, test)",
        "precision": "tf32" if fast and device.type == "cuda" else "float32",
        "value": value,
        "samples": test,
        "real_samples": n,
        "network": network.name,
        "network_seconds": spent,
        "images_per_second": round(n / spent),
        "distance_seconds": seconds(start),
    }
    return row, train


def fid_and_ifid(network: Network, data: Dataset, real: ExtractedFeatures, device: torch.device) -> dict[str, Any]:
    """Do what a second `ganherd score` does: features of the samples, then eleven distances with their errors."""
    n = len(real)
    start = time.perf_counter()
    fake, spent = features(network, data.x[:n, :, :, ::-1], data.y[:n], device, fast=True)
    everything = FeatureGroup("all", fake, real)
    classes = [FeatureGroup(name, fake.rows(fake.y == k), real.rows(real.y == k)) for k, name in enumerate(data.labels)]
    (fid, error), *each = of_groups([everything, *classes])
    return {
        "what": "FID + IFID of mirrored training images",
        "precision": "tf32" if device.type == "cuda" else "float32",
        "fid": fid,
        "fid_standard_error": error,
        "ifid": sum(value for value, _ in each) / len(each),
        "samples": n,
        "network": network.name,
        "network_seconds": spent,
        "seconds": seconds(start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=50_000, help="training images, in the published order")
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cpu") if arguments.cpu else best_device()
    data = load(DataConfig(source="cifar10"))
    n = min(arguments.images, len(data.x))
    network = networks.find("inception", data)
    rows = []
    for fast in (False, True) if device.type == "cuda" else (False,):
        row, real = train_test(network, data, n, device, fast)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    rows.append(fid_and_ifid(network, data, real, device))
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(json.dumps({"rows": rows, "device": name, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
