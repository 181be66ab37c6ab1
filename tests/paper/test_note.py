"""The note's numbers are what its script computes, and it builds."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NOTE = Path(__file__).parents[2] / "docs" / "note"


def script():
    found = importlib.util.spec_from_file_location("note_measure", NOTE / "measure.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measure():
    return script()


@pytest.fixture(scope="module")
def kept():
    return json.loads((NOTE / "numbers.json").read_text(encoding="utf-8"))


def test_macros_are_the_kept_numbers_and_no_number_is_missing(measure, kept):
    assert (NOTE / "numbers.tex").read_text(encoding="utf-8") == measure.macros(kept)
    assert list(kept) == list(measure.GROUPS)
    text = (NOTE / "note.tex").read_text(encoding="utf-8")
    groups = "|".join(measure.GROUPS)
    asked = set(re.findall(rf"\\((?:{groups})[A-Z][A-Za-z]*)", text))
    assert len(asked) > 60
    assert asked <= {group + name for group, numbers in kept.items() for name in numbers}


def test_nothing_seen_exceeds_what_is_proven(kept):
    pairs = 0
    for group, numbers in kept.items():
        for name, number in numbers.items():
            bound = numbers.get(name.removesuffix("Seen") + "Proven")
            if name.endswith("Seen") and bound is not None:
                pairs += 1
                assert number["value"] <= bound["value"] + 1e-14, (group, name)
    assert pairs >= 15


@pytest.mark.parametrize("group", ["residual", "step", "heads", "truncated"])
def test_numbers_are_measured_again(measure, kept, group):
    """Sizes and bounds are the same everywhere; what was seen is of the same size."""
    assert group in measure.QUICK
    found = measure.GROUPS[group]()
    assert found.keys() == kept[group].keys()
    for name, number in found.items():
        told = kept[group][name]
        if number["kind"] == "measured":
            assert told["value"] / 3 <= number["value"] <= 3 * told["value"], name
        else:
            assert number["value"] == pytest.approx(told["value"], rel=1e-3), name


def test_bounds_are_printed_rounded_up(measure):
    told = measure.told
    assert told(measure.proven(1.72e-9)) == r"1.8\cdot10^{-9}"
    assert told(measure.proven(9.97e-9)) == r"1.0\cdot10^{-8}"
    assert told(measure.measured(1.72e-9)) == r"1.7\cdot10^{-9}"
    assert told(measure.proven(262.24)) == "263"
    assert told(measure.proven(0.18501)) == "0.19"
    assert told(measure.size(7.605)) == "7.6"


def test_constructions_of_others_do_what_their_papers_say(measure, kept):
    """A sign of theirs that we wrote down wrongly would show: both are exact in real numbers."""
    found = measure.others()
    assert found["LinearSeen"]["value"] < 1e-15
    assert found["ReluSeen"]["value"] < 1e-6
    assert found["GiannouSame"] == found["GiannouLoops"]
    assert found["ReluLayers"] == kept["others"]["ReluLayers"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("latexmk") is None, reason="needs latexmk and LaTeX")
def test_the_note_builds(tmp_path):
    words = ["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", f"-outdir={tmp_path}"]
    subprocess.run([*words, "note.tex"], cwd=NOTE, check=True, capture_output=True)
    log = (tmp_path / "note.log").read_text(encoding="utf-8", errors="replace")
    assert "undefined" not in log
    wide = [float(w) for w in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    assert all(w < 5 for w in wide)
    (pages,) = re.findall(r"Output written on .*?\((\d+) pages", log.replace("\n", ""))
    assert 12 <= int(pages) <= 15
