"""gpt2, llama: full-batch descent for any bounded f under a causal mask, 3 n + 1 layers a step."""

from dataclasses import replace

import pytest
import torch

import iceform as ice
from iceform import targets
from iceform.heads import Move

from .stock import assert_within, off, written

SPECS = {
    "gpt2": targets.CausalDescent(2, 2, samples=3),
    "llama": targets.CausalDescent(2, 2, samples=3, dtype="float32", lr=0.2, span=2.0),
}
LOSSES = ({"f": "tanh(z)"}, {"f": "sigmoid(z) - 0.5", "lr": 0.8})


@pytest.fixture(scope="module", params=SPECS)
def stock(request, tmp_path_factory):
    return written(request.param, SPECS[request.param], tmp_path_factory.mktemp(request.param))


def data(dim, n, seed):
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64) - 1
    if seed % 3 == 0:
        x = torch.where(x >= 0, 1.0, -1.0).double()  # a corner
    return x, (x @ torch.randn(dim).double() / 2 + 0.2 * torch.randn(n).double()).clamp(-1, 1)


def test_three_layers_a_sample_and_one_a_step():
    for spec in SPECS.values():
        assert len(spec.design.layers) == (3 * spec.samples + 1) * spec.steps


@pytest.mark.parametrize("seeds", [9, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_and_corner_data_of_up_to_n_samples(stock, seeds):
    """A prompt with fewer samples than turns is full-batch descent on those."""
    model, networks = stock
    for seed in range(seeds):
        x, y = data(2, 1 + seed % model.spec.samples, seed)
        certified, _ = assert_within(model, networks, x, y, **LOSSES[seed % len(LOSSES)])
        assert certified <= (1e-11 if model.spec.dtype == "float64" else 1e-4)


def test_the_reference_is_full_batch_descent():
    spec = SPECS["gpt2"]
    x, y = data(2, 3, 1)
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(spec.steps):
        w = w - spec.lr * sum(torch.tanh(x[i] @ w - y[i]) * x[i] for i in range(3)) / 3
    assert float((spec.reference(x, y) - w).abs().max()) <= 1e-15


def test_a_program_is_written_and_checked(tmp_path):
    @ice.algorithm
    def bent(x, y, *, lr=0.5, steps=2):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = w - lr * ice.mean(x * torch.tanh((x * w).sum() - y))
        return w

    program = ice.compile(bent, dim=2, samples=3)
    with pytest.raises(ice.errors.TargetError, match="a causal mask hides the state"):
        program.to("gpt2", tmp_path / "no")
    with pytest.raises(ice.errors.TargetError, match="causal_descent"):
        program.to("bert", tmp_path / "no", mode="full_batch")
    written = program.to("gpt2", tmp_path / "bent", mode="full_batch")
    x, y = data(2, 3, 4)
    for settings in ({}, {"lr": 0.25}):
        checked = written.check(x, y, **settings)
        assert checked.ok, checked
    assert ice.check(tmp_path / "bent", x, y, f="tanh(z)", lr=0.5).ok


def test_more_samples_than_turns_are_refused():
    with pytest.raises(
        ice.errors.ShapeError, match=r"4 samples .* turns for 3; write .* samples=4"
    ):
        SPECS["gpt2"].tokens(*data(2, 4, 0))


# ------------------------------------------------------------------------------------- mutants


def _rewritten(design, role, change):
    layers = tuple(
        tuple(change(head) if head.role.startswith(role) else head for head in layer)
        for layer in design.layers
    )
    return replace(design, layers=layers)


def _kept(head):
    """The register is not emptied."""
    moves = (Move(m.value, {k: c for k, c in m.writes.items() if k[0] == "w"}) for m in head.moves)
    return replace(head, moves=tuple(moves))


def _turned(head):
    moves = (Move(m.value, {k: -c for k, c in m.writes.items()}) for m in head.moves)
    return replace(head, moves=tuple(moves))


def _written_at_once(head):
    """One sample after the other moves w: stochastic descent, not full batch."""
    moves = (Move(m.value, {("w", k): c for (_, k), c in m.writes.items()}) for m in head.moves)
    return replace(head, moves=tuple(moves))


MUTANTS = {
    "the register is kept": ("add the gradient", _kept),
    "uphill": ("add the gradient", _turned),
    "w moves with every sample": ("step", _written_at_once),
    "half is not taken away": ("step, weight 1/2", lambda head: replace(head, moves=())),
    "z and o are not erased": ("erase", lambda head: replace(head, moves=())),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_leave_the_certificate(name, tmp_path):
    class Mutant(targets.CausalDescent):
        kind = f"mutant {name}"

        @property
        def design(self):
            return _rewritten(super().design, *MUTANTS[name])

    spec = Mutant(2, 2, samples=3)
    model, networks = written("gpt2", spec, tmp_path)
    x, y = data(2, 3, 2)
    certified = SPECS["gpt2"].certificate(SPECS["gpt2"].domain(x, y)).error
    assert off(model, networks["sdpa"], x, y) > 1e3 * certified
