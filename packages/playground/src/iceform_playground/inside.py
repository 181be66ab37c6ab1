"""One prompt of a run, looked into: tokens by features, attention, margins, leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from iceform.attention import MARGIN, LayerTrace, Trace, trace_network
from iceform.backends import bind
from iceform.errors import IceformError, ProgramError
from iceform.functions import Loss
from iceform_estimators.algorithms import Algorithm, Descent, KernelRegression, Places, sharpest
from iceform_estimators.machine import Machine, Rows, whitened_at
from iceform_playground import questions as asked
from iceform_playground.algorithms import descends, loss_of
from iceform_playground.answers import Attention, InsideAnswer, Margins, PromptAnswer, numbers
from iceform_playground.fitting import Setting, the_machine, walk
from iceform_playground.paths import LookedProblem, whitened
from iceform_playground.task import Pulse

_FEW_TOKENS = 17  # per sample, in the networks that are only looked into
_FEW_SAMPLES = 4
_FEW_FEATURES = 3
_FLOOR = 1e-40  # attention below this is drawn as this
_LARGEST_W = 2.0  # coefficients that the two-layer machine is sized for


def inside(question: asked.InsideQuestion, pulse: Pulse) -> InsideAnswer:
    """The prompt that a network reads for a few of the points, and what it does with it."""
    setting = Setting.of(question)
    look = {"stream": _stream, "two_layers": _two_layers}[question.network]
    return _told(look(setting, question, pulse), question)


@dataclass(frozen=True, eq=False)
class _View:
    """A traced network.

    Attributes
    ----------
    kept
        Tokens that are shown; the others are hidden from every query.
    rows
        Queries that are shown.
    blocks
        Names of blocks of tokens, and the block of every token (-1 for none).
    margin
        M between blocks; None where there are none.
    literal
        Difference of the literal output from the fast path's; None where M was changed, which no
        fast path takes.
    """

    digest: str
    trace: Trace
    kept: Tensor
    rows: Tensor
    blocks: tuple[Sequence[str], Tensor]
    literal: float | None
    margin: float | None = None


def _told(view: _View, question: asked.InsideQuestion) -> InsideAnswer:
    layers = [layer for layer in view.trace if layer.labels]
    if question.layer >= len(layers):
        raise ProgramError(
            f"layer {question.layer} was asked for, this network has {len(layers)}; "
            f"layers are counted from 0"
        )
    layer = layers[question.layer]
    if question.head >= len(layer.labels):
        raise ProgramError(
            f"head {question.head} was asked for, this layer has {len(layer.labels)}; "
            f"heads are counted from 0"
        )
    return InsideAnswer(
        digest=view.digest,
        prompt=_prompt(view),
        attention=_attention(view, layers, question),
        margins=_margins(view, layer, question.head),
        literal=view.literal,
    )


def _prompt(view: _View) -> PromptAnswer:
    tokens = view.trace.tokens[view.kept]
    return PromptAnswer(
        roles=[view.trace.roles[i] for i in view.kept.tolist()],
        features=view.trace.features.names(),
        values=[numbers(row) for row in tokens.tolist()],
        hidden=len(view.trace.tokens) - len(view.kept),
    )


def _attention(
    view: _View, layers: Sequence[LayerTrace], question: asked.InsideQuestion
) -> Attention:
    layer = layers[question.layer]
    weights = layer.attention[question.head][view.rows][:, view.kept]
    return Attention(
        layers=[list(each.labels) for each in layers],
        layer=question.layer,
        head=question.head,
        queries=[layer.queries[i] for i in view.rows.tolist()],
        keys=[layer.keys[i] for i in view.kept.tolist()],
        weights=[numbers(row) for row in weights.tolist()],
    )


def _margins(view: _View, layer: LayerTrace, head: int) -> Margins:
    names, block = view.blocks
    weights = layer.attention[head][view.rows]
    mass = torch.stack([weights[:, block == b].sum(1) for b in range(len(names))], 1)
    between, gaps, leaks = _gaps(view, layer, head)
    return Margins(
        queries=[layer.queries[i] for i in view.rows.tolist()],
        gaps=gaps.tolist(),
        leaks=leaks.tolist(),
        between=between,
        margin=view.margin,
        mass=[numbers(row) for row in mass.clamp(min=_FLOOR).log10().tolist()],
        blocks=list(names),
    )


def _gaps(view: _View, layer: LayerTrace, head: int) -> tuple[str, Tensor, Tensor]:
    """Margins and leaks: between blocks where the queries have one, else between two keys."""
    if layer.own is not None and bool(layer.own[view.rows].any()):
        return "blocks", layer.margins[head][view.rows], layer.leak[head][view.rows]
    first, second = layer.scores[head][view.rows].topk(2, -1).values.unbind(-1)
    return "keys", first - second, 1 - layer.attention[head][view.rows].amax(-1)


def _chosen(setting: Setting, first: int, most: int) -> Tensor:
    """Numbers of the points that a prompt holds."""
    rows = setting.source.rows
    first = min(first, max(0, rows - most))
    return torch.arange(first, min(first + most, rows))


# ---------------------------------------------------------------------------------------------
# the machine that ran
# ---------------------------------------------------------------------------------------------


def _stream(setting: Setting, question: asked.InsideQuestion, pulse: Pulse) -> _View:
    if descends(setting.algorithm):
        return _look_ups(setting, question, pulse)
    if not _averages_samples(setting.algorithm):
        raise ProgramError(
            f"{setting.entry.title} has no prompt to show here; choose an algorithm that looks a "
            "loss up or averages samples"
        )
    return _averages(setting, question)


def _averages_samples(algorithm: Algorithm) -> bool:
    """Whether its prompt holds all samples."""
    return algorithm.family in ("average", "neighbours", "vote")


def _look_ups(setting: Setting, question: asked.InsideQuestion, pulse: Pulse) -> _View:
    machine, problem = the_machine(), setting.problem()
    w = _coefficients_at(setting, problem, question.frame, pulse)
    chosen = _chosen(setting, question.first, machine.samples)
    samples, labels, _ = problem.encoding(setting.source.x[chosen], setting.source.y[chosen])
    if whitened(setting.question.running, setting.thresholds(problem.scaling)):
        coordinates = whitened_at(problem, w)
        samples, w = samples @ coordinates.turned, coordinates.of(w)
    z = samples @ w - labels
    table = problem.table.on(max(problem.covered, float(z.abs().max())))
    prompt = machine.start().look_ups(table, samples, labels, w)
    margin = MARGIN if question.margin is None else question.margin
    network = machine.network
    if margin != MARGIN:
        network = replace(prompt.layout, margin=margin).build()
    roles = _lookup_roles(table.grid.nodes, chosen)
    trace = trace_network(network, prompt.tokens[0], roles=roles)
    block = torch.arange(machine.samples).repeat_interleave(machine.tokens)
    within = torch.arange(len(block)) % machine.tokens < table.tokens
    used = within & (block < len(chosen))
    rows = len(block) + torch.arange(len(chosen))
    block = torch.cat([block, torch.full((2 * machine.samples,), -1)])
    literal = trace.output[: len(chosen)]
    literal = torch.cat([literal[:, : samples.shape[1]], literal[:, -1:]], 1)
    off = None
    if margin == MARGIN:
        off = float((literal - bind(machine.network, "fused").run(prompt)).abs().max())
    return _View(
        digest=network.digest,
        trace=trace,
        kept=torch.cat([used.nonzero()[:, 0], rows]),
        rows=rows,
        blocks=([f"point {i}" for i in chosen.tolist()], block),
        literal=off,
        margin=margin,
    )


def _coefficients_at(setting: Setting, problem: LookedProblem, frame: int, pulse: Pulse) -> Tensor:
    """Scaled coefficients after so many steps, or where the run ended before."""
    w = problem.start()
    try:
        for index, (here, _) in enumerate(walk(setting, problem, setting.exact())):
            pulse()
            w = here
            if index >= frame:
                break
    except IceformError:  # the fit's own answer says why
        pass
    return w


def _lookup_roles(nodes: Tensor, chosen: Tensor) -> list[str]:
    machine = the_machine()
    roles = []
    for b in range(machine.samples):
        point = f"point {int(chosen[b])}" if b < len(chosen) else "no point"
        for k in range(machine.tokens):
            place = f"grid z = {float(nodes[k]):.4g}" if k < len(nodes) else "unused"
            roles.append(f"{point}, {place}")
    return (
        roles
        + [
            f"query of point {int(chosen[b])}" if b < len(chosen) else "unused query"
            for b in range(machine.samples)
        ]
        + ["unused query"] * machine.samples
    )


def _averages(setting: Setting, question: asked.InsideQuestion) -> _View:
    machine, source = the_machine(), setting.source
    centre = source.x.mean(0)
    x, values = source.x - centre, _read_of(setting)
    asks = torch.linspace(-0.75, 0.75, machine.samples, dtype=torch.float64)
    points = torch.stack([asks, torch.zeros_like(asks)], 1)[:, : source.dim] - centre
    gamma = _sharpness(setting, x, points)
    tokens = machine.start().kernel(x, values, points, gamma).tokens[0]
    seen = len(x)
    roles = [f"point {i}" for i in range(seen)]
    roles += ["unused" for _ in range(len(tokens) - machine.samples - seen)]
    roles += [f"query at x = {float(a):.3g}" for a in asks]
    rows = len(tokens) - machine.samples + torch.arange(machine.samples)
    block = torch.full((len(tokens),), -1)
    block[:seen] = source.y.gt(source.y.median()).long()
    fast = machine.average(x, values, points, gamma)
    trace = trace_network(machine.network, tokens, roles=roles)
    return _View(
        digest=machine.digest,
        trace=trace,
        kept=torch.cat([torch.arange(seen), rows]),
        rows=rows,
        blocks=(["lower half of the labels", "upper half"], block),
        literal=float((trace.output[machine.samples :, : fast.shape[1]] - fast).abs().max()),
    )


def _read_of(setting: Setting) -> Tensor:
    """The labels, or what neighbours are found by: the samples' numbers."""
    source = setting.source
    if isinstance(setting.algorithm, KernelRegression):
        return source.y[:, None]
    return Places.of(source.rows, torch.float64).values(source.x)[:, :2]


