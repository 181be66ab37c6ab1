"""Printed text: what every surface says of a bound is read back, and must not be below the bound.

A surface is a function of a certificate (or of one number) that returns texts with the numbers they
stand for. :func:`assert_true` draws errors of all sizes, has a surface print them, and compares
decimals with floats exactly: an upper bound that is printed smaller than it is, a lower one that is
printed larger, and a kind that is missing are violations.
"""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Any

import torch

import iceform as ice
from iceform.arithmetic import at_least, at_most
from iceform.certificates import Attestation, Certificate, DerivationStep, Excess
from iceform.cli.commands import plan
from iceform.cli.planning import Need
from iceform.networks.frozen import NetworkSizes
from iceform.networks.report import Report, ReportRow
from iceform.targets.checking import Checked

_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
_DIGITS = r"-?\d[\d,]*\.?\d*"
NUMBER = re.compile(
    rf"({_DIGITS})(?:e([-+]\d+)| ?[·×] ?10(?:<sup>)?([−⁻-]?[\d⁰¹²³⁴⁵⁶⁷⁸⁹]+)(?:</sup>)?)?|inf|∞"
)


@dataclass(frozen=True)
class Said:
    """A piece of text that ends in a number, and the float that the number speaks of."""

    text: str
    exact: float
    least: bool = False  # whether it is bounded from below

    @property
    def number(self) -> Decimal:
        """The first number of the text."""
        found = NUMBER.search(self.text)
        assert found, self.text
        if found[1] is None:
            return Decimal("Infinity")
        power = (found[2] or found[3] or "0").translate(_RAISED)
        return Decimal(found[1].replace(",", "")) * Decimal(10) ** int(power)

    @property
    def violated(self) -> bool:
        """Whether what is printed is not true."""
        exact = Decimal(self.exact)
        return self.number > exact if self.least else self.number < exact


def after(words: str, text: str) -> str:
    """What follows these words, which must be there."""
    assert words in text, (words, text)
    return text.split(words, 1)[1]


SURFACES: dict[str, Callable[[Certificate], list[Said]]] = {}


