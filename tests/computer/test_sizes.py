"""The theorem's formulas of heads, tokens and features, against the block that is built."""

import math
from pathlib import Path

import pytest

from iceform.computer import Computer

PAGE = Path(__file__).parents[2] / "docs" / "theorems" / "computer.md"
SIZES = [(1, 1, 4, 2, 2, 32), (2, 4, 4, 2, 3, 32), (4, 8, 16, 4, 8, 64), (8, 64, 15, 5, 9, 100)]


def bits(count):
    return max(1, math.ceil(math.log2(count)))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_block_has_the_theorem_s_sizes(sizes):
    width, lanes, variables, tables, instructions, entries = sizes
    computer = Computer(*sizes)
    tokens = 1 + instructions + (lanes + 1) + lanes * variables + entries
    assert computer.sizes.tokens == tokens
    assert sum(len(layer.labels) for layer in computer.network.layers) == 2 * width + 17
    features = 6 * width + 23 * bits(variables + 1) + 4 * bits(instructions) + 3 * bits(tables)
    features += 2 * bits(lanes + 1) + bits(tokens) + 11
    assert computer.network.features.total == features


def test_the_page_has_these_formulas():
    text = PAGE.read_text(encoding="utf-8")
    assert r"\text{heads} = 2m + 17" in text
    assert "N = 1 + I + (L + 1) + L V + E" in text
    logs = r"6m + 23\,\ell(V + 1) + 4\,\ell(I) + 3\,\ell(T) + 2\,\ell(L + 1) + \ell(N) + 11"
    assert logs in text
