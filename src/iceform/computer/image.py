"""A prompt's tokens, decoded: instructions, tables, memory and units as numbers.

Everything is read out of the token tensor, by the flags and codes that the block's heads match, so
another valid prompt is another image. A prompt whose tokens hold anything where the block would see
it and this image would not is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from iceform.computer.layout import ENTRY, KINDS, Layout
from iceform.errors import ProgramError

__all__ = ["Code", "Image", "Lanes", "Place"]


@dataclass(frozen=True)
class Code:
    """An instruction: the numbers of its fields."""

    key: int
    sign: float
    fields: dict[str, int]


Lanes = range | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """A variable: the lanes that hold it, in order, and its tokens."""

    lanes: Lanes
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class Image:
    """What the tokens of a batch of prompts of one program say."""

    layout: Layout
    codes: tuple[Code, ...]
    entries: dict[int, Float[Tensor, "k 4"]]
    places: dict[int, Place]
    lanes: Lanes
    units: Tensor  # token of every lane
    flag: int  # the variable that branches look at

    @classmethod
    def of(cls, layout: Layout, tokens: Float[Tensor, "b t d"]) -> Image:
        """Decode the first prompt; the others have to differ in values alone."""
        reader = _Reader(layout, tokens)
        return cls(layout, reader.codes(), reader.entries(), reader.places(), *reader.units())

    def with_lanes(self, samples: int) -> Image:
        """The same program on more samples: lanes 1, 2, ... go on where they are held at all.

        Of tokens this says nothing: they have moved.
        """
        none = self.units[:0]
        places = {
            name: Place(range(1, samples + 1) if 1 in place.lanes else place.lanes, none)
            for name, place in self.places.items()
        }
        return replace(self, places=places, lanes=range(samples + 1), units=none)

    def at(self, address: int) -> list[Code]:
        """The instructions at an address."""
        return self._at.get(address, [])

    @cached_property
    def _at(self) -> dict[int, list[Code]]:
        found: dict[int, list[Code]] = {}
        for code in self.codes:
            found.setdefault(code.key, []).append(code)
        return found


def _in_order(lanes: Sequence[int]) -> Lanes:
    """A range where that is what they are: it is compared and searched at once."""
    row = range(lanes[0], lanes[0] + len(lanes))
    return row if tuple(row) == tuple(lanes) else tuple(lanes)


class _Reader:
    def __init__(self, layout: Layout, tokens: Tensor) -> None:
        self.layout, self.tokens = layout, tokens[0]
        self.kinds = {kind: self._flagged(kind) for kind in (*KINDS, "null")}
        self._check_batch(tokens)
        self._check_kinds()

    def codes(self) -> tuple[Code, ...]:
        at = self.kinds["instruction"]
        keys, signs = self._numbers(at, "key"), self._block(at, "sign")[:, 0].tolist()
        fields = {name: self._numbers(at, name) for name in self.layout.fields}
        return tuple(
            Code(keys[i], signs[i], {name: found[i] for name, found in fields.items()})
            for i in range(len(at))
        )

    def entries(self) -> dict[int, Tensor]:
        at = self.kinds["entry"]
        numbers = torch.tensor(self._numbers(at, "table"))
        rows = self.tokens[at][:, self.layout.columns(*ENTRY)]
        return {int(n): rows[(numbers == n).to(rows.device)] for n in numbers.unique()}

    def places(self) -> dict[int, Place]:
        at = self.kinds["memory"]
        names, homes = self._numbers(at, "variable"), self._numbers(at, "home")
        found: dict[int, list[tuple[int, int]]] = {}
        for name, home, token in zip(names, homes, at.tolist(), strict=True):
            found.setdefault(name, []).append((home, token))
        return {name: self._place(name, held) for name, held in found.items()}

    def units(self) -> tuple[Lanes, Tensor, int]:
        at = self.kinds["unit"]
        lanes = self._numbers(at, "lane")
        if len(set(lanes)) != len(lanes):
            raise ProgramError("two units have one lane; every lane has one")
        kept = {*zip(self._numbers(at, "variable"), self._numbers(at, "home"), strict=True)}
        if len(kept) != 1 or next(iter(kept))[1] != 0:
            raise ProgramError(f"units keep the flags {kept}; there is one, of lane 0")
        return _in_order(lanes), at, next(iter(kept))[0]

    def _place(self, name: int, held: list[tuple[int, int]]) -> Place:
        lanes = tuple(lane for lane, _ in held)
        if len(set(lanes)) != len(lanes) or name == 0:
            raise ProgramError(f"memory of variable {name} is not one token a lane: lanes {lanes}")
        tokens = torch.tensor([t for _, t in held], device=self.tokens.device)
        return Place(_in_order(lanes), tokens)

    def _flagged(self, kind: str) -> Tensor:
        return (self._column(kind) == 1).nonzero()[:, 0]

    def _column(self, name: str) -> Tensor:
        return self.tokens[:, self.layout.features[name].start]

    def _block(self, at: Tensor, name: str) -> Tensor:
        return self.tokens[at][:, self.layout.features[name]]

    def _numbers(self, at: Tensor, name: str) -> list[int]:
        bits = self._block(at, name)
        if not ((bits == 0) | (bits == 1)).all():
            raise ProgramError(f"{name} of a token is not made of bits")
        powers = 2 ** torch.arange(bits.shape[1], device=bits.device)
        found: list[int] = (bits.long() * powers).sum(-1).tolist()
        return found

    # ------------------------------------------------------------------ what is refused

    def _check_batch(self, tokens: Tensor) -> None:
        """Prompts of a batch differ in values, counters and results alone."""
        rest = torch.ones(self.layout.features.total, dtype=torch.bool)
        rest[self.layout.columns("value", "counter", "before")] = False
        if not (tokens[..., rest] == tokens[:1][..., rest]).all():
            raise ProgramError("the prompts of a batch hold different programs; run them apart")
        units = tokens[:, self.kinds["unit"]][..., self.layout.columns("value", "counter")]
        if not (units == units[:, :1]).all():
            raise ProgramError("the units of a prompt do not agree on flag and program counter")

    def _check_kinds(self) -> None:
        """Every token is of one kind and holds what that kind holds."""
        flags = torch.stack([self._column(kind) for kind in (*KINDS, "null")])
        real = 1 - self._column("null")
        if not ((flags.sum(0) == 1).all() and (self._column("real") == real).all()):
            raise ProgramError("a token is of no kind or of several")
        if len(self.kinds["null"]) != 1:
            raise ProgramError(f"a prompt has one null token, got {len(self.kinds['null'])}")
        for kind, at in self.kinds.items():
            self._check_holds(kind, at)

    def _check_holds(self, kind: str, at: Tensor) -> None:
        own = {
            "instruction": ("key", "sign", *self.layout.fields),
            "unit": ("lane", "home", "variable", "value", "counter", "before"),
            "memory": ("home", "variable", "value"),
            "entry": ("table", *ENTRY),
            "null": (),
        }[kind]
        flags = (kind,) if kind == "null" else ("real", kind)
        rest = self.tokens[at].clone()
        rest[:, self.layout.columns(*flags, "id", *own)] = 0.0
        if rest.any() or not torch.isfinite(self.tokens[at]).all():
            names = self.layout.features.names()
            where = sorted({names[j] for j in rest.nonzero()[:, 1].tolist()})[:3]
            raise ProgramError(f"a token of kind {kind} holds what is not its own: {where}")
