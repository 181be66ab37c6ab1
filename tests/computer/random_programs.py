"""Random programs of the language, as source text.

A program is grown statement by statement from four pools: scalars and vectors, one for all or one a
sample. Every statement keeps its value within a small range, so that tables stay small. What a
comparison decides is drawn too: a run that comes too near to a tie is refused, not wrong.

Rich programs also divide, take powers and roots, join vectors, combine comparisons, nest loops,
swap states and keep them in lists. Wild ones blow errors up and then ask questions. Whole ones
round, count, take remainders, compare whole numbers, and read samples by their place. Programs of
the whole language draw from all of this, call other random programs, read at computed places, take
matrices and parameters of any length, leave loops by a condition, and return what they like.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import iceform as ice
from iceform.computer import language
from iceform.computer.language import Algorithm

SMOOTH = ("torch.tanh", "torch.sigmoid", "torch.sin")
KINKED = ("abs", "torch.relu")
CONSTRUCTS = {
    "sum over samples": "ice.sum(", "max over samples": "ice.max(", "min over samples": "ice.min(",
    "argmax": "ice.argmax(", "argmin": "ice.argmin(", "count": "ice.count()",
    "index": "ice.index()", "at": "ice.at(", "previous": "ice.previous(",
    "running sum": "ice.running_sum(",
    "floor, round, ceil": "torch.floor(|torch.round(|torch.ceil(",
    "remainder": " % ", "whole quotient": " // ", "equality": " == ", "computed index": "q[v|r[v",
    "one_hot": "one_hot(", "matrix": "] @ | @ [", "numbers": " * [| - [|ice.constant([",
    "list": "= [0", "calls another": "* called_", "attention": "attend(",
    "while": "while_(", "repeat": "repeat(", "max, min of Python": "= max(|= min(",
    "choice": "where(", "parameter of other length": "r.|r[", "joined": "concat(",
    "quotient": " / ", "tuple": "return (", "returned list": "return [", "dict": "return {",
}  # fmt: skip


@dataclass
class Growing:
    """A program that is being written."""

    rng: random.Random
    dim: int
    kinks: bool
    rich: bool = False
    whole: bool = False
    every: bool = False
    heads: list[tuple[str, str]] = field(default_factory=list)  # pool and name: may be called
    lines: list[str] = field(default_factory=list)
    pools: dict[str, list[str]] = field(
        default_factory=lambda: {"SV": ["x"], "SS": ["y"], "GV": ["q"], "GS": ["p"]}
    )
    names: int = 0
    indent: int = 1
    functions: int = 0

    def fresh(self) -> str:
        """A new name."""
        self.names += 1
        return f"v{self.names}"

    def say(self, text: str) -> None:
        """One line."""
        self.lines.append("    " * self.indent + text)

    def pick(self, *pools: str) -> str:
        """A name from one of some pools."""
        names = [n for p in pools for n in self.pools[p]]
        return self.rng.choice(names)

    def statement(self) -> None:
        """One more value."""
        rules: list[Callable[[], None]] = [
            self.linear, self.linear, self.product, self.product, self.function, self.total,
            self.average, self.larger, self.chosen, self.component, self.attended,
        ]  # fmt: skip
        if self.rich:
            rules += [self.quotient, self.smooth, self.joined, self.decided, self.marked]
            rules += [self.folded]
        if self.every:
            rules += [self.rounded, self.sequence, self.placed] * 2
            rules += [self.read, self.sized, self.compared]
            rules += [self.called] * 4 * bool(self.heads)
        elif self.whole:
            rules = [self.linear, self.product, *[self.rounded, self.sequence, self.placed] * 2]
        self.rng.choice(rules)()

    def put(self, pool: str, text: str) -> None:
        """A value under a new name."""
        name = self.fresh()
        self.say(f"{name} = {text}")
        self.pools[pool].append(name)

    def linear(self) -> None:
        a, b = (self.rng.choice(("0.5", "-0.25", "0.3")) for _ in range(2))
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        other = {
            "SV": ("SV", "SS", "GV", "GS"),
            "SS": ("SS", "GS"),
            "GV": ("GV", "GS"),
            "GS": ("GS",),
        }
        shift = self.rng.choice(("", " + 0.1", " - 0.25"))
        self.put(pool, f"{a} * {self.pick(pool)} + {b} * {self.pick(*other[pool])}{shift}")

    def product(self) -> None:
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        other = {
            "SV": ("SV", "SS", "GV", "GS"),
            "SS": ("SS", "GS"),
            "GV": ("GV", "GS"),
            "GS": ("GS",),
        }
        self.put(pool, f"0.5 * {self.pick(pool)} * {self.pick(*other[pool])}")

    def function(self) -> None:
        if self.functions >= 2:
            return self.linear()
        self.functions += 1
        names = SMOOTH + KINKED if self.kinks else SMOOTH
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        return self.put(pool, f"{self.rng.choice(names)}({self.pick(pool)})")

    def total(self) -> None:
        pool = self.rng.choice(("SV", "GV"))
        self.put("SS" if pool == "SV" else "GS", f"{1 / self.dim:.4g} * {self.pick(pool)}.sum()")

    def average(self) -> None:
        pool = self.rng.choice(("SV", "SS"))
        self.put("GV" if pool == "SV" else "GS", f"mean({self.pick(pool)})")

    def larger(self) -> None:
        if not self.kinks or self.functions >= 2:
            return self.average()
        self.functions += 1
        word = self.rng.choice(("maximum", "minimum"))
        pool = self.rng.choice(("SS", "GS"))
        return self.put(pool, f"{word}({self.pick(pool)}, {self.pick(pool)})")

    def chosen(self) -> None:
        pool = self.rng.choice(("SS", "GS"))
        left, right = self.pick(pool), self.pick("GS")
        self.put(pool, f"where({left} > {right} + 0.05, {self.pick(pool)}, 0.5 * {left})")

    def component(self) -> None:
        pool = self.rng.choice(("SV", "GV"))
        at = self.rng.randrange(self.dim)
        self.put("SS" if pool == "SV" else "GS", f"{self.pick(pool)}[{at}]")

    def attended(self) -> None:
        query, key = self.pick("SV", "GV"), self.pick("SV")
        scalar = self.rng.random() < 0.5
        value = self.pick("SS") if scalar else self.rng.choice((key, self.pick("SV")))
        bias = f", {self.pick('SS')}" if self.rng.random() < 0.3 else ""
        pool = ("S" if query in self.pools["SV"] else "G") + ("S" if scalar else "V")
        self.put(pool, f"attend({query}, {key}, {value}{bias})")

    def quotient(self) -> None:
        """A division by what is never 0."""
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        below = self.pick(pool, "GS")
        text = f"{self.pick(pool)} / (1.5 + {below} * {below})"
        if self.rng.random() < 0.4:
            text = f"{self.pick(pool)} * reciprocal(2.0 + torch.tanh({below}), 0.75, 3.25)"
        self.put(pool, text)

    def smooth(self) -> None:
        """Powers, roots and exponentials of what stays where they are smooth."""
        if self.functions >= 3:
            return self.linear()
        self.functions += 1
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        a, b = self.pick(pool), self.pick(pool, "GS")
        each = [
            f"torch.sqrt(1.0 + {a} * {a})", f"torch.exp(-0.5 * {a} * {a})", f"0.25 * {a} ** 3",
            f"torch.log(2.0 + {a} ** 2)", f"torch.tanh({a} - {b})", f"1.0 - {a} ** 2",
            f"torch.atan({a} + {b}) - {a}", f"torch.rsqrt(1.0 + {a} * {a}) * {b}",
        ]  # fmt: skip
        if self.kinks:
            each += [f"soft_threshold({a}, 0.1)", f"torch.clamp({a}, -0.5, 0.5)"]
        return self.put(pool, self.rng.choice(each))

    def joined(self) -> None:
        """A scalar out of a longer vector."""
        vector, scalar = self.rng.choice((("SV", "SS"), ("GV", "GS"), ("SV", "GS")))
        text = f"concat({self.pick(vector)}, {self.pick(scalar)})"
        last = self.rng.choice((".sum()", f"[{self.dim}]", "[0]"))
        self.put("SS" if vector == "SV" else "GS", f"0.5 * {text}{last}")

    def folded(self) -> None:
        """Over the components of a vector, or a power of a number."""
        if self.functions >= 3:
            return self.total()
        self.functions += 1
        pool, scalar = self.rng.choice((("SV", "SS"), ("GV", "GS")))
        a = self.pick(pool)
        if self.rng.random() < 0.4:
            words = (f"torch.softmax({a}, -1)", f"0.5 * 0.8 ** {a}", f"torch.lerp({a}, -{a}, 0.3)")
            return self.put(pool, self.rng.choice(words))
        words = (f"0.5 * torch.logsumexp({a}, -1)", f"{a}.max()", f"torch.amin({a}, -1)")
        return self.put(scalar, self.rng.choice(words if self.kinks else words[:1]))

    def decided(self) -> None:
        """Comparisons combined."""
        pool = self.rng.choice(("SS", "GS"))
        a, b, c, d = (self.pick(pool, "GS") for _ in range(4))
        word = self.rng.choice(("&", "|"))
        left, right = f"({a} > {b} + 0.07)", f"~({c} < {d} - 0.04)"
        self.put(pool, f"where({left} {word} {right}, {self.pick(pool)}, -0.5 * {a}) + 0.0 * {c}")

    def marked(self) -> None:
        """Held in memory, or of a range that is stated."""
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        self.put(pool, self.rng.choice(("stored({})", "bounded({}, 64.0)")).format(self.pick(pool)))

    def rounded(self) -> None:
        """Of whole numbers: their remainders, and which of them are equal."""
        pool = self.rng.choice(("SV", "SS", "GV", "GS"))
        a, b, kept = self.pick(pool), self.fresh(), "GS" if pool[0] == "G" else "SS"
        self.say(f"{b} = torch.{self.rng.choice(('round', 'floor', 'ceil'))}(5.3 * {a})")
        more = (f"0.1 * {b}", f"0.25 * ({b} % 3)", f"0.2 * ({b} // 2)", f"0.5 * ({b} == 1)",
                f"where({b} >= 2, {a}, 0.5 * {a})", f"0.5 * ({b} < {b}) + {a}")  # fmt: skip
        self.put(pool, self.rng.choice(more))
        if pool[1] == "S":
            self.put(kept, f"0.5 * q[{b} % {self.dim}]")

    def sequence(self) -> None:
        """Samples in their order, and as a set."""
        a, v = self.pick("SS"), self.pick("SV")
        each = [f"ice.previous({a})", f"ice.previous({a}, 2, 0.5)", f"0.2 * ice.running_sum({a})",
                f"0.1 * ice.index() * {a}"]  # fmt: skip
        one = [f"ice.max({a})", f"ice.min({a})", f"0.2 * ice.sum({a})", "0.1 * ice.count()",
               f"0.1 * ice.argmax({a})", f"ice.at({a}, 3)"]  # fmt: skip
        pool = self.rng.choice(("SS", "GS", "GV"))
        self.put(pool, self.rng.choice({"SS": each, "GS": one, "GV": [f"ice.max({v})"]}[pool]))

    def placed(self) -> None:
        """Numbers of the program, a matrix of them, and Python's own max and min."""
        numbers = [round(self.rng.uniform(-0.5, 0.5), 2) for _ in range(self.dim)]
        pool = self.rng.choice(("SV", "GV"))
        a = self.pick(pool)
        row = f"[{', '.join(map(str, numbers))}]"
        each = (f"{a} * {row}", f"{a} - {row}", f"[{', '.join([row] * self.dim)}] @ {a}",
                f"max({a}, -0.3)", f"min(0.4, {a}, -{a})")  # fmt: skip
        self.put(pool, self.rng.choice(each))

    def called(self) -> None:
        """Another algorithm as a part of this one."""
        pool, name = self.rng.choice(self.heads)
        x, y, p = (
            self.pick("SV"),
            self.pick("SS"),
            self.rng.choice(("constant(0.25)", self.pick("GS"))),
        )
        self.put(pool, f"0.5 * {name}({x}, {y}, p={p})")

    def read(self) -> None:
        """A sample, or a component, at a place that is computed."""
        place, a = self.fresh(), self.pick("SS")
        self.say(f"{place} = torch.round({self.rng.choice(('3.7', '6.1'))} * {self.pick('GS')})")
        each = self.fresh()
        self.say(f"{each} = ice.index() - ({place} % 3)")
        other = self.pick("SS")
        one = [f"ice.at({a}, {place})", f"q[{place}]", f"0.5 * q[{place} % {self.dim}]",
               f"0.1 * ice.argmin({a})", f"0.5 * ice.at({a}, ice.argmax({other}))"]  # fmt: skip
        many = [f"ice.at({a}, {each})", f"where({each} == 1, {a}, 0.5 * {a})",
                f"0.5 * (torch.round(2.2 * {a}) % 2)"]  # fmt: skip
        vector = [f"0.5 * one_hot({place} % {self.dim}, {self.dim})",
                  f"0.5 * ice.at({self.pick('SV')}, {place})"]  # fmt: skip
        pool = self.rng.choice(("GS", "SS", "GV"))
        self.put(pool, self.rng.choice({"GS": one, "SS": many, "GV": vector}[pool]))

    def sized(self) -> None:
        """A parameter and constants of a length of their own, slices, lengths, and lists."""
        a, v, g = self.pick("GS"), self.pick("SV"), self.pick("GV")
        each = (f"0.5 * r.sum() * {a}", f"r[2] - 0.5 * {a}", "0.2 * (r @ r)", f"{g}.mean()",
                f"0.3 * {g}[{self.dim - 1}:].sum()", f"{a} / len({g} * 1.0)",
                f"0.5 * sum([{a} * w for w in (0.3, 0.2)])",
                f"0.4 * ({g} @ ice.constant([{', '.join(['0.5'] * self.dim)}]))",
                f"0.2 * {g}.norm()")  # fmt: skip
        if self.rng.random() < 0.3:
            numbers = [round(self.rng.uniform(-0.4, 0.4), 2) for _ in range(self.dim)]
            row = f"[{', '.join(map(str, numbers))}]"
            return self.put("SV", f"{v} @ [{', '.join([row] * self.dim)}]")
        return self.put("GS", self.rng.choice(each))

    def compared(self) -> None:
        """Whole numbers that are counted over samples, and asked whether they are equal."""
        kept = self.fresh()
        self.say(f"{kept} = ice.sum({self.pick('SS')} > {self.pick('GS')} + 0.03)")
        a = self.pick("GS")
        each = (f"0.1 * {kept}", f"where({kept} == 2, {a}, -{a})", f"0.2 * ({kept} % 2) * {a}",
                f"0.1 * max({kept}, 2)", f"{a} * ({kept} >= ice.count() // 2)")  # fmt: skip
        self.put("GS", self.rng.choice(each))

    def left(self) -> None:
        """A loop that ends by its count or by a condition, whichever is met first."""
        gap, turn, states = self.fresh(), self.fresh(), self.states()
        self.say(f"{gap}, {turn} = 1.0 + 0.5 * {self.pick('GS')}, constant(0)")
        self.say(f"while while_(({gap} > 0.21) & ({turn} < {self.rng.choice(('2', '3', '5'))})):")
        self.say(f"    {gap}, {turn} = 0.6 * {gap}, {turn} + 1")
        self.body(states)
        self.pools["GS"] += [gap]

    def ordered(self) -> None:
        """One turn a sample, in their order."""
        state, a, turn = self.fresh(), self.pick("SS"), self.rng.choice(("i", "t"))
        best = self.fresh()
        self.say(f"{state}, {best} = 0.3 * {self.pick('GS')}, constant(0.0)")
        self.say(f"for {turn} in repeat(ice.count()):")
        self.say(f"    {state} = 0.5 * {state} + 0.4 * ice.at({a}, {turn})")
        if self.kinks:
            self.say(f"    {best} = max({best}, ice.at({a}, {turn}))")
        self.pools["GS"] += [state, best]

    def swapped(self) -> None:
        """A loop whose states trade places, in a list."""
        held, pool = self.fresh(), self.rng.choice(("GV", "GS", "SS"))
        self.say(f"{held} = [0.5 * {self.pick(pool)}, 0.3 * {self.pick(pool)}]")
        self.say(f"for _ in repeat({self.rng.choice(('steps', '2', '3'))}):")
        other = self.pick(pool)
        self.say(f"    {held} = [{held}[1], 0.4 * {held}[0] - 0.3 * {held}[1] + 0.2 * {other}]")
        self.put(pool, f"{held}[0] + 0.5 * {held}[1]")

    def nested(self) -> None:
        """A loop in a loop, both of which change a state."""
        pool = self.rng.choice(("GV", "GS", "SS"))
        outer, inner = self.fresh(), self.fresh()
        self.say(f"{outer} = 0.5 * {self.pick(pool)}")
        self.say(f"{inner} = 0.5 * {self.pick(pool)}")
        self.say(f"for _ in repeat({self.rng.choice(('steps', '2'))}):")
        self.indent += 1
        self.say(f"{outer} = 0.5 * {outer} + 0.25 * {inner}")
        self.say(f"for _ in repeat({self.rng.choice(('steps', '2', '3'))}):")
        self.say(f"    {inner} = 0.4 * {inner} + 0.3 * {outer} - 0.1 * {self.pick(pool)}")
        if self.rng.random() < 0.5:
            self.say(f"{outer} = {outer} - 0.5 * {inner} * {inner} / (1.0 + {inner} * {inner})")
        self.indent -= 1
        self.pools[pool] += [outer, inner]

    def repeated(self) -> None:
        """A counted loop with one or two states that stay bounded."""
        states = self.states()
        self.say(f"for _ in repeat({self.rng.choice(('steps', '2', '3'))}):")
        self.body(states)

    def numbered(self) -> None:
        """A loop whose turns differ by their number, and one inside whose number is read too."""
        pool = self.rng.choice(("GV", "GS", "SS"))
        state, other = self.fresh(), self.pick(pool)
        self.say(f"{state} = 0.5 * {self.pick(pool)}")
        self.say(f"for i in repeat({self.rng.choice(('steps', '2', '3'))}):")
        self.say(f"    {state} = 0.6 * {state} + 0.3 * {other} / (1.0 + i)")
        if self.rng.random() < 0.5:
            self.say(f"    for j in repeat({self.rng.choice(('steps', '2'))}):")
            self.say(f"        {state} = 0.7 * {state} - 0.01 * i * j")
        self.pools[pool].append(state)

    def halving(self) -> None:
        """A loop whose number of turns depends on the data."""
        size, states = self.fresh(), self.states()
        self.say(f"{size} = 1.0 + 0.5 * {self.pick('GS')}")
        self.say(f"while while_({size} > {self.rng.choice(('0.07', '0.3'))}):")
        self.indent += 1
        self.say(f"{size} = {self.rng.choice(('0.5', '0.7'))} * {size}")
        self.indent -= 1
        self.body(states)
        self.pools["GS"].append(size)

    def wild(self) -> None:
        """A loop that blows errors up, and one whose turns depend on what comes out."""
        state, size, turns = self.fresh(), self.fresh(), self.fresh()
        self.say(f"{state} = 0.5 + 0.4 * torch.tanh({self.pick('GS')})")
        self.say(f"for _ in repeat({self.rng.choice(('steps', '60', '80', '99'))}):")
        rate = self.rng.choice(("3.9", "3.99"))
        self.say(f"    {state} = bounded({rate} * {state} * (1.0 - {state}), -0.01, 1.01)")
        self.say(f"{size}, {turns} = 0.2 + {state}, 0.0 * {state}")
        self.say(f"while while_({size} > {self.rng.choice(('0.2', '0.5'))}):")
        self.say(f"    {size}, {turns} = 0.7 * {size}, 0.5 * {turns} + 1.0")
        self.pools["GS"] += [state, size, turns]

    def states(self) -> dict[str, str]:
        out = {}
        for _ in range(self.rng.choice((1, 2))):
            name, pool = self.fresh(), self.rng.choice(("GV", "GS", "SS"))
            self.say(f"{name} = 0.5 * {self.pick(pool)}")
            out[name] = pool
        return out

    def body(self, states: dict[str, str]) -> None:
        before = {k: list(v) for k, v in self.pools.items()}
        for name, pool in states.items():
            self.pools[pool].append(name)
        self.indent += 1
        for _ in range(self.rng.randrange(3)):
            self.statement()
        for name, pool in states.items():
            self.say(f"{name} = 0.4 * {name} + 0.3 * {self.pick(pool)}")
        self.indent -= 1
        self.pools = before
        for name, pool in states.items():
            self.pools[pool].append(name)


