"""What every run returns: an answer, its proof, what it ran on, and what was computed where.

A :class:`Result` holds a :class:`Certificate` (before the fact: a proven error for every input of
a domain), where one was computed an :class:`Enclosure` (after the fact: how far this answer is from
the exact one), an :class:`Attestation` (which weights ran, and what running some of it again
through them has shown) and a :class:`Ledger` of what was computed where:

``prompt``
    Written into tokens: affine in the data, with coefficients that the program fixes.
``attention``
    By the frozen network.
``readout``
    A fixed linear map of what the network returned.
``host``
    Everything else that was computed from data: Gram matrices, step sizes, stopping, proofs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_least, at_most, exactly
from iceform.codec import decode, encode
from iceform.errors import IceformError, IntegrityError, ProgramError, ShapeError
from iceform.pretrained import Pretrained, unpacked, write
from iceform.validation import dtype_name, full_precision, plain_tensor, tensor_of, written_out


@dataclass(frozen=True)
class DerivationStep:
    """One line of a derivation: a symbol, the formula it comes from, and its value.

    Attributes
    ----------
    symbol, formula, value
        What is computed, from what, and what it comes to.
    why
        Where the formula comes from, in words.
    least
        Whether the value bounds something from below, as the smallest eigenvalue does.

    Examples
    --------
    >>> step = DerivationStep("h", "(b - a)/n", 1 / 3, "cells of the grid")
    >>> step.shown  # rounded up, since it bounds from above
    '0.3334'
    """

    symbol: str
    formula: str
    value: float
    why: str
    least: bool = False

    @property
    def shown(self) -> str:
        """The value in four digits: rounded up, or down where it bounds from below."""
        return (at_least if self.least else at_most)(self.value, ".4g")


@dataclass(frozen=True)
class Excess:
    """F(found) - min F <= ``bound``: how far an objective F is above its least value.

    F is the mean loss with its penalty, in the units of the data.

    Attributes
    ----------
    bound
        The proven bound.
    over
        Among which lines F is least, in words; among all of them where it is empty.

    Examples
    --------
    >>> print(Excess(1e-8, over="lines with |w| <= 1").explain())
    F(found) - min F <= 1.001e-08 over lines with |w| <= 1 (proven), F the mean loss with its...
    """

    bound: float
    over: str = ""

    def explain(self, kind: str = "proven") -> str:
        """As a sentence; ``kind`` is "claimed" where a file says it."""
        lines = f"{self.over}" if self.over else "all lines"
        what = "F the mean loss with its penalty"
        return f"F(found) - min F <= {at_most(self.bound)} over {lines} ({kind}), {what}"


@dataclass(frozen=True)
class Verification:
    """What ball arithmetic says of one answer; it is true where the certificate holds.

    Attributes
    ----------
    holds
        Whether the error is below the certificate.
    measured
        A proven upper bound of the error of the numbers that came back.
    certified
        The certificate.
    bits
        Precision of the balls.

    Examples
    --------
    >>> bool(Verification(holds=False, measured=2e-9, certified=1e-9, bits=256))
    False
    """

    holds: bool
    measured: float
    certified: float
    bits: int

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True, eq=False, repr=False)
class ErrorBound:
    """A proven bound of the error of every entry, rounding included.

    Its kinds are :class:`Certificate`, from before a run, and :class:`Enclosure`, from after it.

    Attributes
    ----------
    error
        The bound.
    terms
        Its parts, which add up to ``error``: interpolation, leak, rounding, and where they apply
        propagation and convergence.
    domain
        Where it holds.
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

    Examples
    --------
    >>> terms = {"interpolation": 1e-9, "rounding": 2e-12}
    >>> about = dict(domain={"|x|": 1.0}, dtype=torch.float64, backend="fused")
    >>> bound = Certificate.total(terms, **about)  # the sum of the terms, rounded up
    >>> print(f"{bound:.1e}")
    1.1e-09
    >>> bound.statement
    '|emulated - exact| <= 1.003e-09 in every entry (proven)'
    """

    error: float
    terms: Mapping[str, float]
    domain: Mapping[str, float | str]
    dtype: torch.dtype
    backend: str
    derivation: tuple[DerivationStep, ...] = ()
    assumptions: tuple[str, ...] = ()
    compared: str = "emulated - exact"
    kind: str = "proven"

    @classmethod
    def total(cls, terms: Mapping[str, float], **rest: Any) -> Self:
        """The bound whose error is the sum of its terms, rounded up."""
        # A term that is not a number bounds nothing.
        terms = {name: math.inf if math.isnan(v) else v for name, v in terms.items()}
        error = math.fsum(terms.values()) if all(map(math.isfinite, terms.values())) else math.inf
        return cls(math.nextafter(error, math.inf) if error else 0.0, terms, **rest)

    @property
    def statement(self) -> str:
        """What is bounded by how much, in one line."""
        known = self.kind if self.error < math.inf else f"{self.kind}: nothing bounds it"
        return f"|{self.compared}| <= {at_most(self.error)} in every entry ({known})"

    def __repr__(self) -> str:
        dtype = dtype_name(self.dtype)
        return f"{type(self).__name__}({self.statement}, {dtype}, {self.backend} backend)"

    def __str__(self) -> str:
        return self.explain()

    def __format__(self, form: str) -> str:
        """``f"{certificate:.1e}"`` is the error in that form, rounded up."""
        return at_most(self.error, form) if form else str(self)

    def explain(self) -> str:
        """The derivation with its numbers, as text."""
        wide = max([len(s.symbol) for s in self.derivation] + [len(t) for t in self.terms])
        lines = [self.statement, *self._beside(), "", self._holds]
        lines += [f"  {name}: {_show(value)}" for name, value in self.domain.items()]
        dtype = dtype_name(self.dtype)
        lines += [f"  arithmetic: {dtype}, {self.backend} backend"]
        lines += ["", "because"] if self.derivation else []
        for step in self.derivation:
            lines.append(f"  {step.symbol:<{wide}} = {step.shown:<11} {step.formula}")
            lines.append(f"  {'':<{wide}}   {'':<11} {step.why}")
        lines += ["", "terms"]
        lines += [f"  {name:<{wide}} = {at_most(value)}" for name, value in self.terms.items()]
        lines += [f"  {'error':<{wide}} = {at_most(self.error)}"]
        if self.assumptions:
            lines += ["", "taking for granted that"]
            lines += [f"  {a}" for a in self.assumptions]
        return "\n".join(lines)

    _holds: ClassVar[str] = "holds for"

    def _beside(self) -> list[str]:
        """Lines below the statement."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """All of it, derivation included, for JSON."""
        said: dict[str, Any] = encode(self)
        return said

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` said, which nobody has proved again: it is "claimed"."""
        return decode(cls, {**said, "kind": "claimed"})

    def to_json(self) -> str:
        """All of it as JSON, derivation included."""
        return json.dumps(self.to_dict(), indent=2)


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(ErrorBound):
    """A bound from before the run: of the error for every input in ``domain``, rounding included.

    Inputs outside of the domain are refused.

    Attributes
    ----------
    excess
        What is proven of the objective, where that says more than the distance does: curvature is
        weak, or nothing bounds the distance at all.
    verifier
        What :meth:`verify` calls, with the inputs and ``certified=`` and ``bits=``; None of a
        certificate from a file. One that has ``data()``, the tensors of the run, gives a saved
        result the digest of its data; one that has ``program``, something that can be kept, is
        saved with it.

    Examples
    --------
    >>> @ice.algorithm
    ... def mean_square(x, y):
    ...     return ice.mean(y * y)
    >>> certificate = ice.compile(mean_square, dim=1, samples=2, eps=1e-6).certificate
    >>> certificate.kind, certificate.error <= 1e-6
    ('proven', True)
    """

    excess: Excess | None = None
    verifier: Callable[..., Verification] | None = field(
        default=None, repr=False, metadata={"kept": False}
    )

    def _beside(self) -> list[str]:
        if self.excess is None:
            return []
        # Whatever the distance rests on, this is proven where it was found.
        return [self.excess.explain("claimed" if self.kind == "claimed" else "proven")]

    @full_precision
    def verify(self, *inputs: Tensor, bits: int = 256) -> Verification:
        """Recompute one instance in ball arithmetic and compare.

        The exact algorithm is enclosed by balls of ``bits`` bits; the emulator's own output is a
        floating-point number and so known exactly. Slow: keep the instance small.
        """
        if self.verifier is None:
            raise ProgramError(
                "this certificate came without what it speaks of, from a file, say; verify that of "
                "the emulator, run or fit itself"
            )
        return self.verifier(*inputs, certified=self.error, bits=bits)


