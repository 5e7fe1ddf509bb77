"""Read files that may come from a stranger, write files atomically, and lock them.

Only regular files are read: a pipe or a device could block for ever. Their size is checked first, so that a file that claims
to be huge is refused and not read. A file is written under a unique name next to its own and then renamed, so that several
processes can write the same file at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

from ganherd.util.errors import UserError
from ganherd.util.host import memory

JsonObject = dict[str, Any]  # the content of a JSON object for which there is no model
NEW = ".new-"  # how the names of temporary files begin
MOST_JSON = 64 << 20  # bytes of a JSON file; that of a hundred thousand members is smaller
_DEEPEST = 32  # folders within folders of a run, more than any has; Python 3.11 walks a thousand at most
_MEMORY = 64 << 30  # bytes that a file may have if the machine does not say how much memory it has


@contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the file written there replaces `path` if the block ends without an error.

    Args:
        sync: Force the file and the rename to the disk, so that they survive a power failure.
    """
    temporary = path.with_name(f"{NEW}{secrets.token_hex(8)}{path.suffix}")
    try:
        yield temporary
        if sync:
            force_to_disk(temporary)
        temporary.replace(path)
        if sync:
            force_to_disk(path.parent)
    except OSError as error:
        if error.filename == str(temporary):  # the name that the reader of the error knows
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # a read-only file system refuses this too, and its error would hide the first one
            temporary.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes | str, sync: bool = True) -> None:
    """Replace a file: a reader sees the old content or the new content, never a part of it.

    Args:
        sync: Force the file and the rename to the disk; not needed for what can be computed again.
    """
    raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with replacing(path, sync) as temporary, temporary.open("xb") as handle:
        handle.write(raw)


def write_cache(path: Path, value: Any) -> None:
    """Write a JSON file whose content can be computed again; do nothing if it cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(value), sync=False)


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def lock(path: Path, waits: Sequence[float] | None = (), children_hold_it: bool = True) -> TextIO:
    """Create a file if needed, lock it, and return its handle. The lock ends with the handle, or with the process.

    On a file system without locks the file is opened and not locked.

    Args:
        waits: Seconds to wait before each further try; None waits until the lock is free.
        children_hold_it: Whether forked processes hold the lock, too.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file cannot be opened, or is not a regular file.
    """
    handle = os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "a")
    take = fcntl.flock if children_hold_it else fcntl.lockf
    tries = iter(waits or ())
    while True:
        try:
            take(handle, fcntl.LOCK_EX | (0 if waits is None else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            wait = next(tries, None)
            if wait is None:
                handle.close()
                raise BlockingIOError(f"another process holds {path}") from None
            time.sleep(wait)
            continue
        except OSError:  # a file system without locks
            pass
        return handle


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock of a file; None if that cannot be found out."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks, or a file that may not be opened
        return None
    return False


def unshare(path: Path) -> None:
    """Replace a file that has other names (hard links) by a copy, so that the other names keep their content."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            with replacing(path) as temporary:
                shutil.copyfile(path, temporary)


def sweep(folder: Path, seconds: float = 3600.0) -> None:
    """Remove temporary files of processes that were killed while they wrote, here and in the folders below.

    Args:
        seconds: Remove temporary files that are older than this; a process may still be writing the others.
    """
    for top, _, names in os.walk(folder):
        for path in (Path(top, name) for name in names if name.startswith(NEW)):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > seconds:
                    path.unlink()


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor, or raise an OSError at once for a pipe, a device or a folder."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))
    return descriptor


def open_binary(path: Path, most: int | None = None) -> BufferedReader:
    """Open a regular file of at most `most` bytes (default: what fits the machine's memory).

    Raises:
        OSError: The file cannot be opened, is not a regular file, or is too large.
    """
    handle = open(open_regular(path), "rb")  # noqa: SIM115 - the caller closes it
    size, most = os.fstat(handle.fileno()).st_size, most or memory() or _MEMORY
    if size > most:
        handle.close()
        raise OSError(0, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
    return handle


def read(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file of at most `most` bytes; see `open_binary`."""
    with open_binary(path, most) as handle:
        return handle.read()


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """Return what a JSON file of at most `most` bytes holds.

    Raises:
        OSError: It cannot be read; see `open_binary`.
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read(path, most))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def refuse_odd_files(folder: Path, skipped: tuple[str, ...] = ()) -> None:
    """Refuse a folder that holds a link, a pipe, a device, a socket, or settings of matplotlib.

    Through a link ganherd could be made to write somewhere else, and a pipe could make it wait for ever.

    Args:
        skipped: Names of folders at the top that are not looked into.
    """
    for top, folders, files in os.walk(folder):
        if len(Path(top).relative_to(folder).parts) > _DEEPEST:
            raise UserError(f"{folder} holds folders within folders, {_DEEPEST} deep, which no run has: remove them.")
        for name in (*folders, *files):
            path = os.path.join(top, name)
            try:
                kind = os.lstat(path).st_mode
            except FileNotFoundError:  # a run that trains replaces its files
                continue
            if stat.S_ISLNK(kind):
                raise UserError(
                    f"{path} is a link, which a run folder may not hold: replace it with a copy of what it points to."
                )
            if name == "matplotlibrc":  # read if it lies where a command runs, and it can have LaTeX started
                raise UserError(f"{path} configures Matplotlib, which a run folder may not do: remove it.")
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise UserError(f"{path} is neither a file nor a folder, and a run folder holds only these: remove it.")
        if Path(top) == folder:
            folders[:] = [name for name in folders if name not in skipped]
