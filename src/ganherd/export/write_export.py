"""Export a run: load its mixture, write it in one of the formats, and compare the result with ganherd's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ganherd.util import files
from ganherd.util.errors import UserError

Format = Literal["torch", "onnx", "hub", "html"]
_SUFFIXES = {"onnx": ".onnx", "html": ".html"}  # formats that are one file


@dataclass(frozen=True)
class ExportRecord:
    """What was exported, and how much its samples differ from those of ganherd."""

    path: Path  # the file or folder
    num_bytes: int
    members: int
    parameters: int
    difference: float  # the largest between any two values; in grey levels for images
    unit: str  # of the difference
    checked: int  # number of samples that were compared
    program: str  # the program that computed the exported samples, e.g. "ONNX Runtime"


def check_target(output: Path, kind: Format) -> None:
    """Check that a format can be written to a path, and that its packages are installed.

    Raises:
        UserError: The path has the wrong suffix, is a folder instead of a file, is a folder that is not empty, or a
            package is missing.
    """
    for package in ("onnx", "onnxruntime") if kind == "onnx" else ():
        if find_spec(package) is None:
            raise UserError(f"the package {package} is missing: run `pip install 'ganherd[export]'`.")
    suffix = _SUFFIXES.get(kind)
    try:
        if suffix is None:
            if output.exists() and (not output.is_dir() or any(output.iterdir())):
                raise UserError(f"-o {output} exists already and is not an empty folder; choose another.")
        elif output.suffix.lower() != suffix:
            raise UserError(f"-o {output}: --format {kind} writes one file, so its name must end with {suffix}.")
        elif output.is_dir():
            raise UserError(f"-o {output} is a folder; choose another name.")
    except OSError as error:
        raise UserError(f"-o {output} cannot be read: {error.strerror}.") from error


def write_export(
    run: Path,
    output: Path,
    kind: Format,
    member: int | None = None,
    replica: int = 0,
    licence: str = "",
    trust_code: bool = False,
) -> ExportRecord:
    """Export the mixture of a run, and return what was written. Call `check_target` first.

    Args:
        run: The run folder.
        output: The folder or file to write.
        kind: The format.
        member: Only this member; None: the whole mixture.
        replica: The replica to export.
        licence: The licence that a model card names; empty: a note that none was chosen.
        trust_code: Build nets that are not ganherd's; this runs their code.

    Raises:
        UserError: There is no such mixture, it cannot be exported, or exported samples differ from those of ganherd.
    """
    from ganherd.export.model_card import check_licence, write_card_files
    from ganherd.export.portable_model import CHECKED, check_against, portable_model
    from ganherd.mixture.mixture import load
    from ganherd.runs.folder import RunFolder

    check_licence(licence)
    mixture = load(run, trust_code)
    folder = RunFolder(run)
    model = portable_model(mixture, replica, member, folder.title)
    chosen = mixture if member is None else mixture.alone(member)
    seeds = range(CHECKED)
    program = "ONNX Runtime" if kind == "onnx" else "PyTorch"
    if kind != "onnx":
        difference = check_against(chosen, replica, model.loaded().sample(seeds)[0].numpy(), seeds)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if kind == "onnx":
            from ganherd.export.onnx_graph import run_onnx_file, write_onnx_file

            with files.replacing(output) as aside:
                write_onnx_file(model, aside)
                difference = check_against(chosen, replica, run_onnx_file(aside, seeds)[0], seeds)
        elif kind == "html":
            from ganherd.export.web_page import page_of

            files.atomic_write(output, page_of(model), sync=False)
        else:
            from ganherd.export.torch_folder import write_torch_folder

            write_torch_folder(model, output)
            if kind == "hub":
                write_card_files(output, folder, chosen, model, licence, replica, whole=member is None and replica == 0)
    except OSError as error:
        raise UserError(f"-o {output} cannot be written: {error.strerror}.") from error
    written = [path for path in output.rglob("*") if path.is_file()] if output.is_dir() else [output]
    num_bytes = sum(path.stat().st_size for path in written)
    grey = "grey level" if difference == 1 else "grey levels"
    unit = grey if mixture.is_image else "units of the data"
    return ExportRecord(
        output, num_bytes, len(model.facts["members"]), model.parameters, difference, unit, CHECKED, program
    )
