"""Join the JavaScript modules in static/ into one script, which a page without a server can contain.

A browser loads no modules from `file://`. So each module becomes a function that returns its exports, and each import
reads from what an earlier function returned. Only the forms of import and export that occur in static/ are supported.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path

from ganherd.util.files import JsonObject

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([\w./-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)


@cache
def join_modules(entry: str) -> str:
    """Return a module of static/ and all modules that it imports as one script.

    Args:
        entry: The file name of the module.

    Raises:
        ValueError: A module uses an unsupported form of import or export, or modules import each other in a circle.
    """
    joined: dict[str, str] = {}
    _add(entry, joined, ())
    return "\n".join(['"use strict";', "const modules = {};", *joined.values()])


def _add(name: str, joined: dict[str, str], above: tuple[str, ...]) -> None:
    """Add a module as a function to `joined`, after the modules that it imports; `above` are those that import it."""
    if name in above:
        raise ValueError(f"{name} imports itself by way of {above[-1]}")
    if name in joined:
        return
    text = (STATIC / name).read_text(encoding="utf-8")
    for match in _IMPORT.finditer(text):
        _add(match[2], joined, (*above, name))
    names = ", ".join(match[2] for match in _EXPORT.finditer(text))
    text = _IMPORT.sub(
        lambda match: f"const {{ {match[1].replace(' as ', ': ')} }} = modules[{json.dumps(match[2])}];", text
    )
    text = _EXPORT.sub(r"\1 \2", text)
    if left := re.search(r"^(import|export)\b.*$|\bimport\(", text, re.MULTILINE):
        raise ValueError(f"{name}: {left[0]!r} cannot be joined")
    joined[name] = f"modules[{json.dumps(name)}] = (() => {{\n{text}\nreturn {{ {names} }};\n}})();"


def digest(script: str) -> str:
    """Return the script's hash as a content security policy names it (`script-src`), to allow this script and no other.

    >>> digest("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def data_block(content: list[JsonObject]) -> str:
    r"""Return JSON for a `<script>` element of a page, escaped so that no text in it can end the element.

    >>> data_block([{"name": "</script>"}])
    '[{"name":"\\u003c/script\\u003e"}]'
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
