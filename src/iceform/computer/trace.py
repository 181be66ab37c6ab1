"""Tracing: the author's function is run once on values that write down what happens to them.

**Where a node goes.** Into the innermost loop that one of its arguments belongs to: what does not
change in a loop is computed before it. A node that is there already is not written twice.

**Loops.** The body of a loop runs at least twice. The first time finds out which names of the
author's function it changes; then these names are given states (what the loop carries) and the body
runs again, for the program. Names are found in the caller's frame, and so are values in lists,
tuples and dictionaries that a name holds. Whatever else a turn can read has to be as it was before
the turn, see :mod:`iceform.computer.surroundings`; so all turns are like those that were run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

from iceform import tuning
from iceform.computer.graph import (
    Block,
    Graph,
    Loop,
    LoopVariable,
    Parameter,
    raised,
    refuse,
    source_line,
)
from iceform.computer.surroundings import Snapshot, Surroundings, instruction, live
from iceform.computer.values import WORDS, Value, extremes_known, is_number, leaf, near
from iceform.computer.whole_numbers import decide_half_way
from iceform.program import Node, SourceLine

_ROOM = "iceform.computer."


class Tracer:
    """A scope that writes a graph."""

    traced = True

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.blocks = [Block()]
        self.home: dict[Node, Block] = {}
        self.written: dict[tuple[Any, ...], Node] = {}
        self.loops: dict[tuple[int, int], _Turns] = {}
        self.open: list[SourceLine | None] = []  # loops whose turns go on

    def emit(self, node: Node, args: tuple[Node, ...]) -> Node:
        """Write a node into the innermost block that an argument belongs to."""
        key = (node.op, args, node.samples, node.width, node.attr)
        found = self.written.get(key)
        if found is not None and self.home[found] in self.blocks:
            return found
        node = replace(node, args=args)
        depth = max((self.blocks.index(self.home[a]) for a in args), default=0)
        self._put(node, self.blocks[depth])
        self.blocks[depth].items.append(node)
        self.written[key] = node
        return node

    def constant(self, number: float, place: SourceLine | None = None) -> Node:
        """A number as a node."""
        return self.emit(Node("constant", (), False, None, float(number), place), ())

    def _put(self, node: Node, block: Block) -> None:
        self.home[node] = block

    def enter(self) -> Block:
        """Begin the body of a loop."""
        self.blocks.append(Block())
        return self.blocks[-1]

    def leave(self) -> None:
        """End it."""
        self.blocks.pop()

    def state(self, name: str, samples: bool, width: int | None, place: SourceLine | None) -> Node:
        """What a loop carries, at the start of a turn."""
        node = Node("state", (), samples, width, name, place, name)
        self._put(node, self.blocks[-1])
        return node

    def close(self, loop: Loop) -> None:
        """Write a loop whose body has ended."""
        self.blocks[-1].items.append(loop)
        for carried in loop.carried:
            self._put(carried.result, self.blocks[-1])

    # ------------------------------------------------------------------------------------ loops

    def repeat(self, count: Value) -> _Turns:
        """The turns of a counted loop, for Python's ``for``."""
        if count.samples or count.width is not None:
            raise refuse("repeat takes one number of turns, not one a sample", source_line())
        if _fixed(count.read()):
            return _Turns(self, source_line(), count=count.read())
        # Of what is known only when the program runs: the turns are counted, and asked for.
        until = count.nearest_whole()
        return _Turns(self, source_line(), first=(until > 0).read(), until=until)

    def again(self, condition: Value, frame: FrameType) -> bool:
        """One question of a ``while ice.while_(...)``."""
        if condition.samples or condition.width is not None:
            raise refuse(
                "while_ asks one question of the whole program; take ice.mean, or a component, of "
                "what is compared",
                source_line(),
            )
        key = (id(frame), frame.f_lineno)
        turns = self.loops.get(key)
        if turns is None:
            turns = self.loops[key] = _Turns(self, source_line(), first=condition.read())
            turns.frame = frame
        goes_on = turns.turn(frame, condition)
        if not goes_on:
            del self.loops[key]
        return goes_on


