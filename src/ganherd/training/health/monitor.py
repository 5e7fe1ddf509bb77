"""Look at all members at an interval: compute cheap scores on fixed noise and data, from which alarms are raised.

A look uses the members as they train (current weights, not the running average; batch norm as in a step) and changes nothing in
them. The state that it needs between looks is tensors [N, …], which are saved with every checkpoint.

Looks are computed in float64, whatever the precision of the training is. The engine, the ranks and the grouping of members
therefore change the scores by rounding errors only, and never the alarms.

- `spread`: ratio of the standard deviation of the samples' pixels to that of the member's data; 1: as varied as the data.
- `returns`: the distance of the samples to earlier ones for the same noise, relative to how far they move; near 0: they cycle.
- `tells`: how often the discriminator ranks a real image above a sample (ties count half); 0.5: no better than chance.
- `differs`: how often the nearest neighbour of an image or sample is of the same kind; 0.5: they cannot be separated.
- `copies`: the share of samples that are as near to a single training image as only 5 % of held-out images are.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from ganherd.data.units import to_model
from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.checks.trial import LOOK_SAMPLES
from ganherd.herd.lowering.network import logits_of, member_call
from ganherd.herd.state import Blueprint, State, buffers_of, members_of
from ganherd.metrics.memorisation import BY_CHANCE, NEXT
from ganherd.runs.records import LOOK_SCORES
from ganherd.training.recording.fixed_inputs import at_once, evenly, fixed_noise, held_out_rows
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.memory import is_out_of_memory

SNAPSHOTS = 32  # sketches that are remembered of each member
_FEATURES = 64  # dimensions that images are projected to; smaller images are used as they are
_SKETCH = 64  # dimensions of a sketch: the projection of all samples of a member at one look
_AWAY = 0.15  # a member moves if the typical distance of its sketches is at least this, in units of `_Fixed.scale`
_GONE = 0.8  # a member has left a place if it is farther from it than this fraction of its typical distance
_MOST = 2000  # rows of a member's data that it is compared with
_FEW = 10  # held-out images below which copies cannot be recognised
# Logits that differ by less than this, relative to the largest, count as equal: rounding errors would order them.
_ROUNDING = 1e-9


class Monitor:
    """Compute the scores of all members on fixed noise and data. The state between looks is saved with every checkpoint."""

    def __init__(self, prepared: PreparedHerd, remembered: State | None = None) -> None:
        self._herd, self._prepared = prepared.herd, prepared
        n = self._herd.num_members
        self.state: State = {
            "watch.born": torch.zeros(n, dtype=torch.int64),  # 0, or the step of its last repair
            "watch.at": torch.full((n,), -1, dtype=torch.int64),  # the step of the last look
            "watch.scores": torch.full((n, len(LOOK_SCORES)), torch.inf, dtype=torch.float64),  # inf: not known
            "watch.peak": torch.zeros(n, dtype=torch.float64),  # the widest spread so far
            "watch.sketch": torch.full((n, SNAPSHOTS, _SKETCH), torch.inf, dtype=torch.float64),  # the newest first
        }
        recall(self.state, remembered)
        self.seconds = 0.0  # seconds that this process has spent on looks
        own = self._herd.state["g.params"].dtype
        # How each net can be called, as (type, whether by vmap), the best way first. Ways that fail are removed: some
        # nets can only be called for one member at a time, or only in their own precision.
        self._ways = {
            net: [
                (dtype, mapped)
                for dtype in dict.fromkeys((torch.float64, own))
                for mapped in (True, False)
                if not (mapped and net.traits.why_not_fused)
            ]
            for net in (self._herd.d, *(breed.g for breed in self._herd.breeds.all))
        }
        self._blocks: list[_Fixed] = []

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of the last look for each member of the herd; NaN if a score could not be measured."""
        everyones = self._prepared.ranks.all_gather(self.state["watch.scores"])
        known = torch.where(torch.isfinite(everyones), everyones, torch.nan)
        return {name: known[:, i].tolist() for i, name in enumerate(LOOK_SCORES)}

    def forget(self, member: int, step: int) -> None:
        """Forget the looks at a member, for example after a repair.

        Args:
            member: The row of the member on this rank.
            step: The step at which the member starts anew.
        """
        for name, value in self.state.items():
            value[member] = {"watch.born": step, "watch.at": -1, "watch.peak": 0.0}.get(name, torch.inf)

    def look(self, step: int) -> None:
        """Compute the scores and sketches of all members of this rank, and store them in the state."""
        began = time.perf_counter()
        seen, sketch = self._seen()
        snapshots = self.state["watch.sketch"]
        snapshots[:, 1:] = snapshots[:, :-1].clone()
        snapshots[:, 0] = _or_inf(sketch)
        seen["returns"] = returns(snapshots)
        self.state["watch.scores"].copy_(_or_inf(torch.stack([seen[name] for name in LOOK_SCORES], 1)))
        self.state["watch.at"].fill_(step)
        peak, spread = self.state["watch.peak"], seen["spread"]
        peak.copy_(torch.where(torch.isfinite(spread), torch.maximum(peak, spread), peak))
        self.seconds += time.perf_counter() - began

    # -- the look ---------------------------------------------------------------------------------------------------

    def _seen(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return the scores of a look [N] by name, without `returns`, and the sketches [N, sketch], on the host."""
        if not self._blocks:
            pixels = int(np.prod(self._prepared.dataset.shape))
            projection = None if pixels <= _FEATURES else _gaussian(pixels, _FEATURES).to(self._herd.device)
            mixing = _gaussian(LOOK_SAMPLES * min(pixels, _FEATURES), _SKETCH).to(self._herd.device)
            cuts = self._herd.blocks(max(1, at_once(self._herd) // 2))  # float64 takes twice the memory
            self._blocks = [_Fixed(self._prepared, cut, breed, projection, mixing) for cut, breed in cuts]
        each = [self._seen_of(block) for block in self._blocks]
        seen = {name: torch.cat([one[name] for one in each]).cpu() for name in each[0]}
        return seen, seen.pop("sketch")

    @torch.no_grad()
    def _seen_of(self, fixed: _Fixed) -> dict[str, Tensor]:
        """Return the scores [n] and sketches [n, sketch] of a block of members, by name; NaN if one is not known."""
        herd = self._herd
        own = fixed.breed.view(members_of(herd.state, fixed.members))
        state = {k: v.to(herd.device) for k, v in own.items() if k[1:].startswith((".params", ".buffers."))}
        x, y = herd.feed.gather(fixed.rows[fixed.shown])  # [n, 64, …], [n, 64]
        fake = self._call(fixed.breed.g, "g", state, fixed.keys[0], (fixed.z,), y)
        tells = below(
            self._call(herd.d, "d", state, fixed.keys[2], (fake,), y).flatten(1),
            self._call(herd.d, "d", state, fixed.keys[1], (x,), y).flatten(1),
        )
        flat = fake.flatten(2)  # [n, 64, pixels]
        features = fixed.features(flat)
        whole = torch.isfinite(features).flatten(1).all(1)
        spread = flat.std(1, unbiased=False).mean(1) / fixed.std
        relative = fixed.relative(features)  # [n, 64]
        copies = (relative < fixed.line[:, None]).double().mean(1)
        nan = torch.full_like(copies, torch.nan)
        return {
            "spread": spread,
            "tells": torch.where(torch.isfinite(tells), tells, nan),
            "differs": torch.where(whole, fixed.differs(features), nan),
            "copies": torch.where(whole & torch.isfinite(fixed.line), copies, nan),
            "sketch": features.flatten(1) @ fixed.mixing / fixed.scale[:, None],
        }

    def _call(
        self, net: Blueprint, kind: str, state: State, keys: Tensor, inputs: tuple[Tensor, ...], y: Tensor
    ) -> Tensor:
        """Call the nets of a block of members in training mode, and return their outputs as float64 [n, B, …].

        Changes that the nets make to their buffers are discarded.

        Args:
            net: The parameter layout and the module of the nets.
            kind: "g" or "d".
            state: The tensors of the block's members.
            keys: [n, …] keys of the random numbers that the nets draw.
            inputs: The inputs [n, B, …] without labels.
            y: The labels [n, B], for nets that take them.
        """
        # Clones, because nets may change their arguments.
        arguments = tuple(value.clone() for value in ((*inputs, y) if net.takes_label else inputs))
        rows, buffers = net.views(state[f"{kind}.params"]), buffers_of(state, kind)
        ways = self._ways[net]
        while True:
            dtype, mapped = ways[0]
            batched = tree_map(lambda v: v.to(dtype) if v.is_floating_point() else v, (rows, buffers, keys, arguments))  # noqa: B023
            try:
                return _called(net, batched, mapped).double()
            except RuntimeError as error:
                if len(ways) == 1 or is_out_of_memory(error):
                    raise
                del ways[0]


def _called(net: Blueprint, batched: tuple[Any, ...], mapped: bool) -> Tensor:
    """Call the nets of n members, and return their outputs [n, B, …].

    Args:
        batched: Parameters, buffers, random keys and inputs, each [n, …].
        mapped: Whether to call all members at once, by vmap.
    """

    def call(*own: Any) -> Tensor:
        params, buffers, key, inputs = own
        return logits_of(member_call(net, params, buffers, key, *inputs)[0])

    members = len(batched[2])
    if mapped and members > 1:
        return vmap(call)(*batched)
    return torch.stack([call(*tree_map(lambda value: value[m], batched)) for m in range(members)])  # noqa: B023


class _Fixed:
    """The inputs of a block of members that are the same at every look, and what was computed from their data."""

    def __init__(
        self, prepared: PreparedHerd, members: slice, breed: Breed, projection: Tensor | None, mixing: Tensor
    ) -> None:
        """Choose noise and data rows, and compute the features of the data.

        Args:
            members: The rows of the members in this rank's herd.
            breed: Their generator architecture.
            projection: [pixels, features] projects images to features; None: the features are the pixels.
            mixing: [samples * features, sketch] projects the features of all samples of a member to its sketch.
        """
        self.members, self.breed, self._projection, self.mixing = members, breed, projection, mixing
        device, feed = prepared.herd.device, prepared.herd.feed
        keys, self.z = fixed_noise(prepared.herd, members, LOOK_SAMPLES)
        inside = [torch.from_numpy(rng.keys(keys, rng.PREVIEW, rng.INSIDE, call)) for call in range(3)]
        self.keys = [each.to(device) for each in inside]
        # The rows that a member is compared with: all of its data, or as much as fits into memory.
        most = max(256, min(_MOST, 200_000 // (prepared.among or prepared.size)))
        own = [evenly(feed.member_rows(m), most) for m in range(members.start, members.stop)]
        self._count = torch.tensor([len(rows) for rows in own], device=device)  # [n]
        width = max(len(rows) for rows in own)
        self.rows = torch.from_numpy(np.stack([np.resize(rows, width) for rows in own])).to(device)  # [n, T]
        shown = [np.resize(evenly(np.arange(len(rows)), LOOK_SAMPLES), LOOK_SAMPLES) for rows in own]
        column = torch.from_numpy(np.stack(shown)).to(device)  # [n, 64]
        self.shown = (torch.arange(len(own), device=device)[:, None], column)
        features, std, variance = [], [], []
        for rows, count in zip(self.rows, self._count.tolist(), strict=True):
            x = feed.gather(rows[None])[0][0].flatten(1).double()  # [T, pixels], one member at a time
            features.append(self.features(x))
            std.append(x[:count].std(0, unbiased=False).mean())
            variance.append(features[-1][:count].var(0, unbiased=False).sum())
        self._data = torch.stack(features)  # [n, T, features]
        self.std = torch.stack(std).clamp(min=1e-12)
        # [n] the expected distance between two random sets of a member's data, each as large as the set of its samples
        self.scale = (2 * LOOK_SAMPLES * torch.stack(variance)).sqrt().clamp(min=1e-12)
        picked = self.rows[self.shown]
        self._same = picked[:, :, None] == picked[:, None, :]  # A row that is shown twice is not a neighbour of itself.
        self._shown = self._data[self.shown]
        self.line = torch.stack([self._line(prepared, m) for m in range(len(own))])  # [n] a sample below it is a copy

    def features(self, flat: Tensor) -> Tensor:
        """Return features […, features] of images […, pixels]: a random projection, which preserves distances."""
        return flat if self._projection is None else flat @ self._projection

    def relative(self, features: Tensor, only: int | None = None) -> Tensor:
        """Return the ratio of the distance to the nearest training image to the mean distance to the next ones [n, B].

        It is small for a copy of a training image.

        Args:
            features: Features of the images to compare with the members' data [n, B, features].
            only: Compare with the data of only this member of the block, so that n is 1. None: of all.
        """
        data, count = (self._data, self._count) if only is None else (self._data[[only]], self._count[[only]])
        distance = torch.cdist(features, data)  # [n, B, T]
        beyond = torch.arange(data.shape[1], device=data.device) >= count[:, None]  # repeated rows
        distance = distance.masked_fill(beyond[:, None, :], torch.inf)
        near = distance.topk(min(1 + NEXT, data.shape[1]), dim=2, largest=False).values
        following = near[:, :, 1:]
        known = torch.isfinite(following)
        mean = following.masked_fill(~known, 0.0).sum(2) / known.sum(2)  # NaN if the member has only one image
        return near[:, :, 0] / mean.clamp(min=1e-12)

    def differs(self, features: Tensor) -> Tensor:
        """Return how often the nearest neighbour of a real image or sample is of the same kind, real or sample [n].

        Args:
            features: Features of the samples [n, 64, features]. They are compared with the same number of real images.
        """
        both = torch.cat([self._shown, features], 1)  # [n, 128, features]
        distance = torch.cdist(both, both)
        distance[:, :LOOK_SAMPLES, :LOOK_SAMPLES].masked_fill_(self._same, torch.inf)
        distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        real = torch.arange(2 * LOOK_SAMPLES, device=both.device) < LOOK_SAMPLES
        return (real[distance.argmin(2)] == real).double().mean(1)

    def _line(self, prepared: PreparedHerd, member: int) -> Tensor:
        """Return the value of `relative`, as a scalar, that 5 % of the held-out images of the member's class are below.

        A sample below it counts as a copy. NaN if the class has too few held-out images.
        """
        data = prepared.dataset
        rows = held_out_rows(prepared, prepared.own[self.members.start + member], 500)
        if len(rows) < _FEW:
            return torch.tensor(torch.nan, device=self._data.device, dtype=torch.float64)
        x = torch.from_numpy(data.x_test[rows]).double().flatten(1)
        x = to_model(x, data).to(self._data.device)
        return self.relative(self.features(x)[None], member)[0].quantile(BY_CHANCE)


def look_work(shape: tuple[int, ...], images: int) -> float:
    """Return the operations of a look at one member, in addition to those of its nets: projections and distances.

    Args:
        images: The number of images in the data set: a member may see all of them.
    """
    pixels = int(np.prod(shape))
    features = min(pixels, _FEATURES)
    distances = LOOK_SAMPLES * min(images, _MOST) + (2 * LOOK_SAMPLES) ** 2
    projected = LOOK_SAMPLES * (pixels if pixels > _FEATURES else 0) + LOOK_SAMPLES * _SKETCH
    return 2.0 * features * (distances + projected)


def recall(state: State, remembered: State | None) -> None:
    """Copy the tensors of a checkpoint into the state. Tensors that the checkpoint does not have keep their values."""
    for name in state.keys() & (remembered or {}).keys():
        saved = (remembered or {})[name]
        if saved.shape != state[name].shape:
            raise UserError(f"the checkpoint does not fit its recipe: {name} has another shape.")
        state[name].copy_(saved)


def returns(snapshots: Tensor) -> Tensor:
    """Return each member's relative distance from where it was before [N]: near 0 if its samples cycle, otherwise up to 1.

    A visit is a series of earlier snapshots near the newest one; it ends when the member is far away again. Its
    distance is that of its nearest snapshot. A member that cycles makes several visits, and one that only turns back
    makes one, so the result is the distance of the second nearest visit. It is divided by the member's typical distance
    from the newest snapshot. It is 1 if the member hardly moved or made fewer than two
    visits, and NaN if its newest snapshot is not finite.

    Args:
        snapshots: Sketches of the members' samples at the last K looks [N, K, sketch], the newest first.

    >>> turn = torch.arange(24) * 0.7
    >>> circle, line = torch.stack([turn.cos(), turn.sin()], 1), torch.stack([turn, turn], 1)
    >>> there_and_back = torch.stack([(turn - 8).abs(), turn * 0], 1)
    >>> [round(v, 2) for v in returns(torch.stack([circle, line, there_and_back])).tolist()]
    [0.03, 1.0, 1.0]
    """
    distance = (snapshots[:, 1:] - snapshots[:, :1]).norm(dim=2).cpu().numpy()  # [N, K - 1], by lag
    known = np.isfinite(distance)
    here = torch.isfinite(snapshots[:, 0]).all(1)
    ordered = np.sort(np.where(known, distance, np.inf), 1)
    middle = np.maximum(known.sum(1) - 1, 0) // 2  # The median ignores a few outliers.
    typical = np.take_along_axis(ordered, middle[:, None], 1)[:, 0]
    moves = (typical >= _AWAY) & np.isfinite(typical)
    ratio = np.where(known, distance, np.inf) / np.where(moves, typical, 1.0)[:, None]
    # A visit lasts until the member is away again. The current one, from lag 0 on, does not count.
    away, visit = np.zeros(len(ratio), bool), np.full(len(ratio), np.inf)
    best = np.full((len(ratio), 2), np.inf)  # the two nearest visits
    for lag in range(ratio.shape[1]):
        gone = ratio[:, lag] >= _GONE
        best = np.sort(np.column_stack([best, np.where(gone, visit, np.inf)]), 1)[:, :2]
        away |= gone
        visit = np.where(gone, np.inf, np.where(away, np.minimum(visit, ratio[:, lag]), np.inf))
    second = np.sort(np.column_stack([best, visit]), 1)[:, 1]
    nearness = torch.from_numpy(np.where(moves, np.minimum(second, 1.0), 1.0))
    return torch.where(here, nearness, torch.nan)


def below(a: Tensor, b: Tensor) -> Tensor:
    """Return the probability [n] that a random value of a is below one of b, for a, b [n, B]; ties count half.

    The result is NaN if a row of either is not finite.

    >>> below(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 3.0]])).tolist()
    [0.875]
    """
    difference = b[:, :, None].double() - a[:, None, :].double()
    largest = torch.maximum(a.abs().amax(1), b.abs().amax(1)).double()[:, None, None]
    sign = torch.sign(difference.masked_fill(difference.abs() <= _ROUNDING * largest, 0.0))
    whole = torch.isfinite(a).all(1) & torch.isfinite(b).all(1)
    return torch.where(whole, (sign.mean((1, 2)) + 1) / 2, torch.nan)


def _or_inf(values: Tensor) -> Tensor:
    """Return the values with infinity in place of those that are not finite: states with NaN cannot be compared."""
    return torch.where(torch.isfinite(values), values, torch.inf)


def _gaussian(inputs: int, outputs: int) -> Tensor:
    """Return a random projection, float64 [inputs, outputs], that preserves distances in the mean; the same in every run."""
    generator = torch.Generator().manual_seed(inputs)
    result: Tensor = torch.randn(inputs, outputs, generator=generator).double() / outputs**0.5
    return result