@dataclass(frozen=True, eq=False, repr=False)
class Enclosure(ErrorBound):
    """A bound from after the run: how far one answer is from the exact one.

    It speaks of one answer to one input, which ``domain`` describes, and of no other.

    Examples
    --------
    >>> about = dict(domain={"input": "the one given"}, dtype=torch.float64, backend="fused")
    >>> Enclosure.total({"distance from the source": 1e-13}, **about).statement
    '|emulated - exact| <= 1.001e-13 in every entry (proven)'
    """

    _holds: ClassVar[str] = "of"


def weakest(kinds: Iterable[str]) -> str:
    """The kind of a bound that rests on several others: the weakest of theirs.

    Examples
    --------
    >>> weakest(["proven", "estimated", "proven"])
    'estimated'
    """
    return min(kinds, key=("claimed", "estimated", "proven").index, default="proven")


def _show(value: float | str) -> str:
    return value if isinstance(value, str) else exactly(value)


def _digest(*data: Tensor) -> str:
    """SHA-256 of samples, labels and sample weights; missing labels count as zeros."""
    found = hashlib.sha256()
    zeros = [data[0].new_zeros(len(data[0]))] if len(data) == 1 else []
    for part in [*data, *zeros]:
        found.update(repr(tuple(part.shape)).encode())
        found.update(written_out(part.detach().to("cpu", torch.float64)).numpy().data)
    return found.hexdigest()


