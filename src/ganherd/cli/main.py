"""Register the commands of the command line, and turn errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ganherd.cli.commands.bench import bench_app
from ganherd.cli.commands.compare import compare
from ganherd.cli.commands.data import data_app
from ganherd.cli.commands.doctor import doctor
from ganherd.cli.commands.ensemble import ensemble
from ganherd.cli.commands.figures import figures
from ganherd.cli.commands.launch import launch_app
from ganherd.cli.commands.recipes import recipes
from ganherd.cli.commands.report import report
from ganherd.cli.commands.sample import sample
from ganherd.cli.commands.score import score
from ganherd.cli.commands.status import check, status
from ganherd.cli.commands.train import train
from ganherd.util.errors import Interrupted, RunFailed, UserError
from ganherd.util.standard_streams import BROKEN_PIPE, ResultStream, flush_all, reserve_descriptors, safe_streams
from ganherd.util.text import say, show

app = typer.Typer(
    name="ganherd", help="Train many GANs as one.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
for command in (train, sample, score, check, ensemble, compare, report, figures, status, recipes, doctor):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(launch_app, name="launch")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from ganherd.util.version import __version__

        print(f"ganherd {__version__}")
        raise typer.Exit()


def main() -> None:
    """Run a command and exit with its code. An error is reported in one sentence on stderr."""
    # Set before torch is loaded: otherwise waiting threads spin, and two on a shared core are 50 times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    reserve_descriptors()
    with safe_streams("stderr"), safe_streams("stdout", kind=ResultStream):
        code = _code_of_command()
        flush_all()
    raise SystemExit(code)


def _code_of_command() -> int:
    try:
        code = app(standalone_mode=False, prog_name="ganherd")
        sys.stdout.flush()  # here, so that a failure is reported in a sentence
    except UserError as error:
        return _end(str(error), 2)
    except Interrupted as error:
        return _end(str(error), 75)
    except RunFailed as error:
        return _end(str(error), 1)
    except KeyboardInterrupt:
        return _end("interrupted.", 130)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes an exit of it
            return BROKEN_PIPE
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _end(f"{where}{error.strerror or error}.", 2)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            show(error.format_message())  # type: ignore[attr-defined]
            return 0
        if hasattr(error, "format_message"):  # typer's own: a misspelt option, a missing argument
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "ganherd"
            return _end(f"{error.format_message().rstrip('.')}. See `{command} --help`.", 2)
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # as Python wraps it within a class
            return _end("interrupted.", 130)
        raise
    return code if isinstance(code, int) else 0


def _end(sentence: str, code: int) -> int:
    say(f"ganherd: {sentence}")
    return code


if __name__ == "__main__":
    main()
