"""Terms become lines: what a value is made of is written, instruction by instruction, into slots.

A scalar term is computed where it is first needed and kept in a slot. A term that differs from
sample to sample is computed in a loop over the samples: in an array where a later loop reads it,
else in a scalar of the sample at hand. Sums are chains of lines, products among them in one line
where the machine has a third operand. A softmax is two loops over the samples; a function that the
machine has not is a table in an array, with a straight line between two cells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import torch

from iceform.errors import BoundError
from iceform.targets.text.allocating import Element, Mark, TextCode, TextInstruction, TextPlace
from iceform.targets.text.terms import TABLES, ScalarTerm, Slot, TermTable
from iceform.targets.text.words import TextSizes

ZERO, ONE = Fraction(0), Fraction(1)
_SEARCHES = ("attended", "picked")  # that go over the samples by themselves
_RUNNING = Slot(False, "the result of the line before")


class TermWriter:
    """Writes terms of so many samples as instructions of a machine of these sizes.

    Attributes
    ----------
    code
        What was written.
    data
        What slots hold before the first instruction: a number, or one for each cell.
    indices
        The slots that address arrays, and their names.
    """

    def __init__(self, sizes: TextSizes, samples: int) -> None:
        self.sizes, self.samples = sizes, samples
        self.terms = TermTable(samples, sizes.format.bits)
        self.code: TextCode = []
        self.data: dict[Slot, list[Fraction]] = {}
        self.own, self.other, self.cell = Slot(False, "i"), Slot(False, "j"), Slot(False, "k")
        self.indices = {self.own: "i", self.other: "j", self.cell: "k"}
        self._tables: dict[str, Slot] = {}
        self._settled: dict[ScalarTerm, Slot] = {}  # terms that a slot holds
        self._local: dict[ScalarTerm, Slot] = {}  # of the sample at hand, in a loop over samples
        self._uses: Counter[ScalarTerm] = Counter()
        self._index = self.own

    def _element(self, place: TextPlace) -> TextPlace:
        return self._cell_of(place) if isinstance(place, Slot) else place

    def _cell_of(self, slot: Slot) -> Slot | Element:
        """A scalar itself, of an array the cell of the sample at hand."""
        return Element(slot, self._index) if slot.array else slot

    # ---------------------------------------------------------------------- terms become slots

    def _held(self, term: ScalarTerm) -> Slot | Fraction:
        """Where a settled term is."""
        if term.kind == "number":
            return term.value
        if term.kind == "read":
            slot: Slot = term.attr
            return slot
        return self._settled[term]

    def _is_held(self, term: ScalarTerm) -> bool:
        return term.kind in ("number", "read") or term in self._settled

    def _prepare(self, roots: Sequence[ScalarTerm]) -> None:
        """Everything that needs loops over the samples, so that scalar roots can be written."""
        terms = self._reachable(roots)
        open_ = [t for t in terms if not self._is_held(t)]
        self._uses = Counter(a for t in open_ for a in t.args)
        self._uses.update(roots)
        stage = dict.fromkeys(terms, 0)
        for t in open_:  # arguments come before what is made of them
            later = t.kind in ("total", *_SEARCHES)
            stage[t] = max((stage[a] for a in t.args), default=0) + later
            if t.kind == "at":
                stage[t] = max(stage[t], stage[t.args[0]] + t.args[0].lane)
        kept = [t for t in terms if self._needs_array(t, roots, terms, stage)]
        for level in range(max(stage.values(), default=0) + 1):
            here = [t for t in kept if stage[t] == level and t.kind != "part"]
            sums = [t for t in terms if t.kind == "total" and stage[t] == level + 1]
            self._sample_loop(here, [t for t in sums if not self._is_held(t)])
            for t in terms:
                if t.kind in _SEARCHES and stage[t] == level + 1 and t not in self._settled:
                    search = self._attend if t.kind == "attended" else self._pick
                    search(t)

    def _settle(self, roots: Sequence[ScalarTerm]) -> None:
        """Write what the roots need; a scalar is in a slot then, a lane in an array."""
        self._prepare(roots)
        for root in roots:
            if not root.lane and not self._is_held(root):
                self._operand(root)

    def _reachable(self, roots: Iterable[ScalarTerm]) -> list[ScalarTerm]:
        """The terms that roots are made of and that are not held, arguments first."""
        seen: dict[ScalarTerm, None] = {}

        def visit(term: ScalarTerm) -> None:
            if term not in seen:
                if not self._is_held(term):
                    for a in term.args:
                        visit(a)
                seen[term] = None

        for root in roots:
            visit(root)
        return list(seen)

    def _needs_array(
        self, term: ScalarTerm, roots: Sequence[ScalarTerm], terms: list[ScalarTerm],
        stage: dict[ScalarTerm, int],
    ) -> bool:  # fmt: skip
        """Whether a lane is read by a later loop than the one that computes it."""
        if not term.lane or self._is_held(term):
            return False
        if term in roots or term.kind == "index":
            return term in roots
        readers = [t for t in terms if term in t.args and not self._is_held(t)]
        return any(
            t.kind in _SEARCHES or (t.kind != "total" and stage[t] > stage[term]) for t in readers
        )

    @contextmanager
    def _over_samples(
        self, index: Slot | None = None, held: Sequence[Slot] = (), last: int | None = None
    ) -> Iterator[None]:
        """A loop over the samples, from the last one on, around what is written meanwhile."""
        index = self.own if index is None else index
        outer_index, outer_local = self._index, self._local
        self._index, self._local = index, dict(outer_local)
        self._emit(index, "copy", [Fraction(self.samples - 1 if last is None else last)])
        top = Mark()
        self.code.append(top)
        yield
        end = self._emit(index, "-", [index, ONE], ">=", top)
        end.over_samples, end.held = True, tuple(held)
        self._index, self._local = outer_index, outer_local

    def _sample_loop(self, arrays: list[ScalarTerm], sums: list[ScalarTerm]) -> None:
        if not arrays and not sums:
            return
        for term in (*arrays, *(s.args[0] for s in sums)):
            self._hoist(term)
        slots = {term: Slot(True) for term in arrays}
        totals = {term: Slot(False) for term in sums}
        for slot in totals.values():
            self._emit(slot, "copy", [ZERO])
        inside = self._reachable([*arrays, *(s.args[0] for s in sums)])
        held = [self._array(t.args[0]) for t in inside if t.kind == "at" and t.lane]
        with self._over_samples(held=held):
            for term, slot in slots.items():
                self._into(Element(slot, self._index), term)
                self._settled[term] = slot
            for term, slot in totals.items():
                self._add_to(slot, term.args[0])
        self._settled.update(totals)

    def _hoist(self, term: ScalarTerm) -> None:
        """Compute what is the same for all samples before a loop over them."""
        for a in term.args:
            if a.lane:
                if not self._is_held(a):
                    self._hoist(a)
            elif a.kind == "affine" and term.kind in ("add", "affine"):
                self._operand(a.args[0])
            else:
                self._operand(a)

    # ---------------------------------------------------------------------------- instructions

    def _emit(
        self, dst: Slot | Element, operation: str, operands: list[TextPlace],
        test: str | None = None, target: Mark | None = None,
    ) -> TextInstruction:  # fmt: skip
        instruction = TextInstruction(dst, operation, operands, test, target)
        self.code.append(instruction)
        return instruction

    def _operand(self, term: ScalarTerm) -> TextPlace:
        """Where a term is; it is written first if it is nowhere yet."""
        if self._is_held(term):
            return self._element(self._held(term))
        if term.kind == "index":
            return self._index
        if term not in self._local and term.kind == "at" and term.lane and self._uses[term] <= 1:
            return self._read_at(term)
        if term not in self._local:
            slot = Slot(False)
            self._into(slot, term)
            if not term.lane:
                self._settled[term] = slot
                return slot
            self._local[term] = slot
        return self._local[term]

    def _into(self, dst: Slot | Element, term: ScalarTerm) -> None:
        """Write a term's value to a place."""
        if self._is_held(term) or term in self._local or term.kind in ("total", "part"):
            self._emit(dst, "copy", [self._operand(term)])
        elif term.kind in ("add", "affine"):
            self._chain(dst, None, term)
        elif term.kind == "index":
            self._emit(dst, "copy", [self._index])
        elif term.kind == "at":
            self._emit(dst, "copy", [self._read_at(term)])
        elif term.kind == "product":
            self._emit(dst, "*", [self._operand(a) for a in term.args])
        elif term.kind == "call":
            self._emit(dst, term.attr, [self._operand(a) for a in term.args])
        else:
            self._look_up(dst, term)

    def _array(self, term: ScalarTerm) -> Slot:
        """The array that holds a lane for all samples."""
        slot = self._held(term)
        assert isinstance(slot, Slot)
        return slot

    def _read_at(self, term: ScalarTerm) -> Element:
        """The cell of an array at a computed index."""
        array, place = self._array(term.args[0]), term.args[1]
        if place.kind == "number":
            return Element(array, max(0, math.floor(place.value + Fraction(1, 2))))
        index = self._operand(place)
        if not isinstance(index, Slot):
            index, found = Slot(False), index
            self._emit(index, "copy", [found])
        return Element(array, index, nearest=True)

    def _add_to(self, slot: Slot, term: ScalarTerm) -> None:
        self._chain(slot, slot, term)

    def _chain(self, dst: Slot | Element, start: Slot | None, term: ScalarTerm) -> None:
        """``dst = start + term`` for a sum: one line for each part, products included."""
        parts, shift = self._parts(term, term.lane, top=True)
        plain: list[tuple[bool, TextPlace]] = []
        products: list[tuple[bool, list[TextPlace]]] = []
        for atom, factor in parts.items():
            up = factor > 0
            if abs(factor) != 1:
                products.append((up, [self._factor(abs(factor)), self._operand(atom)]))
            elif atom.kind == "product" and self._single(atom, term.lane):
                products.append((up, [self._operand(a) for a in atom.args]))
            else:
                plain.append((up, self._operand(atom)))
        if shift:
            plain.append((shift > 0, abs(shift)))
        self._lines(dst, start, plain, products)

    def _factor(self, value: Fraction) -> Fraction:
        """A factor; refused where its word is 0, which would drop what it is a factor of."""
        form = self.sizes.format
        if form.nearest(value) == "0":
            raise BoundError(
                f"the factor {float(value):.3g} is nearer to 0 than to the least number of this "
                f"machine, {form.word(1)}. Scale the data, or take a machine with more fraction."
            )
        return value

    def _lines(
        self, dst: Slot | Element, start: Slot | None, plain: list[tuple[bool, TextPlace]],
        products: list[tuple[bool, list[TextPlace]]],
    ) -> None:  # fmt: skip
        if not self.sizes.third_operand:
            for up, factors in products:
                slot = Slot(False)
                self._emit(slot, "*", factors)
                plain.append((up, slot))
            products = []
        plain.sort(key=lambda p: not p[0])
        products.sort(key=lambda p: not p[0])
        total: TextPlace | None = start
        steps: list[tuple[str, list[TextPlace]]] = []
        if total is None and plain and plain[0][0]:
            total = plain.pop(0)[1]
        if total is None and products and products[0][0]:
            steps.append(("*", products.pop(0)[1]))
            total = _RUNNING
        if total is None:
            total = ZERO
        for up, factors in products:
            steps.append(("c + a * b" if up else "c - a * b", [total, *factors]))
            total = _RUNNING
        for up, place in plain:
            steps.append(("+" if up else "-", [total, place]))
            total = _RUNNING
        if not steps:
            steps.append(("copy", [total]))
        last: Slot | Element = dst
        for k, (operation, places) in enumerate(steps):
            to = dst if k == len(steps) - 1 or start is not None else Slot(False)
            self._emit(to, operation, [last if p is _RUNNING else p for p in places])
            last = to

    def _parts(
        self, term: ScalarTerm, lane: bool, *, top: bool = False
    ) -> tuple[dict[ScalarTerm, Fraction], Fraction]:
        """A sum as factors of terms that are not sums of this place, and a number."""
        if term.kind == "number":
            return {}, term.value
        if self._is_held(term) or term in self._local:
            return {term: ONE}, ZERO
        open_ = top or self._single(term, lane)
        if term.kind == "affine":
            factor, shift = term.attr
            inner = term.args[0]
            if abs(factor) == 1 and open_:
                parts, number = self._parts(inner, lane)
                return {a: f * factor for a, f in parts.items()}, number * factor + shift
            return {inner: factor}, shift
        if term.kind == "add" and open_:
            parts, number = self._parts(term.args[0], lane)
            others, more = self._parts(term.args[1], lane)
            out = dict(parts)
            for atom, factor in others.items():
                out[atom] = out.get(atom, ZERO) + factor
            return {a: f for a, f in out.items() if f}, number + more
        return {term: ONE}, ZERO

    def _single(self, term: ScalarTerm, lane: bool) -> bool:
        """Whether a term is computed where it is used: once, in this loop."""
        return (
            self._uses[term] <= 1
            and term.lane == lane
            and term not in self._local
            and not self._is_held(term)
        )

    # ---------------------------------------------------------------------- softmax and tables

    def _attend(self, term: ScalarTerm) -> None:
        """A softmax over the samples, for one query or for the query of each sample."""
        width, count = term.attr
        query, rest = term.args[:width], term.args[width:]
        key, rest = rest[:width], rest[width:]
        value, bias = rest[:count], rest[count:]
        parts = [self.terms.part(term, k) for k in range(count)]
        for q in query:
            if not q.lane:
                self._operand(q)
        for slot, part in zip((Slot(term.lane) for _ in parts), parts, strict=True):
            self._settled[part] = slot
        self._settled[term] = Slot(term.lane)  # never written: the parts are
        outs = [self._settled[part] for part in parts]
        if not term.lane:
            self._softmax(query, key, value, bias, outs, Slot(True))
            return
        # an inner loop reads or writes all their cells while the outer one runs
        arrays = [self._array(t) for t in term.args if t.lane and t.kind != "index"]
        scores = Slot(True)
        with self._over_samples(held=[*arrays, scores]):
            places = [self._cell_of(o) for o in outs]
            self._softmax(query, key, value, bias, places, scores)

    def _pick(self, term: ScalarTerm) -> None:
        """Values of the sample with the largest key; of equal ones the first, seen last."""
        key, values = term.args[0], term.args[1:]
        last = self.samples - 1
        outs = (
            [self._best(key, last)] if values == (key,) else [self._best(v, last) for v in values]
        )
        top = outs[0] if values == (key,) else self._best(key, last)
        self._settled[term] = top
        self._settled.update((self.terms.part(term, k), out) for k, out in enumerate(outs))
        if not last:
            return
        with self._over_samples(self.other, last=last - 1):
            here = self._operand(key)
            if values == (key,):
                self._emit(top, "max", [top, here])
                return
            less, after = Slot(False), Mark()
            self._emit(less, "-", [here, top], "<", after)
            for out, value in zip((top, *outs), (key, *values), strict=True):
                self._emit(out, "copy", [self._operand(value)])
            self.code.append(after)

    def _best(self, term: ScalarTerm, last: int) -> Slot:
        """A slot that begins with the last sample's."""
        slot = Slot(False)
        number = Fraction(last)
        place = self._array(term) if term.lane and term.kind != "index" else None
        start: TextPlace = number if term.kind == "index" else self._operand(term)
        self._emit(slot, "copy", [Element(place, last) if place is not None else start])
        return slot

    def _softmax(
        self, query: Sequence[ScalarTerm], key: Sequence[ScalarTerm], value: Sequence[ScalarTerm],
        bias: Sequence[ScalarTerm], outs: Sequence[Slot | Element], scores: Slot,
    ) -> None:  # fmt: skip
        queries = [self._operand(q) for q in query]
        top, total = Slot(False), Slot(False)
        sums = [Slot(False) for _ in value]
        self._emit(top, "copy", [-self.sizes.format.value(self.sizes.format.largest)])
        with self._over_samples(self.other):
            score = Element(scores, self._index)
            plain = [(True, self._operand(b)) for b in bias]
            products = [(True, [q, self._operand(k)]) for q, k in zip(queries, key, strict=True)]
            self._lines(score, None, plain, products)
            self._emit(top, "max", [top, score])
        for slot in (total, *sums):
            self._emit(slot, "copy", [ZERO])
        with self._over_samples(self.other):
            weight = Slot(False)
            self._emit(weight, "-", [Element(scores, self._index), top])
            self._emit(weight, "exp", [weight])
            self._emit(total, "+", [total, weight])
            for slot, v in zip(sums, value, strict=True):
                self._lines(slot, slot, [], [(True, [weight, self._operand(v)])])
        share = Slot(False)
        self._emit(share, "recip", [total])
        for out, slot in zip(outs, sums, strict=True):
            self._emit(out, "*", [slot, share])

    def _look_up(self, dst: Slot | Element, term: ScalarTerm) -> None:
        """A function of one's own: a table in an array, and a straight line between two cells."""
        function, end = TABLES[term.attr]
        last = self.sizes.cells - 2  # the line above the last argument needs one cell more
        if term.attr not in self._tables:
            slot = self._tables[term.attr] = Slot(True)
            points = torch.arange(last + 2).tolist()
            self.data[slot] = [Fraction(function(end * p / last)) for p in points]
        table, place, rest, low = self._tables[term.attr], Slot(False), Slot(False), Slot(False)
        entry = Element(table, self.cell)
        self._emit(place, "*", [self._operand(term.args[0]), Fraction(last / end)])
        self._emit(self.cell, "floor", [place])
        self._emit(rest, "-", [place, self.cell])
        self._emit(low, "copy", [entry])
        self._emit(self.cell, "+", [self.cell, ONE])
        rise = Slot(False)
        self._emit(rise, "-", [entry, low])
        self._lines(dst, None, [(True, low)], [(True, [rest, rise])])
