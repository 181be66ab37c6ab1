"""The record of a circuit follows from any design: held against the matrices that it becomes."""

import pytest
import torch

import iceform as ice
from iceform.bench.record import recorded_edges, variables
from iceform.computer import library
from iceform.targets import LayeredProgram, LinearDescent, StochasticDescent


def layered():
    program = ice.compile(library.least_squares, dim=2, samples=3, eps=1e-2)
    return LayeredProgram.of(program, {"steps": 1}).design


DESIGNS = {
    "layered program": layered,
    "descent": lambda: LinearDescent(2, 2, pairs=1, positions=8, idle=2, copies=2).design,
    "turned descent": lambda: LinearDescent(2, 2, pairs=1, positions=8, basis=3).design,
    "stochastic descent": lambda: StochasticDescent(1, 1, positions=64).design,
}


@pytest.mark.parametrize("name", DESIGNS)
def test_edges_that_are_not_recorded_carry_nothing(name):
    design = DESIGNS[name]()
    everything = torch.ones(1, design.features.total, dtype=torch.float64)
    answer = {("w", 0): 1.0} if "w" in design.features else {}
    found = recorded_edges(design, everything, answer)
    size, seen = design.head_size, 0
    maps = [design.matrices(n % len(design.layers)) for n in range(len(design.unrolled))]
    told = {(e.writer, e.layer, e.reader, e.head) for e in found}
    for layer, here in enumerate(maps):
        for earlier in range(layer):
            for x, kind in enumerate("qkv"):
                product = (here[kind] @ maps[earlier]["o"]).abs()
                blocks = product.unflatten(0, (-1, size)).unflatten(2, (-1, size)).amax((1, 3))
                for head, other in (blocks > 0).nonzero().tolist():
                    assert (1 + earlier * design.heads + other, layer, x, head) in told
                    seen += 1
    between = [e for e in found if e.writer and e.layer is not None]
    assert seen == len(between) > 0


def test_variables_have_their_layers_and_a_subspace():
    design = LinearDescent(2, 3, pairs=1, positions=8).design
    prompts = torch.zeros(1, design.features.total, dtype=torch.float64)
    prompts[:, design.features["x"]] = 1.0
    found = variables(design, prompts, {("w", 0): 1.0, ("w", 1): 1.0})
    assert found["x"].written == (-1,)
    assert found["w"].written == (0, 1, 2)
    assert found["w"].read[-1] == 3  # the logits
    assert found["w"].interval == (1, 3)
    direction = design.moved(torch.eye(design.features.total).double())[design.features["w"]]
    inside = found["w"].subspace @ found["w"].subspace.T @ direction.T
    assert torch.allclose(inside, direction.T)
