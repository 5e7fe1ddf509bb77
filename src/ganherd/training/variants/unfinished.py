"""Make a mixture of a run that is not finished, from its newest checkpoint. Nothing is written to the run."""

from __future__ import annotations

from pathlib import Path

from ganherd.herd import rng
from ganherd.mixture.mixture import Mixture
from ganherd.recipe import trust
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import finish
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.identity import check_joined, recorded_part, recorded_streams, take_up
from ganherd.util.errors import UserError


def load_unfinished(run: str | Path, trust_code: bool = False) -> Mixture:
    """Return a mixture of all members as they were at the newest checkpoint that is not damaged.

    Mixture weights that a cellular herd has evolved are not used: every member of a class has the same weight.

    Args:
        trust_code: Whether to build nets that are not ganherd's, which runs their code.
    """
    folder = RunFolder.open(run)
    info = folder.info
    check_joined(info, folder)
    if recorded_part(info, folder) is not None:
        raise UserError(f"{folder.path} is one of several parts of a run: sample the run when all parts are joined.")
    if trust_code:
        trust.vouch(folder.recipe)
    # Without trust, no code is imported from the folders that the recipe names.
    recipe = folder.recipe if trust_code else folder.recipe.model_copy(update={"code": []})
    with rng.using(recorded_streams(info, folder)):
        prepared = assemble(recipe, trust_code, begins=False)
        if info.data != prepared.dataset.digest:
            raise UserError(f"the data of {folder.path} has changed since it was started (its sha256 differs).")
        newest, _ = checkpoint.newest(folder.checkpoints, prepared.herd.nets)
        take_up(prepared, newest)
        return finish.make_mixture(prepared, newest.step)
