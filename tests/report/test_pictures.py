"""Pictures: every image in the row of its label, nothing blurred, and no global state."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ganherd.runs.folder import RunFolder
from ganherd.viz import charts, pictures, sheets

PAIRS = np.array([[30, 70], [70, 30]])


def flat(*greys: int, side: int = 8, channels: int = 1) -> np.ndarray:
    return np.stack([np.full((channels, side, side), grey, np.uint8) for grey in greys])  # [n, C, H, W]


def test_a_grid_holds_every_pixel_enlarged() -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
    sheet = np.asarray(sheets.draw_grid([x[:3], x[3:]]).convert("L"))
    step = 56 + 5
    for i in range(2):
        for j in range(3):
            tile = sheet[1 + i * step : 1 + i * step + 56, 1 + j * step : 1 + j * step + 56]
            assert np.array_equal(tile[3::7, 3::7], x[3 * i + j, 0])
            assert np.array_equal(tile[::7, ::7], tile[6::7, 6::7])


def test_rows_are_classes_or_members_or_a_square() -> None:
    x, y = flat(*range(12)), np.arange(12) % 3
    rows = sheets.sample_rows(x, y, ("a", "b", "c"))
    assert [name for name, _ in rows] == ["a", "b", "c"] and rows[1][1][:, 0, 0, 0].tolist() == [1, 4, 7, 10]
    rows = sheets.sample_rows(x, None, (), member=y)
    assert [name for name, _ in rows] == ["member 0", "member 1", "member 2"]
    rows = sheets.sample_rows(x[:9], np.full(9, -1), ("a",), member=np.zeros(9))
    assert [len(images) for _, images in rows] == [3, 3, 3]


def test_a_grid_of_very_many_classes_stays_a_picture() -> None:
    x = flat(*[7] * 300)
    picture = sheets.draw_samples(x, np.arange(300), [f"class {k}" for k in range(300)])
    assert isinstance(picture, Image.Image) and picture.height < 50 * 70


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (4, 16), (2, 9), (3, 200)])
def test_images_of_any_kind(channels: int, side: int) -> None:
    picture = sheets.draw_grid([flat(0, 255, side=side, channels=channels)], ["name"])
    assert picture.width > 2 * side
    small = sheets.draw_grid([flat(0, 255, side=side, channels=channels)], largest=64, margin=0, background=None)
    assert small.height <= 64 and small.mode == "RGBA"


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        sheets.draw_grid([])


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_both_formats_for_all_pictures(tmp_path: Path, suffix: str) -> None:
    points = np.random.default_rng(0).standard_normal((50, 2)).astype(np.float32)
    made = [
        sheets.draw_samples(flat(1, 2, 3)),
        sheets.draw_samples(points, data=points),
        charts.draw_pair_counts(PAIRS),
    ]
    for i, picture in enumerate(made):
        path = pictures.save(picture, tmp_path / f"{i}{suffix}")
        raw = path.read_bytes()
        if suffix == ".png":
            assert Image.open(io.BytesIO(raw)).size[0] > 50
        else:
            assert b"<svg" in raw and raw.rstrip().endswith(b"</svg>")


def test_the_same_picture_is_the_same_file() -> None:
    first, again = (pictures.svg(charts.draw_pair_counts(PAIRS), inline=True) for _ in range(2))
    assert first == again
    assert pictures.png(charts.draw_pair_counts(PAIRS)) == pictures.png(charts.draw_pair_counts(PAIRS))


def test_a_figure_is_saved_as_by_plain_savefig() -> None:
    """The extra draw that `savefig` makes for the layout is skipped; the file is the same to the byte."""
    figures = [charts.draw_pair_counts(PAIRS) for _ in "ab"]
    plain = io.BytesIO()
    figures[0].savefig(plain, format="png", dpi=130, facecolor="white", metadata={"Software": None})
    draws = []
    axes = figures[1].axes[0]
    axes.draw, draw = lambda renderer: draws.append(draw(renderer)), axes.draw
    assert pictures.png(figures[1]) == plain.getvalue()
    assert len(draws) == 1


def test_distant_points_are_counted_and_do_not_change_the_limits() -> None:
    data = np.random.default_rng(0).standard_normal((200, 2))
    x = np.concatenate([data[:7], [[1e6, 0], [np.nan, 0]]])
    figure = pictures.draw_points(x, data)
    assert max(figure.axes[0].get_xlim()) < 10
    assert "2 of 9" in figure.axes[0].get_xlabel()


def test_data_points_are_dark_when_drawn_alone() -> None:
    """Below thousands of dots they would not be seen."""
    from matplotlib.colors import to_hex

    data = np.random.default_rng(0).standard_normal((200, 2))
    alone, over = sheets.draw_samples(data[:50] + 0.1, data=data).axes  # type: ignore[union-attr]
    assert [to_hex(dots.get_facecolors()[0]) for dots in alone.collections] == [pictures.INK]
    assert [to_hex(dots.get_facecolors()[0]) for dots in over.collections] == [pictures.DATA, pictures.GENERATED]
    assert alone.get_xlim() == over.get_xlim() and len(alone.collections[0].get_offsets()) == 200
    assert alone.get_title(loc="left") == "data, 200 points"


def test_no_global_state_of_matplotlib() -> None:
    pictures.png(charts.draw_pair_counts(PAIRS))
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures.svg(charts.draw_pair_counts(PAIRS), inline=True)
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_names_in_any_script_are_drawn_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    """An SVG keeps them as text, for whoever has the font."""
    figure, (axes,) = pictures.new_figure(3, 2)
    axes.set_title("кошка 犬 قط")
    pictures.png(figure)
    assert "犬" in pictures.svg(figure, inline=True) and not list(recwarn)


# -- sheets -------------------------------------------------------------------------------------------------------


def drawn(monkeypatch: pytest.MonkeyPatch, *what: object, **settings: object) -> tuple[Image.Image, list[str]]:
    """Return a picture of samples, and all texts that were written into it."""
    texts: list[str] = []
    write = sheets.ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        sheets.ImageDraw.ImageDraw,
        "text",
        lambda pen, at, text, *a, **k: texts.append(text) or write(pen, at, text, *a, **k),
    )
    return sheets.draw_samples(*what, **settings), texts  # type: ignore[arg-type, return-value]


def test_uneven_classes_are_a_full_grid_with_their_names_below(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = flat(*range(64)), np.repeat([0, 1, 2], [10, 24, 30])
    picture, texts = drawn(monkeypatch, x, y, ("cat", "dog", "a very long name of a class"))
    assert texts.count("cat") == 10 and texts.count("dog") == 24 and len(texts) == 64
    assert all(text in ("cat", "dog") or text.endswith("…") for text in texts)
    assert 8 * 56 < picture.width < 9 * 62  # eight columns
    greys = np.asarray(picture.convert("L"))
    assert (
        greys[1 + 28, 1 + 7 * 61 + 28] == 7 and greys[1 + 7 * 74 + 28, 1 + 7 * 61 + 28] == 63
    )  # the last corner is filled


def coloured(n: int, side: int = 8) -> np.ndarray:
    """Return n images, each of a different colour."""
    colours = np.stack([np.arange(n) // 64 * 4, np.arange(n) % 64 * 4, np.full(n, 130)], 1).astype(np.uint8)
    return np.broadcast_to(colours[:, :, None, None], (n, 3, side, side))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (coloured(640), np.repeat(range(10), 64)),
        (coloured(64, side=256), None),
        (coloured(2_025), None),
        (coloured(1_000), np.repeat([0, 1], [300, 700])),
    ],
    ids=["64 of each class", "large images", "a wide square", "uneven classes"],
)
def test_no_sample_is_left_out_of_a_picture(x: np.ndarray, y: np.ndarray | None) -> None:
    picture = sheets.draw_samples(x, y, [f"class {k}" for k in range(10)])
    assert isinstance(picture, Image.Image) and picture.width <= sheets.WIDEST + 200
    drawn_colours = {colour for _, colour in picture.getcolors(1 << 24)}  # type: ignore[union-attr]
    assert {tuple(image[:, 0, 0].tolist()) for image in x} <= drawn_colours


def test_the_name_of_a_class_is_next_to_its_first_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    _, texts = drawn(monkeypatch, coloured(128), np.repeat([0, 1], 64), ("a", "b"))
    assert texts == ["a", "b"]


def test_a_picture_of_too_many_samples_says_how_many_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "MOST_IMAGES", 100)
    _, texts = drawn(monkeypatch, coloured(300))
    assert texts[-1] == "Shown: 100 of 300."
    _, texts = drawn(monkeypatch, coloured(300), np.repeat([0, 1], 150), ("a", "b"))
    assert texts[-1] == "Shown: 100 of 300."
    _, texts = drawn(monkeypatch, coloured(300), np.repeat([0, 1], [200, 100]), ("a", "b"))
    assert texts[-1] == "Shown: 100 of 300." and 65 <= texts.count("a") <= 67


def test_letters_below_the_last_row_are_whole() -> None:
    images = flat(0, 0)
    greys = np.asarray(sheets.draw_grid([images, images], below=[["dog", "dog"]] * 2).convert("L"))
    step = 56 + 18  # an image, and the text with the gap below it
    first, last = (greys[1 + row * step + 57 : 1 + (row + 1) * step - 1] for row in range(2))
    assert len(last) == len(first) == 16 and (first < 200).any() and np.array_equal(first, last)


def test_equal_classes_are_rows_and_one_class_is_a_square(monkeypatch: pytest.MonkeyPatch) -> None:
    _, texts = drawn(monkeypatch, flat(*range(12)), np.repeat([0, 1, 2], 4), ("a", "b", "c"))
    assert texts == ["a", "b", "c"]
    square, _ = drawn(monkeypatch, flat(*range(16)), np.zeros(16, int), ("a", "b"))
    assert square.width == square.height


def test_members_are_named_by_number_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heading = sheets.Heading("run", ["step 5"])
    _, texts = drawn(monkeypatch, flat(*range(5)), None, (), member=np.array([0, 0, 0, 11, 11]), heading=heading)
    assert texts[:2] != ["run", "step 5"] and {"0", "11", "run", "step 5"} <= set(texts)
    assert "Below each image: the number of its member." in texts


def test_a_sheet_has_a_title_and_facts_that_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ["step 1,200", "seed 0", "10 members", "64 samples, drawn with seed 0"]
    picture, texts = drawn(monkeypatch, flat(*range(9)), heading=sheets.Heading("digits-wcgan", facts))
    assert texts[0] == "digits-wcgan"
    lines = [text for text in texts[1:] if text]
    assert [fact for line in lines for fact in line.split("  ·  ")] == facts and len(lines) > 1
    font = sheets.font(15)
    assert all(font.getlength(line) <= picture.width - 2 * sheets.MARGIN for line in lines)
    points = sheets.draw_samples(np.zeros((5, 2)), data=np.ones((5, 2)), heading=sheets.Heading("ring8", ["step 5"]))
    assert points.get_suptitle() == "ring8\nstep 5"  # type: ignore[union-attr]


# -- charts -------------------------------------------------------------------------------------------------------


def test_a_sheet_without_a_heading_has_its_columns_and_its_note() -> None:
    rows = [np.full((2, 1, 8, 8), shade, np.uint8) for shade in (10, 20, 30, 40)]
    one, two = (sheets.draw_sheet(rows, columns=columns) for columns in (1, 2))
    assert two.width > one.width and two.height < one.height + 2 * sheets.MARGIN
    assert {(10,) * 3, (20,) * 3, (30,) * 3, (40,) * 3} <= {colour for _, colour in two.getcolors(1 << 16)}
    assert sheets.draw_sheet(rows, note="Below each image: its member.").height > one.height


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ([], "digits-wcgan"),
        (["train.batch=8"], "digits-wcgan"),
        (["data.source=/home/me/birds", "data.bad_images=skip"], "birds"),
        (["data.source=hf:me/faces#split=train"], "faces"),
        (["data.source=memory:Birds_0123456789ab"], "Birds"),  # an object that was given in Python
    ],
)
def test_the_title_of_a_run_on_own_data_is_that_of_the_data(tmp_path: Path, changes: list[str], title: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"recipe": "digits-wcgan", "changes": changes}))
    assert RunFolder(tmp_path).title == title


def test_the_title_of_a_run_is_its_recipe_or_its_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "00012-mine")
    assert folder.title == "mine"
    folder.path.mkdir()
    folder.info_path.write_text('{"recipe": "digits\\u001b[31m"}')
    assert folder.title == "digits\N{REPLACEMENT CHARACTER}[31m"  # a run may come from a stranger
