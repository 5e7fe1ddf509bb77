"""Choose the plan of a run: its engine, the number of members (GANs) in a block, and the number of threads.

On a CPU, plans are measured for a few seconds, and the choice is cached for later runs. On a GPU, a rule chooses, so
that training starts at once. `loop` trains one member after another, `fused` all members of a block at once, and
`graph` replays a CUDA graph.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ganherd.herd.checks.module_copies import short_message
from ganherd.herd.engine.device_memory import release_cached
from ganherd.herd.engine.engine_trials import (
    measure_rate,
    memory_per_member,
    one_member_per_breed,
    train_copy,
    trial_engine,
)
from ganherd.herd.engine.engines import CompileReport, Plan, StackedHerd, new_plan, no_report
from ganherd.herd.state import bytes_per_member, members_of
from ganherd.recipe.schema import parse_bytes
from ganherd.recipe.sections.train_config import EngineConfig as Settings
from ganherd.util.errors import UserError
from ganherd.util.files import write_cache
from ganherd.util.memory import advice, available_memory, is_out_of_memory, reason
from ganherd.util.meter import Detail
from ganherd.util.paths import cache_home
from ganherd.util.registry import ENGINES

_SECONDS = 0.4  # for each measured plan
_MAX_SECONDS = 60.0  # on a CPU, no further plan is measured after this time
_MOST_MEASURED = 256  # on a CPU, plans are measured with at most this many members
_RAREST_R1 = 4  # while plans are measured, R1 acts at least at each 4th step; rarer R1 would make measurements longer
_IMMEDIATELY = 1e-9  # seconds; so short that a measurement ends after one period, for one that only has to succeed
_GOOD_ENOUGH = 0.8  # fewer threads are preferred if they reach this share of the highest rate
# A herd on the host has at least this many blocks: the copies of the first and the last block are not hidden by
# training.
_FEWEST_BLOCKS = 16
_SMALLEST_BLOCK = 64  # members; smaller blocks, which would train more slowly, are only made if memory requires it


def choose(
    herd: StackedHerd, settings: Settings, log: Callable[[str], None], report: CompileReport = no_report
) -> Plan:
    """Return the fastest plan that the settings allow: by a rule on a GPU, from the cache or by measurement on a CPU.

    Args:
        herd: The herd to train; it does not change.
        settings: The section `engine` of the recipe.
        log: Gets lines for the user.
        report: Gets the progress if kernels are compiled.

    Raises:
        UserError: If the settings ask for an engine that cannot run this herd, or if a member does not fit into memory.
    """
    if settings.name != "auto" and ENGINES[settings.name].needs_whole_herd and not herd.feed.resident:
        raise UserError(
            f"engine.name is {settings.name}, but the data does not fit on the device and is streamed: use fused or auto."
        )
    on_gpu = herd.device.type == "cuda"
    if on_gpu and herd.has_own_nets and (plan := _tried(herd, settings, log, report)):
        return plan
    # All packaged nets can be fused. On a GPU the trial would compile kernels, and `_chunk` trains a member anyway.
    if (herd.has_own_nets or not (on_gpu or settings.chunk is None)) and (why := cannot_be_fused(herd)):
        if settings.name != "auto" and not ENGINES[settings.name].one_by_one:
            raise UserError(f"engine.name is {settings.name}, but the nets cannot be fused ({why}): set it to loop.")
        if settings.name == "auto":
            log(f"the nets cannot be fused ({why}), so the members are trained one after another.")
            settings = settings.model_copy(update={"name": "loop"})
        _try_step(herd, fused=False)
    plans = _candidates(herd, settings)
    if settings.chunk and plans[-1].name != "loop":
        _refuse_chunk(herd, plans[-1])
    if len(plans) == 1:
        return plans[0]
    return _fastest(herd, plans, log)


def _fastest(herd: StackedHerd, plans: list[Plan], log: Callable[[str], None]) -> Plan:
    """Return the fastest of several plans, from the cache or by measurement."""
    cache = cache_home() / "engines.json"
    identity = _identity(herd, plans)
    cached = _read(cache).get(identity)
    for plan in plans:
        if cached == [plan.name, plan.chunk, plan.threads]:
            return plan
    log(Detail(f"measuring {len(plans)} ways to run this herd on this machine, once…"))
    rates = _measure(herd, plans)
    best = _best(rates)
    for plan in plans:
        rate = f"{rates[plan]:,.3g} member-steps/s" if plan in rates else "not measured, because a step is slow here"
        log(Detail(f"  {plan.describe(herd.num_members)}: {rate}{'  <- chosen' if plan is best else ''}"))
    if len(rates) == len(plans):
        write_cache(cache, {**_read(cache), identity: [best.name, best.chunk, best.threads]})
    return best


def _candidates(herd: StackedHerd, settings: Settings) -> list[Plan]:
    """Return the plans to choose from, which the settings and the device allow, the likely slowest first.

    On a GPU there is only one, because it is known which is the fastest there.
    """
    chunk = settings.chunk or _chunk(herd, settings)
    names = [settings.name] if settings.name != "auto" else ["loop", "fused"]
    threads = [settings.threads] if settings.threads else sorted({1, torch.get_num_threads()})
    if herd.device.type == "cuda":
        threads = threads[-1:]
        if settings.name == "auto":
            # A graph holds the addresses of the state, or of the block that trains, and of the data.
            can_capture = not herd.pace and herd.feed.resident
            names = ["graph" if can_capture else "fused"]
    chunk = min(chunk, herd.num_members)
    return [new_plan(name, chunk, count, herd.device) for name in names for count in threads]


def _tried(herd: StackedHerd, settings: Settings, log: Callable[[str], None], report: CompileReport) -> Plan | None:
    """Return the plan for users' own nets on a GPU, if a trial of it succeeds; otherwise None.

    The trial trains a copy of some members, because a user's net may do things that a CUDA graph cannot capture or that
    cannot be fused. If `graph` was chosen automatically and fails, `fused` is tried. Successful trials are cached.
    """
    (plan,) = _candidates(herd, settings)
    if plan.one_by_one:
        return None
    cache = cache_home() / "engines.json"
    identity = _identity(herd, [plan])
    if _read(cache).get(identity) == [plan.name, plan.chunk, plan.threads]:
        return plan  # the trial has succeeded before
    why = _failure(herd, plan, report)
    if not why:
        write_cache(cache, {**_read(cache), identity: [plan.name, plan.chunk, plan.threads]})
        return plan
    if settings.name == "auto" and plan.name == "graph":
        fused = replace(plan, name="fused")
        if not _failure(herd, fused, report):
            log(f"the nets cannot be captured in a CUDA graph ({why}), so the host launches every step.")
            return fused
    return None


def _failure(herd: StackedHerd, plan: Plan, report: CompileReport) -> str:
    """Return why a plan cannot train (a copy of) the herd, as a short message; empty if it can."""
    try:
        trial_engine(_few_blocks(herd, plan), plan).prepare(report)
    except UserError:
        raise
    except Exception as error:  # a user's module may raise anything
        return short_message(error)
    return ""


def _measure(herd: StackedHerd, plans: list[Plan]) -> dict[Plan, float]:
    """Return the rate of each plan, in steps of one member per second.

    On a CPU, plans are left out if the measurement takes too long.
    """
    rates: dict[Plan, float] = {}
    began, herd = time.perf_counter(), measured_members(herd)
    herd = replace(herd, rules=replace(herd.rules, r1_every=min(herd.rules.r1_every, _RAREST_R1)))
    for plan in reversed(plans):  # the likely winners first, so that slow plans can be given up early
        rates[plan] = measure_rate(herd, plan, _SECONDS, max(rates.values(), default=0.0))
        if herd.device.type == "cpu" and time.perf_counter() - began > _MAX_SECONDS:
            break
    return rates


def measured_members(herd: StackedHerd) -> StackedHerd:
    """Return the herd with which rates are measured: the whole herd, or only the first members of a large one on a CPU.

    A step of thousands of members takes minutes on a CPU, and the member-steps per second hardly depend on the number
    of members.
    """
    is_plain = herd.device.type == "cpu" and herd.feed.resident and herd.opponents is None
    if not is_plain or herd.num_members <= _MOST_MEASURED:
        return herd
    return _first_members(herd, _MOST_MEASURED)


def _few_blocks(herd: StackedHerd, plan: Plan) -> StackedHerd:
    """Return a herd of the members of the first two blocks, to try a plan without a copy of the whole herd.

    The whole herd is returned if it has several breeds (each has other nets), opponents, or data that is not on the
    device.
    """
    is_alike = len(herd.breeds.all) == 1 and herd.opponents is None and herd.feed.resident
    if not is_alike or herd.num_members <= 2 * plan.chunk:
        return herd
    return _first_members(herd, 2 * plan.chunk)


def _first_members(herd: StackedHerd, number: int) -> StackedHerd:
    """Return a herd of the first `number` members; storage is shared."""
    feed = herd.feed.select(range(number))
    return replace(herd, state=members_of(herd.state, slice(number)), feed=feed, pace=herd.pace[:number])


def _best(rates: dict[Plan, float]) -> Plan:
    """Return the plan to use, given the rates of all plans.

    This is the fastest plan with the fewest threads with which any plan reaches `_GOOD_ENOUGH` of the best rate. More
    threads cost more than they gain if other processes need cores, too, because every step waits for its slowest
    thread.
    """
    enough = _GOOD_ENOUGH * max(rates.values())
    fewest = min(plan.threads for plan, rate in rates.items() if rate >= enough)
    return max((plan for plan in rates if plan.threads == fewest), key=lambda plan: rates[plan])


def cannot_be_fused(herd: StackedHerd) -> str:
    """Return why the nets cannot run for all members at once, e.g. because of control flow that depends on inputs.

    Empty if they can. This is tried with a copy of one member of each breed.
    """
    try:
        _try_step(herd, fused=True)
    except UserError:
        raise
    except Exception as error:  # a user's module under vmap may raise anything
        return short_message(error)
    return ""


def _try_step(herd: StackedHerd, fused: bool) -> None:
    """Train a copy of one member of each breed for one step; raise `UserError` if a member does not fit into memory."""
    smaller = advice("Lower train.batch, use smaller nets, or free memory there")
    with _refuse_if_too_large("one member", herd.device, f"{smaller}."):
        for block, breed in one_member_per_breed(herd):
            train_copy(herd, block, breed, fused)


def _refuse_chunk(herd: StackedHerd, plan: Plan) -> None:
    """Raise `UserError` if the device has too little memory for the recipe's `engine.chunk`; tried on a copy."""
    smaller = "Lower it, or leave it out: ganherd then takes as many members as fit."
    with _refuse_if_too_large(f"engine.chunk {plan.chunk}", herd.device, smaller):
        measure_rate(_few_blocks(herd, plan), plan, seconds=_IMMEDIATELY)


