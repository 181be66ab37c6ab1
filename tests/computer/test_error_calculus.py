"""Errors through programs: what instructions add is put in, the worst way, and comes out no larger.

Every instruction is given an error of its own, as large as one likes, and its exact result is moved
by that much, by the signs of the answer's derivatives: what is known before the fact of such a
program must not be exceeded. Errors are large here, as tables' are not, so that second orders show:
arguments that leave their ranges, factors that are both off, turns that begin beside their states.
"""

from __future__ import annotations

import builtins
import linecache
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from iceform.computer import Computer, budget, language, samples
from iceform.computer.compile import Program, compile
from iceform.computer.instructions import FLAG, Instruction
from iceform.computer.interpret import _Interpreter, written
from iceform.computer.language import algorithm, mean
from iceform.computer.loop_bounds import growths
from iceform.computer.loop_slices import RangesAtParameters
from iceform.computer.virtual import JumpCurve, VirtualInstruction

SAMPLES = 3
X = torch.ones(SAMPLES, 1, dtype=torch.float64)
Y = torch.ones(SAMPLES, dtype=torch.float64)
ROUNDING = 1e-6  # relative: what float64 and the initial memory's rounding make of such errors


def own_errors(program: Program, level: float) -> dict[VirtualInstruction, budget.Budget]:
    """A share of its range for every instruction, but for what decides."""
    found = {}
    for i in program.assembled.virtual:
        if i is None:
            continue
        exact = any(isinstance(c, JumpCurve) for c in (i.f, i.g)) or i.note == "one turn less"
        found[i] = budget.Budget(0.0 if exact else level * i.dst.range.size, 0.0, 0.0, room=1e6)
    return found


class Moved(_Interpreter):
    """Exact instructions whose results are moved."""

    def __init__(self, program: Program, moves: list[torch.Tensor], x: torch.Tensor = X) -> None:
        assembly = program.assembled.assembly
        memory = written(assembly, x, Y, program.parameters(), assembly.width)
        super().__init__(assembly, memory, True, None)
        self.moves, self.made = moves, []
        address, instruction = 0, assembly.fetch(0, 0.0)
        while not instruction.halts:
            self.cycle(instruction)
            address = instruction.next
            instruction = assembly.fetch(address, float(self.memory[FLAG][0].detach()))

    def cycle(self, i: Instruction) -> None:
        super().cycle(i)
        if len(self.made) < len(self.moves):
            self.result = self.memory[i.dst] = self.memory[i.dst] + self.moves[len(self.made)]
        self.made.append((i, self.memory[i.dst].shape))

    def answers(self) -> dict[str, torch.Tensor]:
        return {o.name: o.of(self.memory[o.variable]) for o in self.assembly.outputs}


def furthest(
    program: Program, own: dict[VirtualInstruction, budget.Budget], name: str, x: torch.Tensor = X
) -> float:
    """How far an answer is moved, one way and the other, in three steps from the exact run."""
    by_address = dict(
        zip(program.assembled.assembly.instructions, program.assembled.virtual, strict=True)
    )
    exact = Moved(program, [], x)
    found = [0.0]
    for sign in (1.0, -1.0):
        moves = [torch.zeros(shape, dtype=torch.float64) for _, shape in exact.made]
        for _ in range(3):
            for move in moves:
                move.requires_grad_()
            run = Moved(program, moves, x)
            assert len(run.made) == len(exact.made)
            answer = run.answers()[name].flatten()
            found.append(float((answer - exact.answers()[name].flatten()).detach().abs().max()))
            if not answer.requires_grad:
                break
            slopes = torch.autograd.grad(sign * answer[0], moves, allow_unused=True)
            moves = [
                torch.zeros(shape, dtype=torch.float64)
                if g is None or by_address[i] is None
                else own[by_address[i]].table * g.sign()
                for g, (i, shape) in zip(slopes, exact.made, strict=True)
            ]
    return max(found)


