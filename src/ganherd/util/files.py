"""Read files that may come from a stranger, write files atomically, and lock them.

Only regular files are read, because a pipe or a device could block for ever. The size of a file is checked before it is
read; a file that is too large is refused. A file is written under a unique temporary name in the same folder and then
renamed, so several processes can write the same file at once.
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
NEW = ".new-"  # the names of temporary files begin with this
MOST_JSON = 64 << 20  # largest JSON file that is read, in bytes; files about a hundred thousand members are smaller
_DEEPEST = 32  # levels of folders that a run folder may have; os.walk of Python 3.11 fails beyond a thousand
_MEMORY = 64 << 30  # largest file that is read, in bytes, if the machine's memory is unknown


@contextmanager
def replacing(path: Path, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`.

    If the block ends without an error, the file written there replaces `path`.

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
    """Replace the content of a file, so that a reader sees either all of the old content or all of the new content.

    Args:
        content: Bytes, or text that is written as UTF-8.
        sync: Force the file and the rename to the disk. Not needed for content that can be computed again.
    """
    raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with replacing(path, sync) as temporary, temporary.open("xb") as handle:
        handle.write(raw)


def write_cache(path: Path, value: Any) -> None:
    """Write a value that can be computed again to a JSON file; do nothing if the file cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(value), sync=False)


def force_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk (fsync)."""
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
    """Create a file if needed, lock it for this process alone, and return its open handle.

    The lock ends when the handle is closed or the process ends. On a file system without locks the file is opened, not
    locked.

    Args:
        waits: Seconds to wait before the second try, the third try, …; empty: try once. None: wait until the lock is
            free.
        children_hold_it: True uses `flock`, whose lock forked processes hold as well. False uses `lockf`: only this
            process.

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
    """Return whether any process holds the `flock` lock of a file; None if that cannot be found out."""
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
    """Replace a file that has several hard links by a copy.

    Writing to it then leaves the other names' content unchanged.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            with replacing(path) as temporary:
                shutil.copyfile(path, temporary)


def sweep(folder: Path, seconds: float = 3600.0) -> None:
    """Remove temporary files that killed processes left behind in a folder and the folders below it.

    Args:
        seconds: The least age of the files that are removed; a process may still be writing younger ones.
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
    """Return the parsed content of a JSON file of at most `most` bytes.

    Raises:
        OSError: The file cannot be read; see `open_binary`.
        ValueError: The content is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(read(path, most))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def refuse_odd_files(folder: Path, skipped: tuple[str, ...] = ()) -> None:
    """Raise a `UserError` if a run folder contains a link, a pipe, a device, a socket, or a file `matplotlibrc`.

    A link could make ganherd write outside of the folder, and reading a pipe could block for ever.

    Args:
        skipped: Names of folders directly in `folder` whose content is not checked.
    """
    for top, folders, files in os.walk(folder):
        if len(Path(top).relative_to(folder).parts) > _DEEPEST:
            raise UserError(f"{folder} holds folders within folders, {_DEEPEST} deep, which no run has: remove them.")
        for name in (*folders, *files):
            path = os.path.join(top, name)
            try:
                kind = os.lstat(path).st_mode
            except FileNotFoundError:  # a running training may have replaced the file in the meantime
                continue
            if stat.S_ISLNK(kind):
                raise UserError(
                    f"{path} is a link, which a run folder may not hold: replace it with a copy of what it points to."
                )
            if name == "matplotlibrc":  # Matplotlib would read it, and it can make Matplotlib start LaTeX
                raise UserError(f"{path} configures Matplotlib, which a run folder may not do: remove it.")
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise UserError(f"{path} is neither a file nor a folder, and a run folder holds only these: remove it.")
        if Path(top) == folder:
            folders[:] = [name for name in folders if name not in skipped]
