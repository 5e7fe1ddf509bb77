"""Train a herd in parts (`ganherd train --members 0-9`): separate jobs train some members each, and the last one joins them.

A part is a complete run in RUN/parts/000-009, which is started, stopped and resumed like any other. The job that
finishes the last part joins all of them into RUN, which then equals the run of one process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
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
from ganherd.runs.records import LOOK_SCORES, JsonLinesWriter
from ganherd.training import finish, session
from ganherd.training.finish import Finisher, Product, TrainedRun
from ganherd.training.recording.progress import Progress
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.identity import recorded_streams, refuse_changes
from ganherd.training.setup.member_data import cut
from ganherd.training.variants.joined_sprites import join_sprites
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.files import atomic_write, lock

Lines = Sequence[Mapping[str, Any]]
# How single numbers of the parts' records become one number of the whole run.
_COMBINED: dict[str, Callable[[list[Any]], Any]] = {"seconds": max, "rate": lambda rates: round(sum(rates), 1)}


def train_part(
    recipe: Recipe,
    path: Path,
    members: str,
    quiet: bool = False,
    trust_code: bool = True,
    finishers: Sequence[Finisher] = (),
    began: float | None = None,
    origin: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Train or resume one part of a run, and join all parts if it is the last to finish.

    Args:
        path: The folder of the whole run.
        members: The members of the part, e.g. `0-9`.
        finishers: Work on the mixture of the whole run, for example score it.
        began: When the command was started, on the clock of `time.monotonic`. Default: now.
        origin: The name of the recipe and the settings that replaced its own, for run.json: `recipe` and `changes`.

    Returns:
        The whole run if its parts were joined, otherwise the run of the part, without scores.
    """
    with trust.vouched(recipe) if trust_code else nullcontext():
        data = cut(recipe)
        part = wanted(members, data.size)
        whole = RunFolder(path)
        with _locked(whole):
            facts = {"members": data.size, "data": data.dataset.digest, "streams": rng.version(), **(origin or {})}
            _create_or_check(whole, data.recipe, facts)
            for other in parts(whole):
                if other != part and set(other) & set(part):
                    raise UserError(
                        f"--members {members} and the part {part_name(other)} of {path} have members in common."
                    )
            own = RunFolder(part_path(whole, part))
            begun = own.info_path.exists()
        with rng.using(recorded_streams(whole.info, whole)):
            if not begun:
                named: Any = {"part": part, "began": began, "origin": origin}
                session.train(data.recipe, own.path, quiet=quiet, trust_code=trust_code, **named)
            elif own.info.state != "finished":
                refuse_changes(own.recipe, data.recipe, own)
                session.resume(own.path, (), quiet, trust_code)
            with _locked(whole):
                if unfinished(whole) or whole.info.state == "finished":
                    return TrainedRun(own.path.absolute(), {})
                return join(whole, quiet, trust_code, finishers)


def wanted(members: str, size: int) -> range:
    """Return the members that `--members` names, in a herd of `size` members.

    >>> wanted("0-9", 100), wanted("7", 10)
    (range(0, 10), range(7, 8))
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", members, re.ASCII)
    if not match:
        raise UserError(f"--members {members} is not a member or a range of them: write 0-9, or 7.")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise UserError(f"--members {members}: the lower number comes first: write {last}-{first}.")
    if not first <= last < size:
        raise UserError(f"--members {members}: the herd has {size} members, 0 to {size - 1}.")
    return range(first, last + 1)


# -- joining ------------------------------------------------------------------------------------------------------------


def join(whole: RunFolder, quiet: bool, trust_code: bool, finishers: Sequence[Finisher] = ()) -> TrainedRun:
    """Write the checkpoint, records, sprites, mixture, scores and report of the whole run from those of its parts."""
    each = [(part, RunFolder(part_path(whole, part))) for part in parts(whole)]
    prepared = assemble(whole.recipe, trust_code, begins=False)
    progress = Progress([], quiet)
    progress.say(f"all {prepared.size} members of {whole.path} are trained; making the mixture…")
    checkpoints = [checkpoint.newest(folder.checkpoints, prepared.herd.nets)[0] for _, folder in each]
    for (part, _), one in zip(each, checkpoints, strict=True):
        take_(prepared.herd.state, one.state, part, range(len(part)))
    firsts = [part.start for part, _ in each]
    metrics, events = [], []  # for each part: (lines that belong to its newest checkpoint, lines written after it)
    for (_, folder), one in zip(each, checkpoints, strict=True):
        metrics.append(_by_checkpoint(folder.metrics_path, folder.metrics(), one))
        events.append(_by_checkpoint(folder.events_path, folder.events(), one))
    try:
        lengths = {
            "metrics": _write(whole.metrics_path, *map(joined_metrics, zip(*metrics, strict=True))),
            "events": _write(whole.events_path, *(joined_events(firsts, lines) for lines in zip(*events, strict=True))),
        }
        if len({one.step for one in checkpoints}) == 1:  # otherwise the whole run gets no checkpoint
            _save(whole, prepared, checkpoints, lengths)
        join_sprites(whole, prepared, [folder for _, folder in each])
        step = max(one.step for one in checkpoints)
        infos = [folder.info for _, folder in each]
        own = ("part", "members", "state", "seconds", "step", "origins")
        info = {key: value for key, value in infos[0].as_json().items() if key not in own}
        info |= {"state": "finished", "seconds": max(one.seconds or 0.0 for one in infos), "step": step}
        mixture = finish.make_mixture(prepared, step)
        whole.samples.mkdir(exist_ok=True)
        product = Product(whole, prepared.recipe, prepared.dataset, mixture, progress.say)
        return finish.publish(product, finishers, lambda: whole.write_info(**info))
    except OSError as error:
        raise Interrupted(
            f"{error.strerror} while writing to {whole.path}; the same command joins the parts again."
        ) from error


def joined_metrics(each: Sequence[Lines]) -> Lines:
    """Return the records of the whole run, for those steps of which all parts have a record.

    Lists, which have a number for each member, are joined; `seconds` is the largest, `rate` the sum. Other values, and
    scores of looks at different steps, are left out if the parts differ.

    Args:
        each: The records of each part.

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
                if same_look or key not in LOOK_SCORES:
                    line[key] = [number for value in values for number in value]
            elif key in _COMBINED:
                line[key] = _COMBINED[key](values)
            elif all(value == values[0] for value in values):
                line[key] = values[0]
        out.append(line)
    return out