def source(
    seed: int, kinks: bool = False, rich: bool = False, wild: bool = False, whole: bool = False,
    every: bool = False,
) -> tuple[str, int]:  # fmt: skip
    """A program as text, and the number of features that it is for."""
    rng = random.Random(seed)
    dim = rng.choice((1, 2, 3))
    text, others = "", list[tuple[str, str]]()
    for number in range(rng.randrange(3) if every else 0):
        part = _grown(Growing(rng, dim, kinks, rich=True, every=True, heads=list(others)), False)
        pool = rng.choice(("SS", "GS", "SV", "GV"))
        name = f"called_{number}"
        text += (
            "@algorithm\n" + _written(part, name, f"    return +{part.pools[pool][-1]}") + "\n\n"
        )
        others.append((pool, name))
    grown = _grown(Growing(rng, dim, kinks, rich or every, whole, every, others), wild)
    outputs = {pool: names[-1] for pool, names in grown.pools.items()}
    form = rng.choice(("dict", "dict", "tuple", "list", "one")) if every else "dict"
    last = ", ".join(f"+{v}" for v in outputs.values())
    returned = {
        "dict": "{" + ", ".join(f'"{k}": +{v}' for k, v in outputs.items()) + "}",
        "tuple": f"({last})", "list": f"[{last}]", "one": f"+{rng.choice(list(outputs.values()))}",
    }  # fmt: skip
    return text + _written(grown, "program", f"    return {returned[form]}"), dim


