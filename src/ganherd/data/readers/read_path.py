"""Read a file or a folder: its name or content decides which reader is used."""

from __future__ import annotations

from pathlib import Path

from ganherd.data.arrays import RawData
from ganherd.data.readers import files_by_format
from ganherd.data.readers.class_folders import read_folder
from ganherd.recipe import schema
from ganherd.util.errors import UserError


def read_path(path: Path, settings: schema.DataConfig, mapped: bool = False) -> RawData:
    """Read an .npz, .npy, idx or text file, CIFAR's archives, or a folder of images.

    Args:
        mapped: Map large arrays into memory instead of copying them; for files that do not change.
    """
    name = path.name.lower()
    if path.is_dir():
        if files_by_format.is_idx(path):
            return files_by_format.read_idx(path, mapped)
        return files_by_format.read_cifar(path) if files_by_format.is_cifar(path) else read_folder(path, settings)
    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder.")
    if name.endswith(".npz"):
        return files_by_format.read_npz(path, mapped)
    if name.endswith(".npy"):
        return files_by_format.read_npy(path)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return files_by_format.read_cifar(path)
    if name.endswith((".txt", ".csv", ".tsv")):
        return files_by_format.read_points(path)
    if "idx" in name or name.endswith("ubyte"):
        return files_by_format.read_idx_images(path)
    raise UserError(
        f"{path} is no data that ganherd reads: an .npz or .npy, idx files, CIFAR, points in .txt, or a folder of images."
    )
