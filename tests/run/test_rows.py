"""Prompts in memory: what is in the matrices and the tokens is what runs."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import iceform as ice
from iceform import tuning
from iceform.errors import IntegrityError
from iceform.heads import (
    Features,
    FrozenNetwork,
    HopfieldLayer,
    Prompt,
    SoftmaxAttention,
    unchecked,
)
from iceform.run import Backend, bind
from tests.run.forgeries import FORGERIES, in_place, swapped

F32, F64 = torch.float32, torch.float64
SAME = {F64: 1e-10, F32: 2e-3}  # of numbers of size 1, after two layers
OTHER = 1e-2  # what an intervention must change, at least


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However slow the machine is, everything that was kept is run again."""
    monkeypatch.setattr(tuning, "REPLAY_SECONDS", 60.0)


def numbers(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return (2 * torch.rand(shape, dtype=F64) - 1).to(dtype)


@dataclass(frozen=True)
class Case:
    build: Any
    shapes: tuple[tuple[int, ...], ...]
    table: str  # the buffer that holds the table's values
    at: Any  # where one of them is
    rows: Any  # of W_K, that can be permuted


def linear(encoding):
    def build(dtype, backend):
        return ice.paper.LinearLayer(
            3, 2, samples=5, eps=None, encoding=encoding, dtype=dtype, backend=backend
        )

    return build


def head(encoding, tokens=5):
    def build(dtype, backend):
        return ice.paper.AttentionHead(
            3, 2, 4, tokens, eps=None, encoding=encoding, dtype=dtype, backend=backend
        )

    return build


def truncated(dtype, backend):
    return ice.paper.TruncatedLinear(-1.0, 1.0, 3, dim=3, samples=5, dtype=dtype, backend=backend)


@cache
def sine():
    line = [0.7, -1.3, 0.4]  # a little wider than what float32 rounds to
    return ice.paper.HopfieldMap(torch.sin, line, 0.3, samples=5, bound=1.001, eps=1e-9).interpolant


def hopfield(dtype, backend):
    return ice.paper.HopfieldMap(
        torch.sin, [0.7, -1.3, 0.4], 0.3, samples=5, eps=None, dtype=dtype, backend=backend,
        kinks=(), interpolant=sine(),
    )  # fmt: skip


HEAD = ((5, 3), (2, 3), (2, 3), (4, 3))
CASES = {
    "linear, rows": Case(linear("rows"), ((5, 3), (2, 3)), "constant", -3, [1, 2, 0]),
    "linear, embedding": Case(linear("embedding"), ((5, 3), (2, 3)), "w_v", None, [1, 2, 0]),
    "head, rows": Case(head("rows"), HEAD, "constant", -3, [1, 2, 0]),
    "head, embedding": Case(head("embedding"), HEAD, "w_v", None, [1, 2, 0]),
    "truncated": Case(truncated, ((5, 3), (3,), ()), "w_v", None, [1, 2, 0]),
    "hopfield": Case(hopfield, ((5, 3),), "patterns", -1, [1, 2, 0]),
}


def made(name, dtype=F64, backend="fused"):
    torch.manual_seed(0)
    case = CASES[name]
    em, inputs = case.build(dtype, backend), [numbers(*s, dtype=dtype) for s in case.shapes]
    if name == "truncated":  # the first sample lies on a grid point of the middle head
        x, w, t = inputs
        w[0] = 1.0
        node = em.tables[1].grid.nodes[em.interpolant.tokens // 2]
        x[0] = 0.0
        x[0, 0], t[...] = node, 0.0
    return case, em, inputs


def both(em, prompt: Prompt) -> tuple[Tensor, Tensor]:
    """What literal and auto return for a prompt on the network as it is now."""
    with unchecked():
        return tuple(bind(em.network, name).run(prompt) for name in ("literal", "auto"))


def assert_followed(em, prompt: Prompt, before: Tensor) -> None:
    literal, fused = both(em, prompt)
    off = float((literal - fused).abs().max())
    moved = float((literal - before).abs().max())
    assert off <= SAME[em.dtype], f"literal and auto differ by {off:.3e}"
    assert moved >= OTHER, f"the intervention changed {moved:.3e} only"


# ---------------------------------------------------------------------------------- interventions


def permute_keys(em, case):
    layer = em.network.layers[0]
    order = [*case.rows, *range(len(case.rows), layer.w_k.shape[-2])]
    layer.w_k.copy_(layer.w_k[..., order, :].clone())


def permute_queries(em, case):
    layer = em.network.layers[0]
    order = [*case.rows, *range(len(case.rows), layer.w_q.shape[-2])]
    layer.w_q.copy_(layer.w_q[..., order, :].clone())


def permute_columns(em, case):
    """Of the features that W_Q reads."""
    w_q = em.network.layers[0].w_q
    order = [*case.rows, *range(len(case.rows), w_q.shape[-1])]
    w_q.copy_(w_q[..., order].clone())


def scale_values(em, case):
    em.network.layers[0].w_v.mul_(1.5)


def double_sharpness(em, case):
    em.network.layers[0].w_k.mul_(2.0)


def halve_sharpness(em, case):
    em.network.layers[0].w_k.mul_(0.5)


def shift_a_value(em, case):
    """By 0.1, at a token in the middle of the table, of the first head."""
    layer, tokens = em.network.layers[0], em.interpolant.tokens
    if case.table == "constant":
        layer.constant[tokens // 2, case.at] += 0.1
    elif case.table == "patterns":
        layer.patterns[tokens // 2, case.at] += 0.1
    else:
        values = layer.w_v[len(layer.w_v) // 2]
        row, at = (values != 0).any(-1).nonzero()[0, 0], em.network.features["position"].start
        values[row, at + tokens // 2] += 0.1


def move_heads(em, case):
    """Outputs change places: of the layer's heads, or of what it retrieves."""
    w_v = em.network.layers[0].w_v
    w_v.copy_(-w_v.flip(-2).clone())


INTERVENTIONS = {
    f.__name__: f
    for f in (
        permute_keys, permute_queries, permute_columns, scale_values, double_sharpness,
        halve_sharpness, shift_a_value, move_heads,
    )
}  # fmt: skip
# A line is a line at any temperature: only where tables end, or with heads' own tables, is it seen.
UNSEEN = {
    ("double_sharpness", "linear, rows"), ("double_sharpness", "linear, embedding"),
    ("double_sharpness", "head, rows"), ("double_sharpness", "head, embedding"),
    ("double_sharpness", "truncated"), ("halve_sharpness", "truncated"),
    ("halve_sharpness", "linear, rows"), ("halve_sharpness", "linear, embedding"),
    ("halve_sharpness", "head, rows"), ("halve_sharpness", "head, embedding"),
}  # fmt: skip


@pytest.mark.parametrize("what", INTERVENTIONS)
@pytest.mark.parametrize("name", CASES)
def test_other_matrices_are_multiplied_as_they_are(name, what):
    """By default, which says so; whoever insists on the formulas is refused."""
    case, em, inputs = made(name, backend="auto")
    before = em(*inputs)
    with torch.no_grad():
        INTERVENTIONS[what](em, case)
    with unchecked():
        result, prompt = em.run(*inputs), em._encode(*inputs)
        with pytest.raises(IntegrityError, match="runs the weights that a design implies"):
            bind(em.network, "fused")
    assert result.attestation.backend == "literal"
    assert not result.attestation.ok
    moved = float((result.value - before).abs().max())
    assert moved >= (0 if (what, name) in UNSEEN else OTHER)
    assert torch.equal(result.value, em._read(em.network(prompt.tokens)))


def test_who_insists_on_the_formulas_is_refused():
    case, em, inputs = made("linear, rows", backend="fused")
    scale_values(em, case)
    with unchecked(), pytest.raises(IntegrityError, match=r"backend='fused' runs the weights"):
        em(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_literal_and_fused_follow_the_prompt(name):
    """A token replaced: its sample alone, or all of it."""
    _, em, inputs = made(name)
    prompt = em._encode(*inputs)
    before = em.network(prompt.tokens)
    sample = prompt.tokens.clone()
    sample[2, :3] = numbers(3)
    whole = prompt.tokens.clone()
    whole[1] = numbers(whole.shape[-1])
    for tokens in (sample, whole):
        assert_followed(em, replace(prompt, tokens=tokens), before)


# ------------------------------------------------------------------------------------- integrity


FIRST = next(iter(CASES))
FORGED = [(name, in_place) for name in CASES] + [(FIRST, forge) for forge in FORGERIES[1:]]


@pytest.mark.parametrize("backend", ["literal", "fused"])
@pytest.mark.parametrize(("name", "forge"), FORGED)
def test_changed_weights_are_refused(name, backend, forge):
    _, em, inputs = made(name, backend=backend)
    want = em(*inputs)
    with torch.no_grad():
        forge(em.network.layers[-1].w_k if forge is swapped else em.network.layers[-1].w_v)
    for run in (em, em.run):
        with pytest.raises(IntegrityError, match="weights were changed"):
            run(*inputs)
    assert want.isfinite().all()


@pytest.mark.parametrize("buffer", ["shared_map", "group_maps", "picks", "ramp", "constant", "w_k"])
def test_no_buffer_is_left_out_of_the_digest(buffer):
    _, em, inputs = made("linear, rows")
    em(*inputs)
    getattr(em.network.layers[0], buffer).data.view(-1)[0] += 1.0
    with pytest.raises(IntegrityError, match="weights were changed"):
        em(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_nan_answers_nan_with_checks_off(name):
    _, em, inputs = made(name, backend="auto")
    em.network.layers[0].w_k.view(-1)[0] = float("nan")
    with unchecked():
        assert bool(em(*inputs).isnan().any())


def test_a_network_that_no_design_implies_is_multiplied_as_it_is():
    layer = HopfieldLayer(torch.eye(2), torch.eye(2), torch.eye(2), 1.0, stored=1)
    network = FrozenNetwork([layer], Features.of(z=1, one=1))
    prompt = Prompt(torch.zeros(2, 2), network.features, ("a", "b"))
    assert bind(network, "auto").name == "literal"
    assert torch.equal(bind(network, "auto").run(prompt), network(prompt.tokens))
    with pytest.raises(IntegrityError, match="their design implies none"):
        bind(network, "fused")


def test_plain_attention_is_what_it_is():
    torch.manual_seed(0)
    weights = [numbers(2, 4, 6), numbers(2, 4, 6), numbers(2, 6, 6), numbers(1, 5, 5)]
    for residual in (False, True):
        layer = SoftmaxAttention(*weights, residual=residual)
        network = FrozenNetwork([layer], Features.of(x=6)).seal()
        prompt = Prompt(numbers(3, 5, 6), network.features, ("",) * 5)
        off = bind(network, "fused").run(prompt) - network(prompt.tokens)
        assert float(off.abs().max()) <= 1e-13


# ------------------------------------------------------------------------------------- witnesses


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_runs_are_attested_layer_by_layer(name, dtype):
    _, em, inputs = made(name, dtype)
    result = em.run(*inputs)
    assert torch.equal(result.value, em(*inputs))
    assert result.attestation.ok
    assert result.attestation.rows >= len(em.network.layers)
    assert result.digest == em.digest
    assert result.passes == 1
    assert result.ledger.entries == (("attention", "prompts through the frozen network", 1),)
    literal = CASES[name].build(dtype, "literal").run(*inputs)
    assert "every row" in literal.attestation.explain()


class Wrong(Backend):
    """Exact but for one layer, whose every entry is a little off."""

    def __init__(self, network, layer, by):
        super().__init__(network)
        self.name, self.rounding = "fused", Backend.kinds["fused"].rounding
        self.layer, self.by = layer, by

    def stream(self, prompt):
        tokens = prompt.tokens
        for index, layer in enumerate(self.network.layers):
            tokens = layer(tokens) + (self.by if index == self.layer else 0.0)
            yield tokens

    def run(self, prompt):
        *_, last = self.stream(prompt)
        return last


WATCHED = [("head, rows", 0), ("head, rows", 1), ("linear, embedding", 0), ("hopfield", 0)]


@pytest.mark.parametrize(("name", "layer"), WATCHED)
def test_a_backend_that_is_off_is_noticed(name, layer):
    from iceform.certificates import RecordingBackend

    _, em, inputs = made(name)
    prompt = em._encode(*inputs)
    for by, noticed in ((0.0, False), (1e-9, True)):
        watched = RecordingBackend(Wrong(em.network, layer, by))
        watched.run(prompt)
        if noticed:
            with pytest.raises(IntegrityError, match="off by"):
                watched.attest()
        else:
            assert watched.attest().rows > 0


def test_a_literal_row_that_takes_too_long_is_not_run_and_that_is_said(monkeypatch):

    monkeypatch.setattr(tuning, "WITNESS_RATE", 1.0)  # multiplications a second
    _, em, inputs = made("linear, rows")
    attestation = em.run(*inputs).attestation
    assert attestation.rows == 0
    assert "a literal row takes about" in attestation.explain()


@pytest.mark.parametrize("name", CASES)
def test_an_entry_is_the_layers_own(name):
    """Entry by entry, the whole output of every literal layer."""
    _, em, inputs = made(name)
    tokens = em._encode(*inputs).tokens
    for layer in em.network.layers:
        out = layer(tokens)
        for token in range(out.shape[0]):
            for feature in range(out.shape[1]):
                entry = layer.entry(tokens, token, feature)
                off = float((entry.value - out[token, feature]).abs())
                assert off <= 1e-14 * max(1.0, float(entry.values.abs().max()))
        tokens = out
