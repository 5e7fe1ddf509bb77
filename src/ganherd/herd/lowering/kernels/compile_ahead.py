"""Compile the kernels of a step in parallel processes, before the step runs.

Triton compiles a kernel when it is launched for the first time, and a step has about a hundred kernels that take a
second each. So a step is first run without launching any kernel that is not compiled yet, only to learn which kernels
it needs (`collected`). Processes then compile these kernels into Triton's cache on disk (`compile_kernels`), and the
step finds them there. The names in that cache are digests of a kernel's source, types, constants and target GPU;
therefore several users can share one cache.
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

Report = Callable[[int, int], None]  # shows progress: (number of kernels compiled so far, number to compile)

_FEW = 2  # up to this many missing kernels are left to the step, which compiles them at their first launch
_PATIENCE = 300.0  # seconds; if processes take longer, the step compiles what is missing


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel with the types and constants that it is compiled for, in a form that can be pickled."""

    module: str  # module and name of the kernel's function
    name: str
    signature: Mapping[str, Any]  # types of the arguments by name
    constants: Mapping[Any, Any]  # values of arguments that are known at compile time
    attributes: Mapping[Any, Any]  # what Triton knows of other arguments, e.g. that they are divisible by 16
    options: Mapping[str, Any]  # e.g. the number of warps

    @property
    def length(self) -> int:
        """Return the number of characters of the kernel's source: longer kernels take longer to compile."""
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
    """Replace `torch.empty` by `torch.zeros`, and `torch.empty_like` by `torch.zeros_like`.

    Kernels that are not launched do not fill their outputs. Zeros are valid as an index or as a draw, arbitrary memory
    is not.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        filled = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like}.get(func, func)
        return filled(*args, **(kwargs or {}))


class SharedKernelCache(FileCacheManager):
    """Triton's cache on disk, extended by a second, read-only folder of compiled kernels that many users share."""

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file in the user's cache or, if it is not there, in the shared one; otherwise None."""
        own: str | None = super().get_file(filename)
        return own or next((str(path) for path in self._shared(filename) if path.is_file()), None)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of a kernel's files by name, from the user's cache or the shared one; None if in neither."""
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
    """Make Triton store compiled kernels in ganherd's cache folder, unless TRITON_CACHE_DIR is set in the environment.

    If there is a shared cache, kernels are looked up there as well, unless TRITON_CACHE_MANAGER is set.
    """
    # Compute Triton's key, a hash of its library, ahead and in parallel: it takes half a second.
    Thread(target=triton_key, name="ganherd-triton-key", daemon=True).start()
    if "TRITON_CACHE_DIR" not in os.environ:
        knobs.cache.dir = str(cache_home() / "triton")
    if "TRITON_CACHE_MANAGER" not in os.environ and shared_cache():
        knobs.cache.manager_class = SharedKernelCache


@contextmanager
def collected() -> Iterator[list[KernelSource]]:
    """Skip launches of kernels that are not compiled yet, and yield a list that gets these kernels at the end."""
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
    """Compile kernels that Triton's cache does not have, in parallel processes, unless at most `_FEW` are missing.

    If a kernel cannot be compiled, no error is raised here: its first launch will try again and report the error.

    Args:
        sources: The kernels, as `collected` yields them.
        report: Gets the progress.
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
    """Compile kernels in processes of low priority while the context is open; cancel the remaining ones at its end."""
    target = driver.active.get_current_target()
    missing = [source for source in sources if not source.is_cached(target)]
    missing.sort(key=lambda source: -source.length)
    with _workers(max(1, min(cores() // 2, len(missing))), niceness=10) as pool:
        for source in missing:
            pool.submit(_compile, source, target)
        yield


@contextmanager
def _workers(number: int, niceness: int = 0) -> Iterator[Executor]:
    """Yield an executor of `number` processes, or of threads if this process cannot be forked safely (MPI, Windows).

    Args:
        niceness: How much lower the priority of the processes is than that of this one.
    """
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
    """Prepare a worker process: lower its priority, and ignore Ctrl-C, which the parent process handles."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _compile(source: KernelSource, target: GPUTarget) -> None:
    with suppress(Exception):
        source.compile(target)


def _as_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's options from JSON with lists turned into tuples, which JSON does not have."""
    return {name: _tuple(value) for name, value in options.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
