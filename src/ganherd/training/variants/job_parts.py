"""`ganherd train --members 0-9`: some members of an independent herd, so that jobs which know nothing of each other fill one run.

A part is a run of its own in RUN/parts/000-009, that starts, stops and is resumed like any other. Whichever job finishes the
last part joins them: RUN is then what one process would have made of the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ganherd.herd import rng
from ganherd.herd.state import take_
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, part_name, part_path, parts, unfinished
from ganherd.runs.models import TrainerState
from ganherd.runs.records import JsonLinesWriter
from ganherd.training import finish, session
from ganherd.training.finish import Finisher, Product, Run
from ganherd.training.health.monitor import SCORES
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.identity import recorded_streams, refuse_changes
from ganherd.training.setup.member_data import cut
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.files import atomic_write, lock
from ganherd.util.progress import Progress

Lines = Sequence[Mapping[str, Any]]
_COMBINED: dict[str, Callable[[list[Any]], Any]] = {"seconds": max, "rate": lambda rates: round(sum(rates), 1)}


def train_part(
    recipe: Recipe,
    path: Path,
    members: str,
    quiet: bool = False,
    trust_code: bool = True,
    finishers: Sequence[Finisher] = (),
) -> Run:
    """Train these members' part of the run from where it stopped, and join all parts if it is the last to finish."""
    with trust.vouched(recipe) if trust_code else nullcontext():
        return _train_part(recipe, path, members, quiet, trust_code, finishers)


def _train_part(
    recipe: Recipe, path: Path, members: str, quiet: bool, trust_code: bool, finishers: Sequence[Finisher]
) -> Run:
    made = cut(recipe)
    part = wanted(members, len(made.seats))
    whole = RunFolder(path)
    with _alone(whole):
        facts = {"members": len(made.seats), "data": made.dataset.digest, "streams": rng.version()}
        _found(whole, made.recipe, facts)
        number = recorded_streams(whole.info, whole)
        for other in parts(whole):
            if other != part and set(other) & set(part):
                raise UserError(
                    f"--members {members} and the part {part_name(other)} of {path} have members in common."
                )
        own = RunFolder(part_path(whole, part))
        begun = own.info_path.exists()
    if begun and own.info.state == "finished":
        done = Run(own.path.absolute(), {})
    elif begun:
        refuse_changes(own.recipe, made.recipe, own)
        done = session.resume(own.path, (), quiet, trust_code)
    else:
        with rng.using(number):
            done = session.train(made.recipe, own.path, quiet=quiet, trust_code=trust_code, part=part)
    with _alone(whole), rng.using(number):
        left = unfinished(whole)
        if left or whole.info.state == "finished":
            return done
        return join(whole, quiet, trust_code, finishers)


