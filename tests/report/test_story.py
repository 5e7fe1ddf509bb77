"""The head of a report: what was trained and changed, whether it worked, what to look at, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ganherd.recipe.schema import Recipe
from ganherd.report.gather import gather
from ganherd.report.herd_section import _alarms
from ganherd.report.run_page import render
from ganherd.report.runs_page import _differing
from ganherd.report.story_section import _answers, _hints, _origin
from ganherd.report.templating import with_code

MakeRun = Callable[..., Any]


def story_of(run: Any, data: Any = None, mixture: Any = None) -> Any:
    run.save()
    return gather(run, mixture, data)


def test_changes_of_the_recipe_are_named_exactly(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(recipe=Recipe(about="Ten small GANs"))
    assert _origin(story_of(run)) == ""  # older versions did not record it
    run.info_json |= {"recipe": "digits-wcgan", "changes": []}
    assert _origin(story_of(run)) == "The recipe digits-wcgan, with nothing changed."
    run.info_json |= {"changes": ["optim.lr_g=0.05", "herd.members=4"]}
    story = story_of(run, fakes.images())
    page = render(story)
    assert _origin(story) == "Changed from the recipe digits-wcgan:" and ">optim.lr_g=0.05</code>" in page
    assert "Ten small GANs" not in page.partition("</header>")[0]  # it describes the recipe, not this run


def test_a_verdict_is_followed_by_the_fid_of_real_data(make_run: MakeRun, fakes: Any) -> None:
    data, run = fakes.images(), make_run()
    ends = {"low": 4.0, "high": 6.0, "level": 0.95, "how": "bootstrap"}
    fid = {"value": 5.0, "interval": ends, "by_chance": 1.5, "samples": 50, "seed": 0, "network": "pixels"}
    member = {"name": "member 7 (7)", "member": 7, "word": "collapsed", "reason": "its samples hardly vary"}
    verdict = {"word": "collapsed", "reason": "1 of 10 members is not good", "step": 3000, "members": [member]}
    (run.path / "scores.json").write_text(json.dumps({"scores": {"fid": fid}, "verdict": verdict}))
    story = story_of(run, data, fakes.mixture(data))
    (word, reason, style), (score, numbers, _) = _answers(story)
    assert (word.text, reason, style) == ("Collapsed", ": 1 of 10 members is not good.", "verdict bad")
    assert (
        score.text == "FID 5.000"
        and numbers == " (95 % interval 4.000 to 6.000; real data against real data has 1.500)."
    )
    hints = dict(_hints(story))
    assert (
        hints["Member 7 (7), which is collapsed"] == "member-7"
        and hints["Scores unlike those of real data: FID"] == "scores"
    )


def test_advice_to_train_longer_is_a_command_for_this_run(make_run: MakeRun, fakes: Any) -> None:
    data, run = fakes.images(), make_run()
    longer = "train longer, for example: ganherd train --resume RUN --budget +1000steps"
    verdict = {"word": "undertrained", "reason": "its samples hardly vary", "step": 3000, "try_next": longer}
    (run.path / "scores.json").write_text(json.dumps({"scores": {}, "verdict": verdict}))
    _, reason, _ = next(_answers(story_of(run, data, fakes.mixture(data))))
    assert reason.endswith(f": ganherd train --resume {run.path} --budget +1000steps.")


def test_settings_that_are_empty_or_missing_do_not_differ() -> None:
    each = [
        {"code": "/nets", "nets.generator.settings": {}, "optim.lr_g": 0.1},
        {"code": [], "nets.generator.settings.width": 128, "optim.lr_g": 0.1},
    ]
    rows = _differing([SimpleNamespace(embedded={"facts": {"settings": settings}}) for settings in each])  # type: ignore[misc]
    assert [[cell.text for cell in row] for row in rows] == [
        ["code", "/nets", "–"],
        ["nets.generator.settings.width", "–", "128"],
    ]


def test_a_verdict_is_shown_if_the_mixture_cannot_be_read(make_run: MakeRun) -> None:
    run = make_run()
    run.info_json["step"] = 3000
    for step, judged in ((3000, "collapsed"), (2000, None)):
        verdict = {"word": "collapsed", "reason": "its samples hardly vary", "step": step}
        (run.path / "scores.json").write_text(json.dumps({"scores": {}, "verdict": verdict}))
        story = story_of(run)  # as if its nets were a stranger's
        assert getattr(story.judged, "word", None) == judged


def test_training_time_of_a_finished_run_is_the_one_in_its_records(make_run: MakeRun) -> None:
    run = make_run()
    recorded = run.metric_lines[-1]["seconds"]
    assert story_of(run).seconds == recorded
    run.info_json["seconds"] = recorded + 0.6
    assert story_of(run).seconds == recorded + 0.6
    run.info_json["state"] = "running"
    assert story_of(run).seconds == recorded


def test_a_checkpoint_that_was_better_than_the_last_is_a_hint(make_run: MakeRun) -> None:
    lines = [{"step": s, "event": "checkpoint", "score": score} for s, score in ((0, 1.0), (1000, 0.1), (2000, 0.4))]
    run = make_run(event_lines=lines)
    assert (
        dict(_hints(story_of(run)))["The distance to the data was smallest at step 1,000, not at the end"] == "course"
    )
    improving = replace(run, event_lines=lines[:2])
    assert not any("smallest" in text for text, _ in _hints(story_of(improving)))


def test_alarms_are_sentences_with_advice_until_they_are_over(make_run: MakeRun) -> None:
    lines = [
        {"step": 300, "event": "alarm", "what": "collapse", "member": 7},
        {"step": 400, "event": "alarm", "what": "cycling", "member": 2},
        {"step": 500, "event": "nan", "member": 3},
        {"step": 500, "event": "repair", "member": 3, "policy": "rollback"},
        {"step": 900, "event": "calm", "what": "cycling", "member": 2},
        {"step": 950, "event": "alarm", "what": "unheard of", "member": 1},
    ]
    advice = "Try a lower optim.lr_g, a higher train.n_critic or another loss.name."
    assert _alarms(story_of(make_run(event_lines=lines))) == [
        ("300", f"Member 7 (7): its samples are hardly varied any more. {advice}"),
        ("400", "Member 2 (2): its samples go round and come back to where they were; it was over at step 900."),
        ("500", "Member 3 (3): it turned NaN; it was repaired at step 500."),
    ]


def test_navigation_leads_to_sections_that_exist(make_run: MakeRun, fakes: Any) -> None:
    import re

    data = fakes.images()
    page = render(story_of(make_run(labels=data.labels), data, fakes.mixture(data)))
    targets, ids = re.findall(r'href="#([^"]*)"', page), re.findall(r' id="([^"]+)"', page)
    assert {"samples", "course", "scores", "members", "events", "use", "settings"} <= set(targets) <= set(ids)
    assert len(ids) == len(set(ids)) and "grid" not in ids and "meetings" not in ids


def test_commands_name_the_run(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(records=20, state="interrupted")
    page = render(story_of(run))
    assert (
        f"ganherd train --resume {run.path}</code>" in page
        and "ganherd check" not in page.partition("How to use it")[2]
    )


def test_a_killed_run_is_not_called_running(make_run: MakeRun) -> None:
    run = make_run(records=3, state="running")
    run.info_json |= {"host": "", "members": 10}
    story = story_of(run)
    assert story.state != "finished" and all(style.startswith("verdict") for _, _, style in _answers(story))


def test_backticks_become_code_and_everything_else_stays_text() -> None:
    assert with_code("a ` b <i>") == "a ` b &lt;i&gt;"
    assert with_code("`<x>` and `y`") == "<code>&lt;x&gt;</code> and <code>y</code>"
