"""Instructions on slots become lines with names: dead ones go, copies merge, slots share names.

The passes are those of any compiler: which slots are still needed after an instruction, which of
them may not share a name, copies whose two ends may share one, and a name for each.

Arrays are seen one cell at a time. A loop over the samples writes the cell of its own sample, so
for arrays it is read as if it ran once, and a write ends the need for what was there before. What
an inner loop reads of *every* cell is needed until the outer loop ends
(:attr:`TextInstruction.held`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from iceform.errors import CapacityError
from iceform.targets.text.terms import Slot
from iceform.targets.text.words import INDICES, TextSizes


@dataclass(frozen=True)
class Element:
    """The cell of an array at an index: a slot's, or that nearest to a slot's, or a number's."""

    array: Slot
    index: Slot | int
    nearest: bool = False


TextPlace = Slot | Element | Fraction  # what an instruction reads; a number is a Fraction


@dataclass(eq=False)
class Mark:
    """A place in the code that is jumped to."""


@dataclass(eq=False)
class TextInstruction:
    """One line before it has a label and names.

    ``test``: None, or one of > < >= <=; ``target``: None where no jump is.
    """

    dst: Slot | Element
    operation: str
    operands: list[TextPlace]
    test: str | None = None
    target: Mark | None = None
    held: tuple[Slot, ...] = ()
    over_samples: bool = False  # the jump at the end of a loop over samples

    @property
    def copies(self) -> bool:
        """Whether it moves one slot, or one cell, to another and does nothing else."""
        return self.operation == "copy" and self.target is None

    @property
    def written(self) -> Slot:
        """The scalar, or the array, that it writes to."""
        return self.dst if isinstance(self.dst, Slot) else self.dst.array

    def slots(self) -> list[Slot]:
        """Everything it names."""
        return [*_within(self.dst), *self.reads()]

    def reads(self) -> list[Slot]:
        """What it needs: operands, indices, and arrays that are held."""
        found = [s for place in self.operands for s in _within(place)]
        if isinstance(self.dst, Element) and isinstance(self.dst.index, Slot):
            found.append(self.dst.index)
        return [*found, *self.held]


TextCode = list[TextInstruction | Mark]


def _within(place: TextPlace) -> tuple[Slot, ...]:
    if isinstance(place, Element):
        return (
            (place.array, *_within(place.index))
            if isinstance(place.index, Slot)
            else (place.array,)
        )
    return (place,) if isinstance(place, Slot) else ()


# --------------------------------------------------------------------------------------- liveness


@dataclass
class _Needed:
    """After each instruction, the slots whose values are still needed; and before the first."""

    after: dict[TextInstruction, set[Slot]]
    at_start: set[Slot]


def _needed(code: TextCode, outputs: Iterable[Slot]) -> _Needed:
    lines = [x for x in code if isinstance(x, TextInstruction)]
    at: dict[Mark, int] = {}
    count = 0
    for x in code:
        if isinstance(x, Mark):
            at[x] = count
        else:
            count += 1
    before: list[set[Slot]] = [set() for _ in range(len(lines) + 1)]
    before[-1] = set(outputs)
    after: dict[TextInstruction, set[Slot]] = {}
    changed = True
    while changed:
        changed = False
        for k in range(len(lines) - 1, -1, -1):
            line = lines[k]
            out = set(before[k + 1])
            if line.target is not None:
                back = before[at[line.target]]
                out |= {s for s in back if not s.array} if line.over_samples else back
            after[line] = out
            new = (out - {line.written}) | set(line.reads())
            if new != before[k]:
                before[k], changed = new, True
    return _Needed(after, before[0])


def _apart(code: TextCode, outputs: Iterable[Slot]) -> dict[Slot, set[Slot]]:
    """For each slot those that may not share its name."""
    needed = _needed(code, outputs)
    apart: dict[Slot, set[Slot]] = {}  # in the order of the code
    pairs: list[tuple[Slot, Slot]] = []
    for line in (x for x in code if isinstance(x, TextInstruction)):
        for slot in line.slots():
            apart.setdefault(slot, set())
        dst = line.written
        same = _source(line) if line.copies else None
        for other in needed.after[line]:
            if other is not dst and other is not same and other.array == dst.array:
                pairs.append((dst, other))
    for slot in outputs:
        apart.setdefault(slot, set())
    for one, other in pairs:
        apart[one].add(other)
        apart[other].add(one)
    for one in needed.at_start:
        apart[one] |= {o for o in needed.at_start if o is not one and o.array == one.array}
    return apart


def _source(line: TextInstruction) -> Slot | None:
    """The slot or array that a copy reads, if both ends are of one kind."""
    place, dst = line.operands[0], line.dst
    if isinstance(place, Slot) and isinstance(dst, Slot):
        return place
    if isinstance(place, Element) and isinstance(dst, Element) and not place.nearest:
        return place.array if place.index is dst.index else None
    return None


# ---------------------------------------------------------------------------------------- passes


