"""The fused run: what the block does, without attention over memory.

Instructions, tables and memory are decoded from the tokens (:mod:`iceform.computer.decode`), and
what is done with them from the network's matrices (:mod:`iceform.computer.decode`). Reads become
indexing, means and, for likeness, attention over the lanes; look-ups remain softmax over a table,
or the polynomial that the table is (:mod:`iceform.computer.lookups`). A product of two operands is
multiplied out where something else than a sum of it is read (:mod:`iceform.computer.lookups`).
Only lanes that hold the destination are computed, or all where the next instruction may ask by
likeness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform import tuning
from iceform.computer.decode import DecodedBlock, DecodedInstruction, DecodedProgram, Lanes, ReadMap
from iceform.computer.instructions import undecided
from iceform.computer.layout import code as binary
from iceform.computer.lookups import (
    MANY,
    Extents,
    ScaledValue,
    TableLookup,
    Value,
    dense,
    equal_columns,
)
from iceform.errors import ProgramError

_TARGETS = ("a", "b", "old")
_SHARED = ("_tables", "_indices", "_targets", "adds", "_plain_sums", "_plain_results", "_flag",
           "alike")  # fmt: skip


@dataclass(frozen=True, eq=False)
class State:
    """Between two cycles: memory, flag, result of the instruction before, program counters."""

    memory: Mapping[int, Value]  # (b, lanes, m)
    flag: Float[Tensor, "b m"]
    before: Float[Tensor, "b units m"]
    counters: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FastExecutor:
    """An operation and an image: a program that can be run."""

    operation: DecodedBlock
    image: DecodedProgram
    closed: bool = True

    def again(self) -> FastExecutor:
        """The same program for another run: what was decoded is shared, what is noted is not."""
        for name in _SHARED:
            getattr(self, name)
        other = copy(self)
        vars(other).pop("watched", None)
        return other

    def start(self, tokens: Float[Tensor, "b t d"]) -> State:
        """The state that tokens hold."""
        layout = self.image.layout
        value, before = layout.features["value"], layout.features["before"]
        units = tokens[:, self.image.units]
        bits = units[:, 0, layout.features["counter"]].long().tolist()
        return State(
            _narrowed({n: tokens[:, p.tokens, value] for n, p in self.image.places.items()}),
            units[:, 0, value],
            units[:, :, before],
            tuple(sum(bit << k for k, bit in enumerate(row)) for row in bits),
        )

    def begin(self, memory: Mapping[int, Float[Tensor, "b lanes m"]]) -> State:
        """The state before the first cycle, of memory that is in no tokens."""
        flag = memory[self.image.flag][:, 0]
        before = flag.new_zeros(len(flag), len(self.image.lanes), 1)
        return State(_narrowed(memory), flag, before, (0,) * len(flag))

    def write(self, tokens: Float[Tensor, "b t d"], state: State) -> Float[Tensor, "b t d"]:
        """The tokens that hold a state."""
        layout, tokens = self.image.layout, tokens.clone()
        for name, place in self.image.places.items():
            tokens[:, place.tokens, layout.features["value"]] = dense(state.memory[name])
        units = tokens[:, self.image.units]
        units[..., layout.features["value"]] = state.flag[:, None]
        units[..., layout.features["before"]] = state.before
        bits = binary(torch.tensor(state.counters), layout.size("counter")).to(tokens)
        units[..., layout.features["counter"]] = bits[:, None]
        tokens[:, self.image.units] = units
        return tokens

    def held(self, state: State, name: int) -> Float[Tensor, "b lanes m"]:
        """What a variable holds, with all its lanes and components."""
        lanes = len(self.image.places[name].lanes)
        return dense(state.memory[name]).expand(len(state.counters), lanes, self._width)

    def cycle(self, state: State) -> State:
        """One instruction, in every problem of the batch."""
        groups = self._fetch(state)
        if len(groups) == 1:
            return self.execute(groups[0][0], state)
        for code, rows in groups:
            state = _merged(state, self.execute(code, _rows(state, rows)), rows)
        return state

    def fetched(self, state: State) -> list[DecodedInstruction]:
        """The instructions that the problems of a batch run next."""
        return [code for code, _ in self._fetch(state)]

    def halted(self, state: State) -> bool:
        """Whether every problem has come to an instruction that names itself."""
        return all(self._halts(counter) for counter in set(state.counters))

    def _halts(self, counter: int) -> bool:
        found = self.image.at(counter)
        return len(found) == 1 and found[0].fields["next"] == counter

    # ------------------------------------------------------------------ fetch

    def _fetch(self, state: State) -> list[tuple[DecodedInstruction, list[int]]]:
        """Which problems run which instruction."""
        groups: dict[int, tuple[DecodedInstruction, list[int]]] = {}
        for counter in sorted(set(state.counters)):
            rows = [i for i, other in enumerate(state.counters) if other == counter]
            for code, chosen in self._choose(counter, state, rows):
                groups.setdefault(id(code), (code, []))[1].extend(chosen)
        return list(groups.values())

    def _choose(
        self, counter: int, state: State, rows: list[int]
    ) -> list[tuple[DecodedInstruction, list[int]]]:
        found = self.image.at(counter)
        if len(found) == 1:
            return [(found[0], rows)]
        if not found:
            raise ProgramError(f"there is no instruction at address {counter}")
        flag = state.flag.cpu()[rows]  # the host waits for a GPU once
        logits = (flag @ self._flag)[:, None] * flag.new_tensor([code.sign for code in found])
        top, at = logits.topk(2, -1)
        if not bool((top[:, 0] - top[:, 1] >= self.operation.tau).all()):
            raise undecided(counter, float(flag[:, 0].abs().min()))
        chosen = at[:, 0].tolist()
        split = [(code, [r for r, c in zip(rows, chosen, strict=True) if c == k])
                 for k, code in enumerate(found)]  # fmt: skip
        return [(code, members) for code, members in split if members]

    # ------------------------------------------------------------------ execute

    def execute(self, code: DecodedInstruction, state: State) -> State:
        """One instruction."""
        destination = code.fields["destination"]
        lanes = self._lanes(code)
        operands = self._read(code, state, lanes)
        result = self._compute(code, operands)
        memory, flag = dict(state.memory), state.flag
        change = self._stored(result, operands)
        place = self.image.places.get(destination)
        if place is not None:
            memory[destination] = (
                change
                if lanes == place.lanes and not self.adds
                else (
                    self._moved(
                        memory[destination], self._aligned(dense(change), lanes, place.lanes)
                    )
                )
            )
        if destination == self.image.flag and 0 in lanes:
            flag = self._moved(flag, self.wide(dense(change)[:, lanes.index(0)]))
        before = self._remembered(result, lanes, state.before)
        counters = (code.fields["next"],) * len(state.counters)
        return State(memory, flag, before, counters)

    def _moved(self, held: Value, change: Tensor) -> Tensor:
        return dense(held) + change if self.adds else change

    def names_read(self, code: DecodedInstruction) -> Iterator[int]:
        """The variables that an instruction reads."""
        for read in self.operation.reads:
            if code.fields[read.field] and (read.field != "destination" or self.adds):
                yield code.fields[read.field]

    def asks(self, code: DecodedInstruction) -> bool:
        """Whether an instruction asks by likeness, with the result of the one before."""
        return bool(code.fields["a like"] or code.fields["b like"])

    def _lanes(self, code: DecodedInstruction) -> Lanes:
        """The lanes whose results are needed."""
        place = self.image.places.get(code.fields["destination"])
        following = self.image.at(code.fields["next"])
        if place is None or any(map(self.asks, following)):
            return self.image.lanes
        if code.fields["destination"] == self.image.flag and 0 not in place.lanes:
            return self.image.lanes
        return place.lanes

    def _read(self, code: DecodedInstruction, state: State, lanes: Lanes) -> dict[str, Tensor]:
        """A, b and old: (batch, lanes or 1, m)."""
        totals: dict[str, Tensor | None] = dict.fromkeys(_TARGETS)
        for read in self.operation.reads:
            if code.fields[read.field] == 0 or (read.field == "destination" and not self.adds):
                continue
            found = self._found(read, code.fields[read.field], state, lanes)
            for target, matrix in self._targets[read.field].items():
                if found is not None:
                    share = self._through(found, matrix)
                    held = totals[target]
                    totals[target] = share if held is None else held + share
        zero = state.flag.new_zeros(len(state.flag), 1, 1)
        return {name: zero if total is None else total for name, total in totals.items()}

    def _through(self, found: Value, matrix: Tensor | None) -> Tensor:
        if matrix is None:
            return dense(found)
        if isinstance(found, ScaledValue):
            return found.times(matrix)
        return self.wide(found) @ matrix

    def _found(self, read: ReadMap, name: int, state: State, lanes: Lanes) -> Value | None:
        """What a read finds: None where the null token answers."""
        place = self.image.places.get(name)
        if place is None:
            return None
        held = state.memory[name]
        if read.kind == "mean":
            return held.mean() if isinstance(held, ScaledValue) else held.mean(1, keepdim=True)
        if read.kind in ("own", "rowsum") and lanes == place.lanes:
            return held
        held = dense(held)
        if read.kind == "like":
            before = self.wide(self._aligned(state.before, self.image.lanes, lanes))
            held = self.wide(held)
            return torch.softmax(before @ read.likeness @ held.mT, -1) @ held
        if read.kind != "lane0":
            return self._aligned(held, place.lanes, lanes)
        at = place.lanes.index(0) if 0 in place.lanes else None
        return None if at is None else held[:, at : at + 1]

    def _compute(self, code: DecodedInstruction, operands: dict[str, Tensor]) -> Value:
        a, b = operands["a"], operands["b"]
        plain = self._plain_sums and self._plain_results
        narrow = plain and a.shape[-1] == b.shape[-1] == 1
        active, table = self._table(code.fields["with table"], narrow=narrow)
        sizes = [max(k, j) for k, j in zip(a.shape[:-1], b.shape[:-1], strict=True)]
        shape = torch.Size((*sizes, 1 if narrow else self._width))
        if not active:
            return a.new_zeros(shape)
        if plain and len(active) == 2 * shape[-1] and shape.numel() >= MANY:
            product = table.product(a, b, self.watched)
            if product is not None:
                return product if product.factor.numel() < shape.numel() else product.dense
        pair = (a, b) if narrow else (self.wide(a), self.wide(b))
        pair = torch.broadcast_tensors(*pair)
        if plain and len(active) == 2 * shape[-1]:
            found = table.pair(pair[0] + pair[1], pair[0] - pair[1], self.watched)
            if found is not None:
                return found
        return self._spread(table(self._arguments(pair, active), self.watched), active)

    @property
    def outside(self) -> bool:
        """Whether an argument has left where a closed form is its table: then run without them."""
        return self.watched.outside()

    def _table(self, number: int, *, narrow: bool) -> tuple[list[int], TableLookup]:
        """The heads that find anything but zeros in a table, and what they see of it.

        Where all components are equal (``narrow``), the first one's heads.
        """
        if (number, narrow) not in self._tables:
            self._tables[number, narrow] = self._seen(number, 2 if narrow else None)
        return self._tables[number, narrow]

    def _seen(self, number: int, heads: int | None) -> tuple[list[int], TableLookup]:
        entries, operation = self.image.entries.get(number), self.operation
        if entries is None:
            raise ProgramError(f"there is no table {number} in the prompt")
        values = entries @ operation.values
        active = values[:, :heads].any(0).nonzero()[:, 0].tolist()
        keys = entries @ operation.slopes[:, active], entries @ operation.biases[:, active]
        return active, TableLookup(*keys, values[:, active], closed=self.closed)

    def _stored(self, result: Value, operands: dict[str, Tensor]) -> Value:
        """What the store head finds in a unit; the result itself where it replaces what is held."""
        if not self.adds:
            return result
        parts = map(self.wide, (dense(result), operands["old"], operands["a"], operands["b"]))
        return torch.cat(torch.broadcast_tensors(*parts), -1) @ self.operation.store

    def wide(self, value: Tensor) -> Tensor:
        """With all components, where equal ones were kept once."""
        width = self._width
        return value if value.shape[-1] == width else value.expand(*value.shape[:-1], width)

    def _remembered(self, result: Value, lanes: Lanes, before: Tensor) -> Tensor:
        if lanes != self.image.lanes:
            return before
        return dense(result).expand(-1, len(lanes), -1)

    def _arguments(self, pair: tuple[Tensor, ...], active: list[int]) -> Tensor:
        if self._plain_sums:
            width = pair[0].shape[-1]
            if active == list(range(0, 2 * width, 2)):
                return pair[0] + pair[1]
            if active == list(range(1, 2 * width, 2)):
                return pair[0] - pair[1]
            if active == list(range(2 * width)):
                return torch.stack([pair[0] + pair[1], pair[0] - pair[1]], -1).flatten(-2)
        return torch.cat(pair, -1) @ self.operation.arguments[:, active]

    def _spread(self, looked: Tensor, active: list[int]) -> Tensor:
        width = looked.shape[-1] // 2
        if self._plain_results and active == list(range(2 * width)):
            return looked.reshape(*looked.shape[:-1], width, 2).sum(-1)
        same = range(active[0], active[0] + 2 * len(active), 2)
        if self._plain_results and active == list(same) and len(active) in (1, self._width):
            return looked
        return looked @ self.operation.results[active]

    # ------------------------------------------------------------------ what is fixed

    @property
    def _width(self) -> int:
        return self.image.layout.sizes.width

    @cached_property
    def _targets(self) -> dict[str, dict[str, Tensor | None]]:
        """For every field: what a read adds to a, b and old; None stands for the identity."""
        width = self.image.layout.sizes.width
        found: dict[str, dict[str, Tensor | None]] = {}
        for read in self.operation.reads:
            parts = zip(_TARGETS, read.matrix.split(width, 1), strict=True)
            found[read.field] = {
                target: None if torch.equal(part, _eye(part)) else _narrow(part)
                for target, part in parts
                if part.any()
            }
        return found

    @cached_property
    def alike(self) -> list[list[int]]:
        """Look-up heads in groups with the same keys, values and sizes of arguments."""
        operation = self.operation
        a, b = (half.sum(0, keepdim=True) for half in operation.arguments.abs().chunk(2))
        return equal_columns(
            torch.cat([a, b, operation.slopes, operation.biases, operation.values])
        )

    @cached_property
    def adds(self) -> bool:
        """Whether a write is anything but replacing what is held: held + result - old = result."""
        store, width = self.operation.store, self.image.layout.sizes.width
        eye = _eye(store[:width])
        plain = torch.cat([eye, -eye, 0 * eye, 0 * eye])
        return not (torch.equal(store, plain) and self._targets["destination"] == {"old": None})

    @cached_property
    def _plain_sums(self) -> bool:
        """Whether arguments are a_j + b_j and a_j - b_j in turn."""
        eye = _eye(self.operation.arguments[:, ::2][: self.image.layout.sizes.width])
        sums = torch.stack([torch.cat([eye, eye]), torch.cat([eye, -eye])], -1).flatten(1)
        return torch.equal(self.operation.arguments, sums)

    @cached_property
    def _plain_results(self) -> bool:
        """Whether heads 2 j and 2 j + 1 find component j of the result."""
        eye = _eye(self.operation.results[::2])
        return torch.equal(self.operation.results, eye.repeat_interleave(2, 0))

    @cached_property
    def _tables(self) -> dict[tuple[int, bool], tuple[list[int], TableLookup]]:
        return {}

    @cached_property
    def _flag(self) -> Tensor:
        return self.operation.flag.cpu()

    @cached_property
    def watched(self) -> Extents:
        return Extents()

    @cached_property
    def _indices(self) -> dict[tuple[Lanes, Lanes], Tensor]:
        return {}

    def _aligned(self, held: Tensor, lanes: Lanes, wanted: Lanes) -> Tensor:
        """Rows of some lanes as those of others; zeros where there are none."""
        if lanes == wanted:
            return held
        held = held.expand(-1, len(lanes), -1)
        if len(wanted) == 1 and wanted[0] in lanes:
            at = lanes.index(wanted[0])
            return held[:, at : at + 1]
        if (lanes, wanted) not in self._indices:
            at_lane = {lane: row for row, lane in enumerate(lanes)}
            rows = [at_lane.get(lane, len(lanes)) for lane in wanted]
            self._indices[lanes, wanted] = torch.tensor(rows, device=held.device)
        padded = torch.cat([held, torch.zeros_like(held[:, :1])], 1)
        return padded[:, self._indices[lanes, wanted]]


def _narrowed(memory: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Every variable with one component where all are equal: two looks at all of them."""
    first = _all_equal({name: value[:, : tuning.FUSED_FEW] for name, value in memory.items()})
    narrow = _all_equal({name: memory[name] for name in first})
    return {name: v[..., :1] if name in narrow else v for name, v in memory.items()}