def shares(program: Program, level: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What answers were moved by, as shares of their bounds."""
    own = own_errors(program, level)
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    bounds = {d.symbol: d.value for d in program.certify()[0].derivation}
    scale = {n: r.scale for n, (r, _) in program.fused.outputs.items()}
    finite = [n for n, bound in bounds.items() if 0 < bound < math.inf]
    return [furthest(program, own, n) * scale[n] / (bounds[n] * scale[n]) for n in finite]


def of_text(text: str, **told: object) -> Program:
    file = f"<calculus {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    words = {name: getattr(samples, name) for name in ("count", "index")}
    known = {n: getattr(language, n) for n in language.__all__} | words
    known |= {"samples": samples, "torch": torch}
    exec(builtins.compile(text, file, "exec"), known)
    return compile(algorithm(known["written"]), 1, SAMPLES, eps=1e-9, **told)


def at_rest(seed: int) -> Program:
    """A loop whose states stay at the upper ends of their ranges, where curves are steepest."""
    rng = random.Random(seed)
    names = "uvw"[: rng.choice((1, 2, 3))]
    ends = {n: round(rng.uniform(0.3, 0.9), 3) for n in names}
    turns = {}
    for name in names:
        factor, a, b = round(rng.uniform(0.1, 0.6), 3), rng.choice(names), rng.choice(names)
        term, value = rng.choice((
            (f"{a}", ends[a]), (f"{a} * {b}", ends[a] * ends[b]), (f"{a} * {a}", ends[a] ** 2),
            (f"torch.exp({a})", math.exp(ends[a])), (f"{a}**3", ends[a] ** 3),
            (f"where({b} > -1.0, {a}, {b})", ends[a]), (f"maximum({a}, {a} * {a})", ends[a]),
        ))  # fmt: skip
        turns[name] = f"{factor} * {term} + {ends[name] - factor * value!r}"
    steps = rng.choice((2, 5, 9, 20))
    return of_text(
        f"def written(x, y, *, steps={steps}):\n"
        f"    {', '.join(names)} = {', '.join(f'{end} * mean(y)' for end in ends.values())}\n"
        "    for _ in repeat(steps):\n"
        f"        {', '.join(turns)} = {', '.join(turns.values())}\n"
        f"    return {{{', '.join(f'{n!r}: {n}' for n in names)}}}\n",
        bounds={n: (-end, end) for n, end in ends.items()},
    )


def of_turn(start: str, turn: str, names: str = "w", **bounds: float) -> Callable[[], Program]:
    return lambda: of_text(
        "def written(x, y, *, steps=6):\n"
        f"    {names} = {start}\n"
        f"    g = {math.exp(-0.3)!r} * torch.exp(0.3 * mean(y))\n"
        "    for _ in repeat(steps):\n"
        f"        {names} = {turn}\n"
        f"    return +{names.partition(',')[0]}\n",
        bounds=bounds,
    )


NAMED = {
    "arguments beyond their range": of_turn("0.6 * mean(y)", "w * w + 0.24", w=0.6),
    "slopes beyond their range": of_turn("0.6 * mean(y)", "torch.exp(w) - 1.2221", w=0.601),
    "a factor that is off, of a state that is": of_turn("0.2 * mean(y)", "g * w", w=0.2),
    "errors that fall": of_turn("mean(y), 0 * mean(y)", "0.1 * w, v + g * w", "w, v", w=1, v=9),
    "nilpotent": of_turn("mean(y), mean(y)", "5.0 * v, 0.0 * w", "w, v", w=5.0, v=1.0),
    "not normal": of_turn("mean(y), mean(y)", "0.5 * w + 4.0 * v, 0.5 * v", "w, v", w=9.0, v=1.0),
    "an average that moves": of_turn("0.4 * y", "attend(g * x, x, w) + 0.2 * w", w=1.0),
    "a whole counter": of_turn("0.5 * mean(y), 0.0 * mean(y)", "w + 0.1 * n, n + 1", "w, n"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("level", [0.01, 1e-4])
def test_what_instructions_add_comes_out_no_larger(name, level, monkeypatch):
    found = shares(NAMED[name](), level, monkeypatch)
    assert found
    assert max(found) <= 1 + ROUNDING


def of_two(monkeypatch, **second: float) -> float:
    """What is known of exp(v): v is off by as much as it is large; ``second`` is the last's own."""
    program = of_text(
        "def written(x, y):\n"
        "    v = stored(torch.exp(0.1 * mean(y)))\n"
        "    return torch.exp(0.5 * v)\n"
    )
    own = own_errors(program, 0.0)
    first, last = list(own)[:2]
    own[first] = replace(own[first], table=first.dst.range.size)
    own[last] = replace(own[last], **second)
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    return program.certify()[0].error


def test_rounding_grows_with_the_values_that_it_is_relative_to(monkeypatch):
    """Four times as much, as of a product, where the argument is twice as large."""
    assert of_two(monkeypatch, rounding=1.0) - of_two(monkeypatch) >= 4 * (1 - ROUNDING)


def test_of_arguments_that_no_table_holds_nothing_is_known(monkeypatch):
    assert of_two(monkeypatch) < of_two(monkeypatch, room=0.5) == math.inf


def test_what_a_turn_adds_is_more_where_its_states_are_off(monkeypatch):
    """Turn by turn nothing is known of descent; a factor is off, and states that it multiplies."""
    program = of_text(
        "def written(x, y, *, steps=100):\n"
        "    w = zeros_like(x) + 0.2\n"
        "    for _ in repeat(steps):\n"
        f"        g = {math.exp(-0.3)!r} * torch.exp(0.3 * mean(y))\n"
        "        w = g * w - 0.5 * mean(x * (x @ w))\n"
        "    return w\n",
        bounds={"w": 0.2},
    )
    own = own_errors(program, 1e-3)
    for i in own:
        if i.place is None or i.place.line != 4 or i.note != "function":
            own[i] = replace(own[i], table=0.0)
    assert sum(o.table > 0 for o in own.values()) == 1
    monkeypatch.setattr(budget, "budget", lambda *_: own)
    moved = furthest(program, own, "value", torch.zeros_like(X))
    assert moved > 100 * 1e-3 * 0.2 * 1.04  # more than what is added to states that are exact
    assert moved <= program.certify()[0].error < math.inf


@pytest.mark.parametrize(("dtype", "known"), [(torch.float64, True), (torch.float32, False)])
def test_what_is_sure_of_comparisons_is_not_so_of_their_average(dtype, known):
    """Of 20001 signs it may be 5e-5, and float32 may be off by more when it adds them up."""

    def most(x, y):
        sign = language.where(y > 0.0, 1.0, -1.0)
        return language.where(language.mean(sign) > 0.0, 1.0, -1.0)

    found = compile(algorithm(most), 1, 20001).certify(dtype, "fused")[0].error
    assert (found < 1e-6) == known


def test_bounds_at_the_ends_of_ranges_are_what_errors_can_do(monkeypatch):
    for seed in range(8):
        assert all(s <= 1 + ROUNDING for s in shares(at_rest(seed), 0.03, monkeypatch))
    found = [s for seed in range(8) for s in shares(at_rest(seed), 1e-4, monkeypatch)]
    assert max(found) <= 1 + ROUNDING
    assert sum(share > 0.99 for share in found) >= len(found) / 2


@pytest.mark.slow
def test_no_loop_at_rest_is_moved_further(monkeypatch):
    for seed in range(8, 200):
        program = at_rest(seed)
        for level in (0.03, 1e-3, 1e-5):
            assert all(s <= 1 + ROUNDING for s in shares(program, level, monkeypatch)), seed


def test_a_turn_s_derivative_holds_where_states_are_off():
    """As far beyond their range as it says."""
    program = of_text(
        "def written(x, y, *, steps=6):\n"
        "    w = 0.5 * zeros_like(x)\n"
        "    for _ in repeat(steps):\n"
        "        w = w + 0.1 * mean(x * ((x @ w)**3 - 0.125))\n"
        "    return w\n",
        bounds={"w": 0.5},
    )
    (loop,) = program.graph.block.loops()
    found = list(growths(loop, RangesAtParameters(program.ranges, {"steps": 6.0})))
    assert any(growth.euclidean and growth.rate < math.inf for growth in found)
    for growth in found:
        rate = float(growth.after(1, 1.0, 0.0))
        assert growth.reach > 0
        assert rate >= 1 + 0.3 * (0.5 + min(growth.reach, 1.0)) ** 2


BEYOND_VECTORS = {
    "a function": lambda x: torch.expm1(x).sum(),
    "a product": lambda x: (torch.expm1(x) * x).sum(),
    "a sum": lambda x: (torch.expm1(x) + x * x).sum(),
    "of a mean": lambda x: (torch.expm1(mean(x)) * x).sum(),
    "twice": lambda x: torch.expm1(torch.expm1(x)).sum(),
    "a part": lambda x: (language.concat(torch.expm1(x[0]), x[1]) * x).sum(),
}


@pytest.mark.parametrize("name", BEYOND_VECTORS)
def test_what_a_wide_computer_has_beyond_a_vector_is_summed_too(name):
    """The table of expm1 is off by 6e-12 at 0; beyond these two components there are 62."""
    program = compile(algorithm(BEYOND_VECTORS[name]), 2, 2)
    wide = compile(algorithm(lambda x: 0.5 * mean(x)), 64, 2)
    x = torch.tensor([[0.3, -0.2], [0.9, 0.1]], dtype=torch.float64)
    for others in ([], [wide]):
        computer = Computer.for_programs([program, *others])
        run = computer.run(program, x)
        assert run.enclosure.error <= run.certificate.error < 1e-6
    if name == "a function":
        assert run.enclosure.error > program.certificate.error
