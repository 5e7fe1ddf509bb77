"""Write the reference pages that come from the code: `python docs/generate.py`.

Each page is a text with markers; what stands between them is replaced. `make test` fails if a page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
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

# What the schema's own types look like in a recipe.
TYPES = {
    "Budget": "steps, epochs or time",
    "Bytes": "size of memory",
    "DecayPerMember": "number in [0, 1), or a list with one per member",
    "Device": "`auto`, `cpu`, `cuda` or `cuda:N`",
    "Graph": "list of lists of cells",
    "Layers": "list of names",
    "LossName": "name of a loss",
    "NetConfig": "name of a net, or a section",
    "PerMember": "number, or a list with one per member",
    "Positive": "number ≥ 0",
    "Span": "steps, epochs or a fraction of the run",
    "Steps": "number of steps",
    "bool": "`true` or `false`",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
# Meanings of keys that have no comment in the schema.
MEANINGS = {
    "nets.discriminator": "the discriminator of each member",
    "nets.breeds.generator": "the generator of these members",
    "strategy.name": "which members meet",
    "strategy.share.discriminator": "parameters of the discriminators that are averaged, by name or by how names begin",
    "strategy.gap.swap": "which nets change places",
    "strategy.cellular.topology": "which cells are neighbours",
    "strategy.cellular.tournament": "individuals in a tournament",
    "strategy.cellular.rewire.topology": "which cells are neighbours from then on",
    "strategy.cellular.fitness.samples": "samples that individuals are judged on",
    "strategy.cellular.mutation.probability": "probability of a mutation of learning rates",
    "strategy.cellular.mutation.each": "how often learning rates mutate",
    "strategy.cellular.mutation.loss_each": "how often losses are drawn",
    "strategy.cellular.mixing.when": "when weights evolve",
    "strategy.cellular.mixing.sigma": "standard deviation of a mutation of weights",
}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def field_comments(section: type) -> dict[str, tuple[ast.AnnAssign, str]]:
    """Return each field of a section with its declaration and the comment above it or next to it."""
    source = textwrap.dedent(inspect.getsource(section))
    lines, fields = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            above = first
            while lines[above - 1].lstrip().startswith("#"):
                above -= 1
            comment = [line.strip().lstrip("# ") for line in lines[above:first]]
            comment += [line.partition("  # ")[2].strip() for line in lines[first : last + 1] if "  # " in line]
            fields[node.target.id] = node, " ".join(comment)
    return fields


def shown_type(node: ast.expr, section: type) -> str:
    """Return what a recipe may hold there, from the annotation in the source."""
    if isinstance(node, ast.BinOp):
        kinds = [shown_type(side, section) for side in (node.left, node.right)]
        return " or ".join(kind for kind in kinds if kind)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match ast.unparse(node.value):
            case "Literal":
                return ", ".join(f"`{ast.literal_eval(value)}`" for value in inner)
            case "Annotated":
                return shown_type(inner[0], section)
            case "list":
                return f"list of {shown_type(inner[0], section)}"
            case "dict":
                return "mapping"
            case "tuple":
                return "list of " + ", ".join(shown_type(each, section) for each in inner)
    name = ast.unparse(node)
    if name == "None":
        return ""
    alias = getattr(inspect.getmodule(section), name, None)
    if name not in TYPES and getattr(alias, "__origin__", None) is not None and "Literal" in repr(alias):
        return ", ".join(f"`{value}`" for value in alias.__args__)
    return TYPES.get(name, "section" if inspect.isclass(alias) else name)


def bounds(value: ast.expr | None) -> str:
    """Return the limits that a `Field(…)` sets, such as ` ≥ 1`."""
    if not isinstance(value, ast.Call):
        return ""
    limits = [f"{BOUNDS[k.arg]} {ast.unparse(k.value)}" for k in value.keywords if k.arg in BOUNDS]
    return f" {' and '.join(limits)}" if limits else ""


def shown_default(info: Any) -> str:
    """Return the default of a field as a recipe writes it."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if hasattr(value, "name") and hasattr(value, "settings"):  # a net
        return f"`{value.name}`"
    words = {None: "–", True: "`true`", False: "`false`", "": "–"}
    if value is None or (isinstance(value, (bool, str)) and value in words):
        return words[value]
    return "–" if value in ([], {}) else f"`{value}`"


def sections_in(annotation: Any) -> Iterator[type]:
    """Yield the sections that an annotation names, within unions and lists too."""
    from ganherd.recipe.base import Section

    if inspect.isclass(annotation) and issubclass(annotation, Section):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from sections_in(inner)


def choices(key: str) -> str:
    """Return the registered names that a key may have, if it names an entry of a registry."""
    from ganherd.util.registry import ENGINES, LOSSES, STRATEGIES

    names = {"strategy.name": [*STRATEGIES], "engine.name": ["auto", *ENGINES], "loss.name": [*LOSSES]}.get(key, [])
    return ", ".join(f"`{name}`" for name in names) + ("; or a list with one per member" if key == "loss.name" else "")


def recipe_tables(section: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, what the section is, table) for a section and all sections within it."""
    from ganherd.recipe.strategy_config import StrategyConfig
    from ganherd.util.registry import STRATEGIES

    rows, inner = [], []
    comments = field_comments(section)
    for name, info in section.model_fields.items():  # type: ignore[attr-defined]
        node, about = comments.get(name, (None, ""))
        key = f"{prefix}{info.alias or name}"
        below = list(sections_in(info.annotation))
        inner += [(f"{key}.", each) for each in below if each.__name__ != "NetConfig"]
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        if below and isinstance(default, below[0]) and below[0].__name__ != "NetConfig":
            continue  # it gets its own table
        shown = (shown_type(node.annotation, section) + bounds(node.value)) if node else ""
        shown = choices(key) or shown
        rows.append((f"`{key}`", shown, shown_default(info), info.description or about or MEANINGS.get(key, "")))
    if section is StrategyConfig:
        inner += [(f"{prefix}{spec.section or name}.", spec.settings) for name, spec in STRATEGIES.items()]
    if rows:
        own = (section.__doc__ or "").strip() if "__doc__" in vars(section) else ""
        yield prefix.rstrip("."), " ".join(own.split()), table(("key", "value", "default", "meaning"), rows)
    for name, each in inner:
        yield from recipe_tables(each, name)


def recipe_section() -> str:
    """Return a table of keys for each section of a recipe."""
    from ganherd.recipe.schema import Recipe

    blocks = []
    for key, about, rows in recipe_tables(Recipe):
        blocks += [f"## `{key}`" if key else "## Top level", *([about] if about and key else []), rows]
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


# -- pages ------------------------------------------------------------------------------------------------------------

PAGES = {
    "modules": {"modules": modules_section},
    "recipe": {"keys": recipe_section, "nets": nets_section, "recipes": recipes_section},
    "metrics": {"metrics": metrics_section},
    "commands": {"commands": commands_section},
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
