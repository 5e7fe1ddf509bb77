"""Spoilt copies of honest runs: one field of a JSON file, a record, the recipe or a tensor header is changed in each."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ganherd.runs import checkpoint

GONE = object()  # the field is removed


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    GONE, None, True, False, 0, 1, -1, -5, 7, 1.5, -0.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 2**31, 2**63,
    10**30, -(10**30), "", "x", "nan", "1e999", "x" * 100_000, "\x1b[2J\x07", "\u202e", "\x00", "../../../x", "/dev/zero",
    "/etc/passwd", "os:system", "a.pt#sha256=" + "0" * 64, [], [[]], [None], [-1], [10**30], ["x"], [0] * 1000, {}, {"": {}},
    {"a": [1, {"b": None}]}, nested(60),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is changed in which file, and the command that reads it."""

    file: str
    path: tuple[Any, ...]
    value: Any
    command: tuple[str, ...]

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else repr(self.value)[:40]
        return f"{self.file}:{'.'.join(map(str, self.path))}={value} {' '.join(self.command)}"


READS = {  # commands that read each file, those that read most of it first
    "run.json": ("resume", "status", "report", "start_from", "retrain"),
    "recipe.yaml": ("resume", "score", "report", "figures", "grow", "start_from", "weights"),
    "mixture/mixture.json": ("sample", "score", "report", "ensemble", "start_from", "folder", "figures"),
    "mixture/generators.safetensors": ("sample", "score", "ensemble"),
    "state.json": ("resume", "start_from", "retrain"),
    "herd.safetensors": ("resume", "start_from"),
    "metrics.jsonl": ("status", "report", "figures", "resume"),
    "events.jsonl": ("status", "report", "resume"),
    "scores.json": ("report", "score"),
    "pictures/about.json": ("report",),
    "ranks/rank-000.json": ("status", "resume"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "sample": ("sample", "RUN", "-n", "5", "-o", "x.npz"),
    "folder": ("sample", "RUN", "-n", "5", "-o", "images/"),
    "weights": ("sample", "RUN", "-n", "5", "--weights", "data", "-o", "x.npz"),
    "score": ("score", "RUN", "--metrics", "diversity", "--network", "pixels", "-n", "20", "-q"),
    "report": ("report", "RUN", "-q"),
    "status": ("status", "RUN"),
    "figures": ("figures", "RUN", "--only", "generalisation,spread,samples", "-o", "figures", "-q"),
    "ensemble": ("ensemble", "RUN", "--size", "1", "-n", "20", "--network", "pixels", "-q"),
    "resume": ("train", "--resume", "RUN", "--budget", "8steps", "-q"),
    "retrain": ("train", "--resume", "RUN", "--retrain", "0", "--budget", "1steps", "-q"),
    "grow": ("train", "--grow", "RUN", "--budget", "1steps", "--run", "new", "-q"),
    "start_from": ("train", "own.yaml", "--budget", "1steps", "--run", "new", "-q"),
}
DEAR = {"report": 0.15, "figures": 0.15}  # how likely a command is that takes seconds


def cases(run: Path, start: int, stop: int) -> Iterator[Case]:
    """Yield the cases of these numbers; each depends on its number alone."""
    places = {name: [(file, path) for path in fields(read(run, file))] for name, file in files_of(run).items()}
    for number in range(start, stop):
        chance = random.Random(number)
        name = chance.choice(sorted(places))
        file, path = chance.choice(places[name])
        commands = READS[name]
        command = chance.choices(commands, [DEAR.get(one, 1.0) for one in commands])[0]
        yield Case(file, path, chance.choice(VALUES), COMMANDS[command])


def files_of(run: Path) -> dict[str, str]:
    """The files of a run that can be spoilt, by what they are."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    named = {"state.json": newest / "state.json", "herd.safetensors": next(newest.glob("*.safetensors"))}
    found = {name: named.get(name, run / name) for name in READS}
    return {name: str(path.relative_to(run)) for name, path in found.items() if path.is_file()}


def spoil(run: Path, case: Case) -> None:
    """Change the field, and sign what is signed anew: whoever spoils a run can do so too."""
    facts = read(run, case.file)
    path = run / case.file
    write(path, changed(facts, case.path, case.value))
    if path.name == "generators.safetensors":
        sign_mixture(path)
    if path.parent.parent.name == "checkpoints":
        for other in path.parent.parent.iterdir():
            if other != path.parent:  # an older one would be taken in its place
                shutil.rmtree(other)
        sign_checkpoint(path.parent)


def read(run: Path, file: str) -> Any:
    path = run / file
    if path.suffix == ".yaml":
        return yaml.safe_load(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".safetensors":
        return header(path)[0]
    return json.loads(path.read_text())


def write(path: Path, facts: Any) -> None:
    if path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(facts))
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(line) + "\n" for line in facts) if isinstance(facts, list) else json.dumps(facts)
        )
    elif path.suffix == ".safetensors":
        body = header(path)[1]
        head = json.dumps(facts).encode()
        path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    else:
        path.write_text(json.dumps(facts))


def header(path: Path) -> tuple[Any, bytes]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def sign_mixture(tensors: Path) -> None:
    about = tensors.with_name("mixture.json")
    digest = hashlib.sha256(tensors.read_bytes()).hexdigest()
    about.write_text(json.dumps(json.loads(about.read_text()) | {"sha256": digest}))


def sign_checkpoint(folder: Path) -> None:
    path = folder / "state.json"
    facts = json.loads(path.read_text())
    if isinstance(facts, dict):
        if isinstance(facts.get("files"), dict):
            for file in folder.glob("*.safetensors"):
                if file.name in facts["files"]:
                    facts["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        facts.pop("check", None)
        path.write_text(json.dumps({**facts, "check": checkpoint._check(facts)}))


def fields(facts: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within plain data; of long lists a few."""
    found = [path]
    if isinstance(facts, dict):
        for key, value in facts.items():
            found += fields(value, (*path, key))
    elif isinstance(facts, list):
        for at in sorted({*range(min(2, len(facts))), len(facts) - 1} - {-1}):
            found += fields(facts[at], (*path, at))
    return found


def changed(facts: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return None if value is GONE else value
    first, *rest = path
    if value is GONE and not rest:
        if isinstance(facts, dict):
            return {key: own for key, own in facts.items() if key != first}
        return [own for at, own in enumerate(facts) if at != first]
    changing: Callable[[Any], Any] = lambda own: changed(own, tuple(rest), value)  # noqa: E731
    if isinstance(facts, dict):
        return {key: changing(own) if key == first else own for key, own in facts.items()}
    return [changing(own) if at == first else own for at, own in enumerate(facts)]
