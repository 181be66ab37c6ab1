"""Gradient descent by attention: many steps of one frozen layer, and what errors add up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_least, exactly, gram_eigenvalues
from iceform.arithmetic.eigenvalues import gram_range
from iceform.arithmetic.units import OUTWARD_FEW
from iceform.certificates import Certificate
from iceform.certificates import DerivationStep as Step
from iceform.codec import encode
from iceform.errors import BoundError, PrecisionError
from iceform.expressions.losses import Loss
from iceform.heads import (
    Design,
    Features,
    FrozenNetwork,
    Lift,
    LookUpLayout,
    LookUps,
    Move,
    Prompt,
    Row,
    attention,
)
from iceform.heads.head import identity
from iceform.heads.network import Embed
from iceform.paper.base import Emulator, LayerSizes, Plan
from iceform.paper.domain import Domain
from iceform.paper.gradients import GradientStep
from iceform.paper.residual import LossLike, Rates, ResidualOptions, domain_options, hessian_range
from iceform.paper.schedules import EIGENVALUE_SLACK, Schedule
from iceform.run import Backend, rounding_of
from iceform.run.loops import descend
from iceform.tables import Interpolant
from iceform.validation import check_positive, common_batch, unit_roundoff, untraced

Pass = Callable[[Tensor, Tensor, Tensor, Rates], Tensor]


class GradientDescent(Emulator):
    r"""Several steps of gradient descent.

    ``em(X, y, w0)`` is the last iterate, shape (*batch, d).

    The error is propagated in the 2-norm: a step is off by at most
    :math:`\eta_t (\max\|x\|_2 \sup|A - f| + \sqrt d\,\text{rounding})` and that
    arrives at the end multiplied as :mod:`iceform.paper.schedules` says. An iterate that
    leaves the domain is refused.

    Parameters
    ----------
    loss, l2, dim, samples, bound, regime, dtype, backend
        As for :class:`GradientStep`.
    steps
        How many.
    lr
        Step size; None for 1/L. The chebyshev schedule sets its own.
    schedule
        "constant", "chebyshev" (Leja order) or "nesterov".
    hessian
        (alpha, L), bounds of the eigenvalues of the objective's Hessian, l2 included. None takes
        the worst case over the domain.
    unrolled
        False: one frozen layer in a loop. True: a network of as many layers with a residual
        stream, which runs in one pass, literally unless another backend is asked for. Step sizes
        are in its prompt; momentum and shrinkage, which multiply the stream, in its weights.
    eps
        The error to certify for the last iterate; None accepts what comes out.

    Examples
    --------
    >>> em = GradientDescent("squared", 3, 0.5, dim=1, samples=1, w_bound=2.0)
    >>> x, y = torch.tensor([[1.0]]).double(), torch.tensor([1.0]).double()
    >>> em.trajectory(x, y, torch.zeros(1).double()).flatten().round(decimals=5).tolist()
    [0.0, 0.5, 0.75, 0.875]
    """

    def __init__(
        self,
        loss: LossLike,
        steps: int,
        lr: float | None = None,
        l2: float = 0.0,
        *,
        schedule: str = "constant",
        hessian: tuple[float, float] | None = None,
        unrolled: bool = False,
        **options: Unpack[ResidualOptions],
    ) -> None:
        super().__init__(
            eps=options.get("eps", tuning.EPS),
            dtype=options.get("dtype", torch.float64),
            backend=backend_for(options.get("backend", "auto"), unrolled),
        )
        self.loss = Loss.of(loss)
        self.l2 = check_positive("l2", l2, zero=True)
        self.unrolled = unrolled
        domain = Domain.of(
            labelled=self.loss.kind == "residual", dtype=self.dtype, **domain_options(options)
        )
        self.hessian, self._assumptions = self._hessian(domain, hessian)
        self.schedule = Schedule.of(schedule, steps, lr, self.hessian)
        # The layers of the unrolled network multiply keys and queries.
        options["backend"] = "literal" if unrolled else self.backend
        try:
            self.step = self._one_step(self._step_eps(domain.dim), options)
        except PrecisionError:
            # Say what can be certified of all steps, not of the one that was too inexact.
            self.step = self._one_step(None, options)
        self.interpolant = self.step.interpolant
        self.domain = self.step.domain
        self.regime = self.step.regime
        self.shapes, self.answer = self.step.shapes, self.step.answer
        estimated = self.certificate.kind == "estimated" and not options.get("estimate", False)
        if self.eps is not None and estimated:
            raise PrecisionError(
                f"eps = {self.eps:.3g} is a promise, and this descent is only estimated: "
                f"{'; '.join(self.certificate.assumptions)}. Pass estimate=True to accept that",
                best=math.inf,
            )
        top = self.hessian[1]
        longest = 2 / top if top > 0 else math.inf
        shorter = (
            f"lr <= 2/L = {at_least(longest, '.3g')} (longer steps amplify errors), "
            if max(self.schedule.steps) > longest and schedule != "chebyshev"
            else ""
        )
        self._hold_eps(
            f"use {shorter}eps=None, fewer steps, or hessian=(alpha, L) of your data",
            f"{steps} steps",
        )

    def _one_step(self, eps: float | None, options: ResidualOptions) -> GradientStep:
        options["eps"] = eps
        return GradientStep(self.loss, max(self.schedule.steps), self.l2, **options)

    @classmethod
    def within(cls, eps: float | None, *arguments: Any, **options: Any) -> GradientDescent:
        """The descent that holds ``eps``, or else the most accurate one."""
        try:
            return cls(*arguments, eps=eps, **options)
        except PrecisionError:
            return cls(*arguments, eps=None, **options)

    # ----------------------------------------------------------------------------- certificate

    def _hessian(
        self, domain: Domain, given: tuple[float, float] | None
    ) -> tuple[tuple[float, float], tuple[str, ...]]:
        """(alpha, L): the loss's curvature times the Gram matrix's eigenvalues, plus l2."""
        most = domain.x_norm**2  # of X'X/n: a mean of x x' with ||x|| at most that
        alpha, top, assumed = hessian_range(self.loss, domain, (0.0, most), self.l2)
        if given is not None:
            alpha, top = _two_numbers(given)
            if not (math.isfinite(top) and alpha <= top and top > 0):
                raise BoundError(f"hessian must be (alpha, L) with alpha <= L, L > 0: {given!r}")
        return (alpha, top), assumed

    @cached_property
    def _reach(self) -> list[float]:
        return self.schedule.amplification(self._held, quadratic=self.loss.quadratic)

    @property
    def _held(self) -> tuple[float, float]:
        """The range of eigenvalues that data are held to: the given one and a little more."""
        (alpha, top), slack = self.hessian, self._asked["hessian"] is not None
        return alpha - slack * EIGENVALUE_SLACK * top, top * (1 + slack * EIGENVALUE_SLACK)

    def _step_eps(self, dim: int) -> float | None:
        """What one step may be off by, in the sup norm, for the last iterate to hold eps."""
        if self.eps is None:
            return None
        return tuning.MOST_OF_EPS * self.eps / (math.sqrt(dim) * math.fsum(self._reach))

    def _certify(self, it: Interpolant) -> Certificate:
        """The proven error of the last iterate, for every data set in the domain."""
        return self._added_up(self._reach, self.domain.x_norm, self.domain.describe())

    def certify(self, x: Tensor, y: Tensor) -> Certificate:
        """A sharper certificate for given data: its own eigenvalues instead of the worst case.

        Only losses with constant curvature gain more than the norm of the samples. Data outside the
        domain are refused: the table is not certified for their residuals.
        """
        self.domain.check_data(x, y)
        eigenvalues, off = gram_eigenvalues(x)
        spectral = math.sqrt(max(0.0, float(eigenvalues.max()) + off)) * OUTWARD_FEW
        reach = (
            self.schedule.amplification_at(eigenvalues.flatten() + self.l2, off)
            if self.loss.quadratic
            else self._reach
        )
        return self._added_up(reach, spectral, {**self.domain.describe(), "data": "as given"})

    def _added_up(
        self, reach: list[float], spectral: float, domain: dict[str, float | str]
    ) -> Certificate:
        """``spectral`` bounds sigma_max(X)/sqrt(n)."""
        root = math.sqrt(self.domain.dim)
        parts = {"interpolation": 0.0, "rounding": 0.0}
        extra = 8 * unit_roundoff(self.dtype) * self.domain.w  # momentum and the residual stream
        for eta, factor in zip(self.schedule.steps, reach, strict=True):
            one = self.step._certify(self.interpolant, Rates(eta, eta * self.l2)).terms
            parts["interpolation"] += factor * eta * spectral * self.interpolant.error
            parts["rounding"] += factor * root * (one["rounding"] + extra)
        derivation = (
            *self.step.certificate.derivation,
            Step("steps", f"{self.schedule.name} schedule", len(self.schedule), "passes"),
            Step("alpha", "least eigenvalue of the Hessian", self.hessian[0], "l2 included", True),
            Step("L", "largest eigenvalue of the Hessian", self.hessian[1], "l2 included"),
            Step(
                "reach",
                "sum over steps of what an error is multiplied by",
                math.fsum(reach),
                "2-norm; polynomials in the eigenvalues"
                if self.loss.quadratic
                else "2-norm; norms",
            ),
        )
        return self._proved(parts, domain, derivation, self.interpolant, assumed=self._assumptions)

    # ------------------------------------------------------------------------------ evaluation

    def _check_values(self, *inputs: Tensor) -> None:
        """As for one step, and a given Hessian; later iterates are checked as they come."""
        self.step._check_values(*inputs)
        if self._asked["hessian"] is not None:
            self._check_hessian(inputs[0])

    @untraced
    def _check_hessian(self, x: Tensor) -> None:
        bottom, above, _ = hessian_range(self.loss, self.domain, gram_range(x), self.l2)
        alpha, top = self._held
        if not (alpha <= bottom and above <= top):
            raise BoundError(
                f"the Hessian's eigenvalues on these data are in [{bottom:.6g}, {above:.6g}], the "
                f"certificate holds for hessian=({', '.join(map(exactly, self.hessian))}); "
                "pass bounds that cover them, or leave hessian= out"
            )

    def _exactly(self, *inputs: Tensor) -> Tensor:
        """The exact last iterate (float64)."""
        x, y, w = inputs
        return self._iterates(x.double(), y.double(), w.double(), self.step._exact_step)[-1]

    def trajectory(self, x: Tensor, y: Tensor, w: Tensor, *, exact: bool = False) -> Tensor:
        """Every iterate, shape (steps + 1, *batch, d)."""
        self.check(x, y, w)
        if self.unrolled and not exact:
            return self._stream(self.bind(), x, y, w)[0]
        start = w.double() if exact else w
        run = self.step._exact_step if exact else self._passes(self.bind())
        return torch.stack(self._iterates(x, y, start, run))

    def _iterates(self, x: Tensor, y: Tensor, start: Tensor, run: Pass) -> list[Tensor]:
        def step(w: Tensor, eta: float) -> Tensor:
            return run(x, y, w, Rates(eta, eta * self.l2))

        return self.schedule.iterates(start, step)

    def _passes(self, backend: Backend) -> Pass:
        """A pass of the frozen layer whose iterate is checked first."""

        def one(x: Tensor, y: Tensor, w: Tensor, rates: Rates) -> Tensor:
            self._check_iterate(x, y, w)
            return self.step._step(backend, x, y, w, rates)

        return one

    @untraced
    def _check_iterate(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        if torch.compiler.is_exporting():  # no host looks at values then
            return
        self.domain.check_coefficients(w)
        self.step.check_range(x, y, w)

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        x, y, w = inputs
        if self.unrolled:
            return self._stream(backend, x, y, w)[1]
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        literal = rounding_of(self.backend).literal
        if x.is_cuda and not literal and not recorded and self.domain.z_range is None:
            return self._on_device(backend, x, y, w)
        return self._iterates(x, y, w, self._passes(backend))[-1]

    def _on_device(self, backend: Backend, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """All passes without waiting for the host; the iterates are checked at the end."""
        pairs = zip(self.schedule.steps, self.schedule.momenta, strict=True)
        rates = [(eta, eta * self.l2, mu) for eta, mu in pairs]
        batch = common_batch(x.shape[:-2], y.shape[:-1], w.shape[:-1])
        start = w.expand(*batch, w.shape[-1])
        one = self.step._look_ups(x, y, start, Rates())

        def sums(w: Tensor) -> Tensor:
            return backend.total(replace(one, w=w, gain=1.0, keep=0.0))

        last, seen = descend(sums, start, self.domain.samples, rates, backend=self.backend)
        self.domain.check_coefficient_sizes(seen)
        return last

    def _stream(self, backend: Backend, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Every iterate as it stands in the stream, and what is read out."""
        self.check_literal(x.device)
        prompt = self._encode(x, y, w)
        assert isinstance(prompt, Prompt)
        literal = rounding_of(self.backend).literal
        *states, output = backend.literally(prompt) if literal else backend.stream(prompt)
        for state in states[1:-1]:
            self._check_iterate(x, y, state[..., -1, self._wide["w"]])
        iterates = torch.stack([state[..., -1, self._wide[self._iterate_at]] for state in states])
        return iterates, output[..., 0, :]

    @property
    def _iterate_at(self) -> str:
        """Where the stream has the iterate; momentum has its look-ahead under ``w``."""
        return "previous" if self._previous else "w"

    # -------------------------------------------------------------------------- prompt, weights

    @property
    def _smaller(self) -> str:
        return "use unrolled=False, or fewer samples" if self.unrolled else super()._smaller

    @property
    def layout(self) -> LookUpLayout:
        """The layout of a step; the unrolled network reads all samples from one prompt."""
        one = self.step.layout
        return replace(one, samples=self.domain.samples) if self.unrolled else one

    @property
    def features(self) -> Features:
        """The features of a prompt; that of the unrolled network has more."""
        return Features(self.layout.raw.sizes + self._more)

    @property
    def _more(self) -> tuple[tuple[str, int], ...]:
        """The previous iterate, and values for every further step size."""
        sizes = range(1, len(self._sizes)) if self.unrolled else ()
        return (*self._previous, *((f"value_{k}", self.domain.dim) for k in sizes))

    @cached_property
    def _sizes(self) -> tuple[float, ...]:
        """Every step size once, in the order of their first use."""
        return tuple(dict.fromkeys(self.schedule.steps))

    @property
    def _previous(self) -> tuple[tuple[str, int], ...]:
        accelerated = self.unrolled and self.schedule.accelerated
        return (("previous", self.domain.dim),) if accelerated else ()

    @property
    def _wide(self) -> Features:
        """Features of the unrolled network's stream."""
        return Features(self.layout.features.sizes + self._more)

    def _encode(self, *inputs: Tensor) -> Prompt | LookUps:
        """The first pass's prompt; the unrolled network needs no other."""
        x, y, w = inputs
        if not self.unrolled:
            eta = self.schedule.steps[0]
            return self.step._look_ups(x, y, w, Rates(eta, eta * self.l2))
        plain = replace(self.step._look_ups(x, y, w, Rates()), gain=1.0, keep=0.0)
        tokens = replace(plain, layout=self.layout).tokens[..., 0, :, :]
        spread = w[..., None, :].expand(*tokens.shape[:-1], self.domain.dim)
        tokens = tokens.clone()
        tokens[..., self.layout.raw["w"]] = spread
        value = self.layout.raw["value"]
        rows = tokens[..., value.start : value.start + self.domain.dim].clone()
        tokens[..., value] *= self._sizes[0]
        more = [spread] if self._previous else []
        more += [eta * rows for eta in self._sizes[1:]]
        tokens = torch.cat([tokens, *more], -1)
        return Prompt(tokens, self.features, self.layout.roles)

    def _build_network(self) -> FrozenNetwork:
        if not self.unrolled:
            return self.step._build_network()
        n, tokens, design = self.domain.samples, self.layout.count, self.design
        mean = torch.zeros(tokens, tokens, dtype=torch.float64)
        mean[tokens - 2 * n : tokens - n] = 1 / n
        known: dict[tuple[float, float], torch.nn.Module] = {}
        layers: list[torch.nn.Module] = [self._embedding(self.layout.embedding())]
        for number, rates in enumerate(self._rates):
            if rates not in known:
                known[rates] = attention(design, number, mean)
            layers.append(known[rates])
        return FrozenNetwork([*layers, self._readout()], self.features)

    @property
    def design(self) -> Design:
        """One head a layer, with the logit of the look-up layer and the moves of its step."""
        if not self.unrolled:
            return self.layout.design
        ((look,),) = self.layout.design.layers
        steps = (replace(look, **self._step_of(*rates)) for rates in self._rates)
        return Design(self._wide, tuple((head,) for head in steps))

    @property
    def _rates(self) -> list[tuple[float, float]]:
        return list(zip(self.schedule.steps, self.schedule.momenta, strict=True))

    def _embedding(self, embed: Embed) -> Embed:
        """The look-up layer's embedding, which carries the further features along."""
        more = sum(size for _, size in self._more)
        features = torch.zeros(self._wide.total, self.features.total, dtype=torch.float64)
        raw, wide = self.layout.raw.total, self.layout.features.total
        features[:wide, :raw] = embed.features
        features[wide:, raw:] = torch.eye(more, dtype=torch.float64)
        spread = torch.nn.functional.pad(embed.spread, (0, 0, 0, more))
        constant = torch.nn.functional.pad(embed.constant, (0, more))
        return Embed(features, embed.places, spread, constant, names=self._wide)

    def _step_of(self, eta: float, mu: float) -> dict[str, Any]:
        """What a step moves, broadcast to every token by W_O = u 1', and its role.

        With g the mean value row of this step, eta times the gradient: previous becomes
        u - g - eta l2 u, and w (the look-ahead u) becomes that plus mu times its change.
        """
        which = self._sizes.index(eta)
        value = "value" if which == 0 else f"value_{which}"
        changes = {"w": {value: -(1 + mu), "w": mu - (1 + mu) * eta * self.l2}}
        if self._previous:
            changes["w"]["previous"] = -mu
            changes["previous"] = {value: -1.0, "w": 1 - eta * self.l2, "previous": -1.0}
        moves = []
        for into, factors in changes.items():
            parts = (identity(name, self.domain.dim, c) for name, c in factors.items())
            for j, each in enumerate(zip(*parts, strict=True)):
                row = Row({place: c for reads in each for place, c in reads.items()})
                moves.append(Move(row, {(into, j): 1.0}))
        return {"role": f"a step of size {which}", "moves": tuple(moves)}

    def _readout(self) -> Lift:
        """The last iterate, read off the last token."""
        d, tokens = self.domain.dim, self.layout.count
        maps = torch.zeros(1, d, self._wide.total, dtype=torch.float64)
        maps[0, :, self._wide[self._iterate_at]] = torch.eye(d, dtype=torch.float64)
        picks = torch.zeros(1, tokens, 1, dtype=torch.float64)
        picks[0, -1] = 1.0
        return Lift(maps, picks, torch.zeros(1, d, dtype=torch.float64))

    @property
    def plan(self) -> Plan:
        """The sizes of a step; an unrolled network holds a layer for every different one."""
        one = self.step.plan
        if not self.unrolled:
            return one
        layout, total, d = self.layout, self._wide.total, self.domain.dim
        tokens, logit = layout.count, d + 2 + layout.samples
        places = 2 * layout.samples + 1
        embedded = total * self.features.total + (tokens + total) * places + total
        return Plan.of(
            [
                LayerSizes(tokens, total, 1, logit, total, answers=tokens, applied=times)
                for times in Counter(self._rates).values()
            ],
            self.dtype,
            grid=one.grid_tokens,
            prompt=(tokens, self.features.total),
            looked=len(self.schedule) * self.domain.samples * one.grid_tokens,
            more=embedded + d * total + tokens + d,  # and the readout
        )

    def _config(self) -> dict[str, Any]:
        found = {"hessian": self.hessian, "assumptions": self._assumptions}
        return {**super()._config(), "found": encode(found)}

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        options = dict(arguments)
        found, lost = options.pop("found"), f is None and options["loss"] is None
        if lost and options["hessian"] is None:  # claimed, as the table is
            options["hessian"] = found["hessian"]
        loaded = super()._rebuild(options, it, f)
        assert isinstance(loaded, GradientDescent)
        if lost:
            loaded._assumptions = tuple(found["assumptions"])
            loaded._asked["hessian"] = arguments["hessian"]
            for name in ("_reach", "certificate"):
                loaded.__dict__.pop(name, None)
        return loaded


def backend_for(backend: str, unrolled: bool) -> str:
    """The backend to use: literal for the unrolled network, unless another is asked for."""
    return "literal" if unrolled and backend == "auto" else backend


def _two_numbers(value: Any) -> tuple[float, float]:
    try:
        first, second = map(float, value)
    except (TypeError, ValueError):
        return math.nan, math.nan
    return first, second
