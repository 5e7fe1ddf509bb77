"""Write a portable model as a folder for PyTorch: one safetensors file, and a loader that needs only PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch

from ganherd.export import loader
from ganherd.export.portable_model import PortableModel
from ganherd.util import files

MODEL, LOADER = "model.safetensors", "loader.py"


def write_torch_folder(model: PortableModel, folder: Path) -> None:
    """Write model.safetensors, whose header contains the layers and labels, and loader.py into a folder."""
    metadata = {"format": "pt", "ganherd": json.dumps(model.facts, ensure_ascii=False)}
    content = safetensors.torch.save(model.tensors, metadata)
    folder.mkdir(parents=True, exist_ok=True)
    files.atomic_write(folder / MODEL, content, sync=False)
    files.atomic_write(folder / LOADER, Path(loader.__file__).read_bytes(), sync=False)
