"""Files are replaced as a whole and reach the disk, and a lock excludes other processes until it ends."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ganherd.util import files


def test_a_synced_file_and_its_folder_are_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda d: (forced.append(os.readlink(f"/proc/self/fd/{d}")), real(d)))
    files.atomic_write(tmp_path / "a.json", "text", sync=False)
    assert forced == []
    files.atomic_write(tmp_path / "a.json", "other ä")
    assert Path(forced[0]).name.startswith(files.NEW) and forced[1] == str(tmp_path)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "other ä"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "missing" / "page.html"
    with pytest.raises(FileNotFoundError) as error:
        files.atomic_write(path, "text")
    assert error.value.filename == str(path)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(OSError, match="Read-only") as error:
        files.atomic_write(tmp_path / "page.html", "text")
    assert error.value.filename == str(tmp_path / "page.html")


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert files.sha256_of(tmp_path / "a") == hashlib.sha256(b"content").hexdigest()


def test_a_lock_excludes_others_until_its_handle_is_closed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert files.is_locked(path) is False  # there is no such file
    with files.lock(path):
        assert files.is_locked(path)
        with pytest.raises(BlockingIOError):
            files.lock(path, waits=(0.01,))
    assert not files.is_locked(path)
    files.lock(path).close()


def test_a_lock_without_children_excludes_another_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    code = "import sys; from pathlib import Path; from ganherd.util import files\n"
    code += "files.lock(Path(sys.argv[1]), children_hold_it=False)"
    with files.lock(path, children_hold_it=False):
        other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert other.returncode == 1 and "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 0
