"""Prepare Triton's interpreter: skip its search for GPUs, and repair what it cannot do with this version of numpy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _as_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return
    # the tests' shapes are too small for overflows of integers, and the search for them takes half of the time
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", _with_lengths(interpreter._patch_lang_tensor))


def _with_lengths(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A loop may be as long as the kernel finds: that is an array of one, which numpy 2.4 no longer takes for a number."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched
