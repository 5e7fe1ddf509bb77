"""What follows an alarm: nothing but the word, a roll back, fresh weights, a neighbour's weights, or the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ganherd.herd.state import Seat, finite, new_state, take_
from ganherd.runs import checkpoint
from ganherd.training import snapshot
from ganherd.training.health.alarms import TRY, WHY
from ganherd.training.setup.assemble import makers
from ganherd.util.errors import RunFailed

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


def repair(trainer: Trainer, member: int, what: str, policy: str) -> None:
    """Acts on one member as the recipe says. Its new life has streams of its own; no other member is touched.

    All ranks come here, and know the same of it; the one that the member lives on repairs it and tells the others how.
    """
    name, settings = trainer.assembly.name_of(member), trainer.settings.repair
    spent = trainer.repairs[member] >= settings.limit
    vital = what in ("nan", "diverged")  # a member that is ill otherwise can go on, and the herd with it
    if policy == "stop" or (policy != "tell" and spent and vital):
        spoken = f"at step {trainer.step}, after {trainer.repairs[member]} repairs"
        trainer.ranks.finish(RunFailed(f"{name} cannot go on: {WHY[what]} {spoken}; {TRY[what]}."))
    if policy == "tell" or spent:
        return
    if policy == "neighbour" and (source := _neighbour(trainer, member)) is None:
        trainer.progress.say(f"{name}: {WHY[what]}, and no other member is well: it goes on as it is.")
        return
    trainer.strategy.on_health_check(trainer.step, None)
    row, facts, life = trainer.ranks.local_row(member), {}, 0
    if policy == "neighbour":
        assert source is not None
        facts = _copy(trainer, member, source)
    if row is not None:
        if trainer.mark is not None:
            trainer.mark.spare(row, trainer.herd.state)
        life = int(trainer.herd.state["set.life"][row]) + 1
        if policy == "rollback":
            facts = _roll_back(trainer, member, row)
        elif policy == "reseed":
            _reseed(trainer, member, row, life)
        trainer.herd.state["set.life"][row] = life
        trainer.tally.sums[:, row] = 0.0
        trainer.watch.forget(row, trainer.step)
    facts, life = trainer.ranks.from_owner(member, [facts, life])
    then = {
        "rollback": f"it goes on from step {facts.get('from_step')} with half its learning rate",
        "reseed": "it starts anew with fresh weights",
        "neighbour": f"it goes on with the weights of {trainer.assembly.name_of(facts.get('from_member', 0))}",
    }[policy]
    trainer.repairs[member] += 1
    trainer.alarms.forget(member)
    trainer.rest.forget(member, trainer.step)
    trainer.preview.forget()
    trainer.event("repair", member=member, name=name, reason=WHY[what], policy=policy, **facts, life=life)
    trainer.progress.repaired(member)
    trainer.progress.say(f"{name}: {WHY[what]} at step {trainer.step}; {then}.")


def _roll_back(trainer: Trainer, member: int, row: int) -> dict[str, Any]:
    """The last checkpoint that was due: older ones may be there or not, so a resumed run could not choose them again."""
    assert trainer.last_good is not None  # step 0 is saved before the first step
    state = trainer.herd.state
    rates = [float(state[key][row]) for key in ("set.lr_g", "set.lr_d")]
    snapshot.settle(trainer)
    number = trainer.assembly.number_of(member)
    good, damaged = checkpoint.newest(trainer.folder.checkpoints, trainer.blueprints, [number], trainer.last_good)
    for sentence in damaged:
        trainer.progress.say(f"{sentence}; the checkpoint before it is used.")
    take_(state, good.state, [row], [0])
    state["set.lr_g"][row], state["set.lr_d"][row] = rates[0] / 2, rates[1] / 2
    return {"from_step": good.step, "lr_g": rates[0] / 2, "lr_d": rates[1] / 2}


def _reseed(trainer: Trainer, member: int, row: int, life: int) -> None:
    """Weights drawn as at the start of a run, from the stream of its new life; its settings stay."""
    assembly, state = trainer.assembly, trainer.herd.breed_of(row).view(trainer.herd.state)
    seat = Seat(assembly.seats[member].seed, assembly.seats[member].slot, life)
    data = assembly.dataset
    # trusted: a net of the user's own was built by `assemble` already, with leave
    make_g, make_d = makers(assembly.recipe, data.shape, len(data.labels), trust_code=True, slot=seat.slot)
    fresh = new_state(make_g, make_d, [seat], {}, state["g.params"].dtype, "g.ema" in state)[2]
    kept = {name: value[[row]] for name, value in state.items() if name.startswith("set.")}
    take_(state, {**kept, **{k: v for k, v in fresh.items() if k not in kept}}, [row], [0])


def _neighbour(trainer: Trainer, member: int) -> int | None:
    """The next member of the same replica that is well, and whose generator is of the same kind."""
    assembly, herd = trainer.assembly, trainer.herd
    members, slot = assembly.members, member % assembly.members
    good = trainer.ranks.all_gather(finite(herd.state))
    prior = trainer.ranks.all_gather(herd.state.get("set.prior", torch.zeros(herd.size)))
    breed = herd.breeds.of(assembly.seats[member].slot)
    for away in range(1, members):
        other = member - slot + (slot + away) % members
        alike = herd.breeds.of(assembly.seats[other].slot) is breed and prior[other] == prior[member]
        if alike and good[other] and not trainer.alarms.is_ill(other):
            return other
    return None


def _copy(trainer: Trainer, member: int, source: int) -> dict[str, Any]:
    """Its nets with their optimiser; seat and settings are the member's own."""
    nets = {name: value for name, value in trainer.herd.state.items() if not name.startswith("set.")}
    placement = trainer.ranks.placement
    wanted = [[source] if member in own else [] for own in placement.ranks]
    found = trainer.ranks.member_comm.fetch(nets, placement, wanted)
    if (row := trainer.ranks.local_row(member)) is not None:
        take_(nets, found, [row], [0])
    return {"from_member": source}
