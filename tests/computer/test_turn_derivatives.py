"""Turns' derivatives by intervals are attacked: what is put in at every turn comes out no larger.

Random loops over vectors, numbers and values of samples; every state is moved in every turn by as
much as the theory assumes, each entry up or down, on data at the ends of their domain.
"""

import builtins
import linecache
import math
import random
from contextlib import suppress

import pytest
import torch

from iceform.computer import Computer
from iceform.computer.compile import compile
from iceform.computer.language import (
    algorithm,
    attend,
    concat,
    constant,
    maximum,
    mean,
    minimum,
    repeat,
    soft_threshold,
    vector,
    where,
)
from iceform.computer.loop_bounds import growths
from iceform.computer.loop_slices import RangesAtParameters
from iceform.computer.rounding import others_weigh
from iceform.computer.samples import at
from iceform.errors import PrecisionError

DIM, SAMPLES, MOVED = 2, 5, 1e-7
WORDS = {
    "at": at, "attend": attend, "concat": concat, "constant": constant,
    "maximum": maximum, "mean": mean, "minimum": minimum, "repeat": repeat, "torch": torch,
    "soft_threshold": soft_threshold, "vector": vector, "where": where,
}  # fmt: skip


def term(rng: random.Random, kind: str, depth: int = 0) -> str:
    """What a turn makes of states a, b (vectors), c (a number) and s (one a sample)."""
    if kind == "s":
        return rng.choice([
            "s", "0.5 * s + 0.3 * mean(s)", "at(s, 1) - 0.2 * s", "torch.tanh(s + x @ a)",
            "soft_threshold(s, 0.1)", "where(y > 0.2, s, mean(s))",
            "s - 0.5 * soft_threshold(s, 0.2)", "attend(s * x, x, y) - 0.1 * s",
            "maximum(s, at(s, 2))", "c * s", "where(s > 3.0, 0.1, 0.9) * s", "attend(x, x, s)",
        ])  # fmt: skip
    if kind == "c":
        return rng.choice(["c", "a[0] * b[1]", "a @ b", "mean(s)", "c * c", "-c + a.sum()"])
    if depth > 1 or rng.random() < 0.3:
        return rng.choice(["a", "b", "0.5 * a", "-0.3 * b", "c * a", "concat(b[1], a[0])"])
    u, v = (term(rng, kind, depth + 1) for _ in range(2))
    return rng.choice([
        f"({u} - 0.6 * mean(x * torch.tanh(x @ ({u}) - y)))", f"torch.tanh({u})",
        f"maximum({u}, {v})", f"minimum({u}, 0.3)", f"soft_threshold({u}, 0.1)",
        f"({u} - 0.4 * mean(x * (x @ ({v}))))", f"({u}) * ({v})", f"({u} + 0.5 * ({v}))",
        f"where(mean(y) > 0.1, {u}, {v})", f"where(({u}).sum() > 5.0, {v}, {u})",
        f"(({u}) / (2.5 + torch.tanh(({v}).sum())))", f"attend({u}, x, x * y)",
    ])  # fmt: skip


def loop(seed: int):
    """A program of such a loop."""
    rng = random.Random(seed)
    factor = rng.choice([0.5, 0.8, 1.0])
    kinds = {"a": "v", "b": "v", "c": "c", "s": "s"}
    return of_terms({n: f"{factor} * ({term(rng, k)})" for n, k in kinds.items()}, f"loop {seed}")


def of_terms(terms: dict[str, str], name: str):
    """A program of one loop; ``to_a`` and the like are added to the states in every turn."""
    lines = [
        "def written(x, y, *, to_a=vector(0.0), to_b=vector(0.0), to_c=0.0, to_s=0.0, steps=4):",
        "    a, b, c, s = constant([0.3, -0.2]), constant([0.1, 0.4]), constant(0.2), 0.5 * y",
        "    for _ in repeat(steps):",
        "        "
        + ", ".join(terms)
        + " = "
        + ", ".join(f"{t} + to_{n}" for n, t in terms.items()),
        "    return {'a': a, 'b': b, 'c': c, 's': s}",
    ]
    text, file = "\n".join(lines) + "\n", f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    known = dict(WORDS)
    exec(builtins.compile(text, file, "exec"), known)
    states = dict.fromkeys(("a", "b", "c", "s"), 3.0)
    ends = {f"to_{n}": (-MOVED, MOVED) for n in states}
    return compile(algorithm(known["written"]), DIM, SAMPLES, bounds=states, **ends)


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = 2.0 * (torch.rand(SAMPLES, DIM, generator=draw) < 0.5).double() - 1
    x = x[:1].expand(SAMPLES, DIM) if seed % 2 else x
    return x, 2 * torch.rand(SAMPLES, generator=draw, dtype=torch.float64) - 1


