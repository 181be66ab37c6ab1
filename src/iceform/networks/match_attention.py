r"""Attention in a graph: softmax(s q k' + m) v, fused or written out, as heads.

What is added to the logits, whatever no activation enters, is the mask; where logits are replaced
by a number they are 0 and the number is in the mask. A softmax of anything else is a head whose
keys are the logits of its one query, 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from iceform.networks.capture import module_path, op_of
from iceform.networks.graph import Ref, live
from iceform.networks.parts import Const
from iceform.networks.pieces import AttentionPiece
from iceform.networks.pieces.heads import FORBIDS

if TYPE_CHECKING:
    from iceform.networks.convert import Conversion


_ZERO = Const(torch.zeros((), dtype=torch.float64))


@dataclass
class _Logits:
    """The logits of a softmax, taken apart.

    Attributes
    ----------
    node
        What is left of it.
    added, terms
        The sum of what was added to that, None where nothing was, and of how many terms it is.
    hidden
        Where it is replaced by numbers, which are among what is added; None where nowhere.
    highest
        The largest of these numbers; infinity where one is not known.
    """

    node: Any
    added: Any = None
    terms: int = 0
    hidden: Any = None
    highest: float = -math.inf


def _tensor(value: Any) -> Any:
    """A number as a constant tensor; anything else as it is."""
    return (
        Const(torch.full((1, 1), value, dtype=torch.float64))
        if isinstance(value, int | float)
        else value
    )


class Attending:
    """Finds the heads of one graph.

    Parameters
    ----------
    graph
        The graph being made.
    """

    def __init__(self, graph: Conversion) -> None:
        self.graph, self.to = graph, graph.to
        self.attended: set[str] = set()  # softmaxes that heads stand for

    def _heads(
        self, node: fx.Node, scale: float, head: int, value: int, causal: bool
    ) -> AttentionPiece:
        made = AttentionPiece("", self.to.settings, head, value, scale=scale, causal=causal)
        return self.to.piece(f"{module_path(node)}.heads".removeprefix("."), made)

    def fused(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        q, k, v, mask, dropped, causal = (*args, *(None, 0.0, False)[len(args) - 3 :])[:6]
        mask, dropped = kwargs.get("attn_mask", mask), kwargs.get("dropout_p", dropped)
        causal = bool(kwargs.get("is_causal", causal))
        if kwargs.get("enable_gqa"):
            k, v = (self._shared(node, i, t) for i, t in ((1, k), (2, v)))
        if dropped:
            raise self.graph.refused(node, "attention", "drops weights at random; call eval()")
        sizes = [node.args[i].meta["val"].shape for i in (0, 2)]  # type: ignore[union-attr]
        head, value = int(sizes[0][-1]), int(sizes[1][-1])
        scale = kwargs.get("scale")
        scale = 1 / math.sqrt(head) if scale is None else float(scale)
        piece = self._heads(node, scale, head, value, causal)
        if mask is None:
            return self.graph.on(node, piece, q, k, v)
        source = node.kwargs.get("attn_mask") or node.args[3]
        if source.meta["val"].dtype == torch.bool:  # type: ignore[union-attr]
            mask = self._allowed(node, mask)
        return self.graph.on(node, piece, q, k, v, mask)

    def _allowed(self, node: fx.Node, mask: Any) -> Ref:
        """A mask that allows where true, as numbers to be added."""
        never = Const(torch.full((), -math.inf, dtype=torch.float64))
        return self.graph.call(node, "aten.where.self", mask, _ZERO, never, suffix=".mask")

    def _shared(self, node: fx.Node, index: int, value: Any) -> Any:
        """Keys or values that several heads share, once for each of them."""
        ours, theirs = (node.args[i].meta["val"].shape[-3] for i in (0, index))  # type: ignore[union-attr]
        if ours == theirs:
            return value
        return self.graph.call(node, "aten.repeat_interleave.self_int", value, ours // theirs, -3,
                         suffix=f".shared{index}")  # fmt: skip

    def _number(self, given: Any) -> float | None:
        value = self.graph.value(given)
        if isinstance(value, Const) and value.tensor.numel() == 1 and not value.folded:
            return float(value.tensor)
        return float(value) if isinstance(value, int | float) else None

    def _peeled(self, given: Any) -> _Logits:
        """Take masks off the logits: what is added to them, and what replaces them."""
        found = _Logits(given)
        while (node := self.graph.source(found.node)) is not None:
            op, args = op_of(node), node.args
            passive = [not self.graph.is_active(self.graph.value(a)) for a in args[:3]]
            if op == "add" and not node.kwargs and sum(passive) == 1:
                self._add(node, found, args[passive.index(True)])
                found.node = args[1 - passive.index(True)]
            elif op == "masked_fill" and passive == [False, True, True]:
                self._replace(node, found, self.graph.value(args[1]), args[2])
                found.node = args[0]
            elif op == "where" and passive == [True, False, True]:
                shown, name = self.graph.value(args[0]), f".mask{found.terms}.not"
                hide = self.graph.call(node, "aten.logical_not.default", shown, suffix=name)
                self._replace(node, found, hide, args[2])
                found.node = args[1]
            else:
                break
        return found

    def _add(self, node: fx.Node, logits: _Logits, term: Any) -> None:
        """Note what is added to logits; those that are replaced afterwards do not count."""
        value = _tensor(self.graph.value(term))
        if logits.hidden is not None:
            shown = logits.hidden, _ZERO, value
            value = self.graph.call(
                node, "aten.where.self", *shown, suffix=f".mask{logits.terms}.shown"
            )
        if logits.added is not None:
            sides = logits.added, value
            value = self.graph.call(
                node, "aten.add.Tensor", *sides, suffix=f".mask{logits.terms}.sum"
            )
        logits.added, logits.terms = value, logits.terms + 1

    def _replace(self, node: fx.Node, logits: _Logits, hide: Any, value: Any) -> None:
        """Note that logits are a number where ``hide`` is true: 0, and the number is added."""
        suffix, number = f".mask{logits.terms}", self._number(value)
        logits.highest = max(logits.highest, math.inf if number is None else number)
        where, either = (hide, _tensor(self.graph.value(value)), _ZERO), hide
        if logits.hidden is not None:
            both = logits.hidden, hide
            either = self.graph.call(
                node, "aten.logical_or.default", *both, suffix=f"{suffix}.either"
            )
        self._add(node, logits, self.graph.call(node, "aten.where.self", *where, suffix=suffix))
        logits.hidden = either

    def _scores(self, logits: _Logits) -> tuple[Any, Any, float] | None:
        """(q, k', scale) where logits are a product of two activations."""
        node, scale = self.graph.source(logits.node), 1.0
        if node is not None and op_of(node) == "add" and not node.kwargs:
            index = self._scored(node)
            if index is None:
                return None
            self._add(node, logits, node.args[1 - index])
            node = self.graph.source(node.args[index])
        while node is not None and op_of(node) in ("mul", "div"):
            factor = self._number(node.args[1])
            if factor is None:
                return None
            scale = scale * factor if op_of(node) == "mul" else scale / factor
            node = self.graph.source(node.args[0])
        if node is None or op_of(node) not in ("matmul", "bmm"):
            return None
        sound = all(self.graph.is_active(self.graph.value(a)) for a in node.args)
        return (*node.args, scale) if sound else None

    def _scored(self, node: fx.Node) -> int | None:
        """The index of the summand that is a product; None where not exactly one is."""
        sides = [self.graph.source(a) for a in node.args[:2]]
        scores = ("mul", "div", "matmul", "bmm")
        found = [s is not None and op_of(s) in scores for s in sides]
        return found.index(True) if found.count(True) == 1 else None

    def written(self, node: Any) -> Any:
        """softmax(s q k' + m) v written out: heads."""
        weights = self.graph.source(node.args[0])
        if weights is None or op_of(weights) not in ("softmax", "_softmax"):
            return None
        if weights.args[1] not in (-1, weights.meta["val"].ndim - 1):
            return None
        if not self.graph.is_active(self.graph.value(node.args[1])):
            return None
        value = node.args[1].meta["val"]
        if not isinstance(value.shape[-1], int) or value.ndim < 2:
            return None
        self.attended.add(self.graph.values[weights.name].name)
        logits = self._peeled(weights.args[0])
        few = logits.highest > -FORBIDS  # such numbers compare with products: both must be there
        found = None if few else self._scores(logits)
        if found is None or not isinstance(found[0].meta["val"].shape[-1], int):
            given, added = self._shown(node, logits), logits.added
            return self._chosen(node, given, added, self.graph.value(node.args[1]), value.shape[-1])
        q, k, scale = found
        query = self.graph.value(q)
        if logits.highest > torch.finfo(self.graph.dtype).min / 2:
            query = self._asking(node, query, logits.hidden)
        piece = self._heads(node, scale, q.meta["val"].shape[-1], value.shape[-1], causal=False)
        keys = self.graph.call(
            node, "aten.transpose.int", self.graph.value(k), -2, -1, suffix=".keys"
        )
        added = logits.added
        given = (query, keys, self.graph.value(node.args[1]))
        return self.graph.on(node, piece, *given, *([] if added is None else [added]))

    def _shown(self, node: fx.Node, logits: _Logits) -> Any:
        """0 in place of logits that are replaced."""
        given = self.graph.value(logits.node)
        if logits.hidden is None:
            return given
        where = given, logits.hidden, 0.0
        return self.graph.call(node, "aten.masked_fill.Scalar", *where, suffix=".shown")

    def _asking(self, node: fx.Node, query: Any, hidden: Any) -> Any:
        """Queries, and 0 for those all of whose logits are replaced: they weigh all tokens alike.

        Of others, tokens whose logits are replaced by numbers of ``FORBIDS`` weigh nothing.
        """
        none = self.graph.call(node, "aten.all.dim", hidden, -1, True, suffix=".none")
        where = query, none, 0.0
        return self.graph.call(node, "aten.masked_fill.Scalar", *where, suffix=".asking")

    def _chosen(
        self, node: fx.Node, logits: Any, added: Any, v: Any, width: int, suffix: str = ""
    ) -> Ref:
        """softmax(logits + mask) v: a head whose keys are the logits of its one query, 1."""
        piece = self._heads(node, 1.0, 1, width, causal=False)
        keys = self.graph.call(node, "aten.unsqueeze.default", logits, -1, suffix=".keys")
        values = self.graph.call(node, "aten.unsqueeze.default", v, -3, suffix=".values")
        if added is not None:
            added = self.graph.call(node, "aten.unsqueeze.default", added, -2, suffix=".mask")
        one = Const(torch.ones(1, 1, dtype=torch.float64))
        given = (one, keys, values) if added is None else (one, keys, values, added)
        out = self.graph.on(node, piece, *given, suffix=".head")
        return self.graph.call(node, "aten.select.int", out, -2, 0, suffix=suffix)

    def alone(self, results: Any) -> None:
        """A softmax whose weights no head has used is a head on the unit vectors."""
        needed = {n.name for n in live(self.graph.nodes, results)}
        for plain in list(self.graph.nodes):
            lone = plain.short in ("softmax", "_softmax") and plain.active and plain.name in needed
            if not lone or plain.name in self.attended:
                continue
            at = self.graph.nodes.index(plain)
            before, after = self.graph.nodes[:at], self.graph.nodes[at + 1 :]
            self.graph.nodes = []
            self._one_alone(self.graph.sources[plain.name])
            self.graph.nodes = [*before, *self.graph.nodes, *after]

    def _one_alone(self, node: fx.Node) -> None:
        out = node.meta["val"]
        dim, last = int(node.args[1]) % out.ndim, out.ndim - 1  # type: ignore[arg-type]
        logits = self._peeled(node.args[0])
        if logits.node.meta["val"].shape != out.shape or dim != last:
            logits = _Logits(node.args[0])
        x, added = self._shown(node, logits), logits.added
        if dim != last:
            x = self.graph.call(node, "aten.transpose.int", x, dim, -1, suffix=".turned")
        size = out.shape[dim]
        if isinstance(size, int):
            unit: Any = Const(torch.eye(size, dtype=torch.float64))
        else:
            count = self.graph.call(node, "aten.sym_size.int", x, -1, suffix=".size")
            unit = self.graph.call(
                node, "aten.eye.default", count, suffix=".unit", dtype=self.graph.dtype
            )
            size = int(size.node.hint)
        if dim == last:
            self._chosen(node, x, added, unit, size)
            return
        inner = self._chosen(node, x, added, unit, size, suffix=".last")
        self.graph.call(node, "aten.transpose.int", inner, dim, -1)