@dataclass
class _Program:
    """TextCode, the slots that answers are read from, and what slots hold before the first line."""

    code: TextCode
    outputs: list[Slot]
    data: dict[Slot, list[Fraction]]
    indices: tuple[Slot, ...]
    merged: dict[Slot, Slot] = field(default_factory=dict)

    def without_dead(self) -> None:
        """Drop lines whose results nobody needs, and loops that do nothing."""
        while True:
            after = _needed(self.code, self.outputs).after
            dead = {
                x
                for x in self.code
                if isinstance(x, TextInstruction) and x.target is None and x.written not in after[x]
            } | set(self._idle_loops())
            if not dead:
                return
            self.code = [x for x in self.code if x not in dead]

    def _idle_loops(self) -> Iterable[TextInstruction]:
        """The jumps of loops over samples with nothing between."""
        for one, two in zip(self.code, self.code[1:], strict=False):
            if isinstance(two, TextInstruction) and two.target is one and two.over_samples:
                yield two

    def without_copies(self) -> None:
        """Let both ends of a copy be one slot where nothing speaks against it."""
        while True:
            self.without_dead()
            apart = _apart(self.code, self.outputs)
            pair = next(
                (
                    (line, slot)
                    for line in self.code
                    if isinstance(line, TextInstruction)
                    and line.copies
                    and (slot := _source(line)) is not None
                    and self._may_merge(line, slot, apart)
                ),
                None,
            )
            if pair is None:
                return
            line, source = pair
            dst = line.written
            if source is not dst:
                self._merge(source, dst)
            self.code.remove(line)

    def _may_merge(self, line: TextInstruction, source: Slot, apart: dict[Slot, set[Slot]]) -> bool:
        dst = line.written
        if source in self.indices or dst in self.indices:
            return False
        return dst not in apart[source] and not (source in self.data and dst in self.data)

    def _merge(self, gone: Slot, kept: Slot) -> None:
        """One slot takes the place of another everywhere."""
        kept.hint = kept.hint or gone.hint
        if gone in self.data:
            self.data[kept] = self.data.pop(gone)

        def moved(place: TextPlace) -> TextPlace:
            if isinstance(place, Element):
                array = kept if place.array is gone else place.array
                return replace(
                    place, array=array, index=kept if place.index is gone else place.index
                )
            return kept if place is gone else place

        for x in self.code:
            if isinstance(x, TextInstruction):
                x.dst = moved(x.dst)  # type: ignore[assignment]
                x.operands = [moved(p) for p in x.operands]
                x.held = tuple(kept if s is gone else s for s in x.held)
        self.outputs = [kept if s is gone else s for s in self.outputs]
        self.merged = {a: kept if b is gone else b for a, b in self.merged.items()} | {gone: kept}

    def with_tests(self) -> None:
        """``t = a - b`` and ``t = t if > 0 goto L`` are one line."""
        code: TextCode = []
        for x in self.code:
            last = code[-1] if code else None
            if (
                isinstance(x, TextInstruction)
                and isinstance(last, TextInstruction)
                and last.target is None
                and x.operation == "copy"
                and x.target is not None
                and x.operands == [x.dst]
                and last.dst == x.dst
            ):
                last.test, last.target = x.test, x.target
            else:
                code.append(x)
        self.code = code


@dataclass(frozen=True)
class Allocated:
    """TextCode that is ready to be written: names of slots, and what was merged into what."""

    code: TextCode
    names: dict[Slot, str]
    data: dict[Slot, list[Fraction]]
    merged: dict[Slot, Slot]


def allocate(
    code: TextCode, outputs: list[Slot], data: dict[Slot, list[Fraction]],
    indices: dict[Slot, str], sizes: TextSizes, name: str,
) -> Allocated:  # fmt: skip
    """Run the passes, and give every slot a name of the machine."""
    program = _Program(code, outputs, dict(data), tuple(indices))
    program.without_copies()
    program.with_tests()
    apart = _apart(program.code, program.outputs)
    used = {i for i in indices if i in apart}
    names = {i: indices[i] for i in used}
    scalars = [s for s in sizes.scalar_names if s not in names.values()]
    scalars.sort(key=lambda s: s in INDICES)
    for array, pool, what in ((False, scalars, "scalars"), (True, sizes.array_names, "arrays")):
        _colour(apart, names, array, list(pool), what, name)
    at_start = _needed(program.code, program.outputs).at_start
    kept = {slot: values for slot, values in program.data.items() if slot in at_start}
    return Allocated(program.code, names, kept, program.merged)


def _colour(
    apart: dict[Slot, set[Slot]], names: dict[Slot, str], array: bool, pool: list[str], what: str,
    program: str,
) -> None:  # fmt: skip
    """Names for the slots of one kind, so that slots that are needed at once differ."""
    beyond = [f"{what} {k}" for k in range(len(apart))]
    for slot in (s for s in apart if s.array == array and s not in names):
        taken = {names[o] for o in apart[slot] if o in names}
        free = [n for n in (*pool, *beyond) if n not in taken]
        names[slot] = slot.hint if slot.hint in free else free[0]
    used = {n for s, n in names.items() if s.array == array}
    short = used & set(beyond)
    if short:
        raise CapacityError(
            f"{program} needs {len(used)} {what} at once, and this machine has "
            f"{len(used) - len(short)}. Use fewer features, or a machine with more {what}."
        )