def moved(names: set[str], seed: int) -> dict[str, object]:
    """As much as the theory assumes, up or down."""
    draw = torch.Generator().manual_seed(seed)
    signs = MOVED * (2.0 * (torch.rand(DIM, generator=draw) < 0.5).double() - 1)
    each = {"a": signs, "b": signs.flip(0) * (1 - 2 * (seed % 2)), "c": MOVED, "s": -MOVED}
    return {f"to_{n}": v for n, v in each.items() if n in names}


def inside(states: dict[str, torch.Tensor]) -> bool:
    """Within what was assumed of them."""
    return all(float(v.abs().max()) <= 3.0 for v in states.values())


def attacked(program, turns: int = 5, draws: int = 6) -> list[float]:
    """Drifts as shares of their bounds, in every norm that something is known in."""
    (around,) = program.graph.block.loops()
    scalars = {n: float(v[0]) for n, v in program.parameters().items() if len(v) == 1}
    names = [c.name for c in around.carried]
    found = []
    for growth in growths(around, RangesAtParameters(program.ranges, scalars)):
        group = [names[k] for k in growth.states]
        if not set(group) <= {"a", "b", "c", "s"}:
            continue
        widths = [around.carried[k].state.width or 1 for k in growth.states]
        own = growth.norm([(MOVED, n) for n in widths])
        bounds = growth.of_states(growth.after(turns, 0.0, own))
        if not max(bounds) < 1e-3:
            continue
        for seed in range(draws):
            X, y = given(seed)
            still, drifted = (
                [program.reference(X, y, steps=t + 1, **put) for t in range(turns)]
                for put in ({}, moved(set(group), seed))
            )
            if not all(map(inside, (*still, *drifted))):
                continue
            still, drifted = still[-1], drifted[-1]
            drift = [drifted[n] - still[n] for n in group]
            if growth.euclidean:
                size = torch.stack(
                    [
                        d.reshape(SAMPLES, -1).square().sum(1).max()
                        if n == "s"
                        else d.square().sum()
                        for n, d in zip(group, drift, strict=True)
                    ]
                )
                found.append(float(size.sum().sqrt()) / bounds[0])
                continue
            found += [float(d.abs().max()) / b for d, b in zip(drift, bounds, strict=True) if b > 0]
    return found


def check(seeds: range) -> list[float]:
    """0 outside."""
    found = []
    for seed in seeds:
        shares = attacked(loop(seed))
        assert all(share <= 1 + 1e-6 for share in shares), seed  # 1e-16 of rounding over 1e-7
        found += shares
    return found


def test_states_that_are_moved_in_every_turn_drift_no_further_than_is_proven():
    found = check(range(3))
    assert len(found) > 20
    assert max(found) > 0.9


STILL = {"a": "a", "b": "b", "c": "c", "s": "s"}


@pytest.mark.parametrize(
    "terms",
    [
        {"s": "0.5 * s + 0.5 * mean(s)"},
        {"s": "attend(x, x, s)"},
        {"c": "0.5 * mean(s)", "s": "0.5 * c + 0.5 * s"},
        {"s": "s - 0.5 * (s - mean(soft_threshold(s, 0.01)))"},
        {"a": "a - 0.5 * mean(x * (x @ a - s))", "s": "0.5 * s + 0.4 * mean(s)"},
        {"s": "maximum(0.2 * s, mean(s))", "c": "-c + mean(s)"},
    ],
    ids=str,
)
def test_samples_that_move_each_other_drift_no_further(terms):
    """All in one direction: what moves a mean is of all samples together."""
    shares = attacked(of_terms(STILL | terms, str(terms)))
    assert shares
    assert max(shares) <= 1 + 1e-6
    assert max(shares) > 0.9


