"""Read run folders, and check that two of them are the same."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.runs.records import PROCESS_EVENTS

# Two equal runs may differ in what is listed here and in PROCESS_EVENTS, and in nothing else: in metrics.jsonl, events.jsonl
# and state.json the fields that hold wall-clock time,
CLOCK_FIELDS = frozenset({"seconds", "rate", "profile"})
# those that say how the work was divided between processes,
PROCESS_FIELDS = frozenset({"engine", "versions", "host", "hosts"})
# and those of state.json that follow from the length of such lines, or from how members were divided into files.
FILE_FIELDS = frozenset({"bytes", "check", "files"})


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a run folder of an older version."""
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # none before 3.11.4
        packed.extractall(folder)


def arrays(path: str | Path) -> dict[str, Any]:
    """Return the arrays of an .npz file, and close it."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def tensors(checkpoint: Path) -> dict[str, Any]:
    """Return all tensors of a checkpoint, by file and name."""
    from safetensors.torch import load_file

    return {
        f"{file.name}/{k}": v for file in sorted(checkpoint.glob("*.safetensors")) for k, v in load_file(file).items()
    }


def steps(run: Path) -> list[int]:
    """Return the steps of all checkpoints."""
    from ganherd.runs.folder import saved_steps

    return saved_steps(run / "checkpoints")


def last_checkpoint(run: Path) -> Path:
    """Return the folder of the newest checkpoint."""
    return run / "checkpoints" / f"step-{steps(run)[-1]:08d}"


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a .jsonl file; each has to be whole."""
    content = path.read_text()
    assert content.endswith("\n") or not content, f"{path} ends in half a line"
    return [json.loads(line) for line in content.splitlines()]


def history(run: Path) -> list[tuple[str, str]]:
    """Return all metrics and events in order, without the fields and events that depend on the clock or on a resume."""
    kept = []
    for name in ("metrics.jsonl", "events.jsonl"):
        for line in json_lines(run / name):
            if line.get("event") not in PROCESS_EVENTS:
                kept.append((name, json.dumps({k: v for k, v in line.items() if k not in CLOCK_FIELDS})))
    return kept


def assert_same_run(run: Path, undisturbed: Path, sprites: bool = True) -> None:
    """Check that two runs ended with the same herd, bit for bit, and wrote the same lines in the same order.

    Args:
        sprites: Whether they must have saved the same sprites, too.
    """
    assert last_checkpoint(run).name == last_checkpoint(undisturbed).name
    ours, theirs = tensors(last_checkpoint(run)), tensors(last_checkpoint(undisturbed))
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if ours[name].numpy().tobytes() != theirs[name].numpy().tobytes()]
    assert not different, f"after the resume these differ: {different}"
    free = CLOCK_FIELDS | FILE_FIELDS
    facts = [json.loads((last_checkpoint(r) / "state.json").read_text()) for r in (run, undisturbed)]
    ours, theirs = ({key: value for key, value in each.items() if key not in free} for each in facts)
    assert ours == theirs
    assert history(run) == history(undisturbed)
    for name in ("mixture.json", "generators.safetensors"):
        assert (run / "mixture" / name).read_bytes() == (undisturbed / "mixture" / name).read_bytes()
    if sprites:
        saved = [{path.name: path.read_bytes() for path in (each / "sprites").iterdir()} for each in (run, undisturbed)]
        assert saved[0] == saved[1]
    assert json.loads((run / "run.json").read_text())["state"] == "finished"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and modification time of every file."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