class Turn(Value):
    """The number of a loop's turn, from 0 on."""

    __slots__ = ()


class _Turns:
    """A loop while its body is being run."""

    def __init__(
        self, tracer: Tracer, place: SourceLine | None, count: Node | None = None,
        first: Node | None = None, until: Value | None = None,
    ) -> None:  # fmt: skip
        self.tracer, self.place = tracer, place
        self.count, self.first, self.until = count, first, until
        self.start: dict[str, Any] = {}
        self.began: dict[str, tuple[Node, bool, int | None]] = {}
        self.states: dict[str, Node] = {}
        self.held: dict[str, Any] = {}
        self.unread: set[str] = set()  # names that are written again before they are read
        self.rounds = -1
        self.number: Turn | None = None
        self.frame: FrameType | None = None
        self.seen = Snapshot()

    def __iter__(self) -> Iterator[Turn]:
        frame = sys._getframe(1)
        if instruction(frame) == ("GET_ITER", "FOR_ITER"):
            self.frame = frame
        return self

    def __next__(self) -> Turn:
        frame = sys._getframe(1)
        if frame is not self.frame or instruction(frame)[0] != "FOR_ITER":
            raise refuse(
                "the turns of ice.repeat(...) are for a loop of their own: write for _ in "
                "ice.repeat(...), without zip, enumerate, list, next or a comprehension around it",
                self.place,
            )
        goes_on = None
        if self.until is not None and self.number is not None:
            goes_on = self.number + 1 < self.until
        if not self.turn(frame, goes_on):
            raise StopIteration
        self.number = Turn(
            self.tracer, self.tracer.state("turn", False, None, self.place), False, None
        )
        return self.number

    def turn(self, frame: FrameType, condition: Value | None) -> bool:
        """Called before every run of the body and after the last."""
        self.rounds += 1
        names = dict(_leaves(frame.f_locals))
        own = self.number  # of an outer loop's turn it is a value like any other
        for name in [n for n, value in names.items() if own is not None and value is own]:
            self._number(name)
            del names[name]
        if self.rounds == 0:
            # What another loop has set and nobody may read is no value to begin with.
            self.start = {n: v for n, v in names.items() if not getattr(v, "lost", "")}
            self.held = names
            self.seen = self.tracer.around.seen(frame, names)
            self.tracer.enter()
            self.tracer.open.append(self.place)
            return True
        self._check_surroundings(frame, names)
        changed = {n for n in self.start if self._changed(n, names)}
        settled = changed <= set(self.states) and self._shapes_hold(names) and self.rounds > 1
        self.held = names
        if settled:
            self._finish(names, condition)
            self.frame, self.seen = None, Snapshot()
            return False
        if self.rounds > tuning.TRACE_MOST_ROUNDS:
            raise refuse(
                "the values that this loop carries change their shape every turn", self.place
            )
        self._again(changed | set(self.states), names)
        return True

    def _check_surroundings(self, frame: FrameType, names: dict[str, Any]) -> None:
        """Refuse a turn that changes something which is not among the names that a loop carries."""
        self.unread = set(frame.f_locals) - live(frame) - set(frame.f_code.co_cellvars)
        path = self.seen.changed(self.tracer.around.seen(frame, names))
        if frame.f_code.co_exceptiontable:  # a handler may ask whether a name is set
            new = (n for n in frame.f_locals if n in names and n not in self.start)
            path = path or next((n for n in new if n not in self.unread), None)
        if path is not None:
            raise refuse(
                f"{path} changes in this loop, hidden from the program: another turn could compute "
                "something else than the one that was traced; keep what changes in names, lists, "
                "tuples or dicts of the function, begun with values such as ice.constant(...)",
                self.place,
            )

    def _number(self, name: str) -> None:
        """A name that holds a turn's number is not carried to the next."""
        begun = self.start.get(name)
        if isinstance(begun, Turn):  # of an outer loop, under the same name
            del self.start[name]
        elif isinstance(begun, Value):
            raise refuse(
                f"{name} is a loop's own number of its turn at the end of a turn; write {name} = "
                "+number, which gives it a value of its own",
                self.place,
            )

    def _changed(self, name: str, names: dict[str, Any]) -> bool:
        """Whether the last turn gave a name another value that may be read.

        What nothing reads before it is written again, such as the last index of a Python loop
        inside, is none of the program's business.
        """
        if self._unread(name):
            return False
        now, before = names.get(name), self.held.get(name)
        numbers = not isinstance(now, Value) and not isinstance(self.start[name], Value)
        return repr(now) != repr(before) if numbers else now is not before

    def _unread(self, name: str) -> bool:
        return name.partition("[")[0] in self.unread

    def _shapes_hold(self, names: dict[str, Any]) -> bool:
        return all(_shape(names[n], s) == (s.samples, s.width) for n, s in self.states.items())

    def _again(self, changed: set[str], names: dict[str, Any]) -> None:
        """Run the body again with a state under every name that changes."""
        for name in changed - set(self.began):
            self.began[name] = self._began(name)
        shapes = {n: self._joined(n, names.get(n)) for n in changed}
        self.tracer.leave()
        self.tracer.enter()
        self.states = {}
        self._check_apart(changed, names)
        for name in sorted(changed):
            self.states[name] = self.tracer.state(name, *shapes[name], self.place)
            value = names[name]
            value.handle, value.lost = self.states[name], ""
            value.samples, value.width = shapes[name]

    def _began(self, name: str) -> tuple[Node, bool, int | None]:
        value = self.start[name]
        if isinstance(value, Value):
            return value.read(), value.samples, value.width
        outside = self.tracer.blocks.pop()
        node = self.tracer.constant(value, self.place)
        self.tracer.blocks.append(outside)
        return node, False, None

    def _joined(self, name: str, now: Any) -> tuple[bool, int | None]:
        if now is None:
            raise refuse(f"{name} has no value after a turn of this loop", self.place)
        if not isinstance(now, Value):
            raise refuse(
                f"{name} is a Python {type(now).__name__} that changes in this loop; begin with "
                f"{name} = ice.constant(...), which is a value of the program",
                self.place,
            )
        _, samples, width = self.began[name]
        if width is not None and now.width is not None and width != now.width:
            raise refuse(
                f"{name} is a vector of {width} before this loop and of {now.width} after a turn",
                self.place,
            )
        return samples or now.samples, now.width if width is None else width

    def _check_apart(self, changed: set[str], names: dict[str, Any]) -> None:
        """Two names for one object cannot be given two states."""
        owners: dict[int, str] = {}
        for name, value in names.items():
            begun = name in changed or name in self.start
            if not isinstance(value, Value) or not begun or self._unread(name):
                continue
            other = owners.setdefault(id(value), name)
            if other != name and {other, name} & changed and not self._same(other, name):
                raise refuse(
                    f"{other} and {name} are one value at the end of a turn but not before the "
                    f"loop; write {name} = +{other}, which gives it a value of its own",
                    self.place,
                )

    def _same(self, a: str, b: str) -> bool:
        return a in self.began and b in self.began and self.began[a] == self.began[b]

    def _finish(self, names: dict[str, Any], condition: Value | None) -> None:
        again = None if condition is None else condition.read()
        body = self.tracer.blocks[-1]
        self.tracer.open.pop()
        carried = tuple(self._carried(name, names[name]) for name in sorted(self.states))
        results = {id(names[c.name]): c.result for c in carried}
        if self.number is not None:
            carried += (self._counted(self.number),)
        self.tracer.leave()
        most = self.count if self.until is None else self.until.read()
        self.tracer.close(Loop(body, carried, self.count, self.first, again, self.place, most))
        for name, value in names.items():
            if id(value) in results:
                value.handle = results[id(value)]
            elif isinstance(value, Value) and value is not self.start.get(name):
                value.lost = (
                    f"{name} is set inside a loop and read after it; give it a value before the "
                    "loop, so that it has one if the loop makes no turn"
                )

    def _carried(self, name: str, value: Any) -> LoopVariable:
        state = self.states[name]
        start = self._spread(*self.began[name], state, outside=True)
        result = replace(state, op="result")
        new = self._spread(value.read(), value.samples, value.width, state, outside=False)
        return LoopVariable(name, start, state, new, result)

    def _counted(self, number: Turn) -> LoopVariable:
        """The number of the turn as something that the loop carries; dropped where unused."""
        state, new = number.read(), (number + 1.0).read()
        number.lost = "this is the number of a loop's turn, and the loop has ended"
        inside = self.tracer.blocks.pop()
        start = self.tracer.constant(0.0, self.place)
        self.tracer.blocks.append(inside)
        return LoopVariable(
            state.attr, start, state, new, replace(state, op="result"), counter=True
        )

    def _spread(
        self, node: Node, samples: bool, width: int | None, like: Node, *, outside: bool
    ) -> Node:
        """The node in the shape of a state."""
        if (samples, width) == (like.samples, like.width):
            return node
        inside = self.tracer.blocks.pop() if outside else None
        out = self.tracer.emit(
            Node("spread", (), like.samples, like.width, None, self.place), (node,)
        )
        if inside is not None:
            self.tracer.blocks.append(inside)
        return out


