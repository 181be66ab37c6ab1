"""Tables as other programs write them: read right, or refused in one line; never shifted."""

import bz2
import gzip
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from iceform.errors import IceformError
from iceform_estimators.command.app import app
from iceform_estimators.tables import inspect, read, read_schema

NAN = math.nan
DAY = 18262.0  # 2020-01-01


def lines(*rows, end="\n"):
    return end.join(rows) + end


# Every row: what it is, the file, and the columns that must come out.
RIGHT = {
    # R
    "R write.table": (
        lines('"a" "b"', '"1" 1 5', '"2" 2 6', '"3" 4 7'),
        {"a": [1, 2, 4], "b": [5, 6, 7]},
    ),
    "R write.csv": (lines('"","a","b"', '"1",1,"x"', '"2",3,"y"'), {"a": [1, 3], "b": ["x", "y"]}),
    "R write.table, comma": (lines("a,b", "r1,1,5", "r2,2,6"), {"a": [1, 2], "b": [5, 6]}),
    "R write.csv2": (
        lines('"";"a";"b"', '"1";1,5;"x"', '"2";2,25;"y"'),
        {"a": [1.5, 2.25], "b": ["x", "y"]},
    ),
    "R NA": (lines("a,b", "NA,1", "2,NA", "3,4"), {"a": [NAN, 2, 3], "b": [1, NAN, 4]}),
    "R TRUE": (lines("a,b", "TRUE,1", "FALSE,5"), {"a": [1, 0], "b": [1, 5]}),
    # Excel
    "Excel, semicolon": (
        lines("a;b", "1,5;x", "2,5;y", end="\r\n"),
        {"a": [1.5, 2.5], "b": ["x", "y"]},
    ),
    "Excel, sep=": (lines("sep=;", "a;b", "1;3", "2;4"), {"a": [1, 2], "b": [3, 4]}),
    "Excel, byte order mark": ("\ufeff" + lines("a,b", "1,3", "2,4"), {"a": [1, 2], "b": [3, 4]}),
    "Excel, Unicode text": (
        lines("a\tb", "1\tä", "2\tß").encode("utf-16"),
        {"a": [1, 2], "b": ["ä", "ß"]},
    ),
    "Excel errors": (
        lines("a,b", "#DIV/0!,1", "2,#N/A", "3,3"),
        {"a": [NAN, 2, 3], "b": [1, NAN, 3]},
    ),
    "Excel trailing separators": (lines("a,b", "1,3,", "2,4,"), {"a": [1, 2], "b": [3, 4]}),
    "Excel empty columns": (lines("a,b,,", "1,3,,", "2,4,,"), {"a": [1, 2], "b": [3, 4]}),
    "Excel blank lines": (lines("a,b", "1,3", "", "2,4", "", ""), {"a": [1, 2], "b": [3, 4]}),
    # numbers
    "thousands, quoted": (
        lines("a,b", '"1,000",1', '"12,345",2', '"1,234,567",3'),
        {"a": [1000, 12345, 1234567], "b": [1, 2, 3]},
    ),
    "thousands and decimals": (
        lines("a;b", "1,000.5;1", "999.25;2"),
        {"a": [1000.5, 999.25], "b": [1, 2]},
    ),
    "European thousands": (
        lines("a;b", "1.000,5;1", "12.345,25;2"),
        {"a": [1000.5, 12345.25], "b": [1, 2]},
    ),
    "Swiss thousands": (lines("a;b", "1'000.5;1", "12'345;2"), {"a": [1000.5, 12345], "b": [1, 2]}),
    "spaces between thousands": (
        lines("a;b", "1 000,5;1", "12\u00a0345,25;2"),
        {"a": [1000.5, 12345.25], "b": [1, 2]},
    ),
    "dollars": (lines("a,b", "$5,1", "$7.50,2"), {"a": [5, 7.5], "b": [1, 2]}),
    "euros behind": (lines("a;b", "5,50 €;1", "1.007,00 €;2"), {"a": [5.5, 1007], "b": [1, 2]}),
    "brackets for minus": (
        lines("a,b", '"$1,000.00",1', '"($2,500.50)",2'),
        {"a": [1000, -2500.5], "b": [1, 2]},
    ),
    "minus behind, as SAP has it": (
        lines("a,b", "12.50-,1", '"1,000.00",2'),
        {"a": [-12.5, 1000], "b": [1, 2]},
    ),
    "brackets and three decimals": (
        lines("a,b", "0.126,1", "(0.536),2"),
        {"a": [0.126, -0.536], "b": [1, 2]},
    ),
    "lakhs and crores": (
        lines("a,b", '"1,23,456",1', '"12,34,56,789.5",2'),
        {"a": [123456, 123456789.5], "b": [1, 2]},
    ),
    "Fortran's exponents": (
        lines("a,b", "1.25D+03,1", "-.5d-2,2"),
        {"a": [1250, -0.005], "b": [1, 2]},
    ),
    "remarks above the header": (
        lines("# made by a tool", "#", "#a,b", "1,3", "2,4"),
        {"#a": [1, 2], "b": [3, 4]},
    ),
    "times of day": (
        lines("a,b", "06:00,1", "12:00:00,2", "18:00:00.0,3"),
        {"a": [0.25, 0.5, 0.75], "b": [1, 2, 3]},
    ),
    "per cent": (lines("a,b", "12%,1", "7.5%,2"), {"a": [12, 7.5], "b": [1, 2]}),
    "signs and exponents": (
        lines("a,b", "+1e3,1", "-2.5E-2,2", ".5,3", "4.,4"),
        {"a": [1000, -0.025, 0.5, 4], "b": [1, 2, 3, 4]},
    ),
    "seventeen digits": (
        lines("a,b", "0.1,1", "0.30000000000000004,2"),
        {"a": [0.1, 0.1 + 0.2], "b": [1, 2]},
    ),
    "blanks around": (lines("a , b", " 1 , x ", " 2 , y "), {"a": [1, 2], "b": ["x", "y"]}),
    "three decimals": (lines("a,b", "1.234,1", "2.345,2"), {"a": [1.234, 2.345], "b": [1, 2]}),
    "decimal comma decides": (lines("a;b", "1,234;1", "12,5;2"), {"a": [1.234, 12.5], "b": [1, 2]}),
    "another column decides": (
        lines("a;b", "1,234;2,5", "7,125;3,25"),
        {"a": [1.234, 7.125], "b": [2.5, 3.25]},
    ),
    # codes, words, dates
    "codes with zeros": (
        lines("a,b", "01234,1", "98765,2"),
        {"a": ["01234", "98765"], "b": [1, 2]},
    ),
    "words": (lines("a,b", '"x, y",1', '"say ""so""",2'), {"a": ["x, y", 'say "so"'], "b": [1, 2]}),
    "line break in a cell": (lines("a,b", '"x\ny",1', "z,2"), {"a": ["x\ny", "z"], "b": [1, 2]}),
    "yes and no": (lines("a,b", "yes,1", "no,2"), {"a": ["yes", "no"], "b": [1, 2]}),
    "ISO dates": (lines("a,b", "2020-01-01,1", "2020-01-04,2"), {"a": [DAY, DAY + 3], "b": [1, 2]}),
    "ISO moments": (
        lines("a,b", "2020-01-01T12:00:00Z,1", "2020-01-04 00:00,2"),
        {"a": [DAY + 0.5, DAY + 3], "b": [1, 2]},
    ),
    "German dates": (
        lines("a,b", "01.01.2020,1", "31.12.2019,2"),
        {"a": [DAY, DAY - 1], "b": [1, 2]},
    ),
    "American dates": (
        lines("a,b", "1/4/2020,1", "12/31/2019,2"),
        {"a": [DAY + 3, DAY - 1], "b": [1, 2]},
    ),
    "British dates": (
        lines("a,b", "4/1/2020,1", "31/12/2019,2"),
        {"a": [DAY + 3, DAY - 1], "b": [1, 2]},
    ),
    "months by name": (
        lines("a,b", "01-Jan-2020,1", "31-Dec-2019,2"),
        {"a": [DAY, DAY - 1], "b": [1, 2]},
    ),
    "thousands beside decimal points": (
        lines("a;b", "$179,350;1.5", "$125,250;2.25"),
        {"a": [179350, 125250], "b": [1.5, 2.25]},
    ),
    # shapes
    "a running number": (
        lines("id,a,b", "1,3,5", "2,4,6", "3,9,7", "4,1,8", "5,2,9"),
        {"a": [3, 4, 9, 1, 2], "b": [5, 6, 7, 8, 9]},
    ),
    "an empty column": (lines("a,e,b", "1,,3", "2,,4"), {"a": [1, 2], "b": [3, 4]}),
    "old line ends": (lines("a,b", "1,3", "2,4", end="\r\n"), {"a": [1, 2], "b": [3, 4]}),
    "no last line end": ("a,b\n1,3\n2,4", {"a": [1, 2], "b": [3, 4]}),
    "gzipped": (
        gzip.compress(lines("a,b", "1,3", "2,4").encode(), mtime=0),
        {"a": [1, 2], "b": [3, 4]},
    ),
    "any year": (
        lines("a,b", "0001-01-01,1", "1969-12-31T12:00:00Z,2", ",3", "9999-12-31,4"),
        {"a": [-719162, -0.5, NAN, 2932896], "b": [1, 2, 3, 4]},
    ),
    "a typographer's minus": (lines("a;b", "\u22125,5;1", "2;3"), {"a": [-5.5, 2], "b": [1, 3]}),
    "more digits than a double": (
        lines("a,b", "9007199254740993,1", "9007199254740992,2", "5,3"),
        {"a": ["9007199254740993", "9007199254740992", "5"], "b": [1, 2, 3]},
    ),
    "as many digits as a double": (
        lines("a,b", "9007199254740994,1", "5,3"),
        {"a": [9007199254740994, 5], "b": [1, 3]},
    ),
    "an index that pandas wrote": (
        lines("Unnamed: 0,a,b", "0,3,5", "1,4,6", "2,9,7", "3,1,8", "4,2,9"),
        {"a": [3, 4, 9, 1, 2], "b": [5, 6, 7, 8, 9]},
    ),
    "a matrix that pandas wrote": (lines("0,1", "3,4", "5,6"), {"0": [3, 5], "1": [4, 6]}),
    "UTF-32": (lines("a,b", "1,ä", "2,ß").encode("utf-32"), {"a": [1, 2], "b": ["ä", "ß"]}),
    "Macintosh line ends": (lines("a,b", "1,3", "2,4", end="\r"), {"a": [1, 2], "b": [3, 4]}),
    "names in quotes": (lines('"a, first","b"', "1,3", "2,4"), {"a, first": [1, 2], "b": [3, 4]}),
}

