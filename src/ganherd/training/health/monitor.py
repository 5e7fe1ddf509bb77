"""Look at all members every k steps, on fixed noise and data: cheap scores from which alarms are raised.

Members are looked at as they train (their own weights, not the running average; batch norm as in a step), nothing of
them is changed, and what is remembered between looks lies in tensors [N, …] that are part of every checkpoint.

Looks are computed in float64, whatever the precision of the training is. So the engine, the ranks and which members happen to be
computed together make a difference of rounding only, and none to the alarms.

- `spread`: standard deviation of the samples' pixels by that of the member's data; 1 is as varied as the data.
- `returns`: how near the samples on the same noise came back, twice, to where they were; 0 is the same again.
- `tells`: how often the discriminator ranks a real image above a sample (ties half); 0.5 is a coin.
- `differs`: how often the nearest neighbour of an image or sample is of its own kind; 0.5 where nothing can tell them.
- `copies`: the share of samples that lie as near to ONE training image as only 5 % of held-out images do.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from ganherd.herd import rng
from ganherd.herd.breeds import Breed
from ganherd.herd.lowering.network import logits_of, member_call
from ganherd.herd.rng import Streams
from ganherd.herd.state import Blueprint, State, buffers_of, members_of
from ganherd.metrics.memorisation import BY_CHANCE, NEXT
from ganherd.training.recording.preview import at_once
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import UserError
from ganherd.util.memory import is_out_of_memory

SCORES = ("spread", "returns", "tells", "differs", "copies")
IMAGES = 64  # samples, and real images, of each member
KEPT = 32  # snapshots of each member
_FEATURES = 64  # numbers that stand for an image; smaller images stand for themselves
_SKETCH = 64  # numbers that stand for all samples of a member at one look
_AWAY = 0.15  # it moves where its typical distance is this part of that between two sets of its data
_GONE = 0.8  # it is away from here at this part of its typical distance
_MOST = 2000  # rows of the data that stand for a member's
_FEW = 10  # held-out images below which copies cannot be told
# Logits that differ by less than this, relative to the largest, count as equal: rounding errors would order them.
_ROUNDING = 1e-9


class Monitor:
    """Look at all members on fixed noise and data. What is remembered between looks is saved with every checkpoint."""

    def __init__(self, assembly: PreparedHerd, remembered: State | None = None) -> None:
        self._herd, self._assembly = assembly.herd, assembly
        n = self._herd.num_members
        self.state: State = {
            "watch.born": torch.zeros(n, dtype=torch.int64),  # the step of its first life, or of its last repair
            "watch.at": torch.full((n,), -1, dtype=torch.int64),  # the step of the last look
            "watch.scores": torch.full((n, len(SCORES)), torch.inf, dtype=torch.float64),  # inf: not known
            "watch.peak": torch.zeros(n, dtype=torch.float64),  # the widest spread so far
            "watch.sketch": torch.full((n, KEPT, _SKETCH), torch.inf, dtype=torch.float64),  # the newest first
        }
        recall(self.state, remembered)
        self.seconds = 0.0  # spent with looking, by this process
        own = self._herd.state["g.params"].dtype
        # how nets can be called, the best way first: a net may be one that only one member, or only its own precision, can call
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
        everyones = self._assembly.ranks.all_gather(self.state["watch.scores"])
        found = torch.where(torch.isfinite(everyones), everyones, torch.nan)
        return {name: found[:, i].tolist() for i, name in enumerate(SCORES)}

    def forget(self, member: int, step: int) -> None:
        """Forget what was seen of a member that was repaired."""
        for name, value in self.state.items():
            value[member] = {"watch.born": step, "watch.at": -1, "watch.peak": 0.0}.get(name, torch.inf)

    def look(self, step: int) -> None:
        """Look at all members at once, and put what is seen into the state."""
        began = time.perf_counter()
        seen, sketch = self._seen()
        kept = self.state["watch.sketch"]
        kept[:, 1:] = kept[:, :-1].clone()
        kept[:, 0] = _or_inf(sketch)
        seen["returns"] = returns(kept)
        self.state["watch.scores"].copy_(_or_inf(torch.stack([seen[name] for name in SCORES], 1)))
        self.state["watch.at"].fill_(step)
        peak, spread = self.state["watch.peak"], seen["spread"]
        peak.copy_(torch.where(torch.isfinite(spread), torch.maximum(peak, spread), peak))
        self.seconds += time.perf_counter() - began

    # -- the look ---------------------------------------------------------------------------------------------------

    def _seen(self) -> tuple[dict[str, Tensor], Tensor]:
        """(scores [N] by name, sketches [N, sketch]), on the host."""
        if not self._blocks:
            pixels = int(np.prod(self._assembly.dataset.shape))
            projection = None if pixels <= _FEATURES else _gaussian(pixels, _FEATURES).to(self._herd.device)
            mixing = _gaussian(IMAGES * min(pixels, _FEATURES), _SKETCH).to(self._herd.device)
            cuts = self._herd.blocks(max(1, at_once(self._herd) // 2))  # float64 takes twice the memory
            self._blocks = [_Fixed(self._assembly, cut, breed, projection, mixing) for cut, breed in cuts]
        parts = [self._seen_of(block) for block in self._blocks]
        seen = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
        return seen, seen.pop("sketch")

    @torch.no_grad()
    def _seen_of(self, fixed: _Fixed) -> dict[str, Tensor]:
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
        """Call all members' nets as a step does, and return float64; what they do to their buffers is thrown away."""
        given = (*inputs, y) if net.takes_label else inputs
        rows, buffers = net.views(state[f"{kind}.params"]), buffers_of(state, kind)
        ways = self._ways[net]
        while True:
            dtype, mapped = ways[0]
            batched = tree_map(lambda v: v.to(dtype) if v.is_floating_point() else v, (rows, buffers, keys, given))  # noqa: B023
            try:
                return _called(net, batched, mapped).double()
            except RuntimeError as error:
                if len(ways) == 1 or is_out_of_memory(error):
                    raise
                del ways[0]


