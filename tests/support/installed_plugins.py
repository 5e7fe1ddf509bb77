"""Install packages with plug-ins into a folder that tests import from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ganherd.util import registry
from ganherd.util.registry import Registry

ALL: tuple[Registry[object], ...] = (
    registry.AUGMENTATIONS,
    registry.DATA_SOURCES,
    registry.DISCRIMINATORS,
    registry.ENGINES,
    registry.GENERATORS,
    registry.LOSSES,
    registry.METRICS,
    registry.STRATEGIES,
)  # type: ignore[assignment]


def write_package(site: Path, name: str, code: str, points: Mapping[str, Sequence[str]]) -> None:
    """Put a package of one module into a folder as an installer would; `points`: the names of its entries by group."""
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{entry} = {name}\n" for entry in names) for group, names in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


def pip_install(source: Path, site: Path) -> None:
    """Install a package into a folder with pip, without network."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@contextmanager
def importable(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import from a folder inside of this block, and forget afterwards what was registered and imported from it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(site))
    assert all(len(one) > 0 for one in ALL)  # ganherd's own entries are there now
    entries = {one: (dict(one._entries), dict(one._targets), set(one._vouched)) for one in ALL}
    try:
        yield
    finally:
        for one, (known, targets, vouched) in entries.items():
            one._entries, one._targets, one._vouched = known, targets, vouched
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(site)):
                del sys.modules[name]
        registry._entry_points.cache_clear()
