"""The report: self-contained, safe to open, and written for every run, including young and broken ones."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ganherd import report
from ganherd.recipe.schema import DataConfig, Recipe
from ganherd.recipe.sections.herd_config import HerdConfig
from ganherd.report.gather import gather
from ganherd.report.sample_section import _real_rows, samples
from ganherd.report.story_section import summary
from ganherd.runs import checkpoint
from ganherd.runs.models import TrainerState
from ganherd.util.errors import UserError
from ganherd.viz import pictures, sheets

MakeRun = Callable[..., Any]
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Outline(HTMLParser):
    """Text, tags and addresses of a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.scripts: dict[str, str] = {}  # what script elements hold, by their type
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.kind = dict(attrs).get("type") or ""
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self.kind] = data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)
            self.headings += [data.strip()] if self.open[-1] == "h2" else []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(run: Any, data: Any, mixture: Any = None) -> tuple[str, Outline]:
    run.save()
    path = report.write(run, mixture=mixture, dataset=data)
    assert path == run.path / "report.html" and [p.name for p in run.path.glob(".new*")] == []
    text = path.read_text(encoding="utf-8")
    return text, Outline(text)


def test_members_with_a_pace_show_their_own_steps(make_run: MakeRun, fakes: Any) -> None:
    paced = Recipe(
        strategy={"name": "gap", "gap": {"pace": [1.0, 0.29]}}, herd={"members": 2}, data={"partition": "all"}
    )
    run = make_run(members=2, records=2, recipe=paced)
    assert [member.steps for member in gather(run, dataset=fakes.images()).members] == [100, 29]
    assert "own steps" in page(run, fakes.images())[1].text
    usual = replace(run, recipe=Recipe(herd={"members": 2}, data={"partition": "all"}))
    assert "own steps" not in page(usual, fakes.images())[1].text


