"""Suggest what to type instead of an option or a command that ganherd does not have."""

from __future__ import annotations

from ganherd.util.text import did_you_mean

# Names of options in other programs, and what to use in ganherd instead.
_OPTIONS = {
    "seed": "--set run.seed=7, or --seeds 5 for several",
    "out": "--run FOLDER",
    "output": "--run FOLDER",
    "outdir": "--run FOLDER",
    "name": "--run FOLDER",
    "data": "`ganherd train FOLDER`",
    "workers": "--ranks for several processes",
    "continue": "--resume RUN",
    "config": "`ganherd train FILE.yaml`",
}
_LENGTHS = "--budget 20epochs, 5000steps or 10m"
# Names of commands in other programs, and what to use in ganherd instead.
_COMMANDS = {
    "help": "`ganherd --help`",
    "version": "`ganherd --version`",
    "list": "`ganherd runs` for runs, `ganherd recipes` for recipes, `ganherd data list` for data",
    "ls": "`ganherd runs`",
    "resume": "`ganherd train --resume RUN`",
    "continue": "`ganherd train --resume RUN`",
    "generate": "`ganherd sample RUN -o grid.png`",
    "evaluate": "`ganherd score RUN`",
    "eval": "`ganherd score RUN`",
    "fid": "`ganherd score RUN --metrics fid`",
    "clean": "`ganherd runs clean`",
    "rm": "`ganherd runs clean`",
    "delete": "`ganherd runs clean`",
    "tag": "`ganherd runs tag RUN NAME`",
    "inspect": "`ganherd data inspect FOLDER`",
    "prepare": "`ganherd data prepare FOLDER`",
    "download": "`ganherd data get NAME`",
    "get": "`ganherd data get NAME`",
    "slurm": "`ganherd launch slurm RECIPE`",
    "keys": "`ganherd recipes --keys`",
    "init": "`ganherd recipes digits-wcgan > mine.yaml`",
}


def instead_of_option(option: str, known: list[str]) -> str:
    """Return what to type instead of an unknown option; "" if nothing fits.

    Args:
        option: The unknown option.
        known: The options of the command.

    >>> instead_of_option("--lr", ["--set"]), instead_of_option("--epochs", ["--set", "--budget"])
    ('--set optim.lr_g=VALUE or --set optim.lr_d=VALUE', '--budget 20epochs, 5000steps or 10m')
    >>> instead_of_option("--bugdet", ["--set", "--budget"])
    "did you mean '--budget'?"
    """
    from ganherd.recipe.messages import also_called

    name = option.lstrip("-").partition("=")[0]
    if "--set" in known:
        keys = also_called(name)
        if keys == ("train.budget",) and "--budget" in known:
            return _LENGTHS
        if keys:
            return " or ".join(f"--set {key}=VALUE" for key in keys)
        if "--recipe" in known and name in _OPTIONS:  # options of `train`
            return _OPTIONS[name]
    return did_you_mean(option.partition("=")[0], known, "{}")


def instead_of_command(name: str, known: list[str]) -> str:
    """Return what to type instead of an unknown command; "" if nothing fits.

    >>> instead_of_command("resume", ["train"]), instead_of_command("trian", ["train"])
    ('`ganherd train --resume RUN`', "did you mean 'train'?")
    """
    return _COMMANDS.get(name.lower()) or did_you_mean(name, known, "{}")