def wanted(members: str, size: int) -> range:
    """Members of a herd of that size, as people write them.

    >>> wanted("0-9", 100), wanted("7", 10)
    (range(0, 10), range(7, 8))
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", members, re.ASCII)
    if not match:
        raise UserError(f"--members {members} is not a member or a range of them: write 0-9, or 7.")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise UserError(f"--members {members}: the lower number comes first, as {last}-{first}.")
    if not first <= last < size:
        raise UserError(f"--members {members}: the herd has {size} members, 0 to {size - 1}.")
    return range(first, last + 1)


# -- joining ------------------------------------------------------------------------------------------------------------


def join(whole: RunFolder, quiet: bool, trust_code: bool, finishers: Sequence[Finisher] = ()) -> Run:
    """Checkpoint, records, mixture, scores and report of the whole, from those of its parts."""
    each = [(part, RunFolder(part_path(whole, part))) for part in parts(whole)]
    assembly = assemble(whole.recipe, trust_code, begins=False)
    progress = Progress([], quiet)
    progress.say(f"all {assembly.size} members of {whole.path} are trained; making the mixture…")
    found = [checkpoint.newest(folder.checkpoints, assembly.herd.nets)[0] for _, folder in each]
    for (part, _), one in zip(each, found, strict=True):
        take_(assembly.herd.state, one.state, part, range(len(part)))
    firsts = [part.start for part, _ in each]
    metrics = [
        _by_checkpoint(folder.metrics_path, folder.metrics(), one) for (_, folder), one in zip(each, found, strict=True)
    ]
    events = [
        _by_checkpoint(folder.events_path, folder.events(), one) for (_, folder), one in zip(each, found, strict=True)
    ]
    try:
        lengths = {
            "metrics": _write(whole.metrics_path, *(joined_metrics(list(half)) for half in zip(*metrics, strict=True))),
            "events": _write(
                whole.events_path, *(joined_events(firsts, list(half)) for half in zip(*events, strict=True))
            ),
        }
        if len({one.step for one in found}) == 1:  # else members stopped at different steps, and stay in their parts
            _save(whole, assembly, found, lengths)
        step = max(one.step for one in found)
        made = finish.make_mixture(assembly, step)
        made.save(whole.mixture)
        whole.samples.mkdir(exist_ok=True)
        product = Product(whole, assembly.recipe, assembly.dataset, made, progress.say)
        for finisher in finishers:
            finisher.on_mixture(product)
        infos = [folder.info for _, folder in each]
        seconds = max(info.seconds or 0.0 for info in infos)
        own = ("part", "members", "state", "seconds", "step", "origins")
        kept = {key: value for key, value in infos[0].as_json().items() if key not in own}
        whole.write_info(**kept, state="finished", seconds=seconds, step=step)
        for finisher in finishers:
            finisher.on_finished(product)
    except OSError as error:
        raise Interrupted(
            f"{error.strerror} while writing to {whole.path}; the same command joins the parts again."
        ) from error
    return Run(whole.path.absolute(), product.scores)


def joined_metrics(each: list[Lines]) -> Lines:
    """Lines of the steps that all parts have: lists member by member, the slowest part's seconds, all rates together.

    >>> joined_metrics([[{"step": 5, "rate": 2.0, "loss_g": [1.0]}], [{"step": 5, "rate": 3.0, "loss_g": [2.0, 3.0]}]])
    [{'step': 5, 'rate': 5.0, 'loss_g': [1.0, 2.0, 3.0]}]
    """
    by_step = [{int(line["step"]): line for line in lines} for lines in each]
    out = []
    for step in sorted(set.intersection(*(set(lines) for lines in by_step))):
        lines, line = [lines[step] for lines in by_step], dict[str, Any]()
        same_look = len({one.get("looked") for one in lines}) == 1
        for key in lines[0]:
            values: list[Any] = [one.get(key) for one in lines]
            if all(isinstance(value, list) for value in values):
                if same_look or key not in SCORES:
                    line[key] = [number for value in values for number in value]
            elif key in _COMBINED:
                line[key] = _COMBINED[key](values)
            elif all(value == values[0] for value in values):
                line[key] = values[0]
        out.append(line)
    return out


def joined_events(firsts: list[int], each: list[Lines]) -> Lines:
    """All of them by step; members are numbered as in the whole, of which each part has those from its first one on."""
    out: list[Mapping[str, Any]] = []
    for first, events in zip(firsts, each, strict=True):
        for event in events:
            shift: dict[str, Any] = {key: int(event[key]) + first for key in ("member", "from_member") if key in event}
            out.append({**event, **(shift or {"part": first})})
    return sorted(out, key=lambda event: int(event["step"]))


def _by_checkpoint(path: Path, lines: Lines, found: checkpoint.Checkpoint) -> tuple[Lines, Lines]:
    """The lines that belong to a checkpoint, and those that were written after it."""
    count = path.read_bytes()[: found.meta.bytes[path.stem]].count(b"\n")
    return lines[:count], lines[count:]


def _save(
    whole: RunFolder, assembly: PreparedHerd, found: list[checkpoint.Checkpoint], lengths: dict[str, int]
) -> None:
    """A checkpoint of all members, from which the whole can be gone on with."""
    state = {name: torch.cat([one.state[name] for one in found]) for name in found[0].state}
    each = [one.meta for one in found]
    joined = TrainerState(
        sums=[[value for one in each for value in one.sums[row]] for row in range(len(each[0].sums))],
        recorded=min(one.recorded for one in each),
        last_good=found[0].step,
        best=None,
        repairs=[count for one in each for count in one.repairs],
        seconds=max(one.seconds for one in each),
        over=each[0].over,
        score=None,
        bytes=lengths,
    )
    checkpoint.save(whole.checkpoints, found[0].step, state, assembly.herd.nets, joined)


def _write(path: Path, before: Lines, after: Lines) -> int:
    """Both; how many bytes the former are."""
    out = JsonLinesWriter(path, length=0)
    try:
        for line in before:
            out.write(line)
        length = out.flush()
        for line in after:
            out.write(line)
        return length
    finally:
        out.close()


# -- the folder of the whole ----------------------------------------------------------------------------------------------


@contextmanager
def _alone(whole: RunFolder) -> Iterator[None]:
    """One job at a time looks at the parts of a run, or joins them; others wait."""
    try:
        whole.path.mkdir(parents=True, exist_ok=True)
        handle = lock(whole.path / ".parts", waits=None)
    except OSError as error:
        raise UserError(f"nothing can be written to the run folder {whole.path}: {error.strerror}.") from error
    with handle:
        yield


def _found(whole: RunFolder, recipe: Recipe, facts: Mapping[str, Any]) -> None:
    """The run that parts belong to: its recipe is all of theirs."""
    if whole.info_path.exists():
        refuse_changes(whole.recipe, recipe, whole)
        if whole.info.parts is None:
            raise UserError(f"{whole.path} is trained as a whole, without --members: choose another --run.")
        if recipe.train.budget != whole.recipe.train.budget:
            raise UserError(
                f"the parts of {whole.path} have the budget {whole.recipe.train.budget}, not {recipe.train.budget}: give the "
                "same, or choose another --run."
            )
        return
    if [path.name for path in whole.path.iterdir()] != [".parts"]:
        raise UserError(f"{whole.path} exists already, and is no run of parts: choose another --run.")
    atomic_write(whole.recipe_path, recipe_file.dump(recipe))
    (whole.path / "parts").mkdir()
    whole.write_info(**facts, parts=True, state="parts")
