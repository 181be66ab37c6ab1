"""Which values are zero beyond their vector, told from the graph alone.

A program may run on a computer wider than it needs; the components beyond a vector must then add
nothing to sums of components. See :mod:`iceform.computer.instructions`.
"""

from __future__ import annotations

import torch

from iceform.computer.graph import Block, Loop, Node
from iceform.functions.formulas.functions import evaluate

__all__ = ["clean_states"]


def clean_states(block: Block) -> set[Node]:
    """The states whose start is clean and that every turn keeps so."""
    known: dict[Node, bool] = {}
    _block(block, known)
    return {n for n, clean in known.items() if n.op == "state" and clean}


def _block(block: Block, known: dict[Node, bool]) -> None:
    for item in block.items:
        if isinstance(item, Loop):
            _loop(item, known)
        else:
            known[item] = item.width is not None and _clean(item, [known[a] for a in item.args])


def _loop(loop: Loop, known: dict[Node, bool]) -> None:
    for c in loop.carried:
        known[c.state] = known[c.start]
    while True:
        _block(loop.body, known)
        spoilt = [c for c in loop.carried if known[c.state] and not known[c.next]]
        if not spoilt:
            break
        for c in spoilt:
            known[c.state] = False
    for c in loop.carried:
        known[c.result] = known[c.state]


def _clean(node: Node, args: list[bool]) -> bool:
    if node.op in ("data", "parameter", "concat", "mask"):
        return True
    if node.op == "constant":
        return float(node.attr) == 0
    if node.op == "apply":
        zero = evaluate(node.attr, torch.zeros(1, dtype=torch.float64))
        return args[0] and float(zero) == 0
    if node.op == "mul":
        return any(args)
    if node.op in ("add", "maximum", "minimum", "mean", "bounded", "spread", "stored"):
        return all(args)
    return False
