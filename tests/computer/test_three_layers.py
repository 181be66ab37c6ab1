"""Three layers an instruction: what four do, bit by bit."""

import pytest
import torch

from iceform.computer import Computer, library
from iceform.computer.block import ThreeLayerBlock, TransformerBlock
from iceform.computer.compile import compile

F64 = torch.float64
PROGRAMS = {
    "lasso": (library.lasso, 45),  # branches, three turns
    "kernel_regression": (library.kernel_regression, 20),  # reads by likeness
}


def memory_after(network, tokens, cycles, rows):
    for _ in range(cycles):
        tokens = network(tokens)
    return tokens[rows]


def blocks(computer):
    parts = computer.layout, computer.sizes.margins(F64)
    return TransformerBlock(*parts), ThreeLayerBlock(*parts)


@pytest.mark.parametrize(
    ("name", "residual"),
    [
        ("lasso", True),
        ("kernel_regression", False),
        pytest.param("lasso", False, marks=pytest.mark.slow),
        pytest.param("kernel_regression", True, marks=pytest.mark.slow),
    ],
)
def test_three_layers_execute_what_four_do(name, residual):
    """A fetch by the old counter, a flag from after the write or a forgotten field would show."""
    algorithm, cycles = PROGRAMS[name]
    program = compile(algorithm, dim=2, samples=3)
    computer = Computer.for_programs([program])
    torch.manual_seed(0)
    X = 2 * torch.rand(3, 2, dtype=F64) - 1
    prompt = computer.prompt(program, X, X @ torch.tensor([0.5, -0.25], dtype=F64))
    four, three = (block.network(F64, residual=residual) for block in blocks(computer))
    assert (len(four.layers), len(three.layers)) == (4, 3)
    rows = prompt.kinds["memory"]
    start = four.layers[0](prompt.tokens)  # the first instruction's fields, as a prompt has them
    value = computer.layout.features["value"]
    want = memory_after(four, prompt.tokens, cycles, rows)[:, value]
    found = memory_after(three, start, cycles, rows)[:, value]
    assert torch.equal(found, want)
    assert not torch.equal(want, prompt.tokens[rows][:, value])


def test_the_three_layer_block_has_no_more_heads():
    program = compile(library.lasso, dim=2, samples=3)
    four, three = blocks(Computer.for_programs([program]))
    count = [
        sum(len(layer) for layer in block.design(residual=True).layers) for block in (four, three)
    ]
    assert count[0] == count[1]
