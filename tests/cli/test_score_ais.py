"""AIS by the command: its images, variance, temperatures and chains are those that were asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from run_fixtures import Answer


def test_ais_is_made_with_what_was_asked_for(cli: Callable[..., Answer], run: Path) -> None:
    words = ("--ais-variance", 0.1, "--ais-temperatures", 4, "--ais-chains", 2)
    answer = cli("score", run, "--metrics", "ais", "-n", 3, *words, "--json", "-q")
    found = json.loads(answer.out)["scores"]["ais"]
    assert (found["samples"], found["variance"], found["temperatures"], found["chains"]) == (3, 0.1, 4, 2)
    answer = cli("score", run, "--metrics", "ais,diversity", "-n", 50, "--ais-points", 2, *words, "--json", "-q")
    both = json.loads(answer.out)["scores"]
    assert both["ais"]["samples"] == 2 and both["diversity"]["samples"] == 50


def test_its_options_without_it_are_refused(cli: Callable[..., Answer], run: Path) -> None:
    assert "--metrics ais" in cli("score", run, "--metrics", "diversity", "--ais-points", 4).sentence
