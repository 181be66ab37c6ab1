"""Certificate: a proven error, what it is made of, and where it holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from iceform.errors import ProgramError

__all__ = ["Certificate", "Excess", "Step", "Verification", "weakest"]


@dataclass(frozen=True)
class Step:
    """One line of a derivation: a symbol, the formula it comes from, and its value."""

    symbol: str
    formula: str
    value: float
    why: str


@dataclass(frozen=True)
class Excess:
    """F(found) - min F <= ``bound``: how far an objective F is above its least value.

    F is the mean loss with its penalty, in the units of the data. ``over`` says of which lines it
    is the least; all of them where it is empty.
    """

    bound: float
    over: str = ""

    def explain(self) -> str:
        """As a sentence."""
        lines = f"{self.over}" if self.over else "all lines"
        what = "F the mean loss with its penalty"
        return f"F(found) - min F <= {self.bound:.3e} over {lines} (proven), {what}"


@dataclass(frozen=True)
class Verification:
    """What ball arithmetic found on one instance."""

    holds: bool
    measured: float  # a proven upper bound of the error of the numbers the emulator returned
    certified: float
    bits: int

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """A sup-norm bound for every input in ``domain``, rounding included.

    Attributes
    ----------
    error
        The bound: |compared| <= error in every entry.
    terms
        Its parts, which add up to ``error``: interpolation, leak, rounding, and where they apply
        propagation and convergence.
    domain
        What the inputs must satisfy; the emulator refuses others.
    dtype, backend
        The arithmetic and the evaluation it holds for.
    derivation
        Where each number comes from.
    assumptions
        What the proof takes for granted; empty where nothing.
    compared
        The difference that is bounded: an emulation's from the exact algorithm, or an answer's
        from the exact optimum.
    kind
        "proven"; "estimated" where a step was read off samples; "claimed" where it comes from a
        file and was not proved again.
    excess
        What is proven of the objective, where that says more than the distance does: curvature is
        weak, or nothing bounds the distance at all.
    """

    error: float
    terms: Mapping[str, float]
    domain: Mapping[str, float | str]
    dtype: torch.dtype
    backend: str
    derivation: tuple[Step, ...] = ()
    assumptions: tuple[str, ...] = ()
    compared: str = "emulated - exact"
    kind: str = "proven"
    excess: Excess | None = None
    _verifier: Callable[..., Verification] | None = field(default=None, repr=False)

    @classmethod
    def total(cls, terms: Mapping[str, float], **rest: Any) -> Certificate:
        """The certificate whose error is the sum of its terms, rounded up."""
        # A term that is not a number bounds nothing.
        terms = {name: math.inf if math.isnan(v) else v for name, v in terms.items()}
        error = math.fsum(terms.values()) if all(map(math.isfinite, terms.values())) else math.inf
        return cls(math.nextafter(error, math.inf) if error else 0.0, terms, **rest)

    @property
    def statement(self) -> str:
        """What is bounded by how much, in one line."""
        return f"|{self.compared}| <= {self.error:.3e} in every entry ({self.kind})"

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Certificate({self.statement}, {dtype}, {self.backend} backend)"

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The derivation with its numbers, as text."""
        wide = max([len(s.symbol) for s in self.derivation] + [len(t) for t in self.terms])
        lines = [self.statement]
        if self.excess is not None:
            lines.append(self.excess.explain())
        lines += ["", "holds for"]
        lines += [f"  {name}: {_show(value)}" for name, value in self.domain.items()]
        dtype = str(self.dtype).removeprefix("torch.")
        lines += [f"  arithmetic: {dtype}, {self.backend} backend"]
        lines += ["", "because"] if self.derivation else []
        for step in self.derivation:
            lines.append(f"  {step.symbol:<{wide}} = {step.value:<11.4g} {step.formula}")
            lines.append(f"  {'':<{wide}}   {'':<11} {step.why}")
        lines += ["", "terms"]
        lines += [f"  {name:<{wide}} = {value:.3e}" for name, value in self.terms.items()]
        lines += [f"  {'error':<{wide}} = {self.error:.3e}"]
        if self.assumptions:
            lines += ["", "taking for granted that"]
            lines += [f"  {a}" for a in self.assumptions]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it, derivation included, for JSON."""
        return {
            "error": self.error,
            "compared": self.compared,
            "kind": self.kind,
            "excess": None if self.excess is None else vars(self.excess),
            "terms": dict(self.terms),
            "domain": dict(self.domain),
            "dtype": str(self.dtype).removeprefix("torch."),
            "backend": self.backend,
            "derivation": [vars(step) for step in self.derivation],
            "assumptions": list(self.assumptions),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Certificate:
        """What :meth:`to_dict` said, which nobody has proved again: it is "claimed"."""
        plain = {name: said[name] for name in ("terms", "domain", "backend", "compared")}
        return cls(
            **plain,
            error=float(said["error"]),
            dtype=getattr(torch, said["dtype"]),
            derivation=tuple(Step(**step) for step in said["derivation"]),
            assumptions=tuple(said["assumptions"]),
            kind="claimed",
            excess=None if said["excess"] is None else Excess(**said["excess"]),
        )

    def to_json(self) -> str:
        """All of it as JSON, derivation included."""
        return json.dumps(self.to_dict(), indent=2)

    def verify(self, *inputs: Tensor, bits: int = 256) -> Verification:
        """Recompute one instance in ball arithmetic and compare (needs ``iceform[rigor]``).

        The exact algorithm is enclosed by balls of ``bits`` bits; the emulator's own output is a
        floating-point number and so known exactly. Slow: keep the instance small.
        """
        if self._verifier is None:
            raise ProgramError(
                "this certificate came without what it speaks of, from a file, say; verify that of "
                "the emulator, run or fit itself"
            )
        return self._verifier(*inputs, certified=self.error, bits=bits)


def weakest(kinds: Iterable[str]) -> str:
    """What a bound that rests on several is: no better than the weakest of them."""
    return min(kinds, key=("claimed", "estimated", "proven").index, default="proven")


def _show(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
