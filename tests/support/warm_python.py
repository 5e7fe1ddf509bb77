"""Start Python programs in milliseconds: fork them from a process that has imported PyTorch and ganherd already.

`python()` returns the path of an executable that takes the words of a Python command line (`SCRIPT`, `-m MODULE` or
`-c CODE`, with `-u` and `-P`). A launcher such as mpiexec or torchrun can start it too. The executable hands its words,
environment, folder and open files to a server, which forks the program. It passes signals on and ends as the program
ends. If it is killed, so is the program, a moment later; `kill` waits for that. Environments that a running interpreter
cannot adopt, such as another number of threads, get an interpreter of their own.

Programs that depend on a controlling terminal or on their process group need `sys.executable`.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import io
import json
import os
import platform
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Read by an interpreter or by a library when it starts: a program with other values cannot be forked from the server.
AT_START = ("PYTHON", "OMP_", "MKL_", "KMP_", "TORCH_", "TRITON_", "CUDA_", "MPL")
ANYWAY = (
    "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHON_EXEC", "OMP_PROC_BIND", "TORCHELASTIC_", "TORCH_NCCL_",
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "OMP_WAIT_POLICY",  # set by scikit-learn and by ganherd's command in a test
)  # fmt: skip
NAMESPACES = ("net", "uts", "mnt")  # of Linux; a test may run its program in others
# Imported once by the server: what most programs import, modules that ganherd imports only when they are needed included.
PRELOADED = (
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "ganherd.api",
    "ganherd.cli.commands.train",
    "ganherd.cli.main",
    "ganherd.cli.own_data",
    "ganherd.comm.backends.detect",
    "ganherd.comm.backends.mpi",
    "ganherd.comm.backends.torchrun",
    "ganherd.data.partition",
    "ganherd.nets.mlp",
    "ganherd.nets.wcgan",
    "ganherd.strategies.cellular.cellular",
    "ganherd.strategies.gap.gap",
    "ganherd.strategies.mixing.neighbourhood_mixtures",
    "ganherd.strategies.share",
    "ganherd.training.ranks.recovery",
    "ganherd.training.session",
    "numpy.ctypeslib",
    "numpy.ma",
    "numpy.random",
    "pytest",
    "torch.distributed.run",
)
PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
try:
    server.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
numbers = [getattr(signal, name) for name in {passed_on!r}]
ignored = [int(number) for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), ignored]).encode()
spaces = ["/proc/self/ns/" + name for name in {spaces!r}]
files = array.array("i", [0, 1, 2, *(os.open(path, os.O_RDONLY) for path in spaces if os.path.exists(path))])
server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(request)
for number in numbers:
    if number not in ignored:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
status = server.recv(16)
if status == b"cold":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
code = int(status or b"1")
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@dataclass
class Program:
    """A command line, and the surroundings that it shall run in."""

    words: list[str]
    environ: dict[str, str]
    folder: str
    ignored: list[int]  # signals
    files: list[int]  # standard input, output and error
    namespaces: list[int]  # files of NAMESPACES; empty where there are none


# -- the test's side ---------------------------------------------------------------------------------------------------


@cache
def python() -> str:
    """Return the path of the executable, and start the server when this is called for the first time."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client, address = folder / "python", str(folder / "server")
    client.write_text(CLIENT.format(python=sys.executable, address=address, passed_on=PASSED_ON, spaces=NAMESPACES))
    client.chmod(0o755)
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin and server.stdout
    assert server.stdout.readline(), "the server could not import what it forks"
    server.stdout.close()
    owner = os.getpid()

    def close() -> None:
        if os.getpid() == owner and server.stdin:  # not in processes forked from this one
            server.stdin.close()
            server.wait(60)

    atexit.register(close)
    return str(client)


