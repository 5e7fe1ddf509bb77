"""Pipes, sockets and files of impossible size in a run folder or a data set are refused: no command waits or fills the memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import yaml
from recipes import tiny_recipe
from run_fixtures import Answer

from ganherd.runs import json_lines
from ganherd.runs.models import MetricsRecord
from ganherd.util.errors import UserError
from promises.test_data_is_not_code import COMMANDS, only_checkpoint

Cli = Callable[..., Answer]


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A command that waits for ever fails the test; the time is no measure of speed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(500)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def hostile(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "hostile"))


def answers(cli: Cli, folder: Path) -> dict[str, Answer]:
    return {name: cli(*(folder if word == "RUN" else word for word in words)) for name, words in COMMANDS.items()}


PLACES = (
    "run.json", "recipe.yaml", "metrics.jsonl", "events.jsonl", "scores.json", ".lock", "report.html", "samples/final.png",
    "mixture/mixture.json", "mixture/generators.safetensors", "ranks/rank-000.json", "CHECKPOINT/state.json", "WEIGHTS",
    "something else",
)  # fmt: skip


def place_of(folder: Path, name: str) -> Path:
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    if name == "WEIGHTS":
        return next(newest.glob("*.safetensors"))
    return newest / "state.json" if name.startswith("CHECKPOINT") else folder / name


@pytest.mark.further("run.json")
@pytest.mark.parametrize("name", PLACES)
def test_a_pipe_in_a_run_folder_is_refused_by_every_command(cli: Cli, hostile: Path, name: str) -> None:
    path = place_of(hostile, name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for answer in answers(cli, hostile).values():
        told = answer.sentence
        assert "is neither a file nor a folder" in told or "has no run.json and recipe.yaml" in told


def test_a_socket_in_a_run_folder_is_refused(cli: Cli, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
    for answer in answers(cli, hostile).values():
        assert "is neither a file nor a folder" in answer.sentence


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_run_folder_that_is_nested_deeper_than_any_run_is_refused(cli: Cli, hostile: Path, command: str) -> None:
    (hostile / "samples" / "/".join("a" * 40)).mkdir(parents=True)
    assert "holds folders within folders" in cli(command, hostile).sentence


def test_a_separate_mixture_folder_is_checked_too(cli: Cli, hostile: Path) -> None:
    os.mkfifo(hostile / "mixture" / "pipe")
    assert "is neither a file nor a folder" in cli("sample", hostile / "mixture", "-o", "x.npz").sentence


def test_a_pipe_in_a_run_to_start_from_is_refused(cli: Cli, hostile: Path, data: Path) -> None:
    weights = place_of(hostile, "WEIGHTS")
    weights.unlink()
    os.mkfifo(weights)
    recipe = tiny_recipe(data, herd={"start_from": str(hostile)})
    del recipe["nets"]
    Path("own.yaml").write_text(yaml.safe_dump(recipe))
    assert "is neither a file nor a folder" in cli("train", "own.yaml", "--run", "new", "-q").sentence


@pytest.mark.parametrize("name", [".lock", ".parts"])
def test_a_pipe_in_the_place_of_a_lock_is_refused(cli: Cli, data: Path, name: str) -> None:
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data)))
    Path("new").mkdir()
    os.mkfifo(Path("new") / name)
    members = ("--members", "0") if name == ".parts" else ()
    assert "new" in cli("train", "own.yaml", "--run", "new", "-q", *members).sentence


@pytest.mark.parametrize("name", ["x.npz", "x.txt", "train-images-idx3-ubyte", "x.tar.gz"])
def test_a_pipe_is_no_data(cli: Cli, name: str) -> None:
    os.mkfifo(name)
    assert "neither a file nor a folder" in cli("data", "inspect", name).sentence


def test_a_folder_of_data_with_a_pipe_names_it(cli: Cli) -> None:
    from PIL import Image

    for label in ("a", "b"):
        Path("folder", label).mkdir(parents=True)
        Image.new("L", (4, 4), 90).save(f"folder/{label}/1.png")
    os.mkfifo("folder/a/2.png")
    answer = cli("data", "inspect", "folder")
    assert answer.code == 0 and "2.png (it is no file)" in answer.out


def test_prepared_data_with_a_pipe_or_too_many_rows_is_refused(cli: Cli) -> None:
    from PIL import Image

    for label in ("a", "b"):
        Path("folder", label).mkdir(parents=True)
        Image.new("L", (4, 4), 90).save(f"folder/{label}/1.png")
    assert cli("data", "prepare", "folder", "--size", 4, "--jobs", 1, "-o", "made", "-q").code == 0
    index = json.loads(Path("made/index.json").read_text())
    many = {**index, "shards": [{**shard, "count": 10**15} for shard in index["shards"]]}
    Path("made/index.json").write_text(json.dumps(many))
    assert "bytes and should have" in cli("data", "inspect", "made").sentence
    Path("made/index.json").write_text(json.dumps(index))
    shard = Path("made", index["shards"][0]["file"])
    shard.unlink()
    os.mkfifo(shard)
    assert str(shard) in cli("data", "inspect", "made").sentence


READERS = {  # who must refuse it; of the others that read it some leave it out
    "run.json": ("status", "resume"),
    "recipe.yaml": ("score", "resume"),
    "metrics.jsonl": ("status",),
    "events.jsonl": ("status",),
    "scores.json": (),
    "samples/final.png": (),
    "mixture/mixture.json": ("sample",),
    "mixture/generators.safetensors": ("sample", "score"),
    "ranks/rank-000.json": (),
    "CHECKPOINT/state.json": ("resume",),
    "WEIGHTS": ("resume",),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_60_gb_is_refused_and_not_read(cli: Cli, hostile: Path, name: str) -> None:
    """It has no content: reading it would fill the memory with zeros."""
    only_checkpoint(hostile)
    path = place_of(hostile, name)
    path.parent.mkdir(exist_ok=True)
    if name.startswith("ranks"):
        info = json.loads((hostile / "run.json").read_text())
        ranks = {"communicator": "mpi", "hosts": ["a"], "members": [[0, 1, 2]]}
        (hostile / "run.json").write_text(json.dumps(info | {"ranks": ranks}))
    path.touch()
    os.truncate(path, 60 << 30)
    others = {"scores.json": "score", "samples/final.png": "report", "ranks/rank-000.json": "status"}
    for command in READERS[name] or (others[name],):
        answer = cli(*(hostile if word == "RUN" else word for word in COMMANDS[command]))
        assert answer.sentence if READERS[name] else answer.code == 0


@pytest.mark.parametrize("file", ["mixture", "checkpoint"])
def test_a_header_that_declares_too_much_is_refused_before_anything_is_read(cli: Cli, hostile: Path, file: str) -> None:
    """A file may really have the size that its header declares: then the nets tell that it is too large."""
    from faults import fuzzing

    step = only_checkpoint(hostile)
    path = hostile / "mixture/generators.safetensors" if file == "mixture" else next(step.glob("*.safetensors"))
    head, body = fuzzing.header(path)
    name = max((key for key in head if key != "__metadata__"), key=lambda key: head[key]["data_offsets"][1])
    rows, first = head[name]["shape"][0], head[name]["data_offsets"][0]
    size = rows * (1 << 28) * 4
    head[name] = {"dtype": "F32", "shape": [rows, 1 << 28], "data_offsets": [first, first + size]}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body[:first])
    os.truncate(path, path.stat().st_size + size)
    command = COMMANDS["sample" if file == "mixture" else "resume"]
    assert "has another shape" in cli(*(hostile if word == "RUN" else word for word in command)).sentence


# -- records --------------------------------------------------------------------------------------------------------------


def test_a_line_without_end_is_refused(cli: Cli, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MOST_LINE", 1 << 12)
    with (hostile / "metrics.jsonl").open("a") as file:
        file.write("x" * (1 << 16) + "\n")
    assert "holds a line of more than" in cli("status", hostile).sentence
    assert cli("report", hostile).code == 0
    assert "holds a line of more than" in (hostile / "report.html").read_text()


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_broken_line_is_named_alike_by_status_and_report(cli: Cli, hostile: Path, name: str) -> None:
    lines = (hostile / name).read_text().splitlines()
    (hostile / name).write_text("\n".join([*lines[:-1], "not JSON", lines[-1]]) + "\n")
    sentence = cli("status", hostile).sentence
    assert (
        sentence == f"line {len(lines)} of {hostile / name} was not written by ganherd: 'not JSON'. Remove that line."
    )
    assert cli("report", hostile).code == 0
    assert f"line {len(lines)} of " in (hostile / "report.html").read_text()


def test_status_reads_the_end_of_the_records_only(cli: Cli, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they are: of a file of gigabytes some thousand bytes."""
    last = (hostile / "metrics.jsonl").read_bytes().splitlines()[-1]
    with (hostile / "metrics.jsonl").open("wb") as file:
        file.truncate(20 << 30)  # zeros, which take no room
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(last + b"\n" for _ in range(20)))
    answer = cli("status", hostile, "--json")
    assert json.loads(answer.out)["step"] == json.loads(last)["step"]


