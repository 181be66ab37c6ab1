r"""Products that are left when maps, heads and activations are found, read by the frozen layers.

:math:`x / \sqrt{\mathrm{mean}\, x^2 + \epsilon}`, written out as LLaMA and T5 have it, is a norm;
any other product of two tensors is a product's piece, squares and cubes are such products, and a
matrix product whose inner size is fixed is one with several terms. Numbers that the code has
written down (x / 2) scale, and are not looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iceform.networks.graph import NetworkNode, Ref, live
from iceform.networks.pieces import Norm, ProductPiece

if TYPE_CHECKING:
    from iceform.networks.parts import Maker

_MATRICES = ("matmul", "bmm", "mm")


def multiplied(
    to: Maker, nodes: list[NetworkNode], results: Sequence[Any]
) -> tuple[NetworkNode, ...]:
    """The nodes with their products and written-out norms as pieces."""
    by_name = {node.name: node for node in nodes}
    nodes = live([_normed(to, node, by_name) for node in nodes], results)
    return tuple(one for node in nodes for one in _read(to, node, by_name))


def _on(to: Maker, node: NetworkNode, kind: str, inner: int | None, *factors: Any) -> NetworkNode:
    place = "" if node.where == to.title else f"{node.where}."
    piece = to.piece(f"{place}{kind}", ProductPiece("", to.settings, inner=inner))
    return replace(node, op="piece", args=(piece.name, *factors), kwargs={})


def _read(to: Maker, node: NetworkNode, by_name: Mapping[str, NetworkNode]) -> list[NetworkNode]:
    """A product as pieces; anything else as it is."""
    if not node.active or node.kwargs:
        return [node]
    tensors = [isinstance(a, Ref) and not by_name[a.name].is_size for a in node.args[:2]]
    if node.short == "mul" and all(tensors):
        return [_on(to, node, "product", None, *node.args)]
    if node.short in _MATRICES and all(tensors):
        shape = by_name[node.args[0].name].shape
        other = by_name[node.args[1].name].shape
        known = shape is not None and other is not None and min(len(shape), len(other)) > 1
        if known and shape is not None and shape[-1] is not None:
            return [_on(to, node, "product", shape[-1], *node.args)]
    power = 2 if node.short == "square" else node.args[1] if node.short == "pow" else None
    if power == 2 and tensors[0]:
        return [_on(to, node, "product", None, node.args[0], node.args[0])]
    if power == 3 and tensors[0]:
        square = replace(node, name=f"{node.name}.square")
        return [
            _on(to, square, "product", None, node.args[0], node.args[0]),
            _on(to, node, "product", None, Ref(square.name), node.args[0]),
        ]
    return [node]


def _normed(to: Maker, node: NetworkNode, by_name: Mapping[str, NetworkNode]) -> NetworkNode:
    if node.short != "mul" or not all(isinstance(a, Ref) for a in node.args[:2]):
        return node
    for x, root in (node.args[:2], node.args[1::-1]):
        eps = _floor(x, by_name[root.name], by_name)
        width = (by_name[x.name].shape or (None,))[-1]
        if eps is not None and width is not None:
            made = Norm("", to.settings, width, None, None, eps, centred=False)
            return replace(node, op="piece", args=(to.piece(node.where, made).name, x), kwargs={})
    return node


def _floor(x: Ref, root: NetworkNode, by_name: Mapping[str, NetworkNode]) -> float | None:
    """eps, where ``root`` is (mean x^2 + eps)^(-1/2) over the last axis."""

    def before(node: NetworkNode, *ops: str) -> NetworkNode | None:
        known = node.short in ops and isinstance(node.args[0], Ref) and not node.kwargs
        return by_name[node.args[0].name] if known else None

    rooted = root.short == "rsqrt" or (root.short == "pow" and root.args[1] == -0.5)
    added = before(root, root.short) if rooted else None
    mean = None if added is None else before(added, "add")
    square = None if mean is None else before(mean, "mean")
    if added is None or mean is None or square is None or len(mean.args) < 3:
        return None
    squared = square.short == "square" or (square.short == "pow" and square.args[1] == 2)
    rank = len(square.shape) if square.shape is not None else 0
    last = list(mean.args[1]) in ([-1], [rank - 1]) and mean.args[2]
    eps = added.args[1]
    found = squared and last and square.args[0] == x and isinstance(eps, int | float)
    return float(eps) if found else None