def _shape(value: Any, state: Node) -> tuple[bool, int | None]:
    """Of a new value, spread as wide as the state that takes it."""
    if not isinstance(value, Value):
        return False, -1
    return (value.samples or state.samples, state.width if value.width is None else value.width)


def _fixed(node: Node) -> bool:
    """Whether a node is made of parameters and numbers alone."""
    return node.op not in ("data", "state", "result") and all(map(_fixed, node.args))


def _leaves(names: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Values and numbers held by names, in lists, tuples and dictionaries too."""
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    for key, value in pairs:
        place = f"{path}[{key!r}]" if path else str(key)
        if isinstance(value, Value) or is_number(value):
            yield place, value
        elif isinstance(value, (list, tuple, dict)):
            yield from _leaves(value, place)


# ---------------------------------------------------------------------------------------------
# a whole function
# ---------------------------------------------------------------------------------------------


def traced(
    function: Any, name: str, dim: int, data: int, parameters: dict[str, Parameter],
    place: SourceLine | None,
) -> Graph:  # fmt: skip
    """The graph of an author's function for samples of ``dim`` features.

    ``data`` is 2 for a function of x and y, 1 for one of x alone. The function is run twice and has
    to write the same graph, and may not change what it can read besides its arguments.
    """
    around = Surroundings(function, place)
    before = around.seen()
    first, again = (_traced(around, function, name, dim, data, parameters, place) for _ in range(2))
    path = before.changed(around.seen())
    if path is not None or _written(first) != _written(again):
        raise refuse(
            f"{name} is not the same in two runs: {path or 'something outside of it'} changes, "
            "hidden from the program; compute it before and use the number",
            place,
        )
    return first


def _written(graph: Graph) -> list[tuple[Any, ...]]:
    """A graph as a list that is equal for equal graphs."""
    numbers: dict[Node, int] = {}
    out: list[tuple[Any, ...]] = []

    def note(node: Node | None) -> int:
        return -1 if node is None else numbers.setdefault(node, len(numbers))

    def block(items: list[Node | Loop]) -> None:
        for item in items:
            if isinstance(item, Loop):
                ends = [map(note, (c.start, c.state, c.next, c.result)) for c in item.carried]
                heads = map(note, (item.count, item.first, item.again))
                out.append(("loop", *heads, *map(tuple, ends), *(c.name for c in item.carried)))
                block(item.body.items)
                out.append(("end",))
            else:
                args = tuple(map(note, item.args))
                out.append((note(item), item.op, args, item.samples, item.width, item.attr))

    block(graph.block.items)
    return [*out, *((k, note(v)) for k, v in graph.outputs.items()), (graph.packed,)]


def _traced(
    around: Surroundings, function: Any, name: str, dim: int, data: int,
    parameters: dict[str, Parameter], place: SourceLine | None,
) -> Graph:  # fmt: skip
    """One run of the function on values that write."""
    tracer = Tracer(around)
    x = leaf(tracer, Node("data", (), True, dim, "x", place, "x"))
    y = leaf(tracer, Node("data", (), True, None, "y", place, "y"))
    settings = {
        p.name: leaf(tracer, Node("parameter", (), False, p.width(dim), p.name, place, p.name))
        for p in parameters.values()
    }
    try:
        with extremes_known(function), around:
            returned = function(*(x, y)[:data], **settings)
    except AttributeError as error:
        raise _unknown_word(error) from error
    except TypeError as error:  # of Python or NumPy, which know nothing of values
        raise refuse(
            f"{error}; values take operators and torch's functions, and where torch wants no "
            "number, ice.maximum, ice.minimum and ice.where do",
            raised(error),
        ) from error
    around.check_calls()
    if tracer.open:
        raise refuse(
            "this loop is left by break, return or an exception: how many turns a program makes "
            "is for ice.repeat or ice.while_ to say",
            tracer.open[-1],
        )
    packed, outputs = _outputs(tracer, returned, place)
    block = tracer.blocks[0]
    names = frozenset(c.name for loop in block.loops() for c in loop.carried if not c.counter)
    live = _live(block, set(outputs.values()))
    whole = decide_half_way(live, parameters)
    return Graph(name, dim, live, outputs, parameters, packed, names, place, whole)


def _unknown_word(error: AttributeError) -> Exception:
    """A name that a module does not have, as a refusal of the author's line."""
    if not isinstance(error.obj, ModuleType) or error.obj.__name__ != "iceform":
        return error
    public = error.obj._CONTENTS  # by the module that defines them
    words = sorted(w for room in ("language", "samples") for w in public[_ROOM + room].split())
    name = error.name or ""
    meant = f"torch.{name}(v) is one. It" if name in WORDS else f"{near(name, words)}it"
    return refuse(
        f"ice.{name} is not a word of the language; {meant} has {', '.join(words)}, "
        "operators, .sum() and torch's functions",
        raised(error),
    )


def _outputs(
    tracer: Tracer, returned: Any, place: SourceLine | None
) -> tuple[str, dict[str, Node]]:
    if isinstance(returned, dict):
        packed, named = "dict", {str(k): v for k, v in returned.items()}
    elif isinstance(returned, (tuple, list)):
        packed = "tuple" if isinstance(returned, tuple) else "list"
        named = {str(i): v for i, v in enumerate(returned)}
    else:
        packed, named = "one", {"value": returned}
    if not named or not all(isinstance(v, Value) for v in named.values()):
        raise refuse(
            f"an algorithm returns values of its program, as one, a tuple, list or dict; got "
            f"{type(returned).__name__}",
            place,
        )
    for value in named.values():
        if value.lost:
            raise refuse(value.lost, place)
    return packed, {k: v.read() for k, v in named.items()}


def _live(block: Block, needed: set[Node]) -> Block:
    """The block without what nothing needs; adds what it needs itself to ``needed``."""
    kept: list[Node | Loop] = []
    for item in reversed(block.items):
        if isinstance(item, Node):
            if item in needed:
                needed.update(item.args)
                kept.append(item)
        elif any(c.result in needed for c in item.carried):
            kept.append(_live_loop(item, needed))
    return Block(kept[::-1])


def _live_loop(loop: Loop, needed: set[Node]) -> Loop:
    """A loop that carries only what its results or its own turns need."""
    wanted = {c for c in loop.carried if c.result in needed}
    while True:
        inside = {c.next for c in wanted} | ({loop.again} if loop.again is not None else set())
        body = _live(loop.body, inside)
        more = {c for c in loop.carried if c.state in inside}
        if more <= wanted:
            break
        wanted |= more
    needed.update(inside - set(body.walk()))
    needed.update(c.start for c in wanted)
    needed.update(n for n in (loop.most, loop.first) if n is not None)
    carried = tuple(c for c in loop.carried if c in wanted)
    return replace(loop, body=body, carried=carried)
