"""Algorithms whose turns, or runs, differ by something that is no value of their program.

``HIDDEN`` makes each anew, so that state left by one compilation is not the next one's.
``HONEST`` are algorithms that look alike and are pure.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import random
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

import iceform as ice

LATE = 12  # the turn from which a hidden counter makes a difference: far beyond what is traced
COUNT = [0]


class Counter:
    """A class that counts in an attribute of its own."""

    turns = 0

    def __init__(self):
        self.n = 0

    def factor(self):
        self.n += 1
        return 1.0 if self.n < LATE else 0.1

    @property
    def rate(self):
        return self.factor()


class Slotted:
    """The same in a slot."""

    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def _late(n):
    return 1.0 if n < LATE else 0.1


def _loop(factor, name="hidden"):
    """An algorithm whose turns take a factor from somewhere."""

    def written(x, y, *, steps=20):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            w = 0.5 * w + factor() * ice.mean(x * y)
        return w

    written.__name__ = name
    return written


def _by_next(make):
    def build():
        t = make()
        return _loop(lambda: _late(next(t)))

    return build


def _forever():
    n = 0
    while True:
        yield n
        n += 1


def _pops():
    left = [1.0] * LATE + [0.1] * 100
    return _loop(lambda: left.pop(0))


def _deque():
    left = deque([1.0] * LATE + [0.1] * 100)

    def factor():
        left.rotate(-1)
        return left[0]

    return _loop(factor)


def _nonlocal():
    n = 0

    def factor():
        nonlocal n
        n += 1
        return _late(n)

    return _loop(factor)


def _global():
    def factor():
        COUNT[0] += 1
        return _late(COUNT[0])

    return _loop(factor)


def _decorated():
    n = [0]

    @torch.no_grad()
    def factor():
        n[0] += 1
        return _late(n[0])

    return _loop(factor)


def _class_attribute():
    def factor():
        Counter.turns += 1
        return _late(Counter.turns)

    return _loop(factor)


def _function_attribute():
    def factor():
        factor.n += 1
        return _late(factor.n)

    factor.n = 0
    return _loop(factor)


def _annotation():
    def factor():
        factor.__annotations__["n"] += 1
        return _late(factor.__annotations__["n"])

    factor.__annotations__["n"] = 0
    return _loop(factor)


def _default():
    def factor(n=[0]):  # noqa: B006
        n[0] += 1
        return _late(n[0])

    return _loop(factor)


def _cache():
    known = {}

    def factor():
        known[len(known)] = 1
        return _late(len(known))

    return _loop(factor)


def _default_dict():
    fresh = itertools.count()
    known = defaultdict(lambda: next(fresh))
    return _loop(lambda: _late(known[len(known)]))


def _lru_cache():
    @functools.cache
    def box():
        return [0]

    def factor():
        box()[0] += 1
        return _late(box()[0])

    return _loop(factor)


def _slot():
    held = Slotted()

    def factor():
        held.n += 1
        return _late(held.n)

    return _loop(factor)


def _namespace():
    held = SimpleNamespace(n=0)

    def factor():
        held.n += 1
        return _late(held.n)

    return _loop(factor)


def _array():
    n = np.zeros(1)

    def factor():
        n[0] += 1
        return _late(float(n[0]))

    return _loop(factor)


def _tensor():
    n = torch.zeros(1)

    def factor():
        n.add_(1)
        return _late(float(n))

    return _loop(factor)


def _torch_attribute():
    torch.turns_so_far = 0

    def factor():
        torch.turns_so_far += 1
        return _late(torch.turns_so_far)

    return _loop(factor)


def _file():
    file = io.BytesIO(bytes([9] * LATE + [1] * 100))
    return _loop(lambda: file.read(1)[0] / 10)


def _file_by_name():
    return _loop(lambda: 1.0 if open(os.devnull).read() else 0.1)


def _generator_of(make):
    drawn = make()
    return lambda: _loop(lambda: 1.0 if drawn() < 0.99 else 0.1)


def _torch_draw():
    generator = torch.Generator().manual_seed(0)
    return _loop(lambda: 1.0 if float(torch.rand(1, generator=generator)) < 0.99 else 0.1)


def _first_turn():
    def written(x, y, *, steps=20):
        w, c = ice.zeros_like(x), 1.0
        for _ in ice.repeat(steps):
            w = 0.5 * w + c * ice.mean(x * y)
            c = 0.1
        return w

    return written


def _flag():
    def written(x, y, *, steps=20):
        w, first = ice.zeros_like(x), True
        for _ in ice.repeat(steps):
            w = 0.5 * w + (1.0 if first else 0.1) * ice.mean(x * y)
            first = False
        return w

    return written


def _unset_at_first():
    def written(x, y, *, steps=20):
        w = ice.zeros_like(x)
        for _ in ice.repeat(steps):
            try:
                w = 0.5 * w + seen * ice.mean(x * y)
            except NameError:
                w = ice.mean(x * y)
            seen = 0.1  # noqa: F841
        return w

    return written


def _read_after_the_loop():
    def written(x, y, *, steps=20):
        w, c = ice.zeros_like(x), 1.0
        for _ in ice.repeat(steps):
            w = 0.5 * w + ice.mean(x * y)
            c = 0.1
        return c * w

    return written


def _zipped():
    def written(x, y, *, steps=20):
        w = ice.zeros_like(x)
        for _, k in zip(ice.repeat(steps), itertools.count(), strict=False):
            w = 0.5 * w + _late(k) * ice.mean(x * y)
        return w

    return written


def _local_count():
    def written(x, y, *, steps=20):
        w, t = ice.zeros_like(x), itertools.count()
        for _ in ice.repeat(steps):
            w = 0.5 * w + _late(next(t)) * ice.mean(x * y)
        return w

    return written


def _in_a_while():
    def written(x, y):
        w, t = ice.mean(y) + 2.0, itertools.count()
        while ice.while_(w > 0.01):
            w = w * (0.5 if next(t) < LATE else 0.1)
        return w

    return written


def _around_a_generator():
    """The loop is in a generator, and who reads it counts."""

    def turns(steps):
        for _ in ice.repeat(steps):  # noqa: UP028
            yield _

    def written(x, y, *, steps=20):
        w, n = ice.zeros_like(x), [0]
        for _ in turns(steps):
            n[0] += 1
            w = 0.5 * w + _late(n[0]) * ice.mean(x * y)
        return w

    return written


def _between_runs():
    left = [1.0, 2.0, 3.0, 4.0]

    def written(x, y):
        return left.pop() * ice.mean(x * y)

    return written


def _hidden_value():
    """A value of the program in an attribute."""

    def written(x, y, *, steps=20):
        held = SimpleNamespace(w=ice.mean(y))
        for _ in ice.repeat(steps):
            held.w = 0.5 * held.w + 0.1
        return held.w

    return written


def _hidden_alias():
    """A name that takes an outer value every turn would make that value its state."""

    def written(x, y, *, steps=20):
        held = SimpleNamespace(w=ice.mean(y))
        w, v = 2.0 * held.w, ice.mean(y)
        for _ in ice.repeat(steps):
            v = 0.5 * v + w
            w = held.w
        return v

    return written


HIDDEN = {
    "itertools.count": _by_next(itertools.count),
    "itertools.cycle": _by_next(lambda: itertools.cycle([1] * LATE + [LATE] * 100)),
    "a generator": _by_next(_forever),
    "an iterator of a list": _by_next(lambda: iter([1] * LATE + [LATE] * 100)),
    "map": _by_next(lambda: map(int, itertools.count())),
    "a partial": lambda: _loop(functools.partial(next, itertools.cycle([1.0] * LATE + [0.1] * 9))),
    "a list that is popped": _pops,
    "a deque that turns": _deque,
    "nonlocal": _nonlocal,
    "a global": _global,
    "behind a decorator": _decorated,
    "a class attribute": _class_attribute,
    "a method that counts": lambda: _loop(Counter().factor),
    "a property that counts": lambda: (lambda c: _loop(lambda: c.rate))(Counter()),
    "a function's attribute": _function_attribute,
    "a function's annotation": _annotation,
    "a default argument": _default,
    "a dict as cache": _cache,
    "a default dict": _default_dict,
    "functools.cache": _lru_cache,
    "a slot": _slot,
    "a namespace": _namespace,
    "a NumPy array": _array,
    "a tensor": _tensor,
    "an attribute of torch": _torch_attribute,
    "a file": _file,
    "a file by its name": _file_by_name,
    "random.random": lambda: _loop(lambda: 1.0 if random.random() < 0.99 else 0.1),
    "random.Random": _generator_of(lambda: random.Random(0).random),
    "a NumPy generator": _generator_of(lambda: np.random.default_rng(0).random),
    "NumPy's old generator": lambda: _loop(
        lambda: 1.0 if np.random.rand() < 0.99 else 0.1  # noqa: NPY002
    ),
    "fresh entropy": lambda: _loop(lambda: 1.0 if np.random.default_rng().random() < 0.99 else 0.1),
    "torch.rand": lambda: _loop(lambda: 1.0 if float(torch.rand(1)) < 0.99 else 0.1),
    "a torch generator": _torch_draw,
    "memory as it was": lambda: _loop(lambda: 1.0 if float(torch.empty(1)) < 0.99 else 0.1),
    "time.time": lambda: _loop(lambda: 1.0 if time.time() < 1e12 else 0.1),
    "a clock as key": lambda: _loop(lambda: 1.0 if max([0], key=time.monotonic_ns) else 0.1),
    "by a computed name": lambda: _loop(lambda: _late(getattr(time, "ti" + "me")() - 1e12)),
    "os.urandom": lambda: _loop(lambda: _late(os.urandom(1)[0] % 2)),
    "the environment": lambda: _loop(lambda: _late(len(os.getenv("PATH", "")))),
    "id": lambda: _loop(lambda: 1.0 if id(object()) % 1024 else 0.1),
    "globals()": lambda: _loop(lambda: _late(globals()["COUNT"][0])),
    "a number for the first turn": _first_turn,
    "a flag for the first turn": _flag,
    "a name unset at first": _unset_at_first,
    "a number read after the loop": _read_after_the_loop,
    "turns zipped": _zipped,
    "a local count": _local_count,
    "in a while_": _in_a_while,
    "around a generator": _around_a_generator,
    "between runs": _between_runs,
    "a value in an attribute": _hidden_value,
    "a value of an attribute under a name": _hidden_alias,
}


# ---------------------------------------------------------------------------------------------
# honest ones
# ---------------------------------------------------------------------------------------------

RATES = (0.5, 0.25)
TABLE = {"rate": 0.5, "shift": np.array([0.1, 0.2])}


@dataclass(slots=True)
class Model:
    """Settings and a step in a class of the author's."""

    shift: float
    rate: float = 0.5

    @torch.no_grad()
    def step(self, w, g):
        return w - self.rate * g + self.shift


