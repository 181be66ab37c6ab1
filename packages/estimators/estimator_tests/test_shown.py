"""What an interpreter shows of a machine and of its results, on a few lines."""

import torch

from iceform_estimators import Machine, algorithms

X = torch.tensor([[0.5, -0.25], [0.75, 0.5], [-1.0, 0.125]]).double()
Y = torch.tensor([0.5, 0.25, -0.5]).double()


def test_an_interpreter_shows_sizes_and_bounds_on_a_few_lines():
    machine = Machine(3, 8, 1e-6, layout="stream")
    result = machine.run(algorithms.Ridge(), X, Y)
    for thing, part in [
        (machine, "Machine(dim=3, samples=8, eps=1e-06"),
        (result, "in every entry (proven)"),
    ]:
        assert part in repr(thing)
        assert len(repr(thing)) < 400
    assert str(result.attestation) == result.attestation.explain()