def test_sections_of_a_finished_run_are_in_order(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    _, outline = page(make_run(labels=data.labels), data, fakes.mixture(data))
    assert outline.headings == TITLES
    assert "Ten members, one for each class of digits, trained with the wasserstein-gp loss " in outline.text
    assert "for 3,000 steps in 45 s." in outline.text
    assert outline.tags.count("img") == 20  # a strip of each class, and of its real data


TITLES = [
    "What was trained", "Did it work?", "What to look at", "Samples", "Scores and losses over time", "Scores",
    "Class by class", "Members", "What happened", "How to use it", "Settings",
]  # fmt: skip


def test_every_score_is_listed_with_samples_network_and_seed(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    _, outline = page(make_run(labels=data.labels), data, fakes.mixture(data))
    text = outline.text
    measured = "1,000 samples, digits cnn 1a2b3c4d, seed 0; the classifier on held-out real data: 99.2 %"
    assert f"98.6 % – 99.2 % no interval {measured}" in text
    assert "0.830 – 1 no interval 1,000 samples, pixels, seed 0" in text


def test_scores_have_verdicts_and_each_warning_once(make_run: MakeRun, fakes: Any) -> None:
    run, facts = make_run(), {"samples": 50, "seed": 0, "network": "pixels", "warning": "too few samples"}
    span = {"low": 4.0, "high": 6.0, "level": 0.95, "how": "bootstrap"}
    scores = {
        "fid": {"value": 5.0, "interval": span, "by_chance": 1.5, **facts},
        "precision": {"value": 0.5, **facts},
        "recall": {"value": 0.5, **facts},
        "skipped": {"ais": "it takes long"},
    }
    (run.path / "scores.json").write_text(json.dumps({"scores": scores}))
    text, outline = page(run, fakes.images())
    assert "5.000 4.000 to 6.000 1.500 worse" in outline.text and '<span class="pill warn">worse</span>' in text
    assert text.count("too few samples") == 1 and "FID, precision, recall: too few samples." in text
    assert '<p class="small soft">AIS is left out: it takes long.</p>' in text  # what is left out is no warning


def test_notes_on_networks_are_below_the_scores(make_run: MakeRun, fakes: Any) -> None:
    data, run = fakes.images(), make_run()
    facts = {"samples": 50, "seed": 0, "network": "inception-2015-12-05", "resizing": "bilinear to 299 × 299"}
    span = {"low": 4.0, "high": 6.0, "level": 0.95, "how": "bootstrap"}
    (run.path / "scores.json").write_text(json.dumps({"scores": {"fid": {"value": 5.0, **facts, "interval": span}}}))
    _, outline = page(run, data)
    assert "inception-2015-12-05: resizing bilinear to 299 × 299." in outline.text
    assert "interval: bootstrap" in outline.text and "95 % 4.000 to 6.000" not in outline.text


def with_pictures(folder: Path, step: int, captions: dict[str, str]) -> None:
    (folder / "pictures").mkdir()
    for name in captions:
        pictures.save(sheets.draw_grid([np.zeros((2, 1, 8, 8), np.uint8)]), folder / "pictures" / f"{name}.png")
    about = {"of": {"step": step}, "captions": captions}
    (folder / "pictures" / "about.json").write_text(json.dumps(about))


def test_pictures_of_this_mixture_are_shown_with_captions(make_run: MakeRun, fakes: Any) -> None:
    data, run = fakes.images(), make_run()
    with_pictures(run.path, 3000, {"map": "t-SNE of 5 <b>", "neighbours": "of 7", "classes": "bars"})
    text, outline = page(run, data, fakes.mixture(data))
    assert "Maps" in outline.text and "Data and samples" in outline.text and "Nearest training images" in outline.text
    assert "t-SNE of 5 <b>" in outline.text and "<b>" not in text.split(">Maps</h2>")[1].split("How to use it")[
        0
    ].replace("&lt;b&gt;", "")
    assert outline.tags.count("img") == 22  # the strips of ten classes, twice, and two maps: bars have their own chart
    later = fakes.mixture(data)
    later.step = 4000
    _, outline = page(run, data, later)
    assert "Maps" not in outline.text  # those are of an older mixture


def test_the_best_member_is_marked(make_run: MakeRun, fakes: Any) -> None:
    from ganherd.mixture.mixture_files import BestMember

    data, run = fakes.images(), make_run()
    mixture = fakes.mixture(data)
    mixture.winner = BestMember(member=4, value=0.5)
    story = gather(run, mixture, data)
    assert [m.number for m in story.members if m.winner] == [4]
    _, outline = page(run, data, mixture)
    assert "4 best" in outline.text


def test_page_loads_nothing_from_the_network(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    text, outline = page(make_run(labels=data.labels), data, fakes.mixture(data))
    assert outline.addresses and all(a.startswith(("data:", "#")) for a in outline.addresses)
    assert outline.tags.count("script") == 2 and set(outline.scripts) == {"application/json", "module"}
    policy = re.search(r"script-src 'sha256-([^']+)'", text)
    assert (
        policy and policy[1] == base64.b64encode(hashlib.sha256(outline.scripts["module"].encode()).digest()).decode()
    )
    assert not re.findall(r"url\((?!#|'#|\"#|data:)", text) and "@import" not in text
    assert "default-src 'none'" in text


def test_what_users_wrote_is_escaped(make_run: MakeRun, fakes: Any) -> None:
    evil = "<script>alert(1)</script>&\"'"
    data = fakes.images(2)
    data = fakes.dataset(data.x, data.y, (evil, "b</td>"), name=evil, notes=(evil,))
    run = make_run(
        labels=data.labels,
        members=2,
        recipe=Recipe(about=evil),
        event_lines=[{"step": 1, "event": evil, "member": 0, "name": evil, evil: evil}],
    )
    run.info_json |= {"state": evil, "command": evil, evil: {evil: [evil]}, "versions": {evil: evil}}
    text, outline = page(run, data, fakes.mixture(data))
    assert text.count("<script") == 2 and "b</td>" not in text and "<script>alert" not in text
    assert outline.tags.count("script") == 2 and outline.text.count("alert(1)") > 8
    (embedded,) = json.loads(outline.scripts["application/json"])
    assert embedded["facts"]["about"] == evil and embedded["facts"]["settings"]["about"] == evil


def test_charts_of_one_page_do_not_share_names(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.points()
    text, _ = page(make_run(members=4), data, fakes.mixture(data, by_class=False))
    clips = re.findall(r'<clipPath id="([^"]+)"', text)
    assert len(clips) > 1 and len(clips) == len(set(clips))


def test_page_supports_light_and_dark_mode(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.points()
    text, _ = page(make_run(members=4), data, fakes.mixture(data, by_class=False))
    style, _, body = text.partition("</style>")
    assert "prefers-color-scheme:dark" in style and "@media print" in style
    assert "currentColor" in body and pictures.INK not in body


def test_a_run_that_has_just_begun(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(records=0, state="running", event_lines=[])
    _, outline = page(run, None)
    for words in ("A herd on digits. Nothing is recorded yet.", "No samples yet", "Not scored yet"):
        assert words in outline.text, words


def test_interrupted_run_shows_how_to_resume_it(make_run: MakeRun) -> None:
    run = make_run(records=20, state="interrupted")
    _, outline = page(run, None)
    assert (
        f"stopped before its end, and saved at step 0: resume it with ganherd train --resume {run.path}."
        in outline.text
    )
    assert "Not scored yet: scores are measured when training ends." in outline.text


def test_interrupted_run_counts_its_checkpoint_and_says_how_to_draw_from_it(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(records=20, state="interrupted")  # the last record is of step 1,000
    saved = TrainerState(sums=[[0.0]] * 4, recorded=1000, last_good=None, best=None, repairs=[0], seconds=8.5, bytes={})
    checkpoint.save(run.checkpoints, 1024, {key: torch.zeros(1) for key in ("set.seed", "set.slot")}, {}, saved)
    _, outline = page(run, fakes.images())
    assert "saved at step 1,024" in outline.text and "up to step 1,024 of a budget" in outline.text
    assert "steps 1,024 epochs 51.2 training time 8.5 s" in outline.text
    command = f"ganherd sample {run.path} -o grid.png"
    assert f"No picture yet; {command} draws from its newest checkpoint." in outline.text
    (run.path / "samples").mkdir()
    pictures.save(sheets.draw_grid([fakes.images().x[:4]]), run.path / "samples" / "step-00001000.png")
    _, outline = page(run, fakes.images())
    assert "step-00001000" in outline.text and command not in outline.text
    (run.checkpoints / "step-00001024" / "state.json").write_text("{half a")
    _, outline = page(run, fakes.images())
    assert "steps 1,024" in outline.text and "the newest checkpoint could not be read" in outline.text


def test_one_record_is_no_curve(make_run: MakeRun, fakes: Any) -> None:
    _, one = page(make_run(records=1), fakes.images())
    assert "There is one record, of step 50, and a curve needs two." in one.text and "generator loss" in one.text


def test_engine_of_a_start_is_told_in_words(make_run: MakeRun, fakes: Any) -> None:
    engine = {"name": "fused", "chunk": 4, "threads": 1, "device": "cpu"}
    events = [
        {"step": 0, "event": "start", "engine": engine},
        {"step": 5, "event": "resume", "engine": {"name": "odd"}},
    ]
    text = page(make_run(event_lines=events), fakes.images())[1].text
    assert "engine: fused on cpu, 1 thread, 3 blocks of 4" in text and "engine: name odd" in text


def test_reason_of_a_member_that_is_not_good_is_visible(make_run: MakeRun, fakes: Any) -> None:
    data, run = fakes.images(), make_run()
    words = {0: ("cannot be judged", "a verdict needs 48 real rows"), 1: ("good", "it is like the data")}
    judged = [{"name": f"member {m}", "member": m, "word": w, "reason": why} for m, (w, why) in words.items()]
    verdict = {"word": "good", "reason": "its samples are like the data", "step": 3000, "members": judged}
    (run.path / "scores.json").write_text(json.dumps({"scores": {}, "verdict": verdict}))
    text = page(run, data, fakes.mixture(data))[1].text
    assert re.search(r"cannot be judged\s+a verdict needs 48 real rows", text) and "it is like the data" not in text


def test_a_run_that_is_under_way_shows_its_last_picture(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(records=20, state="running")
    (run.path / "samples").mkdir()
    for step in (500, 1000):
        pictures.save(sheets.draw_grid([fakes.images().x[:4]]), run.path / "samples" / f"step-{step:08d}.png")
    _, outline = page(run, fakes.images())
    assert "step-00001000" in outline.text and "up to step 1,000 of a budget of 2,000 steps" in outline.text
    assert outline.tags.count("img") == 13  # the last picture, ten rows of real data, and two frames of the film


def test_a_run_without_readable_parts_still_has_a_report(
    make_run: MakeRun, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(labels=("0",))
    (run.path / "scores.json").write_text("{half a")
    monkeypatch.setattr(run, "events", lambda: 1 / 0)
    _, outline = page(run, fakes.images())
    assert "scores.json could not be read" in outline.text and "events.jsonl could not be read" in outline.text
    assert "Members" in outline.text


def test_points_replicas_and_members_without_a_class(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(
        members=8, recipe=Recipe(data=DataConfig(source="ring8", partition="all"), herd=HerdConfig(members=4, seeds=2))
    )
    data = fakes.points()
    _, outline = page(run, data, fakes.mixture(data, by_class=False, replicas=2))
    assert "Four members on ring8, with two seeds," in outline.text
    assert "the first of 2 replicas" in outline.text and "replica" in outline.text


def test_points_have_coordinates_and_as_many_modes_as_the_data(make_run: MakeRun, fakes: Any) -> None:
    run = make_run(
        members=4, recipe=Recipe(data=DataConfig(source="ring8", partition="all"), herd=HerdConfig(members=4))
    )
    common = {"samples": 1000, "network": "coordinates", "seed": 0}
    scores = {
        "diversity": {"value": 0.9, **common, "per_class": {"all": 0.9}},
        "modes": {"value": 7, "of": 8, **common},
        "classifier_score": {"value": 3.0, **common},
    }
    (run.path / "scores.json").write_text(json.dumps({"scores": scores}))
    data = fakes.points()
    text, _ = page(run, data, fakes.mixture(data, by_class=False))
    assert "the spread of generated coordinates divided by the data" in text
    assert "width:90%" in text.replace(" ", "")  # of the bar of a diversity of 0.9: it is full at 1
    assert re.search(r"7 of 8</span></td><td[^>]*>–</td><td[^>]*>8</td>", text)  # what real data has
    assert re.search(r"3.000</span></td><td[^>]*>–</td><td[^>]*>–</td>", text)  # which is not known here


def test_rows_of_members_are_not_counted_as_classes(make_run: MakeRun, fakes: Any) -> None:
    recipe = Recipe(data=DataConfig(partition="all"), herd=HerdConfig(members=4))
    data = fakes.images()
    found = gather(make_run(members=4, recipe=recipe), fakes.mixture(data, by_class=False), data)
    told = Outline(samples(found)).text
    assert "classes are shown" not in told and "A row for each member" in told and "member 3" in told
    rows = [(f"member {m}", found.generated[found.generated_member == m][:12]) for m in range(4)]
    beside = _real_rows(found, rows)
    assert [len(images) for images in beside] == [12] * 4
    bright = [
        len({int(image[0, :, 0].sum()) // 180 for image in images}) for images in beside
    ]  # stripes tell the class
    assert min(bright) > 1 and all(map(np.array_equal, beside, _real_rows(found, rows)))  # and always the same


@pytest.mark.parametrize("by_class", [True, False])
def test_a_heading_by_class_needs_members_of_classes(make_run: MakeRun, fakes: Any, by_class: bool) -> None:
    data = fakes.images()
    recipe = Recipe() if by_class else Recipe(data=DataConfig(partition="all"), herd=HerdConfig(members=4))
    run = make_run(members=10 if by_class else 4, recipe=recipe)
    scores = {"histogram": {"value": 0.1, "per_class": {str(k): 0.1 for k in range(10)}}}
    (run.path / "scores.json").write_text(json.dumps({"scores": scores}))
    _, outline = page(run, data, fakes.mixture(data, by_class=by_class))
    assert ("Class by class" in outline.text) == by_class
    assert ("Variety and classes of the samples" in outline.text) == (not by_class)


def test_many_classes_and_members_keep_the_page_small(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images(100)
    run = make_run(members=100, records=2000, labels=data.labels)
    text, outline = page(run, data, fakes.mixture(data))
    assert "50 of 100 classes are shown" in outline.text
    assert len(text) < 3_000_000


def test_many_classes_of_large_noisy_images_stay_below_the_bound(make_run: MakeRun, fakes: Any) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(60), 12)
    x = rng.integers(0, 255, (len(y), 3, 96, 96), dtype=np.uint8)
    data = fakes.dataset(x, y, tuple(str(k) for k in range(60)))
    text, outline = page(make_run(members=60, labels=data.labels), data, fakes.mixture(data))
    assert "50 of 60 classes are shown" in outline.text and 1_000_000 < len(text) < 6_000_000


def test_non_finite_losses_are_shown(make_run: MakeRun, fakes: Any) -> None:
    run = make_run()
    run.metric_lines[-1]["loss_g"] = ["nan", "inf", "-inf", None, *[1.0] * 6]
    run.metric_lines[-1]["loss_d"] = None
    _, outline = page(run, fakes.images())
    assert "NaN" in outline.text and "∞" in outline.text
    for line in run.metric_lines:
        line["loss_g"] = ["nan"] * 10
    page(run, fakes.images())


def test_the_summary_is_one_sentence(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    run = make_run(labels=data.labels)
    for mixture in (fakes.mixture(data), None):
        text = summary(gather(run, mixture, data))
        assert text.count(". ") == 0 and text.endswith(".") and "None" not in text


@pytest.mark.parametrize(
    ("origins", "says"),
    [
        ([{"from": "/runs/first", "member": 0, "step": 10950}] * 10, "Members started from first (step 10,950)."),
        ([{"from": "a", "step": 5}, {}, {"from": "b"}], "Members started from a (step 5) and b."),
        ([{"from": str(run), "step": 1} for run in range(5)], "Members started from five other runs."),
        ([{}] * 10, None),
        (None, None),
    ],
)
def test_training_before_the_run_is_named(make_run: MakeRun, fakes: Any, origins: Any, says: str | None) -> None:
    run = make_run()
    run.info_json |= {} if origins is None else {"origins": origins}
    _, outline = page(run, fakes.images())
    assert ("Members started from" in outline.text) == (says is not None)
    assert says is None or f"{says} The steps and the time here do not include the training before" in outline.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        report.write(tmp_path / "nothing")


def test_alarms_are_listed_by_name_and_ended_ones_are_green(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    ill = [(300, "collapse", 7), (400, "dead_critic", 7), (600, "cycling", 2)]
    lines = [{"step": 0, "event": "start"}]
    lines += [{"step": s, "event": "alarm", "what": what, "member": m, "spread": 0.08} for s, what, m in ill]
    lines += [{"step": 900, "event": "calm", "what": what, "member": m} for _, what, m in ill[1:]]
    run = make_run(labels=data.labels, event_lines=sorted(lines, key=lambda line: line["step"]))
    text, outline = page(run, data, fakes.mixture(data))
    for name in ("dead critic", "cycling"):
        assert (
            f'<span class="pill warn">{name}</span>' in text and f'<span class="pill good">{name} over</span>' in text
        )
    assert (
        '<span class="pill good">collapse over</span>' not in text and "what: " not in outline.text.split("Settings")[0]
    )
    assert "cycling over, member 2 (2), step 900" in outline.text  # on the line of time
    assert 'fill="var(--good)"' in text and 'fill="var(--warn)"' in text
    assert '<span class="pill warn">2, now: collapse</span>' in text and '<span class="pill">1, over</span>' in text
    alarms = [member.alarms_now for member in gather(run, fakes.mixture(data), data).members]
    assert alarms == [("collapse",) if m == 7 else () for m in range(10)]


def test_a_verdict_heads_the_page_and_replaces_the_alarms_of_the_end(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    mixture = fakes.mixture(data)
    alarm = {"step": 300, "event": "alarm", "what": "collapse", "member": 7, "name": "member 7 (7)"}
    run = make_run(labels=data.labels, event_lines=[{"step": 0, "event": "start"}, alarm])
    member = {"name": "member 7 (7)", "member": 7, "word": "collapsed", "reason": "its samples hardly vary"}
    verdict = {"word": "collapsed", "reason": "1 of 10 members is not good", "try_next": "try a lower optim.lr_g"}
    content = json.loads((run.path / "scores.json").read_text()) if (run.path / "scores.json").exists() else {}
    for step, heading in ((int(mixture.step), "collapsed"), (int(mixture.step) + 1, "finished")):
        judged = {**verdict, "step": step, "members": [member]}
        (run.path / "scores.json").write_text(json.dumps({**content, "verdict": judged}))
        text, outline = page(run, data, mixture)
        assert f"{heading}</span></h1>" in text
        assert ("1 of 10 members is not good; try a lower optim.lr_g." in outline.text) == (heading == "collapsed")
        assert ("now: collapse" in outline.text) == (heading == "finished")  # a verdict on other weights does not count
    assert "recognises" not in summary(gather(run, mixture, data))


def test_the_timeline_has_ends_and_faint_ticks_where_members_met(make_run: MakeRun, fakes: Any) -> None:
    events = [{"step": 0, "event": "start"}, *({"step": s, "event": "swap", "what": "d"} for s in range(2, 9000, 2))]
    run = make_run(
        event_lines=[*events, {"step": 9000, "event": "finish", "seconds": 29.2, "profile": {"gather": 0.0}}]
    )
    text, outline = page(run, fakes.images())
    line = text[text.index('<svg class="timeline"') :].split("</svg>")[0]
    assert ">step 0</text>" in line and ">step 9,000</text>" in line
    assert line.count("<circle") == 2 and 100 < line.count('opacity="0.4"') < 500  # no two at one place
    assert "Faint ticks: swap." in outline.text
    assert (
        "seconds: 29.2" in outline.text and "gather" not in outline.text
    )  # the time of the whole run stands elsewhere


def test_images_of_short_rows_have_the_same_size(make_run: MakeRun, fakes: Any) -> None:
    bare = fakes.dataset(fakes.images().x, fakes.images().y, ())

    class Alone(fakes.mixture):  # type: ignore[misc]
        label_of = np.full(1, -1)

        def sample(self, n: int, **settings: Any) -> Any:
            return replace(super().sample(n, **settings), member=np.zeros(n, np.int64))

    text, _ = page(make_run(members=1), bare, Alone(bare))
    strips = [
        Image.open(io.BytesIO(base64.b64decode(raw))) for raw in re.findall(r"data:image/png;base64,([^\"]+)", text)
    ]
    assert len(strips) == 20 and len({strip.size for strip in strips}) == 1  # 96 samples: the last row has six
    assert strips[-2].getchannel("A").getbbox()[2] < strips[-2].width == strips[0].getchannel("A").getbbox()[2]


def test_members_carry_labels_losses_and_troubles(make_run: MakeRun, fakes: Any) -> None:
    data = fakes.images()
    story = gather(make_run(labels=data.labels), fakes.mixture(data), data)
    assert [m.label for m in story.members] == list(data.labels)
    assert [m.troubles for m in story.members] == [0, 0, 0, 2, 0, 0, 0, 1, 0, 0]
    assert np.allclose([m.loss_g or 0.0 for m in story.members], story.metrics[-1]["loss_g"])