def _all_equal(memory: Mapping[int, Tensor]) -> set[int]:
    """The variables whose components are all equal."""
    once = {name for name, v in memory.items() if v.stride(-1) == 0}
    rest = [name for name in memory if name not in once]
    if not rest:
        return once
    same = torch.stack([(memory[n] == memory[n][..., :1]).all() for n in rest]).tolist()
    return once | {name for name, equal in zip(rest, same, strict=True) if equal}


def _narrow(value: Tensor) -> Tensor:
    """One component where all are equal."""
    return value[..., :1] if bool((value == value[..., :1]).all()) else value


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[0], like.shape[1], dtype=like.dtype, device=like.device)


def _rows(state: State, rows: list[int]) -> State:
    return State(
        {name: dense(value)[rows] for name, value in state.memory.items()},
        state.flag[rows],
        state.before[rows],
        tuple(state.counters[i] for i in rows),
    )


def _merged(state: State, part: State, rows: list[int]) -> State:
    """A state with some of its problems replaced."""
    memory = {name: _replaced(v, part.memory[name], rows) for name, v in state.memory.items()}
    counters = list(state.counters)
    for row, counter in zip(rows, part.counters, strict=True):
        counters[row] = counter
    return replace(
        state,
        memory=memory,
        flag=_replaced(state.flag, part.flag, rows),
        before=_replaced(state.before, part.before, rows),
        counters=tuple(counters),
    )


def _replaced(held: Value, changed: Value, rows: list[int]) -> Tensor:
    whole, part = dense(held), dense(changed)
    sizes = [max(a, b) for a, b in zip(whole.shape[1:], part.shape[1:], strict=True)]
    out = whole.expand(-1, *sizes).clone()
    out[rows] = part
    return out
