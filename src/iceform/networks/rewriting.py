r"""Operations that are others in disguise, written out.

A convolution is a linear map on patches:
:math:`y_o = W\,(x_{o s + d k})_k + b`, the patches cut out by moves. The largest of a patch is
:math:`\max(a, b) = a + \mathrm{relu}(b - a)`, halved until one is left. Norms are means, roots and
products; activations with settings are those without:

.. math::

    \mathrm{elu}_\alpha = (1 - \alpha)\,\mathrm{relu} + \alpha\,\mathrm{elu}, \qquad
    \mathrm{softplus}_\beta(z) = \mathrm{softplus}(\beta z) / \beta, \qquad
    |z| = \mathrm{relu}(z) + \mathrm{relu}(-z).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from iceform.networks.capture import op_of

if TYPE_CHECKING:
    from iceform.networks.convert import Conversion

EPSILON = 1e-5  # of a norm, where aten is told none
_DENSE = 2**22  # entries of a matrix that holds a convolution in groups, with its zeros
_SELU = (1.6732632423543772, 1.0507009873554805)  # alpha and scale


@dataclass(frozen=True, eq=False)
class Const:
    """A tensor that no input changes."""

    tensor: Tensor
    name: str = ""  # of the parameter, where it is one
    folded: bool = False


class Writer:
    """Writes the operations that one node stands for.

    Parameters
    ----------
    to
        The graph being made.
    node
        What is written out.
    """

    def __init__(self, to: Conversion, node: fx.Node) -> None:
        self.to, self.node, self._count = to, node, 0

    def _suffix(self) -> str:
        self._count += 1
        return f".{self._count}"

    def call(self, op: str, *args: Any) -> Any:
        """An operation of aten; ``op`` without the namespace."""
        return self.to.call(self.node, f"aten.{op}", *args, suffix=self._suffix())

    def activated(self, name: str, x: Any) -> Any:
        """An activation that there is."""
        return self.to.activated(self.node, name, x, suffix=self._suffix())

    def mapped(self, weight: Const, bias: Const | None, x: Any) -> Any:
        """A linear map on the last axis."""
        return self.to.on(self.node, self.to.map(self.node, weight, bias), x, suffix=self._suffix())

    def scaled(self, x: Any, factor: float) -> Any:
        """``factor`` x."""
        return x if factor == 1 else self.call("mul.Tensor", x, factor)

    @property
    def shape(self) -> Sequence[Any]:
        """Of the first argument; sizes may be symbols."""
        found: Sequence[Any] = self.node.args[0].meta["val"].shape  # type: ignore[union-attr]
        return found


def rewritten(to: Conversion, node: fx.Node, short: str, args: Any, kwargs: Any) -> Any:
    """What the node computes, written with other operations; None where it is none of these."""
    rule = _RULES.get(short)
    if rule is None or not to.is_active(args[:1]) or not _fits(rule, args, kwargs):
        return None
    return rule(Writer(to, node), *args, **kwargs)


def _fits(rule: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation is called in a way that its rule knows; torch has overloads."""
    try:
        signature(rule).bind(None, *args, **kwargs)
    except TypeError:
        return False
    return True


# ------------------------------------------------------------------------------------ tokens


def _reshaped(w: Writer, x: Any, shape: Any) -> Any:
    """Ways through shapes that no memory has, as torch's own heads go: each would be a copy."""
    del x, shape
    return _as_heads(w) or _mapped_in_place(w)


def _as_heads(w: Writer) -> Any:
    """(t, b, h d) as (t, b h, d), turned, as (b, h, t, d): the heads of every token, permuted."""
    turned = w.to.source(w.node.args[0])
    flat = (
        w.to.source(turned.args[0]) if turned is not None and op_of(turned) == "transpose" else None
    )
    if flat is None or op_of(flat) not in ("view", "reshape") or sorted(turned.args[1:]) != [0, 1]:
        return None
    given, between, made = (_sizes(n) for n in (flat.args[0], flat, w.node))
    if (len(given), len(between), len(made)) != (3, 3, 4):
        return None
    heads, features = made[1], made[3]
    whole = isinstance(heads, int) and isinstance(features, int) and given[2] == heads * features
    if not whole or between[::2] != (given[0], features) or made[::2] != (given[1], given[0]):
        return None
    y = w.call("unflatten.int", w.to.value(flat.args[0]), -1, [heads, features])
    return w.to.call(w.node, "aten.permute.default", y, [1, 2, 0, 3])