def joined_events(firsts: Sequence[int], each: Sequence[Lines]) -> Lines:
    """Return the events of all parts, sorted by step, with members numbered as in the whole run.

    An event that names no member gets the key `part`, the number of the part's first member.

    Args:
        firsts: The number of each part's first member in the whole run.
        each: The events of each part.
    """
    out: list[Mapping[str, Any]] = []
    for first, events in zip(firsts, each, strict=True):
        for event in events:
            shift: dict[str, Any] = {key: int(event[key]) + first for key in ("member", "from_member") if key in event}
            out.append({**event, **(shift or {"part": first})})
    return sorted(out, key=lambda event: int(event["step"]))


def _by_checkpoint(path: Path, lines: Lines, last: checkpoint.Checkpoint) -> tuple[Lines, Lines]:
    """Return the lines of a record file that belong to a checkpoint, and those that were written after it.

    Args:
        path: The file.
        lines: Its content.
        last: The checkpoint, which knows the length of the file when it was saved.
    """
    count = path.read_bytes()[: last.meta.bytes[path.stem]].count(b"\n")
    return lines[:count], lines[count:]


def _save(
    whole: RunFolder, prepared: PreparedHerd, checkpoints: list[checkpoint.Checkpoint], lengths: dict[str, int]
) -> None:
    """Save a checkpoint of all members, from which the whole run can be resumed.

    Args:
        checkpoints: The newest checkpoint of each part, all of the same step.
        lengths: The length in bytes of each record file at that step.
    """
    state = {name: torch.cat([one.state[name] for one in checkpoints]) for name in checkpoints[0].state}
    each = [one.meta for one in checkpoints]
    joined = TrainerState(
        sums=[[value for one in each for value in one.sums[row]] for row in range(len(each[0].sums))],
        recorded=min(one.recorded for one in each),
        counted_from=[start for one in each for start in one.counted_from or [one.recorded] * len(one.repairs)],
        last_good=checkpoints[0].step,
        best=None,
        repairs=[count for one in each for count in one.repairs],
        seconds=max(one.seconds for one in each),
        over=each[0].over,
        score=None,
        bytes=lengths,
    )
    checkpoint.save(whole.checkpoints, checkpoints[0].step, state, prepared.herd.nets, joined)


def _write(path: Path, before: Lines, after: Lines) -> int:
    """Write the lines `before`, followed by the lines `after`, and return the length of `before` in bytes."""
    with closing(JsonLinesWriter(path, length=0)) as out:
        for line in before:
            out.write(line)
        length = out.flush()
        for line in after:
            out.write(line)
        return length


# -- the folder of the whole ----------------------------------------------------------------------------------------------


@contextmanager
def _locked(whole: RunFolder) -> Iterator[None]:
    """Lock the parts of a run inside the block: only one job at a time reads or joins them, and the others wait."""
    try:
        whole.path.mkdir(parents=True, exist_ok=True)
        handle = lock(whole.path / ".parts", waits=None)
    except OSError as error:
        raise UserError(f"nothing can be written to the run folder {whole.path}: {error.strerror}.") from error
    with handle:
        yield


def _create_or_check(whole: RunFolder, recipe: Recipe, facts: Mapping[str, Any]) -> None:
    """Create the run that the parts belong to, or check that the existing one has the same recipe and budget.

    Args:
        facts: What run.json of the whole run records.
    """
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
