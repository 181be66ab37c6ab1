"""Constructions inside vmap, torch.export and torch.compile."""

import copy

import jaxtyping
import pytest
import torch

import iceform as ice
from tests.conformance import assert_within, uniform

F64 = torch.float64
RESIDUAL = ((6, 3), (6,), (3,))
HEAD = ((5, 3), (2, 3), (2, 3), (4, 3))
BUILD = {
    "map": (lambda: ice.paper.ResidualMap(torch.tanh, dim=3, samples=6, eps=1e-6), RESIDUAL),
    "step": (
        lambda: ice.paper.GradientStep("huber", 0.3, 0.1, dim=3, samples=6, eps=1e-6),
        RESIDUAL,
    ),
    "descent": (
        lambda: ice.paper.GradientDescent(
            "squared", 3, 0.1, dim=3, samples=6, eps=1e-6, w_bound=4.0
        ),
        RESIDUAL,
    ),
    "compact": (
        lambda: ice.paper.CompactStep(torch.tanh, 0.3, dim=3, samples=6, eps=1e-6),
        RESIDUAL,
    ),
    "head": (lambda: ice.paper.AttentionHead(3, 2, 4, 5, eps=1e-6), HEAD),
    "linear": (lambda: ice.paper.LinearLayer(3, 2, samples=5, eps=1e-6), ((5, 3), (2, 3))),
}
each = pytest.mark.parametrize("name", BUILD)


def made(name: str, *batch: int):
    build, shapes = BUILD[name]
    em = build()
    return em, [uniform(*batch, *s, dtype=F64) for s in shapes]


@each
def test_vmap_is_a_batch(name):
    em, inputs = made(name, 4)
    bound = 2 * em.certificate.error
    assert_within(torch.func.vmap(em)(*inputs), em(*inputs), bound, "all of them")
    first, *rest = inputs
    last = [t.movedim(0, -1) for t in rest]
    found = torch.func.vmap(em, in_dims=(None, *(-1 for _ in rest)))(first[0], *last)
    assert_within(found, em(first[0], *rest), bound, "the first shared, others along the last axis")


@each
def test_vmap_refuses_what_a_batch_would(name):
    em, inputs = made(name, 4)
    inputs[-1][2] = 9.0
    with pytest.raises(ice.errors.BoundError):
        torch.func.vmap(em)(*inputs)


@each
def test_an_exported_program_is_the_literal_network(name):
    em, inputs = made(name)
    em(*inputs)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        exported = torch.export.export(em, tuple(inputs)).module()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    others = made(name)[1]
    bound = 2 * em.certificate.error + 1e-12
    assert_within(exported(*others), em.reference(*others), bound, "exported")


@each
def test_a_compiled_graph_is_whole_and_has_gradients(name):
    em, inputs = made(name, 2)
    leaves, again = ([t.clone().requires_grad_() for t in inputs] for _ in range(2))
    torch.compiler.reset()
    compiled = torch.compile(lambda *a: em(*a).square().sum(), fullgraph=True, backend="aot_eager")
    compiled(*leaves).backward()
    em(*again).square().sum().backward()
    for got, want in zip(leaves, again, strict=True):
        assert_within(got.grad, want.grad, 1e-14 * float(want.grad.abs().max()), "gradient")


def test_the_operation_is_what_compilers_expect():
    """Its schema, its shapes without data, its gradient; a copy is an operation of its own."""
    em, inputs = made("map", 2)
    leaves = [t.requires_grad_() for t in inputs]
    torch.library.opcheck(torch.ops.iceform.construction, (em._place, leaves))
    other = copy.deepcopy(em)
    other.network.layers[1].w_v.mul_(2)
    compiled = [torch.compile(e, fullgraph=True, backend="eager") for e in (em, other)]
    assert torch.equal(compiled[0](*inputs), em(*inputs))
    with pytest.raises(ice.errors.IntegrityError, match="weights were changed"):
        compiled[1](*inputs)


def test_a_graph_takes_vmap_and_any_batch():
    em, inputs = made("step", 4)
    mapped = torch.func.vmap(em)
    compiled = torch.compile(mapped, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (2, 3, 4):
        part = [t[:size] for t in inputs]
        assert torch.equal(compiled(*part), em(*part))