def _mapped_in_place(w: Writer) -> Any:
    """A map of rows (t b, n) that were (t, b, ...) and become that again: of (t, b, n)."""
    mapped = w.to.source(w.node.args[0])
    if mapped is None or op_of(mapped) != "linear":
        return None
    rows = w.to.source(mapped.args[0])
    if rows is None or op_of(rows) not in ("view", "reshape"):
        return None
    given, flat, out, made = (_sizes(n) for n in (rows.args[0], rows, mapped, w.node))
    inner = given[2:]
    if len(flat) != 2 or not inner or not all(isinstance(n, int) for n in inner):
        return None
    if math.prod(inner) != flat[1] or made != (*given[:2], out[1]):
        return None
    weight, *bias = (w.to.value(a) for a in mapped.args[1:])
    if not all(isinstance(c, Const | None) for c in (weight, *bias)):
        return None
    piece = w.to.map(mapped, weight, *(bias or [None]))
    y = w.to.value(rows.args[0])
    y = w.call("flatten.using_ints", y, 2, -1) if len(inner) > 1 else y
    return w.to.on(w.node, piece, y)


def _sizes(node: Any) -> tuple[Any, ...]:
    """Of a node's value: numbers, and what stands for them."""
    return tuple(n if isinstance(n, int) else n.node.expr for n in node.meta["val"].shape)


# ------------------------------------------------------------------------------------- patches


def _each(value: Any, n: int) -> list[int]:
    values = list(value) if isinstance(value, tuple | list) else [value]
    return [int(v) for v in (values * n if len(values) == 1 else values)]


def _patches(w: Writer, x: Any, sizes: list[int], steps: list[int], spread: list[int]) -> Any:
    """(batch, channels, *places, *offsets) of (batch, channels, *places)."""
    for i, (size, step, apart) in enumerate(zip(sizes, steps, spread, strict=True)):
        x = w.call("unfold.default", x, 2 + i, (size - 1) * apart + 1, step)
        if apart > 1:
            x = w.call("slice.Tensor", x, -1, 0, (size - 1) * apart + 1, apart)
    return x


def _zero_padded(w: Writer, x: Any, pads: list[tuple[int, int]]) -> Any:
    flat = [n for pair in reversed(pads) for n in pair]
    return w.call("constant_pad_nd.default", x, flat, 0.0) if any(flat) else x


