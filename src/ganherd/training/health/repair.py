"""Repair a member after an alarm: roll it back, give it fresh weights or a neighbour's, or end the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ganherd.herd.state import Seat, finite_members, new_state, take_
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.strategies.strategy import Strategy
from ganherd.training.checkpointing import Checkpointer
from ganherd.training.health.alarms import TRY, WHY
from ganherd.training.recording.preview import Preview
from ganherd.training.run_state import RunState
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd, makers
from ganherd.util.errors import RunFailed
from ganherd.util.files import JsonObject

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Repairer:
    """Repair members by policy. A repaired member draws from new random streams; no other member is changed."""

    def __init__(
        self,
        prepared: PreparedHerd,
        folder: RunFolder,
        state: RunState,
        schedule: Schedule,
        strategy: Strategy,
        preview: Preview,
        checkpointer: Checkpointer,
    ) -> None:
        self._prepared, self._folder, self._state, self._schedule = prepared, folder, state, schedule
        self._strategy, self._preview, self._checkpointer = strategy, preview, checkpointer

    def repair(self, trainer: Trainer, member: int, what: str, policy: str) -> None:
        """Repair one member.

        All ranks call this with the same arguments. The rank that has the member repairs it and sends the details to the others.

        Args:
            what: The alarm.
            policy: One of `tell`, `stop`, `rollback`, `reseed` and `neighbour`.
        """
        prepared, state, ranks = self._prepared, self._state, self._prepared.ranks
        name = prepared.name_of(member)
        is_spent = state.repairs[member] >= self._schedule.settings.repair.limit
        is_vital = what in ("nan", "diverged")  # with any other alarm the member can still train
        if policy == "stop" or (policy != "tell" and is_spent and is_vital):
            when = f"at step {trainer.step}, after {state.repairs[member]} repairs"
            ranks.finish(RunFailed(f"{name} cannot continue: {WHY[what]} {when}; {TRY[what]}."))
        if policy == "tell" or is_spent:
            return
        if policy == "neighbour" and (source := self._neighbour(member)) is None:
            trainer.progress.say(f"{name}: {WHY[what]}, and no other member is well: it continues as it is.")
            return
        self._strategy.on_health_check(trainer.step, None)
        row, facts, life = ranks.local_row(member), {}, 0
        if policy == "neighbour":
            assert source is not None
            facts = self._copy(member, source)
        if row is not None:
            trainer.notify("on_repair", row)
            life = int(prepared.herd.state["set.life"][row]) + 1
            if policy == "rollback":
                facts = self._roll_back(trainer, member, row)
            elif policy == "reseed":
                self._reseed(member, row, life)
            prepared.herd.state["set.life"][row] = life
            state.tally.sums[:, row] = 0.0
            state.monitor.forget(row, trainer.step)
        facts, life = ranks.from_owner(member, [facts, life])
        then = {
            "rollback": f"it continues from step {facts.get('from_step')} with half its learning rate",
            "reseed": "it starts again with fresh weights",
            "neighbour": f"it continues with the weights of {prepared.name_of(facts.get('from_member', 0))}",
        }[policy]
        state.repairs[member] += 1
        state.alarms.forget(member)
        state.convergence.forget(member, trainer.step)
        self._preview.forget()
        trainer.event("repair", member=member, name=name, reason=WHY[what], policy=policy, **facts, life=life)
        trainer.progress.repaired(member)
        trainer.progress.say(f"{name}: {WHY[what]} at step {trainer.step}; {then}.")

    def _roll_back(self, trainer: Trainer, member: int, row: int) -> JsonObject:
        """Take the last checkpoint that was due. Older ones may be pruned, so a resumed run could not choose them again."""
        assert self._state.last_good is not None  # step 0 is saved before the first step
        state, nets = self._prepared.herd.state, self._prepared.herd.nets
        rates = [float(state[key][row]) for key in ("set.lr_g", "set.lr_d")]
        self._checkpointer.flush(trainer)
        number = self._prepared.number_of(member)
        good, damaged = checkpoint.newest(self._folder.checkpoints, nets, [number], self._state.last_good)
        for sentence in damaged:
            trainer.progress.say(f"{sentence}; the checkpoint before it is used.")
        take_(state, good.state, [row], [0])
        state["set.lr_g"][row], state["set.lr_d"][row] = rates[0] / 2, rates[1] / 2
        return {"from_step": good.step, "lr_g": rates[0] / 2, "lr_d": rates[1] / 2}

    def _reseed(self, member: int, row: int, life: int) -> None:
        """Draw weights as at the start of a run, from the stream of the member's new life; its settings stay."""
        prepared = self._prepared
        state = prepared.herd.breed_of(row).view(prepared.herd.state)
        seat = Seat(prepared.seats[member].seed, prepared.seats[member].slot, life)
        data = prepared.dataset
        # trusted: `assemble` was allowed to build a net of the user's own already
        make_g, make_d = makers(prepared.recipe, data.shape, len(data.labels), trust_code=True, slot=seat.slot)
        fresh = new_state(make_g, make_d, [seat], {}, state["g.params"].dtype, "g.ema" in state)[2]
        own = {name: value[[row]] for name, value in state.items() if name.startswith("set.")}
        take_(state, {**own, **{k: v for k, v in fresh.items() if k not in own}}, [row], [0])

    def _neighbour(self, member: int) -> int | None:
        """Return the next member of the same replica that is well and has a generator of the same kind."""
        prepared, herd, ranks = self._prepared, self._prepared.herd, self._prepared.ranks
        members, slot = prepared.members, member % prepared.members
        good = ranks.all_gather(finite_members(herd.state))
        prior = ranks.all_gather(herd.state.get("set.prior", torch.zeros(herd.num_members)))
        breed = herd.breeds.of(prepared.seats[member].slot)
        for away in range(1, members):
            other = member - slot + (slot + away) % members
            is_alike = herd.breeds.of(prepared.seats[other].slot) is breed and prior[other] == prior[member]
            if is_alike and good[other] and not self._state.alarms.is_ill(other):
                return other
        return None

    def _copy(self, member: int, source: int) -> JsonObject:
        """Copy the nets of another member with their optimiser; seat and settings stay the member's own."""
        ranks = self._prepared.ranks
        nets = {name: value for name, value in self._prepared.herd.state.items() if not name.startswith("set.")}
        wanted = [[source] if member in own else [] for own in ranks.placement.ranks]
        rows = ranks.member_comm.fetch(nets, ranks.placement, wanted)
        if (row := ranks.local_row(member)) is not None:
            take_(nets, rows, [row], [0])
        return {"from_member": source}
