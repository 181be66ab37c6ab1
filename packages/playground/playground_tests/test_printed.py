"""What the page prints of a bound is true to the last digit."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import iceform_playground
from iceform_playground.program_runs import certificate_json
from tests.attacks.printed import Said, after, certificate, errors

NODE = shutil.which("node")
MODEL = Path(iceform_playground.__file__).parent / "page" / "model.js"
_SCRIPT = """
import {{ atLeast, atMost, bounded }} from {model};
const values = {values};
const all = [2, 3, 4];
console.log(JSON.stringify(values.map((v) => [
  all.map((d) => atMost(v, d)), all.map((d) => atLeast(v, d)), bounded(v, 'estimated')])));
"""


def in_javascript(values: list[float]) -> Iterator[Said]:
    """What the page's functions print."""
    script = _SCRIPT.format(model=json.dumps(MODEL.as_uri()), values=json.dumps(values))
    assert NODE is not None
    command = [NODE, "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for value, (up, down, told) in zip(values, json.loads(done.stdout), strict=True):
        yield from (Said(text, value) for text in up)
        yield from (Said(text, value, least=True) for text in down)
        yield Said(after("estimated ≤ ", told), value)


@pytest.mark.skipif(NODE is None, reason="no node here; install it to run the page's functions")
def test_the_page_rounds_up_as_the_library_does():
    found = list(in_javascript([*errors(400, seed=2), 0.1, 1e-7, 5e-324, 1.7976931348623157e308]))
    assert len(found) == 404 * 7
    assert not [said for said in found if said.violated]
    # No looser than it must be: one digit less in the last place would be below.
    for said in found:
        digits = re.sub(r"[^0-9]", "", said.text.split("·")[0]).lstrip("0")
        assert abs(said.number / Decimal(said.exact) - 1) <= Decimal(10) ** (
            2 - max(1, len(digits))
        )


def test_ends_of_a_domain_are_exact():
    """Rounded either way they would promise too much somewhere."""
    for error in errors(40, seed=4):
        told = certificate_json(certificate(error, "proven"))
        assert float(told["domain"]["max |x|"]) == error
