"""`ganherd film`: the length, what the frames show, every format, and mistakes in a sentence."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ganherd.film import film_file
from ganherd.film.exchanges import exchanges_at
from ganherd.film.frame_layout import lay_out
from ganherd.film.herd_film import plan_moments
from ganherd.runs.models import EventRecord
from ganherd.runs.series import sprite_files


def frames(path: str) -> tuple[list[np.ndarray], list[int]]:
    """Return the frames of an animation and the milliseconds of each."""
    pixels, durations = [], []
    with Image.open(path) as film:
        for number in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(number)
            film.load()
            pixels.append(np.asarray(film.convert("RGB")))
            durations.append(int(film.info["duration"]))
    return pixels, durations


@pytest.mark.parametrize("name", ["classes", "grid", "points"])
def test_a_film_lasts_as_long_as_it_should_and_shows_every_saved_step(cli, shown_runs: Path, name: str) -> None:
    facts = json.loads(cli("film", shown_runs / name, "-o", "herd.gif", "--seconds", 4, "--width", 400, "--json").out)
    pixels, durations = frames("herd.gif")
    steps = list(sprite_files.saved_sheets(shown_runs / name / "sprites"))
    assert facts["steps"] == len(steps) and facts["last_step"] == steps[-1] and facts["finished"]
    assert sum(durations) == 4000 and durations[-1] >= 800  # the last frame is held
    assert {frame.shape[1] for frame in pixels} == {400} and facts["bytes"] == Path("herd.gif").stat().st_size
    assert (pixels[0][:4] == 255).all()  # paper is white
    assert len({frame.tobytes() for frame in pixels}) >= len(steps)


def test_a_frame_shows_the_samples_of_its_step(cli, shown_runs: Path) -> None:
    from ganherd.film.herd_film import HerdFilm, Moment
    from ganherd.runs.folder import RunFolder
    from ganherd.runs.run_list import summarise

    run = shown_runs / "classes"
    film = HerdFilm(RunFolder.open(run), summarise(run, "classes", 0.0), 600)
    index = sprite_files.read_index(run / "sprites")
    assert index is not None and film.steps[0] == 0
    frame, place = film.frame(Moment(len(film.steps) - 1)), lay_out(index.members, 600)
    with Image.open(sprite_files.sheet_path(run / "sprites", film.steps[-1], "images")) as file:
        sheet = np.asarray(file.convert("RGB"))
    corner = np.asarray(frame)[frame.height - place.size[1] - 62 :, 28 + place.places[0][0] :][:2, :2]
    np.testing.assert_array_equal(corner, np.broadcast_to(sheet[0, 0], (2, 2, 3)))


def test_frames_of_a_run_on_own_data_have_its_name(shown_runs: Path, tmp_path: Path) -> None:
    from ganherd.film.herd_film import HerdFilm
    from ganherd.runs.folder import RunFolder
    from ganherd.runs.run_list import summarise

    run = shutil.copytree(shown_runs / "classes", tmp_path / "copy")
    info = json.loads((run / "run.json").read_text())
    own = {"recipe": "digits-wcgan", "changes": ["data.source=/home/me/birds"]}
    (run / "run.json").write_text(json.dumps(info | own))
    film = HerdFilm(RunFolder.open(run), summarise(run, "copy", 0.0), 600)
    assert film._content(0).heading.title == "birds"


def test_an_animated_webp_has_the_same_length(cli, shown_runs: Path) -> None:
    assert cli("film", shown_runs / "points", "-o", "herd.webp", "--seconds", 2, "--width", 240).code == 0
    assert sum(frames("herd.webp")[1]) == 2000


def test_a_video_is_written_by_ffmpeg_at_a_fixed_rate(cli, shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path("bin/ffmpeg")
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@" > words\nfor last; do :; done\ncat > "$last"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent.absolute()}:/bin:/usr/bin")
    assert cli("film", shown_runs / "points", "-o", "herd.mp4", "--seconds", 2, "--width", 240).code == 0
    words = Path("words").read_text().split()
    wide, tall = map(int, words[words.index("-s") + 1].split("x"))
    assert wide == 240 and Path("herd.mp4").stat().st_size == 50 * wide * tall * 3  # 25 frames a second
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    failed = cli("film", shown_runs / "points", "-o", "other.mp4", "--seconds", 2)
    assert failed.sentence == "-o other.mp4 cannot be written: ffmpeg reports: no such codec."
    assert not Path("other.mp4").exists()


def test_mistakes_get_a_sentence(cli, shown_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shown_runs / "classes"
    assert "ends with .gif, .mp4 or .webp" in cli("film", run, "-o", "herd.avi").sentence
    monkeypatch.setattr(film_file.shutil, "which", lambda name: None)
    assert "install it, e.g. with `apt install ffmpeg`, or write a .gif" in cli("film", run, "-o", "herd.mp4").sentence
    assert "No such file or directory" in cli("film", run, "-o", "nowhere/herd.gif").sentence
    assert "this run has 1, counted from 0" in cli("film", run, "-o", "herd.gif", "--replica", 1).sentence
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for path in list(sprite_files.saved_sheets(copy / "sprites").values())[1:]:
        path.unlink()
    assert "only those of step 0: let it train longer" in cli("film", copy, "-o", "herd.gif").sentence
    shutil.rmtree(copy / "sprites")
    assert "unless run.sprites is 0" in cli("film", copy, "-o", "herd.gif").sentence
    assert list(Path().iterdir()) == []


def test_a_run_that_is_not_finished_is_filmed_so_far(cli, shown_runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shown_runs / "classes", copy)
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(info | {"state": "running"}))
    answer = cli("film", copy, "-o", "herd.gif", "--seconds", 1)
    assert answer.code == 0 and "is not finished: the film ends at step 30" in answer.err


def test_damaged_sheets_are_left_out(cli, shown_runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shown_runs / "classes", copy)
    sheets = sprite_files.saved_sheets(copy / "sprites")
    first, second, third, *_ = list(sheets.values())
    first.write_bytes(b"RIFF")
    Image.new("RGB", (9999, 3)).save(second, "WEBP")
    Image.new("RGB", Image.open(third).size).save(third, "PNG")
    facts = json.loads(cli("film", copy, "-o", "herd.gif", "--seconds", 1, "--json").out)
    assert facts["steps"] == len(sheets) - 3


def test_truncated_sprites_are_called_damaged(cli, shown_runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shown_runs / "classes", copy)
    for path in [*sprite_files.saved_sheets(copy / "sprites").values(), copy / "sprites/index.json"]:
        path.write_bytes(path.read_bytes()[:9])
    said = cli("film", copy, "-o", "herd.gif").sentence
    assert said == f"the sprites of {copy} are damaged: copy the run again, or train it again."
    shutil.copy(shown_runs / "classes/sprites/index.json", copy / "sprites")
    assert cli("film", copy, "-o", "herd.gif").sentence == said


def test_labels_with_line_breaks_are_drawn(cli, shown_runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shown_runs / "classes", copy)
    index = sprite_files.read_index(copy / "sprites")
    assert index is not None
    sprite_files.write_index(copy / "sprites", index.model_copy(update={"labels": ["a\nb\r"] * index.members}))
    assert cli("film", copy, "-o", "herd.gif", "--seconds", 1).code == 0


def test_a_long_run_is_thinned_to_what_the_film_can_show(cli, shown_runs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(film_file, "_GIF_BYTES", 1)
    monkeypatch.setattr(film_file, "_FEWEST_FRAMES", 3)
    facts = json.loads(cli("film", shown_runs / "classes", "-o", "herd.gif", "--json").out)
    assert facts["steps"] == 3 and facts["last_step"] == 30 and facts["seconds"] == 20


def test_moments_fill_the_time_whatever_the_number_of_steps() -> None:
    for steps in (2, 25, 200):
        moments, milliseconds = plan_moments(steps, 20.0)
        assert len(moments) == len(milliseconds) and sum(milliseconds) == 20_000 and milliseconds[-1] == 2500
        assert [moment.number for moment in moments if not moment.part] == list(range(steps))
        assert min(milliseconds) >= 20  # shorter ones are shown slowly by browsers


def test_generators_and_discriminators_are_followed_through_the_herd() -> None:
    events = [
        {"step": 1, "event": "swap", "what": "discriminators", "pairs": [[0, 2]]},
        {"step": 2, "event": "swap", "what": "discriminators", "pairs": [[1, 2], ["x", 1], [0, 9]]},
        {"step": 3, "event": "tournament", "g": [1, 1, 2]},
        {"step": 4, "event": "replacement", "g_new": [True, True, False]},
        {"step": 5, "event": "evaluation", "g_from": [0, 1, 0]},
        {"step": 6, "event": "replacement", "g_from": [7, 7, 7], "g_new": "no list"},
    ]
    at = list(exchanges_at([0, 1, 2, 4, 6], map(EventRecord.parse, events), 3))
    assert [exchange.partner for exchange in at[:3]] == [(0, 1, 2), (2, 1, 0), (2, 0, 1)]
    assert [exchange.pairs for exchange in at] == [(), ((0, 2),), ((1, 2),), (), ()]
    assert at[3].moves == ((1, 0),) and at[3].founder == (1, 1, 2)
    assert at[4].moves == ((0, 2),) and at[4].founder == (1, 1, 1)


@pytest.mark.parametrize("members", [1, 2, 4, 10, 37, 700, 20_000])
@pytest.mark.parametrize("width", [240, 720])
def test_tiles_stay_inside_of_the_wall_and_apart(members: int, width: int) -> None:
    layout = lay_out(members, width)
    assert 1 <= len(layout.places) <= members and (members > width or len(layout.places) == members)
    assert len(set(layout.places)) == len(layout.places)
    right, bottom = (max(place[i] for place in layout.places) + layout.tile for i in (0, 1))
    assert right <= layout.size[0] == width - 56 and bottom <= layout.size[1] <= 1.5 * width


def test_arrows_take_the_short_way_over_the_edge_of_a_torus() -> None:
    layout = lay_out(9, 720, (3, 3))
    left, right = layout.places[0][0] + layout.tile / 2, layout.places[2][0] + layout.tile / 2
    leaving, entering = layout.ways(0, 2)
    assert leaving[0] == left and leaving[2] == left - layout.pitch[0]
    assert entering[2] == right and entering[0] == right + layout.pitch[0]
    assert len(layout.ways(0, 1)) == 1
