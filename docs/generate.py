"""Write the parts of the documentation that are generated from the code: `python docs/generate.py`.

`make test` fails if they are out of date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "src" / "ganherd"


def summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def modules_section(layers: tuple[str, ...]) -> str:
    """Return a table of modules for every package, in the order of the layers."""
    blocks = []
    for layer in layers:
        folder = PACKAGE / layer
        for package in sorted([folder, *folder.rglob("*")]) if folder.is_dir() else ():
            files = [file for file in sorted(package.glob("*.py")) if file.stem != "__init__"]
            if not files:
                continue
            name = package.relative_to(PACKAGE).as_posix()
            rows = [f"| `{file.relative_to(PACKAGE).as_posix()}` | {summary(file)} |" for file in files]
            blocks.append(
                "\n".join(
                    [
                        f"**`{name}/`** {summary(package / '__init__.py')}",
                        "",
                        "| module | purpose |",
                        "|---|---|",
                        *rows,
                    ]
                )
            )
    top = [f"| `{file.name}` | {summary(file)} |" for file in sorted(PACKAGE.glob("*.py"))]
    blocks.append("\n".join(["**The top**", "", "| module | purpose |", "|---|---|", *top]))
    return "\n\n".join(blocks)


def replaced(text: str, name: str, content: str) -> str:
    """Return the text with the part between the markers of that name replaced."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    assert text.count(begin) == text.count(end) == 1, f"the markers of {name} are missing"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n\n{content}\n\n{end}", text, flags=re.S)


def layers() -> tuple[str, ...]:
    """Return the packages, bottom first, from the list in the architecture page."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = text.partition("<!-- layers -->")[2].partition("```")[2].partition("```")[0]
    return tuple(re.findall(r"^(\w+)/", listed, flags=re.M))


def pages() -> dict[Path, str]:
    """Return every page that has generated parts, as it should be."""
    path = DOCS / "architecture.md"
    return {path: replaced(path.read_text(encoding="utf-8"), "modules", modules_section(layers()))}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        print(page.relative_to(DOCS.parent))
