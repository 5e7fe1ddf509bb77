"""Maps: the rows that were given, under the names that were given, as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.metrics.modes import toy_modes
from ganherd.scoring import maps
from ganherd.util.errors import UserError
from ganherd.viz import pictures


@pytest.fixture(scope="module")
def clouds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    centres = np.eye(3, 60) * 30
    return {
        "data": centres[np.arange(90) % 3] + rng.normal(size=(90, 60)),
        "herd": centres[np.arange(60) % 3] + rng.normal(size=(60, 60)),
        "single": centres[np.zeros(30, int)] + rng.normal(size=(30, 60)),
    }


@pytest.fixture(scope="module")
def embedded(clouds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return maps.embed(clouds, seed=1)


def test_neighbours_stay_neighbours_across_groups(embedded: dict[str, np.ndarray]) -> None:
    assert {name: len(at) for name, at in embedded.items()} == {"data": 90, "herd": 60, "single": 30}
    data, cluster = embedded["data"], np.arange(90) % 3
    for name, rows in (("herd", np.arange(60) % 3), ("single", np.zeros(30, int))):
        near = ((embedded[name][:, None] - data) ** 2).sum(-1).argmin(1)
        assert (cluster[near] == rows).mean() > 0.97


def test_the_seed_decides(clouds: dict[str, np.ndarray], embedded: dict[str, np.ndarray]) -> None:
    again = maps.embed(clouds, seed=1)
    assert all(np.array_equal(again[name], at) for name, at in embedded.items())
    some = maps.embed(clouds, seed=1, most=20)
    assert {len(at) for at in some.values()} == {20}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (np.full((9, 3), np.nan), "NaN"),
        (np.zeros((3, 3)), "at least 5"),
        (np.zeros((0, 3)), "at least one"),
        (np.tile([1.0, 2.0, 3.0], (40, 1)), "all 40 rows of a map are equal"),
    ],
)
def test_what_cannot_be_mapped_is_refused(rows: np.ndarray, says: str) -> None:
    with pytest.raises(UserError, match=says):
        maps.embed({"data": rows})


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e30])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_rows_of_few_columns_and_any_scale_are_mapped(columns: int, scale: float) -> None:
    """A table may have one column, or columns in tiny or huge units."""
    rows = np.repeat([[0.0], [1.0]], 20, axis=0) * scale + np.zeros(columns)
    at = maps.embed({"data": rows, "herd": rows})
    assert all(np.isfinite(points).all() and points.shape == (40, 2) for points in at.values())
    nearest = ((at["herd"][:, None] - at["data"]) ** 2).sum(-1).argmin(1)
    assert (nearest // 20 == np.arange(40) // 20).all()


def _svg(figure: Any, folder: Path) -> str:
    png, svg = (pictures.save(figure, folder / f"one{ending}") for ending in (".png", ".svg"))
    assert png.name == "one.png" and png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 3000
    text = svg.read_text(encoding="utf-8")
    assert "<svg" in text
    return text


def test_a_map_names_its_groups_and_their_sizes(embedded: dict[str, np.ndarray], tmp_path: Path) -> None:
    figure = maps.draw_map(embedded, "clouds")
    (axes,) = figure.axes
    assert [len(c.get_offsets()) for c in axes.collections] == [90, 60, 30]
    text = _svg(figure, tmp_path)
    for words in ("clouds", "data (90)", "herd (60)", "single (30)", "t-SNE"):
        assert words in text
    apart = maps.draw_map(embedded, together=False)
    assert len(apart.axes) == 2  # the data lies below each
    assert [[len(c.get_offsets()) for c in a.collections] for a in apart.axes] == [[90, 60], [90, 30]]
    assert len({a.get_xlim() for a in apart.axes}) == 1  # the same map


def test_a_map_by_class(embedded: dict[str, np.ndarray], tmp_path: Path) -> None:
    classes = {"data": np.arange(90) % 3, "herd": np.arange(60) % 3, "single": np.full(30, -1)}
    text = _svg(maps.draw_class_map(embedded, classes, ("cat", "dog", "owl"), "by class"), tmp_path)
    assert text.count(">cat<") == 2 and text.count(">owl<") == 2  # not where there is no class
    with pytest.raises(UserError, match="90 points on the map and 3 classes"):
        maps.draw_class_map(embedded, {**classes, "data": np.arange(3)}, ("cat", "dog", "owl"))


def test_bars_are_as_high_as_the_shares_and_marks_lie_where_expected(tmp_path: Path) -> None:
    shares = {"one GAN": np.array([0.7, 0.2, 0.1]), "herd": np.array([0.3, 0.4, 0.3])}
    figure = maps.draw_histograms(shares, ("a", "b", "c"), np.full(3, 1 / 3), "classes seen")
    (axes,) = figure.axes
    heights = [[bar.get_height() for bar in group] for group in axes.containers]
    assert heights == [[0.7, 0.2, 0.1], [0.3, 0.4, 0.3]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b", "c"]
    middle = [[bar.get_x() + bar.get_width() / 2 for bar in group] for group in axes.containers]
    assert np.allclose(np.mean(middle, 0), [0, 1, 2])
    text = _svg(figure, tmp_path)
    for words in ("one GAN", "herd", "expected", "classes seen", "share of samples", "20 %"):
        assert words in text
    with pytest.raises(UserError, match="3 classes"):
        maps.draw_histograms({"herd": np.ones(2)}, ("a", "b", "c"))


@pytest.mark.parametrize("runs", [1, 2, 5])
# Files that other tests left open may be closed here.
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_title_legend_and_bars_of_few_classes_do_not_overlap(runs: int) -> None:
    shares = {f"0000{i}-pictures (TVD 0.03{i})": np.full(3, 1 / 3) for i in range(runs)}
    figure = maps.draw_histograms(shares, ("bird", "cat", "dog"), np.full(3, 1 / 3), "pictures: classes seen")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    title, legend = figure.texts[0].get_window_extent(), axes.get_legend().get_window_extent()
    assert title.y0 >= legend.y1 and legend.y0 >= axes.bbox.y1 - 1
    assert legend.x1 <= figure.bbox.x1 and title.y1 <= figure.bbox.y1


@pytest.mark.further
def test_a_hundred_classes_fit(tmp_path: Path) -> None:
    figure = maps.draw_histograms({"herd": np.full(100, 0.01)}, [f"class {k}" for k in range(100)])
    assert _svg(figure, tmp_path).count("class 9") == 11


@pytest.mark.further
def test_coverage_shows_what_was_found_and_what_was_lost(tmp_path: Path) -> None:
    ring = toy_modes("ring8")
    groups = {"mixture": np.repeat(ring.means, 20, 0), "member 0": np.repeat(ring.means[:6], 20, 0) + 0.005}
    groups["member 1"] = np.concatenate([groups["member 0"], np.zeros((40, 2)), np.full((3, 2), 9.0)])
    figure = maps.draw_coverage(groups, ring)
    text = _svg(figure, tmp_path)
    assert [axes.get_title(loc="left").split(",")[0] for axes in figure.axes] == [
        "mixture:\n8 of 8 modes", "member 0:\n6 of 8 modes", "member 1:\n6 of 8 modes"
    ]  # fmt: skip
    assert "8 of 8 modes, 100.0 % high quality" in text and "3 of 163 outside" in text
    for axes in figure.axes:  # nothing is cut at an edge
        figure.draw_without_rendering()
        assert axes._left_title.get_window_extent().x1 <= figure.bbox.x1  # type: ignore[attr-defined]
    assert "radius 1, std 0.01" in text and "3 std" in text
    crosses = [len(axes.collections[-1].get_offsets()) for axes in figure.axes]
    assert crosses == [0, 2, 2]
    bad, good = ([len(axes.collections[i].get_offsets()) for axes in figure.axes] for i in (-3, -2))
    assert bad == [0, 0, 43] and good == [160, 120, 120]


def test_many_members_are_laid_out_in_rows() -> None:
    ring = toy_modes("ring8")
    figure = maps.draw_coverage({f"member {m}": ring.means for m in range(5)}, ring)
    assert sum(axes.get_visible() for axes in figure.axes) == 5 and len(figure.axes) == 6