# What it is, the file, and words of the refusal.
REFUSED = {
    "one cell more in one row": (lines("a,b", "1,2", "1,2,3"), "3 cells in row 2"),
    "one cell fewer": (lines("a,b,c", "1,2,3", "1,2"), "2 cells in row 2"),
    "thousands without quotes": (lines("a,b", "1,000,5", "2,5", "3,5"), "3 cells in row 1"),
    "a title above": (lines("Sales 2020", "a,b", "1,2", "3,4"), "1 cell in row 1 ('a,b')"),
    "a sum below": (lines("a,b", "1,2", "3,4", "5,6", "total,12"), "holds 'total' in row 4"),
    "two names alike": (lines("a,a", "1,2", "3,4"), "more than one column called 'a'"),
    "a name missing in the middle": (lines("a,,b", "1,7,2", "3,8,4"), "column 2 of"),
    "thousands or decimals": (lines("a;b", "1,234;1", "7,125;2"), "is 1.234 or 1234"),
    "points among commas": (lines("a;b", "1.234;2,5", "7.125;3,25"), "nothing in the file tells"),
    "day or month": (lines("a,b", "3/4/2020,1", "5/6/2020,2"), "is 2020-04-03 or 2020-03-04"),
    "two currencies": (lines("a,b", "$5,1", "€7,2", "$3,3"), "more than one unit"),
    "per cent beside shares": (lines("a,b", "5%,1", "0.5,2", "7%,3"), "more than one unit"),
    "a word among numbers": (lines("a,b", "1,2", "n.a.,3", "4,5", "6,7"), "holds 'n.a.' in row 2"),
    "Windows' code page": ("a,b\nMünchen,1\nKöln,2\n".encode("cp1252"), "'a,b München,1"),
    "a workbook": (b"PK\x03\x04" + bytes(100), "save the sheet as CSV"),
    "an old workbook": (b"\xd0\xcf\x11\xe0" + bytes(100), "save the sheet as CSV"),
    "JSON lines": (lines('{"a": 1, "b": 2}', '{"a": 3, "b": 4}', '{"a": 5, "b": 6}'), "but JSON"),
    "a page": (lines("<!DOCTYPE html>", "<table>", "<tr><td>1</td></tr>"), "HTML or XML"),
    "bzip2": (bz2.compress(b"a,b\n1,2\n3,4\n"), "packed, and not by gzip"),
    "no header": (lines("1.5,2.5", "3,4", "5,6"), "its first line holds numbers alone"),
    "aligned by spaces": (lines("a   b", "1   2", "30  4"), "stand below each other"),
    "UTF-16 without its mark": ("a,b\n1,2\n3,4\n".encode("utf-16-le"), "save it as UTF-8"),
    "a quotation mark too many": (lines("a,b", "1,2", '"3,4', "5,6"), "that nothing closes"),
    "dates in two orders": (lines("a,b", "2020-01-31,1", "31/01/2020,2"), "more than one order"),
    "dates without a century": (lines("a,b", "31.12.19,1", "1.1.20,2"), "without their century"),
    "quotation marks behind blanks": (lines('a, "b"', '1, "x"', '2, "y, z"'), "behind a blank"),
    "what is not seen": (lines("a,b", "\u200b1,1", "\ufeff2,3"), "holds '\\u200b1', a number but"),
    "base 16": (lines("a,b", "0x1a,1", "0x1b,3", "0xff,4"), "base 16 or a fraction"),
    "fractions": (lines("a,b", "1/2,1", "3/16,3", "\u00bd,4"), "base 16 or a fraction"),
    "digits of another script": (lines("a,b", "\uff11\uff12,1", "\u0663,3"), "another script"),
    "single quotation marks": (lines("a,b", "'1',1", "'2',3"), "marks around it"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "neither Parquet nor CSV"),
    "an open quotation mark": (lines("a,b", '"x,1') + "y,2\n" * 20_000, "quotation mark"),
    "a very long cell": (lines("a,b", "x" * 40_000 + ",1", "y,2"), "a cell of 40,000 bytes"),
    "a header without end": ("a," * 600_000 + "b\n1,2\n", "no header"),
    "too many columns": (",".join(f"c{i}" for i in range(20_001)) + "\n", "20,001 columns"),
    "beyond double": (lines("a,b", "1e999,1", "2,2"), "infinite"),
    "31 February": (lines("a,b", "2020-02-31,1", "2020-01-04,2"), "no calendar has"),
    "damaged zip": (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:30], "cannot be read"),
    "only a header": ("a,b\n", "0 rows"),
}


