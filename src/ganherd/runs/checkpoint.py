"""Write and read checkpoints: folders of safetensors and JSON, divided into files by member and checked by sha256.

A checkpoint appears under its name only when it is complete. In shapes, n is the number of members on one rank.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ganherd.comm.ranks import Ranks, run_on_all_ranks
from ganherd.herd.state import ROWS, NamedRows, State, bytes_per_member, from_named_tensors, to_named_tensors
from ganherd.runs.folder import saved_steps
from ganherd.runs.models import CheckpointMeta, TrainerState
from ganherd.runs.records import plain
from ganherd.util import tensor_file
from ganherd.util.errors import UserError
from ganherd.util.files import force_to_disk, read_json

_BLOCK = 64  # members in a file, at most …
_BYTES = 1 << 28  # … and bytes of a file, because its content is built in memory
# A file is damaged if all but the nets' weights and optimiser moments takes more than this many times the bytes of
# these.
_OTHERS = 8
_FILE = re.compile(r"herd-(\d{3,})-(\d{3,})\.safetensors")


class Damaged(Exception):
    """Raised if the content of a checkpoint is not what was written.

    The message names the checkpoint and the reason.
    """


@dataclass(frozen=True)
class Checkpoint:
    """The herd at one step: a checkpoint that was read and verified, or a copy from memory."""

    path: Path  # the folder of the checkpoint; it need not exist if this is a copy from memory
    step: int
    state: State  # tensors [n, …] of the members that were read
    meta: TrainerState  # everything else that a trainer resumes from

    @property
    def saved(self) -> int:
        """Return the step of the newest checkpoint on disk: this checkpoint's own step, unless it is a copy from memory."""
        return self.step if self.meta.saved is None else self.meta.saved


def save(
    folder: Path,
    step: int,
    state: State,
    nets: Mapping[str, NamedRows],
    meta: TrainerState,
    ranks: Ranks | None = None,
) -> Path:
    """Write a checkpoint, and return its folder. A reader sees the whole checkpoint or none.

    Everything is written to a hidden folder and synced to disk, and the folder is then renamed. Each rank writes its own
    members; the first rank renames the folder when all have done so.

    Args:
        folder: The folder of all checkpoints of the run.
        state: Tensors [n, …] of this rank's members.
        step: The step of the run.
        nets: Names and shapes of the parameters of the generators ("g") and of the discriminators ("d").
        meta: What the trainer resumes from in addition to tensors, for the whole herd.
        ranks: The ranks, which all call this. Default: all members are in this process.

    Raises:
        OSError: Some file could not be written; raised on all ranks.
    """
    ranks = ranks or Ranks.single_process(len(state["set.seed"]))
    target = path_of(folder, step)
    aside = folder / f".{target.name}.new"

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()

    def complete() -> None:
        # converted to plain JSON before the sha256 is computed, because readers compute it from that
        names = {"names": sorted(state), "files": dict(sorted(files.items()))}
        known = meta.model_dump(exclude={"saved", "arrived"}, exclude_unset=True)
        whole = plain({**known, "step": step, "members": ranks.num_members, **names})
        _write(aside / "state.json", json.dumps({**whole, "check": _check(whole)}, indent=1).encode())
        force_to_disk(aside)
        if target.exists():  # a step is only saved again if its checkpoint is damaged or replaced on purpose
            remove(target)
        aside.rename(target)
        force_to_disk(folder)

    try:
        ranks.run_io(lambda: begin() if ranks.is_first else None)
        written = ranks.run_io(lambda: _write_members(aside, state, nets, ranks.local_members))
        files = {name: digest for each in written for name, digest in each.items()}
        ranks.run_io(lambda: complete() if ranks.is_first else None)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def _write_members(aside: Path, state: State, nets: Mapping[str, NamedRows], members: Sequence[int]) -> dict[str, str]:
    """Write the files of these members, named after their numbers in the whole herd; return the sha256 of each file."""
    files = {}
    most = max(1, min(_BLOCK, _BYTES // bytes_per_member(state)))
    edges = [row for row in range(1, len(members)) if members[row] != members[row - 1] + 1]
    for start, stop in pairwise([0, *edges, len(members)]):  # a file has members with consecutive numbers
        for first in range(start, stop, most):
            rows = slice(first, min(first + most, stop))
            name = f"herd-{members[rows.start]:03d}-{members[rows.stop - 1]:03d}.safetensors"
            block = to_named_tensors(nets, {k: v[rows] for k, v in state.items()})
            content = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in block.items()})
            files[name] = hashlib.sha256(content).hexdigest()
            _write(aside / name, content)
    return files


