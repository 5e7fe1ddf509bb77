"""Set the style of all pictures, draw points over the data, and save pictures as PNG or SVG."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Picture = Image.Image | Figure

INK = "#1b1f27"  # text and axes; in an inline SVG it becomes the page's own colour
GENERATED, DATA = "#3b82f6", "#9aa4b2"
FRAME = "#8b93a1"
SOFT = "#75808c"  # counts and notes
MOST_ROWS = 50  # largest number of rows in a grid of images


def to_image(x: np.ndarray) -> Image.Image:
    """Convert uint8 [C, H, W] to an image: RGB if C is 3, RGBA if C is 4, otherwise the first channel in grey."""
    channels = len(x)
    if channels in (3, 4):
        return Image.fromarray(np.ascontiguousarray(np.moveaxis(x, 0, -1)))
    return Image.fromarray(np.ascontiguousarray(x[0]))


def draw_points(x: np.ndarray, data: np.ndarray | None = None) -> Figure:
    """Draw generated points [n, 2] over the points of the data [m, 2]."""
    figure, (axes,) = new_figure(5.2, 5.2)
    scatter(axes, x, data)
    if data is not None:
        axes.legend(frameon=False, labelcolor=INK, markerscale=2, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def draw_points_and_data(x: np.ndarray, data: np.ndarray) -> Figure:
    """Draw two panels: the points of the data [m, 2], and generated points [n, 2] over them."""
    figure, (left, right) = new_figure(9.6, 5.2, columns=2)
    scatter(left, np.empty((0, 2)), data)
    scatter(right, x, data)
    left.set_title(f"data, {len(data):,} points", color=INK, fontsize=10, loc="left")
    right.set_title(f"{len(x):,} generated points over the data", color=INK, fontsize=10, loc="left")
    return figure


def scatter(axes: Axes, x: np.ndarray, data: np.ndarray | None, most: int = 5000) -> None:
    """Draw generated points [n, 2] over the points of the data [m, 2]; None: without data.

    The data is grey, or dark if there are no generated points. The limits of the axes are those of the data; a label
    counts the generated points outside of them.

    Args:
        most: Draw about this many points of the data and of the generated ones at most.
    """
    known = x[np.isfinite(x).all(1)][:most]
    look: dict[str, Any] = {"alpha": 0.5, "linewidths": 0, "rasterized": True}
    if data is not None:
        some = data[:: max(1, len(data) // most)]
        axes.scatter(some[:, 0], some[:, 1], s=10, c=DATA if len(known) else INK, label="data", **look)
    if len(known):
        axes.scatter(known[:, 0], known[:, 1], s=5, c=GENERATED, label="generated", **look)
    reference = data if data is not None and len(data) else known
    if len(reference):
        # the data sets the limits, because far points of a diverged member would shrink all others to a dot
        low, high = reference.min(0), reference.max(0)
        centre, half = (low + high) / 2, max(float((high - low).max()) * 0.62, 1e-6)
        axes.set_xlim(centre[0] - half, centre[0] + half)
        axes.set_ylim(centre[1] - half, centre[1] + half)
        outside = len(x) - int((np.abs(x - centre) <= half).all(1).sum())
        if outside:
            axes.set_xlabel(f"{outside:,} of {len(x):,} generated points lie outside", color=INK)
    axes.set_aspect("equal")


def save(picture: Picture, path: str | Path) -> Path:
    """Save a picture as PNG, or as SVG if the name ends in .svg."""
    path = Path(path)
    if path.suffix.lower() == ".svg":
        path.write_text(svg(picture), encoding="utf-8")
    else:
        path.write_bytes(png(picture))
    return path


def png(picture: Picture) -> bytes:
    """Return the picture as PNG."""
    out = io.BytesIO()
    if isinstance(picture, Image.Image):
        picture.save(out, "PNG", compress_level=3)  # 50 times as fast as the best compression, with a tenth more bytes
    else:
        with _any_script():
            _save_figure(picture, out, format="png", dpi=130, facecolor="white", metadata={"Software": None})
    return out.getvalue()


def svg(picture: Picture, *, inline: bool = False, salt: str = "ganherd") -> str:
    """Return the picture as SVG.

    Args:
        inline: Let the HTML page that contains the picture determine its font, text colour and width.
        salt: Text from which the ids of elements are derived; pictures on one page need different salts.
    """
    if isinstance(picture, Image.Image):
        image = base64.b64encode(png(picture)).decode()
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width}" height="{picture.height}">'
            f'<image width="100%" height="100%" href="data:image/png;base64,{image}"/></svg>'
        )
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}), _any_script():
        _save_figure(picture, out, format="svg", dpi=144, transparent=inline, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    if not inline:
        return text
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for size in ("width", "height"):  # the page determines the size
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)


def _save_figure(figure: Figure, out: io.BytesIO | io.StringIO, **options: Any) -> None:
    """Save a figure by `savefig`, but skip one of its two drawings.

    For a figure with a layout engine, `savefig` draws everything once to place the axes and once for the output. This
    replaces the first drawing by a call of the layout engine.
    """
    engine, draw = figure.get_layout_engine(), figure.draw
    if engine is not None:

        def place_axes(renderer: object) -> None:
            engine.execute(figure)
            vars(figure)["draw"] = draw

        vars(figure)["draw"] = place_axes
    try:
        figure.savefig(out, **options)
    finally:
        vars(figure).pop("draw", None)


@contextmanager
def _any_script() -> Iterator[None]:
    """Silence Matplotlib's warning about letters that its font lacks, e.g. Chinese ones.

    In a PNG they appear as boxes; in an SVG the viewer uses another font.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        yield


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a new figure, created without pyplot, and its axes row by row, in the style of ganherd.

    Args:
        width: The width of the figure in inches.
        height: The height of the figure in inches.
        columns: The number of axes next to each other.
        rows: The number of axes below each other.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    return figure, [styled(a) for a in axes]


def styled(axes: Axes) -> Axes:
    """Apply the style of ganherd to axes, in place, and return them."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.spines[["left", "bottom"]].set_alpha(0.35)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(axis="y", color=INK, alpha=0.09, lw=0.8)
    axes.set_axisbelow(True)
    return axes