def saved(folder, content):
    path = folder / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("what", RIGHT)
def test_odd_tables_are_read_right(tmp_path, what):
    content, expected = RIGHT[what]
    table = read(saved(tmp_path, content))
    assert table.columns == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(table.features[name].to_numpy(), values, err_msg=name)


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_one_reading_is_refused_in_one_line(tmp_path, what):
    content, words = REFUSED[what]
    path = saved(tmp_path, content)
    with pytest.raises(IceformError) as refused:
        read(path)
    message = str(refused.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 600


def test_there_are_sixty():
    assert len(RIGHT) + len(REFUSED) >= 60


@pytest.mark.parametrize("what", [w for w in RIGHT if not w.startswith("R write")][:40])
def test_parquet_gives_the_same_table(tmp_path, what):
    """The texts as they stand, kept in Parquet, read like the file; so do the typed columns."""
    content, _ = RIGHT[what]
    first = read(saved(tmp_path, content))
    frame = pd.DataFrame({k: v.where(v.notna(), None) for k, v in first.features.items()})
    frame.to_parquet(tmp_path / "typed.parquet")
    again = read(tmp_path / "typed.parquet")
    assert again.digest == first.digest
    changed = frame.copy()
    column = changed.columns[-1]
    changed[column] = changed[column].iloc[::-1].to_numpy()
    changed.to_parquet(tmp_path / "other.parquet")
    assert read(tmp_path / "other.parquet").digest != first.digest


def test_a_schema_decides_what_is_open(tmp_path):
    path = saved(tmp_path, lines("a;b", "1,234;1", "7,125;2"))
    schema, _ = inspect(path)
    written = tmp_path / "schema.toml"
    text = schema.to_toml(path.name)
    assert 'type = "?"' in text
    for decided, values in (
        ('type = "number"\ndecimal = ","', [1.234, 7.125]),
        ('type = "number"\nthousands = ","', [1234, 7125]),
        ('type = "text"', ["1,234", "7,125"]),
    ):
        written.write_text(text.replace('type = "?"', decided), encoding="utf-8")
        assert read(path, schema=read_schema(written)).features["a"].tolist() == values


def test_a_proposal_read_back_reads_the_same(tmp_path):
    for what, (content, _) in RIGHT.items():
        path = saved(tmp_path, content)
        schema, _ = inspect(path)
        (tmp_path / "schema.toml").write_text(schema.to_toml(path.name), encoding="utf-8")
        again = read(path, schema=read_schema(tmp_path / "schema.toml"))
        assert again.digest == read(path).digest, what


def test_a_code_page_can_be_asked_for(tmp_path):
    path = saved(tmp_path, REFUSED["Windows' code page"][0])
    schema, notes = inspect(path)
    assert schema.encoding == "cp1252"
    assert "cp1252" in notes[0]
    assert read(path, schema=schema).features["a"].tolist() == ["München", "Köln"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs [file] and [[columns]]"),
        ("[[columns]]\nname = 'a'\n", "lacks a name or a type"),
        ("[[columns]]\nname = 'a'\ntype = 'nmber'\n", "did you mean 'number'"),
        ("[[columns]]\nname = 'a'\ntype = 'number'\ndecimal = ';'\n", "decimal is . or ,"),
        ("[[columns]]\nname = 'a'\ntype = 'number'\nunit = 'm'\n", "'unit'"),
        ("[[columns]]\nname = 'a'\ntype = 'date'\norder = 'ydd'\n", "ymd, dmy, mdy"),
        ("[[columns", "is no schema"),
        ("[[columns]]\nname = 'a'\ntype = 'text'\n", "column 'b' that the schema lacks"),
    ],
)
def test_bad_schemas(tmp_path, text, words):
    path = saved(tmp_path, lines("a,b", "1,2", "3,4"))
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    with pytest.raises(IceformError) as refused:
        read(path, schema=read_schema(tmp_path / "s.toml"))
    assert words in str(refused.value)


