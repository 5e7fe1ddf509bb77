"""Read tables with a column of images: Parquet files, and the Arrow files of the Hugging Face cache. Needs pyarrow.

An image is the content of an image file, or a struct of `bytes` and `path` as the Hugging Face Hub writes it. The file
at a path is read only if it is in a folder that the source permits. Rows are stored in groups, called row groups in
Parquet and record batches in Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ganherd.data.readers.files_by_format import reading
from ganherd.data.readers.image_tree import Split
from ganherd.data.samples.image_sample import (
    IMAGE_NAMES,
    LABEL_NAMES,
    MOST_BYTES,
    UNIT,
    ImageSample,
    SampleSource,
    SampleUnit,
    as_label,
)
from ganherd.util.errors import UserError, few
from ganherd.util.files import open_binary, open_regular
from ganherd.util.text import did_you_mean

_AT_ONCE = 16  # number of rows of a table that are in memory at once
_UNITS = 32  # most units of a row group; few, because reading a unit has to read those before it in the group


@dataclass(frozen=True)
class ImageColumns:
    """The columns of images and labels of a table, and the names of the classes."""

    image: str
    label: str | None  # None: no labels
    labels: tuple[str, ...] = ()  # names of the classes, if the table has them
    others: tuple[str, ...] = ()  # columns that could be the label, if none was chosen


class TableSource(SampleSource):
    """Samples of one or more tables. The options `image` and `label` of the address choose columns."""

    def __init__(
        self,
        name: str,
        files: Sequence[tuple[Path, Split]],
        options: Mapping[str, str],
        form: Literal["parquet", "arrow"] = "parquet",
        folders: Sequence[Path] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """Choose the columns by the first file.

        Args:
            name: What messages call the data.
            files: The tables, with their splits.
            options: The options of the address.
            form: The format of the files.
            folders: Folders in which image files may be read that rows name instead of containing an image.
            notes: Notes for the user.
        """
        require_pyarrow(name)
        self._notes, self._form, self._folders = tuple(notes), form, tuple(folder.resolve() for folder in folders)
        self.kind = "a Parquet file" if form == "parquet" else "an Arrow file"
        self.columns = choose_columns(name, self._schema(files[0][0]), options)
        super().__init__(name, files, self.columns.labels)

    @property
    def choice(self) -> tuple[str, ...]:
        return (self.columns.image, self.columns.label or "")

    def notes(self) -> list[str]:
        image, label, others = self.columns.image, self.columns.label, self.columns.others
        labels = "no labels" if label is None else f"labels of column {label!r}"
        choice = f"; {self.name}#label=NAME takes those of a column: {few(others, 12)}" if others else ""
        return [*self._notes, *super().notes(), f"images of column {image!r}, {labels}{choice}"]

    def units(self) -> Iterator[SampleUnit]:
        for file, split in self.files:
            self._check_columns(file)
            start = 0
            with reading(file, self.kind):
                for number, rows in enumerate(self._group_sizes(file)):
                    step = max(UNIT, -(-rows // _UNITS)) if self._form == "parquet" else rows or 1
                    for first in range(0, rows, step):
                        yield SampleUnit(file, split, start + first, min(step, rows - first), group=(number, start))
                    start += rows

    def read(self, unit: SampleUnit) -> Iterator[ImageSample]:
        number, row = unit.group
        last = unit.start + unit.count
        with reading(unit.file, self.kind):
            for batch in self._batches(unit.file, number):
                if row + batch.num_rows > unit.start:
                    for i in range(max(0, unit.start - row), min(batch.num_rows, last - row)):
                        yield self._sample(unit.file, row + i, batch, i)
                row += batch.num_rows
                if row >= last:
                    return
        raise UserError(f"{unit.file} ends before its row {last:,}: it is truncated; get it again.")

    def _sample(self, file: Path, row: int, batch: Any, i: int) -> ImageSample:
        name = f"{file.name}, row {row:,}"
        image: Any = batch.column(self.columns.image)[i].as_py()
        path = ""
        if isinstance(image, dict):
            image, path = image["bytes"], image.get("path") or ""
        try:
            label = None if self.columns.label is None else as_label(batch.column(self.columns.label)[i].as_py())
            label = None if label == -1 else label
            if image is None and path:
                image = self._named_file(path)
        except (ValueError, OSError) as error:
            return ImageSample(name, b"", problem=str(error))
        if not isinstance(image, bytes):
            return ImageSample(name, b"", problem="it holds no image")
        return ImageSample(name, image, label, f"it has {len(image):,} bytes" if len(image) > MOST_BYTES else "")

    def _named_file(self, path: str) -> bytes:
        """Return the content of an image file that a row names; raise a ValueError if it is in none of the folders."""
        file = Path(path).resolve()
        if not any(file.is_relative_to(folder) for folder in self._folders):
            raise ValueError("it names a file and holds no image")
        with open_binary(file, MOST_BYTES) as handle:
            return handle.read()

    # --- files ------------------------------------------------------------------------------------------------------

    def _schema(self, file: Path) -> Any:
        from pyarrow import parquet

        with reading(file, self.kind), open(open_regular(file), "rb") as handle:
            return parquet.read_schema(handle) if self._form == "parquet" else _open_stream(file).schema

    def _check_columns(self, file: Path) -> None:
        names = self._schema(file).names
        for column in filter(None, (self.columns.image, self.columns.label)):
            if column not in names:
                raise UserError(
                    f"{file} has no column {column!r}, unlike {self.files[0][0].name}; it has {few(names, 12)}."
                )

    def _group_sizes(self, file: Path) -> Iterator[int]:
        """Yield the number of rows of each row group (Parquet) or record batch (Arrow) of a file."""
        from pyarrow import parquet

        if self._form == "arrow":
            yield from (batch.num_rows for batch in _open_stream(file))
            return
        with open(open_regular(file), "rb") as handle:
            facts = parquet.read_metadata(handle)
            for number in range(facts.num_row_groups):
                yield facts.row_group(number).num_rows

    def _batches(self, file: Path, number: int) -> Iterator[Any]:
        """Yield the rows of one row group, a few at a time (Parquet), or of one record batch at once (Arrow)."""
        from pyarrow import parquet

        if self._form == "arrow":
            yield from (batch for i, batch in enumerate(_open_stream(file)) if i == number)
            return
        with open(open_regular(file), "rb") as handle:
            table = parquet.ParquetFile(handle)
            names = [name for name in (self.columns.image, self.columns.label) if name]
            yield from table.iter_batches(_AT_ONCE, row_groups=[number], columns=names, use_threads=False)


def _open_stream(file: Path) -> Any:
    """Return a reader of the record batches of an Arrow file, which is mapped into memory."""
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.memory_map(str(file)))


def require_pyarrow(name: str) -> None:
    """Raise a UserError if pyarrow, which reads tables, is not installed; `name` is the data, for the message."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet  # noqa: F401 - a part of it can be missing
    except ImportError:
        raise UserError(f"reading {name} needs the package pyarrow: run `pip install 'ganherd[parquet]'`.") from None


