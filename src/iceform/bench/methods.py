"""Methods that look for circuits, as short as they can be said: scores of edges on pairs.

A score stands for the effect of letting the edge alone carry the corrupt run's value, as a share
of what the whole corruption does to the metric: (pairs, edges), or (edges) where a method has one
score for all pairs. Methods of nodes give an edge the smaller of what its two ends have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from iceform.bench.building import CompiledCase, Pairs
from iceform.bench.network import Edge, HeadsNetwork, PatchedRuns, metric_rows

_IG_STEPS = 5
_THRESHOLDS = (0.1, 0.01)  # of ACDC, shares of the metric

Method = Callable[[CompiledCase, Pairs], Tensor]


class PairedRuns:
    """Both runs of all pairs by writer, and the metric, without radii."""

    def __init__(self, network: HeadsNetwork, pairs: Pairs) -> None:
        self.network = network
        self.rows = metric_rows(network, pairs.words)
        self.starts = network.start(pairs.clean), network.start(pairs.corrupt)
        self.clean, self.corrupt = (written(network, start) for start in self.starts)
        self.delta = self.corrupt - self.clean  # (writers, pairs, tokens, width)
        ends = [self.metric(parts.sum(0)) for parts in (self.clean, self.corrupt)]
        self.base, self.gap = ends[0], ends[0] - ends[1]

    @cached_property
    def places(self) -> Tensor:
        """Of every edge in a mask: by layer, map, head and writer, and last those to the logits."""
        net = self.network
        end = net.layers * 3 * net.heads * net.writers
        return torch.tensor([
            e.writer + (
                end if e.layer is None
                else ((e.layer * 3 + e.reader) * net.heads + e.head) * net.writers
            )
            for e in net.edges
        ])  # fmt: skip

    def metric(self, stream: Tensor) -> Tensor:
        """Of the last stream, per pair."""
        return (self.network.normed(stream[..., -1, :]) * self.rows).sum(-1)

    def share(self, value: Tensor) -> Tensor:
        """As a share of the gap."""
        return (value - self.base) / self.gap


def written(network: HeadsNetwork, stream: Tensor) -> Tensor:
    """What every writer adds to the stream, (writers, pairs, tokens, width)."""
    parts = [stream]
    for layer in range(network.layers):
        each = network.outputs(layer, (stream[:, None],) * 3)
        parts += list(each.transpose(0, 1))
        stream = stream + each.sum(1)
    return torch.stack(parts)


def masked(runs: PairedRuns, kept: Tensor) -> Tensor:
    """The metric's share when only kept edges carry the clean run's values: 0 clean, -1 corrupt.

    Edges that the network does not count, of dead heads, carry nothing.
    """
    net = runs.network
    flat = torch.zeros(net.layers * 3 * net.heads * net.writers + net.writers, dtype=torch.float64)
    flat[runs.places[~kept]] = 1.0
    last = flat[-net.writers :]
    out = flat[: -net.writers].view(net.layers, 3, net.heads, net.writers)
    parts = [runs.starts[0]]
    for layer in range(net.layers):
        now = torch.stack(parts)
        apart = runs.corrupt[: len(now)] - now
        moved = torch.einsum("xhu,ubtd->xbhtd", out[layer][..., : len(now)], apart)
        each = net.outputs(layer, list(now.sum(0)[:, None] + moved))
        parts += list(each.transpose(0, 1))
    now = torch.stack(parts)
    stream = now.sum(0) + torch.einsum("u,ubtd->btd", last, runs.corrupt - now)
    return runs.share(runs.metric(stream))


def _gradients(runs: PairedRuns, start: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of the metric's share, at every reader's input (3, pairs, heads, ...) and writer's output.

    The last of the readers are the logits, (pairs, ...).
    """
    net, stream = runs.network, start
    inputs, outputs = [], []
    for layer in range(net.layers):
        wide = stream[None, :, None].expand(3, -1, net.heads, -1, -1).clone().requires_grad_(True)
        wide.retain_grad()
        each = net.outputs(layer, list(wide))
        each.retain_grad()
        inputs.append(wide)
        outputs.append(each)
        stream = stream + each.sum(1)
    stream.retain_grad()
    inputs.append(stream)
    (runs.metric(stream) / runs.gap).sum().backward()
    return [_grad(x) for x in inputs], [_grad(x) for x in outputs]


