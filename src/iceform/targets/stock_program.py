"""A program and the stock checkpoint that runs it: what ``Program.to`` returns.

In prompt mode the folder is a ``StockComputer``: its weights know the sizes alone, so any program
that fits may take this one's place (``holding``). In weights mode it is a ``LayeredProgram``: its
layers are the instructions, and another program may take its place if it differs in tables alone.
A program whose loops are all counted takes the same instructions whatever the data are; they are
found by interpreting it once.

As a gpt2 or a llama a program is recognised (``recognised``), and a ``LinearDescent`` or a
``GeneralDescent`` with its steps is written. What the program calls its parameters is turned into
the target's own with every prompt, by recognising it again at those settings: step size, penalty
and momentum are in the prompt, the number of steps and their ratios in the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.certificates import Certificate, Enclosure
from iceform.computer.compile import Program
from iceform.errors import TargetError
from iceform.targets.architectures import architecture
from iceform.targets.bounded_descent import BoundedDescent
from iceform.targets.causal_descent import CausalDescent
from iceform.targets.checking import Checked, check
from iceform.targets.domain import DataDomain
from iceform.targets.folder import StockModel, write
from iceform.targets.general_descent import GeneralDescent
from iceform.targets.layered_program import LayeredProgram
from iceform.targets.linear_descent import LinearDescent
from iceform.targets.program_target import ProgramTarget, enclosed, trace, turns_alike
from iceform.targets.recognised import RecognisedDescent, recognised
from iceform.targets.stock_computer import StockComputer
from iceform.targets.target import Target
from iceform.validation import unit_roundoff

_CYCLES = "give cycles= (program.interpreted(X, y).cycles counts those of data)"
_REACHES = tuple(2.0**k for k in range(4))  # of which the one that certifies most is taken
_ONE_ULP = Fraction(1, 2**52)
_ALLOWED = (
    "Under a causal mask the samples never see the state. Written for it are full-batch descent on "
    "least squares (penalty, momentum, any step sizes), full-batch descent for any f at 3 n + 1 "
    'layers a step (mode="full_batch"), and one sample a step for any f '
    "(ice.targets.StochasticDescent); write other programs as an albert or a bert"
)


@dataclass(frozen=True, eq=False)
class StockProgram:
    """A program for a folder that transformers loads.

    Attributes
    ----------
    model
        The folder.
    program
        What its prompts hold, or its layers.
    settings
        The program's parameters where a prompt is not given them.

    Examples
    --------
    >>> @ice.algorithm
    ... def slope(x, y, *, lr=0.5):
    ...     return lr * ice.mean(x * y)
    >>> program = ice.compile(slope, dim=1, samples=2, eps=1e-6)
    >>> model = program.to("bert", "slope", mode="weights")
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([0.5, 0.25]).double()
    >>> model.check(x, y, within=1e-6).ok
    True
    >>> model.ground_truth[0][0]["role"]
    'read ...'
    """

    model: StockModel
    program: Program
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model.spec, ProgramTarget):
            raise TargetError(
                f"{self.path} holds a {self.model.spec.kind}, whose algorithm is in its "
                "weights; programs are for folders that program.to has written"
            )
        self.program.parameters(**self.settings)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self.settings.items())
        return f"StockProgram({self.model}, {self.program}{given})"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.model.path

    @property
    def spec(self) -> Target:
        """The target that the folder holds."""
        return self.model.spec

    @property
    def ground_truth(self) -> list[list[dict[str, Any]]]:
        """What every head is for, layer by layer (:attr:`StockModel.ground_truth`)."""
        return self.model.ground_truth

    def find(self, role: str) -> list[tuple[int, int]]:
        """The (layer, head) of every head whose role begins with this text."""
        return self.model.find(role)

    def parameters(self, **settings: Any) -> dict[str, Any]:
        """The target's parameters for these settings of the program."""
        return {"program": self.program, **self.settings, **settings}

    def prompt(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Tensor:
        """``inputs_embeds`` for these data; no y for an algorithm of x alone."""
        targets = self.program.algorithm.targets(X, y)
        return self.model.prompt(X, targets, **self.parameters(**settings))

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in float64 and in the form the algorithm returns.

        Refused if the program has not come to its halt. The number of samples follows from that
        of tokens.
        """
        return self.model.read(hidden, program=self.program)

    def check(
        self, X: Tensor, y: Tensor | None = None, *, attention: str = "sdpa",
        within: float | None = None, **settings: Any,
    ) -> Checked:  # fmt: skip
        """:func:`iceform.check` of the folder with this program."""
        targets = self.program.algorithm.targets(X, y)
        return check(
            self.path, X, targets, attention=attention, within=within,
            **self.parameters(**settings),
        )  # fmt: skip

    def holding(self, program: Program, **settings: Any) -> StockProgram:
        """The same folder with another program in the prompt."""
        return StockProgram(self.model, program, settings)


@dataclass(frozen=True, eq=False)
class StockDescent(StockProgram):
    """A program whose steps are layers of a folder that transformers loads.

    Where the program's step, penalty or momentum is no float64 number the folder runs the nearest;
    then :meth:`check` encloses the answer's distance from the program's in ball arithmetic.

    Examples
    --------
    >>> @ice.algorithm
    ... def slope(x, y, *, lr=0.5):
    ...     return lr * ice.mean(x * y)
    >>> program = ice.compile(slope, dim=1, samples=2, eps=1e-6)
    >>> model = program.to("gpt2", "slope")  # one step of descent from 0
    >>> type(model).__name__, model.find("penalty")
    ('StockDescent', [(0, 16)])
    """

    def __post_init__(self) -> None:
        self.program.parameters(**self.settings)

    def parameters(self, **settings: Any) -> dict[str, Any]:
        return self._found(settings)[0]

    def read(self, hidden: Tensor) -> Any:
        return self.program.packed({self._output: self.model.read(hidden)})

    def certificate(
        self, X: Tensor, y: Tensor, attention: str = "any", **settings: Any
    ) -> Certificate:
        """What is proven before the fact for these data, of the target's own parameters."""
        return self.model.certificate(X, y, attention, **self.parameters(**settings))

    def check(
        self, X: Tensor, y: Tensor | None = None, *, attention: str = "sdpa",
        within: float | None = None, **settings: Any,
    ) -> Checked:  # fmt: skip
        found = super().check(X, y, attention=attention, within=within, **settings)
        held, exact = self._found(settings)
        if exact:
            return found
        spec, targets = self._descent, self.program.algorithm.targets(X, y)
        dtype, given, known = spec.torch_dtype, {**self.settings, **settings}, found.certificate

        def distance(answer: Tensor) -> Enclosure:
            parts = {self._output: answer.double()}
            return enclosed(self.program, parts, X, targets, given, dtype, attention)

        # What the rounded parameters make of the exact answer, whatever the network did.
        meant = spec.reference(X.to(dtype), targets.to(dtype), **held)
        apart = distance(meant).error + unit_roundoff(torch.float64) * float(meant.abs().max())
        certificate = Certificate.total(
            {**known.terms, "parameters rounded to float64": apart},
            domain=known.domain, dtype=dtype, backend=known.backend, derivation=known.derivation,
            assumptions=known.assumptions, compared="stock network's answer - exact program",
            kind=known.kind,
        )  # fmt: skip
        proof = distance(found.value)
        return replace(found, measured=proof.error, certificate=certificate, enclosure=proof)

    def holding(self, program: Program, **settings: Any) -> StockProgram:
        raise TargetError(
            f"the layers of {self.path} are the steps of {self.program.name}; a folder that holds "
            "any program is an albert or a bert"
        )

    @property
    def _output(self) -> str:
        (name,) = self.program.graph.outputs
        return name

    @property
    def _descent(self) -> LinearDescent | BoundedDescent:
        spec = self.model.spec
        assert isinstance(spec, LinearDescent | BoundedDescent)
        return spec

    def _found(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The target's parameters at these settings, and whether they are exactly the program's."""
        spec, given = self._descent, {**self.settings, **settings}
        descent = recognised(self.program.graph, self.program.parameters(**given))
        ratios = [Fraction(rho) for rho in spec.schedule]
        lr = descent.steps[0] / ratios[0]
        off = [abs(eta / (lr * rho) - 1) for eta, rho in zip(descent.steps, ratios, strict=False)]
        if len(ratios) != len(descent.steps) or max(off) > _ONE_ULP:
            raise TargetError(
                f"{self.path} holds {len(ratios)} steps in given ratios, and {self.program.name} "
                f"at these settings takes {len(descent.steps)} others; write it again"
            )
        numbers = {"lr": lr, "penalty": descent.penalty, "momentum": descent.momentum}
        if isinstance(spec, BoundedDescent):
            _check_plain(self.program, descent)
            numbers = {"lr": lr}
        held = {name: float(number) for name, number in numbers.items()}
        exact = held == numbers and not any(off)
        return (held if descent.f is None else {**held, "f": descent.f}), exact


def write_program(
    program: Program,
    name: str,
    path: str | Path,
    *,
    mode: str | None = None,
    cycles: int | None = None,
    dtype: str = "float64",
    beside: Iterable[Program] = (),
    **settings: Any,
) -> StockProgram:
    """Write a program as a stock checkpoint; see :meth:`iceform.Program.to`."""
    others = list(beside)
    program.parameters(**settings)
    if dtype not in ("float64", "float32"):
        raise TargetError(f"programs are written in float64 or float32, got dtype={dtype!r}")
    if mode is None:
        alone = name == "bert" and cycles is None and not others and turns_alike(program)
        mode = "descent" if architecture(name).causal else "weights" if alone else "prompt"
    if mode != "prompt" and (cycles is not None or others):
        raise TargetError(
            "here the layers are one program's steps or instructions: cycles= and beside= are for "
            'mode="prompt", of an albert or a bert'
        )
    if mode in ("descent", "full_batch"):
        descent = _descent(program, name, dtype, settings, mode)
        return StockDescent(write(name, descent, path), program, settings)
    if mode == "weights":
        LayeredProgram.check_architecture(name)
        layered = LayeredProgram.of(program, settings, dtype)
        return StockProgram(write(name, layered, path), program, settings)
    if mode != "prompt":
        raise TargetError(f'mode is "prompt", "weights", "descent" or "full_batch", got {mode!r}')
    StockComputer.check_architecture(name)
    if cycles is None:
        each = [(program, settings), *((p, {}) for p in others)]
        cycles = max(1, *(len(trace(p, given, _CYCLES)) for p, given in each))
    spec = StockComputer.for_programs([program, *others], cycles, dtype)
    return StockProgram(write(name, spec, path), program, settings)


def _descent(
    program: Program, name: str, dtype: str, settings: Mapping[str, Any], mode: str
) -> LinearDescent | BoundedDescent:
    """The descent as which a program is recognised."""
    try:
        found = recognised(program.graph, program.parameters(**settings))
    except TargetError as refused:
        raise TargetError(f"{refused}\n{_ALLOWED}") from None
    spec: LinearDescent | BoundedDescent = (
        _bounded(program, found, dtype, mode) if found.f else _linear(program, found, dtype)
    )
    spec.check_architecture(name)
    return spec


def _positions(program: Program, a_sample: int, beside: int) -> int:
    return max(tuning.CHECKPOINT_POSITIONS, a_sample * program.samples + beside)


def _linear(program: Program, found: RecognisedDescent, dtype: str) -> LinearDescent:
    """Descent on least squares; of a few reaches the one that certifies most."""
    dim, first = program.graph.dim, found.steps[0]
    factors = () if len(set(found.steps)) == 1 else tuple(float(s / first) for s in found.steps)
    bound = max(program.domain.x.size, program.domain.y.size)
    domain = DataDomain.box(dim, min(program.samples, tuning.CHECKPOINT_SAMPLES), bound)
    tried = (
        LinearDescent(
            dim, len(found.steps), factors, reach, positions=_positions(program, 1, 2),
            dtype=dtype, lr=float(first), penalty=float(found.penalty),
            momentum=float(found.momentum),
        )
        for reach in _REACHES
    )  # fmt: skip
    return min(tried, key=lambda spec: spec.certificate(domain).error)


def _bounded(program: Program, found: RecognisedDescent, dtype: str, mode: str) -> BoundedDescent:
    """Descent for the program's f; of w = 0 |z| is |y|, and it makes residuals smaller in mean."""
    _check_plain(program, found)
    reach = max(1.0, 3 * program.domain.y.size)  # prompts may say more
    given: dict[str, Any] = {
        "dim": program.graph.dim, "steps": len(found.steps), "dtype": dtype, "f": found.f,
        "lr": float(found.steps[0]), "reach": reach,
    }  # fmt: skip
    if mode == "full_batch":
        causal = CausalDescent(samples=program.samples, span=reach, **given)
        return replace(causal, positions=_positions(program, 1, 2 + causal.tables().tokens))
    general = GeneralDescent(**given)
    return replace(general, positions=_positions(program, 2, 1 + general.tables().tokens))


def _check_plain(program: Program, found: RecognisedDescent) -> None:
    """Refuse what the form for a nonlinear f has no place for."""
    if found.penalty or found.momentum or len(set(found.steps)) != 1:
        raise TargetError(
            f"{program.name} takes steps with a penalty, a momentum or sizes of their own, and the "
            'form for a nonlinear f has none; write it as a bert with mode="weights"'
        )
