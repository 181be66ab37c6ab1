"""``iceform compile``: a file in, a program explained or a refusal of one line."""

import json

import pytest

from tests.cli.terminal import run

GOOD = """
import iceform as ice


@ice.algorithm
def halved(x, y, *, times=2):
    v = ice.mean(x)
    for _ in ice.repeat(times):
        v = 0.5 * v
    return v
"""
BAD = GOOD.replace("0.5 * v", "v / ice.mean(y)")
NONE = "answer = 42\n"
TWO = GOOD + GOOD.replace("halved", "other")


def compiled(tmp_path, text, *options):
    file = tmp_path / "mine.py"
    file.write_text(text)
    return run("compile", file, "--dim", "2", *options)


def test_it_explains_the_program(tmp_path):
    found = compiled(tmp_path, GOOD, "--explain")
    assert found.exit_code == 0
    assert "v = 0.5 * v" in found.output
    assert "(halt)" in found.output
    assert "computed - exact program" in found.output


def test_it_counts_what_the_program_needs(tmp_path):
    found = compiled(tmp_path, GOOD, "--json")
    plan = json.loads(found.output)
    assert plan["name"] == "halved"
    assert plan["width"] == 2
    assert plan["instructions"] >= 4


def test_ranges_of_parameters_and_of_names(tmp_path):
    root = GOOD.replace("0.5 * v", "v * ice.reciprocal(1.0 - rate, 0.1, 1.0)").replace(
        "times=2", "times=2, rate=0.5"
    )
    options = ("--range", "rate=0.25,0.75", "--range", "v=-2,2")
    found = compiled(tmp_path, root, *options)
    assert found.exit_code == 0, found.output
    assert "v in [-2, 2] (you say)" in found.output
    assert "rate: [0.25, 0.75]" in compiled(tmp_path, root, "--explain", *options).output
    assert "name=low,high" in compiled(tmp_path, root, "--range", "rate=1").output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BAD, "contains 0"),
        (NONE, "@ice.algorithm"),
        (TWO, "--name"),
        ("size,price\n", "mine.py does not run: NameError in line 1"),
        ("a = 1\n1 +\n", "SyntaxError in line 2"),
    ],
)
def test_what_cannot_be_compiled_is_one_line(tmp_path, text, says):
    found = compiled(tmp_path, text)
    assert found.exit_code == 2
    assert says in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_a_file_that_is_not_there(tmp_path):
    found = run("compile", tmp_path / "nowhere.py")
    assert found.exit_code != 0
    assert "no file" in found.output


def test_it_diagnoses_a_program_on_data(tmp_path):
    """The line that divides is named, first as the one that loses most, with what it came near."""
    file, data = tmp_path / "mine.py", tmp_path / "data.csv"
    file.write_text(
        "import iceform as ice\n\n\n@ice.algorithm\ndef ratio(x, y):\n"
        "    top = ice.mean(y)\n    return top / ice.mean(x[0])\n"
    )
    data.write_text("a,b,y\n0.2,0.1,0.3\n0.4,-0.2,0.1\n-0.1,0.3,0.2\n")
    found = run("diagnose", file, data)
    assert found.exit_code == 0
    first, divisor, before = found.stdout.splitlines()
    assert first.startswith("line 7 alone moves the answer by")
    assert divisor.startswith("line 7 divides by 0.17")
    assert "return top / ice.mean(x[0])" in divisor
    assert before.startswith("before the fact: off by at most")
    assert json.loads(run("diagnose", file, data, "--json").stdout)["divisors"][0]["line"] == 7
    data.write_text("a,b,y\n0.2,0.1\n0.3\n")
    wrong = run("diagnose", file, data)
    assert wrong.exit_code == 2
    assert "lines of numbers" in wrong.stderr
