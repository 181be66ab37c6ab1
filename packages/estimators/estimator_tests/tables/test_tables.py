"""Tables: what pandas reads, what becomes of each column, and what is refused."""

import gzip
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split

from iceform import errors
from iceform_estimators.preparation import MISSING, Preparation
from iceform_estimators.tables import ames, columns_of, read, read_like, table_from

CSV = """colour,size,price
red,1.5,10
blue,,20
red,2.5,30
,4.5,40
green,3,50
"""


@pytest.fixture
def written(tmp_path):
    def write(content: str | bytes, name: str = "data.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# ---------------------------------------------------------------------------------------- reading


def test_csv_is_read_with_types(written):
    table = read(written(CSV), "price")
    assert list(table.features) == ["colour", "size"]
    assert table.numbers().tolist() == [10, 20, 30, 40, 50]
    assert table.features["size"].dtype == np.float64
    assert table.features["colour"].tolist()[:3] == ["red", "blue", "red"]
    assert table.features["colour"].isna().tolist() == [False, False, False, True, False]
    assert table.rows.tolist() == [1, 2, 3, 4, 5]
    assert columns_of(written(CSV)) == ["colour", "size", "price"]


def test_the_same_table_in_every_file(written, tmp_path):
    plain = read(written(CSV), "price")
    pd.read_csv(written(CSV)).to_parquet(tmp_path / "data.parquet")
    others = [
        written(gzip.compress(CSV.encode()), "data.csv.gz"),
        written("\ufeff" + CSV, "marked.csv"),
        written(CSV.replace("\n", "\r\n"), "windows.csv"),
        tmp_path / "data.parquet",
    ]
    for path in others:
        assert read(path, "price").digest == plain.digest, path
    moved = read(written(CSV.replace("4.5", "4.6")), "price")
    assert moved.digest != plain.digest


def test_types_of_parquet(tmp_path):
    frame = pd.DataFrame(
        {
            "flag": [True, False, True],
            "count": pd.array([1, None, 3], dtype="Int64"),
            "kind": pd.Categorical(["a", None, "b"]),
            "small": np.array([1, 2, 3], dtype=np.int8),
        },
        index=pd.Index([10, 11, 12], name="id"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    got = read(tmp_path / "t.parquet").features
    wanted = {"id": [10, 11, 12], "flag": [1, 0, 1], "count": [1, np.nan, 3], "small": [1, 2, 3]}
    for name, values in wanted.items():
        assert got[name].dtype == np.float64, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    assert got["kind"].dropna().tolist() == ["a", "b"]


def test_codes_can_be_text(written):
    path = written("code,y\n020,1\n,2\n060,3\n020,4\n")
    kept = read(path, "y", text=["code"]).features["code"]
    assert kept.dropna().tolist() == ["020", "060", "020"]
    frame = pd.DataFrame({"code": [20.0, np.nan, 60.0, 20.0], "y": [1, 2, 3, 4]})
    table = table_from(frame, "y", text=["code"])
    assert Preparation.fit(table).names == [f"code={MISSING}", "code=20", "code=60"]


def test_ames_is_the_whole_table():
    table = ames()
    assert table.features.shape == (2930, 79)
    assert not {"rownames", "Order", "PID", "price"} & set(table.features)
    assert table.numbers().min() > 0


def test_more_rows_are_read_as_the_first_were(written):
    table = read(written("t,n,y\na,1,1\nb,2,2\n7,3,3\n"), "y")
    more = read_like(written("n,other,t\n5,x,7\n", "new.csv"), table)
    assert more.features.to_dict("list") == {"t": ["7"], "n": [5.0]}
    empty = read_like(written("n,t\n,\n", "new.csv"), table)
    assert empty.features.isna().all(axis=None)
    with pytest.raises(errors.ProgramError, match=r"new.csv lacks the column 't' of data.csv"):
        read_like(written("n,y\n5,7\n", "new.csv"), table)
    with pytest.raises(errors.DtypeError, match=r"'n' of new.csv held numbers .* does not now"):
        Preparation.fit(table).transform(read_like(written("t,n\na,b\n", "new.csv"), table))


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ("", "Integrity", ["data.csv is empty", "needs a header and rows"]),
        (" \n\n", "Integrity", ["data.csv is empty"]),
        ("a,y\n", "Shape", ["data.csv has 0 rows of data", "add rows"]),
        ("a,y\n1,2\n", "Shape", ["has 1 row of data, learning needs at least 2"]),
        ("a,Y\n1,2\n3,4\n", "Program", ["data.csv has no target column 'y'", "mean 'Y'?"]),
        ("a,b\n1,2\n3,4\n", "Program", ["no target column 'y'; there are a, b"]),
        ("y\n1\n2\n", "Shape", ["no column beside the target 'y'"]),
        ("a,y\n,2\n,4\n", "Bound", ["column 'a' of data.csv is empty", "--drop a"]),
        ("a,y\n1,2\ninf,4\n", "Bound", ["column 'a' of data.csv holds inf in row 2", "--drop a"]),
        ("a,y\n1,2\n3,-inf\n", "Bound", ["'y' of data.csv holds -inf in row 2", "or name another"]),
        ("a,y\n1e200,2\n3,4\n", "Bound", ["holds 1e+200 in row 1", "beyond 1e+140"]),
        (f"a,y\n{2**53 + 1},2\n3,4\n", "Bound", [f"holds {2**53 + 1} in row 1", "--text a"]),
        # a header that is shifted, and rows that do not fit it
        ("a,y\n0,1,2\n1,3,4\n", "Integrity", ["3 cells in row 1", "'0'", "2 names", "every cell"]),
        ("a,y\n1,2,\n3,4,\n", "Integrity", ["data.csv has 3 cells in row 1"]),
        ("a,b,y\n1,2,3\n4,5\n", "Integrity", ["has 2 cells in row 2", "3 names in its header"]),
        ('a,y\n"1,2\n3,4\n', "Integrity", ["has 1 cell in row 1", "mend the row"]),
        (",a,y\n0,1,2\n1,3,4\n", "Integrity", ["column 1 of data.csv has no name", "index=False"]),
        ("1,2\n3,4\n5,6\n", "Integrity", ["no header", "numbers alone (1, 2)"]),
        ("a,a,y\n1,2,3\n4,5,6\n", "Integrity", ["more than one column called 'a'"]),
        ("a, a,y\n1,2,3\n4,5,6\n", "Integrity", ["more than one column called 'a'"]),
        ("a;y\n1;2\n3;4\n", "Integrity", ["separated by ';', not by commas", "sep="]),
        # text in a column of numbers
        ("a,y\n1,2\n2,3\nlots,4\n", "Dtype", ["'a' of data.csv holds 'lots' in row 3", "--text a"]),
        ('a,y\n"1,200",2\n"1,300",3\n', "Dtype", ["'1,200' in row 1", "1234.5"]),
        ("a,y\n$5,2\n$6,3\n", "Dtype", ["holds '$5' in row 1", "2 of 2 values look like numbers"]),
        ("a,y\n1,5 €\n2,6 €\n", "Dtype", ["column 'y' of data.csv holds '5 €' in row 1"]),
        ("a,y\n1.5,2\n-,3\n2.5,4\n", "Dtype", ["holds '-' in row 2", "leave the cell empty"]),
        (b"a,y\n1,2\n\xe9,4\n", "Integrity", ["in UTF-8: byte 8 is 0xe9", "save it as CSV"]),
        (b"PAR1 but no more", "Integrity", ["cannot be read", "save it again"]),
        (b"\x1f\x8b but no more", "Integrity", ["cannot be read", "save it again"]),
    ],
)
def test_refusals_name_file_column_value_cause_and_fix(content, kind, words, written):
    with pytest.raises(getattr(errors, f"{kind}Error")) as refused:
        read(written(content), "y")
    for part in words:
        assert part in str(refused.value), str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_paths_that_cannot_be_read(written, tmp_path):
    written(CSV, "houses.csv")
    with pytest.raises(errors.IntegrityError, match=r"does not exist; did you mean 'houses.csv'\?"):
        read(tmp_path / "house.csv")
    with pytest.raises(errors.IntegrityError, match="does not exist; check the path"):
        read(tmp_path / "nowhere" / "house.csv")
    with pytest.raises(errors.IntegrityError, match="is a directory"):
        read(tmp_path)


def test_parquet_without_what_reads_it_names_the_remedy(tmp_path, monkeypatch):
    pd.DataFrame({"a": [1, 2], "y": [3, 4]}).to_parquet(tmp_path / "t.parquet")
    for engine in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(errors.ProgramError, match=r"t.parquet is Parquet.*pip install pyarrow"):
        read(tmp_path / "t.parquet")


def test_columns_that_are_neither_numbers_nor_text(tmp_path):
    when = pd.DataFrame({"when": pd.to_datetime(["2020-01-01", "2020-01-04"]), "y": [1, 2]})
    when.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(errors.DtypeError, match=r"'when' of t.parquet holds '2020-01-01 .*--drop"):
        read(tmp_path / "t.parquet", "y")
    with pytest.raises(errors.DtypeError, match="a list, neither a number nor text"):
        table_from({"a": [[1], [2]], "y": [1, 2]}, "y")
    with pytest.raises(errors.DtypeError, match="a complex, neither"):
        table_from({"a": [1j, 2], "y": [1, 2]}, "y")


def test_words_that_are_no_numbers_stay_words(written):
    table = read(written("a,b,y\nx1,2020-01-02,1\n3,2020-01-03,2\nx2,2020-01-02,3\n"), "y")
    assert table.features["a"].tolist() == ["x1", "3", "x2"]
    assert table.features["b"].tolist()[0] == "2020-01-02"


def test_targets_that_do_not_suit(written):
    table = read(written("a,y\n1,low\n2,high\n"), "y")
    with pytest.raises(errors.DtypeError, match=r"'y' of data.csv holds text \('low' in row 1\)"):
        table.numbers()
    with pytest.raises(errors.DtypeError, match=r"holds 0.5, which is no label"):
        read(written("a,y\n1,0.5\n2,1\n"), "y").classes()
    with pytest.raises(errors.ProgramError, match="is the target and cannot be left out"):
        read(written(CSV), "price", drop=["price"])


# --------------------------------------------------------------------------------------- preparing


def test_numbers_are_filled_and_scaled_by_the_training_rows():
    train = table_from({"n": [1.0, np.nan, 3.0, 8.0]})
    made = Preparation.fit(train)
    filled = np.array([1.0, 3.0, 3.0, 8.0])
    other = table_from({"n": [np.nan, 11.0]})
    wanted = (np.array([3.0, 11.0]) - filled.mean()) / filled.std()
    np.testing.assert_allclose(made.transform(other)[:, 0], wanted, rtol=1e-15)
    np.testing.assert_array_equal(
        Preparation.fit(train, scale=False).transform(other)[:, 0], [3.0, 11.0]
    )


def test_texts_have_an_indicator_for_each_level():
    table = table_from({"n": [4, 5, 6, 7], "t": ["b", "a", None, "b"]})
    made = Preparation.fit(table, scale=False)
    assert made.names == ["n", f"t={MISSING}", "t=a", "t=b"]
    wanted = [[4, 0, 0, 1], [5, 0, 1, 0], [6, 1, 0, 0], [7, 0, 0, 1]]
    np.testing.assert_array_equal(made.transform(table), wanted)
    least = Preparation.fit(table, scale=False, reference=True)
    assert least.names == ["n", f"t={MISSING}", "t=a"]  # the most frequent level is left out
    np.testing.assert_array_equal(least.transform(table), np.array(wanted)[:, :3])


def test_texts_that_no_training_row_has():
    train = table_from({"t": ["a", "b", "a"], "n": [1, 2, 4]})
    other = table_from({"t": ["mauve", None, "a"], "n": [1, 2, 3]}, source="new.csv")
    with pytest.raises(errors.BoundError, match=r"'t' of new.csv holds '\(missing\)' in row 2"):
        Preparation.fit(train).transform(other)
    made = Preparation.fit(train, scale=False, unknown="ignore")
    np.testing.assert_array_equal(made.transform(other), [[0, 0, 1], [0, 0, 2], [1, 0, 3]])
    assert made.unknowns(other) == [
        {"column": "t", "value": MISSING, "row": 2, "count": 1},
        {"column": "t", "value": "mauve", "row": 1, "count": 1},
    ]
    with pytest.raises(errors.IceformError, match="unknown"):
        Preparation.fit(train, unknown="guess")


def test_columns_that_say_nothing_are_left_out_and_named():
    table = table_from({"c": [3, 3, 3], "id": ["x", "y", "z"], "n": [1, 2, 3]})
    made = Preparation.fit(table)
    assert made.names == ["n"]
    said = {one["column"]: one["done"] for one in made.report()}
    assert said["c"].startswith("constant: always 3")
    assert said["id"].startswith("an identifier")
    with pytest.raises(errors.ShapeError, match=r"no features left: 'c' \(constant"):
        Preparation.fit(table_from({"c": [3, 3, 3]}))


def test_split_is_scikit_learns_and_spreads_classes():
    table = table_from({"n": np.arange(40.0), "y": [0] * 30 + [1] * 10}, "y")
    train, test = table.split(0.25, 3, table.classes())
    wanted = train_test_split(
        np.arange(40), test_size=0.25, random_state=3, stratify=table.classes()
    )
    assert train.rows.tolist() == (np.sort(wanted[0]) + 1).tolist()
    assert test.rows.tolist() == (np.sort(wanted[1]) + 1).tolist()
    with pytest.raises(errors.BoundError, match="share of test rows"):
        table.split(1.0, 0)
    for seed in (-1, 2**32):
        with pytest.raises(errors.BoundError, match=rf"seed must .*, got {seed}$"):
            table.split(0.25, seed)
    whole, none = table.split(0.0, 0)
    assert (len(whole), len(none)) == (40, 0)
