"""Recognise a `data.source` that is a source of samples (tars, tables, or the Hugging Face Hub), and open it."""

from __future__ import annotations

from pathlib import Path

from ganherd.data.readers.files_by_format import is_cifar, is_idx
from ganherd.data.readers.image_tree import SPLITS, visible_entries
from ganherd.data.samples.hub import open_hub
from ganherd.data.samples.image_sample import SampleSource, with_splits
from ganherd.data.samples.image_tables import TableSource
from ganherd.data.samples.tar_files import IMAGE_SUFFIXES, TarSource, holds_cifar
from ganherd.recipe.plugins.recipe_plugins import is_named_source
from ganherd.recipe.sources.data_address import DataAddress, expand_pattern, parse_address
from ganherd.util.errors import UserError

_SUFFIXES = (".tar", ".parquet")
_INNER = ("data", *sorted(SPLITS))  # usual names of folders inside the folder of a data set


def is_sample_source(source: str) -> bool:
    """Return whether `data.source` names tars or tables of images, or a data set of the Hugging Face Hub."""
    if is_named_source(source):
        return False
    address = parse_address(source)
    if address.is_hub or address.is_pattern:
        return True
    path = Path(address.place)
    if path.is_file():
        return path.suffix.lower() == ".parquet" or (path.suffix.lower() == ".tar" and not holds_cifar(path))
    return bool(path.is_dir() and _files_of(path)) or bool(address.options)


def open_samples(source: str) -> SampleSource:
    """Open the source of samples (tars, tables, or the Hugging Face Hub) that `data.source` names, and return it.

    Raises:
        UserError: Its files are missing, of several kinds, or not readable.
    """
    address = parse_address(source)
    if address.is_hub:
        return open_hub(address)
    files = _list_files(address)
    kinds = {file.suffix.lower() for file in files}
    if len(kinds) > 1:
        raise UserError(f"{address.place} names tars and Parquet files; name those of one kind.")
    name = Path(address.place).name or address.place
    chosen = with_splits(files, name, address.options.get("split"))
    if kinds == {".tar"}:
        return TarSource(name, chosen, address.options)
    return TableSource(name, chosen, address.options)


def _list_files(address: DataAddress) -> list[Path]:
    path = Path(address.place)
    files = [Path(one) for one in expand_pattern(address.place)] if address.is_pattern else [path]
    if path.is_dir():
        files = _files_of(path)
    for file in files:
        if not file.is_file():
            raise UserError(f"there is no file {file}, which data.source names; check the name, or the pattern.")
        if file.suffix.lower() not in _SUFFIXES:
            raise UserError(f"{file} is no .tar or .parquet file: options (#…) and patterns ({{…}}) are for these.")
    if not files:
        raise UserError(f"{path} holds no .tar or .parquet files, and options are for these; leave #… out.")
    return files


def _files_of(folder: Path) -> list[Path]:
    """Return the tars or tables in a folder, in order; an empty list if the folder is another kind of data.

    Its folders `data`, `train` and `test` (or `val`) are searched, too. It is another kind of data if it holds image
    files, files of CIFAR or idx files, or any other folders.
    """
    if is_idx(folder) or is_cifar(folder):
        return []
    files: list[Path] = []
    entries = visible_entries(folder)
    inner = [Path(entry.path) for entry in entries if entry.is_dir()]
    if any(path.name.lower() not in _INNER for path in inner):
        return []
    for here in (folder, *inner):
        for entry in visible_entries(here):
            suffix = Path(entry.name).suffix.lower()
            if suffix.lstrip(".") in IMAGE_SUFFIXES or (here != folder and entry.is_dir()):
                return []
            if suffix in _SUFFIXES:
                files.append(Path(entry.path))
    return files
