"""Write a portable model as one HTML file that draws samples in a browser: no server, no network, no other file.

The layers run in plain JavaScript (templates/kernels.js), which is fast enough for small nets. Weights are float32 in
base64.
"""

from __future__ import annotations

import base64
import html
import json
import re
from importlib.resources import files as resources
from typing import Any

from ganherd.export.portable_model import PortableModel, samplable_labels
from ganherd.util.errors import UserError

_MOST_PARAMETERS = 50_000_000  # about 270 MB of text, which browsers still open


def page_of(model: PortableModel) -> str:
    """Return the HTML page of a model: grey or colour images, or points in a plane.

    Raises:
        UserError: A browser cannot show the samples, or the model is too large for a page.
    """
    facts = model.facts
    shape = tuple(facts["shape"])
    if shape[0] not in (1, 3) if facts["image"] else shape != (2,):
        kind = f"images of {shape[0]} channels" if facts["image"] else f"rows of {shape[0]} numbers"
        raise UserError(
            f"--format html shows grey and colour images and points of 2 numbers, not {kind}: use torch or onnx."
        )
    if model.parameters > _MOST_PARAMETERS:
        raise UserError(
            f"this mixture has {model.parameters:,} parameters, and --format html takes at most {_MOST_PARAMETERS:,}: "
            "export one member with --member, or use --format onnx."
        )
    places: dict[str, Any] = {}
    content = bytearray()
    for name, value in model.tensors.items():
        places[name] = [len(content) // 4, len(value), list(value.shape[1:])]
        content += value.numpy().astype("<f4").tobytes()
    own = {"tensors": places, "samplable": samplable_labels(facts), "numbers": base64.b64encode(content).decode()}
    parts = {
        "TITLE": html.escape(f"{facts['title']}: samples"),
        "MODEL": json.dumps(facts | own).replace("<", "\\u003c"),  # nothing in it can end the script
        "SCRIPT": _template("kernels.js") + _template("page.js"),
    }
    return re.sub("@(TITLE|MODEL|SCRIPT)@", lambda match: parts[match[1]], _template("page.html"))


def _template(name: str) -> str:
    return (resources("ganherd.export") / "templates" / name).read_text(encoding="utf-8")