def surface(function: Callable[[Certificate], list[Said]]) -> Callable[[Certificate], list[Said]]:
    SURFACES[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------
# certificates and tables
# ---------------------------------------------------------------------------------------------


@surface
def statement(c: Certificate) -> list[Said]:
    texts = [c.statement, repr(c), str(c), c.explain()]
    assert all(f"({c.kind}" in text for text in texts)
    return [Said(after("<= ", text), c.error) for text in texts]


@surface
def formats(c: Certificate) -> list[Said]:
    forms = (".0e", ".1e", ".2e", ".3e", ".1g", ".3g", ".6g")
    return [Said(f"{c:{form}}", c.error) for form in forms]


@surface
def explanation(c: Certificate) -> list[Said]:
    lines = c.explain().splitlines()
    found = [Said(after("error", line), c.error) for line in lines if line.startswith("  error")]
    for name, value in c.terms.items():
        found += [Said(after("= ", line), value) for line in lines if line.startswith(f"  {name} ")]
    for step in c.derivation:
        mine = [line for line in lines if line.startswith(f"  {step.symbol} ")]
        found += [Said(after("= ", line), step.value, step.least) for line in mine]
    assert len(found) == 1 + len(c.terms) + len(c.derivation)
    return found


@surface
def excess(c: Certificate) -> list[Said]:
    told = replace(c, excess=Excess(c.error, "some lines")).explain().splitlines()[1]
    assert "(claimed)" in told if c.kind == "claimed" else "(proven)" in told
    return [Said(after("<= ", told), c.error)]


@surface
def domains(c: Certificate) -> list[Said]:
    """Ends of a domain are exact: rounded either way they would promise too much somewhere."""
    lines = [line for line in c.explain().splitlines() if line.startswith("  max |x|: ")]
    assert float(after(": ", lines[0])) == c.domain["max |x|"]
    return []


@surface
def interpolants(c: Certificate) -> list[Said]:
    it = replace(_table(), error=c.error)
    return [Said(after("<= ", repr(it)), c.error), Said(f"{it:.1e}", c.error)]


@surface
def directions(c: Certificate) -> list[Said]:
    return [
        Said(at_most(c.error, form), c.error) for form in (".0e", ".2g")
    ] + [Said(at_least(c.error, form), c.error, least=True) for form in (".0e", ".2g")]  # fmt: skip


@cache
def _table() -> ice.Interpolant:
    return ice.Interpolant.fit(torch.tanh, -2, 2, eps=1e-4)


@surface
def plans(c: Certificate) -> list[Said]:
    step = _step()
    told = plan._errors(Need(step.regime, step.plan, c.error, dict(c.terms)))
    found = [Said(told["certified error"], c.error)]
    return found + [Said(told[f"  {name}"], value) for name, value in c.terms.items()]


@cache
def _step() -> ice.paper.GradientStep:
    return ice.paper.GradientStep("squared", dim=2, samples=3, eps=1e-4)


@surface
def checks(c: Certificate) -> list[Said]:
    said = str(Checked(torch.zeros(1), 0.0, c, Attestation.none("nothing ran")))
    assert f"({c.kind}, " in said
    return [Said(after("certified ", said), c.error)]


@surface
def networks(c: Certificate) -> list[Said]:
    row = ReportRow("fc", "linear", "rows", 1.0, 5, c.error, 0.0, c.error, 0, c.kind)
    sizes = NetworkSizes(2, 2, 2, 2, 5)
    whole = Report((row,), {}, (), sizes, 5, torch.float64, "fused", c.error, 0.0, c.kind)
    lines = str(whole).splitlines()
    (one,) = [line for line in lines if line.startswith("fc")]
    (last,) = [line for line in lines if line.startswith("whole network")]
    assert f"({c.kind})" in last
    assert (c.kind == "proven") == ("(" not in one)
    cells = re.split(" {2,}", one)
    return [
        Said(after("certified ", last), c.error),
        Said(cells[5], c.error),
        Said(cells[-1], c.error),
    ]


# ---------------------------------------------------------------------------------------------
# refusals: what an error says can be certified is what it holds as ``best``
# ---------------------------------------------------------------------------------------------


def refusals() -> Iterator[Said]:
    """Of everything that is asked for more than it can prove."""
    asked: dict[str, Callable[[], Any]] = {}
    for tokens in (9, 13, 17, 33):
        for f in (torch.tanh, torch.sin, torch.exp):
            asked[f"table {tokens} {f.__name__}"] = lambda f=f, tokens=tokens: ice.Interpolant.fit(
                f, -2, 2, tokens=tokens, eps=1e-15
            )
    for bound in (0.7,):
        given = {"dim": 2, "samples": 3, "bound": bound, "eps": 1e-17}
        asked[f"step {bound}"] = lambda given=given: ice.paper.GradientStep("logistic", **given)
        asked[f"map {bound}"] = lambda given=given: ice.paper.ResidualMap(torch.tanh, **given)
    for name, ask in asked.items():
        try:
            ask()
        except ice.errors.PrecisionError as refused:
            if not math.isfinite(refused.best):
                continue
            told = str(refused)
            near = [m[0] for m in NUMBER.finditer(told) if _alike(m[0], refused.best)]
            if not near:
                raise AssertionError(f"{name} does not say {refused.best}: {told}") from None
            yield from (Said(text, refused.best) for text in near)
        else:
            raise AssertionError(f"{name} was not refused")


def _alike(text: str, value: float) -> bool:
    number = Said(text, 0.0).number
    return number.is_finite() and abs(float(number) - value) <= 0.06 * value


# ---------------------------------------------------------------------------------------------
# draws
# ---------------------------------------------------------------------------------------------


def errors(count: int, seed: int) -> list[float]:
    """Of all sizes, with random bits, near decimals of a few digits, and powers of two."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        usual = 10 ** draw.uniform(-16, 3)
        few = float(f"{usual:.{draw.randint(0, 3)}e}")
        any_bits = abs(struct.unpack("<d", draw.randbytes(8))[0])
        around = math.nextafter(few, draw.choice((0.0, math.inf)))
        value = draw.choice((usual, usual, few, around, any_bits, 2.0 ** draw.randint(-60, 9)))
        found.append(value if 0 < value < math.inf else usual)
    return found


def certificate(error: float, kind: str) -> Certificate:
    """With this error in every place where a certificate has one."""
    return Certificate(
        error,
        {"interpolation": error * 0.7, "rounding": error * 0.3},
        domain={"max |x|": error, "data": "of this run"},
        dtype=torch.float64,
        backend="fused",
        derivation=(
            DerivationStep("up", "a bound", error / 3, "from above"),
            DerivationStep("down", "an eigenvalue", error / 7, "from below", least=True),
        ),
        assumptions=() if kind == "proven" else ("the function is smooth",),
        kind=kind,
    )


def assert_true(shown: Callable[[Certificate], list[Said]], count: int, seed: int) -> int:
    """What a surface prints of so many certificates is true; how many statements those are."""
    said = []
    for at, error in enumerate(errors(count, seed)):
        kind = ("proven", "estimated", "claimed")[at % 3]
        said += shown(certificate(error, kind))
        broken = [one for one in said if one.violated]
        assert not broken, (error, broken)
    return len(said)
