"""What a run writes besides its state: lines, numbered folders, budgets, checkpoints that are kept, a look at the members."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch
from hypothesis import given
from hypothesis import strategies as st

import ganherd
from ganherd.api import PictureFinisher
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import parse_budget
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, next_path, saved_steps
from ganherd.runs.records import JsonLinesWriter, plain, significant
from ganherd.training.budget import Budget, Timing, plan_budget
from ganherd.training.closing_time import ClosingTime
from ganherd.training.recording.preview import Preview
from ganherd.training.setup.assemble import assemble
from ganherd.util import files
from ganherd.util.errors import UserError

# -- lines ------------------------------------------------------------------------------------------------------------


def test_lines_are_cut_back_to_where_a_checkpoint_left_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLinesWriter(path)
    lines.write({"step": 1})
    length = lines.flush()
    assert length == path.stat().st_size
    lines.write({"step": 2})
    lines.close()
    again = JsonLinesWriter(path, length)
    assert again.flush() == length
    again.write({"step": 2, "anew": True})
    again.close()
    assert run_files.json_lines(path) == [{"step": 1}, {"step": 2, "anew": True}]
    JsonLinesWriter(path).close()  # without a word it goes on at the end
    assert len(run_files.json_lines(path)) == 2
    JsonLinesWriter(path, 0).close()
    assert run_files.json_lines(path) == []


def test_a_line_is_on_its_way_to_the_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    lines = JsonLinesWriter(tmp_path / "events.jsonl")
    lines.write({"event": "nan"})
    assert run_files.json_lines(tmp_path / "events.jsonl") == [{"event": "nan"}]
    lines.close()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=8,
    )
)
def test_plain_is_always_strict_json(value: object) -> None:
    text = json.dumps(plain(value), allow_nan=False)
    assert plain(json.loads(text)) == json.loads(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_sums_survive_json_bit_for_bit(value: float) -> None:
    back = float(json.loads(json.dumps(plain([value])))[0])
    assert back.hex() == value.hex()


# -- folders ----------------------------------------------------------------------------------------------------------


def test_runs_are_numbered_after_the_highest(tmp_path: Path) -> None:
    assert next_path(tmp_path / "runs", "digits") == tmp_path / "runs" / "00001-digits"
    for name in ("00001-a", "00007-b", "notes", "123-c", "99-d", "x00009-e"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert next_path(tmp_path / "runs", "digits").name == "00008-digits"
    (tmp_path / "runs" / "99999-e").mkdir()
    assert next_path(tmp_path / "runs", "digits").name == "100000-digits"
    (tmp_path / "runs" / "100000-f").mkdir()
    assert next_path(tmp_path / "runs", "digits").name == "100001-digits"


def test_a_folder_with_anything_in_it_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty").path.is_dir()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("thesis", "file"):
        with pytest.raises(UserError, match="exists already; choose another --run"):
            RunFolder.create(tmp_path / name)
    with pytest.raises(UserError, match="cannot be"):
        RunFolder.create(tmp_path / "file" / "run")


def test_what_is_no_run_folder_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(tmp_path)
    folder = RunFolder(tmp_path)
    for content in ("", "[1, 2]", '{"half": '):
        folder.info_path.write_text(content)
        with pytest.raises(UserError, match="is .* a run folder"):
            _ = folder.info


@pytest.mark.parametrize("info", [{}, {"engine": {"name": "fused"}}, {"engine": 3, "budget": {}}])
def test_a_run_that_does_not_say_its_engine_and_budget_is_refused(
    tmp_path: Path, info: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "1steps"))
    data = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "data": data}))
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 2
    assert "cannot be resumed exactly" in capsys.readouterr().err


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    files.atomic_write(path, "old")
    with processes.dying_after(1, tmp_path), pytest.raises(processes.Killed):
        files.atomic_write(path, "new")
    assert path.read_text() == "old"
    files.atomic_write(path, "new")
    assert path.read_text() == "new"
    files.sweep(tmp_path, seconds=-1)  # what the killed process left
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_a_resume_removes_what_a_killed_process_left_in_any_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    run = RunFolder(tmp_path / "run")
    tiny_runs.train(run.path, recipes.noise_recipe(tmp_path, "3steps"))
    left = [folder / f"{files.NEW}0123456789abcdef.png" for folder in (run.path, run.samples, run.mixture)]
    fresh = run.mixture / f"{files.NEW}fedcba9876543210.png"  # may still be being written
    for path in (*left, fresh):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    for path in left:
        os.utime(path, (0, 0))
    tiny_runs.resume(run.path, "4steps")
    assert [path for path in left if path.exists()] == [] and fresh.exists()


# -- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("1", ("steps", 1)),
        ("1step", ("steps", 1)),
        (" 5000 steps ", ("steps", 5000)),
        ("1e3steps", ("steps", 1000)),
        ("0.5epochs", ("epochs", 0.5)),
        ("0.1s", ("seconds", 0.1)),
        ("1.5m", ("seconds", 90)),
        ("2H", ("seconds", 7200)),
    ],
)
def test_budgets_as_people_write_them(text: str, parsed: tuple[str, float]) -> None:
    assert parse_budget(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-3s", "1.5steps", "10x", "s", "1e999s", "nan", "inf h", "1 000", "٣s"]
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match="must be steps, epochs or time above zero"):
        parse_budget(text)


@given(st.floats(0.01, 1000), st.floats(0.1, 500))
def test_epochs_are_rounded_up_to_whole_steps(epochs: float, steps_per_epoch: float) -> None:
    text = f"{epochs:.4f}epochs"
    amount = parse_budget(text)[1]
    budget = plan_budget(text, steps_per_epoch, lambda: pytest.fail("no need to measure"))
    assert budget.steps >= 1 and budget.deadline is None
    assert budget.steps >= amount * steps_per_epoch - 1e-6 and budget.steps - 1 < amount * steps_per_epoch


@given(st.floats(0.1, 1e5), st.floats(1e-3, 1e5), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_time_becomes_steps_that_leave_room_for_the_start_and_the_mixture(
    seconds: float, rate: float, start: float, mixture: float
) -> None:
    closing = ClosingTime(mixture)
    budget = plan_budget(f"{seconds:.3f}s", 1.0, lambda: Timing(rate, start, closing))
    assert budget.deadline == round(seconds, 3) - start and budget.steps >= 1
    assert budget.limit == max(0.0, budget.deadline - closing.seconds)
    assert budget.steps == 1 or budget.steps / rate <= budget.limit
    assert budget.record() == {"steps": budget.steps, "deadline": budget.deadline}


def test_a_time_for_training_alone_reserves_nothing_and_records_it() -> None:
    budget = plan_budget("20s", 1.0, lambda: Timing(5.0))
    assert (budget.steps, budget.limit) == (100, 20.0)
    assert budget.record() == {"steps": 100, "deadline": 20.0, "training_only": True}


def test_the_end_of_a_run_is_estimated_from_what_it_has_measured() -> None:
    closing = ClosingTime(mixture=2.0, generator_share=0.5)
    guess = closing.seconds
    closing.note("checkpoint", 9.0)  # the first one warms up
    assert closing.seconds > guess + 9
    for seconds in (1.0, 3.0, 5.0):
        closing.note("checkpoint", seconds)
    for what in ("look", "record", "picture"):
        closing.note(what, 0.0)
    assert closing.seconds == pytest.approx(
        2.0 + 4.0 + 0.5 * 4.0
    )  # the last two checkpoints, and the files of the mixture
    budget = Budget(100, 10.0, closing)
    assert budget.limit == pytest.approx(2.0) and budget.is_over(2.1) and not budget.is_over(1.9)


def test_a_budget_that_ended_has_no_clock_any_more() -> None:
    budget = Budget(100, 5.0)
    assert not budget.is_over(4.9) and budget.is_over(5.0)
    budget.end_at(42)
    assert budget.steps == 42 and not budget.is_over(1e9)
    assert not Budget(100).is_over(math.inf)


# -- checkpoints that are kept ----------------------------------------------------------------------------------------


def some_checkpoints(folder: Path, last_good: dict[int, int]) -> None:
    for step, good in last_good.items():
        path = checkpoint.path_of(folder, step)
        path.mkdir(parents=True)
        facts = {
            "step": step, "names": [], "files": {"herd-000-000.safetensors": ""}, "last_good": good, "best": None,
            "sums": [], "repairs": [0], "recorded": 0, "bytes": {}, "seconds": 0.0,
        }  # fmt: skip
        (path / "state.json").write_text(json.dumps({**facts, "check": checkpoint._check(facts)}))


def test_the_last_the_best_and_those_to_roll_back_to_are_kept(tmp_path: Path) -> None:
    some_checkpoints(tmp_path, {0: 0, 7: 7, 14: 14, 21: 21, 25: 21, 26: 21, 28: 28})
    (tmp_path / "a note").write_text("mine")
    checkpoint.prune(tmp_path, 2, [28, 7, None])
    # 26 and 28 are the last two, 7 the best, and 26 would roll a member back to 21
    assert saved_steps(tmp_path) == [7, 21, 26, 28]
    assert (tmp_path / "a note").exists() and not list(tmp_path.glob(".*"))
    checkpoint.prune(tmp_path, 1, [28, None])
    assert saved_steps(tmp_path) == [28]
    checkpoint.prune(tmp_path, 5, [])
    assert saved_steps(tmp_path) == [28]


def test_a_damaged_checkpoint_does_not_stop_the_pruning(tmp_path: Path) -> None:
    some_checkpoints(tmp_path, {7: 7, 14: 14, 21: 21})
    (checkpoint.path_of(tmp_path, 14) / "state.json").write_text("{")
    checkpoint.prune(tmp_path, 2, [21])
    assert saved_steps(tmp_path) == [14, 21]


def test_a_run_keeps_what_its_recipe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "30steps", keep=2, checkpoint_every=4))
    facts = checkpoint.read_meta(run_files.last_checkpoint(tmp_path / "run"))
    best = facts.best[1]
    assert set(run_files.steps(tmp_path / "run")) == {28, 30, best}
    scores = {e["step"]: e["score"] for e in RunFolder(tmp_path / "run").events() if e["event"] == "checkpoint"}
    assert sorted(scores) == list(range(0, 29, 4)) and scores[best] == min(scores.values()) == significant(
        facts.best[0]
    )


# -- a look at the members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", recipes.NETS)
def test_a_look_changes_nothing_and_sees_the_same_twice(tmp_path: Path, net: str) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path, net=net)))
    before = {name: value.clone() for name, value in assembly.herd.state.items()}
    generator = torch.get_rng_state()
    preview = Preview(assembly)
    first = preview.look(0)
    images = preview.images.clone()
    preview.forget()
    assert preview.look(0) == first and torch.equal(preview.images, images)
    assert images.shape == (3, 64, 1, 8, 8)
    assert all(torch.equal(assembly.herd.state[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert assembly.herd.g.module.training


def test_a_look_sees_a_collapsed_member_and_scores_the_moments(tmp_path: Path) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path)))
    assembly.herd.state["g.ema"][1] = 0.0  # one image, whatever the noise
    preview = Preview(assembly)
    score = preview.look(0)
    data = [assembly.herd.feed.gather(torch.from_numpy(assembly.herd.feed.member_rows(m))[None])[0] for m in range(3)]
    real, fake = ([x.double().reshape(-1, 64) for x in each] for each in (data, preview.images))
    spread = [float(f.std(0).mean() / r.std(0).mean()) for r, f in zip(real, fake, strict=True)]
    assert spread[1] < 1e-6 < 0.01 < min(spread[0], spread[2])
    by_hand = [
        float(((f.mean(0) - r.mean(0)) ** 2 + (f.std(0, correction=0) - r.std(0, correction=0)) ** 2).mean())
        for r, f in zip(real, fake, strict=True)
    ]
    assert score == pytest.approx(sum(by_hand) / 3, rel=1e-6) and score > 0


def test_pictures_are_drawn_where_the_recipe_says(tmp_path: Path) -> None:
    recipe = recipes.noise_recipe(tmp_path, "10steps", sample_every=4)
    ganherd.train(recipe, run=tmp_path / "run", quiet=True, finishers=[PictureFinisher()])
    names = sorted(path.name for path in (tmp_path / "run" / "samples").iterdir())
    assert names == ["final.png", "step-00000004.png", "step-00000008.png", "step-00000010.png"]
    from PIL import Image

    for path in (tmp_path / "run" / "samples").iterdir():
        with Image.open(path) as image:
            assert image.width > 8 * 12 and image.height > 8 * 3


def test_the_command_that_resumes_a_run_of_users_nets_trusts_their_code(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.again == f"ganherd train --resume {tmp_path}"  # nothing is known of the recipe
    run.recipe_path.write_text(json.dumps({"nets": {"generator": "mine:Net"}}))
    assert run.again == f"ganherd train --resume {tmp_path} --trust-code"
    run.recipe_path.write_text(json.dumps({"nets": {"generator": "small"}}))
    assert run.again == f"ganherd train --resume {tmp_path}"