def load(path: Path, nets: Mapping[str, NamedRows], members: Sequence[int] | None = None) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: The folder of the checkpoint.
        nets: Names and shapes of the parameters of the generators ("g") and of the discriminators ("d"). If one of the
            two is missing, its tensors are not read.
        members: The members to read; default: all.

    Raises:
        Damaged: The checkpoint is not what was written, or lacks the weights of these nets.
    """
    meta = read_meta(path)
    names = [name for name in meta.names if name[:2] not in ("g.", "d.") or name[0] in nets]
    if missing := [f"{kind}.params" for kind in nets if f"{kind}.params" not in names]:
        raise Damaged(f"{path.name}/state.json names no {' and no '.join(missing)}")
    blocks = []
    for name, digest in meta.files.items():
        match = _FILE.fullmatch(name)
        if not match:
            raise Damaged(f"{path.name} names a file {name!r} that no checkpoint has")
        blocks.append((int(match[1]), int(match[2]), name, digest))
    parts: list[State] = []
    for first, last, name, digest in sorted(blocks):
        rows = None if members is None else [m - first for m in members if first <= m <= last]
        if rows == []:
            continue
        check = partial(_check_shapes, nets, last - first + 1)
        try:
            part = from_named_tensors(nets, tensor_file.read(path / name, digest, check), names)
        except OSError as error:
            raise Damaged(f"{path.name}/{name} cannot be read: {error.strerror}") from error
        except tensor_file.TensorMismatch as error:
            raise Damaged(f"{path.name}/{name} {error}") from error
        except (KeyError, ValueError, RuntimeError, IndexError, TypeError) as error:
            raise Damaged(f"{path.name}/{name} does not hold this herd ({error})") from error
        parts.append(part if rows is None else {k: v[rows] for k, v in part.items()})
    state = {name: torch.cat([part[name] for part in parts]) for name in names}
    if "g.ema" in state:
        state.setdefault("g.ema.t", state["g.adam.t"].clone())  # missing in checkpoints of older versions
    return Checkpoint(path, meta.step, state, meta)


def _check_shapes(nets: Mapping[str, NamedRows], rows: int, tensors: Mapping[str, Tensor]) -> None:
    """Raise `TensorMismatch` unless shapes and types of a file's tensors fit `rows` members of these nets."""
    known, others = 0, 0  # bytes of tensors whose shape follows from the nets, and of all others
    for name, value in tensors.items():
        of_breed = name.count("/") == 2  # a tensor of one breed has rows for some of the members only
        if not value.ndim or (len(value) > rows if of_breed else len(value) != rows):
            raise tensor_file.TensorMismatch(f"does not hold {rows} members: see {name[:80]}")
        whole, _, own = name.partition("/")
        kind, _, what = whole.partition(".")
        if what in ROWS and kind in nets:
            shape = nets[kind].shape_of(own)
            if shape is None or tuple(value.shape[1:]) != shape or not value.is_floating_point():
                raise tensor_file.TensorMismatch(f"does not hold this herd: {name[:80]} has another shape or type")
            known += value.nbytes
        else:
            others += value.nbytes
    if others > _OTHERS * known + _BYTES:
        raise tensor_file.TensorMismatch("does not hold this herd: what it remembers of the members has another shape")


