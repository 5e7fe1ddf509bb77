"""Write the reference pages that come from the code: `python docs/generate.py`.

Each page is a text with markers; what stands between them is replaced. `make test` fails if a page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "src" / "ganherd"
REFERENCE = DOCS / "reference"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


# -- modules ----------------------------------------------------------------------------------------------------------


def summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def layers() -> tuple[str, ...]:
    """Return the packages, bottom first, from the list in the architecture page."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = text.partition("<!-- layers -->")[2].partition("```")[2].partition("```")[0]
    return tuple(re.findall(r"^(\w+)/", listed, flags=re.M))


def modules_section() -> str:
    """Return a table of modules for every package, in the order of the layers."""
    blocks = []
    for layer in layers():
        folder = PACKAGE / layer
        for package in sorted([folder, *folder.rglob("*")]) if folder.is_dir() else ():
            files = [file for file in sorted(package.glob("*.py")) if file.stem != "__init__"]
            if not files:
                continue
            name = package.relative_to(PACKAGE).as_posix()
            rows = [(f"`{file.relative_to(PACKAGE).as_posix()}`", summary(file)) for file in files]
            title = "##" if package == folder else "###"
            blocks += [f"{title} `{name}/`", summary(package / "__init__.py"), table(("module", "purpose"), rows)]
    rows = [(f"`{file.name}`", summary(file)) for file in sorted(PACKAGE.glob("*.py"))]
    return "\n\n".join([*blocks, "## The top", table(("module", "purpose"), rows)])


# -- recipe keys ------------------------------------------------------------------------------------------------------


def recipe_section() -> str:
    """Return a table of keys for each section of a recipe."""
    from ganherd.recipe.reference.key_reference import key_sections

    blocks = []
    for section in key_sections():
        rows = [(f"`{key.key}`", key.values, key.default, key.meaning) for key in section.keys]
        blocks += [
            f"## `{section.name}`" if section.name else "## Top level",
            *([section.about] if section.about and section.name else []),
            table(("key", "value", "default", "meaning"), rows),
        ]
    return "\n\n".join(blocks)


def nets_section() -> str:
    """Return the nets that a recipe can name, with their settings."""
    from ganherd.util.registry import DISCRIMINATORS, GENERATORS

    blocks = []
    for title, nets in (("Generators", GENERATORS), ("Discriminators", DISCRIMINATORS)):
        blocks.append(f"### {title}")
        rows = []
        for name, net in nets.items():
            settings = [f"`{key}` ({setting.default}): {setting.about}" for key, setting in net.settings.items()]
            rows.append((f"`{name}`", net.about, "<br>".join(settings) or "–"))
        blocks.append(table(("name", "what", "settings (default): meaning"), rows))
    return "\n\n".join(blocks)


def recipes_section() -> str:
    """Return the packaged recipes with their line about themselves."""
    from ganherd.recipe import recipe_file

    return table(("recipe", "what"), [(f"`{name}`", about) for name, about in recipe_file.names()])


# -- metrics and commands ---------------------------------------------------------------------------------------------

WHEN = {"train": "after training, and by `ganherd score`", "score": "by `ganherd score`", "asked": "only by name"}
NEEDS = {
    "needs_classes": "labels of at least two classes",
    "needs_asking": "members that represent classes",
    "needs_generators": "a mixture, not only samples",
    "contest": "at least two runs",
}


def metrics_section() -> str:
    """Return every metric with its direction and what it needs."""
    from ganherd.util.registry import METRICS

    rows = []
    for name, metric in METRICS.items():
        needs = ", ".join(words for key, words in NEEDS.items() if getattr(metric, key, False))
        rows.append((f"`{name}`", metric.about, metric.goal, needs or "–", WHEN[metric.when]))
    return table(("metric", "what it measures", "direction", "needs", "measured"), rows)


VALUES = {"bool": "", "Path": "path", "int": "whole number", "float": "number", "str": "text"}


def commands_section() -> str:
    """Return every command with its help, arguments and options."""
    from ganherd.cli.main import command_group

    return "\n\n".join(_command(command_group(), "ganherd"))


def _command(command: Any, name: str) -> Iterator[str]:
    depth = name.count(" ")
    if depth:
        yield f"{'#' * (depth + 1)} {name}"
        yield " ".join(inspect.cleandoc(command.help or "").split())
    if hasattr(command, "commands"):
        for each, inner in command.commands.items():
            yield from _command(inner, f"{name} {each}")
        return
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    shown = [each for each in command.params if each.name != "help" and not getattr(each, "hidden", False)]
    rows = [_parameter(each, hints.get(each.name)) for each in shown]
    if rows:
        yield table(("argument or option", "value", "default", "meaning"), rows)
    if command.epilog:
        yield "```sh\n" + "\n".join(line.strip() for line in command.epilog.splitlines()[1:]) + "\n```"


