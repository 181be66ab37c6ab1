r"""What networks do, side by side: errors, distances, probes, transplants.

**Probe.** A linear map from the state of an x token, behind every layer, to what the algorithm
would hold there (weights, or the prediction), fitted on half of the prompts; its penalty is the
best of a few on a quarter, and R^2 is of the last quarter.

**Where.** Prompts are drawn on the CPU and go to the networks' device, which does all the rest:
``{name: network.to("cuda")}``.

**Transplant.** Contexts 1 and 2 (Bayes' weights w1, w2), queries q and q'. What changes in the
state of the token q from context 1 to 2 is added to the state of the token q' in context 1. If that
state holds weights, the answer moves by (w2 - w1) . q'; if it holds a prediction, by (w2 - w1) . q.
The two are uncorrelated for independent queries, and the table has the answer's correlation with
each.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from iceform.errors import ProgramError, ShapeError
from iceform.lab.algorithms import (
    PrefixDescent,
    least_squares_weights,
    predicted,
    ridge_weights,
    stable_damping,
)
from iceform.lab.model import TrainableNetwork
from iceform.lab.shape import GPT2Shape
from iceform.lab.tables import Cell, LabTable
from iceform.lab.tasks import Examples, InContextTask
from iceform.lab.training import TrainedCell
from iceform.validation import check_choice, check_size

Networks = Mapping[str, TrainableNetwork]
PROBED = ("w", "prediction")
SHIFTS: Mapping[str, Mapping[str, Any]] = {
    "as it was": {},
    "x doubled": {"x_scale": 2.0},
    "x halved": {"x_scale": 0.5},
    "w doubled": {"w_scale": 2.0},
    "x uneven": {"decay": 1.0},
    "noise 1": {"noise": 1.0},
}


def _shape_of(networks: Networks) -> GPT2Shape:
    shapes = {network.shape for network in networks.values()}
    if len(shapes) != 1:
        raise ShapeError(f"networks are compared in one shape, got {len(shapes)}: {shapes}")
    return shapes.pop()


def _prompts(
    networks: Networks, task: InContextTask, count: int, seed: int, examples: int | None = None
) -> Examples:
    shape = _shape_of(networks)
    if task.dim != shape.dim:
        raise ShapeError(f"the task has dim {task.dim}, the networks {shape.dim}")
    source = torch.Generator().manual_seed(seed)
    drawn = task.draw(check_size("prompts", count), examples or shape.examples, source)
    device = next(iter(networks.values())).tensors["wte.weight"].device
    return Examples(*(t.to(device) for t in drawn))


@torch.no_grad()
def _answers(network: TrainableNetwork, x: Tensor, y: Tensor) -> Tensor:
    return network(x, y).double()


def bayes_weights(task: InContextTask, x: Tensor, y: Tensor) -> Tensor:
    """The posterior mean of w at every x; the weights of least norm where there is no noise."""
    if not task.is_linear:
        raise ProgramError(f"Bayes' weights are known for linear and noisy tasks, not {task.kind}")
    if not task.penalty:
        return least_squares_weights(x, y)
    return ridge_weights(x, y, task.penalty)


# -------------------------------------------------------------------------------------------------
# training
# -------------------------------------------------------------------------------------------------


def curves(cells: Sequence[TrainedCell]) -> LabTable:
    """Held-out errors along training, of :func:`train`'s cells.

    Examples
    --------
    >>> network = random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8))
    >>> cell = TrainedCell("random", 1e-3, 0, [(0, 1.0), (50, 0.4)], [0.4], network)
    >>> curves([cell]).column("error")
    [1.0, 0.4]
    """
    rows: list[dict[str, Cell]] = [
        {"network": _label(cell), "start": cell.start, "lr": cell.lr, "seed": cell.seed,
         "step": step, "error": error}
        for cell in cells
        for step, error in cell.curve
    ]  # fmt: skip
    return LabTable("held-out error", tuple(rows), "step", "error", "network")


def ends(cells: Sequence[TrainedCell], reached: float) -> LabTable:
    """By start and rate: the last error over the seeds, and the steps to an error of ``reached``.

    Low and high are the least and the greatest of the seeds. Steps are of the median seed, None
    where most never get there.

    Examples
    --------
    >>> network = random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8))
    >>> cell = TrainedCell("random", 1e-3, 0, [(0, 1.0), (50, 0.4)], [0.4], network)
    >>> ends([cell], reached=0.5).column("steps to 0.5")
    [50]
    """
    rows: list[dict[str, Cell]] = []
    for (start, lr), group in groupby(cells, key=lambda cell: (cell.start, cell.lr)):
        each = list(group)
        errors = [cell.error for cell in each]
        steps = [cell.steps_to(reached) for cell in each]
        never = max(cell.curve[-1][0] for cell in each) + 1
        middle = statistics.median_low([never if s is None else s for s in steps])
        rows.append(
            {
                "start": start, "lr": lr, "seeds": len(each), "error": statistics.fmean(errors),
                "low": min(errors), "high": max(errors),
                f"steps to {reached:g}": None if middle == never else middle,
            }
        )  # fmt: skip
    return LabTable("after training", tuple(rows), "lr", "error", "start")


def _label(cell: TrainedCell) -> str:
    return f"{cell.start}, lr {cell.lr:g}, seed {cell.seed}"


def named(cells: Iterable[TrainedCell]) -> dict[str, TrainableNetwork]:
    """Trained networks by what they are called in tables.

    Examples
    --------
    >>> network = random_network(GPT2Shape(dim=1, layers=1, width=8, heads=1, positions=8))
    >>> list(named([TrainedCell("random", 1e-3, 0, [(0, 1.0)], [1.0], network)]))
    ['random, lr 0.001, seed 0']
    """
    return {_label(cell): cell.network for cell in cells}


# -------------------------------------------------------------------------------------------------
# behaviour
# -------------------------------------------------------------------------------------------------


def by_context(
    networks: Networks, task: InContextTask, *, prompts: int = 256, seed: int = 0
) -> LabTable:
    """Errors by the number of examples seen, with Bayes' where it is known.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> table = by_context(both, InContextTask("noisy", dim=1, noise=0.1), prompts=8)
    >>> sorted(set(table.column("network")))
    ['Bayes', 'dual', 'primal']
    """
    x, y, clean, _ = _prompts(networks, task, prompts, seed)
    found = {name: _answers(network, x, y) for name, network in networks.items()}
    if task.is_linear:
        found["Bayes"] = predicted(bayes_weights(task, x, y), x)
    rows = [
        {"network": name, "examples": k, "error": error}
        for name, answers in found.items()
        for k, error in enumerate((answers - clean).square().mean(0).tolist())
    ]
    return LabTable("error by examples seen", tuple(rows), "examples", "error", "network")


def algorithms_for(task: InContextTask, x: Tensor, y: Tensor, most: int = 32) -> dict[str, Tensor]:
    """Predictions of descent after 1, 2, 4, ... steps, ridge, least squares, and Bayes."""
    damping = stable_damping(task.dim)
    out, count = {}, 1
    while count <= most:
        for mechanism in ("primal", "dual"):
            steps = (0.5,) * count
            out[f"{mechanism} GD-{count}"] = PrefixDescent(steps, damping, mechanism)(x, y)
        count *= 2
    for penalty in (0.5, 1.0, 2.0):
        out[f"ridge {penalty:g}"] = predicted(ridge_weights(x, y, penalty), x)
    out["least squares"] = predicted(least_squares_weights(x, y), x)
    if task.is_linear:
        out["Bayes"] = predicted(bayes_weights(task, x, y), x)
    return out


def nearest(
    networks: Networks, task: InContextTask, *, prompts: int = 256, seed: int = 0
) -> LabTable:
    """How far answers are from algorithms', rms, as a share of the labels'.

    A compiled network's own algorithm is among them, by the name "own".

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> table = nearest(both, InContextTask(dim=1), prompts=8)
    >>> max(table.where(algorithm="own").column("distance")) < 0.05
    True
    """
    x, y, *_ = _prompts(networks, task, prompts, seed)
    labels = float(y.double().square().mean().sqrt())
    exact = algorithms_for(task, x, y)
    rows: list[dict[str, Cell]] = []
    for name, network in networks.items():
        answers = _answers(network, x, y)
        own = {} if network.algorithm is None else {"own": network.algorithm(x, y)}
        for algorithm, values in {**exact, **own}.items():
            distance = float((answers - values).square().mean().sqrt()) / labels
            rows.append({"network": name, "algorithm": algorithm, "distance": distance})
    return LabTable("distance to algorithms", tuple(rows), "algorithm", "distance", "network")


def shifted(
    networks: Networks,
    task: InContextTask,
    shifts: Mapping[str, Mapping[str, Any]] = SHIFTS,
    *,
    prompts: int = 256,
    seed: int = 0,
) -> LabTable:
    """Errors out of distribution, as a share of the labels without noise, mean square.

    ``shifts`` are changes of the task by name; Bayes' error on the changed task is beside them.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> table = shifted(both, InContextTask(dim=1), {"x doubled": {"x_scale": 2.0}}, prompts=8)
    >>> table.column("network")
    ['primal', 'dual', 'Bayes']
    """
    rows: list[dict[str, Cell]] = []
    for shift, changes in shifts.items():
        moved = task.shifted(**changes)
        x, y, clean, _ = _prompts(networks, moved, prompts, seed)
        size = float(clean.double().square().mean())
        found = {name: _answers(network, x, y) for name, network in networks.items()}
        if moved.is_linear:
            found["Bayes"] = predicted(bayes_weights(moved, x, y), x)
        for name, answers in found.items():
            error = float((answers - clean).square().mean()) / size
            rows.append({"network": name, "shift": shift, "error": error})
    return LabTable("error out of distribution", tuple(rows), "shift", "error", "network")


def line(
    first: TrainableNetwork,
    second: TrainableNetwork,
    task: InContextTask,
    *,
    points: int = 11,
    prompts: int = 256,
    seed: int = 0,
) -> LabTable:
    """Errors of the networks on the straight line between two networks' weights.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> line(both["primal"], both["dual"], InContextTask(dim=1), points=3).column("at")
    [0.0, 0.5, 1.0]
    """
    both = {"first": first, "second": second}
    x, y, clean, _ = _prompts(both, task, prompts, seed)
    rows: list[dict[str, Cell]] = []
    for at in torch.linspace(0, 1, check_size("points", points)).tolist():
        mixed = {n: torch.lerp(t, second.tensors[n], at) for n, t in first.tensors.items()}
        answers = _answers(first.with_tensors(mixed, "between"), x, y)
        error = float((answers - clean).square().mean())
        rows.append({"path": f"{first.name} to {second.name}", "at": at, "error": error})
    return LabTable("error on the line between two networks", tuple(rows), "at", "error", "path")


# -------------------------------------------------------------------------------------------------
# mechanism
# -------------------------------------------------------------------------------------------------


def _query(networks: Networks, at: int | None) -> int:
    """Which x is looked at: the last one unless given."""
    shape = _shape_of(networks)
    at = shape.examples - 1 if at is None else at
    if not 1 <= at < shape.examples:
        raise ShapeError(f"at is an example from 1 to {shape.examples - 1}, got {at}")
    return at


def probe(
    networks: Networks,
    task: InContextTask,
    target: str = "w",
    *,
    at: int | None = None,
    prompts: int = 1024,
    seed: int = 0,
) -> LabTable:
    """R^2 of linear probes behind every layer, at the x token with ``at`` examples before it.

    Parameters
    ----------
    networks
        By name, of one shape.
    task
        A linear one: the target is Bayes' weights, or their prediction.
    target
        "w" or "prediction".
    at
        Examples before the token; the most that fit unless given.
    prompts, seed
        How many are drawn, and from what.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> table = probe(both, InContextTask("noisy", dim=1, noise=0.1), "w", prompts=256)
    >>> last = table.where(layer=3)
    >>> last.where(network="primal").column("R2")[0] > last.where(network="dual").column("R2")[0]
    True
    """
    check_choice("target", target, PROBED)
    at = _query(networks, at)
    width = _shape_of(networks).width
    if prompts < 4 * width:
        raise ShapeError(
            f"a probe of {width} numbers needs at least {4 * width} prompts, got {prompts}"
        )
    x, y, *_ = _prompts(networks, task, prompts, seed, at + 1)
    weights = bayes_weights(task, x, y)[:, at]
    wanted = weights if target == "w" else (weights * x[:, at].double()).sum(-1, keepdim=True)
    rows: list[dict[str, Cell]] = []
    for name, network in networks.items():
        with torch.no_grad():
            states = [h[:, 2 * at].double() for h in network.states(x, y)]
        rows += [
            {"network": name, "layer": layer, "R2": _probed(state, wanted)}
            for layer, state in enumerate(states)
        ]
    return LabTable(f"linear probes of {target}", tuple(rows), "layer", "R2", "network")


def _probed(state: Tensor, target: Tensor) -> float:
    """R^2 on the last quarter, of a ridge fitted on the first half and chosen on the third."""
    half, three = len(state) // 2, 3 * len(state) // 4
    spread = state[:half].std(0).clamp(min=torch.finfo(torch.float32).eps)
    inputs = (state - state[:half].mean(0)) / spread
    middle = target[:half].mean(0)
    a, b = inputs[:half], target[:half] - middle
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    maps = [torch.linalg.solve(a.T @ a + half * 10**p * eye, a.T @ b) for p in range(-6, 1)]

    def score(fitted: Tensor, rows: slice) -> float:
        off = (inputs[rows] @ fitted + middle - target[rows]).square().sum()
        return float(1 - off / (target[rows] - target[rows].mean(0)).square().sum())

    best = max(maps, key=lambda fitted: score(fitted, slice(half, three)))
    return score(best, slice(three, None))


def transplant(
    networks: Networks,
    task: InContextTask,
    *,
    layer: int | None = None,
    at: int | None = None,
    prompts: int = 256,
    seed: int = 0,
) -> LabTable:
    """Whether the state before a layer holds weights (primal) or a prediction (dual).

    Parameters
    ----------
    networks
        By name, of one shape.
    task
        A linear one.
    layer
        Before which the state is changed; the last one unless given.
    at
        Examples before the query; the most that fit unless given.
    prompts, seed
        Pairs of contexts that are drawn, and from what.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=4, width=40, heads=4, inner=32, positions=16)
    >>> both = {name: compiled(name, shape) for name in ("primal", "dual")}
    >>> table = transplant(both, InContextTask("noisy", dim=1, noise=0.1), prompts=64)
    >>> table.where(network="primal", mechanism="primal").column("correlation")[0] > 0.8
    True
    """
    shape, at = _shape_of(networks), _query(networks, at)
    layer = shape.layers - 1 if layer is None else layer
    if not 0 <= layer < shape.layers:
        raise ShapeError(f"layer is 0 to {shape.layers - 1}, got {layer}")
    one = _prompts(networks, task, prompts, seed, at + 1)
    two = _prompts(networks, task, prompts, seed + 1, at + 1)
    moved = (bayes_weights(task, two.x, two.y) - bayes_weights(task, one.x, one.y))[:, at]
    query, other = one.x[:, at], two.x[:, at]
    rows: list[dict[str, Cell]] = []
    for name, network in networks.items():
        before = _state(network, one, query, layer)
        after = _state(network, two, query, layer)
        host = _state(network, one, other, layer)
        changed = host.clone()
        changed[:, -1] += (after - before)[:, -1]
        with torch.no_grad():
            shift = network.answer_from(changed, layer) - network.answer_from(host, layer)
        for mechanism, asked in (("primal", other), ("dual", query)):
            value = _correlation(shift[:, -1].double(), (moved * asked.double()).sum(-1))
            rows.append(
                {"network": name, "layer": layer, "mechanism": mechanism, "correlation": value}
            )
    return LabTable("transplants", tuple(rows), "mechanism", "correlation", "network")


@torch.no_grad()
def _state(network: TrainableNetwork, given: Examples, query: Tensor, layer: int) -> Tensor:
    """The stream before a layer, up to the token of another query."""
    x = torch.cat([given.x[:, :-1], query[:, None]], 1)
    return network.states(x, given.y)[layer][:, :-1]


def _correlation(a: Tensor, b: Tensor) -> float:
    both = torch.stack([a, b])
    if not bool((both.std(1) > 0).all()):
        return 0.0
    return float(torch.corrcoef(both)[0, 1])
