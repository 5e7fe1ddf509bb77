"""Read WebDataset tars: files of a sample share their name up to the first dot, e.g. 0001.jpg, 0001.cls and 0001.json.

Nothing is unpacked to the disk. The headers of the archive give the position of each file, from which it is read.
"""

from __future__ import annotations

import itertools
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ganherd.data.readers.files_by_format import CIFAR_FILE, reading
from ganherd.data.samples.image_sample import (
    LABEL_NAMES,
    MOST_BYTES,
    UNIT,
    ImageSample,
    Label,
    SampleSource,
    SampleUnit,
    as_label,
)
from ganherd.util.errors import UserError
from ganherd.util.files import open_regular

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
_MOST_LABEL = 2**20  # bytes of a label; a longer one is no label

Fields = dict[str, tuple[int, int]]  # the files of a sample: position and size in the tar, by extension
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # first bytes of gzip, bzip2 and xz
_LABELS = ("cls", "json", "txt")  # extensions of files that hold labels, in the order in which they are tried


class TarSource(SampleSource):
    """Samples of one or more tars.

    The options `image` and `label` of the address choose files of a sample by their extension; `label` may also be a
    key in the .json file.
    """

    kind = "a tar of images"

    def __init__(self, name: str, files: Any, options: Mapping[str, str]) -> None:
        super().__init__(name, files)
        self.image, self.label = options.get("image"), options.get("label")
        self.guesses_labels = self.label is None

    @property
    def choice(self) -> tuple[str, ...]:
        return (self.image or "", self.label or "")

    def units(self) -> Iterator[SampleUnit]:
        for file, split in self.files:
            samples = list(_list_samples(file))
            if not samples:
                raise UserError(f"{file} holds no files; name another tar, or write it again.")
            for start in range(0, len(samples), UNIT):
                entries = tuple(samples[start : start + UNIT])
                yield SampleUnit(file, split, start, len(entries), entries)

    def read(self, unit: SampleUnit) -> Iterator[ImageSample]:
        with reading(unit.file, self.kind), open(open_regular(unit.file), "rb") as handle:
            for key, fields in unit.entries:
                yield self._sample(unit.file, handle, key, fields)

    def _sample(self, file: Path, handle: IO[bytes], key: str, fields: Fields) -> ImageSample:
        extension = self._image_of(file, key, fields)
        name = f"{file.name}/{key}.{extension or '…'}"
        if extension is None:
            has = f"it has {', '.join(fields)}" if self.image is None else f"it has no .{self.image}"
            return ImageSample(name, b"", problem=f"no image: {has}")
        if fields[extension][1] > MOST_BYTES:
            return ImageSample(name, b"", problem=f"it has {fields[extension][1]:,} bytes")
        try:
            return ImageSample(name, _bytes_at(handle, fields[extension]), self._label_of(handle, fields))
        except (ValueError, RecursionError) as error:
            return ImageSample(name, b"", problem=str(error) or "its label cannot be read")

    def _image_of(self, file: Path, key: str, fields: Fields) -> str | None:
        """Return the extension of a sample's image; None if it has none."""
        if self.image is not None:
            return self.image if self.image in fields else None
        images = [extension for extension in fields if extension.rpartition(".")[2] in IMAGE_SUFFIXES]
        if len(images) > 1:
            raise UserError(
                f"the sample {key} of {file} has several images ({', '.join(images)}); choose one with "
                f"{self.name}#image={images[0]}."
            )
        return images[0] if images else None

    def _label_of(self, handle: IO[bytes], fields: Fields) -> Label:
        """Return the label of a sample from its files; None if it has none. `handle` is the open tar."""
        wanted = self.label
        if wanted == "none":
            return None
        if wanted is not None and wanted not in fields:
            if "json" not in fields:
                raise ValueError(f"it has no .{wanted}")
            return _from_json(_label_bytes(handle, fields["json"]), (wanted,), must_have=True)
        for extension in _LABELS if wanted is None else (wanted,):
            if extension in fields:
                data = _label_bytes(handle, fields[extension])
                label = _from_json(data, LABEL_NAMES) if extension == "json" else _from_text(data)
                if label is not None:
                    return label
        return None


def holds_cifar(path: Path) -> bool:
    """Return whether an archive is taken for CIFAR: it is compressed, or one of its first files is named so."""
    names: list[str] = []
    with reading(path, "a tar"), open(open_regular(path), "rb") as handle:
        if handle.peek(6).startswith(_COMPRESSED):
            return True
        with suppress(tarfile.ReadError), tarfile.open(fileobj=handle, mode="r:") as archive:
            names += (member.name.rsplit("/", 1)[-1] for member in itertools.islice(archive, 16) if member.isreg())
    return any(CIFAR_FILE.fullmatch(name) for name in names)


def _list_samples(file: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the key (common name) and the files of each sample of a tar, from its headers."""
    current: tuple[str, Fields] | None = None
    for member in _members(file):
        folder, slash, base = member.name.rpartition("/")
        stem, _, extension = base.partition(".")
        if not stem or not extension or "__MACOSX" in folder:  # hidden, or not part of a sample
            continue
        key = f"{folder}{slash}{stem}"
        if current is None or current[0] != key:
            if current is not None:
                yield current
            current = (key, {})
        current[1][extension.lower()] = (member.offset_data, member.size)
    if current is not None:
        yield current


def _members(file: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of the regular files of a tar; raise a UserError if it is damaged or truncated."""
    with reading(file, "a tar of images"), open(open_regular(file), "rb") as handle:
        try:
            archive = tarfile.open(fileobj=handle, mode="r:")  # noqa: SIM115 - it holds nothing but the handle
        except tarfile.ReadError:
            raise ValueError("it is damaged, or no tar; get it again") from None
        try:
            for member in archive:
                if member.isreg() and not member.issparse():  # a sparse file unpacks to any size
                    yield member
        except tarfile.ReadError as error:
            raise ValueError(f"it is truncated ({error}); get it again") from None
        handle.seek(archive.offset)
        end = handle.read(tarfile.BLOCKSIZE)
        if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):  # tarfile takes this for the end
            raise ValueError(f"it is damaged or truncated at byte {archive.offset:,}; get it again")


def _bytes_at(handle: IO[bytes], place: tuple[int, int]) -> bytes:
    handle.seek(place[0])
    return handle.read(place[1])


def _label_bytes(handle: IO[bytes], place: tuple[int, int]) -> bytes:
    if place[1] > _MOST_LABEL:
        raise ValueError(f"its label has {place[1]:,} bytes")
    return _bytes_at(handle, place)


def _from_text(data: bytes) -> Label:
    """Return the label in a text file: a whole number if it is one, otherwise the text; None if it is empty."""
    text = data.decode("utf-8", "replace").strip()
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 12 else text or None


def _from_json(data: bytes, keys: tuple[str, ...], must_have: bool = False) -> Label:
    """Return the label in a JSON file: its value, or for an object the value of the first of `keys` that it has.

    Args:
        data: The content of the file.
        keys: Keys of an object that may hold the label.
        must_have: Raise a ValueError if it is not an object with one of the keys; otherwise the label is None then.
    """
    value = json.loads(data)
    if isinstance(value, dict):
        key = next((key for key in keys if key in value), None)
        if must_have and key is None:
            raise ValueError(f"its .json has no {keys[0]!r}")
        value = None if key is None else value[key]
    elif must_have:
        raise ValueError("its .json is not an object with keys")
    return as_label(value)
