"""Keep a command alive when its output cannot be written: a closed terminal, a pipe without a reader, a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ganherd.util.errors import UserError

BROKEN_PIPE = 141  # 128 + SIGPIPE: the exit code of a program whose reader has gone


class SafeStream:
    """Wrap a text stream, and drop text that cannot be written. All other attributes are those of the wrapped stream.

    If `stream` is a `SafeStream` itself, the new one wraps the stream inside it. So streams are not wrapped twice, and
    only the new `SafeStream` decides what happens to text that cannot be written.
    """

    def __init__(self, stream: Any) -> None:
        self._stream: Any = stream._stream if isinstance(stream, SafeStream) else stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._failed(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ResultStream(SafeStream):
    """Wrap standard output, and report that a result cannot be written.

    Writing raises `BrokenPipeError` if nobody reads the pipe, and a `UserError` for other reasons, such as a full disk.
    """

    def _failed(self, error: Exception) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            reason = error.strerror or error
            raise UserError(f"the result cannot be written to standard output: {reason}.") from error
        raise error


@contextmanager
def safe_streams(*names: str, kind: type[SafeStream] = SafeStream) -> Iterator[None]:
    """Wrap standard streams inside the block, so that text that cannot be written is handled by `kind`.

    Args:
        names: "stderr" and "stdout". A stream that was closed from the start accepts all text and writes nothing.
        kind: The class that wraps each stream; the default drops the text.
    """
    before = {name: getattr(sys, name) for name in names}
    with ExitStack() as closing:
        for name, stream in before.items():
            if type(stream) is not kind:
                target = closing.enter_context(open(os.devnull, "w")) if stream is None else stream
                closing.callback(setattr, sys, name, stream)
                setattr(sys, name, kind(target))
        yield


def reserve_descriptors() -> None:
    """Open the null device for each of the file descriptors 0, 1 and 2 that is closed.

    Otherwise the next file that is opened would get that number, and messages of C libraries to stderr would be written
    into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def flush_all() -> None:
    """Write the text that stdout and stderr still buffer, and drop what cannot be written.

    After this, Python's own flush at exit cannot fail, and no text is lost if the process ends without it (`os._exit`).
    """
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError, UserError):
            with suppress(OSError, ValueError):  # redirect it to the null device, with the text that it buffers
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
                stream.flush()
