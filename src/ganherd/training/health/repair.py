"""Repair a member after an alarm: roll it back, give it fresh weights or a neighbour's, or end the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ganherd.herd.state import finite_members, take_
from ganherd.runs import checkpoint
from ganherd.training.health.alarms import TRY, WHY
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.errors import RunFailed
from ganherd.util.files import JsonObject

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


def repair(trainer: Trainer, member: int, what: str, policy: str) -> None:
    """Repair one member by policy. It draws from new random streams afterwards; no other member is changed.

    All ranks call this with the same arguments. The rank that has the member repairs it and sends the details to the others.

    Args:
        what: The name of the alarm, one of `ALARMS`.
        policy: `tell` (do nothing), `stop` (end the run), `rollback` (continue from the last checkpoint with half the
            learning rates), `reseed` (fresh weights) or `neighbour` (copy the weights of another member).
    """
    prepared, state, ranks = trainer.prepared, trainer.state, trainer.ranks
    name = prepared.name_of(member)
    is_spent = state.repairs[member] >= trainer.schedule.settings.repair.limit
    is_vital = what in ("nan", "diverged")  # with any other alarm the member can still train
    if policy == "stop" or (policy != "tell" and is_spent and is_vital):
        when = f"at step {trainer.step:,}, after {state.repairs[member]} repairs"
        ranks.finish(RunFailed(f"{name} cannot continue: {WHY[what]} {when}; {TRY[what]}."))
    if policy == "tell" or is_spent:
        return
    source = _neighbour(trainer, member) if policy == "neighbour" else None
    if policy == "neighbour" and source is None:
        trainer.progress.say(f"{name}: {WHY[what]}, and no other member is well: it continues as it is.")
        return
    trainer.strategy.on_health_check(trainer.step, None)
    row, facts, life = ranks.local_row(member), {}, 0
    if source is not None:
        facts = _copy(prepared, member, source)
    if row is not None:
        trainer.notify("on_repair", row)
        life = int(prepared.herd.state["set.life"][row]) + 1
        if policy == "rollback":
            facts = _roll_back(trainer, member, row)
        elif policy == "reseed":
            _reseed(prepared, member, row, life)
        prepared.herd.state["set.life"][row] = life
        state.monitor.forget(row, trainer.step)
    facts, life = ranks.from_owner(member, [facts, life])
    then = {
        "rollback": f"it continues from step {facts.get('from_step')} with half its learning rate",
        "reseed": "it starts again with fresh weights",
        "neighbour": f"it continues with the weights of {prepared.name_of(facts.get('from_member', 0))}",
    }[policy]
    state.repairs[member] += 1
    state.tally.forget(member, trainer.step)
    state.alarms.forget(member)
    state.convergence.forget(member, trainer.step)
    trainer.preview.forget()
    trainer.event("repair", member=member, name=name, reason=WHY[what], policy=policy, **facts, life=life)
    trainer.progress.repaired(member)
    trainer.progress.say(f"{name}: {WHY[what]} at step {trainer.step:,}; {then}.")


def _roll_back(trainer: Trainer, member: int, row: int) -> JsonObject:
    """Roll a member back to the last regular checkpoint, halve its learning rates, and return facts for the event.

    An older checkpoint is only used if that one is damaged: a resumed run must choose the same, and old ones may be
    deleted.
    """
    last_good, state = trainer.state.last_good, trainer.herd.state
    assert last_good is not None  # step 0 is saved before the first step
    rates = {key: float(state[f"set.{key}"][row]) / 2 for key in ("lr_g", "lr_d")}
    trainer.checkpointer.flush(trainer)
    number = trainer.prepared.number_of(member)
    good, damaged = checkpoint.newest(trainer.folder.checkpoints, trainer.herd.nets, [number], last_good)
    for sentence in damaged:
        trainer.progress.say(f"{sentence}; the checkpoint before it is used.")
    take_(state, good.state, [row], [0])
    for key, rate in rates.items():
        state[f"set.{key}"][row] = rate
    return {"from_step": good.step, **rates}


def _reseed(prepared: PreparedHerd, member: int, row: int, life: int) -> None:
    """Give a member fresh weights and optimiser states; its settings stay.

    Args:
        life: The number of repairs of the member, this one included. It selects the random stream of the weights.
    """
    state = prepared.herd.breed_of(row).view(prepared.herd.state)
    own = {name: value[[row]] for name, value in state.items() if name.startswith("set.")}
    take_(state, prepared.fresh_member(member, life) | own, [row], [0])


def _neighbour(trainer: Trainer, member: int) -> int | None:
    """Return the next member of the same group that is well and has the same kind of generator; None if none does."""
    prepared, herd, ranks = trainer.prepared, trainer.herd, trainer.ranks
    members, slot = prepared.group_members, member % prepared.group_members
    good = ranks.all_gather(finite_members(herd.state, herd.infinite_buffers))
    prior = ranks.all_gather(herd.state.get("set.prior", torch.zeros(herd.num_members)))
    breed = herd.breeds.of(prepared.seats[member].slot)
    for away in range(1, members):
        other = member - slot + (slot + away) % members
        is_alike = herd.breeds.of(prepared.seats[other].slot) is breed and prior[other] == prior[member]
        if is_alike and good[other] and not trainer.state.alarms.is_ill(other):
            return other
    return None


def _copy(prepared: PreparedHerd, member: int, source: int) -> JsonObject:
    """Copy the nets and optimiser states of the member `source` to `member`, and return the facts for the event.

    The member keeps its settings and its data.
    """
    ranks = prepared.ranks
    nets = {name: value for name, value in prepared.herd.state.items() if not name.startswith("set.")}
    wanted = [[source] if member in own else [] for own in ranks.placement.ranks]
    rows = ranks.member_comm.fetch(nets, ranks.placement, wanted)
    if (row := ranks.local_row(member)) is not None:
        take_(nets, rows, [row], [0])
    return {"from_member": source}
