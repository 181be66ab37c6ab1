r"""How many bits a prompt needs, and how many ours has.

**Counting.** The weights are frozen, so two programs that answer differently have different
prompts: a machine that runs M of them, no two alike, has a prompt of at least log2 M bits. Here is
a family. Of V variables one is FLAG, p hold data of the samples, q data of lane 0, and k start
empty and are the answers, p + q + k + 1 <= V. Instruction t of k, k + 1 <= I, writes answer t. Its
operands a and b read own, rowsum and mean of one sample variable each or none, and lane0 of one
variable or none; its table is one of T, :math:`F_j(z) = j/T + z^2, G_j(z) = z`. The answer is
:math:`j/T + (a + b)^2 - (a - b)`. At data 0 it is j/T. Its quadratic part is that of a + b, up to
the sign, its linear part b - a; reads have coefficients of one sign, so a and b follow. And a
names its variables: on two lanes and two components own, rowsum and mean of variables are linearly
independent. So no two of

.. math:: \big((p + 1)^6 (q + 1)^2\, T\big)^k

programs have the same answers on an open set of data; they are finitely many, so their answers
differ by more than some delta, and every machine that is off by less than delta/2 needs

.. math:: k\, \big(6 \log_2 (p + 1) + 2 \log_2 (q + 1) + \log_2 T\big)

bits. Reads by likeness are left out, and so are tables, which are as large as the functions ask.

**Ours.** An instruction's token holds its address, the sign of the flag (2 bits), ten reads and
the destination, the table and the next address: :math:`11 \ell(V + 1) + \ell(T) + 2 \ell(I) + 2`
bits, where a code for K things has :math:`\ell(K)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iceform.computer.layout import ComputerLayout, ComputerSizes, field_sizes


@dataclass(frozen=True)
class PromptBits:
    """Bits of a prompt's program, tables aside.

    Attributes
    ----------
    needed
        No machine of these sizes can do with less.
    fields
        Of the instructions' codes, in this machine's encoding.
    stored
        Of all features of the instructions' tokens as floating-point numbers of 64 bits.
    """

    needed: float
    fields: int
    stored: int

    @classmethod
    def of(cls, sizes: ComputerSizes) -> PromptBits:
        """For all programs that fit the sizes."""
        bits = sizes.bits
        one = sum(field_sizes(sizes).values()) + bits["address"] + 2  # the sign: -1, 0 or 1
        wide = ComputerLayout.of(sizes).features.total
        return cls(_needed(sizes), sizes.instructions * one, sizes.instructions * wide * 64)

    @property
    def ratio(self) -> float:
        """How many bits the fields have for one that is needed."""
        return self.fields / self.needed if self.needed else math.inf


def _needed(sizes: ComputerSizes) -> float:
    """The best of all ways to divide the variables; 0 where reads cannot be told apart."""
    if sizes.width < 2 or sizes.lanes < 2:
        return 0.0
    best = 0.0
    for answers in range(1, min(sizes.variables - 1, sizes.instructions)):
        data = sizes.variables - 1 - answers
        for alone in range(data + 1):
            each = 6 * math.log2(data - alone + 1) + 2 * math.log2(alone + 1)
            best = max(best, answers * (each + math.log2(sizes.tables)))
    return best