def _grown(grown: Growing, wild: bool) -> Growing:
    """Statements and loops."""
    rng = grown.rng
    loops = [grown.repeated, grown.halving]
    loops += grown.rich * [grown.swapped, grown.nested, grown.numbered]
    loops += grown.every * [grown.left, grown.ordered]
    for _ in range(rng.randrange(2, 5)):
        grown.statement()
    for _ in range(rng.randrange(3)):
        rng.choice(loops)()
    for _ in range(rng.randrange(1, 3)):
        grown.statement()
    if wild:
        grown.wild()
    return grown


def _written(grown: Growing, name: str, last: str) -> str:
    more = ", r=vector([0.3, -0.2, 0.5, 0.1])" if grown.every else ""
    head = f"def {name}(x, y, *, p=0.7, q=vector(0.5), steps=3{more}):\n"
    return head + "\n".join([*grown.lines, last]) + "\n"


def constructs(seed: int, **drawn: bool) -> list[str]:
    """Those of :data:`CONSTRUCTS` that are in a program."""
    text = source(seed, **drawn)[0]
    return [name for name, marks in CONSTRUCTS.items()
            if any(mark in text for mark in marks.split("|"))]  # fmt: skip


def program(
    seed: int, kinks: bool = False, rich: bool = False, wild: bool = False, whole: bool = False,
    every: bool = False,
) -> tuple[Algorithm, int]:  # fmt: skip
    """A program to run or to compile."""
    text, dim = source(seed, kinks, rich, wild, whole, every)
    file = f"<random program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    words = {n: getattr(language, n) for n in language.__all__}
    scope = {"torch": torch, "ice": ice, **words}
    exec(compile(text, file, "exec"), scope)
    return language.algorithm(scope["program"]), dim  # type: ignore[arg-type]


def data(seed: int, dim: int, samples: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Random data of the default domain."""
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.rand(samples, dim, dtype=torch.float64, generator=generator) - 1
    return X, 2 * torch.rand(samples, dtype=torch.float64, generator=generator) - 1
