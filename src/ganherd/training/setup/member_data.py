"""Load the data and divide it among all members of a run, before members are placed on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ganherd.data import dataset as source
from ganherd.data import partition as parts
from ganherd.herd.state import Seat
from ganherd.recipe.schema import Recipe
from ganherd.training.variants import finetune
from ganherd.util.errors import UserError


@dataclass(frozen=True)
class MemberData:
    """The members of all replicas, replica by replica, and the data that each of them sees."""

    recipe: Recipe  # completed with the nets of the runs that members start from
    dataset: source.Dataset
    # [N, n_max] the row numbers of each member's data, of which the first `count` are valid; if all members see the
    # same, one row of numbers, broadcast to all members
    index: np.ndarray
    count: np.ndarray  # [N] the number of images that each member sees
    label: np.ndarray  # [N] the class of each member; -1: it has no class
    label_shares: np.ndarray  # [N, classes] the share of each label among the images that each member sees
    seats: list[Seat]  # [N] the seed, the slot (place in the replica) and the trial of each member
    slots: int  # the number of members in one replica of the recipe, of which this run may train only a part
    steps_per_epoch: float  # steps in which the member that `data.epoch` names sees all of its data once
    notes: tuple[str, ...]  # what the user should know

    @property
    def size(self) -> int:
        """The number of members of all replicas, on all ranks."""
        return len(self.seats)

    def select(self, members: Sequence[int]) -> Self:
        """Return the data of only these members, numbered from 0. `steps_per_epoch` stays that of the whole herd."""
        own = list(members)
        seats = [self.seats[member] for member in own]
        return replace(
            self,
            index=self.rows(own),
            count=self.count[own],
            label=self.label[own],
            label_shares=self.label_shares[own],
            seats=seats,
        )

    def rows(self, members: Sequence[int]) -> np.ndarray:
        """Return the row numbers of these members' data [n, n_max]."""
        if self.index.strides[0] == 0:
            return np.broadcast_to(self.index[0], (len(members), self.index.shape[1]))
        return self.index[list(members)]


def cut(recipe: Recipe, begins: bool = True) -> MemberData:
    """Load the data of a recipe and divide it among the members of all replicas.

    Args:
        begins: Whether the run starts with its first step. Then the recipe is first completed with the nets of the runs
            that members start from. False: the recipe is that of a run folder, which is complete.
    """
    recipe = finetune.resolved(recipe) if begins else recipe
    dataset = source.load(recipe.data)
    if not dataset.is_image and (recipe.train.augment or recipe.train.flip):
        raise UserError(
            f"train.augment and train.flip change images, and {dataset.name} has {dataset.kind}: leave them out."
        )
    if not dataset.is_image and any(trial.loss.uses_consistency for trial in recipe.each_trial):
        raise UserError(
            f"loss.consistency_weight compares augmented images, and {dataset.name} has {dataset.kind}: leave it out."
        )
    if recipe.run.validation and not len(dataset.x_test):
        raise UserError(f"run.validation needs held-out data, which {dataset.name} does not have: set data.holdout.")
    seeds, trials = recipe.replica_seeds, recipe.replica_trials
    together = recipe.strategy.settings.group_size
    batch = recipe.train.batch
    of_seed = {
        seed: parts.partition(dataset, recipe.data, recipe.members, batch, seed, together, recipe.herd.per_class)
        for seed in dict.fromkeys(seeds)
    }
    cuts = [of_seed[seed] for seed in seeds]
    members, first = len(cuts[0].count), cuts[0].index
    if first.strides[0] == 0:  # all members see all rows
        index = np.broadcast_to(first[0], (members * len(seeds), first.shape[1]))
    else:
        index = np.concatenate([one.index for one in cuts])
    count = np.concatenate([one.count for one in cuts])
    batches = -(-count // batch)
    whose = {"largest": batches.max(), "smallest": batches.min(), "mean": batches.mean()}[recipe.data.epoch]
    return MemberData(
        recipe,
        dataset,
        index,
        count,
        np.concatenate([one.label for one in cuts]),
        _label_shares(dataset, index, count),
        [Seat(s, slot, trial=t) for s, t in zip(seeds, trials, strict=True) for slot in range(members)],
        members,
        float(whose) / recipe.train.n_critic,
        cuts[0].notes,
    )


def _label_shares(dataset: source.Dataset, index: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the share of each label among the images that each member sees [N, classes]; zeros for data without labels."""
    distinct = index[:1] if index.strides[0] == 0 else index  # one row if all members see the same
    seen = [dataset.y[rows[:number]] for rows, number in zip(distinct, count, strict=False)]
    counts = np.stack([np.bincount(y[y >= 0], minlength=len(dataset.labels)) for y in seen])
    return np.broadcast_to(counts / np.maximum(1, counts.sum(1, keepdims=True)), (len(index), counts.shape[1]))
