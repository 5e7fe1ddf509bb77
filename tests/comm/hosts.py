"""Several hosts on one machine: network namespaces that are joined by a switch, and nothing else; a cable can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import warm_python
from processes import environment


def missing() -> str:
    """Why there can be no hosts here; empty where there can."""
    if not sys.platform.startswith("linux") or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs Linux with ip (iproute2) and unshare"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
        capture_output=True,
    )
    return "" if tried.returncode == 0 else "may not make network namespaces here (needs root)"


class Host:
    """A namespace with a cable to the switch, and a name of its own."""

    def __init__(self, number: int, tag: str, names: Path) -> None:
        """`names`: the file of all hosts' names and addresses."""
        self.names = names
        self.name, self.space, self.address = f"host{number}", f"{tag}-{number}", f"10.77.0.{number}"
        self._cable = (f"{tag}-switch", f"to{number}")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, words: Sequence[object], **more: str) -> subprocess.Popen[str]:
        """Runs a command there; what it says can be read from its `stdout`."""
        inside = f'hostname {self.name}; mount --bind "$NAMES" /etc/hosts; exec "$@"'
        running = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                self.space,
                "unshare",
                "--uts",
                "--mount",
                "sh",
                "-c",
                inside,
                "sh",
                *map(str, words),
            ],
            env={**environment(), "NAMES": str(self.names), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(running)
        return running

    def cut(self) -> None:
        """Pulls the cable: nobody is told, packets are just lost."""
        _ip("-n", self._cable[0], "link", "set", self._cable[1], "down")

    def end(self) -> None:
        for running in self._started:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, 9)
            running.communicate()


@contextmanager
def hosts(count: int, folder: Path) -> Iterator[list[Host]]:
    """So many of them, gone at the end with all that was started there."""
    tag, names = f"gh{os.getpid()}", folder / "hosts"
    switch, made = f"{tag}-switch", [Host(number, tag, names) for number in range(1, count + 1)]
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in made))
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host in made:
            port = host._cable[1]
            _ip("netns", "add", host.space)
            _ip("-n", host.space, "link", "set", "lo", "up")
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.space)
            _ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.space, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", port, "master", "switch", "up")
        yield made
    finally:
        spaces = [*(host.space for host in made), switch]
        for space in spaces:
            for process in _ip("netns", "pids", space, check=False).split():  # ranks may have sessions of their own
                with suppress(ProcessLookupError):
                    os.kill(int(process), 9)
        for host in made:
            host.end()
        for space in spaces:
            _ip("netns", "del", space, check=False)


def _ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


def torchrun(first: Host, own: Host, nodes: str, *program: object) -> list[object]:
    """One for each host; they meet at the first one."""
    patience = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    meet = [
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "hosts",
        "--rdzv-endpoint",
        f"{first.name}:29400",
        "--rdzv-conf",
        patience,
    ]
    size = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "3", "--local-addr", own.address]
    start = ["env", f"PYTHON_EXEC={warm_python.python()}", warm_python.python(), "-m", "torch.distributed.run"]
    return [*start, *size, *meet, *program]


def mpiexec(made: Sequence[Host], folder: Path, start: Sequence[str], *program: object) -> list[object]:
    """For the first host: starts a rank on each, by a command in the place of ssh; `start`: mpiexec with its options."""
    agent, tag = folder / "agent", made[0].space.rpartition("-")[0]
    agent.write_text(
        "#!/bin/sh\nnumber=${1#host}; shift\n"
        f"exec ip netns exec {tag}-$number unshare --uts --mount sh -c "
        '"hostname host$number; mount --bind $NAMES /etc/hosts; $*"\n'
    )
    agent.chmod(0o755)
    where = ["--host", ",".join(f"{host.name}:1" for host in made), "-n", str(len(made))]
    ssh = ["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", agent]
    carried = [word for name in ("PYTHONPATH", "OMP_NUM_THREADS") for word in ("-x", name)]
    return [*start, *where, *ssh, *carried, sys.executable, *program]
