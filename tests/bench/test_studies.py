"""The studies in benchmarks/: every arm is a valid recipe, and slopes have the interval of their seeds."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ganherd.recipe.recipe_file import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def studies() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        module = importlib.import_module("studies")
    yield module
    sys.modules.pop("studies")


def test_every_arm_of_every_study_is_a_valid_recipe(studies: ModuleType) -> None:
    for study in studies.STUDIES.values():
        for arm in study.arms.values():
            name, _, seeds, *settings = studies.words(study, arm, 2, [])
            recipe = load(name, settings[1::2])
            assert seeds == "2" and settings[::2] == ["--set"] * (len(settings) // 2)
            assert recipe.strategy.name != "cellular" or recipe.strategy.cellular.mixing.keep == "last"


def test_the_policies_differ_from_the_default_in_their_settings_only(studies: ModuleType) -> None:
    study = studies.STUDIES["policies"]
    default, *others = (load(arm.recipe, [*study.settings, *arm.settings]) for arm in study.arms.values())
    assert default.loss.r1_weight == 1 and len(others) >= 3
    for other in others:
        changed = other.strategy.cellular.model_dump()
        same = default.strategy.cellular.model_dump()
        differs = {key for key in changed if changed[key] != same[key]}
        assert differs and differs <= {"opponents", "offspring", "survival", "max_age"}
        assert (other.loss, other.optim, other.nets) == (default.loss, default.optim, default.nets)


def test_a_slope_has_the_interval_of_its_seeds(studies: ModuleType) -> None:
    iterations = np.arange(50.0)[:, None]
    result = studies.slope(10 + iterations * np.array([-0.3, -0.1, -0.2]))
    np.testing.assert_allclose(result["each"], [-0.3, -0.1, -0.2])
    half = 4.302653 * 0.1 / np.sqrt(3)  # t quantile of two degrees of freedom
    np.testing.assert_allclose([result["mean"], result["low"], result["high"]], [-0.2, -0.2 - half, -0.2 + half], 1e-6)
    assert "low" not in studies.slope(iterations)
