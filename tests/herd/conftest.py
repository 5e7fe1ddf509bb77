"""Where kernels run by Triton's interpreter, it does not look for overflows of integers: that takes half of its time."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest


@pytest.fixture(autouse=True)
def _no_search_for_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' shapes are too small for any; compiled kernels do not look either."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None:
        builder = interpreter.interpreter_builder
        monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