def _convolution(n: int) -> Callable[..., Any]:
    def rule(
        w: Writer, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        fixed = isinstance(weight, Const) and (bias is None or isinstance(bias, Const))
        if not fixed or len(w.shape) != n + 2:
            return None
        sizes, steps, apart = list(weight.tensor.shape[2:]), _each(stride, n), _each(dilation, n)
        matrix = _matrix(weight, groups)
        if matrix is None:
            return None
        y = _zero_padded(w, x, _pads(padding, sizes, apart, n))
        y = _patches(w, y, sizes, steps, apart)
        places = list(range(2, n + 2))
        y = w.call("permute.default", y, [0, *places, 1, *range(n + 2, 2 * n + 2)])
        y = w.call("flatten.using_ints", y, n + 1, -1)
        return w.call("permute.default", w.mapped(matrix, bias, y), [0, n + 1, *range(1, n + 1)])

    return rule


def _pads(padding: Any, sizes: list[int], apart: list[int], n: int) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        total = [a * (k - 1) for k, a in zip(sizes, apart, strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in _each(padding, n)]


def _matrix(weight: Const, groups: int) -> Const | None:
    """The map on patches; of one in groups, blocks with zeros beside them."""
    t = weight.tensor
    if groups == 1:
        return Const(t.reshape(len(t), -1), weight.name, weight.folded)
    if t.numel() * groups > _DENSE:
        return None
    blocks = t.reshape(groups, len(t) // groups, -1)
    return Const(torch.block_diag(*blocks), weight.name, weight.folded)


def _largest(n: int) -> Callable[..., Any]:
    def rule(
        w: Writer, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> Any:  # fmt: skip
        sizes, apart, pads = _each(kernel, n), _each(dilation, n), _each(padding, n)
        steps = _each(stride, n) if stride else sizes
        if ceil or len(w.shape) != n + 2 or (any(pads) and any(a > 1 for a in apart)):
            return None
        if any(pads):
            # A patch that reaches over the border holds the border: repeated, it changes nothing.
            flat = [p for p in reversed(pads) for _ in range(2)]
            x = w.call("pad.default", x, flat, "replicate")
        y = _patches(w, x, sizes, steps, apart)
        return _maximum(w, w.call("flatten.using_ints", y, n + 2, -1), math.prod(sizes))

    return rule


def _maximum(w: Writer, y: Any, count: int) -> Any:
    """The largest along the last axis."""
    while count > 1:
        half = count // 2
        a = w.call("slice.Tensor", y, -1, 0, half)
        b = w.call("slice.Tensor", y, -1, half, 2 * half)
        up = w.activated("relu", w.call("sub.Tensor", b, a))
        larger = w.call("add.Tensor", a, up)
        if count % 2:
            larger = w.call("cat.default", [larger, w.call("slice.Tensor", y, -1, -1)], -1)
        y, count = larger, half + count % 2
    return w.call("select.int", y, -1, 0)


def _averaged(n: int) -> Callable[..., Any]:
    def rule(
        w: Writer, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        with_pads: bool = True, divisor: Any = None,
    ) -> Any:  # fmt: skip
        sizes, pads = _each(kernel, n), _each(padding, n)
        steps = _each(stride, n) if stride else sizes
        counted = with_pads or not any(pads)
        if ceil or divisor or not counted or len(w.shape) != n + 2:
            return None
        y = _patches(w, _zero_padded(w, x, [(p, p) for p in pads]), sizes, steps, [1] * n)
        return w.call("mean.dim", y, list(range(-n, 0)))

    return rule


def _averaged_whole(n: int) -> Callable[..., Any]:
    def rule(w: Writer, x: Any, size: Any) -> Any:
        whole = all(s == 1 for s in _each(size, n))
        return w.call("mean.dim", x, list(range(-n, 0)), True) if whole else None

    return rule


# --------------------------------------------------------------------------------------- norms


def _standardised(w: Writer, x: Any, dims: list[int], eps: float) -> Any:
    centred = w.call("sub.Tensor", x, w.call("mean.dim", x, dims, True))
    spread = w.call("mean.dim", w.call("square.default", centred), dims, True)
    root = w.call("rsqrt.default", w.call("add.Tensor", spread, eps))
    return w.call("mul.Tensor", centred, root)


def _weighed(w: Writer, y: Any, weight: Any, bias: Any, after: int = 0) -> Any:
    """Times weight plus bias, with so many axes behind theirs."""
    for op, given in (("mul.Tensor", weight), ("add.Tensor", bias)):
        if given is None:
            continue
        y = w.call(op, y, _broadcast(given, after))
    return y


def _broadcast(given: Any, after: int) -> Any:
    if not after or not isinstance(given, Const):
        return given
    shape = (*given.tensor.shape, *[1] * after)
    return Const(given.tensor.reshape(shape), given.name, given.folded)


def _batch_norm(
    w: Writer, x: Any, weight: Any, bias: Any, mean: Any, spread: Any, training: bool, _: float,
    eps: float, *rest: Any,
) -> Any:  # fmt: skip
    del rest
    if training or not (isinstance(mean, Const) and isinstance(spread, Const)):
        return None
    after = len(w.shape) - 2
    shape = (-1, *[1] * after)
    centred = w.call("sub.Tensor", x, Const(mean.tensor.reshape(shape), mean.name))
    root = w.call("add.Tensor", Const(spread.tensor.reshape(shape), spread.name), eps)
    y = w.call("div.Tensor", centred, w.call("sqrt.default", root))
    return _weighed(w, y, weight, bias, after)


def _batch_norm_taken_apart(
    w: Writer, x: Any, weight: Any, bias: Any, mean: Any, spread: Any, momentum: float, eps: float
) -> Any:
    """As torch.export has it: with what training would keep, which nothing reads."""
    found = _batch_norm(w, x, weight, bias, mean, spread, False, momentum, eps)
    return None if found is None else (found, None, None)


def _instance_norm(
    w: Writer, x: Any, weight: Any, bias: Any, mean: Any, spread: Any, own: bool, momentum: float,
    eps: float, *rest: Any,
) -> Any:  # fmt: skip
    if not own:
        return _batch_norm(w, x, weight, bias, mean, spread, False, momentum, eps, *rest)
    after = len(w.shape) - 2
    y = _standardised(w, x, list(range(2, after + 2)), eps)
    return _weighed(w, y, weight, bias, after)


def _group_norm(
    w: Writer, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = EPSILON,
    *rest: Any,
) -> Any:  # fmt: skip
    del rest
    rank = len(w.shape)
    if not isinstance(w.shape[1], int):
        return None
    y = w.call("unflatten.int", x, 1, [groups, w.shape[1] // groups])
    y = _standardised(w, y, list(range(2, rank + 1)), eps)
    return _weighed(w, w.call("flatten.using_ints", y, 1, 2), weight, bias, rank - 2)


def _layer_norm(
    w: Writer, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = EPSILON,
    *rest: Any,
) -> Any:  # fmt: skip
    del rest
    return _weighed(w, _standardised(w, x, list(range(-len(shape), 0)), eps), weight, bias)


def _rms_norm(w: Writer, x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if eps is None:
        if w.to.dtype != torch.float64:
            return None  # it would be this dtype's own, and another in float64
        eps = torch.finfo(torch.float64).eps
    squares = w.call("mean.dim", w.call("square.default", x), list(range(-len(shape), 0)), True)
    root = w.call("rsqrt.default", w.call("add.Tensor", squares, eps))
    return _weighed(w, w.call("mul.Tensor", x, root), weight, None)


def _variance(
    w: Writer, x: Any, dims: Any = None, unbiased: bool = True, keepdim: bool = False, *,
    correction: Any = None,
) -> Any:  # fmt: skip
    if isinstance(dims, bool):  # var(x, unbiased), over all
        dims, unbiased = None, dims
    rank = len(w.shape)
    dims = list(range(rank)) if not dims else [d % rank for d in dims]
    less = int(unbiased) if correction is None else correction
    sizes = [w.shape[d] for d in dims]
    if less and not all(isinstance(n, int) for n in sizes):
        return None
    centred = w.call("sub.Tensor", x, w.call("mean.dim", x, dims, True))
    found = w.call("mean.dim", w.call("square.default", centred), dims, keepdim)
    if not less:
        return found
    count = math.prod(sizes)
    return w.scaled(found, count / (count - less))


# --------------------------------------------------------------------------------- activations


def _both(w: Writer, x: Any) -> tuple[Any, Any]:
    """relu(x) and relu(-x)."""
    return w.activated("relu", x), w.activated("relu", w.call("neg.default", x))


def _leaky_relu(w: Writer, x: Any, slope: float = 0.01) -> Any:
    up, down = _both(w, x)
    return w.call("sub.Tensor", up, w.scaled(down, slope))


def _prelu(w: Writer, x: Any, weight: Any) -> Any:
    if not isinstance(weight, Const):
        return None
    t, after = weight.tensor, len(w.shape) - 2
    if t.numel() > 1 and after > 0:
        t = t.reshape(-1, *[1] * after)
    up, down = _both(w, x)
    return w.call("sub.Tensor", up, w.call("mul.Tensor", down, Const(t, weight.name)))


def _abs(w: Writer, x: Any) -> Any:
    return w.call("add.Tensor", *_both(w, x))


def _between(w: Writer, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """min(max(x, low), high)."""
    up, over = (w.activated("relu", w.call("sub.Tensor", x, at)) for at in (low, high))
    return w.call("add.Tensor", w.call("sub.Tensor", up, over), low)


def _clamp(w: Writer, x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        return None
    return _between(w, x, float(low), float(high))


def _hard_sigmoid(w: Writer, x: Any) -> Any:
    return w.scaled(_between(w, w.call("add.Tensor", x, 3.0), 0.0, 6.0), 1 / 6)


def _hard_swish(w: Writer, x: Any) -> Any:
    return w.call("mul.Tensor", x, _hard_sigmoid(w, x))


def _elu(
    w: Writer, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Any:
    if (alpha, scale, input_scale) == (1, 1, 1) or input_scale != 1:
        return None
    y = w.scaled(w.activated("elu", x), alpha)
    if alpha != 1:
        y = w.call("add.Tensor", y, w.scaled(w.activated("relu", x), 1 - alpha))
    return w.scaled(y, scale)


def _selu(w: Writer, x: Any) -> Any:
    return _elu(w, x, *_SELU)


def _celu(w: Writer, x: Any, alpha: float = 1.0) -> Any:
    if alpha == 1:
        return None
    return w.scaled(w.activated("elu", w.scaled(x, 1 / alpha)), alpha)


def _softplus(w: Writer, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    if beta == 1 or threshold != 20:
        return None
    return w.scaled(w.activated("softplus", w.scaled(x, beta)), 1 / beta)


def _log_sigmoid(w: Writer, x: Any) -> Any:
    return w.call("neg.default", w.activated("softplus", w.call("neg.default", x)))


def _threshold(w: Writer, x: Any, at: float, value: float) -> Any:
    """Only where it is continuous."""
    if at != value:
        return None
    return w.call("add.Tensor", w.activated("relu", w.call("sub.Tensor", x, at)), at)


def _glu(w: Writer, x: Any, dim: int = -1) -> Any:
    """One half times the sigmoid of the other."""
    if not isinstance(w.shape[dim], int):
        return None
    size = w.shape[dim] // 2
    a, b = (w.call("slice.Tensor", x, dim, low, low + size) for low in (0, size))
    return w.call("mul.Tensor", a, w.activated("sigmoid", b))


_RULES: dict[str, Callable[..., Any]] = {
    "reshape": _reshaped,
    **{f"conv{n}d": _convolution(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _largest(n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _averaged(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _averaged_whole(n) for n in (1, 2, 3)},
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_taken_apart,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "var": _variance,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "abs": _abs,
    "hardtanh": _between,
    "relu6": lambda w, x: _between(w, x, 0.0, 6.0),
    "clamp": _clamp,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "threshold": _threshold,
    "glu": _glu,
}
