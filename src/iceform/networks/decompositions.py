r"""Operations that are others in disguise, written as torch functions, which are traced in place.

A convolution is a linear map on patches:
:math:`y_o = W\,(x_{o s + d k})_k + b`, the patches cut out by moves. The largest of a patch is
:math:`\max(a, b) = a + \mathrm{relu}(b - a)`, halved until one is left. Norms are means, roots and
products; activations with settings are those without:

.. math::

    \mathrm{elu}_\alpha = (1 - \alpha)\,\mathrm{relu} + \alpha\,\mathrm{elu}, \qquad
    \mathrm{softplus}_\beta(z) = \mathrm{softplus}(\beta z) / \beta, \qquad
    |z| = \mathrm{relu}(z) + \mathrm{relu}(-z).

A rule that does not know what it is asked returns ``NotImplemented``, and the operation stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from iceform import tuning

EPSILON = 1e-5  # of a norm, where aten is told none
_SELU_LIMIT, _SELU_SCALE = F.selu(torch.tensor([-math.inf, 1.0]).double()).tolist()


def take_apart(graph: fx.Graph) -> None:
    """Replace every such operation of a graph by the operations that it stands for."""
    for node in list(graph.nodes):
        rule = _rules().get(node.target) if node.op == "call_function" else None
        found = None if rule is None else _traced(rule, node)
        if found is None:
            continue
        inputs = [n for n in found.nodes if n.op == "placeholder"]
        here = dict(zip(inputs, node.all_input_nodes, strict=True))
        with graph.inserting_before(node):
            for step in found.nodes:
                if step.op == "call_function":
                    here[step] = graph.node_copy(step, here.__getitem__)
                    here[step].meta["nn_module_stack"] = node.meta.get("nn_module_stack")
                    here[step].meta["instead_of"] = node.target
        result: Any = found.output_node().args[0]
        if isinstance(result, fx.Node):
            node.replace_all_uses_with(here[result])
        for user in list(node.users):  # which takes one of several
            user.replace_all_uses_with(here[result[user.args[1]]])
            graph.erase_node(user)
        graph.erase_node(node)


def _traced(rule: Callable[..., Any], node: fx.Node) -> fx.Graph | None:
    """A rule's operations as a graph; None where the rule has no answer."""
    try:
        signature(rule).bind(*node.args, **node.kwargs)
    except TypeError:
        return None  # torch has overloads
    values, known = [n.meta["val"] for n in node.all_input_nodes], True
    if not values[0].is_floating_point():
        return None

    def whole(*values: Any) -> Any:
        nonlocal known
        by = dict(zip(node.all_input_nodes, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), by.__getitem__)
        result = rule(*args, **kwargs)
        known = result is not NotImplemented
        return result if known else ()

    found = make_fx(whole, pre_dispatch=True, _allow_non_fake_inputs=True)(*values)
    return found.graph if known else None


@cache
def _rules() -> dict[Any, Callable[..., Any]]:
    """The rules, by overload of aten's operations."""
    packets = {getattr(torch.ops.aten, name): rule for name, rule in _RULES.items()}
    return {getattr(p, o): rule for p, rule in packets.items() for o in p.overloads()}


def _times(factor: float, x: Tensor) -> Tensor:
    return x if factor == 1 else x * factor


# ------------------------------------------------------------------------------------- patches


def _each(value: Any, n: int) -> list[int]:
    values = list(value) if isinstance(value, tuple | list) else [value]
    return [int(v) for v in (values * n if len(values) == 1 else values)]


def _patches(x: Tensor, sizes: list[int], steps: list[int], spread: list[int]) -> Tensor:
    """(batch, channels, *places, *offsets) of (batch, channels, *places)."""
    for i, (size, step, apart) in enumerate(zip(sizes, steps, spread, strict=True)):
        x = x.unfold(2 + i, (size - 1) * apart + 1, step)
        x = x[..., ::apart] if apart > 1 else x
    return x


def _padded(x: Tensor, pads: list[tuple[int, int]], mode: str = "constant") -> Tensor:
    flat = [n for pair in reversed(pads) for n in pair]
    return F.pad(x, flat, mode) if any(flat) else x