def test_an_exact_law_keeps_its_columns(tmp_path):
    """R's row names once shifted every column by one, and the fit was certified."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=x @ [1.0, 2.0, 3.0])
    text = frame.to_csv(index_label=False, sep=",")
    assert text.splitlines()[0] == "a,b,c,y"
    table = read(saved(tmp_path, text), "y")
    solved = np.linalg.lstsq(table.features.to_numpy(), table.numbers(), rcond=None)[0]
    np.testing.assert_allclose(solved, [1, 2, 3], atol=1e-12)


def test_numbers_are_the_nearest_doubles(tmp_path):
    values = np.random.default_rng(1).normal(size=500) * 10.0 ** np.arange(-250, 250)
    buffer = io.StringIO()
    pd.DataFrame({"a": [repr(float(v)) for v in values], "b": 1}).to_csv(buffer, index=False)
    assert read(saved(tmp_path, buffer.getvalue())).features["a"].tolist() == values.tolist()


def test_the_command_proposes_and_run_uses_it(tmp_path):
    path = saved(
        tmp_path, "a;b;y\n" + "".join(f"1,{i:03};{i % 7};{3 * i}\n" for i in range(100, 140))
    )
    written = tmp_path / "schema.toml"
    runner = CliRunner()
    shown = runner.invoke(app, ["inspect", str(path), "--write", str(written)])
    assert shown.exit_code == 0
    assert "which is 1.1 or 1100" in " ".join(shown.stdout.split())
    ask = ["run", "ridge", "--data", str(path), "--target", "y", "--no-compare", "--json"]
    assert runner.invoke(app, ask).exit_code == 2
    text = written.read_text(encoding="utf-8")
    written.write_text(text.replace('"?"', '"number"\ndecimal = ","'), encoding="utf-8")
    found = runner.invoke(app, [*ask, "--schema", str(written)])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["data"]["digest"] == read(path, "y", schema=read_schema(written)).digest
