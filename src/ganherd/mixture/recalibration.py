"""Re-estimate the batch-norm statistics of a trained generator from noise, for its final parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ganherd.herd import rng
from ganherd.herd.evaluation import member_module
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.parameter_names import call_with_tensors
from ganherd.herd.state import takes_label
from ganherd.mixture.mixture_noise import draw_prior

NOISES = 10_240  # number of noise vectors from which the statistics are estimated
NOISES_AT_ONCE = 512


def recalibrate_batch_norm(
    module: nn.Module,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    latent: int,
    prior: str,
    label_shares: Sequence[float] | np.ndarray,
    key: int,
    device: torch.device | str = "cpu",
    noises: int | None = None,
) -> dict[str, Tensor]:
    """Return the buffers of a generator with new batch-norm statistics, estimated from noise for its final parameters.

    The running statistics of training are averages over earlier parameters too. Here only batch norm is in training
    mode, so dropout is off. Buffers of other layers are returned unchanged.

    Args:
        module: The net, in training mode; it is not changed.
        params: The final parameters by name.
        buffers: The buffers after training by name.
        latent: The length of a noise vector.
        prior: The distribution of the noise.
        label_shares: The share of each label among the images that the generator learnt from, if it takes a label.
        key: The random key of the noise.
        device: The device to compute on.
        noises: Number of noise vectors; None: `NOISES`. Fewer serve to measure how long it takes.
    """
    in_training = {name for name, layer in module.named_modules() if layer.training}
    module = member_module(module, {name: value.to(device) for name, value in (params | buffers).items()})
    norms = _reset_norms(module, in_training)
    if not norms:
        return buffers
    dtype = next(iter(params.values())).dtype
    statistics: dict[str, Tensor] = {}
    for name, norm in norms.items():
        statistics |= {f"{name}.{buffer}".lstrip("."): value for buffer, value in norm.named_buffers()}
    others = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    labels = torch.from_numpy(labels_by_share(label_shares, noises or NOISES)).split(NOISES_AT_ONCE)
    with torch.no_grad():
        for block in range((noises or NOISES) // NOISES_AT_ONCE):
            base = np.array([rng.key(key, rng.CALIBRATE, block)])
            label = (labels[block].to(device),) if takes_label(module) else ()
            state = {name: value.clone() for name, value in others.items()} | statistics
            inputs = (draw_prior(base, (NOISES_AT_ONCE, latent), prior, dtype)[0].to(device), *label)
            with MemberRandomness(torch.from_numpy(rng.keys(base, rng.INSIDE)).to(device)[0]):
                call_with_tensors(module, state, inputs)
            statistics = {name: state[name] for name in statistics}  # All other buffers stay as training left them.
    # A norm that evaluation mode folds into another layer is never called, and keeps its buffers.
    used = {name for name in norms if statistics[f"{name}.num_batches_tracked".lstrip(".")] > 0}
    updated = {name: value for name, value in statistics.items() if name.rpartition(".")[0] in used}
    return buffers | {name: value.detach().cpu() for name, value in updated.items()}


def labels_by_share(shares: Sequence[float] | np.ndarray, number: int) -> np.ndarray:
    """Return labels [number] with these shares; every long stretch has nearly the same shares. Without shares: zeros.

    >>> labels_by_share([3, 0, 1], 8).tolist()
    [0, 2, 0, 0, 2, 0, 0, 0]
    """
    if not len(shares):
        return np.zeros(number, np.int64)
    ends = np.cumsum(np.asarray(shares, np.float64))
    places = (np.arange(number) + 0.5) * ((5**0.5 - 1) / 2) % 1  # multiples of the golden ratio lie evenly in [0, 1)
    return np.asarray(np.searchsorted(ends, places * ends[-1], "right"), np.int64)


def _reset_norms(module: nn.Module, names: set[str]) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Reset the running statistics of batch norms, put these norms in training mode, and return them by name.

    Args:
        module: The net.
        names: The names of layers; only batch norms among these that have running statistics are affected.
    """
    norms = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and name in names
    }
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # average over all batches
        norm.train()
    return norms
