"""What every Emulator must do, whatever it emulates.

A construction's test subclasses :class:`Conformance`, says how to build the emulator and how to
draw inputs, and inherits every check below for regimes {hard, spectral}, dtypes {float32, float64}
and backends {literal, fused}: the certificate for all eight, the rest for four in which every two
of them meet (`make test-all` has the others).
"""

import copy
import itertools
import math
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from iceform.errors import BoundError, IntegrityError
from iceform.heads import FrozenNetwork, LookUps, Prompt, unchecked
from iceform.paper import Emulator

REGIMES = ("spectral", "hard")
DTYPES = (torch.float64, torch.float32)
BACKENDS = ("literal", "fused")
ALL = list(itertools.product(REGIMES, DTYPES, BACKENDS))
DEFAULT = ("spectral", torch.float64, "fused")
PAIRWISE = (
    DEFAULT,
    ("spectral", torch.float32, "literal"),
    ("hard", torch.float64, "literal"),
    ("hard", torch.float32, "fused"),
)


def name_of(case) -> str:
    return "-".join(str(part).removeprefix("torch.") for part in case)


def quickly(cases, quick):
    """All cases; those that are not among the quick ones are for `make test-all`."""
    return [
        pytest.param(c, marks=() if c in quick else pytest.mark.slow, id=name_of(c)) for c in cases
    ]


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@contextmanager
def by_default(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def flushing():
    """Subnormal numbers are taken for 0."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


# float32 is the default already; what is made on the device "meta" has no entries.
MODES = (autocast, partial(by_default, torch.float64), flushing, partial(torch.device, "meta"))


def uniform(*shape: int, dtype: torch.dtype, bound: float = 1.0) -> Tensor:
    return (2 * torch.rand(shape, dtype=dtype) - 1) * bound


def assert_within(got: Tensor, want: Tensor, bound: float, what: str) -> float:
    """Largest error against a bound; the message says how large, where, and how tight."""
    error = (got.double() - want.double()).abs()
    largest = float(error.max())
    where = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    scale = float(want.abs().max()) or 1.0
    assert largest <= bound, (
        f"{what}: largest error {largest:.3e} ({largest / scale:.3e} relative) at {where}, "
        f"bound {bound:.3e}"
    )
    return largest


def _scaled(network: FrozenNetwork) -> None:
    _a_weight(network).mul_(1.5)


def _swapped(network: FrozenNetwork) -> None:
    weight = _a_weight(network)
    weight.copy_(weight.flip(-2) + weight.flip(-1))


def _through_numpy(network: FrozenNetwork) -> None:
    _a_weight(network).numpy()[..., 0, 0] = math.nan


def _a_weight(network: FrozenNetwork) -> Tensor:
    return next(b for name, b in network.named_buffers() if name.endswith("w_v"))


WRITES = {
    "scaled in place": _scaled,
    "rows swapped": _swapped,
    "NaN through .data": lambda network: _a_weight(network).data.fill_(math.nan),
    "NaN through NumPy": _through_numpy,
}


class Conformance:
    """Subclass, supply ``build`` and ``draw``, inherit the rest."""

    samples: int
    dim: int
    permutes_output = False  # whether permuting the samples permutes the output
    defined_by_one_pass = True  # whether network(prompt) is the whole computation
    captured = True  # whether `make test` captures its graph, which takes seconds: one per family
    regimes = REGIMES  # that it has
    smooth = REGIMES  # those in which finite differences see its gradient

    def build(self, regime: str, dtype: torch.dtype, backend: str) -> Emulator:
        raise NotImplementedError

    def draw(self, emulator: Emulator, batch: tuple[int, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def corners(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Inputs at the very edge of the domain; None where edges are not allowed."""
        return tuple(torch.where(t >= 0, 1.0, -1.0).to(t) for t in inputs)

    def interior(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Inputs with room around them for finite differences; classes stay as they are."""
        return [0.7 * t if t.unique().numel() > 3 else t for t in inputs]

    _known: ClassVar[dict] = {}

    def cases(self) -> dict:
        """For each fixture, its cases and those that `make test` has."""
        own = [c for c in ALL if c[0] in self.regimes]
        quick = PAIRWISE if self.regimes == REGIMES else own
        smooth = [c for c in own if c[0] in self.smooth and c[1] == torch.float64]
        return {
            "emulator": (own, quick),
            "certified": (own, own),
            "differentiable": (smooth, quick),
            "captured_case": (own, [DEFAULT] if self.captured else []),
            "both": ([c[:2] for c in own if c[2] == "fused"],) * 2,
            "followed": ([DEFAULT[:2]],) * 2,
        }

    def pytest_generate_tests(self, metafunc):
        for name, (cases, quick) in self.cases().items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, quickly(cases, quick), indirect=name != "captured_case")

    @pytest.fixture
    def emulator(self, request) -> Emulator:
        return self.known(*request.param)

    @pytest.fixture
    def certified(self, request) -> Emulator:
        return self.known(*request.param)

    @pytest.fixture
    def differentiable(self, request) -> Emulator:
        return self.known(*request.param)

    @pytest.fixture
    def both(self, request) -> list[Emulator]:
        return [self.known(*request.param, backend) for backend in BACKENDS]

    @pytest.fixture
    def followed(self, request) -> list[Emulator]:
        return [self.known(*request.param, backend) for backend in ("literal", "auto")]

    def known(self, *case) -> Emulator:
        """Built once for all tests that only look at it."""
        key = (type(self), case)
        if key not in self._known:
            self._known[key] = self.build(*case)
        return self._known[key]

    def rounding(self, emulator: Emulator) -> float:
        terms = emulator.certificate.terms
        return 2 * (terms["rounding"] + terms.get("leak", 0.0))

    def defined(self, emulator: Emulator, prompt: Prompt | LookUps) -> Tensor:
        """What the network's own forward pass makes of the literal tokens, read out by hand."""
        out = emulator.network(prompt.tokens)
        if isinstance(prompt, Prompt):
            return out
        rows = out[..., : prompt.layout.samples, :].flatten(-3, -2)
        rows = rows[..., : prompt.count, : prompt.x.shape[-1]]
        return rows if self.permutes_output else rows.mean(-2)

    def test_error_is_within_the_certificate(self, certified):
        emulator = certified
        inputs = self.draw(emulator, (24,))
        bound = emulator.certificate.error
        assert math.isfinite(bound)
        if emulator.eps is not None:
            assert bound <= emulator.eps
        assert_within(emulator(*inputs), emulator.reference(*inputs), bound, "random inputs")
        edges = self.corners(inputs)
        if edges is not None:
            assert_within(emulator(*edges), emulator.reference(*edges), bound, "corners")

    def test_terms_add_up(self, emulator):
        certificate = emulator.certificate
        total = math.fsum(certificate.terms.values())
        assert total <= certificate.error <= total * (1 + 1e-12)
        assert all(value >= 0 for value in certificate.terms.values())
        assert f"{certificate:.3e}" in certificate.explain()

    def test_output_has_shape_dtype_and_no_nan(self, emulator):
        inputs = self.draw(emulator, (2, 3))
        out = emulator(*inputs)
        assert out.shape == emulator.reference(*inputs).shape
        assert out.shape[:2] == (2, 3)
        assert out.dtype == emulator.dtype
        assert bool(out.isfinite().all())

    def test_batching_changes_nothing(self, emulator):
        inputs = self.draw(emulator, (3,))
        whole = emulator(*inputs)
        for i in range(3):
            one = emulator(*(t[i] for t in inputs))
            assert_within(one, whole[i], self.rounding(emulator), f"instance {i} alone")

    def test_views_that_negate_when_read_change_nothing(self, emulator):
        """As ``torch.imag`` of a conjugate is one: in memory its numbers have the other sign."""
        inputs = self.draw(emulator, ())
        views = [torch._neg_view(-t) for t in inputs]
        assert all(view.is_neg() for view in views)
        assert torch.equal(emulator(*views), emulator(*inputs))
        assert emulator.run(*views).attestation.ok

    def test_permutation_of_samples(self, emulator):
        inputs = self.draw(emulator, (2,))
        order = torch.randperm(self.samples)
        x, y, *rest = inputs
        permuted = emulator(x[:, order], y[:, order], *rest)
        plain = emulator(*inputs)
        want = plain[:, order] if self.permutes_output else plain
        assert_within(permuted, want, self.rounding(emulator), "permuted samples")

    def test_same_bits_every_time(self, emulator):
        inputs = self.draw(emulator, (2,))
        assert torch.equal(emulator(*inputs), emulator(*inputs))

    def test_modes_around_a_call_change_nothing(self, emulator):
        """Autocast rounds float32 products to 8 bits; a default dtype is for who says none."""
        inputs = self.draw(emulator, (2,))
        plain, certified = emulator(*inputs), emulator.run(*inputs)
        for mode in MODES:
            with mode():
                assert torch.equal(emulator(*inputs), plain)
                run = emulator.run(*inputs)
            assert torch.equal(run.value, certified.value)
            assert run.certificate.terms == certified.certificate.terms

    def test_weights_are_frozen(self, emulator):
        before = emulator.digest
        inputs = [t.requires_grad_(True) for t in self.draw(emulator, ())]
        emulator(*inputs).sum().backward()
        assert emulator.digest == before
        assert not list(emulator.parameters())
        assert not list(emulator.network.parameters())

    def test_network_on_prompt_is_the_definition(self, emulator):
        if not self.defined_by_one_pass:
            pytest.skip("a loop: each of its passes is a GradientStep, which has this test")
        inputs = self.draw(emulator, (2,))
        prompt = emulator.prompt(*inputs)
        assert prompt.tokens.shape[-2:] == (emulator.plan.tokens, emulator.plan.features)
        assert len(prompt.roles) == emulator.plan.tokens
        assert prompt.features.total == emulator.plan.features
        literal = self.defined(emulator, prompt)
        out = emulator(*inputs)
        bound = 2 * emulator.certificate.error
        if emulator.backend == "literal":
            bound = 4 * torch.finfo(out.dtype).eps * max(1.0, float(out.abs().max()))
        assert_within(literal.reshape(out.shape), out, bound, "definition")

    def test_changed_weights_are_refused(self, emulator):
        """A NaN, a scaled matrix or a swapped row, however it was written."""
        inputs = self.draw(emulator, ())
        emulator(*inputs)
        for write in WRITES.values():
            changed = copy.deepcopy(emulator)
            write(changed.network)
            for run in (changed, changed.run):
                with pytest.raises(IntegrityError, match="weights were changed"):
                    run(*inputs)

    def test_other_weights_give_their_own_answer(self, followed):
        """The checks off, the matrices answer, a tenth smaller; who insists on fused is refused."""
        inputs, found = self.draw(followed[0], ()), []
        before = followed[0](*inputs)
        for emulator in followed:
            changed = copy.deepcopy(emulator)
            _a_weight(changed.network).mul_(0.9)
            with unchecked():
                found.append(changed(*inputs))
        assert float((found[0] - before).abs().max()) > 1e-3 * float(before.abs().max())
        assert torch.equal(*found)
        changed._insists = True
        if changed.backend == "fused":
            with unchecked(), pytest.raises(IntegrityError, match="that a design implies"):
                changed(*inputs)

    def test_a_run_is_attested(self, emulator):
        inputs = self.draw(emulator, ())
        result = emulator.run(*inputs)
        assert torch.equal(result.value, emulator(*inputs))
        assert result.attestation.ok, result.attestation
        assert result.digest == emulator.digest
        assert ("attention", "prompts through the frozen network") in result.ledger.times

    def test_plan_counts_what_is_built(self, emulator):
        built = sum(b.numel() for b in emulator.network.buffers())
        assert built <= emulator.plan.parameters <= 1.1 * built

    def test_gradients_agree_with_finite_differences(self, differentiable):
        emulator = differentiable
        inputs = self.interior(self.draw(emulator, ()))
        # Labels that are not free to move (classes) are held fixed.
        inputs = [t.detach().requires_grad_(t.unique().numel() > 3) for t in inputs]
        # Hard look-ups are steep: gradcheck's own step must stay well inside a cell.
        assert torch.autograd.gradcheck(
            emulator, inputs, eps=1e-7, atol=2e-5, rtol=1e-3, nondet_tol=0.0
        )

    def test_compiled_is_the_same(self, captured_case):
        """One that has never run, in one graph: the very call, which refuses what it refuses."""
        emulator = self.known(*captured_case)
        inputs = self.draw(emulator, (2,))
        torch.compiler.reset()
        compiled = torch.compile(self.build(*captured_case), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*inputs), emulator(*inputs))
        with pytest.raises(BoundError):
            compiled(*(100 * t for t in inputs))

    def test_save_and_load(self, emulator, tmp_path):
        inputs = self.draw(emulator, (2,))
        again = Emulator.load(emulator.save(tmp_path / "saved"))
        assert type(again) is type(emulator)
        assert again.digest == emulator.digest
        assert again.certificate.error == emulator.certificate.error
        assert torch.equal(again(*inputs), emulator(*inputs))

    def test_literal_and_fused_agree_to_rounding(self, both):
        dense, fused = both
        inputs = self.draw(dense, (8,))
        # The same table on both, whatever each would have chosen for itself.
        if dense.interpolant.tokens != fused.interpolant.tokens:
            pytest.skip("each backend chose its own table")
        bound = self.rounding(dense) + self.rounding(fused)
        assert_within(fused(*inputs), dense(*inputs), bound, "literal against fused")
