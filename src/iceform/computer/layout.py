"""Where everything is in a token: names for blocks of features, and maps that read them.

Kinds of tokens, each with a flag of its own:

===========  =======================================================================================
null         answers what has no answer, with zeros, and every token that is not meant to ask
instruction  an address (``key``), the sign of the flag it wants (``sign``), and its fields: the
             variables of ten reads and the destination, the table, the next address
unit         one a lane: program counter, fetched fields, operands, result
memory       one variable of one lane: (``variable``, ``home``) and its value
entry        one entry of a table: its table, key (slope, bias) and values f, g
===========  =======================================================================================

Every other token is ``real``. A bit of a code is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.attention import Features
from iceform.computer.instructions import READS
from iceform.computer.sizes import Sizes

__all__ = ["ENTRY", "KINDS", "OPERANDS", "READ_FIELDS", "Layout", "code"]

KINDS = ("instruction", "unit", "memory", "entry")
OPERANDS = ("a", "b")
ENTRY = ("slope", "bias", "f", "g")
READ_FIELDS = tuple(f"{operand} {read}" for operand in OPERANDS for read in READS)


def code(number: Tensor | int, bits: int) -> Tensor:
    """Binary digits, lowest first: shape (*number, bits), float64."""
    numbers = torch.as_tensor(number)
    return ((numbers[..., None] >> torch.arange(bits)) & 1).double()


@dataclass(frozen=True)
class Layout:
    """The features of a computer's tokens."""

    sizes: Sizes
    features: Features

    @classmethod
    def of(cls, sizes: Sizes) -> Layout:
        """In order: kinds, names, values, a table's entry, an instruction's fields, and fetched."""
        bits, width = sizes.bits, sizes.width
        blocks = dict.fromkeys(("real", "null", *KINDS), 1)
        blocks |= {"id": bits["id"], "counter": bits["address"], "lane": bits["lane"]}
        blocks |= {"home": bits["lane"], "variable": bits["variable"]}
        blocks |= dict.fromkeys(("value", "a", "b", "old", "result", "before"), width)
        blocks |= {"table": bits["table"]} | dict.fromkeys(ENTRY, 1)
        blocks |= {"key": bits["address"], "sign": 1}
        for prefix in ("", "fetched "):
            blocks |= {prefix + name: size for name, size in field_sizes(sizes).items()}
        return cls(sizes, Features.of(**blocks))

    @property
    def fields(self) -> dict[str, int]:
        """An instruction's fields and their sizes."""
        return field_sizes(self.sizes)

    @property
    def scratch(self) -> tuple[str, ...]:
        """What a unit forgets at the end of a cycle."""
        return ("a", "b", "old", "result", *(f"fetched {name}" for name in self.fields))

    def size(self, name: str) -> int:
        """Features of a block."""
        at = self.features[name]
        return int(at.stop - at.start)

    def columns(self, *names: str) -> Tensor:
        """The features of these blocks, in order."""
        return torch.cat([torch.arange(self.features.total)[self.features[n]] for n in names])

    def read(self, weights: Mapping[str, float]) -> Tensor:
        """The map that adds up blocks with these weights: (size, features).

        Blocks are of one size; a single feature goes to every row.
        """
        rows = max(self.size(name) for name in weights)
        matrix = torch.zeros(rows, self.features.total, dtype=torch.float64)
        for name, weight in weights.items():
            at = self.features[name]
            matrix[torch.arange(rows), torch.arange(at.start, at.stop).expand(rows)] += weight
        return matrix

    def into(self, name: str) -> Tensor:
        """The map that puts numbers into a block: (features, size)."""
        return self.read({name: 1.0}).mT.contiguous()


def field_sizes(sizes: Sizes) -> dict[str, int]:
    """Ten reads, the destination, the table, the next address."""
    bits = sizes.bits
    names = dict.fromkeys((*READ_FIELDS, "destination"), bits["variable"])
    return names | {"with table": bits["table"], "next": bits["address"]}
