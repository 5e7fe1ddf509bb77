"""What a grid needs and may not have: said in one sentence before a run begins, not after its first iteration."""

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
    """Looks at the neighbourhoods of the first iteration, lets the network of the mixtures look at two samples, and asks
    whether their score can be had of such data and generators; `takes_label`: these do."""
    Rewiring(settings, trust_code).at(0)
    mixing = settings.mixing
    told = _refuse_network(mixing, dataset, trust_code)
    objectives.refuse(
        f"{_KEY}.score {mixing.score}", mixing.score, dataset, mixing.samples, takes_label, trust_code, told
    )


def _refuse_network(settings: MixingConfig, dataset: Dataset, trust_code: bool) -> int:
    """How many classes it tells."""
    wanted = networks.cheap(dataset) if settings.network == "auto" else settings.network
    if wanted == "classifier" and len(dataset.labels) >= 2:  # trained on these very images, when it is first needed
        return len(dataset.labels)
    try:
        network = networks.find(wanted, dataset, trust_code=trust_code)
    except (MetricSkipped, UserError) as why:
        raise UserError(f"{_KEY}.network {settings.network}: {str(why).rstrip('.')}.") from why
    told = _classes(network, dataset)
    if not told and settings.score in objectives.CLASSES:
        raise objectives.no_classes(f"{_KEY}.score {settings.score}", network.name)
    return told


def _classes(network: Network, dataset: Dataset) -> int:
    """How many it tells."""
    x = torch.from_numpy(np.array(dataset.x[:2]))
    try:
        with torch.inference_mode():
            features, logits = network.module(x)
    except Exception as error:  # whatever a network of the user's own raises
        raise UserError(
            f"{_KEY}.network {network.name} cannot look at images of {tuple(dataset.shape)}: {with_type(error)}."
        ) from error
    if features.ndim != 2 or len(features) != len(x):
        raise UserError(
            f"{_KEY}.network {network.name} made {tuple(features.shape)} out of {len(x)} samples: "
            "wanted are features [n, d]."
        )
    return 0 if logits is None else int(logits.shape[1])
