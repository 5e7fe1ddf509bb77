"""The folders of data and cache: which variables name them, and that one place in the code reads these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ganherd
from ganherd.util.errors import UserError
from ganherd.util.paths import cache_home, data_home

HOMES = {"GANHERD_DATA": data_home, "GANHERD_CACHE": cache_home}


@pytest.mark.parametrize("variable", HOMES)
def test_a_variable_names_the_folder(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert HOMES[variable]() == tmp_path


@pytest.mark.parametrize("variable", HOMES)
@pytest.mark.parametrize("value", ["", None])
def test_an_empty_variable_counts_as_unset(
    variable: str, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False) if value is None else monkeypatch.setenv(variable, value)
    assert HOMES[variable]() == tmp_path / ".cache" / "ganherd"


@pytest.mark.parametrize("variable", HOMES)
def test_a_relative_folder_or_one_below_home_becomes_absolute(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in ("here", "~/here"):
        monkeypatch.setenv(variable, value)
        assert HOMES[variable]() == tmp_path / "here"


def test_an_unknown_home_folder_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_CACHE", "~no-such-user/cache")
    with pytest.raises(UserError, match="The home folder is unknown. Set HOME, or set GANHERD_CACHE to a folder."):
        cache_home()


def test_no_other_module_reads_the_variables_or_the_home_folder() -> None:
    package = Path(ganherd.__file__).parent
    asks = re.compile(r"environ.*GANHERD_(?:DATA|CACHE)|Path\.home\(\)|[\"']~/")
    readers = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if asks.search(p.read_text())}
    assert readers == {"util/paths.py"}