def _grad(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad


def exact_patching(case: CompiledCase, pairs: Pairs) -> Tensor:
    """The effects themselves, every edge by a run of its own."""
    runs = PatchedRuns(case.network, pairs.clean, pairs.corrupt, pairs.words)
    found = {edge: ball.center for edge, ball in runs.edge_effects(case.network.edges)}
    return torch.stack([found[edge] for edge in case.network.edges], 1)


def _by_edge(case: CompiledCase, scores: Callable[[Edge], Tensor]) -> Tensor:
    return torch.stack([scores(edge) for edge in case.network.edges], -1).detach()


def edge_attribution(case: CompiledCase, pairs: Pairs, steps: int = 0) -> Tensor:
    """EAP: the difference of the writer's outputs times the gradient at the reader's input.

    With ``steps`` it is EAP-IG (inputs): the gradient's mean between the two embeddings.
    """
    runs = PairedRuns(case.network, pairs)
    clean, corrupt = runs.starts
    points = [clean] if not steps else [
        clean + (corrupt - clean) * k / steps for k in range(steps)
    ]  # fmt: skip
    each = [_gradients(runs, point)[0] for point in points]
    mean = [torch.stack(layer).mean(0) for layer in zip(*each, strict=True)]

    def score(edge: Edge) -> Tensor:
        moved: Tensor = runs.delta[edge.writer] * _at(mean, edge)
        return moved.sum((-1, -2))

    return _by_edge(case, score)


def _at(readers: list[Tensor], edge: Edge) -> Tensor:
    """The gradient at the reader of an edge."""
    if edge.layer is None:
        return readers[-1]
    return readers[edge.layer][edge.reader, :, edge.head]


def integrated_edge_attribution(case: CompiledCase, pairs: Pairs) -> Tensor:
    """EAP-IG with five steps."""
    return edge_attribution(case, pairs, _IG_STEPS)


def gradient_norm(case: CompiledCase, pairs: Pairs) -> Tensor:
    """The length of the gradient at the reader times that of the writer's difference."""
    runs = PairedRuns(case.network, pairs)
    readers, _ = _gradients(runs, runs.starts[0])

    def score(edge: Edge) -> Tensor:
        size: Tensor = runs.delta[edge.writer].norm(dim=(-1, -2))
        steep: Tensor = _at(readers, edge).norm(dim=(-1, -2))
        return size * steep

    return _by_edge(case, score)


def _by_node(case: CompiledCase, nodes: dict[int, float]) -> Tensor:
    heads = case.network.heads

    def end(edge: Edge) -> float:
        if edge.layer is None:
            return math.inf
        return nodes[1 + edge.layer * heads + edge.head]

    each = [min(nodes.get(e.writer, math.inf), end(e)) for e in case.network.edges]
    return torch.tensor([1.0 if math.isinf(x) else x for x in each], dtype=torch.float64)


def activation_patching(case: CompiledCase, pairs: Pairs) -> Tensor:
    """Heads whose output is the corrupt run's, one at a time."""
    runs = PatchedRuns(case.network, pairs.clean, pairs.corrupt, pairs.words)
    found = runs.node_effects("resample")
    return _by_node(case, {u: float(b.center.abs().mean()) for u, b in found.items()})


def attribution_patching(case: CompiledCase, pairs: Pairs) -> Tensor:
    """The same by gradients: a head's difference times the gradient at its output."""
    runs, heads = PairedRuns(case.network, pairs), case.network.heads
    _, writers = _gradients(runs, runs.starts[0])
    found = {}
    for u in range(1, case.network.writers):
        layer, head = divmod(u - 1, heads)
        change = (runs.delta[u] * writers[layer][:, head]).sum((-1, -2))
        found[u] = float(change.abs().mean())
    return _by_node(case, found)


def composition(case: CompiledCase, pairs: Pairs) -> Tensor:
    """No prompts at all: the size of the product of the writer's and the reader's matrices."""
    del pairs
    net = case.network

    def score(edge: Edge) -> Tensor:
        rows = net.unembedding if edge.layer is None else net.rows(edge)
        source = net.columns(edge.writer)
        both = (source.norm() * rows.norm()).clamp_min(torch.finfo(torch.float64).tiny)
        size: Tensor = (source @ rows.T).norm() / both
        return size

    return _by_edge(case, score)


def automatic_discovery(case: CompiledCase, pairs: Pairs) -> Tensor:
    """ACDC at several thresholds: an edge's score is the largest at which it was kept."""
    runs, count = PairedRuns(case.network, pairs), len(case.network.edges)
    scores = torch.zeros(count, dtype=torch.float64)
    kept = torch.ones(count, dtype=torch.bool)
    for threshold in sorted(_THRESHOLDS):
        now = float(masked(runs, kept).abs().mean())
        for i in reversed(range(count)):
            if not kept[i]:
                continue
            kept[i] = False
            tried = float(masked(runs, kept).abs().mean())
            if tried - now < threshold:
                now = tried
            else:
                kept[i] = True
        scores[kept] = threshold
    return scores


def random_scores(case: CompiledCase, pairs: Pairs, seed: int = 0) -> Tensor:
    """No method at all."""
    del pairs
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(case.network.edges), generator=generator, dtype=torch.float64)


METHODS: dict[str, Method] = {
    "exact patching": exact_patching,
    "activation patching": activation_patching,
    "attribution patching": attribution_patching,
    "EAP": edge_attribution,
    "EAP-IG": integrated_edge_attribution,
    "ACDC": automatic_discovery,
    "gradient norm": gradient_norm,
    "composition": composition,
    "random": random_scores,
}
# Those whose scores mean effects, signed and in the metric's own unit.
SIGNED = ("exact patching", "EAP", "EAP-IG")
