"""Tables in text: headers, labels, names of columns, and sentences about cells that are no numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ganherd.data.dataset import Dataset, load
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError

CSV = "acid,ash,grower,hue\n1.5,2,north,0.1\n3,4,south,0.2\n5,6,south,0.3\n"


def read(folder: Path, text: str, name: str = "t.csv", **settings: object) -> Dataset:
    (folder / name).write_text(text, "utf-8")
    return load(DataConfig(source=str(folder / name), holdout=0, **settings))  # type: ignore[arg-type]


def test_data_label_names_the_column_of_labels(tmp_path: Path) -> None:
    data = read(tmp_path, CSV, label="grower")
    assert data.columns == ("acid", "ash", "hue") and data.labels == ("north", "south") and data.y.tolist() == [0, 1, 1]
    assert data.kind == "rows" and np.allclose(data.x, [[1.5, 2, 0.1], [3, 4, 0.2], [5, 6, 0.3]])


@pytest.mark.parametrize("name", ["label", "Class", "target", "y"])
def test_a_column_of_labels_is_recognised_by_its_name(tmp_path: Path, name: str) -> None:
    data = read(tmp_path, CSV.replace("grower", name))
    assert data.columns == ("acid", "ash", "hue") and data.labels == ("north", "south")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_cells_may_be_separated_by_semicolons_or_tabs(tmp_path: Path, mark: str) -> None:
    data = read(tmp_path, CSV.replace(",", mark), "t.tsv", label="grower")
    assert data.shape == (3,) and data.labels == ("north", "south")


def test_quoted_names_may_hold_commas(tmp_path: Path) -> None:
    data = read(tmp_path, '"a, in mm",b,c\n1,2,3\n4,5,6\n')
    assert data.columns == ("a, in mm", "b", "c") and data.labels == ()


def test_a_header_of_numbers_above_labels_is_a_header(tmp_path: Path) -> None:
    data = read(tmp_path, "label,400,402,404\na,0.1,0.2,0.3\nb,0.4,0.5,0.6\n")
    assert data.columns == ("400", "402", "404") and data.labels == ("a", "b")


def test_a_table_without_a_header_has_numbered_columns_and_words_as_labels(tmp_path: Path) -> None:
    data = read(tmp_path, "5.1,3.5,1.4,0.2,setosa\n7,3.2,4.7,1.4,versicolor\n")
    assert data.columns == ("x1", "x2", "x3", "x4") and data.labels == ("setosa", "versicolor")
    assert read(tmp_path, "1,2,3,4\n5,6,7,8\n").labels == ()


def test_a_column_of_measured_numbers_is_no_label(tmp_path: Path) -> None:
    """Otherwise each row of a table for regression would become a class with a separate GAN."""
    data = read(tmp_path, "a,b,c,y\n1,2,3,0.5\n4,5,6,0.7\n")
    assert data.columns == ("a", "b", "c", "y") and data.labels == ()
    assert data.notes[0].startswith(
        "column 'y' holds fractions, so it is taken for numbers and no label; to take it for"
    )
    data = read(tmp_path, "0.5 1.5 0.2\n1.5 2.5 1.2\n", "t.txt")
    assert data.shape == (3,) and data.labels == () and data.notes[0].startswith("column 3 holds fractions")
    data = read(tmp_path, "a,b,c,target\n" + "".join(f"1,2,{i},{i * 7}\n" for i in range(30)))
    assert data.labels == () and "column 'target' holds 30 different numbers in 30 rows" in data.notes[0]


def test_numbers_that_are_labels_stay_labels(tmp_path: Path) -> None:
    assert read(tmp_path, "0.5 1.5 1\n1.5 2.5 2.0\n", "t.txt").labels == ("1", "2")
    assert read(tmp_path, "a,b,c,y\n1,2,3,0.5\n4,5,6,0.7\n", label="y").labels == ("0.5", "0.7")
    assert read(tmp_path, "a,b,c,label\n1,2,3,NA\n4,5,6,EU\n").labels == ("EU", "NA")


def test_the_index_that_pandas_writes_is_left_out(tmp_path: Path) -> None:
    data = read(tmp_path, ",a,b,c\n0,1,2,3\n1,4,5,7\n")
    assert data.columns == ("a", "b", "c") and "the first column counts the rows" in data.notes[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CSV, "row 1 (line 2), column 'grower': 'north' is not a number"),
        (CSV.replace("north", "1").replace("south", ""), "row 2 (line 3), column 'grower': the value is missing"),
        ("a,b,c\n1,2,3\n\n1,NaN,3\n", "row 2 (line 4), column 'b': the value is missing"),
        ("a,b,c\n1,2,3\n1,2,inf\n", "row 2 (line 3), column 'c': 'inf' is not finite"),
        ("a,b,c\n1,2,3\n1,2\n", "line 3: it has 2 values, but the header has 3"),
        ("a,b,c\n", "a header and no rows"),
        ("a,a,c\n1,2,3\n", "two columns named 'a'"),
        ("label\nx\ny\n", "no column of numbers"),
        ("a,b,c,label\n1,2,3,x\n1,2,4,\n", "row 2 (line 3): the label is missing"),
        ("a,b,c,label\n1,2,3,0\n1,2,4,NA\n", "row 2 (line 3): the label is missing (NA among numbers)"),
        ("a,b,c,label\n1,2,3,nan\n1,2,4,1\n", "row 1 (line 2): the label is missing (nan among numbers)"),
    ],
)
def test_bad_tables_are_refused_with_the_place(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    assert sentence in str(error.value) and str(tmp_path / "t.csv") in str(error.value)


def test_a_value_that_overflows_is_not_called_infinite(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too large for float32, -1e\+308 in row 1, column b;"):
        read(tmp_path, "a,b,c\n1,2,3\n1,-1e308,3\n")


def test_a_column_that_float32_rounds_away_is_refused_and_constants_are_not(tmp_path: Path) -> None:
    rows = "\n".join(f"{1_700_000_000 + i % 7},{i},5.1" for i in range(20))
    with pytest.raises(
        UserError, match=r"column time varies by 1.93 around 1\.7e\+09, which float32 rounds away: subtract"
    ):
        read(tmp_path, f"time,b,c\n{rows}\n")
    far = "\n".join(f"{1e6 + i % 7},{i},5.1" for i in range(20))
    data = read(tmp_path, f"time,b,c\n{far}\n")
    assert [scale > 0 for scale in data.scale] == [True, True, False]


def test_a_label_column_that_is_not_there_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not have; did you mean"):
        read(tmp_path, CSV, label="growr")
    with pytest.raises(UserError, match="has no header"):
        read(tmp_path, "1,2,3,4\n", label="grower")


def test_an_npz_keeps_the_names_of_its_columns(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "t.npz", x=x, y=[0, 0, 1, 1], columns=["a", "b", "c"])
    assert load(DataConfig(source=str(tmp_path / "t.npz"), holdout=0)).columns == ("a", "b", "c")
    np.savez(tmp_path / "t.npz", x=x, columns=["a", "b"])
    with pytest.raises(UserError, match="`columns` must name each of them once"):
        load(DataConfig(source=str(tmp_path / "t.npz")))


def test_an_npz_with_missing_values_names_row_and_column(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    x[2, 1] = np.nan
    np.savez(tmp_path / "t.npz", x=x, columns=["a", "b", "c"])
    with pytest.raises(UserError, match="the first in row 2, column b"):
        load(DataConfig(source=str(tmp_path / "t.npz")))