def _called(net: Blueprint, batched: tuple[Any, ...], mapped: bool) -> Tensor:
    """[n, B, …] from parameters, buffers, keys and inputs [n, …]; `mapped`: all members at once."""

    def call(*own: Any) -> Tensor:
        params, buffers, key, inputs = own
        return logits_of(member_call(net, params, buffers, key, *inputs)[0])

    members = len(batched[2])
    if mapped and members > 1:
        return vmap(call)(*batched)
    return torch.stack([call(*tree_map(lambda value: value[m], batched)) for m in range(members)])  # noqa: B023


class _Fixed:
    """What never changes about a block of members: noise, data, and how far apart held-out images lie."""

    def __init__(
        self, assembly: PreparedHerd, members: slice, breed: Breed, projection: Tensor | None, mixing: Tensor
    ) -> None:
        herd, self.members, self.breed = assembly.herd, members, breed
        self._projection, self.mixing = projection, mixing
        device, feed = herd.device, herd.feed
        seed, slot = (herd.state[f"set.{k}"].cpu().numpy()[members] for k in ("seed", "slot"))
        keys = rng.keys(np.zeros(len(seed), np.int64), seed, slot)  # without its life: the noise outlives a repair
        dtype = herd.state["g.params"].dtype
        shape, prior = (IMAGES, herd.rules.latent), herd.rules.prior
        self.z = Streams(keys, 0).prior((rng.PREVIEW,), shape, prior, dtype, herd.priors(members)).to(device)
        inside = [torch.from_numpy(rng.keys(keys, rng.PREVIEW, rng.INSIDE, call)) for call in range(3)]
        self.keys = [each.to(device) for each in inside]
        # rows of the data that stand for each member's: all of them, or so many that they fit
        most = max(256, min(_MOST, 200_000 // (assembly.among or assembly.size)))
        own = [_evenly(feed.member_rows(m), most) for m in range(members.start, members.stop)]
        self._count = torch.tensor([len(rows) for rows in own], device=device)  # [n]
        width = max(len(rows) for rows in own)
        self.rows = torch.from_numpy(np.stack([np.resize(rows, width) for rows in own])).to(device)  # [n, T]
        shown = [np.resize(_evenly(np.arange(len(rows)), IMAGES), IMAGES) for rows in own]
        column = torch.from_numpy(np.stack(shown)).to(device)  # [n, 64]
        self.shown = (torch.arange(len(own), device=device)[:, None], column)
        features, std, variance = [], [], []
        for rows, count in zip(self.rows, self._count.tolist(), strict=True):
            x = feed.gather(rows[None])[0][0].flatten(1).double()  # [T, pixels], of one member at a time
            features.append(self.features(x))
            std.append(x[:count].std(0, unbiased=False).mean())
            variance.append(features[-1][:count].var(0, unbiased=False).sum())
        self._data = torch.stack(features)  # [n, T, features]
        self.std = torch.stack(std).clamp(min=1e-12)
        self.scale = (2 * IMAGES * torch.stack(variance)).sqrt().clamp(min=1e-12)  # between two sets of its data
        picked = self.rows[self.shown]
        self._same = picked[:, :, None] == picked[:, None, :]  # a row that is shown twice is no neighbour of itself
        self._shown = self._data[self.shown]
        self.line = torch.full((len(own),), torch.nan, device=device, dtype=torch.float64)  # [n] below it lies a copy
        self.line = torch.stack([self._line(assembly, m) for m in range(len(own))])

    def features(self, flat: Tensor) -> Tensor:
        """[…, pixels] -> […, features]: distances between images survive a random projection."""
        return flat if self._projection is None else flat @ self._projection

    def relative(self, features: Tensor, only: int | None = None) -> Tensor:
        """[n, B] distance to the nearest training image by the mean of those to the next ones."""
        data, count = (self._data, self._count) if only is None else (self._data[[only]], self._count[[only]])
        distance = torch.cdist(features, data)  # [n, B, T]
        beyond = torch.arange(data.shape[1], device=data.device) >= count[:, None]  # repeated rows
        distance = distance.masked_fill(beyond[:, None, :], torch.inf)
        near = distance.topk(min(1 + NEXT, data.shape[1]), dim=2, largest=False).values
        following = near[:, :, 1:]
        known = torch.isfinite(following)
        mean = following.masked_fill(~known, 0.0).sum(2) / known.sum(2)  # NaN where it has one image only
        return near[:, :, 0] / mean.clamp(min=1e-12)

    def differs(self, features: Tensor) -> Tensor:
        """[n] accuracy of the nearest neighbour among real images and samples, each left out in turn."""
        both = torch.cat([self._shown, features], 1)  # [n, 128, features]
        distance = torch.cdist(both, both)
        distance[:, :IMAGES, :IMAGES].masked_fill_(self._same, torch.inf)
        distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        real = torch.arange(2 * IMAGES, device=both.device) < IMAGES
        return (real[distance.argmin(2)] == real).double().mean(1)

    def _line(self, assembly: PreparedHerd, member: int) -> Tensor:
        """The relative distance that 5 % of the held-out images of its kind lie below."""
        data, label = assembly.dataset, int(assembly.label[assembly.own[self.members.start + member]])
        rows = np.arange(len(data.x_test)) if label < 0 else np.flatnonzero(data.y_test == label)
        if len(rows) < _FEW:
            return self.line[member]
        x = torch.from_numpy(data.x_test[_evenly(rows, 500)]).double().flatten(1)
        x = ((x - data.offset) / data.scale).to(self._data.device)
        return self.relative(self.features(x)[None], member)[0].quantile(BY_CHANCE)


def look_work(shape: tuple[int, ...], images: int) -> float:
    """Return the operations of a look at one member, in addition to those of its nets: projections and distances.

    Args:
        images: Of the data set, of which a member may have all.
    """
    pixels = int(np.prod(shape))
    features = min(pixels, _FEATURES)
    distances = IMAGES * min(images, _MOST) + (2 * IMAGES) ** 2
    projected = IMAGES * (pixels if pixels > _FEATURES else 0) + IMAGES * _SKETCH
    return 2.0 * features * (distances + projected)


def recall(state: State, remembered: State | None) -> None:
    """What a checkpoint remembers; one of an older version remembers nothing."""
    for name in state.keys() & (remembered or {}).keys():
        found = (remembered or {})[name]
        if found.shape != state[name].shape:
            raise UserError(f"the checkpoint does not fit its recipe: {name} has another shape.")
        state[name].copy_(found)


def returns(kept: Tensor) -> Tensor:
    """[N] from snapshots [N, K, sketch], the newest first: how near it came, for the second time, to where it is now,
    after it had been away in between; by its typical distance. 1 where it hardly moved, or was not here twice before.

    >>> turn = torch.arange(24) * 0.7
    >>> circle, line = torch.stack([turn.cos(), turn.sin()], 1), torch.stack([turn, turn], 1)
    >>> there_and_back = torch.stack([(turn - 8).abs(), turn * 0], 1)
    >>> [round(v, 2) for v in returns(torch.stack([circle, line, there_and_back])).tolist()]
    [0.03, 1.0, 1.0]
    """
    distance = (kept[:, 1:] - kept[:, :1]).norm(dim=2).cpu().numpy()  # [N, K - 1], by lag
    known = np.isfinite(distance)
    here = torch.isfinite(kept[:, 0]).all(1)
    ordered = np.sort(np.where(known, distance, np.inf), 1)
    middle = np.maximum(known.sum(1) - 1, 0) // 2  # the median: a few stray looks are no journey
    typical = np.take_along_axis(ordered, middle[:, None], 1)[:, 0]
    moves = (typical >= _AWAY) & np.isfinite(typical)
    ratio = np.where(known, distance, np.inf) / np.where(moves, typical, 1.0)[:, None]
    # a visit lasts until it is away again; the one that it is in now, from lag 0 on, does not count
    away, visit = np.zeros(len(ratio), bool), np.full(len(ratio), np.inf)
    best = np.full((len(ratio), 2), np.inf)  # the two nearest visits
    for lag in range(ratio.shape[1]):
        gone = ratio[:, lag] >= _GONE
        best = np.sort(np.column_stack([best, np.where(gone, visit, np.inf)]), 1)[:, :2]
        away |= gone
        visit = np.where(gone, np.inf, np.where(away, np.minimum(visit, ratio[:, lag]), np.inf))
    second = np.sort(np.column_stack([best, visit]), 1)[:, 1]
    found = torch.from_numpy(np.where(moves, np.minimum(second, 1.0), 1.0))
    return torch.where(here, found, torch.nan)


def below(a: Tensor, b: Tensor) -> Tensor:
    """[n] P(a < b) + P(a = b) / 2 for a, b [n, B]; NaN where one of them is.

    >>> below(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 3.0]])).tolist()
    [0.875]
    """
    difference = b[:, :, None].double() - a[:, None, :].double()
    largest = torch.maximum(a.abs().amax(1), b.abs().amax(1)).double()[:, None, None]
    sign = torch.sign(difference.masked_fill(difference.abs() <= _ROUNDING * largest, 0.0))
    whole = torch.isfinite(a).all(1) & torch.isfinite(b).all(1)
    return torch.where(whole, (sign.mean((1, 2)) + 1) / 2, torch.nan)


def _or_inf(values: Tensor) -> Tensor:
    """What is not finite as infinity: the state has no NaN, so that two of it can be compared."""
    return torch.where(torch.isfinite(values), values, torch.inf)


def _evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, from all over."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def _gaussian(inputs: int, outputs: int) -> Tensor:
    """Return float64 [inputs, outputs]: the same random projection in every run, which keeps distances in the mean."""
    generator = torch.Generator().manual_seed(inputs)
    result: Tensor = torch.randn(inputs, outputs, generator=generator).double() / outputs**0.5
    return result
