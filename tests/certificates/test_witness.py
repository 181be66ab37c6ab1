"""An attestation notices a backend that does not compute what the matrices do."""

import random
from dataclasses import replace

import pytest
import torch

import iceform as ice
from iceform.certificates import Attestation, Ledger, RecordingBackend
from iceform.certificates.attester import run_again
from iceform.certificates.witness import layer_questions
from iceform.errors import IntegrityError
from iceform.heads import LookUpLayout, LookUps, SoftmaxAverage
from iceform.run import FusedBackend, LiteralBackend, bind, primitives, rounding_of, windowed
from iceform.tables import Interpolant

LAYOUT = LookUpLayout(dim=2, samples=4, tokens=80)
TABLE = Interpolant.fit(torch.tanh, -6, 6, 1e-8)


HOW = ["run", "total", "average", "batch", "batched total"]


class Wrong(FusedBackend):
    """Off by a little in some rows, as a broken kernel would be."""

    off = 1e-9

    def run(self, prompt):
        return super().run(prompt) + self.off

    def total(self, prompt, watch=None, *rest):
        return super().total(prompt, watch, *rest) + prompt.count * self.off


class WrongSums(FusedBackend):
    """Right row by row, wrong in their sum."""

    def total(self, prompt, watch=None, *rest):
        return super().total(prompt, watch, *rest) * (1 + 1e-6)


def look_ups(rows=50, *batch):
    x, y = torch.rand(*batch, rows, 2).double(), torch.rand(rows).double()
    return LookUps(LAYOUT, TABLE, x, y, torch.tensor([2.0, -1.0]).double().requires_grad_())


def average():
    x = torch.randn(60, 2).double()
    return SoftmaxAverage(LAYOUT, x, -x.square().sum(1), x, torch.randn(30, 2).double())


@pytest.mark.parametrize("how", HOW)
def test_a_backend_that_is_right_is_attested(how):
    witness = RecordingBackend(bind(LAYOUT.build(), "fused"))
    _use(witness, how)
    found = witness.attest()
    assert found.ok
    assert found.rows >= LAYOUT.samples
    assert 0 < found.allowed < 1e-10


@pytest.mark.parametrize("how", HOW)
def test_a_backend_that_is_wrong_is_not(how):
    witness = RecordingBackend(Wrong(LAYOUT.build()))
    _use(witness, how)
    with pytest.raises(IntegrityError, match="from the literal matrices"):
        witness.attest()
    with ice.heads.unchecked():
        found = witness.attest()
    assert not found.ok
    assert found.difference > found.allowed


def test_a_wrong_sum_of_right_rows_is_noticed():
    witness = RecordingBackend(WrongSums(LAYOUT.build()))
    _use(witness, "total")
    with pytest.raises(IntegrityError, match="from the literal matrices"):
        witness.attest()


def _use(witness, how):
    batch = (3, 2) if how.startswith("batch") else ()
    if "total" in how:
        witness.total(look_ups(50, *batch))
    else:
        witness.run(average() if how == "average" else look_ups(50, *batch))


def test_a_set_of_a_batch_is_that_set():
    prompt = look_ups(5, 3, 2)
    rows = bind(LAYOUT.build(), "literal").run(prompt)
    assert torch.equal(bind(LAYOUT.build(), "literal").run(prompt.of(2, 1)), rows[2, 1])


def test_weights_that_change_during_a_run_are_noticed():
    network = LAYOUT.build()
    witness = RecordingBackend(FusedBackend(network))
    witness.run(look_ups())
    network.layers[1].w_v.mul_(1.5)
    with pytest.raises(IntegrityError, match="weights were changed"):
        witness.attest()


def test_rows_are_drawn_at_random_and_from_every_part_of_a_run():
    """A fault in one prompt of many is found sooner or later."""
    seen = set()
    for _ in range(40):
        witness = RecordingBackend(bind(LAYOUT.build(), "fused"))
        for place in range(12):
            witness.total(look_ups(rows=4 + place))
        seen |= {kept.prompt.count - 4 for kept in witness.attester.kept}
    assert seen == set(range(12))


def test_a_literal_run_needs_no_second_look():
    witness = RecordingBackend(LiteralBackend(LAYOUT.build()))
    witness.run(look_ups())
    found = witness.attest()
    assert found.ok
    assert found.rows == 0
    assert "every row went through the literal matrices" in found.explain()


def test_what_is_not_attested_says_why():
    found = Attestation.none("nothing is hashed inside torch.compile")
    assert not found.ok
    assert "nothing is hashed" in found.explain()


@pytest.mark.parametrize("backend", ["literal", "fused"])
def test_a_run_inside_torch_func_is_attested_and_leaves_no_wrapper_behind(backend):
    """The network is built, hashed and read inside the transform, and used after it."""
    em = ice.paper.GradientStep("squared", 0.5, dim=2, samples=11, eps=1e-6, backend=backend)
    x, y, w = torch.rand(11, 2).double(), torch.rand(11).double(), torch.rand(2).double()
    said = []

    def step(w):
        result = em.run(x, y, w)
        said.append(result.attestation.ok)
        return result.value

    moved = torch.func.jacrev(step)(w)
    exact = torch.eye(2).double() - 0.5 * x.mT @ x / 11
    assert float((moved - exact).abs().max()) < 1e-4
    assert said == [True]
    after = em.run(x, y, w)
    assert after.attestation.ok
    assert float((after.value - em.reference(x, y, w)).abs().max()) <= em.certificate.error