def start(*words: object) -> subprocess.Popen[str]:
    """Start a `ganherd` command that trains without products; its messages can be read from `stdout`."""
    command = [python(), str(Path(__file__).with_name("brief_command.py")), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(process: subprocess.Popen[str]) -> int:
    """End a program by SIGKILL, wait until it is gone, and return how it ended: negative by a signal, as Popen does.

    The stand-in of the program passes SIGQUIT on as SIGKILL, which it could not receive itself.
    """
    process.send_signal(signal.SIGQUIT)
    code = process.wait(60)
    return -signal.SIGKILL if code == -signal.SIGQUIT else code  # it had not asked for its program yet


# -- the server --------------------------------------------------------------------------------------------------------


class Server:
    """Fork the programs that clients ask for, and report to each client how its program has ended."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._clients: dict[int, socket.socket] = {}  # by process
        self._wake, wake = socket.socketpair()
        wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)
        self._selector.register(0, selectors.EVENT_READ, self._end)  # closed with the process that started the server
        self._wake_end = wake
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._environ = _at_start(dict(os.environ))

    def serve(self) -> Program:
        """Handle requests until the end of the server; return only in a forked process, with its program."""
        while True:
            for key, _ in self._selector.select():
                if program := key.data(key.fileobj):
                    assert isinstance(program, Program)
                    return program

    def _accept(self, listener: socket.socket) -> Program | None:
        client, _ = listener.accept()
        program = _receive(client)
        if program is None:
            client.close()
        elif _at_start(program.environ) != self._environ:
            client.sendall(b"cold")
            client.close()
        else:
            process = os.fork()
            if process == 0:
                self._leave(client)
                return program
            self._clients[process] = client
            self._selector.register(client, selectors.EVENT_READ, self._pass_on)
        for file in (*program.files, *program.namespaces) if program else ():
            os.close(file)
        return None

    def _pass_on(self, client: socket.socket) -> None:
        """Send the program the signals that its client got; kill it if the client is gone."""
        process = next(process for process, its in self._clients.items() if its is client)
        try:
            numbers = client.recv(16)
        except ConnectionError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            os.kill(process, signal.SIGKILL if number == signal.SIGQUIT else number)
        if not numbers:
            self._selector.unregister(client)

    def _reap(self, wake: socket.socket) -> None:
        wake.recv(4096)
        while self._clients:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            client = self._clients.pop(process)
            if client in self._selector.get_map():
                self._selector.unregister(client)
            with suppress(OSError):  # the client was killed
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            client.close()

    def _end(self, _: object) -> None:
        for process in self._clients:
            os.kill(process, signal.SIGKILL)
        for process in self._clients:
            os.waitpid(process, 0)
        os._exit(0)

    def _leave(self, client: socket.socket) -> None:
        """In a forked process: close what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for open_socket in (self._listener, self._wake, self._wake_end, client, *self._clients.values()):
            open_socket.close()


def _foreign(program: Program) -> list[int]:
    """Return the namespaces of the program that are not those of this process."""
    own = [os.stat(f"/proc/self/ns/{name}").st_ino for name, _ in zip(NAMESPACES, program.namespaces, strict=False)]
    return [file for file, inode in zip(program.namespaces, own, strict=True) if os.fstat(file).st_ino != inode]


def _at_start(environ: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k.startswith(AT_START) and not k.startswith(ANYWAY)}


def _receive(client: socket.socket) -> Program | None:
    files = array.array("i")
    most = 3 + len(NAMESPACES)
    head, ancillary, *_ = client.recvmsg(8, socket.CMSG_LEN(most * files.itemsize))
    for _, _, content in ancillary:
        files.frombytes(content)
    if len(head) < 8:  # it was killed before it could ask
        return None
    left, content = int.from_bytes(head, "big"), b""
    while len(content) < left:
        more = client.recv(left - len(content))
        if not more:
            return None
        content += more
    words, environ, folder, ignored = json.loads(content)
    return Program(words, environ, folder, ignored, list(files[:3]), list(files[3:]))


# -- the forked process ------------------------------------------------------------------------------------------------


def _adopt(program: Program, own_path: list[str]) -> list[str]:
    """Take over files, folder and environment of the client; return the words after the interpreter's options."""
    for number, file in enumerate(program.files):
        os.dup2(file, number)
        os.close(file)
    for file in _foreign(program):
        if ctypes.CDLL(None, use_errno=True).setns(file, 0):
            raise OSError(ctypes.get_errno(), "the namespace of the test could not be entered")
    for file in program.namespaces:
        os.close(file)
    platform._uname_cache = None  # type: ignore[attr-defined]  # the host may have another name there
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environ)
    for number in program.ignored:
        signal.signal(number, signal.SIG_IGN)
    words, options = list(program.words), set()
    while words and words[0] in ("-u", "-P"):
        options.add(words.pop(0))
    unbuffered = "-u" in options or "PYTHONUNBUFFERED" in os.environ
    sys.stdin = _stream(0, "r")
    sys.stdout = _stream(1, "w", line_buffering=os.isatty(1), write_through=unbuffered)
    sys.stderr = _stream(2, "w", line_buffering=True, errors="backslashreplace")
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = os.getcwd() if words[0] in ("-m", "-c") else str(Path(words[0]).resolve().parent)
    sys.path[:] = [*([] if "-P" in options else [first]), *given, *own_path]
    return words


def _stream(file: int, mode: str, **settings: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(file, f"{mode}b", closefd=False), encoding="utf-8", **settings)


def _run(words: list[str]) -> None:
    """Run a module, code or a script as the main program."""
    kind, *rest = words
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def main(address: str) -> None:
    """Import what takes long, serve, and run the program in each forked process."""
    import gc
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("tiny_runs").shorten_measurements(sys.modules["pytest"].MonkeyPatch())

    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own_path = [entry for entry in sys.path[1:] if os.path.abspath(entry) not in given]
    server = Server(address)
    gc.collect()
    gc.freeze()  # or each forked process would copy every object that it collects
    gc.set_threshold(50_000, 20, 20)  # most programs end before they have much to collect
    print("listening", flush=True)
    program = server.serve()
    del server
    code = 1
    try:
        _run(_adopt(program, own_path))
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    _exit(code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _exit(code: int) -> None:
    """End as an interpreter does, without freeing its objects: that would copy the memory shared with the server."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    mpi4py, mpi = sys.modules.get("mpi4py"), sys.modules.get("mpi4py.MPI")
    # ganherd sets `finalize` to False if the end of MPI may wait forever for lost ranks
    is_left_open = mpi4py is None or mpi4py.rc.finalize is False
    if mpi is not None and not is_left_open and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
