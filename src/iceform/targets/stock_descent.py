"""A program that is descent, as a stock decoder: what ``Program.to`` returns for gpt2 and llama.

The program is recognised (``recognised``), and a ``LinearDescent`` or a ``GeneralDescent`` with its
steps is written. What the program calls its parameters is turned into the target's own with every
prompt, by recognising it again at those settings: step size, penalty and momentum are in the
prompt, the number of steps and their ratios in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from torch import Tensor

from iceform.certificates import Certificate, Step
from iceform.computer.compile import Program
from iceform.errors import TargetError
from iceform.targets.checking import Checked, check
from iceform.targets.data import Domain
from iceform.targets.folder import StockModel, write
from iceform.targets.general_descent import GeneralDescent
from iceform.targets.linear_descent import LinearDescent
from iceform.targets.recognised import Descent, recognised
from iceform.targets.target import Target

__all__ = ["StockDescent", "write_descent"]

_REACHES = (1.0, 2.0, 4.0, 8.0)  # of which the one that certifies most is taken
_POSITIONS = 1024
_TYPICAL = 32  # samples
_ALLOWED = (
    "Under a causal mask the samples never see the state, which leaves full-batch descent on least "
    "squares (penalty, momentum, any step sizes), and one sample a step for any f "
    "(ice.targets.StochasticDescent); write other programs as an albert or a bert"
)


@dataclass(frozen=True, eq=False)
class StockDescent:
    """A program whose steps are layers of a folder that transformers loads.

    Attributes
    ----------
    model
        The folder.
    program
        Whose answers it gives.
    settings
        The program's parameters where a prompt is not given them.
    """

    model: StockModel
    program: Program
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.model.path

    def parameters(self, **settings: Any) -> dict[str, Any]:
        """What the target's prompt holds when the program has these settings."""
        return self._found(settings)[0]

    def prompt(self, X: Tensor, y: Tensor, **settings: Any) -> Tensor:
        """``inputs_embeds``: one token (x, y) a sample; the steps are in the weights."""
        return self.model.prompt(X, y, **self.parameters(**settings))

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in float64 and in the form the algorithm returns."""
        return self._packed(self.model.read(hidden))

    def certificate(self, X: Tensor, y: Tensor, attention: str = "any", **settings: Any) -> Any:
        """What is proven before the fact for these data, of the target's own parameters."""
        return self.model.certificate(X, y, attention, **self.parameters(**settings))

    def check(self, X: Tensor, y: Tensor, *, attention: str = "sdpa", **settings: Any) -> Checked:
        """:func:`iceform.check` of the folder.

        Where the program's step, penalty or momentum is no float64 number the folder runs the
        nearest; then the answer's distance from the program's is enclosed in ball arithmetic.
        """
        given, exact = self._found(settings)
        found = check(self.path, X, y, attention=attention, **given)
        return found if exact else self._enclosed(found, X, y, {**self.settings, **settings})

    def _found(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        spec = self.model.spec
        given = {**self.settings, **settings}
        descent = recognised(self.program.graph, self.program.parameters(**given))
        ratios = _ratios(spec)
        lr = descent.steps[0] / ratios[0]
        if len(ratios) != len(descent.steps) or any(
            abs(eta / (lr * rho) - 1) > _ONE_ULP
            for eta, rho in zip(descent.steps, ratios, strict=True)
        ):
            raise TargetError(
                f"{self.path} holds {len(ratios)} steps in given ratios, and {self.program.name} "
                f"at these settings takes {len(descent.steps)} others; write it again"
            )
        numbers = {"lr": lr, "penalty": descent.penalty, "momentum": descent.momentum}
        names = [n for n in numbers if n in spec.defaults]
        held: dict[str, Any] = {name: float(numbers[name]) for name in names}
        if isinstance(spec, GeneralDescent):
            held["f"] = descent.f
        exact = all(Fraction(held[name]) == numbers[name] for name in names) and all(
            eta == lr * rho for eta, rho in zip(descent.steps, ratios, strict=True)
        )
        return held, exact

    def _packed(self, value: Tensor) -> Any:
        (name,) = self.program.graph.outputs
        return self.program.packed({name: value})

    def _enclosed(
        self, found: Checked, x: Tensor, y: Tensor, settings: Mapping[str, Any]
    ) -> Checked:
        dtype = self.model.spec.torch_dtype
        (name,) = self.program.graph.outputs
        x, y = x.to(dtype).double(), y.to(dtype).double()
        ball = self.program.enclosed(x, y, {name: found.value.double()}, **settings)
        why = f"the exact program on the same data in balls of {ball.bits} bits"
        proof = Certificate.total(
            {"distance": ball.distance},
            domain={"data": "of this run"},
            dtype=dtype,
            backend=found.certificate.backend,
            derivation=(Step("distance", "max |answer - ball|", ball.distance, why),),
            compared="stock network's answer - exact program on these data",
        )
        return replace(found, measured=ball.distance, certificate=proof)


_ONE_ULP = Fraction(1, 2**52)


def _ratios(spec: Target) -> list[Fraction]:
    """The steps over the step size, as the weights hold them."""
    if isinstance(spec, LinearDescent):
        return [Fraction(rho) for rho in spec.schedule]
    assert isinstance(spec, GeneralDescent)
    return [Fraction(1)] * spec.steps


def write_descent(
    program: Program, name: str, path: str | Path, dtype: str, settings: Mapping[str, Any]
) -> StockDescent:
    """Write a program that is recognised as descent."""
    try:
        found = recognised(program.graph, program.parameters(**settings))
    except TargetError as refused:
        raise TargetError(f"{refused}\n{_ALLOWED}") from None
    spec = _general(program, found, dtype) if found.f else _linear(program, found, dtype)
    spec.check_architecture(name)
    return StockDescent(write(name, spec, path), program, settings)


def _positions(program: Program, a_sample: int, beside: int) -> int:
    return max(_POSITIONS, a_sample * program.samples + beside)


def _linear(program: Program, found: Descent, dtype: str) -> LinearDescent:
    first = found.steps[0]
    factors = () if len(set(found.steps)) == 1 else tuple(float(s / first) for s in found.steps)
    bound = max(program.domain.x.size, program.domain.y.size)
    domain = Domain.box(program.graph.dim, min(program.samples, _TYPICAL), bound)

    def made(reach: float) -> LinearDescent:
        positions = _positions(program, 1, 2)
        return LinearDescent(
            program.graph.dim, len(found.steps), factors, reach, positions=positions, dtype=dtype,
            lr=float(first), penalty=float(found.penalty), momentum=float(found.momentum),
        )  # fmt: skip

    return min(map(made, _REACHES), key=lambda spec: spec.certificate(domain).error)


def _general(program: Program, found: Descent, dtype: str) -> GeneralDescent:
    if found.penalty or found.momentum or len(set(found.steps)) != 1:
        raise TargetError(
            f"{program.name} takes steps with a penalty, a momentum or sizes of their own, and the "
            'two-layer form has none for a nonlinear f; write it as a bert with mode="weights"'
        )
    assert found.f is not None
    # |z| of w = 0 is |y|, and descent makes residuals smaller in the mean; prompts may say more.
    reach = max(1.0, 3 * program.domain.y.size)
    made = GeneralDescent(
        program.graph.dim, len(found.steps), dtype=dtype, f=found.f, lr=float(found.steps[0]),
        reach=reach,
    )  # fmt: skip
    return replace(made, positions=_positions(program, 2, 1 + made.tables().plus.tokens))