def test_a_ledger_counts_by_place():
    ledger = Ledger()
    ledger.note("host", "step sizes")
    ledger.note("attention", "prompts", 3)
    ledger.note("attention", "prompts", 4)
    assert ledger.entries == (("attention", "prompts", 7), ("host", "step sizes", 1))
    assert ledger.host == ("step sizes",)
    assert "prompts x 7" in str(ledger)
    with pytest.raises(ValueError, match="where must be one of"):
        ledger.note("elsewhere", "x")


# ------------------------------------------------------------------------------------------- sums


def dropping(function, when=lambda n: True):
    """A pass over samples that leaves out the last one."""

    def wrong(x, y, *rest, **named):
        n = x.shape[-2] - when(x.shape[-2])
        return function(x[..., :n, :], y[..., :n], *rest, **named)

    return wrong


def dropping_rows(function):
    """Sums of looked-up values times samples, without the last sample."""
    return lambda looked, x, block: function(looked[..., :-1], x[..., :-1, :], block)


FAULTS = {
    "residual_sum": (primitives, "residual_sum", dropping),
    "of 200": (primitives, "residual_sum", lambda f: dropping(f, lambda n: n == 200)),
    "in C": (windowed, "pass_over", dropping),
    "an operation at a time": (primitives, "_weighted", dropping_rows),
}


def step_of(n=200):
    g = torch.Generator().manual_seed(1)
    em = ice.paper.GradientStep("squared", 0.5, dim=3, samples=n, eps=1e-6, backend="fused")
    x, y, w = (torch.rand(*s, generator=g, dtype=torch.float64) for s in ((n, 3), (n,), (3,)))
    return em, (x / 2, y / 2, w / 2)


@pytest.mark.parametrize("fault", ["residual_sum", "of 200", "in C", "an operation at a time"])
def test_a_sum_that_leaves_out_a_sample_is_noticed(fault, monkeypatch):
    em, inputs = step_of()
    assert em.run(*inputs).attestation.ok
    where, name, spoil = FAULTS[fault]
    if fault == "an operation at a time":
        monkeypatch.setattr(primitives, "_by_loop_in_c", lambda *_: None)
    elif fault == "in C" and not windowed.ready(inputs[0].expand(1 << 10, *inputs[0].shape)):
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(where, name, spoil(getattr(where, name)))
    with pytest.raises(IntegrityError, match="from the literal matrices"):
        em.run(*inputs)
    with ice.heads.unchecked():
        assert em.run(*inputs).attestation.ok is False


@pytest.mark.parametrize("how", ["batch", "shared", "weighed", "count", "counted by weights"])
def test_every_way_of_adding_up_is_attested(how, monkeypatch):
    """Batches, several coefficients, samples with weights, and counts of look-ups."""
    prompt = look_ups(200, *((3,) if how == "batch" else ()))
    if how == "shared":
        prompt = replace(prompt, w=torch.rand(3, 2).double())
    if "weigh" in how:
        prompt = replace(prompt, factors=torch.rand(200).double() + 0.5)
    told = "count" if how.startswith("count") else "total"
    for spoil in (False, True):
        witness = RecordingBackend(bind(LAYOUT.build(), "fused"))
        if spoil:
            inner = getattr(type(witness.inner), told)
            monkeypatch.setattr(
                type(witness.inner), told,
                lambda self, one, *rest, f=inner: f(self, one.part(slice(0, 199)), *rest),
            )  # fmt: skip
        getattr(witness, told)(prompt)
        if spoil:
            with pytest.raises(IntegrityError, match="from the literal matrices"):
                witness.attest()
        else:
            assert witness.attest().ok


@pytest.mark.parametrize("fault", ["last", "every part", "the sum of the parts"])
def test_a_long_sum_is_attested_by_its_parts(fault, monkeypatch):
    """The last part always, another one at random, and what they add up to."""
    em, inputs = step_of((1 << 16) + 77)
    if not windowed.ready(inputs[0]):
        pytest.skip("there is no C compiler, and parts are smaller")
    assert em.run(*inputs).attestation.ok
    right, told = windowed.pass_over, windowed.tell

    def telling(parts, rows):
        assert len(parts) == 3
        parts += 1e-3
        told(parts, rows)

    def wrong(x, *rest, **named):
        found, seen = (dropping(right) if fault == "last" else right)(x, *rest, **named)
        return found + (1e-3 if fault == "the sum of the parts" else 0.0), seen

    monkeypatch.setattr(windowed, "pass_over", wrong)
    if fault == "every part":
        monkeypatch.setattr(windowed, "tell", telling)
    with pytest.raises(IntegrityError, match="from the literal matrices"):
        em.run(*inputs)


def test_one_row_is_run_again_however_late_it_is():
    """A busy machine must not make an attestation of nothing."""
    em, inputs = step_of(6)
    layers = list(em.network.stream(em.prompt(*inputs).tokens))
    tokens, rounding = em.prompt(*inputs).tokens, rounding_of("literal")
    found = run_again(
        layer_questions(em.network, tokens, layers, rounding, random.Random(0)), until=0.0
    )
    assert found.rows == 1
    assert found.difference <= found.allowed
