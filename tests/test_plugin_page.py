"""The how-to page about plug-ins: its blocks are one module and one recipe, which train, score and resume."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed_plugins import importable
from run_fixtures import Answer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "plugins.md"
FAST = [f"--set={text}" for text in ("engine.name=fused", "engine.threads=1", "engine.device=cpu", "run.watch.every=0")]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.further
@pytest.mark.usefixtures("brief_classifier")
def test_the_page_trains_scores_and_resumes(cli: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my_plugins.py").write_text("\n\n".join(blocks("python")))
    Path("mine.yaml").write_text("\n".join(blocks("yml")))
    with importable(Path.cwd() / "nothing", monkeypatch):
        assert cli("train", "mine.yaml", *FAST, "--run", "own", "--quiet").code == 0
        events = [json.loads(line)["event"] for line in Path("own/events.jsonl").read_text().splitlines()]
        assert events.count("average") == 3
        kinds = {plugin["kind"] for plugin in json.loads(Path("own/run.json").read_text())["plugins"]}
        assert kinds == {"strategy", "data source", "generator", "loss", "augmentation", "metric"}
        entry = json.loads(Path("own/scores.json").read_text())["scores"]["my_plugins:contrast(border=1)"]
        assert entry["interval"]["low"] < entry["value"] < entry["interval"]["high"] and entry["settings"] == {
            "border": 1
        }
        scored = cli(
            "score", "own", "--metrics", "my_plugins:contrast(border=2)", "-n", 30, "-q", "--json", "--trust-code"
        )
        assert list(json.loads(scored.out)["scores"]) == ["my_plugins:contrast(border=2)"]
        assert cli("train", "--resume", "own", "--budget", "24steps", "--quiet", "--trust-code").code == 0
    sys.modules.pop("my_plugins")


def test_every_group_of_entry_points_is_on_the_page() -> None:
    from installed_plugins import ALL

    named = set(re.findall(r"`(ganherd\.\w+)`", PAGE.read_text(encoding="utf-8")))
    assert {one.group for one in ALL if one.kind != "engine"} <= named