@contextmanager
def _refuse_if_too_large(subject: str, device: torch.device, smaller: str) -> Iterator[None]:
    """Convert out-of-memory errors inside this context to a `UserError`.

    Args:
        subject: What needs the memory; the beginning of the message.
        smaller: A sentence that says what the user can change; the end of the message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        problem = f"{subject} does not fit into the memory of {device} while it trains ({reason(error)})"
        raise UserError(f"{problem}. {smaller}") from error


def _chunk(herd: StackedHerd, settings: Settings) -> int:
    """Return how many members may train on the device at once, from measuring the memory of one member.

    If the measurement itself runs out of memory, but a member can be trained, 1 is returned.
    """
    try:
        limit, each = _limit(herd, settings), _bytes_per_member(herd)
        if limit // each >= herd.num_members or herd.device.type == "cpu":
            return max(1, min(herd.num_members, limit // each))
        # The block that arrives and the one that leaves take room for their state, too.
        return _block_size(herd.num_members, limit // (each + 2 * bytes_per_member(herd.state)))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    release_cached(herd.device)
    _try_step(herd, fused=False)
    return 1


def _block_size(num_members: int, most: int) -> int:
    """Return the number of members in a block, for a herd that does not fit on a GPU. Blocks are equal if possible.

    Args:
        most: The largest number of members that fits.

    >>> _block_size(5000, 2000), _block_size(1000, 900), _block_size(1000, 10), _block_size(1000, 0)
    (250, 50, 10, 1)
    """
    largest = max(1, min(most, max(_SMALLEST_BLOCK, -(-num_members // _FEWEST_BLOCKS))))
    fewest = -(-num_members // largest)
    number = next((blocks for blocks in range(fewest, 2 * fewest) if num_members % blocks == 0), fewest)
    return -(-num_members // number)


def _bytes_per_member(herd: StackedHerd) -> int:
    """Return the bytes that a member takes while it trains; on a GPU from the cache if they were measured before."""
    if herd.device.type != "cuda":
        return memory_per_member(herd)
    cache, identity = cache_home() / "engines.json", _identity(herd, [])
    known = _read(cache).get(identity)
    if isinstance(known, list) and len(known) == 1 and type(known[0]) is int and known[0] > 0:
        return known[0]
    measured = memory_per_member(herd)
    write_cache(cache, {**_read(cache), identity: [measured]})
    return measured


def _limit(herd: StackedHerd, settings: Settings) -> int:
    """Return how many bytes all members on the device may take: the recipe's limit, or a share of the free memory."""
    if settings.memory is not None:
        return parse_bytes(settings.memory)
    if herd.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(herd.device)
        return int(0.8 * free)
    return available_memory() // 2