def indices(x, y, *, steps=5):
    """Python's loops inside leave their last index behind."""
    j, rows = 7, [ice.mean(x * x[i]) for i in range(2)]
    w = [ice.constant(0.0), ice.constant(0.0)]
    for _ in ice.repeat(steps):
        for j, k in itertools.combinations(range(2), 2):
            w[j] = 0.5 * w[j] + rows[k][j]
        parts = [v * (i + 1) for i, v in enumerate(w)]
        w = [0.5 * w[i] + 0.1 * parts[i] for i in range(2)]
    for j in range(2):
        w[j] = w[j] * RATES[j]
    return tuple(w)


def nonlocal_value(x, y, *, steps=5):
    """A step that changes a name of the function by nonlocal, which the loop carries."""
    w = ice.zeros_like(x)

    def step():
        nonlocal w
        w = 0.5 * w + TABLE["rate"] * ice.mean(x * y) + float(TABLE["shift"][0])

    for _ in ice.repeat(steps):
        step()
    return w


def with_a_class(x, y, *, steps=5):
    """An object that holds settings and does not change."""
    model, w = Model(0.1), ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = model.step(w, ice.mean(x * (x @ w - y)))
    return w


def seeded(x, y, *, steps=5):
    """Random numbers with a seed, drawn before the loop."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    w = ice.mean(y)
    for _ in ice.repeat(steps):
        w = drawn[0] * w + 0.1 * drawn[1]
    return w


def nested(x, y, *, steps=3):
    """Loops in helpers, in loops."""

    def inner(v, g):
        for _ in ice.repeat(2):
            v = 0.5 * v + g
        return v

    w, best = ice.zeros_like(x), None
    for _ in ice.repeat(steps):
        g = ice.mean(x * (x @ w - y))
        w = inner(w, -0.1 * g) + functools.reduce(lambda a, b: a + b, [0.0, 0.1])
    if best is None:
        w = w + 0.0
    return w


HONEST = {f.__name__: f for f in (indices, nonlocal_value, with_a_class, seeded, nested)}
