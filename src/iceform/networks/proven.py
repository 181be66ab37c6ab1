"""What is proven of a network in context: of one input, and of every input in range."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.units import NOISE, OUTWARD, UNIT
from iceform.certificates import Certificate, DerivationStep, Enclosure, weakest
from iceform.errors import IntegrityError
from iceform.networks.bounds import BoundsWalk
from iceform.networks.pieces import Activation, AttentionPiece
from iceform.networks.source_run import OpenStepError, SourceRun
from iceform.networks.structure import floats_of
from iceform.validation import full_precision

if TYPE_CHECKING:
    from iceform.networks.network import InContext

_FLOAT64 = "float64 exp is within 2 units of its last place, tanh, erf and their kin within 4"


_UNKEPT = {"kept": False}  # of no file


@dataclass(frozen=True, eq=False, repr=False)
class InputEnclosure(Enclosure):
    """How far the output on one input is from the exact network's, proven after it ran.

    Attributes
    ----------
    bounds
        Of every entry of every output tensor; of the functional, where one was asked for.
    outputs
        What it speaks of: the floating-point tensors of one run. In another batch, with other
        threads or on another device sums may round otherwise.

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> found = net.enclosure(torch.zeros(3, 2).double())
    >>> found.bounds[0].shape, found.error < 1e-10
    (torch.Size([3, 1]), True)
    """

    bounds: tuple[Tensor, ...] = field(default=(), metadata=_UNKEPT)
    outputs: tuple[Tensor, ...] = field(default=(), repr=False, metadata=_UNKEPT)


@dataclass(frozen=True, eq=False)
class RangeCertificate(Certificate):
    """How far any output is from the exact network's, for every input in range.

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> net.certificate.kind, net.certificate.error < 1e-10
    ('proven', True)
    """

    of_input: Callable[..., InputEnclosure] | None = field(
        default=None, repr=False, metadata=_UNKEPT
    )

    def __call__(
        self, *args: Any, functional: Tensor | None = None, **kwargs: Any
    ) -> InputEnclosure:
        """The old spelling of :meth:`InContext.enclosure`."""
        warnings.warn(
            "network.certificate(x) is called network.enclosure(x): it speaks of one answer",
            DeprecationWarning,
            stacklevel=2,
        )
        assert self.of_input is not None
        return self.of_input(args, kwargs, functional)


@full_precision
def over_ranges(network: InContext) -> RangeCertificate:
    """What is proven of every input in range, by what every piece can make of errors before it."""
    worst, errors, opened = 0.0, dict[str, float](), list[str]()
    for graph in network.model.graphs:
        route = BoundsWalk(network.model, network.settings.unit, errors=True)
        found = route.through(graph)
        worst = max(worst, math.inf if math.isnan(found) else found)
        errors |= {k: max(v, errors.get(k, 0.0)) for k, v in route.errors.items()}
        opened += route.open
    what = f"not bounded over a range: {', '.join(dict.fromkeys(opened))}"
    own = max(p.certified for p in network.pieces)
    return RangeCertificate.total(
        {what if opened else "look-ups and rounding, carried through the layers": worst},
        domain={
            "ranges": "as calibrated, checked at every piece",
            "tokens": network.frozen.sizes.tokens,
        },
        dtype=network.settings.dtype,
        backend=network.settings.backend,
        derivation=(
            DerivationStep(
                "max e", "largest error of a piece alone", own, "certified on its range"
            ),
            *(
                DerivationStep(name, "error of an entry behind it", value, "sums of the weights")
                for name, value in errors.items()
            ),
        ),
        assumptions=tuple(dict.fromkeys(a for p in network.pieces for a in p.assumptions)),
        kind=weakest(p.standing for p in network.pieces),
        of_input=partial(of_input, network),
    )


def of_input(
    network: InContext, args: tuple[Any, ...], kwargs: dict[str, Any], functional: Tensor | None
) -> InputEnclosure:
    """How far the output on these arguments is from the exact network's."""
    with torch.no_grad():
        outputs = floats_of(network(*args, **kwargs))
    return of_outputs(network, args, kwargs, outputs, functional)


@full_precision
def of_outputs(
    network: InContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: Sequence[Tensor],
    functional: Tensor | None = None,
) -> InputEnclosure:
    """How far these outputs are from the exact network's on these arguments.

    The distance from a run of the source in float64, and what that run is off by.
    """
    graph, tensors = network.model.called(args, kwargs)
    source = SourceRun(network.model, tensors[0].device if tensors else None)
    given = tuple(t for t in outputs if t.is_floating_point())
    try:
        steps = source.run(graph, tensors)
        wanted = [source.tape.value(step) for step in steps]
        apart = [_apart(a, b) for a, b in zip(given, wanted, strict=True)]
        if functional is None:
            enough = [tuning.TAPE_SMALL * float(a.max()) for a in apart]
            off = [source.tape.bound(s, enough=e) for s, e in zip(steps, enough, strict=True)]
        else:
            weights = functional.double().to(apart[0].device)
            rounded = (weights * apart[0]).abs().sum() * (apart[0].numel() + 4) * 2 * UNIT
            apart = [((weights * (given[0].double() - wanted[0])).sum().abs() + rounded)[None]]
            off = [source.tape.bound(steps[0], functional[None])]
        bounds = tuple((a + b) * OUTWARD for a, b in zip(apart, off, strict=True))
        terms = {
            "distance from the source in float64": max(float(a.max()) for a in apart),
            "rounding of that run": max(float(b.max()) for b in off),
        }
        if functional is None:
            _hold(network, graph.given, tensors, wanted, off)
    except OpenStepError as unbounded:
        bounds, terms = (torch.tensor(math.inf),), {f"not bounded: {unbounded}": math.inf}
    curved = any(isinstance(p, AttentionPiece | Activation) for p in network.pieces)
    return InputEnclosure.total(
        terms,
        domain={"input": "the one given", "tokens": network.frozen.sizes.tokens},
        dtype=network.settings.dtype,
        backend=network.settings.backend,
        assumptions=(_FLOAT64,) if curved else (),
        bounds=bounds,
        outputs=given,
    )


def _apart(ours: Tensor, wanted: Tensor) -> Tensor:
    """|ours - wanted|, rounded up; NaN and infinities count as infinitely far unless equal."""
    away = (ours.double() - wanted).abs() * OUTWARD
    return torch.where(ours == wanted, 0.0, away).nan_to_num(nan=math.inf, posinf=math.inf)


def _hold(
    network: InContext,
    structure: Any,
    tensors: list[Tensor],
    wanted: Sequence[Tensor],
    bounds: Sequence[Tensor],
) -> None:
    """Refuse where the original in float64 is further from its graph than rounding allows."""
    for ours, theirs, bound in zip(
        wanted, floats_of(network.model.original(structure, tensors)), bounds, strict=True
    ):
        room = bound + NOISE * theirs.abs().max()
        off = (ours - theirs).abs()
        if bool(bound.isfinite().all()) and not bool((off <= room).all()):
            raise IntegrityError(
                f"{network.model.title}: the graph is off by {float(off.max()):.3g} from the "
                f"original, by rounding {at_most(float(bound.max()), '.3g')} at most; please "
                "report it"
            )
