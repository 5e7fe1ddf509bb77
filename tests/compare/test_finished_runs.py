"""`ganherd compare RUN RUN`: finished runs are compared as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from comparisons import METRICS, compared

from ganherd.compare.finished import finished_runs
from ganherd.data.dataset import load
from ganherd.runs.folder import RunFolder


def test_finished_runs_are_compared_as_they_are(cli, run, tmp_path) -> None:
    one, two = (Path(shutil.copytree(run, tmp_path / name)) for name in ("one", "two"))
    before = (one / "scores.json").read_bytes() if (one / "scores.json").is_file() else None
    facts = compared(cli, one, two)
    assert facts["answer"].startswith("diversity does not decide between them")
    assert "one seed each" in facts["answer"] and list(facts["bases"]) == ["runs"]
    after = (one / "scores.json").read_bytes() if (one / "scores.json").is_file() else None
    assert before == after  # scores of a run are not replaced by those of a comparison
    assert facts["bases"]["runs"]["entries"]["one"]["steps"] > 0
    assert compared(cli, one, two) == facts  # it may be repeated
    assert Path(facts["compare"], "compare.html").is_file()
    assert "is for recipes" in cli("compare", one, two, "--budget", "1steps").sentence
    assert "compare either recipes or finished runs" in cli("compare", one, "digits-wcgan").sentence
    assert "two different runs" in cli("compare", one, one).sentence
    other = Path(facts["compare"]) / "compare.json"
    other.write_text("{}")
    assert "holds no comparison of runs" in cli("compare", one, two, *METRICS).sentence


def test_runs_with_scores_by_different_networks_are_scored_by_one(cli: Any, run: Path, tmp_path: Path) -> None:
    one, two = (Path(shutil.copytree(run, tmp_path / name)) for name in ("one", "two"))
    for folder, network in ((one, "pixels"), (two, "classifier")):
        entry = {"value": 1.0, "real_samples": 9, "samples": 9, "network": network}
        (folder / "scores.json").write_text(json.dumps({"scores": {"fid": entry}}))
    answer = cli("compare", one, two, "--metrics", "kid", "-n", 40, "--json", "-q")
    entries = json.loads(answer.out)["bases"]["runs"]["entries"]
    networks = {row["scores"]["kid"]["network"] for row in entries.values()}
    assert len(networks) == 1 and "? measured" not in cli("compare", one, two, "--metrics", "kid", "-n", 40, "-v").out
    data = load(RunFolder(one).recipe.data)
    assert finished_runs._common_network([RunFolder(one), RunFolder(one)], data) == "pixels"


def test_the_folder_of_runs_with_long_names_can_be_made(cli: Any, run: Path, tmp_path: Path) -> None:
    paths = [Path(shutil.copytree(run, tmp_path / (letter * 200))) for letter in "ab"]
    assert len(Path(compared(cli, *paths)["compare"]).name) == 120
