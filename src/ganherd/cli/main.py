"""Register the commands of the command line, and turn errors into messages and exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ganherd.cli.commands.choosing import best, ensemble
from ganherd.cli.commands.compare import compare
from ganherd.cli.commands.doctor import doctor
from ganherd.cli.commands.export import export
from ganherd.cli.commands.figures import figures, film
from ganherd.cli.commands.recipes import recipes
from ganherd.cli.commands.report import report
from ganherd.cli.commands.sample import sample
from ganherd.cli.commands.score import score
from ganherd.cli.commands.status import check, status
from ganherd.cli.commands.sweep import sweep
from ganherd.cli.commands.train import train
from ganherd.cli.commands.ui import ui
from ganherd.cli.groups.bench import bench_app
from ganherd.cli.groups.data import data_app
from ganherd.cli.groups.launch import launch_app
from ganherd.cli.groups.runs import runs_app
from ganherd.cli.options import examples
from ganherd.cli.suggestions import instead_of_command, instead_of_option
from ganherd.util.errors import Interrupted, RunFailed, UserError
from ganherd.util.terminal.standard_streams import (
    BROKEN_PIPE,
    ResultStream,
    flush_all,
    reserve_descriptors,
    safe_streams,
)
from ganherd.util.text import say, show


class GroupedCommands(TyperGroup):
    """List the commands by task in the help of the program.

    The help is plain text, because it must appear at once and the library rich takes time to load.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rich_markup_mode = None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each task, which lists its commands with the first sentence of their help."""
        panels = {name: str(getattr(command, "rich_help_panel", "")) for name, command in self.commands.items()}
        for panel in dict.fromkeys((_TRAIN, _RESULTS, _RUNS, _INPUT, _MACHINE, *panels.values())):
            names = [name for name, own in panels.items() if own == panel]
            if names:
                with formatter.section(panel or "Others"):
                    formatter.write_dl([(name, _first_sentence(self.commands[name].help)) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each on a line."""
        formatter.write(f"\n{self.epilog}\n")


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a help text.

    >>> _first_sentence("Draw runs. If interrupted, continue.")
    'Draw runs.'
    """
    return re.split(r"(?<=\.)\s", (text or "").strip(), maxsplit=1)[0]


app = typer.Typer(
    name="ganherd", help="Train many GANs as one.", no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, cls=GroupedCommands,
    epilog=examples("ganherd train", "ganherd train pictures", "ganherd sample @last -n 64 -o grid.png"),
)  # fmt: skip
_TRAIN, _RESULTS, _RUNS, _INPUT, _MACHINE = "Train", "Results", "Runs", "Data and recipes", "This machine"
_COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    (_TRAIN, train, ("ganherd train", "ganherd train pictures --budget 10m", "ganherd train mnist-wcgan --set train.batch=32",
                     "ganherd train --resume @last --budget +200steps")),
    (_TRAIN, compare, ("ganherd compare digits-wcgan digits-nonsat --budget 60s",
                       "ganherd compare digits-wcgan --vary optim.lr_g=1e-4,5e-4")),
    (_TRAIN, sweep, ("ganherd sweep digits-wcgan --vary optim.lr_g=1e-5..1e-2 --trials 16 --budget 2m",
                     "ganherd sweep digits-wcgan --vary loss.name=hinge,wasserstein-gp --seeds 3")),
    (_RESULTS, sample, ("ganherd sample @last -n 64 -o grid.png", "ganherd sample @last --per-class 100 -o made/")),
    (_RESULTS, score, ("ganherd score @last", "ganherd score --real pictures --fake made")),
    (_RESULTS, check, ("ganherd check @last", "ganherd check @last --json")),
    (_RESULTS, report, ("ganherd report @last",)),
    (_RESULTS, figures, ("ganherd figures runs/a runs/b -o figures",)),
    (_RESULTS, film, ("ganherd film @last -o herd.gif", "ganherd film @last -o herd.mp4 --seconds 30 --width 1080")),
    (_RESULTS, export, ("ganherd export @last -o model", "ganherd export @last --format onnx -o model.onnx",
                        "ganherd export @last --format html -o model.html")),
    (_RESULTS, best, ("ganherd best @last", "ganherd best @last --by gam2")),
    (_RESULTS, ensemble, ("ganherd ensemble @last --size 3",)),
    (_RUNS, status, ("ganherd status @last",)),
    (_RUNS, ui, ("ganherd ui", "ganherd ui runs/00001-digits-wcgan", "ganherd ui --host 0.0.0.0")),
    (_INPUT, recipes, ("ganherd recipes", "ganherd recipes digits-wcgan > mine.yaml", "ganherd recipes --keys lr",
                       "ganherd recipes --schema > ganherd.schema.json")),
    (_MACHINE, doctor, ("ganherd doctor", "ganherd doctor --warm cifar10-wcgan-paper")),
)  # fmt: skip
for panel, command, lines in _COMMANDS:
    app.command(rich_help_panel=panel, epilog=examples(*lines))(command)
app.add_typer(launch_app, name="launch", rich_help_panel=_TRAIN)
app.add_typer(runs_app, name="runs", rich_help_panel=_RUNS)
app.add_typer(data_app, name="data", rich_help_panel=_INPUT)
app.add_typer(bench_app, name="bench", rich_help_panel=_MACHINE)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from ganherd.util.version import __version__

        print(f"ganherd {__version__}")
        raise typer.Exit()


@cache
def command_group() -> TyperGroup:
    """Return the group of all commands with their arguments, which is built once per process because that is slow."""
    group = typer.main.get_command(app)  # includes the options that install shell completion
    assert isinstance(group, TyperGroup)
    _hide_types_of_flags(group)
    return group


def _hide_types_of_flags(command: Any) -> None:
    """Show no type in the help next to options that take no value, for this command and its subcommands."""
    for param in command.params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    names = ["-h", "--help"]  # the context of a call has them too, and keeps the option that is created here
    command.get_help_option(command.context_class(command, help_option_names=names)).metavar = ""
    for below in getattr(command, "commands", {}).values():
        _hide_types_of_flags(below)


def main() -> None:
    """Run the command in sys.argv and exit with its code. A user's error is reported in one sentence on stderr."""
    # Set before torch is loaded. Otherwise waiting threads spin, and two threads on a shared core are 50 times slower
    # than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    reserve_descriptors()
    with safe_streams("stderr"), safe_streams("stdout", kind=ResultStream):
        code = _code_of_command()
        flush_all()
    raise SystemExit(code)


