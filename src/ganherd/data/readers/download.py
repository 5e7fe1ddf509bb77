"""Download published data sets from their official addresses, and verify them by their checksums.

A file is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganherd.data.readers.named import find
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject, replacing
from ganherd.util.paths import data_home
from ganherd.util.registry import DATA_SOURCES
from ganherd.util.text import did_you_mean

TIMEOUT = 30  # seconds without a reply
BLOCK = 2**20  # bytes read at once


@dataclass(frozen=True)
class Download:
    """An official file: its address, its path below the data folder, and its checksum."""

    url: str
    path: str  # without .gz if the url has it: the file is then unpacked, so that ranks can share its memory map
    md5: str  # of the file at the address

    @property
    def packed(self) -> str:
        """The path at which a user may put the file as it is published, packed if its address ends with .gz."""
        return self.path + ".gz" * self.is_unpacked

    @property
    def is_unpacked(self) -> bool:
        return self.url.endswith(".gz") and not self.path.endswith(".gz")


_CIFAR = "https://www.cs.toronto.edu/~kriz"
_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_files(folder: str, url: str, *md5: str) -> tuple[Download, ...]:
    """Return the four files of a data set in the format of MNIST, with checksums in the order of `_IDX_FILES`.

    Args:
        folder: Their folder below the data folder.
        url: The address that contains them.
        md5: Their checksums.
    """
    return tuple(
        Download(f"{url}/{name}.gz", f"{folder}/{name}", own) for name, own in zip(_IDX_FILES, md5, strict=True)
    )


DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "mnist": _idx_files(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar10": (
        Download(f"{_CIFAR}/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    "cifar100": (
        Download(f"{_CIFAR}/cifar-100-binary.tar.gz", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
}


def list_sources() -> list[JsonObject]:
    """Return facts about every data source that a recipe can name, as plain values for JSON.

    They are its name, what it is (`about`), where its files belong (`where`), and whether they are there (`present`).
    """
    rows = []
    for name, source in DATA_SOURCES.items():
        path = find(name)
        where = "" if not source.places else str(path or data_home() / source.places[0])
        rows.append(
            {"name": name, "about": source.about, "where": where, "present": not source.places or path is not None}
        )
    for name, package in DATA_SOURCES.packages().items():
        rows.append({"name": name, "about": f"added by the package {package}", "where": "", "present": True})
    return rows


def get(name: str, downloads: Mapping[str, tuple[Download, ...]] = DOWNLOADS) -> JsonObject:
    """Download the files of a named data source that are not there yet, and return what was done, as values for JSON.

    Args:
        name: The name of the source.
        downloads: The files of each source.

    Raises:
        UserError: There is no such source, or a file cannot be fetched.
    """
    if not DATA_SOURCES.is_known(name):
        names = DATA_SOURCES.names()
        hint = did_you_mean(name, names, "{}") or f"there are {', '.join(names)}."
        raise UserError(f"there is no data set {name!r} to get; {hint}")
    fetched = []
    DATA_SOURCES.vouch(name)
    source = DATA_SOURCES[name]
    if source.places and find(name) is None:
        for item in downloads[source.made_of or name]:  # files that an interrupted call fetched are skipped
            if not any((data_home() / path).exists() for path in (item.path, item.packed)):
                fetched.append(str(_fetch(name, item)))
    return {"name": name, "where": str(find(name) or ""), "fetched": fetched}


def _fetch(name: str, item: Download) -> Path:
    """Download one file of a data set, check it, and return its path."""
    target = data_home() / item.path
    by_hand = f"fetch {item.url} by hand and put it at {data_home() / item.packed}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        request = urllib.request.Request(item.url, headers={"User-Agent": "ganherd"})
        with replacing(target) as temporary:
            with temporary.open("xb") as file, urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                digest = _copy(reply, file, target.name)
            if digest != item.md5:
                raise UserError(
                    f"the file fetched for {name} is not the published one (its checksum differs); {by_hand}."
                )
            if item.is_unpacked:
                temporary.write_bytes(gzip.decompress(temporary.read_bytes()))
    except (OSError, ValueError) as error:  # no network, no such host, no space, …
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{name} could not be fetched ({reason}); {by_hand}.") from None
    return target


def _copy(reply: Any, file: Any, label: str) -> str:
    """Copy an HTTP reply to a file, print progress to stderr, and return the MD5 of the content in hexadecimal."""
    total, done = int(reply.headers.get("Content-Length") or 0), 0
    digest = hashlib.md5(usedforsecurity=False)
    live = sys.stderr.isatty()
    while block := reply.read(BLOCK):
        file.write(block)
        digest.update(block)
        done += len(block)
        if live:
            share = f" of {total / 1e6:.1f} MB, {100 * done // total} %" if total else " MB"
            print(f"\r{label}: {done / 1e6:.1f}{share}", end="", file=sys.stderr, flush=True)
    if total and done < total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")
    print(f"\r{label}: {done / 1e6:.1f} MB" + " " * 20 * live, file=sys.stderr)
    return digest.hexdigest()
