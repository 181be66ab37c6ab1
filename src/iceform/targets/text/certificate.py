r"""What is proven of a text machine: every token that it generates is the interpreter's.

The machine is finite, so the statement is exact, and it is proven of the weights as they are stored
(after the cast to the dtype), for every text that ``check`` accepts. By induction over the tokens:
if the context is right, the token with the highest score is. Token by token and layer by layer that
takes four things.

**Heads look where they should.** Among exact numbers the token that is meant leads every other one
by a *gap*, found from the design's rows: codes differ in a bit or agree, flags are 0 or 1, a later
token leads an earlier one by so much a token; looking back is checked at every position. By how
much the stored weights differ from the design, what rounding does to queries, keys and their
products, and the errors of copied codes make an *error* of the gap. What is left bounds the weight
of all other tokens: the *leak* is positions times exp(error - gap).

**Numbers are carried.** A number that a head copies is off by the norm's rounding, the root's, the
products' and the leak, in units of the unit roundoff u; a chain of heads by their sum.

**Results keep clear of boundaries.** The exact sum or product of two levels keeps a distance from
every rounding boundary (``features``). For each pair of levels, or by a bound where pairs are too
many, that distance less the error of the result must be positive: the *clearance*, in steps. The
heads that compare it then lead by SHARP clearance / shift, less their own rounding.

**Scores.** The right word leads in the language-model head, for all words at once.

What is enumerated and what is bounded is said beside each number. Errors are added up in float64,
whose own rounding is some 1e-13 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from iceform.arithmetic import at_least, at_most
from iceform.certificates import DerivationStep
from iceform.codec import encode


@dataclass(frozen=True)
class TextMargin:
    """Where heads of one kind look: the gap, what may be lost of it, and why."""

    what: str
    gap: float
    error: float
    why: str

    @property
    def left(self) -> float:
        """What is left of the gap."""
        return self.gap - self.error


@dataclass(frozen=True)
class TextCertificate:
    """What is proven of the weights of a text machine.

    ``margins``: where heads look. ``derivation``: how numbers are carried and rounded.
    ``enumerated``: what was checked case by case, and how many cases. ``failures``: what could not
    be proven; the certificate holds if there is none.
    """

    statement: str
    dtype: str
    margins: tuple[TextMargin, ...]
    derivation: tuple[DerivationStep, ...]
    enumerated: dict[str, int]
    assumptions: tuple[str, ...]
    failures: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether everything was proven."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.holds

    def explain(self) -> str:
        """The numbers with their derivation, as text."""
        lines = [self.statement if self.holds else "NOT PROVEN", ""]
        lines += [f"  {reason}" for reason in self.failures]
        lines += ["where heads look (logits: gap - error = left)"]
        for m in self.margins:
            gap, error, left = (
                at_least(m.gap, ".4g"),
                at_most(m.error, ".3g"),
                at_least(m.left, ".4g"),
            )
            lines.append(f"  {m.what:<44} {gap:>9} - {error:<9} = {left:<9} {m.why}")
        lines += ["", "how numbers are carried and rounded"]
        for s in self.derivation:
            lines.append(f"  {s.symbol:<24} = {s.value:<10.4g} {s.formula}")
            lines.append(f"  {'':<24}   {'':<10} {s.why}")
        lines += ["", "checked case by case"]
        lines += [f"  {what}: {count:,}" for what, count in self.enumerated.items()]
        lines += ["", f"taking for granted, in {self.dtype}, that"]
        lines += [f"  {a}" for a in self.assumptions]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        margins = [encode(m) | {"left": m.left} for m in self.margins]
        return {**encode(self), "holds": self.holds, "margins": margins}
