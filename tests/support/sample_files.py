"""Small tars and tables of images for the tests of sources of samples."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAMES = ("ant", "bee", "cat")


def png(number: int, width: int = 6, height: int = 6, colour: bool = True) -> bytes:
    """Return a PNG of noise; other numbers give other images."""
    shape = (height, width, 3) if colour else (height, width)
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, np.uint8)).save(file, "PNG")
    return file.getvalue()


def pixels(data: bytes) -> Any:
    """Return the pixels of an image file, uint8 [C, H, W]."""
    values = np.asarray(Image.open(io.BytesIO(data)))
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """Write a tar with these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def labelled(numbers: Iterable[int], **options: Any) -> list[tuple[str, bytes]]:
    """Return the members of a tar: for each number an image, and a .cls with the number modulo 3."""
    members = []
    for i in numbers:
        members += [(f"{i:04}.png", png(i, **options)), (f"{i:04}.cls", str(i % 3).encode())]
    return members


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]], group: int = 100, hub: Any = None) -> Path:
    """Write a Parquet file; `hub` is what the Hugging Face Hub would note about the columns."""
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({name: list(values) for name, values in columns.items()})
    if hub is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": hub}})})
    parquet.write_table(table, path, row_group_size=group)
    return path


def hub_parquet(path: Path, numbers: Iterable[int], group: int = 100, **options: Any) -> Path:
    """Write a Parquet file as the Hub does: structs of bytes and path, and numbers of named classes."""
    numbers = list(numbers)
    columns: dict[str, list[Any]] = {
        "image": [{"bytes": png(i, **options), "path": f"{i}.png"} for i in numbers],
        "label": [i % 3 for i in numbers],
    }
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(NAMES)}}
    return write_parquet(path, columns, group, features)
