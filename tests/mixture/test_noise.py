"""Noise of samples: scaled by a truncation, and walked from one seed to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ganherd
from ganherd.mixture.mixture import Mixture
from ganherd.mixture.mixture_noise import path_between


@pytest.fixture(scope="module")
def mixture(run: Path) -> Mixture:
    return ganherd.load(run)


def test_a_truncation_of_one_changes_nothing_and_a_lower_one_lowers_the_variety(mixture: Mixture) -> None:
    plain = mixture.sample(128, label="one", seed=3)
    assert (mixture.sample(128, label="one", seed=3, truncation=1.0).x == plain.x).all()
    spread = [mixture.sample(128, label="one", seed=3, truncation=scale).x.std(0).mean() for scale in (0.05, 0.5, 1.0)]
    assert spread[0] < spread[1] < spread[2]


def test_a_walk_begins_and_ends_at_the_first_samples_of_its_seeds(mixture: Mixture) -> None:
    walk = mixture.walk(70, (4, 9), label="one")  # more frames than a batch
    assert walk.x.shape[0] == 70 and set(walk.member) == {1} and set(walk.y) == {1}
    for frame, seed in ((0, 4), (-1, 9)):
        end = mixture.sample(1, label="one", seed=seed).x[0]
        assert np.abs(walk.x[frame].astype(int) - end.astype(int)).max() <= 1
    steps = np.abs(np.diff(walk.x.astype(int), axis=0)).max((1, 2, 3))
    whole = np.abs(walk.x[0].astype(int) - walk.x[-1].astype(int)).max()
    assert steps.max() < max(whole, 8)  # no jump
    same = mixture.walk(5, (4, 4), label="one").x
    assert (same == same[0]).all()


def test_the_first_seed_of_a_walk_draws_its_member(mixture: Mixture) -> None:
    for seed in range(6):
        member, y = mixture.routes(1, None, seed)
        walk = mixture.walk(2, (seed, 99))
        assert set(walk.member) == set(member.tolist()) and set(walk.y) == set(y.tolist())


def test_normal_noise_keeps_its_length_on_the_way_and_uniform_noise_goes_straight() -> None:
    first, last = torch.randn(2, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    arc = path_between(first, last, 9, is_normal=True)
    assert torch.allclose(arc[0], first) and torch.allclose(arc[-1], last)
    assert (arc.norm(dim=1) / first.norm() - 1).abs().max() < 0.1
    straight = path_between(first, last, 9, is_normal=False)
    assert torch.allclose(straight[4], (first + last) / 2) and straight[4].norm() < 0.8 * first.norm()
    assert torch.allclose(path_between(first, first, 3, is_normal=True), first.expand(3, -1))