def read_meta(path: Path) -> CheckpointMeta:
    """Read and verify the state.json of a checkpoint, or raise `Damaged`."""
    try:
        content = read_json(path / "state.json")
        check = content.pop("check")
    except OSError as error:
        raise Damaged(f"{path.name}/state.json cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"{path.name}/state.json is not what was written") from error
    if check != _check(content):
        raise Damaged(f"{path.name}/state.json is not what was written (its sha256 differs)")
    try:
        meta = CheckpointMeta.parse(content)
    except ValueError as error:
        raise Damaged(f"{path.name}/state.json is not what ganherd writes ({error})") from None
    if path.name != path_of(path.parent, meta.step).name:
        raise Damaged(f"{path.name}/state.json is of another step, {meta.step}")
    return meta


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def newest(
    folder: Path,
    nets: Mapping[str, NamedRows],
    members: Sequence[int] | None = None,
    not_after: int | None = None,
    records: Mapping[str, Path] | None = None,
) -> tuple[Checkpoint, list[str]]:
    """Return the newest checkpoint that is not damaged, and a sentence for each newer one that is.

    Args:
        nets: The layouts of the nets "g" and "d", which the tensors in a checkpoint are checked against.
        members: The members to read; default: all.
        not_after: Ignore checkpoints of later steps.
        records: The files of metrics and events. A checkpoint also counts as damaged if a file is shorter than it was
            when the checkpoint was saved.

    Raises:
        UserError: There is no checkpoint that is not damaged.
    """
    damaged: list[str] = []
    for step in reversed([step for step in saved_steps(folder) if not_after is None or step <= not_after]):
        try:
            candidate = load(path_of(folder, step), nets, members)
            _check_records(candidate, records or {})
            return candidate, damaged
        except Damaged as error:
            damaged.append(str(error))
    why = f": {damaged[0]}" if damaged else ""
    raise UserError(f"there is no whole checkpoint in {folder}{why}; train again from the start with another --run.")


def newest_of_all(
    folder: Path, nets: Mapping[str, NamedRows], ranks: Ranks, records: Mapping[str, Path]
) -> tuple[Checkpoint, list[str]]:
    """Return the newest checkpoint that is damaged on no rank, and a sentence for each that is damaged on some rank.

    Each rank reads its own members. All ranks call this.
    """
    members = None if ranks.member_comm.world_size == 1 else ranks.local_members
    counted = records if ranks.is_first else {}
    not_after, damaged = None, []
    while True:
        found, sentences = run_on_all_ranks(
            ranks.member_comm, partial(newest, folder, nets, members, not_after, counted)
        )
        damaged += [sentence for own in ranks.all_gather_json(sentences) for sentence in own]
        steps_found = ranks.all_gather_json(found.step)
        if len(set(steps_found)) == 1:
            return found, list(dict.fromkeys(damaged))
        not_after = min(steps_found)


def _check_records(checkpoint: Checkpoint, records: Mapping[str, Path]) -> None:
    """Raise `Damaged` if a file of records is shorter than it was when the checkpoint was saved."""
    for name, path in records.items():
        if (wanted := checkpoint.meta.bytes.get(name)) is None:
            raise Damaged(f"{checkpoint.path.name} does not say how many bytes of {path.name} belong to it")
        there = path.stat().st_size if path.exists() else 0
        if there < wanted:
            raise Damaged(f"{checkpoint.path.name} counts on {wanted:,} bytes of {path.name}, which has only {there:,}")


def prune(folder: Path, keep: int, also: Sequence[int | None]) -> None:
    """Remove the checkpoints that `outdated` returns."""
    for path in outdated(folder, keep, also):
        remove(path)


def outdated(folder: Path, keep: int, also: Sequence[int | None] = ()) -> list[Path]:
    """Return the folders of old checkpoints that can be removed.

    A checkpoint that repairs roll back to, according to a retained one, is retained, too.

    Args:
        keep: The number of newest checkpoints to retain.
        also: Steps of other checkpoints to retain.
    """
    known = saved_steps(folder)
    retained = {*known[max(0, len(known) - keep) :], *also}
    for step in [step for step in known if step in retained]:
        with suppress(Damaged):
            retained.add(read_meta(path_of(folder, step)).last_good)
    return [path_of(folder, step) for step in known if step not in retained]


def sweep(folder: Path) -> None:
    """Remove the hidden folders of checkpoints that a killed process was writing or removing."""
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint.

    It is renamed first: if the process is killed meanwhile, no incomplete checkpoint is left under its name.
    """
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _check(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of state.json, which state.json itself holds as `check`."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    path.write_bytes(content)
    force_to_disk(path)
