"""Checkpoints: safetensors and JSON, cut by member, written aside, checked by sha256, and never half there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ganherd.errors import UserError
from ganherd.herd.state import Blueprint, State, named, unnamed
from ganherd.run.record import plain

_BLOCK = 64  # members in a file
_FOLDER = re.compile(r"step-(\d{8,})")
_FILE = re.compile(r"herd-(\d{3,})-(\d{3,})\.safetensors")


class Damaged(Exception):
    """A checkpoint that is not what was written; the message says which and how."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint that was read and found whole."""

    path: Path
    step: int
    state: State
    facts: dict[str, Any]


def save(folder: Path, step: int, state: State, blueprints: Mapping[str, Blueprint], facts: Mapping[str, Any]) -> Path:
    """Writes everything aside, puts it on the disk, then renames: a reader sees the whole checkpoint or none."""
    target = folder / f"step-{step:08d}"
    aside = folder / f".{target.name}.new"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        files = {}
        size = len(state["set.seed"])
        for first in range(0, size, _BLOCK):
            last = min(first + _BLOCK, size) - 1
            name = f"herd-{first:03d}-{last:03d}.safetensors"
            block = named(blueprints, {k: v[first : last + 1] for k, v in state.items()})
            content = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in block.items()})
            files[name] = hashlib.sha256(content).hexdigest()
            _write(aside / name, content)
        # plain() now, so that the check is over exactly what will be read back
        whole = plain({**facts, "step": step, "members": size, "names": sorted(state), "files": files})
        _write(aside / "state.json", json.dumps({**whole, "check": _check(whole)}, indent=1).encode())
        before = folder / f".{target.name}.old"
        if target.exists():  # the same step again, after a resume
            shutil.rmtree(before, ignore_errors=True)
            target.rename(before)
        aside.rename(target)
        _settle(folder)
        shutil.rmtree(before, ignore_errors=True)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def load(path: Path, blueprints: Mapping[str, Blueprint], members: Sequence[int] | None = None) -> Checkpoint:
    """Reads and verifies a checkpoint, whole or only some members; raises `Damaged`."""
    facts = read_facts(path)
    blocks = []
    for name, digest in facts["files"].items():
        match = _FILE.fullmatch(name)
        if not match:
            raise Damaged(f"{path.name} names a file {name!r} that no checkpoint has")
        first, last = int(match[1]), int(match[2])
        rows = None if members is None else [m - first for m in members if first <= m <= last]
        if rows == []:
            continue
        blocks.append((first, rows, name, digest))
    parts: list[State] = []
    for _, rows, name, digest in sorted(blocks):
        try:
            content = (path / name).read_bytes()
        except OSError as error:
            raise Damaged(f"{path.name}/{name} cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise Damaged(f"{path.name}/{name} is not what was written (its sha256 differs)")
        try:
            part = unnamed(blueprints, safetensors.torch.load(content), facts["names"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise Damaged(f"{path.name}/{name} does not hold this herd ({error})") from error
        parts.append(part if rows is None else {k: v[rows] for k, v in part.items()})
    state = {name: torch.cat([part[name] for part in parts]) for name in facts["names"]}
    return Checkpoint(path, int(facts["step"]), state, facts)


def read_facts(path: Path) -> dict[str, Any]:
    """The JSON half, verified."""
    try:
        facts = json.loads((path / "state.json").read_bytes())
        check = facts.pop("check")
        names_ok = all(isinstance(name, str) for name in facts["names"])
    except OSError as error:
        raise Damaged(f"{path.name}/state.json cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"{path.name}/state.json is not what was written") from error
    if check != _check(facts) or not names_ok:
        raise Damaged(f"{path.name}/state.json is not what was written (its sha256 differs)")
    return dict(facts)


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for p in folder.iterdir() if p.is_dir() and (m := _FOLDER.fullmatch(p.name)))


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def newest(folder: Path, blueprints: Mapping[str, Blueprint]) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint, and a sentence for each newer one that is damaged."""
    damaged: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return load(path_of(folder, step), blueprints), damaged
        except Damaged as error:
            damaged.append(str(error))
    why = f": {damaged[0]}" if damaged else ""
    raise UserError(f"there is no whole checkpoint in {folder}{why}; train again from the start with another --run.")


def prune(folder: Path, keep: int, also: Sequence[int | None]) -> None:
    """Keeps the newest `keep` and those named (the best, the last good one)."""
    known = steps(folder)
    for step in known[:-keep]:
        if step not in also:
            shutil.rmtree(path_of(folder, step), ignore_errors=True)


def _check(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _settle(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
