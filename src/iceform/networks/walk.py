"""How an error travels through a network of a known shape.

Sequences of pieces, torch's encoder and BERT-style encoders are known; for any other shape the
pieces have their certificates and the network as a whole has none.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from iceform.networks.convert import EncoderLayer, MeanPooling, MultiHead, Pooling, SelfAttention
from iceform.networks.pieces import Activation, EmbeddingMap, LinearMap, Norm, Span

__all__ = ["Route", "UnknownShapeError", "first_span", "walk"]


class UnknownShapeError(Exception):
    """A container whose order of maps is not known."""


class Route:
    """One walk through a network: at every piece, settle ranges if asked, then carry the error.

    Parameters
    ----------
    unit
        Unit roundoff, for residual additions.
    tokens
        The longest sequence.
    settle
        Fix every piece's range from the span that reaches it.
    """

    def __init__(self, unit: float, tokens: int, *, settle: bool = False) -> None:
        self.unit, self.tokens, self.settle = unit, tokens, settle
        self.errors: dict[str, float] = {}

    def piece(self, piece: LinearMap | Activation | Norm | Pooling, span: Span) -> Span:
        """Through one piece."""
        if self.settle:
            piece.settle_for(span)
        after = piece.walk(span)
        self.errors[piece.name] = after.error
        return after

    def embedding(self, piece: EmbeddingMap) -> Span:
        """Out of one table of vectors."""
        after = piece.walk()
        self.errors[piece.name] = after.error
        return after

    def heads(self, part: MultiHead | SelfAttention, span: Span) -> Span:
        """Through the maps and the heads of an attention, not its output map."""
        for linear in part.maps.values():
            self.piece(linear, span)
        if self.settle:
            part.core.settle_from(part.maps, self.tokens)
        after = part.core.walk(part.maps, span, span)
        self.errors[part.core.name] = after.error
        return after

    def multi_head(self, part: MultiHead, span: Span) -> Span:
        """Through a whole ``nn.MultiheadAttention``."""
        return self.piece(part.out_proj, self.heads(part, span))

    def encoder_layer(self, layer: EncoderLayer, span: Span) -> Span:
        """Through ``nn.TransformerEncoderLayer``, norms first or last."""

        def feed(inner: Span) -> Span:
            inner = self.piece(layer.activation, self.piece(layer.linear1, inner))
            return self.piece(layer.linear2, inner)

        if layer.norm_first:
            inner = self.multi_head(layer.self_attn, self.piece(layer.norm1, span))
            span = span.plus(inner, self.unit)
            return span.plus(feed(self.piece(layer.norm2, span)), self.unit)
        inner = self.multi_head(layer.self_attn, span)
        span = self.piece(layer.norm1, span.plus(inner, self.unit))
        return self.piece(layer.norm2, span.plus(feed(span), self.unit))

    # ----------------------------------------------------------------------------- BERT

    def bert(self, model: nn.Module) -> Span:
        """Through embeddings and encoder of a BERT-style model."""
        span = self._bert_embeddings(model.embeddings)  # type: ignore[arg-type]
        project = getattr(model, "embeddings_project", None)
        if isinstance(project, LinearMap):
            span = self.piece(project, span)
        for layer in model.encoder.layer:  # type: ignore[union-attr]
            span = self._bert_layer(layer, span)
        pooler = getattr(model, "pooler", None)
        if pooler is not None:
            # The states are returned as well: the bound is for both.
            pooled = self.piece(pooler.activation, self.piece(pooler.dense, span))
            span = replace(span, error=max(span.error, pooled.error))
        return span

    def _bert_embeddings(self, part: nn.Module) -> Span:
        names = ("word_embeddings", "token_type_embeddings", "position_embeddings")
        tables = [
            getattr(part, n) for n in names if isinstance(getattr(part, n, None), EmbeddingMap)
        ]
        if not tables or not isinstance(part.LayerNorm, Norm):
            raise UnknownShapeError(type(part).__name__)
        span = self.embedding(tables[0])
        for table in tables[1:]:
            span = span.plus(self.embedding(table), self.unit)
        return self.piece(part.LayerNorm, span)

    def _bert_layer(self, layer: nn.Module, span: Span) -> Span:
        attention, output = layer.attention, layer.output
        inner = self.heads(attention.self, span)  # type: ignore[arg-type, union-attr]
        inner = self.piece(attention.output.dense, inner)  # type: ignore[arg-type, union-attr]
        norm = attention.output.LayerNorm  # type: ignore[union-attr]
        span = self.piece(norm, span.plus(inner, self.unit))  # type: ignore[arg-type]
        middle = layer.intermediate
        inner = self.piece(middle.dense, span)  # type: ignore[arg-type, union-attr]
        inner = self.piece(middle.intermediate_act_fn, inner)  # type: ignore[arg-type, union-attr]
        inner = self.piece(output.dense, inner)  # type: ignore[arg-type, union-attr]
        return self.piece(output.LayerNorm, span.plus(inner, self.unit))  # type: ignore[arg-type, union-attr]


def _is_bert(module: nn.Module) -> bool:
    layers = getattr(getattr(module, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(module, "embeddings"):
        return False
    return all(
        isinstance(getattr(getattr(x, "attention", None), "self", None), SelfAttention)
        and isinstance(getattr(getattr(x, "intermediate", None), "dense", None), LinearMap)
        for x in layers
    )


def walk(module: nn.Module, span: Span | None, route: Route) -> Span:
    """The span behind a module; ``span`` is None where ids go in."""
    if isinstance(module, MeanPooling) and isinstance(module.pooling, Pooling):
        return route.piece(module.pooling, walk(module.encoder, span, route))
    if isinstance(module, EmbeddingMap):
        return route.embedding(module)
    if _is_bert(module):
        return route.bert(module)
    if isinstance(module, nn.Sequential):
        for child in module:
            span = walk(child, span, route)
        if span is None:
            raise UnknownShapeError("an empty sequence")
        return span
    if span is None:
        raise UnknownShapeError(type(module).__name__)
    return _walk_stream(module, span, route)


def _walk_stream(module: nn.Module, span: Span, route: Route) -> Span:
    if isinstance(module, LinearMap | Activation | Norm):
        return route.piece(module, span)
    if isinstance(module, nn.Identity | nn.Dropout):
        return span
    if isinstance(module, MultiHead):
        return route.multi_head(module, span)
    if isinstance(module, EncoderLayer):
        return route.encoder_layer(module, span)
    if isinstance(module, nn.TransformerEncoder):
        for layer in module.layers:
            span = walk(layer, span, route)
        return span if module.norm is None else walk(module.norm, span, route)
    raise UnknownShapeError(type(module).__name__)


def first_span(module: nn.Module) -> Span | None:
    """What a settled network's first piece allows at its input; None where ids go in."""
    for part in module.modules():
        if isinstance(part, EmbeddingMap):
            return None
        if isinstance(part, LinearMap):
            return Span(part.norm, part.norm, 0.0, part.in_features)
        if isinstance(part, Norm):
            return Span(part.norm, part.norm, 0.0, part.width)
    return None