def _identity(herd: StackedHerd, plans: list[Plan]) -> str:
    """Return the cache's key: a hash of everything that the choice depends on, e.g. machine, nets, rules and sizes."""
    gpu = torch.cuda.get_device_name(herd.device) if herd.device.type == "cuda" else ""
    rules = {name: value for name, value in vars(herd.rules).items() if name != "game"} | {
        "game": [herd.rules.game.names, herd.rules.game.d_name]
    }
    modules = [herd.d.module, *(breed.g.module for breed in herd.breeds.all)]
    facts = [
        _GOOD_ENOUGH, _source_digest(modules),
        platform.node(), platform.machine(), os.cpu_count(), gpu, torch.__version__, herd.num_members, list(herd.feed.x.shape[1:]),
        list(map(str, modules)), [len(breed.slots) for breed in herd.breeds.all], rules,
        *herd.pace, [(plan.name, plan.chunk, plan.threads, plan.operations) for plan in plans],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _source_digest(modules: Sequence[nn.Module]) -> str:
    """Return a hash of the files that define the layers of users' nets.

    If a class has no file, e.g. in a notebook, a random value is returned, so that nothing is found in the cache.
    """
    classes = {type(layer) for module in modules for layer in module.modules()}
    own = [one for one in classes if not one.__module__.startswith(("torch.", "ganherd."))]
    try:
        return hashlib.sha256(b"".join(sorted(Path(inspect.getfile(one)).read_bytes() for one in own))).hexdigest()
    except (OSError, TypeError):
        return secrets.token_hex(16)


def _read(path: Path) -> dict[str, list[object]]:
    """Return the contents of the cache: identity -> [name, chunk, threads] of a plan, or [bytes] of a member.

    Empty if the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
