"""Measure only the matrix products of a grid's iteration, which every implementation in this arithmetic needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ganherd.util.host import torch_threads

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

Layers = Sequence[tuple[int, int]]
_MEASURED = 40  # steps to measure; others are multiples


def floor(recipe: Recipe, batches: int, clock: Callable[[], float]) -> dict[str, float]:
    """Measure the CPU seconds per cell and iteration of `update` and `evaluate`, for MLPs on 28 × 28 images."""
    from ganherd.recipe.strategy.cellular_config import CellularConfig
    from ganherd.strategies.cellular.rewiring import Rewiring

    settings = recipe.strategy.settings
    assert isinstance(settings, CellularConfig)
    cells, s = settings.cells, Rewiring(settings).at(0).widest
    hidden = [recipe.nets.generator.settings["hidden"], recipe.nets.discriminator.settings["hidden"]]
    g, d = _layers([recipe.nets.latent, *hidden[0], 784]), _layers([784, *hidden[1], 1])
    with torch_threads(recipe.engine.threads or torch.get_num_threads()):
        step_g = _generator_step(g, d, recipe.train.batch, cells)
        step_d = _discriminator_step(g, d, recipe.train.batch, cells)
        samples = settings.fitness.samples
        forward_g, forward_d = _forward(g, samples, cells), _forward(d, samples, cells)
        d_steps = -(-batches // (recipe.train.skip_d + 1))
        update = batches * _seconds(step_g, clock, _MEASURED) + d_steps * _seconds(step_d, clock, _MEASURED)
        # all against all when an iteration begins, then the trained ones against the old neighbourhood
        evaluate = (2 * s + 1) * _seconds(forward_g, clock, 4) + (s * s + 3 * s + 1) * _seconds(forward_d, clock, 4)
    return {"update": update / cells, "evaluate": evaluate / cells}


class TimedProduct:
    """One batched product with a preallocated output."""

    def __init__(self, cells: int, rows: int, inner: int, columns: int) -> None:
        self.a, self.b = torch.randn(cells, rows, inner), torch.randn(cells, inner, columns)
        self.out: Tensor = torch.empty(cells, rows, columns)

    def __call__(self) -> None:
        torch.bmm(self.a, self.b, out=self.out)


def _layers(widths: Sequence[int]) -> Layers:
    return list(pairwise(widths))


def _forward(layers: Layers, batch: int, cells: int) -> list[TimedProduct]:
    return [TimedProduct(cells, batch, inner, out) for inner, out in layers]


def _to_inputs(layers: Layers, batch: int, cells: int) -> list[TimedProduct]:
    return [TimedProduct(cells, batch, out, inner) for inner, out in layers]


def _to_weights(layers: Layers, batch: int, cells: int) -> list[TimedProduct]:
    return [TimedProduct(cells, inner, batch, out) for inner, out in layers]


def _generator_step(g: Layers, d: Layers, batch: int, cells: int) -> list[TimedProduct]:
    """Return the products forward through both nets, and backward to the weights of the generator."""
    through = [*_forward(g, batch, cells), *_forward(d, batch, cells), *_to_inputs(d, batch, cells)]
    return [*through, *_to_weights(g, batch, cells), *_to_inputs(g[1:], batch, cells)]


def _discriminator_step(g: Layers, d: Layers, batch: int, cells: int) -> list[TimedProduct]:
    """Return the products of fakes, then of real and fake forward and backward to the weights of the discriminator."""
    back = [*_to_weights(d, 2 * batch, cells), *_to_inputs(d[1:], 2 * batch, cells)]
    return [*_forward(g, batch, cells), *_forward(d, 2 * batch, cells), *back]


def _seconds(products: Sequence[TimedProduct], clock: Callable[[], float], times: int) -> float:
    for product in products:
        product()
    began = clock()
    for _ in range(times):
        for product in products:
            product()
    return (clock() - began) / times