def shared(x, y, *, steps=4):
    """A share that is a state, and so may leave 0 to 1 by what it is off."""
    s, c = mean(y), 0.5 + 0.5 * mean(y)
    for _ in repeat(steps):
        s, c = 0.5 * (c * (2.0 * s - -2.0 * s) + -2.0 * s), 0.5 * c + 0.25 * s + 0.25
    return s


def test_a_choice_holds_for_shares_beyond_0_and_1():
    """By s a turn moves 2 c - 1, by c it moves 2 s, with both as far off as the bound allows."""
    program = compile(algorithm(shared), 1, 4, bounds={"s": 1.0, "c": (0.0, 1.0)})
    (around,) = program.graph.block.loops()
    found = list(growths(around, RangesAtParameters(program.ranges, {"steps": 4.0})))
    rows = [g for g in found if "largest entry" in g.description]
    assert rows
    for growth in rows:
        assert growth.reach > 2.0**-12
        assert growth.rate >= 1 + 2 * growth.reach + 2 * (1 + growth.reach)


def falling(x, y, *, steps=3):
    """What v adds up is off by much in the first turn, and by nothing in the last."""
    u, v = 1000.0 * (torch.exp(mean(y)) - 1.0), 0.0 * mean(y)
    for _ in repeat(steps):
        u, v = 2.0**-10 * u, v + u
    return v


def test_errors_that_fall_count_where_they_are_largest():
    program = compile(algorithm(falling), 1, 4, eps=1e-6, bounds={"u": 2000.0, "v": 2000.0})
    computer, x, off = Computer.for_programs([program]), torch.zeros(4, 1), []
    for start in torch.linspace(-1, 1, 21).tolist():
        y = torch.full((4,), start, dtype=torch.float64)
        run = computer.run(program, x, y, backend="fused").value
        off.append(abs(float(run) - float(program.reference(x, y))))
    assert 1e-9 < max(off) <= program.certificate.error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
def test_no_loop_of_many_drifts_further():
    assert len(check(range(3, 100))) > 800


@pytest.mark.parametrize("apart", [8.0, 64.0])
def test_weights_of_others_are_bounded_where_one_logit_is_apart(apart):
    """All others as heavy as they may be, before and after."""
    n = 7
    logits = torch.full((n,), -apart, dtype=torch.float64)
    logits[2] = 0.0
    by = apart / 16
    pushed = logits + by
    pushed[2] = -by
    others = torch.arange(n) != 2
    weigh = [float(torch.softmax(v, 0)[others].sum()) for v in (logits, pushed)]
    assert sum(weigh) <= others_weigh(by, apart, n)
    assert others_weigh(by * 1.01, apart, n) == math.inf
    assert others_weigh(by, apart, n) <= 2 * n * math.exp(-0.7 * apart)


def jumping(x, y, *, steps=6):
    """What a turn adds is told by a comparison of what turns before it have made."""
    z = mean(y)
    for _ in repeat(steps):
        z = torch.tanh(z) + 0.1 * (z > 0.2)
    return z


@pytest.mark.filterwarnings("ignore::iceform.errors.PrecisionWarning")
@pytest.mark.parametrize(("eps", "known"), [(1e-3, False), (1e-11, True)])
def test_comparisons_count_as_decided_only_where_errors_stay_below_their_gap(eps, known):
    program = compile(algorithm(jumping), 1, 4, eps=eps)
    assert (program.certificate.error < 1e-3) == known
    if known:
        return
    computer, off = Computer.for_programs([program]), []
    for start in torch.linspace(0.19, 0.31, 25).tolist():
        y = torch.full((4,), start, dtype=torch.float64)
        with suppress(PrecisionError):  # nearer to a tie than tables tell
            off.append(computer.run(program, torch.zeros(4, 1), y, backend="fused").enclosure.error)
    assert off
    assert max(off) <= program.certificate.error
