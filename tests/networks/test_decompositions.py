"""Operations that are written as others compute what torch computes, or stay as they are."""

import re

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from iceform.networks.decompositions import take_apart

LINE, PLANE, ROW = (2, 4, 9), (2, 4, 7, 6), (3, 4, 6)
APART = {
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), ROW),
    "prelu": (F.prelu, ROW, (4,)),
    "abs": (torch.abs, ROW),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.25), ROW),
    "relu6": (F.relu6, ROW),
    "clamp": (lambda x: x.clamp(-0.3, 0.7), ROW),
    "hardsigmoid": (F.hardsigmoid, ROW),
    "hardswish": (F.hardswish, ROW),
    "selu": (F.selu, ROW),
    "celu": (lambda x: F.celu(x, 2.0), ROW),
    "softplus": (lambda x: F.softplus(x, 2.0), ROW),
    "log_sigmoid": (F.logsigmoid, ROW),
    "threshold": (lambda x: F.threshold(x, 0.1, 0.1), ROW),
    "glu": (lambda x: F.glu(x, 1), ROW),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2), LINE, (6, 4, 3), (6,)),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=(2, 1), groups=2), PLANE, (6, 2, 3, 2)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), PLANE),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 1, 0, 2), LINE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, (3, 2), padding=1), PLANE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), PLANE),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), LINE, (4,), (4,)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), LINE, (4,), (4,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4, 6), w, b), ROW, (4, 6), (4, 6)),
    "batch_norm": (
        lambda x, m, w, b: F.batch_norm(x, m, m.square() + 0.5, w, b), LINE, (4,), (4,), (4,),
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), ROW, (6,)),
    "var": (lambda x: x.var((0, -1), keepdim=True), ROW),
    "var, biased": (lambda x: x.var(-1, unbiased=False, keepdim=True), ROW),
    "var by position": (lambda x: x.var(-1, False, True), ROW),
    "var corrected": (lambda x: torch.var(x, dim=-1, correction=0, keepdim=True), ROW),
    "var of an axis that goes": (lambda x: x.var((-1,), unbiased=True), ROW),
    "var of all": (lambda x: x.var(False), ROW),
    "baddbmm": (
        lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=3), ROW, (3, 4, 5), (3, 5, 6),
    ),
}  # fmt: skip
KEPT = {
    "elu": (F.elu, ROW),
    "softplus": (lambda x: F.softplus(x, threshold=5), ROW),
    "threshold": (lambda x: F.threshold(x, 0.1, 0.0), ROW),
    "clamp": (lambda x: x.clamp(min=0.1), ROW),
    "abs": (lambda x: (x > 0).long().abs() + 0 * x, ROW),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), PLANE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), PLANE),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), ROW),
}


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


def traced(function, *shapes):
    """What the graph and the function make of random numbers, and the graph's operations."""
    torch.manual_seed(0)
    x = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    program = torch.export.export(Called(function), x, strict=False)
    take_apart(program.graph)
    program.graph_module.recompile()
    (found,) = fx.Interpreter(program.graph_module).run(*x)
    return found, function(*x), {str(n.target).split(".")[1] for n in program.graph.nodes
                                 if n.op == "call_function" and "." in str(n.target)}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_is_written_out_is_the_same(name):
    found, wanted, operations = traced(*APART[name])
    assert re.match(r"\w+", name)[0] not in operations or "mul" in operations
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-13


@pytest.mark.parametrize("name", KEPT)
def test_what_no_rule_knows_stays(name):
    found, wanted, operations = traced(*KEPT[name])
    assert name in operations
    assert torch.equal(found, wanted)
