"""Build the herd of this process: all members, or those of one rank of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import Ranks, run_on_all_ranks
from ganherd.recipe.schema import Recipe
from ganherd.training.ranks import balance
from ganherd.training.setup import preflight
from ganherd.training.setup.assemble import PreparedHerd, put_together
from ganherd.training.setup.member_data import MemberData, cut

if TYPE_CHECKING:
    from ganherd.training.setup.run_source import RunSource


def build_herd(
    recipe: Recipe, source: RunSource, job: Communicator, trust_code: bool
) -> tuple[Ranks, PreparedHerd | None]:
    """Load the data, divide the members among the ranks and build this rank's herd.

    All ranks partition all of the data, which is cheap, so that each knows the data of every member. If the ranks differ in speed,
    the members are divided again by the measured speeds; a run that is resumed on the same hosts keeps its division of members.

    Args:
        job: All ranks.
        trust_code: Whether code of the user's own may be imported.

    Returns:
        The placement of members on ranks, and this rank's herd; the herd is None on a spare, which has no members.
    """

    def load() -> MemberData:
        data = cut(recipe, source.begins)
        source.accept_data(data)
        return data if source.part is None else data.select(source.part)

    def build() -> PreparedHerd | None:
        if not ranks.local_members:
            return None
        prepared = put_together(data, ranks, trust_code, source.begins)
        preflight.check_herd(prepared)
        return prepared

    data = run_on_all_ranks(job, load)
    if job.world_size == 1:
        ranks = Ranks.single_process(data.size)
        return ranks, build()
    members = data.size // data.recipe.herd.replicas
    is_known, weights = balance.known(source.placed_before, job.hosts) if data.recipe.engine.balance else (True, None)
    ranks = Ranks.distribute(job, data.recipe, members, weights)
    prepared = run_on_all_ranks(job, build)
    if not is_known and (weights := balance.balanced(ranks, prepared)) is not None:
        del prepared  # free its memory before the next herd is built
        ranks = Ranks.distribute(job, data.recipe, members, weights)
        prepared = run_on_all_ranks(job, build)
    return ranks, prepared
