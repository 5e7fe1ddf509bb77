"""Let the site hold copies of the files outside of `docs/` that its pages link to: tests, results and pictures.

A hook of MkDocs. In the repository such links are relative paths; in the site they lead to `source/…`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PICTURES = {".png", ".jpg", ".svg"}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)[^)\s#]+(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of `docs/` that a page links to."""
    for page in files.documentation_pages():
        folder = (DOCS / page.src_uri).parent
        for link in _LINK.findall(page.content_string):
            target = (folder / link).resolve()
            if target.is_file() and not target.is_relative_to(DOCS) and not files.get_file_from_path(_uri(target)):
                files.append(File.generated(config, _uri(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links that leave `docs/` to the copies."""
    folder = (DOCS / page.file.src_uri).parent

    def copied(match: re.Match[str]) -> str:
        target = (folder / match[0]).resolve()
        if not target.is_file() or target.is_relative_to(DOCS):
            return match[0]
        return os.path.relpath(_uri(target), Path(page.file.src_uri).parent)

    return _LINK.sub(copied, markdown)


def _uri(target: Path) -> str:
    """Return the place of a copy in the site. Text gets the suffix .txt, so that browsers show it."""
    name = target.relative_to(ROOT).as_posix()
    return f"source/{name}" if target.suffix in PICTURES else f"source/{name}.txt"