def joined(digests: Iterable[str]) -> str:
    """One SHA-256 for several, in order."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@dataclass(frozen=True)
class Attestation:
    """Which weights ran, and what running random entries again by their matrices has shown.

    Attributes
    ----------
    weights
        SHA-256 of the weights used in this run.
    expected
        SHA-256 that the sizes imply.
    backend
        How the network was evaluated.
    rows
        Query rows, drawn at random, that were run again through the literal matrices.
    difference
        The largest difference found.
    allowed
        What the certificates of both evaluations allow of it.
    note
        What the numbers do not say; for a run without attestation, why there is none.
    literal
        Whether all of it went through the literal matrices, so that nothing is left to run again.
    claimed
        Whether a file says so, and nobody here has seen the run.

    Examples
    --------
    >>> found = Attestation("ab12", "ab12", "fused", rows=3, difference=1e-13, allowed=1e-12)
    >>> found.ok
    True
    >>> print(Attestation.none("its data are gone"))
    not attested: its data are gone
    """

    weights: str
    expected: str
    backend: str
    rows: int = 0
    difference: float = 0.0
    allowed: float = 0.0
    note: str = ""
    literal: bool = False
    claimed: bool = False

    def __post_init__(self) -> None:
        if self.backend == "literal":
            object.__setattr__(self, "literal", True)

    @classmethod
    def none(cls, why: str, backend: str = "none") -> Attestation:
        """No attestation, and the reason."""
        return cls("", "", backend, note=why)

    @classmethod
    def together(cls, parts: Sequence[Attestation]) -> Attestation:
        """Of a run on several networks: their digests as one, and the row nearest to its limit."""
        missing = [part for part in parts if not part.weights]
        if missing or not parts:
            return missing[0] if missing else cls.none("nothing ran")
        checked = [part for part in parts if part.rows]
        worst = max(checked, key=_share, default=parts[0])
        unseen = [part for part in parts if not part.literal and not part.rows]
        return cls(
            joined(part.weights for part in parts),
            joined(part.expected for part in parts),
            next((part.backend for part in parts if not part.literal), parts[0].backend),
            0 if unseen else sum(part.rows for part in parts),
            worst.difference,
            worst.allowed,
            unseen[0].note if unseen else "",
            all(part.literal for part in parts),
            any(part.claimed for part in parts),
        )

    @property
    def ok(self) -> bool | None:
        """Whether the weights are those of the sizes and what was run again agrees.

        None where nobody can say: it was read from a file, or nothing was run again.
        """
        if not self.weights or self.weights != self.expected or not self.within:
            return False
        return None if self.claimed or not (self.literal or self.rows) else True

    @property
    def within(self) -> bool:
        """Whether the rows that were run again agree."""
        return self.difference <= self.allowed and math.isfinite(self.difference)

    def explain(self) -> str:
        """In words."""
        if not self.weights:
            return f"not attested: {self.note}"
        same = (
            "as its sizes imply"
            if self.weights == self.expected
            else (f"but its sizes imply {self.expected[:12]}")
        )
        lines = [f"weights {self.weights[:12]} ran, {same} ({self.backend} backend)"]
        if self.claimed:
            lines.append("claimed by the file that it was read from; run it again to see")
        if self.literal:
            lines.append("every row went through the literal matrices")
        elif self.rows:
            lines.append(
                f"{self.rows} rows drawn at random and run again through the literal matrices: "
                f"off by {at_most(self.difference, '.1e')}, {at_most(self.allowed, '.1e')} allowed"
            )
        return "\n".join([*lines, self.note] if self.note else lines)

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> dict[str, Any]:
        """For JSON; whoever reads it back has a claim."""
        return {name: value for name, value in encode(self).items() if name != "claimed"}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Attestation:
        """What :meth:`to_dict` said, which nobody has seen again: it is claimed."""
        return decode(cls, {**said, "claimed": True})


def _share(part: Attestation) -> float:
    """The difference as a share of what is allowed; infinite where it is larger."""
    return part.difference / part.allowed if part.within and part.allowed else math.inf


PLACES = ("prompt", "attention", "readout", "host")


@dataclass(eq=False)
class Ledger:
    """What a run computed in the prompt, by attention, by a fixed readout and on the host.

    Attributes
    ----------
    times
        How often, by (place, what).

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.note("host", "step size", times=3)
    >>> ledger.note("attention", "prompts through the frozen network")
    >>> print(ledger)
    attention prompts through the frozen network
    host      step size x 3
    """

    times: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, where: str, what: str, times: int = 1) -> None:
        """Count something that was done."""
        if where not in PLACES:
            raise ValueError(f"where must be one of {', '.join(PLACES)}, got {where!r}")
        self.times[where, what] = self.times.get((where, what), 0) + times

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """(place, what, times), place by place."""
        for place in PLACES:
            for (where, what), times in self.times.items():
                if where == place:
                    yield where, what, times

    @property
    def entries(self) -> tuple[tuple[str, str, int], ...]:
        """(place, what, times), place by place."""
        return tuple(self)

    @property
    def host(self) -> tuple[str, ...]:
        """What the host computed from data."""
        return tuple(what for where, what, _ in self if where == "host")

    def merge(self, other: Ledger) -> None:
        """Count what another ledger holds."""
        for where, what, times in other:
            self.note(where, what, times)

    def explain(self) -> str:
        """A line for each."""
        shown = [(where, what, f"x {times}" if times > 1 else "") for where, what, times in self]
        return "\n".join(f"{where:<9} {what} {times}".rstrip() for where, what, times in shown)

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [{"where": a, "what": b, "times": c} for a, b, c in self]


def in_form(form: str, parts: Mapping[str, Any]) -> Any:
    """Named answers in the form in which a program returns them: "dict", "tuple" or "list".

    >>> in_form("tuple", {"0": 1.0, "1": 2.0})
    (1.0, 2.0)
    """
    if form == "dict":
        return dict(parts)
    return (tuple if form == "tuple" else list)(parts.values())


@dataclass(frozen=True, eq=False, repr=False)
class Result(Pretrained, kept_as="Result"):
    """What every run returns: an answer, its proof, which weights ran, and what was computed where.

    Attributes
    ----------
    answer
        ``value``, or what computes it once it is asked for.
    certificate
        Proven distance of ``value`` from the exact answer, term by term; where it is known before
        the fact, for every input of its domain.
    attestation
        Which weights ran, and what running rows of it again has shown.
    ledger
        What was computed where.
    passes
        Passes of the frozen network over the data.
    parts
        Named parts of the answer beside ``value``: an intercept, a scale, variances.
    errors
        Proven distances of those parts, where they are known.
    converged
        Whether a loop ended below its tolerance.
    history
        Lengths of the steps of a loop.
    enclosed
        ``enclosure``, or what computes it once it is asked for.
    form
        How ``value`` holds the answers: "one", or a "tuple", "list" or "dict" of the parts.
    predictor
        What answers new points, a line or samples that are kept in the prompt; None where the
        answer makes no predictions.
    ablated
        What repeats the run without attention, for :meth:`without_attention`; None of a result
        from a file.

    ``save(path)`` keeps it in a folder, with the SHA-256 of the data that its certificate is about;
    what :func:`iceform.load` reads back is "claimed" until it is verified on those data.

    Examples
    --------
    >>> @ice.algorithm
    ... def mean_square(x, y):
    ...     return ice.mean(y * y)
    >>> program = ice.compile(mean_square, dim=1, samples=2, eps=1e-6)
    >>> x, y = torch.zeros(2, 1).double(), torch.tensor([0.5, -0.5]).double()
    >>> result = ice.Computer.for_programs([program]).run(program, x, y)
    >>> float((result.value - 0.25).abs()) <= result.certificate.error
    True
    >>> result.attestation.ok
    True
    """

    answer: Tensor | Callable[[], Tensor]
    certificate: Certificate
    attestation: Attestation
    ledger: Ledger
    passes: int = 1
    parts: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)
    converged: bool = True
    history: tuple[float, ...] = ()
    enclosed: Enclosure | Callable[[], Enclosure | None] | None = None
    form: str = "one"
    predictor: Any = field(default=None, repr=False)
    ablated: Callable[[], Tensor] | None = field(default=None, repr=False)
    _data: str | None = field(default=None, repr=False)

    @cached_property
    @full_precision
    def value(self) -> Any:
        """The answer, be it coefficients, components, a retrieved state or an output.

        Of a program that returns several, they are in the form in which its author returns them.
        """
        if self.form != "one":
            return in_form(self.form, self.parts)
        return self.answer if isinstance(self.answer, Tensor) else self.answer()

    @cached_property
    def enclosure(self) -> Enclosure | None:
        """How far this answer is from the exact one, after the fact; None where nothing tells."""
        return self.enclosed() if callable(self.enclosed) else self.enclosed

    @property
    def _seen(self) -> Enclosure | None:
        """The enclosure, where it need not be computed first."""
        return None if callable(self.enclosed) and "enclosure" not in vars(self) else self.enclosure

    @property
    def _tensor(self) -> Tensor:
        """The answer, or the first of several."""
        first: Tensor = self.value if self.form == "one" else next(iter(self.parts.values()))
        return first

    def __repr__(self) -> str:
        """The answer with its proof and its weights in a line each; ``explain()`` has the rest."""
        parts = [self._shown(), self._unsettled(), self.certificate.statement]
        parts.append("" if self._seen is None else self._seen.statement)
        parts.append(str(self.attestation).partition("\n")[0])
        return "Result(\n  " + ",\n  ".join(part for part in parts if part) + "\n)"

    def _shown(self) -> str:
        if not isinstance(self.answer, Tensor) and "value" not in vars(self):
            return "a value that is computed when it is asked for"
        if self.form != "one":
            return repr(self.value)
        few = self.value.numel() <= tuning.RESULT_SHOWN
        return repr(self.value) if few else f"a tensor of shape {tuple(self.value.shape)}"

    @property
    def digest(self) -> str:
        """SHA-256 of the weights that ran."""
        return self.attestation.weights

    @property
    def coef(self) -> Tensor:
        """The coefficients of a linear model."""
        coefficients: Tensor = self.value
        return coefficients

    @property
    def intercept(self) -> Tensor:
        """The intercept of a linear model; 0 where it has none."""
        found: Tensor = self.parts.get("intercept", self.value.new_zeros(()))
        return found

    @full_precision
    def predict(self, x: Tensor) -> Tensor:
        """Predictions for new points, shape (m,), where the answer makes any."""
        if self.predictor is None:
            raise ProgramError("this algorithm makes no predictions; its answer is in .value")
        x = plain_tensor("points", x)
        if x.ndim != 2:
            raise ShapeError(f"points must have shape (m, dim), got {tuple(x.shape)}")
        predictions: Tensor = self.predictor(x)
        return predictions

    @full_precision
    def without_attention(self) -> float:
        """How far the answer moves when attention is taken out of the whole run.

        Every look-up then returns what is looked up, and every average weighs all tokens alike. 0
        means that attention computes nothing of this answer; infinity, that there is none without.
        """
        if self.ablated is None:
            raise ProgramError("this run cannot be repeated: its data are gone")
        try:
            moved = (self.ablated() - self.value).abs().max()
        except IntegrityError:  # its data are others now: that says nothing of attention
            raise
        except IceformError:
            return math.inf
        return math.inf if bool(moved.isnan()) else float(moved)

    def verify(self, *inputs: Tensor, bits: int = 256) -> Verification:
        """The exact answer enclosed in ball arithmetic, beside this one.

        A result from a file is given its data, which must be those it was saved with.
        """
        inputs = tuple(tensor_of(f"input {k}", part) for k, part in enumerate(inputs))
        if inputs and self._data is not None and _digest(*inputs) != self._data:
            raise IntegrityError(
                f"these data have the SHA-256 {_digest(*inputs)[:12]}..., and the result is about "
                f"data with {self._data[:12]}...; give the same X and y"
            )
        return self.certificate.verify(*inputs, bits=bits)

    def explain(self) -> str:
        """Whether its loop settled, the proof, the attestation and the ledger, as text."""
        parts = [
            self._unsettled(), self.certificate.explain(),
            "" if self._seen is None else self._seen.explain(),
            self.attestation.explain(), self.ledger.explain(),
        ]  # fmt: skip
        return "\n\n".join(part for part in parts if part)

    def _unsettled(self) -> str:
        if self.converged:
            return ""
        left = f", a step of length {self.history[-1]:.3g} still to go" if self.history else ""
        return (
            f"NOT CONVERGED: stopped after {self.passes} passes{left}; the certificate is of where "
            "it stopped"
        )

    # ---------------------------------------------------------------------------------- files

    def data_digest(self, *data: Tensor) -> str | None:
        """SHA-256 of the data of the run: of those given, or as the run has kept them."""
        kept = getattr(self.certificate.verifier, "data", None)
        data = data or (kept() if kept is not None else ())
        return _digest(*data) if data else self._data

    def save(self, path: str | Path, *data: Tensor) -> Path:
        """Write it into a folder: answer, certificate, attestation, ledger.

        Large data are not kept with a run; ``save(path, X, y)`` says which they were. An enclosure
        that nobody asked for is not computed for a file.
        """
        return write(replace(self, enclosed=self._seen, _data=self.data_digest(*data)), path)

    def card(self) -> tuple[str, dict[str, str]]:
        known = {"What is known of it": self.explain()}
        known |= {"Its data, SHA-256": self._data} if self._data else {}
        return "The answer of a run of a frozen network.", known

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        parts = {f"part.{k}": v for k, v in self.parts.items()}
        parts |= {f"error.{k}": v for k, v in self.errors.items()}
        tensors = {k: v for k, v in parts.items() if isinstance(v, Tensor)}
        program = getattr(self.certificate.verifier, "program", None)
        try:
            made, its = program.pack() if isinstance(program, Pretrained) else (None, {})
        except ProgramError:  # a function of the user's own, which files do not hold
            made, its = None, {}
        content = {
            **self.to_dict(),
            "history": list(self.history),
            "certificate": self.certificate.to_dict(),
            "enclosure": None if self._seen is None else self._seen.to_dict(),
            "plain": {k: v for k, v in parts.items() if k not in tensors},
            "data": self.data_digest(),
            "program": made,
            "form": self.form,
        }
        return content, {
            "value": self._tensor,
            **tensors,
            **{f"its.{k}": v for k, v in its.items()},
        }

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> Result:
        held = {**content["plain"], **tensors}
        under = {
            kind: {k.removeprefix(kind): v for k, v in held.items() if k.startswith(kind)}
            for kind in ("part.", "error.", "its.")
        }
        ledger = Ledger({(e["where"], e["what"]): e["times"] for e in content["ledger"]})
        enclosure = content.get("enclosure")  # earlier files hold none
        found = cls(
            tensors["value"], Certificate.from_dict(content["certificate"]),
            Attestation.from_dict(content["attestation"]), ledger, content["passes"],
            under["part."], under["error."], content["converged"], tuple(content["history"]),
            None if enclosure is None else Enclosure.from_dict(enclosure),
            content.get("form", "one"), _data=content["data"],
        )  # fmt: skip
        if content["program"] is None:
            return found
        made: Result = unpacked("Program", content["program"], under["its."]).verifiable(found)
        return made

    def to_dict(self) -> dict[str, Any]:
        """What is kept of it in a file, the tensors aside."""
        return {
            "passes": self.passes,
            "converged": self.converged,
            "attestation": self.attestation.to_dict(),
            "ledger": self.ledger.to_dict(),
        }
