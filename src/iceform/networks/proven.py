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

from iceform.arithmetic import at_most
from iceform.arithmetic.units import NOISE
from iceform.certificates import Certificate, DerivationStep, Enclosure, weakest
from iceform.errors import IntegrityError
from iceform.networks.certifying import Certifying, OpenStepError
from iceform.networks.error_walk import ErrorWalk
from iceform.networks.pieces import Activation, AttentionPiece
from iceform.networks.structure import floats_of
from iceform.validation import full_precision

if TYPE_CHECKING:
    from iceform.networks.network import InContext

_FLOAT64 = "float64 exp is within 2 units of its last place, tanh, erf and their kin within 4"


_UNKEPT = {"kept": False}  # of no file


@dataclass(frozen=True, eq=False, repr=False)
class InputEnclosure(Enclosure):
    """What is proven of one input's output, after it ran.

    Attributes
    ----------
    bounds
        Of every entry of every output tensor; of the functional, where one was asked for.
    outputs
        What it speaks of: the floating-point tensors of this run. In another batch, with other
        threads or on another device sums may round otherwise.
    """

    bounds: tuple[Tensor, ...] = field(default=(), metadata=_UNKEPT)
    outputs: tuple[Tensor, ...] = field(default=(), repr=False, metadata=_UNKEPT)


@dataclass(frozen=True, eq=False)
class RangeCertificate(Certificate):
    """What is proven of every input in range."""

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
        route = ErrorWalk(network.model, network.settings.unit)
        found = route.through(graph).error
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


@full_precision
def of_input(
    network: InContext, args: tuple[Any, ...], kwargs: dict[str, Any], functional: Tensor | None
) -> InputEnclosure:
    """What is proven of one input's output, by adjoints."""
    structure, tensors = network.model.signature.flatten(args, kwargs)
    network._check_dtypes(tensors)
    network.frozen.check()
    graph = network.model.graph_for(structure, tensors)
    found = Certifying(network.model, tensors[0].device if tensors else None)
    try:
        steps = found.run(graph, tensors)
        if functional is None:
            bounds = tuple(found.tape.bound(step) for step in steps)
        else:
            bounds = (found.tape.bound(steps[0], functional[None]),)
        term = "own errors x adjoints, remainders included"
    except OpenStepError as unbounded:
        bounds, term = (torch.tensor(math.inf),), f"not bounded: {unbounded}"
    if functional is None and torch.isfinite(bounds[0]).all():
        _hold(network, structure, tensors, found.outputs, bounds)
    assumed = [a for p in network.pieces for a in p.assumptions]
    curved = any(isinstance(p, AttentionPiece | Activation) for p in network.pieces)
    assumed += [_FLOAT64] if curved else []
    return InputEnclosure.total(
        {term: max(float(b.max()) for b in bounds)},
        domain={"input": "the one given", "tokens": network.frozen.sizes.tokens},
        dtype=network.settings.dtype,
        backend=network.settings.backend,
        assumptions=tuple(dict.fromkeys(assumed)),
        kind=weakest(p.standing for p in network.pieces),
        bounds=bounds,
        outputs=tuple(t for t in found.outputs if t.is_floating_point()),
    )


def _hold(
    network: InContext,
    structure: Any,
    tensors: list[Tensor],
    ours: list[Tensor],
    bounds: Sequence[Tensor],
) -> None:
    """The original itself within the bounds, but for its own rounding."""
    want = floats_of(network.model.original(structure, tensors))
    found = [t for t in ours if t.is_floating_point()]
    for a, b, bound in zip(found, want, bounds, strict=True):
        room = bound + NOISE * b.abs().max()
        off = (a.double() - b).abs()
        if not bool((off <= room).all()):
            raise IntegrityError(
                f"{network.model.title}: off by {float(off.max()):.3g} from the original, "
                f"certified to {at_most(float(bound.max()), '.3g')}; please report it"
            )
