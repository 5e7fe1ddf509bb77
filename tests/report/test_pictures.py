"""Pictures: every image in the row of its label, nothing blurred, and no global state."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ganherd.viz import charts, pictures


def flat(*greys: int, side: int = 8, channels: int = 1) -> np.ndarray:
    return np.stack([np.full((channels, side, side), grey, np.uint8) for grey in greys])  # [n, C, H, W]


def test_a_grid_holds_every_pixel_enlarged() -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 1, 8, 8), dtype=np.uint8)
    sheet = np.asarray(pictures.draw_grid([x[:3], x[3:]]).convert("L"))
    step = 56 + 5
    for i in range(2):
        for j in range(3):
            tile = sheet[5 + i * step : 5 + i * step + 56, 5 + j * step : 5 + j * step + 56]
            assert np.array_equal(tile[3::7, 3::7], x[3 * i + j, 0])
            assert np.array_equal(tile[::7, ::7], tile[6::7, 6::7])


def test_rows_are_classes_or_members_or_a_square() -> None:
    x, y = flat(*range(12)), np.arange(12) % 3
    rows = pictures.sample_rows(x, y, ("a", "b", "c"))
    assert [name for name, _ in rows] == ["a", "b", "c"] and rows[1][1][:, 0, 0, 0].tolist() == [1, 4, 7, 10]
    rows = pictures.sample_rows(x, None, (), member=y)
    assert [name for name, _ in rows] == ["member 0", "member 1", "member 2"]
    rows = pictures.sample_rows(x[:9], np.full(9, -1), ("a",), member=np.zeros(9))
    assert [len(images) for _, images in rows] == [3, 3, 3]


def test_a_grid_of_very_many_classes_stays_a_picture() -> None:
    x = flat(*[7] * 300)
    picture = pictures.draw_samples(x, np.arange(300), [f"class {k}" for k in range(300)])
    assert isinstance(picture, Image.Image) and picture.height < 50 * 70


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (4, 16), (2, 9), (3, 200)])
def test_images_of_any_kind(channels: int, side: int) -> None:
    picture = pictures.draw_grid([flat(0, 255, side=side, channels=channels)], ["name"])
    assert picture.width > 2 * side
    small = pictures.draw_grid([flat(0, 255, side=side, channels=channels)], largest=64, margin=0, background=None)
    assert small.height <= 64 and small.mode == "RGBA"


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        pictures.draw_grid([])


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_both_formats_for_all_pictures(tmp_path: Path, suffix: str) -> None:
    points = np.random.default_rng(0).standard_normal((50, 2)).astype(np.float32)
    made = [
        pictures.draw_samples(flat(1, 2, 3)),
        pictures.draw_samples(points, data=points),
        charts.draw_losses([]),
        charts.draw_losses([{"step": 1, "loss_g": [1.0], "loss_d": [2.0]}]),
        charts.draw_bars({"a": 0.5, "b": None}, title="spread"),
        charts.draw_bars({"a": 0.5, "b": 0.5}, expected={"a": 0.4, "b": 0.6}),
        charts.draw_bars({"a": 1.0}, expected={}),
    ]
    for i, picture in enumerate(made):
        path = pictures.save(picture, tmp_path / f"{i}{suffix}")
        raw = path.read_bytes()
        if suffix == ".png":
            assert Image.open(io.BytesIO(raw)).size[0] > 50
        else:
            assert b"<svg" in raw and raw.rstrip().endswith(b"</svg>")


def test_the_same_picture_is_the_same_file() -> None:
    lines = [{"step": i, "loss_g": [1.0, 2.0], "loss_d": [1.0, i]} for i in range(5)]
    first, again = (pictures.svg(charts.draw_losses(lines), inline=True) for _ in range(2))
    assert first == again
    assert pictures.png(charts.draw_losses(lines)) == pictures.png(charts.draw_losses(lines))


def test_a_figure_is_saved_as_by_plain_savefig() -> None:
    """The extra draw that `savefig` makes for the layout is skipped; the file is the same to the byte."""
    figures = [
        charts.draw_losses([{"step": i, "loss_g": [1.0, 2.0], "loss_d": [1.0, i]} for i in range(5)]) for _ in "ab"
    ]
    plain = io.BytesIO()
    figures[0].savefig(plain, format="png", dpi=130, facecolor="white", metadata={"Software": None})
    draws = []
    axes = figures[1].axes[0]
    axes.draw, draw = lambda renderer: draws.append(draw(renderer)), axes.draw
    assert pictures.png(figures[1]) == plain.getvalue()
    assert len(draws) == 1


def test_losses_of_different_magnitude_use_a_symlog_scale() -> None:
    lines = [{"step": i, "loss_g": [1.0, 2.0], "loss_d": [1.0, 1.0 if i != 5 else -1e5]} for i in range(20)]
    figure = charts.draw_losses(lines, [{"step": 5, "event": "nan", "member": 1}])
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "symlog"]


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
    alone, over = pictures.draw_samples(data[:50] + 0.1, data=data).axes  # type: ignore[union-attr]
    assert [to_hex(dots.get_facecolors()[0]) for dots in alone.collections] == [pictures.INK]
    assert [to_hex(dots.get_facecolors()[0]) for dots in over.collections] == [pictures.DATA, pictures.GENERATED]
    assert alone.get_xlim() == over.get_xlim() and len(alone.collections[0].get_offsets()) == 200
    assert alone.get_title(loc="left") == "data, 200 points"


def test_no_global_state_of_matplotlib() -> None:
    pictures.png(charts.draw_losses([]))
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures.svg(charts.draw_losses([]), inline=True)
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_names_in_any_script_are_drawn_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    """An SVG keeps them as text, for whoever has the font."""
    figure, (axes,) = pictures.new_figure(3, 2)
    axes.set_title("кошка 犬 قط")
    pictures.png(figure)
    assert "犬" in pictures.svg(figure, inline=True) and not list(recwarn)
