"""Write the frames of a film to a file: GIF, animated WebP, or MP4 if ffmpeg is installed."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ganherd.util import files
from ganherd.util.errors import UserError

SUFFIXES = (".gif", ".mp4", ".webp")
_COLOURS = 96  # number of colours in the palette of a GIF, which all frames share
_GIF_BYTES = 4 << 20  # approximate largest size of a GIF
_FEWEST_FRAMES = 12  # a GIF may have this many frames even if it becomes larger
_NEARLY_WHITE = 248  # colours whose channels are all at least this become white
_VIDEO_RATE = 25  # frames per second of a video


def check_output(output: Path) -> None:
    """Check that a film can be written to a path.

    Raises:
        UserError: The suffix is unknown, the path is a folder, or a video needs ffmpeg, which is missing.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"-o {output}: a film is a file that ends with .gif, .mp4 or .webp.")
    if output.is_dir():
        raise UserError(f"-o {output} is a folder; choose another name.")
    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise UserError(
            f"-o {output}: a video needs the program ffmpeg, which is not installed here: install it, e.g. with "
            "`apt install ffmpeg`, or write a .gif or .webp."
        )


def most_gif_frames(some: Sequence[Image.Image]) -> int:
    """Estimate from some frames of a film how many different frames fit into a GIF of about 4 MiB."""
    out = io.BytesIO()
    _save(out, ".gif", iter(some), [100] * len(some), some)
    return max(_FEWEST_FRAMES, _GIF_BYTES * len(some) // out.tell())


def write_film(
    output: Path, frames: Iterator[Image.Image], durations: Sequence[int], palette_from: Sequence[Image.Image]
) -> None:
    """Write a film. Frames are drawn one by one as they are written.

    Args:
        output: The file; its suffix is the format.
        frames: The frames, RGB.
        durations: Milliseconds of each frame, multiples of 10.
        palette_from: Some of the frames, from which the palette of a GIF is chosen.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        with files.replacing(output) as aside:
            if output.suffix.lower() == ".mp4":
                _write_video(aside, frames, durations)
            else:
                aside.touch(exist_ok=False)  # report a folder that cannot be written to before the first frame
                _save(aside, output.suffix.lower(), frames, durations, palette_from)
    except OSError as error:
        raise UserError(f"-o {output} cannot be written: {error.strerror or error}.") from error


def _save(
    target: Path | io.BytesIO,
    kind: str,
    frames: Iterator[Image.Image],
    durations: Sequence[int],
    palette_from: Sequence[Image.Image],
) -> None:
    """Write an animated GIF or WebP by Pillow; see `write_film` for the arguments."""
    if kind == ".gif":
        palette = _shared_palette(palette_from)
        frames = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    settings: dict[str, Any] = {
        ".gif": {"format": "GIF", "disposal": 1, "optimize": True},
        ".webp": {"format": "WEBP", "quality": 80, "method": 2},
    }[kind]
    next(frames).save(target, save_all=True, append_images=frames, duration=list(durations), loop=0, **settings)


def _shared_palette(frames: Sequence[Image.Image]) -> Image.Image:
    """Return a palette image (mode P) with the most important colours of some frames; nearly white becomes white."""
    stacked = Image.new("RGB", (frames[0].width, sum(frame.height for frame in frames)))
    top = 0
    for frame in frames:
        stacked.paste(frame, (0, top))
        top += frame.height
    palette = stacked.quantize(_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    colours = np.array(palette.getpalette(), np.uint8).reshape(-1, 3)
    colours[colours.min(1) >= _NEARLY_WHITE] = 255  # keep the background white
    palette.putpalette(colours.tobytes())
    return palette


def _write_video(path: Path, frames: Iterator[Image.Image], durations: Sequence[int]) -> None:
    """Write an MP4 with ffmpeg at a fixed frame rate; frames that last longer are repeated.

    Args:
        durations: Milliseconds of each frame.
    """
    first = next(frames)
    size = f"{first.width}x{first.height}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(_VIDEO_RATE), "-i", "-"]
    # pad to even sides: yuv420p, the pixel format that all players support, needs them
    target = [
        "-vf",
        "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white",
        "-c:v",
        "libx264",
        "-pix_fmt",
        "yuv420p",
        "-crf",
        "20",
    ]
    words = ["ffmpeg", "-v", "error", "-y", *source, *target, "-movflags", "+faststart", str(path.absolute())]
    shown, end = 0, 0
    with tempfile.TemporaryFile() as messages:
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages) as program:
            assert program.stdin is not None
            try:
                for frame, milliseconds in zip(_chained(first, frames), durations, strict=True):
                    end += milliseconds
                    content = frame.tobytes()
                    while shown * 1000 < end * _VIDEO_RATE:
                        program.stdin.write(content)
                        shown += 1
            except BrokenPipeError:
                pass  # ffmpeg has failed; its message is reported below
            except BaseException:
                program.kill()
                raise
        if program.returncode:
            messages.seek(0)
            lines = messages.read(4096).decode("utf-8", "replace").strip().splitlines()
            raise OSError(0, f"ffmpeg reports: {lines[-1] if lines else 'no reason'}")


def _chained(first: Image.Image, frames: Iterator[Image.Image]) -> Iterator[Image.Image]:
    yield first
    yield from frames