# --- columns --------------------------------------------------------------------------------------------------------


def choose_columns(name: str, schema: Any, options: Mapping[str, str]) -> ImageColumns:
    """Choose the columns of images and labels by the options, by metadata of the Hugging Face Hub, or by type and name.

    Args:
        name: What messages call the data.
        schema: The table's pyarrow schema.
        options: The options of the address: `image` and `label` name columns; label `none` means no labels.

    Raises:
        UserError: There is no such column, or it does not hold images or labels.
    """
    noted = _hub_features(schema)
    types = {field.name: field.type for field in schema}
    image = _chosen(name, "image", list(types), options) or _guess_image(name, types, noted)
    if not _holds_images(types[image]):
        raise UserError(
            f"the column {image!r} of {name} is {types[image]}, and images are bytes of image files, or structs of bytes and path; "
            f"choose another with #image=NAME: its columns are {few(list(types), 12)}."
        )
    wanted = options.get("label")
    label = None if wanted == "none" else _chosen(name, "label", list(types), options)
    if wanted is None:
        classes = [column for column, facts in noted.items() if facts.get("_type") == "ClassLabel" and column in types]
        usual = [column for column in types if column.lower() in LABEL_NAMES and _holds_labels(types[column])]
        order = sorted(classes or usual, key=lambda column: _rank(column, LABEL_NAMES))
        label = order[0] if order else None
    elif label is not None and not _holds_labels(types[label]):
        raise UserError(
            f"the column {label!r} of {name} is {types[label]}, and labels are whole numbers or names; choose another with "
            f"#label=NAME, or ignore labels with #label=none; its columns are {few(list(types), 12)}."
        )
    names = noted.get(label or "", {}).get("names", ())
    others = [] if label or wanted else [column for column in types if column != image and _holds_labels(types[column])]
    return ImageColumns(image, label, tuple(map(str, names)) if isinstance(names, list) else (), tuple(others))


def _chosen(name: str, option: str, columns: list[str], options: Mapping[str, str]) -> str | None:
    """Return the column that an option names, or raise a UserError if the table has no such column.

    Return None if the option is not given. `name` is the data, for messages.
    """
    column = options.get(option)
    if column is not None and column not in columns:
        hint = did_you_mean(column, columns, "{}") or f"its columns are {few(columns, 12)}."
        raise UserError(f"{name} has no column {column!r}; {hint}")
    return column


def _guess_image(name: str, types: Mapping[str, Any], noted: Mapping[str, Any]) -> str:
    """Return the column of images: the one that the Hub marks, the only one of that type, or one with a usual name.

    Args:
        name: What messages call the data.
        types: The type of each column.
        noted: Metadata of the Hub about each column.
    """
    images = [column for column, facts in noted.items() if facts.get("_type") == "Image" and column in types]
    images = images or [column for column, kind in types.items() if _holds_images(kind)]
    usual = [column for column in images if column.lower() in IMAGE_NAMES]
    if not images:
        raise UserError(
            f"{name} has no column of images (bytes of image files, or structs of bytes and path); its columns are "
            f"{few([f'{column} ({kind})' for column, kind in types.items()], 12)}."
        )
    if len(images) > 1 and not usual:
        raise UserError(
            f"{name} has several columns of images ({few(images, 12)}); choose one with {name}#image={images[0]}."
        )
    return min(usual, key=lambda column: _rank(column, IMAGE_NAMES)) if usual else images[0]


def _rank(column: str, usual: Sequence[str]) -> int:
    return usual.index(column.lower()) if column.lower() in usual else len(usual)


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and (types.is_null(inner := kind.field(index).type) or _holds_images(inner))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_labels(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_labels(kind.value_type)
    return bool(
        types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_boolean(kind)
    )


def _hub_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of the Hugging Face Hub about each column; {} if the table does not come from there."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {str(name): facts for name, facts in features.items() if isinstance(facts, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
