"""Prepare Triton's interpreter: skip work that it repeats, and repair what it cannot do with this version of numpy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _as_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or os.environ.get("TRITON_INTERPRET") != "1":
        return
    # the tests' shapes are too small for overflows of integers, and the search for them takes half of the time
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", _with_lengths(interpreter._patch_lang_tensor))
    monkeypatch.setattr(interpreter, "_patch_lang", _once_per_kernel(interpreter))
    core = sys.modules["triton.language.core"]
    monkeypatch.setattr(core.block_type, "with_element_ty", _shared_types(core.block_type))
    monkeypatch.setattr(core.tuple, "__init__", _without_type(core.tuple.__init__))
    monkeypatch.setattr(core.tuple, "type", _LazyType(core._type_for_tuple_values), raising=False)


def _with_lengths(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A loop may be as long as the kernel finds: that is an array of one, which numpy 2.4 no longer takes for a number."""

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def _once_per_kernel(interpreter: Any) -> Callable[[Any], Any]:
    """Patch the language that a kernel or a function uses only if it is not patched: a kernel may call many functions."""
    patch, language = interpreter._patch_lang, interpreter.tl

    @cache
    def modules_of(function: Any) -> list[Any]:
        return [module for module in (language, language.core) if module in function.__globals__.values()]

    def patched(function: Any) -> Any:
        is_patched = all(module.static_print is print for module in modules_of(function))
        return interpreter._LangPatchScope() if is_patched else patch(function)

    return patched


def _shared_types(block_type: Any) -> Callable[[Any, Any], Any]:
    """Make one type, instead of one for each value, of blocks of the same shape and numbers; pointers are not hashable."""
    make = cache(lambda element_type, *shape: block_type(element_type, list(shape)))

    def with_element_ty(self: Any, element_type: Any) -> Any:
        if element_type.is_ptr():
            return block_type(element_type, self.shape)
        return make(element_type, *self.shape)

    return with_element_ty


def _without_type(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.values = list(args)
        else:
            init(self, args, type)

    return __init__


class _LazyType:
    """The type of a tuple of Triton, computed when it is asked for: the interpreter makes thousands of tuples and asks for few."""

    def __init__(self, of_values: Callable[[Any], Any]) -> None:
        self._of_values = of_values

    def __get__(self, owner: Any, _: Any = None) -> Any:
        own = vars(owner)
        return own["type"] if "type" in own else self._of_values(owner.values)

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)["type"] = value
