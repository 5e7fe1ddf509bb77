"""Compile the kernels of a step in parallel processes, before the step runs.

Triton compiles a kernel when it is launched for the first time, and a step has about a hundred kernels of a second each. So a
step is first run without launching any kernel that is not compiled yet, only to learn which kernels it needs (`collected`).
Processes then compile these kernels into Triton's cache on disk (`compile_kernels`), and the step finds them there. The names
in that cache are digests of a kernel's source, types, constants and target; therefore users can share one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.cache import FileCacheManager, get_cache_key, get_cache_manager, triton_key

from ganherd.util.host import cores
from ganherd.util.paths import cache_home, shared_cache

Report = Callable[[int, int], None]  # gets the number of kernels that are compiled, and of all that are needed

_FEW = 2  # so few kernels are compiled in this process
_PATIENCE = 300.0  # seconds; if processes take longer, the step compiles what is missing


@dataclass(frozen=True)
class KernelSource:
    """A kernel with the types and constants that it is compiled for."""

    module: str
    name: str
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]

    @property
    def length(self) -> int:
        """The length of its source: longer kernels take longer to compile."""
        return len(self._function().src)

    def is_cached(self, target: GPUTarget) -> bool:
        """Return whether Triton's cache on disk has the compiled kernel."""
        backend = make_backend(target)
        options = backend.parse_options(dict(self.options))
        variables = triton.compiler.compiler.get_cache_invalidating_env_vars()
        key = hashlib.sha256(get_cache_key(self._ast(), backend, options, variables).encode()).hexdigest()
        return bool(get_cache_manager(key).get_group(f"{self.name[:150]}.json"))

    def compile(self, target: GPUTarget) -> None:
        """Compile the kernel and the C code that launches it into Triton's cache on disk."""
        kernel = triton.compile(self._ast(), target=target, options=dict(self.options))
        driver.active.launcher_cls(kernel.src, kernel.metadata)

    def _ast(self) -> ASTSource:
        return ASTSource(self._function(), dict(self.signature), dict(self.constants), dict(self.attributes))

    def _function(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


class _Zeros(TorchFunctionMode):
    """Fill new tensors with zeros. Kernels that are not launched leave them so, and zero is a valid index or draw."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        filled = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like}.get(func, func)
        return filled(*args, **(kwargs or {}))


class SharedKernelCache(FileCacheManager):
    """Triton's cache on disk, which also finds kernels in a folder that many users share and that is only read."""

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file, or None."""
        own: str | None = super().get_file(filename)
        return own or next((str(path) for path in self._shared(filename) if path.is_file()), None)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the files of a kernel by name, or None."""
        own: dict[str, str] | None = super().get_group(filename)
        if own:
            return own
        for path in self._shared(f"__grp__{filename}"):
            with suppress(OSError, ValueError, AttributeError, TypeError):
                names = json.loads(path.read_text())["child_paths"]  # with the paths of the machine that compiled it
                return {name: str(there) for name in names if (there := path.parent / Path(name).name).is_file()}
        return own

    def _shared(self, filename: str) -> list[Path]:
        folder = shared_cache()
        return [folder / "triton" / self.key / filename] if folder else []


def use_cache() -> None:
    """Keep compiled kernels in ganherd's cache, unless the environment names another folder for Triton's."""
    Thread(target=triton_key, name="ganherd-triton-key", daemon=True).start()  # hashes Triton's library, half a second
    if "TRITON_CACHE_DIR" not in os.environ:
        knobs.cache.dir = str(cache_home() / "triton")
    if "TRITON_CACHE_MANAGER" not in os.environ and shared_cache():
        knobs.cache.manager_class = SharedKernelCache


@contextmanager
def collected() -> Iterator[list[KernelSource]]:
    """Launch no kernel that is not compiled yet inside this context, and fill the list with these kernels at its end."""
    sources: dict[tuple[str, str], KernelSource] = {}
    result: list[KernelSource] = []

    def collect(*, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        options = json.loads(compile["specialization_data"])["options"]
        source = KernelSource(
            fn.module, fn.name, compile["signature"], compile["constants"], compile["configs"][0], _as_tuples(options)
        )
        sources.setdefault((fn.name, str(compile["key"])), source)
        return True  # do not compile it now, and do not launch it

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = collect
    try:
        with _Zeros():
            yield result
    finally:
        knobs.runtime.jit_cache_hook = before
        result += sources.values()


def compile_kernels(sources: Sequence[KernelSource], report: Report) -> None:
    """Compile kernels that Triton's cache does not have, in parallel processes.

    What a process cannot compile is left to the launch of the kernel, which reports the error.
    """
    target = driver.active.get_current_target()
    missing = [source for source in sources if not source.is_cached(target)]
    if len(missing) <= _FEW:
        return
    missing.sort(key=lambda source: -source.length)
    report(0, len(missing))
    with _workers(min(cores(), len(missing))) as pool, suppress(TimeoutError):
        compiling = [pool.submit(_compile, source, target) for source in missing]
        for done, _ in enumerate(as_completed(compiling, timeout=_PATIENCE), 1):
            report(done, len(missing))


@contextmanager
def compiling(sources: Sequence[KernelSource]) -> Iterator[None]:
    """Compile kernels in processes of low priority while the context runs; what is not started at its end is left out."""
    target = driver.active.get_current_target()
    missing = [source for source in sources if not source.is_cached(target)]
    missing.sort(key=lambda source: -source.length)
    with _workers(max(1, min(cores() // 2, len(missing))), niceness=10) as pool:
        for source in missing:
            pool.submit(_compile, source, target)
        yield


@contextmanager
def _workers(number: int, niceness: int = 0) -> Iterator[Executor]:
    """Return processes that compile; threads if this process must not be forked, as with MPI."""
    if sys.platform == "win32" or "mpi4py.MPI" in sys.modules:
        pool: Executor = ThreadPoolExecutor(number, "ganherd-compile")
    else:
        pool = ProcessPoolExecutor(number, get_context("fork"), _start_worker, (niceness,))
    try:
        with warnings.catch_warnings():  # Python warns of forks with threads; the workers use neither PyTorch nor CUDA
            warnings.simplefilter("ignore", DeprecationWarning)
            yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker(niceness: int) -> None:
    """Lower the priority, and leave Ctrl-C to the parent."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _compile(source: KernelSource, target: GPUTarget) -> None:
    with suppress(Exception):
        source.compile(target)


def _as_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Undo what JSON did to the options of a kernel: it has lists where they have tuples."""
    return {name: _tuple(value) for name, value in options.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