def _convolution(n: int) -> Callable[..., Any]:
    def rule(
        x: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        # In groups it is held with its zeros.
        dense = groups == 1 or weight.numel() * groups <= tuning.ENTRIES_AT_ONCE
        if x.ndim != n + 2 or not dense:
            return NotImplemented
        sizes, apart = list(weight.shape[2:]), _each(dilation, n)
        y = _patches(_padded(x, _pads(padding, sizes, apart, n)), sizes, _each(stride, n), apart)
        y = y.movedim(1, n + 1).flatten(n + 1)
        rows = weight.reshape(len(weight), -1)
        if groups > 1:  # blocks with zeros beside them
            rows = torch.block_diag(*rows.unflatten(0, (groups, -1)).unbind())
        return F.linear(y, rows, bias).movedim(-1, 1)

    return rule


def _pads(padding: Any, sizes: list[int], apart: list[int], n: int) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        total = [a * (k - 1) for k, a in zip(sizes, apart, strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in _each(padding, n)]


def _largest(n: int) -> Callable[..., Any]:
    def rule(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> Any:  # fmt: skip
        sizes, apart, pads = _each(kernel, n), _each(dilation, n), _each(padding, n)
        if ceil or x.ndim != n + 2 or (any(pads) and any(a > 1 for a in apart)):
            return NotImplemented
        # A patch that reaches over the border holds the border: repeated, it changes nothing.
        x = _padded(x, [(p, p) for p in pads], "replicate")
        y = _patches(x, sizes, _each(stride, n) if stride else sizes, apart).flatten(n + 2)
        while (count := y.shape[-1]) > 1:
            half = count // 2
            a, b = y[..., :half], y[..., half : 2 * half]
            larger = a + F.relu(b - a)
            y = torch.cat([larger, y[..., -1:]], -1) if count % 2 else larger
        return y[..., 0]

    return rule


def _averaged(n: int) -> Callable[..., Any]:
    def rule(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        with_pads: bool = True, divisor: Any = None,
    ) -> Any:  # fmt: skip
        sizes, pads = _each(kernel, n), _each(padding, n)
        if ceil or divisor or x.ndim != n + 2 or (any(pads) and not with_pads):
            return NotImplemented
        x = _padded(x, [(p, p) for p in pads])
        y = _patches(x, sizes, _each(stride, n) if stride else sizes, [1] * n)
        return y.mean(list(range(-n, 0)))

    return rule


def _averaged_whole(n: int) -> Callable[..., Any]:
    def rule(x: Tensor, size: Any) -> Any:
        whole = all(s == 1 for s in _each(size, n))
        return x.mean(list(range(-n, 0)), True) if whole else NotImplemented

    return rule


# --------------------------------------------------------------------------------------- norms


def _standardised(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dims, True)
    return centred * torch.rsqrt(centred.square().mean(dims, True) + eps)


def _weighed(y: Tensor, weight: Any, bias: Any, after: int = 0) -> Tensor:
    """Times weight plus bias, with so many axes behind theirs."""
    y = y if weight is None else y * _behind(weight, after)
    return y if bias is None else y + _behind(bias, after)


def _behind(x: Tensor, after: int) -> Tensor:
    return x.reshape(*x.shape, *[1] * after) if after else x


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, spread: Any, training: bool, _: float, eps: float,
    *rest: Any,
) -> Any:  # fmt: skip
    if training or mean is None or spread is None:
        return NotImplemented
    after, scale = x.ndim - 2, torch.rsqrt(spread + eps)
    scale = scale if weight is None else scale * weight
    return _weighed(x - _behind(mean, after), scale, bias, after)


def _batch_norm_alone(
    x: Tensor, weight: Any, bias: Any, mean: Any, spread: Any, momentum: float, eps: float
) -> Any:
    """As torch takes it apart: with what training would keep, which nothing reads."""
    y = _batch_norm(x, weight, bias, mean, spread, False, momentum, eps)
    return y if y is NotImplemented else (y, y, y)


def _instance_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, spread: Any, own: bool, momentum: float,
    eps: float, *rest: Any,
) -> Any:  # fmt: skip
    if not own:
        return _batch_norm(x, weight, bias, mean, spread, False, momentum, eps)
    after = x.ndim - 2
    return _weighed(_standardised(x, list(range(2, x.ndim)), eps), weight, bias, after)


def _group_norm(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = EPSILON, *rest: Any
) -> Any:
    if not isinstance(x.shape[1], int):
        return NotImplemented
    y = _standardised(x.unflatten(1, (groups, -1)), list(range(2, x.ndim + 1)), eps)
    return _weighed(y.flatten(1, 2), weight, bias, x.ndim - 2)


def _layer_norm(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = EPSILON, *rest: Any
) -> Any:
    """Over several axes; over one it is a piece."""
    if len(shape) == 1:
        return NotImplemented
    return _weighed(_standardised(x, list(range(-len(shape), 0)), eps), weight, bias)


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if eps is None:
        if x.dtype != torch.float64:
            return NotImplemented  # it would be this dtype's own, and another in float64
        eps = torch.finfo(torch.float64).eps
    squares = x.square().mean(list(range(-len(shape), 0)), True)
    return _weighed(x * torch.rsqrt(squares + eps), weight, None)


def _variance(
    x: Tensor, dims: Any = None, unbiased: bool = True, keepdim: bool = False, *,
    correction: Any = None,
) -> Any:  # fmt: skip
    if isinstance(dims, bool):  # var(x, unbiased), over all
        dims, unbiased = None, dims
    dims = [d % x.ndim for d in dims] if dims else list(range(x.ndim))
    less = int(unbiased) if correction is None else correction
    sizes = [x.shape[d] for d in dims]
    if less and not all(isinstance(n, int) for n in sizes):
        return NotImplemented
    found = (x - x.mean(dims, True)).square().mean(dims, keepdim)
    count = math.prod(sizes) if less else 1
    return _times(count / (count - less), found) if less else found


# --------------------------------------------------------------------------------- activations


def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return F.relu(x) - _times(slope, F.relu(-x))


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    weight = _behind(weight, x.ndim - 2) if weight.numel() > 1 else weight
    return F.relu(x) - F.relu(-x) * weight


def _between(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """min(max(x, low), high)."""
    return F.relu(x - low) - F.relu(x - high) + low


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    numbers = isinstance(min, int | float) and isinstance(max, int | float)
    return _between(x, float(min), float(max)) if numbers else NotImplemented


def _hard_sigmoid(x: Tensor) -> Tensor:
    return _between(x + 3, 0, 6) * (1 / 6)


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if (alpha, scale) == (1, 1) or input_scale != 1:
        return NotImplemented
    y = _times(alpha, F.elu(x))
    return _times(scale, y if alpha == 1 else y + _times(1 - alpha, F.relu(x)))


def _selu(x: Tensor) -> Any:
    """With the numbers that torch has: selu(1) is its scale, -alpha scale its limit."""
    return _elu(x, -_SELU_LIMIT / _SELU_SCALE, _SELU_SCALE)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return _times(alpha, F.elu(_times(1 / alpha, x)))


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    if beta == 1 or threshold != 20:
        return NotImplemented
    return _times(1 / beta, F.softplus(_times(beta, x)))


def _threshold(x: Tensor, at: float, value: float) -> Any:
    """max(x, at), where the replaced values are ``at`` too; otherwise it jumps."""
    return F.relu(x - at) + at if at == value else NotImplemented


def _glu(x: Tensor, dim: int = -1) -> Any:
    """One half times the sigmoid of the other."""
    if not isinstance(x.shape[dim], int):
        return NotImplemented
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def _added_product(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _times(beta, x) + _times(alpha, torch.bmm(a, b))


_RULES: dict[str, Callable[..., Any]] = {
    **{f"conv{n}d": _convolution(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _largest(n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _averaged(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _averaged_whole(n) for n in (1, 2, 3)},
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_alone,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "var": _variance,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "abs": lambda x: F.relu(x) + F.relu(-x),
    "hardtanh": _between,
    "relu6": lambda x: _between(x, 0, 6),
    "clamp": _clamp,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda x: x * _hard_sigmoid(x),
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "softplus": _softplus,
    "log_sigmoid": lambda x: -F.softplus(-x),
    "threshold": _threshold,
    "glu": _glu,
    "baddbmm": _added_product,
}