def _parameter(parameter: Any, hint: Any) -> tuple[str, str, str, str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = names[0].startswith("-")
    shown = ", ".join(f"`{name}`" for name in names) if is_option else f"`{parameter.metavar or names[0].upper()}`"
    if typing.get_origin(hint) is typing.Literal:
        kind = ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    else:
        kind = next((words for name, words in VALUES.items() if name in str(hint)), "")
    default = parameter.default
    absent = callable(default) or default is None or default is False or default in ("", (), [])
    words = "required" if parameter.required else "–" if absent else f"`{default}`"
    value = parameter.metavar if is_option and parameter.metavar else kind
    return shown, value, words, " ".join((getattr(parameter, "help", None) or "").split())


# -- the Python API ----------------------------------------------------------------------------------------------------

API_ORDER = (
    "train", "resume", "open", "runs", "load", "compare", "Run", "Mixture", "Samples", "Herd", "Callback", "TensorBoard",
    "WandB", "MLflow", "Recipe", "UserError", "Interrupted",
)  # fmt: skip
HIDDEN = {  # what users of the API do not need
    "Mixture": [
        "save",
        "images",
        "routes",
        "label_number",
        "member_weights",
        "generator",
        "prior_of",
        "weights_of",
        "portable",
    ],
    "Callback": ["implements", "call", "fingerprint"],
}


def python_section() -> str:
    """Return every name of the Python API with its signature, its documentation and its methods."""
    import ganherd
    from ganherd import api
    from ganherd.compare import compare_named

    assert set(API_ORDER) == set(ganherd.__all__)
    blocks = []
    for name in API_ORDER:
        value = {"runs": api.runs, "compare": compare_named.compare}.get(name) or getattr(ganherd, name)
        blocks.append(f"## `ganherd.{name}`")
        if not inspect.isclass(value):
            blocks += _documented(value, f"ganherd.{name}")
        elif name in ("Recipe", "UserError", "Interrupted", "Samples", "Mixture"):
            blocks += _text(value)
        else:
            own = vars(value).get("__init__")
            blocks += [_signature(own, name)] if own else []
            blocks += [*_text(value), *(_text(own) if own and own.__doc__ else [])]
        if inspect.isclass(value) and name in ("Run", "Mixture", "Samples", "Herd", "Callback"):
            rows = []
            for member, own in vars(value).items():
                is_call = inspect.isfunction(own)
                is_hidden = member.startswith("_") or member in HIDDEN.get(name, ())
                if is_hidden or not (is_call or isinstance(own, property)):
                    continue
                shown = f"{member}{_arguments(own)}" if is_call else member
                rows.append((f"`{shown}`", _first(own)))
            blocks.append(table(("attribute or method", "meaning"), rows))
    return "\n\n".join(block for block in blocks if block)


def _documented(function: Any, name: str) -> list[str]:
    return [_signature(function, name), *_text(function)]


def _signature(function: Any, name: str) -> str:
    lines = [f"    {argument}," for argument in _parameters(function)]
    return "```text\n" + "\n".join([f"{name}(", *lines, ")"]) + "\n```"


def _parameters(function: Any) -> list[str]:
    """Return the parameters as they are written, without those that are private."""
    out, keyword = [], False
    for each in inspect.signature(function).parameters.values():
        if each.name == "self" or each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not keyword:
            out.append("*")
        keyword |= each.kind is each.KEYWORD_ONLY
        stars = {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "")
        default = "" if each.default is each.empty else " = ..." if callable(each.default) else f" = {each.default!r}"
        out.append(f"{stars}{each.name}: {each.annotation}{default}")
    return out


def _arguments(function: Any) -> str:
    return f"({', '.join(one.partition(':')[0] for one in _parameters(function) if one != '*')})"


def _first(value: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _text(value: Any) -> list[str]:
    """Return a docstring as Markdown: paragraphs, a table of arguments, and examples."""
    doc = inspect.getdoc(value) or ""
    prose, _, examples = doc.partition("\n>>> ")
    blocks = []
    for part in re.split(r"\n\s*\n", prose):
        head, _, rest = part.partition("\n")
        if head in ("Args:", "Raises:", "Returns:"):
            entries = re.split(r"\n(?=    \S)", f"\n{rest}")
            rows = [" ".join(entry.split()).partition(": ") for entry in entries if entry.strip()]
            if head == "Args:":
                blocks.append(table(("argument", "meaning"), [(f"`{name}`", meaning) for name, _, meaning in rows]))
            else:
                blocks.append(f"{head[:-1]}: " + "; ".join("".join(row).rstrip(".") for row in rows) + ".")
        else:
            blocks.append(" ".join(part.split()))
    return [*blocks, *([f"```pycon\n>>> {examples.strip()}\n```"] if examples else [])]


# -- pages ------------------------------------------------------------------------------------------------------------

PAGES = {
    "modules": {"modules": modules_section},
    "recipe": {"keys": recipe_section, "nets": nets_section, "recipes": recipes_section},
    "metrics": {"metrics": metrics_section},
    "commands": {"commands": commands_section},
    "python": {"python": python_section},
}


def replaced(text: str, name: str, content: str) -> str:
    """Return the text with the part between the markers of that name replaced."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    assert text.count(begin) == text.count(end) == 1, f"the markers of {name} are missing"
    content = re.sub(r"\n{3,}", "\n\n", content.strip())
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n\n{content}\n\n{end}", text, flags=re.S)


def pages() -> dict[Path, str]:
    """Return every page that has generated parts, as it should be."""
    texts = {}
    for page, parts in PAGES.items():
        path = REFERENCE / f"{page}.md"
        text = path.read_text(encoding="utf-8")
        for name, content in parts.items():
            text = replaced(text, name, content())
        texts[path] = text
    return texts


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        print(page.relative_to(DOCS.parent))
