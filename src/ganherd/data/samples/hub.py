"""Read a data set of the Hugging Face Hub, `hf:owner/name`, with the library `datasets`. Code of the Hub is never run.

The library downloads the data set to its local cache, unless it is there already, and converts it to Arrow files, which
`image_tables` reads.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ganherd.data.samples.image_sample import choose_splits
from ganherd.data.samples.image_tables import TableSource
from ganherd.recipe.sources.data_address import HUB, DataAddress
from ganherd.util.errors import UserError, first_line

# The library's readers that are permitted: they parse images and tables, and run no code. Its reader `pandas` loads
# pickles.
_READERS = ("arrow", "cache", "imagefolder", "parquet", "webdataset")
_OFFLINE = ("ConnectionError", "OfflineModeIsEnabled", "ConnectTimeout", "LocalEntryNotFoundError", "ConnectError")


def open_hub(address: DataAddress) -> TableSource:
    """Download a data set of the Hub unless it is in the cache, and return its images as a source of samples.

    Args:
        address: `hf:name`, `hf:owner/name` or `hf:owner/name/config`, with the options config, split, image and label.

    Raises:
        UserError: There is no such data set or split, or it cannot be read.
    """
    name, config = _parse(address)
    by_split, folders, is_cached = _arrow_files(name, config)
    wanted = address.options.get("split")
    if wanted is not None and wanted not in by_split:
        raise UserError(f"{address.place} has no split {wanted!r}; its splits are: {', '.join(by_split)}.")
    if wanted is None and len(by_split) > 1 and "train" not in by_split:
        raise UserError(
            f"{address.place} has the splits {', '.join(by_split)}; choose one with {address.place}#split={next(iter(by_split))}."
        )
    only = by_split[wanted or next(iter(by_split))] if wanted or len(by_split) == 1 else by_split["train"]
    files = (None if wanted else choose_splits(by_split)) or [(file, "train") for file in only]
    notes = ["the Hub cannot be reached: read as it was downloaded last"] if is_cached else []
    return TableSource(address.place, files, address.options, "arrow", folders, notes)


def _parse(address: DataAddress) -> tuple[str, str | None]:
    """Return the name of the data set and its configuration; None for the default one."""
    parts = address.place.removeprefix(HUB).split("/")
    if not all(parts) or len(parts) > 3 or any(part.startswith(".") for part in parts):
        raise UserError(f"{address.place!r} names no data set of the Hub; write hf:owner/name or hf:owner/name/config.")
    config = address.options.get("config")
    if len(parts) == 3 and config is not None:
        raise UserError(f"{address.place} names a configuration, and #config={config} names another; leave one out.")
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else config


@functools.cache  # every try to reach the Hub takes half a minute if there is no network
def _arrow_files(name: str, config: str | None) -> tuple[dict[str, list[Path]], list[Path], bool]:
    """Download a data set unless it is in the cache.

    Returns:
        Its Arrow files by split, the folders of the cache, and whether the cache was used because the Hub cannot be reached.
    """
    try:
        import datasets
        from huggingface_hub import constants
    except ImportError:
        raise UserError(f"reading {HUB}{name} needs the package datasets: run `pip install 'ganherd[hf]'`.") from None
    if int(datasets.__version__.partition(".")[0]) < 4:  # older ones can run scripts of the Hub
        raise UserError(f"datasets {datasets.__version__} is too old for ganherd: run `pip install -U 'ganherd[hf]'`.")
    if os.path.exists(name):  # the library would read this instead
        raise UserError(
            f"{name} is a file or folder here, and not the data set of the Hub; run this in another folder."
        )
    with _one_sentence(name):
        builder = datasets.load_dataset_builder(name, config)
        reader = type(builder).__module__.split(".")
        if reader[:2] != ["datasets", "packaged_modules"] or reader[2] not in _READERS:
            raise UserError(
                f"{HUB}{name} holds no image files or tables that ganherd reads (its format is {reader[-1]}); export it as Parquet."
            )
        builder.download_and_prepare()
        splits: Mapping[str, Any] = builder.as_dataset(in_memory=False)
        by_split = {str(key): [Path(file["filename"]) for file in split.cache_files] for key, split in splits.items()}
    by_split = {split: files for split, files in by_split.items() if files}
    if not by_split:
        raise UserError(f"{HUB}{name} holds no rows; name another data set or configuration.")
    return by_split, [Path(datasets.config.HF_DATASETS_CACHE), Path(constants.HF_HUB_CACHE)], reader[2] == "cache"


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Turn any error of the library in the block into a UserError with one sentence, and silence its log messages."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("huggingface_hub", "datasets"))}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library and what it calls raise errors of many kinds
        chain, words = list[str](), ""
        cause: BaseException | None = error
        while cause is not None and len(chain) < 10:
            chain.append(type(cause).__name__)
            words += str(cause)
            cause = cause.__cause__ or cause.__context__
        if "scripts are no longer supported" in words or "trust_remote_code" in words:
            raise UserError(
                f"{HUB}{name} needs code of the Hub, which ganherd never runs; name a version of it in Parquet."
            ) from error
        if any(one in chain for one in _OFFLINE) or "Couldn't reach" in words or "offline" in words.lower():
            raise UserError(
                f"{HUB}{name} is not in the local cache, and the Hugging Face Hub cannot be reached; connect this machine, or copy "
                "the cache (HF_HOME) of one where it was read."
            ) from error
        if "DatasetNotFoundError" in chain:
            raise UserError(
                f"{HUB}{name} does not exist on the Hugging Face Hub, or is private; check the name, or run `hf auth login`."
            ) from error
        raise UserError(f"{HUB}{name} cannot be read: {first_line(error)}.") from error
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