def _sharpness(setting: Setting, x: Tensor, points: Tensor) -> float:
    """The kernel's gamma, or the largest there is: then a query reads its nearest sample."""
    if isinstance(setting.algorithm, KernelRegression):
        return setting.algorithm.gamma_for(setting.source)
    radius, far = (float(part.norm(dim=1).max()) for part in (x, points))
    return sharpest(radius, far, x.shape[1])


# ---------------------------------------------------------------------------------------------
# the machine that is given a whole head
# ---------------------------------------------------------------------------------------------


def _two_layers(setting: Setting, question: asked.InsideQuestion, pulse: Pulse) -> _View:
    """A whole target head in the prompt: one layer multiplies it out, the other attends."""
    x, y, loss, chosen = _small(setting, question)
    pulse()
    program = Descent(loss, w_bound=_LARGEST_W, tokens=_FEW_TOKENS)
    machine = _two_layer_machine(x.shape[1], len(x))
    trace = machine.trace(program, x, y)
    target = machine.padded(program.targets(x, y))
    count = len(program.targets(x, y).tokens)
    kept = torch.arange(count)
    grid = (count - len(x)) // len(x)
    block = torch.full((len(target.tokens),), -1)
    block[: count - len(x)] = torch.arange(count - len(x)) // grid
    fast, _ = machine.attend(program.targets(x, y))
    literal = trace.output[target.queries, : fast.shape[1]]
    return _View(
        digest=machine.digest,
        trace=trace,
        kept=kept,
        rows=kept,
        blocks=([f"point {i}" for i in chosen.tolist()], block),
        literal=float((literal - fast).abs().max()),
    )


@lru_cache(maxsize=8)
def _two_layer_machine(dim: int, samples: int) -> Rows:
    names = ("squared", "absolute", "huber", "quantile", "logistic", "squared_hinge", "hinge")
    programs = [Descent(n, w_bound=_LARGEST_W, tokens=_FEW_TOKENS) for n in names]
    return Machine.for_programs(programs, dim, samples)


def _small(setting: Setting, question: asked.InsideQuestion) -> tuple[Tensor, Tensor, Loss, Tensor]:
    """A few points with few features, their labels, the loss, and which points they are."""
    loss = loss_of(question.model)
    chosen = _chosen(setting, question.first, _FEW_SAMPLES)
    x = setting.source.x[chosen][:, :_FEW_FEATURES]
    return x, setting.source.y[chosen], loss, chosen