def test_sums_of_long_runs_are_kept_in_the_records(tmp_path: Path) -> None:
    from ganherd.runs import profile
    from ganherd.runs.records import JsonLinesWriter

    path = tmp_path / "metrics.jsonl"
    lines = JsonLinesWriter(path, length=0, sums=True)
    ends = []
    for step in range(1, 6):
        lines.write({"step": step, "profile": {"update": 1.0, "gather": 0.5}})
        ends.append(lines.flush())
    lines.close()
    assert profile.of_run(path)["update"] == 5.0
    again = JsonLinesWriter(path, length=ends[1], sums=True)  # a resume cuts the records back to a checkpoint
    again.write({"step": 3, "profile": {"update": 2.0}})
    again.close()
    assert profile.of_run(path) == profile.total(json_lines.read_all(path, MetricsRecord))
    assert profile.of_run(path)["update"] == 4.0 and profile.of_run(path)["gather"] == 1.0
    older = [json.loads(line) for line in path.read_text().splitlines()]
    for one in older:
        del one["profile"][profile.TOTAL]
    path.write_text("".join(json.dumps(one) + "\n" for one in older))
    assert profile.of_run(path)["update"] == 4.0  # a run of an older version is read line by line
    assert JsonLinesWriter(path, sums=True)._sums == profile.of_run(path)


def test_long_records_are_thinned_evenly(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1000)))
    steps = [line["step"] for line in json_lines.read_some(path, MetricsRecord, 10)]
    assert steps[0] == 0 and steps[-1] == 999 and 10 <= len(steps) <= 20
    assert len(set(np.diff(steps[:-1]))) == 1
    assert [line["step"] for line in json_lines.read_some(path, MetricsRecord, 1000)] == list(range(1000))
    assert [line["step"] for line in json_lines.read_last(path, MetricsRecord, 3)] == [997, 998, 999]
    path.write_text(path.read_text() + '{"step": 10')  # still being written
    assert [line["step"] for line in json_lines.read_last(path, MetricsRecord, 2)] == [998, 999]


@pytest.mark.parametrize("reader", ["read_all", "read_some", "read_last"])
def test_records_that_cannot_be_read_are_refused_in_the_same_sentence(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.mkdir()
    calls = {
        "read_all": lambda: list(json_lines.read_all(path, MetricsRecord)),
        "read_some": lambda: json_lines.read_some(path, MetricsRecord, 3),
        "read_last": lambda: json_lines.read_last(path, MetricsRecord, 3),
    }
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read: "):
        calls[reader]()