def _code_of_command() -> int:
    """Run the command in sys.argv, print errors of users as sentences, and return the exit code."""
    try:
        code = command_group()(standalone_mode=False, prog_name="ganherd")
        sys.stdout.flush()  # flush here, so that a failure to write is reported in a sentence
    except UserError as error:
        return _end(str(error), 2)
    except Interrupted as error:
        return _end(str(error), 75)
    except RunFailed as error:
        return _end(str(error), 1)
    except KeyboardInterrupt:
        return _end("interrupted.", 130)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer converts it to an exit
            return BROKEN_PIPE
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _end(f"{where}{error.strerror or error}.", 2)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            if text := error.format_message():  # type: ignore[attr-defined]
                show(text)  # empty if it was printed already
            return 0
        if hasattr(error, "format_message"):  # an error of typer, e.g. a misspelt option or a missing argument
            return _end(_usage_sentence(error), 2)
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # Python wraps it inside a class body
            return _end("interrupted.", 130)
        raise
    return code if isinstance(code, int) else 0


def _usage_sentence(error: Any) -> str:
    """Return a sentence about an error of typer in options or arguments, with a suggestion and the command for help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "ganherd"
    said, hint = error.format_message().rstrip(".").replace(": Value error, ", ": "), ""
    if option := getattr(error, "option_name", None):
        if type(error).__name__ == "NoSuchOption":
            known = [name for each in context.command.params for name in each.opts] if context else []
            said, hint = error.message.rstrip("."), instead_of_option(option, known)
    elif match := re.match(r"No such command '([^']*)'", said):
        known = list(context.command.commands) if context else []
        said, hint = match[0], instead_of_command(match[1], known)
    elif path.endswith(" train") and said.startswith("Got unexpected extra argument"):
        hint = "`ganherd train FOLDER --recipe RECIPE` to train a recipe on your own data"
    if hint and not hint.startswith("did you mean"):
        hint = f"use {hint}"
    return f"{said}{f'; {hint}' if hint else ''}{'' if hint.endswith('?') else '.'} See `{path} --help`."


def _end(sentence: str, code: int) -> int:
    say(f"ganherd: {sentence}")
    return code


if __name__ == "__main__":
    main()
