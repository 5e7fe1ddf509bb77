"""`hf:owner/name`: the library's local cache, splits and configurations; never code, and one sentence offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_python
from image_trees import refused
from sample_files import NAMES, hub_parquet, pixels, png

from ganherd.data.dataset import Dataset, load
from ganherd.data.samples import hub
from ganherd.recipe.schema import DataConfig

pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")


def read(source: str, **settings: Any) -> Dataset:
    return load(DataConfig(source=source, **{"holdout": 0.0, **settings}))


class FakeBuilder:
    """What `datasets.load_dataset_builder` returns: a builder whose splits are Arrow files."""

    splits: dict[str, list[Path]] = {}

    def download_and_prepare(self) -> None:
        """Leave everything as it is."""

    def as_dataset(self, in_memory: bool) -> dict[str, Any]:
        assert not in_memory
        return {
            split: types.SimpleNamespace(cache_files=[{"filename": str(file)} for file in files])
            for split, files in self.splits.items()
        }


def arrow(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow

    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(NAMES)}}
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return path


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a library in place of `datasets` that finds two splits in its cache, or raises the error of the test."""
    cache = tmp_path / "cache"
    inside = cache / "inside.png"
    cache.mkdir()
    inside.write_bytes(png(90))
    outside = tmp_path / "outside.png"
    outside.write_bytes(png(91))
    train = [{"image": {"bytes": png(i), "path": None}, "label": i % 3} for i in range(9)]
    train.append({"image": {"bytes": None, "path": str(inside)}, "label": 0})
    test = [{"image": {"bytes": png(i), "path": None}, "label": i % 3} for i in range(20, 24)]
    private = [{"image": {"bytes": None, "path": str(outside)}, "label": 0}]
    builder = type("Parquet", (FakeBuilder,), {"__module__": "datasets.packaged_modules.parquet.parquet"})
    builder.splits = {
        "train": [arrow(cache / "train.arrow", train)],
        "test": [arrow(cache / "test.arrow", test)],
        "private": [arrow(cache / "private.arrow", private)],
    }
    fake = types.ModuleType("datasets")
    fake.__version__ = "5.2.0"  # type: ignore[attr-defined]
    fake.config = types.SimpleNamespace(HF_DATASETS_CACHE=str(cache))  # type: ignore[attr-defined]
    fake.builder, fake.error, fake.calls = builder, None, []  # type: ignore[attr-defined]

    def load_dataset_builder(name: str, config: str | None) -> Any:
        fake.calls.append((name, config))
        if fake.error is not None:
            raise fake.error
        return fake.builder()

    fake.load_dataset_builder = load_dataset_builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.chdir(tmp_path)
    hub._arrow_files.cache_clear()
    yield fake
    hub._arrow_files.cache_clear()


def test_splits_labels_and_files_of_the_cache_are_read(library: Any) -> None:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    data = read("hf:someone/insects")
    assert data.labels == NAMES and (len(data.x), len(data.x_test)) == (10, 4)
    assert np.array_equal(data.x[9], pixels(png(90))) and np.array_equal(data.x_test[0], pixels(png(20)))
    assert len(read("hf:someone/insects#split=test").x) == 4
    assert library.calls == [("someone/insects", None)]
    read("hf:someone/insects/small")
    assert library.calls[-1] == ("someone/insects", "small")


def test_a_row_cannot_name_a_file_outside_of_the_cache(library: Any) -> None:
    assert "it names a file and holds no image" in refused(lambda: read("hf:someone/insects#split=private"))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ConnectionError("Couldn't reach 'a/b' on the Hub (OfflineModeIsEnabled)"),
            "is not in the local cache, and the",
        ),
        (
            RuntimeError("Dataset scripts are no longer supported, but found b.py"),
            "needs code of the Hub, which ganherd never",
        ),
        (
            type("DatasetNotFoundError", (Exception,), {})("no\nsuch"),
            "does not exist on the Hugging Face Hub, or is private",
        ),
        (ValueError("Config name is missing.\nPlease pick one"), "hf:a/b cannot be read: Config name is missing."),
    ],
)
def test_errors_of_the_library_are_one_sentence(library: Any, error: Exception, sentence: str) -> None:
    library.error = error
    assert sentence in refused(lambda: read("hf:a/b"))


def test_formats_that_could_load_pickles_are_refused(library: Any) -> None:
    library.builder = type("Pandas", (FakeBuilder,), {"__module__": "datasets.packaged_modules.pandas.pandas"})
    assert "its format is pandas" in refused(lambda: read("hf:a/b"))
    library.builder = type("Own", (FakeBuilder,), {"__module__": "datasets_modules.datasets.own"})
    assert "its format is own" in refused(lambda: read("hf:a/b"))


def test_wrong_names_splits_and_versions_are_one_sentence(library: Any, tmp_path: Path) -> None:
    assert "its splits are: train, test, private" in refused(lambda: read("hf:someone/insects#split=val"))
    assert "names no data set of the Hub" in refused(lambda: read("hf:../secret"))
    assert "names no data set of the Hub" in refused(lambda: read("hf:"))
    (tmp_path / "mnist").mkdir()
    assert "mnist is a file or folder here" in refused(lambda: read("hf:mnist"))
    library.__version__ = "3.6.0"
    assert "datasets 3.6.0 is too old" in refused(lambda: read("hf:other/insects"))


def test_without_the_library_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    hub._arrow_files.cache_clear()
    assert refused(lambda: read("hf:someone/none")) == (
        "reading hf:someone/none needs the package datasets: run `pip install 'ganherd[hf]'`."
    )


# --- the real library, in a separate process: it reads the environment when it is imported ---------------------------

CACHE = """
import json, shutil, sys
from pathlib import Path
import datasets
root = Path(sys.argv[1])
files = {split: str(root / f"{split}.parquet") for split in ("train", "test")}
there = Path(datasets.load_dataset("parquet", data_files=files)["train"].cache_files[0]["filename"]).parent
home = Path(datasets.config.HF_DATASETS_CACHE) / "someone___insects" / "default" / "0.0.0" / ("a" * 40)
shutil.copytree(there, home)
for file in home.glob("parquet-*.arrow"):
    file.rename(home / file.name.replace("parquet-", "insects-"))
info = json.loads((home / "dataset_info.json").read_text())
(home / "dataset_info.json").write_text(json.dumps({**info, "dataset_name": "insects", "config_name": "default"}))
"""
# Both commands in one process: the library takes seconds to import. The second one decides about the exit code.
INSPECT = """
import sys
from ganherd.cli.main import main
present, absent = sys.argv[1:]
sys.argv = ["ganherd", "data", "inspect", present, "--json"]
try:
    main()
except SystemExit as end:
    assert not end.code
sys.argv = ["ganherd", "data", "inspect", absent]
main()
"""


def test_the_library_finds_what_is_in_its_cache_offline(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs datasets (extra hf)")
    hub_parquet(tmp_path / "train.parquet", range(12))
    hub_parquet(tmp_path / "test.parquet", range(12, 17))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}

    def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [warm_python.python(), "-c", code, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)

    assert run(CACHE, str(tmp_path)).returncode == 0
    inspected = run(INSPECT, "hf:someone/insects", "hf:someone/absent")
    facts = json.loads(inspected.stdout)
    assert (facts["train"], facts["held_out"]) == (12, 5)
    assert [row["name"] for row in facts["classes"]] == list(NAMES)
    assert inspected.returncode == 2 and inspected.stderr.count("\n") == 1
    assert "hf:someone/absent is not in the local cache" in inspected.stderr
