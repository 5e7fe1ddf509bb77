"""Check before a cellular run begins whether its topology, network and score fit the data, instead of failing later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ganherd.features import networks
from ganherd.features.material import MetricSkipped
from ganherd.features.networks import Network
from ganherd.recipe.strategy.cellular_config import CellularConfig, MixingConfig
from ganherd.strategies.cellular.rewiring import Rewiring
from ganherd.strategies.mixing import objectives
from ganherd.util.errors import UserError, with_type

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

_KEY = "strategy.cellular.mixing"


def refuse_impossible(
    settings: CellularConfig, dataset: Dataset, trust_code: bool = False, takes_label: bool = False
) -> None:
    """Check the neighbourhoods of the first iteration, and the network and the score by which mixtures are weighed.

    Args:
        settings: The recipe's settings.
        dataset: The data.
        trust_code: Whether the user's functions may be loaded.
        takes_label: Whether the generators take a label.

    Raises:
        UserError: One of them cannot be used with this data and these generators.
    """
    Rewiring(settings, trust_code).at(0)
    mixing = settings.mixing
    key, known = f"{_KEY}.score {mixing.score}", _refuse_network(mixing, dataset, trust_code)
    objectives.refuse(key, mixing.score, dataset, mixing.samples, takes_label, trust_code, *known)


def _refuse_network(settings: MixingConfig, dataset: Dataset, trust_code: bool) -> tuple[int, str]:
    """Check the network that extracts features for mixtures, and return the number of its classes and its name.

    The number is 0 if the network predicts no classes.

    Raises:
        UserError: The network cannot be loaded, or cannot process the data.
    """
    wanted = networks.cheap(dataset) if settings.network == "auto" else settings.network
    if wanted == "classifier" and len(dataset.labels) >= 2:  # It is trained on this data when it is first needed.
        return len(dataset.labels), wanted
    try:
        network = networks.find(wanted, dataset, trust_code=trust_code)
    except (MetricSkipped, UserError) as why:
        raise UserError(f"{_KEY}.network {settings.network}: {str(why).rstrip('.')}.") from why
    return _num_classes(network, dataset), network.name


def _num_classes(network: Network, dataset: Dataset) -> int:
    """Check a network's output on two samples, and return the number of classes that it predicts (0 for none)."""
    x = torch.from_numpy(np.array(dataset.x[:2]))
    try:
        with torch.inference_mode():
            features, logits = network.module(x)
    except Exception as error:  # A user's network may raise anything.
        raise UserError(
            f"{_KEY}.network {network.name} cannot process data of shape {tuple(dataset.shape)}: {with_type(error)}."
        ) from error
    if features.ndim != 2 or len(features) != len(x):
        raise UserError(
            f"{_KEY}.network {network.name} returned {tuple(features.shape)} for {len(x)} samples: "
            "it must return features [n, d]."
        )
    return 0 if logits is None else int(logits.shape[1])
