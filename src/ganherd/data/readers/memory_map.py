"""Map arrays of bytes from files into memory, so that all processes of a machine share them without copies."""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
import zlib
from typing import IO

import numpy as np

from ganherd.data.arrays import Array

_LOCAL = 30  # bytes of a zip member's own header, before its name and its extra field


def map_bytes(file: IO[bytes], start: int, shape: tuple[int, ...]) -> Array:
    """Return the bytes of a file from `start` on as an array uint8 of this shape; changes to it never reach the file.

    Raises:
        ValueError: The file is too short.
    """
    size = math.prod(shape)
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if len(whole) < start + size:
        raise ValueError(f"it ends before the {size:,} bytes that it promises")
    return np.frombuffer(whole, np.uint8, size, start).reshape(shape)


def map_member(file: IO[bytes], archive: zipfile.ZipFile, key: str) -> Array | None:
    """Return an array of an .npz file as a memory map, after verifying its checksum.

    Args:
        file: The .npz file, opened for reading.
        archive: The same file as a zip archive.
        key: The name of the array.

    Returns:
        The array; None if it cannot be mapped because it is compressed, encrypted or not of type uint8.
    """
    info = archive.getinfo(f"{key}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:  # compressed, or encrypted
        return None
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            return None
        shape, by_columns, kind = np.lib.format.read_array_header_1_0(member)
        head = member.tell()
    if kind != np.uint8 or by_columns or not math.prod(shape) or head + math.prod(shape) != info.file_size:
        return None
    file.seek(info.header_offset)
    start = info.header_offset + _LOCAL + sum(struct.unpack("<HH", file.read(_LOCAL)[-4:]))
    stored = map_bytes(file, start, (info.file_size,))
    if zlib.crc32(stored.data) != info.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 of {key}")
    return stored[head:].reshape(shape)
