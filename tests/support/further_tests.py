"""Divide the suite: `make test` shows every property, `make test-all` also shows it in all further cases.

`@pytest.mark.further` marks a test that only `make test-all` runs. A test with parameters can be divided:
`@pytest.mark.further("forked-5")` names its further cases by their ids, `@pytest.mark.further(but=["mpi-3"])` those that
stay in `make test`, and `@pytest.mark.further(but=EACH_VALUE)` leaves as many there that every value of every parameter
occurs at least once. Pytest without `--further` runs everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

EACH_VALUE = "each value"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--further",
        choices=("with", "without", "only"),
        default="with",
        help="Whether to run the further cases that `make test` leaves to `make test-all`.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the further cases, or all others."""
    wanted = config.getoption("--further")
    if wanted == "with":
        return
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    further = _further(items, is_whole)
    left_out = [item for item in items if (item in further) == (wanted == "without")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if (item in further) != (wanted == "without")]


def _further(items: Sequence[pytest.Item], is_whole: bool) -> set[pytest.Item]:
    """Return the further cases. `is_whole`: all tests were collected, so that every case that is named must be there."""
    tests: dict[str, list[tuple[pytest.Item, pytest.Mark]]] = {}
    for item in items:
        if mark := item.get_closest_marker("further"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append((item, mark))
    further: set[pytest.Item] = set()
    for name, marked in tests.items():
        cases = {_id(item): item for item, _ in marked}
        named, but = marked[0][1].args, marked[0][1].kwargs.get("but", ())
        if but == EACH_VALUE:
            but = [list(cases)[number] for number in each_value([_values(case) for case in cases.values()])]
        unknown = {*named, *but} - cases.keys()
        assert not (is_whole and unknown), f"{name} has no case {', '.join(sorted(unknown))}"
        further.update(cases[case] for case in (named or cases.keys() - set(but)) if case in cases)
    return further


def _id(item: pytest.Item) -> str:
    return item.name.partition("[")[2].removesuffix("]")


def _values(item: pytest.Item) -> dict[str, int]:
    """Return the parameters of a case; equal values have equal numbers."""
    parameters: dict[str, Any] = getattr(item, "callspec").params  # noqa: B009  of functions with parameters only
    return {name: id(value) for name, value in parameters.items()}


def each_value(cases: Sequence[dict[str, int]]) -> list[int]:
    """Return the numbers of a few cases in which every value of every parameter occurs.

    >>> each_value([{"net": net, "loss": loss} for net in range(3) for loss in range(2)])
    [0, 3, 4]
    """
    missing = {pair for case in cases for pair in case.items()}
    chosen: list[int] = []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(missing & set(cases[number].items())))
        chosen.append(best)
        missing -= set(cases[best].items())
    return chosen
