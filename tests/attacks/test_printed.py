"""What surfaces print of a bound is true to the last digit, and says of which kind it is."""

import ast
import re
from decimal import Decimal
from pathlib import Path

import pytest
import torch

import iceform as ice
from iceform.arithmetic import at_least, at_most, exactly
from tests.attacks.printed import (
    SURFACES,
    Said,
    assert_true,
    certificate,
    errors,
    refusals,
)

ROOT = Path(ice.__file__).parent


@pytest.mark.parametrize("name", SURFACES)
def test_no_printed_bound_is_smaller_than_the_bound(name):
    assert_true(SURFACES[name], 40, seed=sum(map(ord, name)))


@pytest.mark.slow
def test_no_printed_bound_is_smaller_than_the_bound_in_thousands_of_statements():
    assert sum(assert_true(shown, 300, seed=1) for shown in SURFACES.values()) >= 5_000


def test_refusals_name_a_bound_that_can_be_had():
    found = list(refusals())
    assert len(found) >= 10
    assert not [said for said in found if said.violated]


def test_decimals_are_the_nearest_on_their_side():
    for value in errors(400, seed=3):
        for form in (".0e", ".2e", ".1g", ".3g", ".6g"):
            up, down = Decimal(at_most(value, form)), Decimal(at_least(value, form))
            assert down <= Decimal(value) <= up
            assert at_least(-value, form) == f"-{at_most(value, form)}"
            if value > 1e-300:
                assert format(value, form) in (at_most(value, form), at_least(value, form))
                digits = int(form[1]) + (form[2] == "e")
                assert up - down <= Decimal(10) ** (up.adjusted() - digits + 1)
        assert float(exactly(value)) == value
    assert [at_most(v, ".2e") for v in (0.0, float("inf"))] == ["0.00e+00", "inf"]
    with pytest.raises(ice.IceformError, match=r"such as .3e and .3g, got '.3f'"):
        at_most(1.0, ".3f")


def test_numbers_are_read_back_from_every_notation():
    for text in ("1.24e-07", "1.24 × 10<sup>−7</sup>", "1.24·10⁻⁷ and more", "≤ 1.24e-07 (proven)"):
        assert Said(text, 0.0).number == Decimal("1.24e-7")


def test_an_infinite_bound_is_said_to_be_none():
    for kind in ("estimated", "proven", "claimed"):
        told = certificate(float("inf"), kind)
        for text in (told.statement, repr(told), told.explain()):
            assert f"<= inf in every entry ({kind}: nothing bounds it)" in text


def test_program_text_rounds_up_what_its_tables_and_instructions_are_off_by():
    @ice.algorithm
    def logistic(x, y, *, lr=0.3, steps=3):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = w - lr * ice.mean(x * (torch.sigmoid((x * w).sum()) - y))
        return w

    for eps in (1e-4, 1e-6, 3e-8):
        program = ice.compile(logistic, dim=2, samples=3, eps=eps)
        lines = program.explain().splitlines()
        tables = program.assembly.tables
        shown = [line for line in lines if " entries on [" in line]
        assert len(shown) == len(tables) > 0
        for line, table in zip(shown, tables, strict=True):
            said = Said(line.rpartition("off by ")[2], 0.0)
            assert said.number >= Decimal(table.f_error) + Decimal(table.g_error)
        budgets = [program.budget[v] for v in program.assembled.virtual if v is not None]
        told = [re.search(r"table (\S+), rounding (\S+)\)", line) for line in lines]
        told = [found for found in told if found]
        assert len(told) == len(budgets) > 0
        for found, own in zip(told, budgets, strict=True):
            assert Decimal(found[1]) >= Decimal(own.table)
            assert Decimal(found[2]) >= Decimal(own.rounding)


_STATED = {("storage.py", "it.error")}  # what a file says, beside what is true


def test_no_source_formats_a_bound_to_the_nearest():
    """The library's texts, and every cell of the documentation."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                what, form = ast.unparse(node.value), ast.unparse(node.format_spec)
                names = re.search(r"(^|[._])(error|certified|proven|radius)$", what)
                if names and re.search(r"[eg]['\"]$", form):
                    found.append((path.name, what))
    assert set(found) <= _STATED, found
    cells = re.compile(r"\{[^{}]*(\.error|certified)[^{}]*:[<>\d]*\.\d[eg]\}")
    docs = ROOT.parents[1] / "docs"
    for path in [*docs.rglob("*.md"), *docs.rglob("*.ipynb"), docs.parent / "README.md"]:
        assert not cells.search(path.read_text(encoding="utf-8")), path
