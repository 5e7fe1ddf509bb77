"""The engine's choice: a measurement of seconds on the machine at hand, made once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ganherd.herd.checks.module_copies import in_short
from ganherd.herd.engine.engines import Herd, Plan, copied, members_that_fit, on_device, one_of_each, rate
from ganherd.herd.state import bases
from ganherd.herd.step.step import SUMS, Step
from ganherd.recipe.schema import EngineConfig as Settings
from ganherd.recipe.schema import parse_bytes
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.memory import advice, available_memory, is_out_of_memory, reason
from ganherd.util.paths import cache_home

_SECONDS = 0.4  # for each candidate
_MOST = 60.0  # seconds for all candidates on a CPU, beyond which those that are left are not measured
_FEW = 64  # members, beyond which a loop on a GPU is hopeless: a step of it would take longer than all that is measured
_AT_ONCE = 1e-9  # seconds after which a measurement that only has to succeed ends
_WORTH = 0.8  # fewer threads are taken where they reach this part of the highest rate


def choose(herd: Herd, settings: Settings, say: Callable[[str], None]) -> Plan:
    """The fastest plan that the settings leave open."""
    if why := cannot_be_fused(herd):
        if settings.name in ("fused", "graph"):
            raise UserError(f"engine.name is {settings.name}, but the nets cannot be fused ({why}): set it to loop.")
        if settings.name == "auto":
            say(f"the nets cannot be fused ({why}), so the members are trained one after another.")
        settings = settings.model_copy(update={"name": "loop"})
        _try_step(herd, mapped=False)
    if settings.name == "graph" and not herd.feed.resident:
        raise UserError(
            "engine.name is graph, but the data does not fit on the device and is streamed: take fused or auto."
        )
    chunk = settings.chunk or _chunk(herd, settings)
    names = [settings.name] if settings.name != "auto" else ["loop", "fused"]
    threads = [settings.threads] if settings.threads else sorted({1, torch.get_num_threads()})
    if herd.device.type == "cuda":
        threads = threads[-1:]
        whole = chunk >= herd.size and not herd.pace  # a graph holds the addresses of the whole state
        can_capture = whole and herd.feed.resident  # and its data must lie on the device
        if settings.name == "auto":
            names = [*(["loop"] if herd.size <= _FEW else []), "fused", *(["graph"] if can_capture else [])]
    plans = [Plan(name, min(chunk, herd.size), count, str(herd.device)) for name in names for count in threads]
    if settings.chunk and plans[-1].name != "loop":
        _refuse_chunk(herd, plans[-1])
    if len(plans) == 1:
        return plans[0]
    memory = cache_home() / "engines.json"
    identity = _identity(herd, plans)
    known = _read(memory)
    for plan in plans:
        if known.get(identity) == [plan.name, plan.chunk, plan.threads]:
            return plan
    say(f"measuring {len(plans)} ways to run this herd on this machine, once…")
    rates: dict[Plan, float] = {}
    began = time.perf_counter()
    for plan in reversed(plans):  # what is likely to win goes first, so that the others need not take their time
        rates[plan] = rate(herd, plan, _SECONDS, max(rates.values(), default=0.0))
        if herd.device.type == "cpu" and time.perf_counter() - began > _MOST:
            break
    best = _best(rates)
    for plan in plans:
        found = (
            f"{rates[plan]:,.3g} member-steps/s" if plan in rates else "not measured, since a step takes so long here"
        )
        say(f"  {plan.describe(herd.size)}: {found}{'  <- chosen' if plan is best else ''}")
    if len(rates) == len(plans):
        _write(memory, {**_read(memory), identity: [best.name, best.chunk, best.threads]})
    return best


def _best(rates: dict[Plan, float]) -> Plan:
    """The fastest, but with no more threads than pay: where another process wants a core, waiting for threads costs dearly."""
    enough = _WORTH * max(rates.values())
    fewest = min(plan.threads for plan, found in rates.items() if found >= enough)
    return max((plan for plan in rates if plan.threads == fewest), key=lambda plan: rates[plan])


def cannot_be_fused(herd: Herd) -> str:
    """Why not: a net may do what only one member at a time can, as a choice that depends on its input. Empty if it can."""
    try:
        _try_step(herd, mapped=True)
    except UserError:
        raise
    except Exception as error:  # a user's module under vmap may raise anything
        return in_short(error)
    return ""


def _try_step(herd: Herd, mapped: bool) -> None:
    """Train one member of each breed for one step, on copies; refuse a member that does not fit into the memory."""
    for block, breed in one_of_each(herd):
        try:
            state = copied(herd, block, breed)
            own = bases(state)
            sums = torch.zeros(len(SUMS), 1, dtype=torch.float64, device=herd.device)
            batches = partial(herd.feed.batch_at, block, own)
            Step(breed.g, herd.d, herd.rules, mapped)(state, batches, on_device(own, herd.device), sums, 0)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            smaller = advice("Lower train.batch, use smaller nets, or free memory there")
            raise UserError(
                f"one member does not fit into the memory of {herd.device} while it trains ({reason(error)}). {smaller}."
            ) from error


def _refuse_chunk(herd: Herd, plan: Plan) -> None:
    """Refuse a chunk that the recipe names if a step with it, on copies, does not fit into the memory of the device."""
    try:
        rate(herd, plan, seconds=_AT_ONCE)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"engine.chunk {plan.chunk} does not fit into the memory of {herd.device} while it trains ({reason(error)}). "
            "Lower it, or leave it out: ganherd then takes as many members as fit."
        ) from error


def _chunk(herd: Herd, settings: Settings) -> int:
    """Return how many members train on the device at once: 1 if the measurement, which holds on to all it sees, runs out."""
    try:
        return members_that_fit(herd, _limit(herd, settings))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if herd.device.type == "cuda":
        torch.cuda.empty_cache()
    return 1


def _limit(herd: Herd, settings: Settings) -> int:
    """Return the bytes that members may take on the device."""
    if settings.memory is not None:
        return parse_bytes(settings.memory)
    if herd.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(herd.device)
        return int(0.8 * free)
    return available_memory() // 2


def _identity(herd: Herd, plans: list[Plan]) -> str:
    """What the choice depends on: the machine, the nets, the rules and the sizes."""
    gpu = torch.cuda.get_device_name(herd.device) if herd.device.type == "cuda" else ""
    rules = {name: value for name, value in vars(herd.rules).items() if name != "game"} | {
        "game": [herd.rules.game.names, herd.rules.game.d_name]
    }
    parts = [
        _WORTH,
        platform.node(), platform.machine(), os.cpu_count(), gpu, torch.__version__, herd.size, list(herd.feed.x.shape[1:]),
        [(str(breed.g.module), len(breed.slots)) for breed in herd.breeds.all], str(herd.d.module), rules,
        *herd.pace, [(plan.name, plan.chunk, plan.threads) for plan in plans],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _read(path: Path) -> dict[str, list[object]]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _write(path: Path, known: dict[str, list[object]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(known).encode(), sync=False)
    except OSError:
        pass  # a cache that cannot be written costs only the next measurement
