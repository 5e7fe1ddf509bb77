"""Measure the cost (loss) of discriminators on training data and on held-out data; the gap shows their memorisation.

Both costs use the same samples, on fixed noise, and the same number of real images. The nets run as in a step (batch norm with
the statistics of the batch), and nothing in them is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.data.units import to_model
from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.engine.engines import evaluation_operations
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of, members_of
from ganherd.runs.records import COSTS
from ganherd.training.recording.fixed_inputs import evenly, fixed_noise, held_out_rows
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError

_AT_ONCE = 8  # members


@dataclass(frozen=True)
class _Block:
    """Consecutive members of one breed, which are measured together, and the inputs of their nets."""

    members: slice
    breed: Breed
    keys: np.ndarray  # [n] the random keys of the members
    z: Tensor  # [n, B, Z] the noise of the generators
    real: dict[
        str, tuple[Tensor, Tensor]
    ]  # training and held-out images by the name of their cost: x [n, B, …], y [n, B]


class Validation:
    """Measure the discriminators of all members on a fixed choice of training and held-out images."""

    def __init__(self, prepared: PreparedHerd, images: int) -> None:
        """Choose `images` training and held-out images for each member; fewer for all members if one has fewer."""
        self._herd, self._prepared = prepared.herd, prepared
        held = [len(held_out_rows(prepared, member, images)) for member in range(prepared.size)]
        self.images = min(images, int(prepared.count.min()), *held)
        if self.images < 2:
            raise UserError(
                f"run.validation needs at least two held-out {prepared.dataset.kind} for every member: "
                "set data.holdout, or run.validation to 0."
            )
        operations, precision = evaluation_operations(self._herd), self._herd.rules.precision
        nets = [self._herd.d, *(breed.g for breed in self._herd.breeds.all)]
        self._play = {net: NetworkCall(net, operations, precision) for net in nets}
        self._blocks = [self._block(members, breed, images) for members, breed in self._herd.blocks(_AT_ONCE)]

    def _block(self, members: slice, breed: Breed, images: int) -> _Block:
        """Return the inputs of consecutive members of one breed, given by their rows on this rank."""
        herd, data = self._herd, self._prepared.dataset
        own = range(members.start, members.stop)
        # first choose `images` for each member, then of these as many as the member with the fewest has
        rows = [evenly(evenly(herd.feed.member_rows(row), images), self.images) for row in own]
        trained = herd.feed.gather(torch.from_numpy(np.stack(rows)).to(herd.device))
        each = [held_out_rows(self._prepared, self._prepared.own[row], images) for row in own]
        held = np.stack([evenly(rows, self.images) for rows in each])
        keys, z = fixed_noise(herd, members, self.images)
        x = torch.from_numpy(np.ascontiguousarray(data.x_test[held.reshape(-1)])).to(herd.device, z.dtype)
        x = to_model(x, data).unflatten(0, held.shape)
        y = torch.from_numpy(data.y_test[held]).to(herd.device)
        return _Block(members, breed, keys, z, dict(zip(COSTS, (trained, (x, y)), strict=True)))

    @torch.no_grad()
    def look(self) -> dict[str, list[float]]:
        """Return the cost of each member's discriminator on training and on held-out images, by the name of the cost.

        The cost is the loss without penalties and input noise.
        """
        costs = [self._costs(block) for block in self._blocks]
        own = torch.stack([torch.cat([block_costs[name] for block_costs in costs]) for name in COSTS], 1)  # [n, 2]
        return dict(zip(COSTS, self._prepared.ranks.all_gather(own).T.tolist(), strict=True))

    def _costs(self, block: _Block) -> dict[str, Tensor]:
        """Return the costs of a block's members [n], by name (see `COSTS`)."""
        herd = self._herd
        state = block.breed.view(members_of(herd.state, block.members))
        own = {k: v.to(herd.device) for k, v in state.items() if k[1] == "." or k == "set.loss"}
        y = block.real["cost_train"][1]
        fake = self._call(block, own, "g", block.z, y, 0)
        judged = self._call(block, own, "d", fake, y, 1).flatten(1)
        out = {}
        for call, (name, (x, labels)) in enumerate(block.real.items(), 2):
            logits = self._call(block, own, "d", x, labels, call).flatten(1)
            out[name] = herd.rules.game.d(own["set.loss"], logits.double(), judged.double()).cpu()
        return out

    def _call(self, block: _Block, state: State, kind: str, x: Tensor, y: Tensor, call: int) -> Tensor:
        """Return the output [n, B, …] of the generators or discriminators of a block.

        Args:
            state: The tensors of the block's members.
            kind: "g" or "d".
            x: The first input [n, B, …].
            y: The labels [n, B], for nets that take them.
            call: The number of this call, which selects the random numbers that the nets draw.
        """
        net = block.breed.g if kind == "g" else self._herd.d
        draws = Streams(torch.from_numpy(rng.keys(block.keys, rng.PREVIEW, call)).to(self._herd.device), 0)
        inputs = (x, y) if net.takes_label else (x,)
        views, buffers = net.views(state[f"{kind}.params"]), buffers_of(state, kind)
        return self._play[net](views, buffers, lambda: draws.keys(rng.INSIDE), inputs)[0].to(x.dtype)
