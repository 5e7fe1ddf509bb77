"""The version of ganherd, and the folder of its code."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).resolve().parents[1]
