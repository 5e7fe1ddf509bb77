"""`ganherd data prepare` killed, interrupted or started again otherwise: it costs no more than a unit, and nothing is mixed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import processes
import pytest
from image_trees import refused, shards, tree

from ganherd.data.dataset import load
from ganherd.data.readers import class_folders
from ganherd.data.readers.class_folders import decode
from ganherd.data.shards import prepare as preparing
from ganherd.data.shards import worker
from ganherd.data.shards.prepare import prepare
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import Interrupted


class Inline:
    """A pool that works at once, in this process."""

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, cancel_futures: bool) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


class Killed(BaseException):
    pass


def test_killed_at_any_moment_it_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state on disk that a kill can leave lies before or after a rename; each of them is tried."""
    tree(tmp_path / "tree", {"a": 5, "b": 3})
    tree(tmp_path / "tree", {"grey": 3}, colour=False)
    prepare(tmp_path / "tree", tmp_path / "whole", 4, jobs=1)
    monkeypatch.setattr(worker, "UNIT", 2)
    monkeypatch.setattr(preparing, "worker_pool", lambda jobs: Inline())
    read: list[str] = []

    def noted(path: Path, *rest: Any, **more: Any) -> Any:
        read.append(str(path))
        return decode(path, *rest, **more)

    monkeypatch.setattr(class_folders, "decode", noted)
    rename, moments = Path.replace, 0
    for moment in range(100):
        out, left = tmp_path / f"out-{moment}", moment
        read.clear()

        def deadly(path: Path, target: Path) -> Any:
            nonlocal left
            if left % 2 == 0 and left < 2:
                raise Killed
            found = rename(path, target)
            if left == 1:
                raise Killed
            left -= 2
            return found

        try:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", deadly)
                prepare(tmp_path / "tree", out, 4, jobs=1)
            break
        except Killed:
            moments += 1
        index = prepare(tmp_path / "tree", out, 4, jobs=1)
        assert shards(out) == shards(tmp_path / "whole") and not (out / "parts").exists()
        assert [s.count for s in index.shards] == [5, 3, 3]
        assert len(read) <= 11 + 2, "no more than the unit at hand is read again"
    assert moments > 20


SLOW = """
import sys, threading
from pathlib import Path
from ganherd.data.shards import prepare
from ganherd.data.shards import worker
worker.UNIT = 2
make = worker.make_part
def first_four(out, *rest):
    if len(list((out / "parts").glob("*.npz"))) >= 4:
        print("full", flush=True)
        threading.Event().wait()  # for ever: it is to be killed
    make(out, *rest)
worker.make_part = first_four
prepare.prepare(Path(sys.argv[1]), Path(sys.argv[2]), 4, jobs=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kill_9_loses_nothing_that_was_done_and_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "tree", {"a": 20, "b": 10})
    words = [sys.executable, "-c", SLOW, str(tmp_path / "tree"), str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=processes.environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() and process.stdout.readline()  # both workers are at it
        workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").glob("*.npz")}
    assert len(done) >= 4 and "run the same" in refused(lambda: load(DataConfig(source=str(tmp_path / "out"))))
    while any(_alive(pid) for pid in workers):
        time.sleep(0.01)
    read: list[str] = []
    monkeypatch.setattr(worker, "UNIT", 2)
    monkeypatch.setattr(preparing, "worker_pool", lambda jobs: Inline())
    monkeypatch.setattr(class_folders, "decode", lambda path, *a, **k: read.append(path.name) or decode(path, *a, **k))
    seen: list[tuple[int, int]] = []
    prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=2, progress=lambda *at: seen.append(at))
    assert seen[0] == (2 * len(done), 30) and seen[-1] == (30, 30) and len(read) == 30 - 2 * len(done)
    monkeypatch.undo()
    prepare(tmp_path / "tree", tmp_path / "whole", 4, jobs=1)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_is_answered_with_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "tree", {"a": 10})
    monkeypatch.setattr(worker, "UNIT", 2)

    def stop(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"stopped after (4|6|8|10) of 10 files; the same command continues"):
        prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1, progress=stop)
    assert prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1).shards[0].count == 10


def test_settings_are_not_mixed(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3})
    tree(tmp_path / "twin", {"a": 3})
    out = tmp_path / "out"
    prepare(tmp_path / "tree", out, 4, jobs=1)
    before = shards(out)
    prepare(tmp_path / "tree", out, 4, jobs=1)  # the same again is no work
    assert "--size 4, not 5" in refused(lambda: prepare(tmp_path / "tree", out, 5))
    assert "--crop centre, not random" in refused(lambda: prepare(tmp_path / "tree", out, 4, "random"))
    assert "the data" in refused(lambda: prepare(tmp_path / "twin", out, 4))
    assert "--crop random" in refused(lambda: prepare(tmp_path / "tree", out, 4, seed=1))
    (tmp_path / "tree" / "a" / "new.png").write_bytes((tmp_path / "tree" / "a" / "00.png").read_bytes())
    assert "changed since" in refused(lambda: prepare(tmp_path / "tree", out, 4))
    assert shards(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    assert "not a prepared folder" in refused(lambda: prepare(tmp_path / "tree", tmp_path / "mine", 4))
    assert "no folder" in refused(lambda: prepare(tmp_path / "nowhere", tmp_path / "other", 4))


def test_two_processes_do_not_prepare_one_folder(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3})
    (tmp_path / "out" / "parts").mkdir(parents=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    words = [sys.executable, "-c", hold, str(tmp_path / "out" / "parts" / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        assert "another process" in refused(lambda: prepare(tmp_path / "tree", tmp_path / "out", 4))
        holder.stdin.close()
    assert prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1).shards[0].count == 3
