"""InContext: a torch network whose every map is read from the prompt by two frozen layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from iceform.arithmetic import at_most
from iceform.certificates import Result
from iceform.errors import BoundError, DtypeError, ProgramError
from iceform.networks import files
from iceform.networks.attestation import PieceRecorder
from iceform.networks.bounds import BoundsWalk, extend
from iceform.networks.frozen import FrozenLayers, NetworkSizes, identity_table
from iceform.networks.model import NetworkModel, cast
from iceform.networks.pieces import (
    AttentionPiece,
    EmbeddingMap,
    LinearMap,
    Norm,
    Piece,
    PieceSettings,
    ProductPiece,
)
from iceform.networks.proven import (
    InputEnclosure,
    RangeCertificate,
    of_input,
    of_outputs,
    over_ranges,
)
from iceform.networks.report import Report, ReportRow
from iceform.networks.structure import Signature, arguments, flatten, floats_of
from iceform.pretrained import Pretrained
from iceform.run import resolve
from iceform.validation import (
    check_choice,
    check_dtype,
    check_eps,
    check_matmul_precision,
    check_positive,
    check_size,
    full_precision,
)

_HEADROOM = 1.5  # calibrated ranges are widened by half, for inputs a little unlike those seen


@full_precision
def in_context(
    model: nn.Module,
    *,
    eps: float | None = None,
    calibration: Tensor | Sequence[Any] | None = None,
    bound: float | None = None,
    tokens: int | None = None,
    headroom: float = _HEADROOM,
    on_range: str = "raise",
    dtype: torch.dtype | None = None,
    backend: str = "auto",
    strict: bool = True,
) -> InContext:
    """The same network with its weights in prompts: two frozen layers read every map (sec. 4.3).

    Parameters
    ----------
    model
        Any module that ``torch.export`` can capture: what counts is what it does, not what it is
        made of. It is copied, not changed, and the copy is what everything is checked against.
    eps
        What one look-up may be off by, as a share of its range; None takes the best the dtype
        can do.
    calibration
        Inputs to capture the network on and to take ranges from: tensors, tuples of arguments or
        dictionaries of keyword arguments.
    bound
        Ranges from the weights instead: max |input|. They hold for every such input and are wider.
        Without calibration as well, the network is captured on an input that its first layer
        accepts.
    tokens
        The longest sequence; the longest of the calibration by default.
    headroom
        Factor on calibrated ranges.
    on_range
        What an input out of range does: "raise", or "widen" the range in the prompt (the frozen
        weights stay as they are, and ``tokens`` is the longest table that they hold).
    dtype, backend
        What the certificates are for; the model's own dtype by default, and the model as that
        dtype holds its weights. ``literal`` evaluates the literal frozen layers on literal prompts,
        for small networks.
    strict
        Refuse a model with maps that nothing here emulates; otherwise list them in the report.

    Returns
    -------
    A network that is called as the original is, with a certificate, an enclosure of every answer
    and a report.

    Raises
    ------
    ProgramError
        Naming the parts that cannot be emulated.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).double()
    >>> x = torch.tensor([[0.5, -0.25]]).double()
    >>> net = in_context(model, calibration=[x])
    >>> off = (net(x) - model(x)).detach().abs().max()
    >>> float(off) <= net.certificate.error < 1e-10
    True
    """
    _check_model(model)
    settings = PieceSettings(
        eps=check_eps(eps),
        dtype=check_dtype(_dtype_of(model) if dtype is None else dtype),
        backend=resolve(backend),
        headroom=check_positive("headroom", headroom),
        on_range=check_choice("on_range", on_range, ("raise", "widen")),
        insists=backend not in ("auto", "literal"),
    )
    if settings.headroom < 1:
        raise BoundError(f"headroom must be at least 1, got {headroom!r}")
    original = _copied(model).to(settings.dtype).eval().requires_grad_(False)
    network = InContext(
        NetworkModel(
            settings, Signature.of(model), original, strict=strict, title=type(model).__name__
        )
    )
    if calibration is None and bound is None:
        raise ProgramError("give calibration= or bound=, from which ranges can be taken")
    given = [_example(model)] if calibration is None else calibration
    inputs = _inputs(given, settings.dtype)
    for one in inputs:
        network.model.called(*arguments(one))
    if not network.pieces:
        raise ProgramError(f"{type(model).__name__} has no map to emulate")
    size = 1 if tokens is None else check_size("tokens", tokens)
    if bound is None:
        network._calibrate(inputs, size)
    else:
        network._bound(check_positive("bound", bound), size)
    network.frozen.check()
    network._compare(inputs, bounded=bound is None)
    return network


def _check_model(model: Any) -> None:
    """Refuse models without numbers, and models that hide what they do."""
    if not isinstance(model, nn.Module):
        raise ProgramError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ProgramError("a scripted module hides what it is made of; convert the original of it")
    for name, held in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(held):
            raise ProgramError(f"{name} has no size yet; call the model once, then convert it")
        if held.is_meta:
            raise ProgramError(f"{name} is on the meta device and has no numbers; load them first")
        if held.is_complex():
            raise ProgramError(f"{name} is {held.dtype}; networks in context compute with reals")


def _copied(model: nn.Module) -> nn.Module:
    """A copy; what hooks compute before a call (weight_norm, pruning) is copied as it is now."""
    held = (t for part in model.modules() for t in vars(part).values() if isinstance(t, Tensor))
    return copy.deepcopy(model, {id(t): t.detach().clone() for t in held if not t.is_leaf})


def _example(model: nn.Module) -> Any:
    """An input for the first layer that has a width, or the first table of vectors."""
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            return torch.zeros(2, 2, dtype=torch.long)
        if isinstance(part, nn.Linear):
            return torch.zeros(2, part.in_features)
        if isinstance(part, nn.LayerNorm):
            return torch.zeros(2, part.normalized_shape[-1])
    raise ProgramError("give calibration= too: without an input the network cannot be captured")


def _dtype_of(model: nn.Module) -> torch.dtype:
    floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
    if not floats:
        raise ProgramError(f"{type(model).__name__} has no parameters; pass dtype=")
    return floats[0]


def _inputs(calibration: Tensor | Sequence[Any], dtype: torch.dtype) -> list[Any]:
    given = [calibration] if isinstance(calibration, Tensor) else list(calibration)
    if not given:
        raise ProgramError("calibration is empty; give a few typical inputs")
    found = [cast(one, dtype) for one in given]
    for index, one in enumerate(found):
        flatten(one, tensors := list[Tensor](), f"calibration input {index}")
        if any(t.is_floating_point() and bool(t.isnan().any()) for t in tensors if not t.is_meta):
            raise BoundError(f"calibration input {index} holds NaN; no range can be taken from it")
    return found


class InContext(nn.Module, Pretrained, kept_as="InContext"):
    """A network in context; build one with :func:`in_context`.

    Calling it is calling the original. It has no parameters: weights are prompts, kept as buffers.
    :meth:`run` gives the attestation and the ledger as well, :meth:`enclosure` how far one output
    is from the exact one, :meth:`report` a table of the pieces.

    Attributes
    ----------
    model
        The pieces, by the names of the original's parts, and the graphs that run them.
    settings
        dtype, backend, eps and what happens out of range.

    Examples
    --------
    >>> net = in_context(torch.nn.Linear(2, 1).double(), bound=1.0)
    >>> result = net.run(torch.zeros(1, 2).double())
    >>> result.attestation.ok, result.enclosure.error < 1e-10
    (True, True)
    """

    def __init__(self, model: NetworkModel) -> None:
        super().__init__()
        self.model, self.settings = model, model.settings
        self._deviation = math.nan

    # --------------------------------------------------------------------------------- setting up

    def _calibrate(self, inputs: list[Any], tokens: int) -> None:
        with self._in_mode("calibrate"), torch.no_grad():
            for given in inputs:
                self._call(given)
        self._size(tokens)
        for piece in self.pieces:
            piece.freeze_range()
        for graph in self.model.graphs:
            extend(self.model, graph, self.settings.unit)
        self._size(tokens)
        self.model.settled = True

    def _bound(self, bound: float, tokens: int) -> None:
        self._size(tokens)
        for graph in self.model.graphs:
            BoundsWalk(self.model, self.settings.unit, bound=bound).through(graph)
        self._size(tokens)
        self.model.settled = True

    def _compare(self, inputs: list[Any], *, bounded: bool) -> None:
        """The graph against the original, and every piece that runs against its certificate."""
        with torch.no_grad():
            for given in inputs:
                self.model.compare(*self.model.called(*arguments(given)))
                if bounded:
                    with self._in_mode("measure"):
                        self._call(given)
        for piece in self.pieces:
            if not piece.measured <= piece.certified:
                raise ProgramError(
                    f"{piece.name} is off by {piece.measured:.3g} on a calibration input, its "
                    f"certificate is {at_most(piece.certified, '.3g')}; please report it"
                )
            piece.measured = 0.0

    def _size(self, tokens: int) -> None:
        linear = [p for p in self.pieces if isinstance(p, LinearMap)]
        vectors = [p for p in self.pieces if isinstance(p, EmbeddingMap)]
        heads = [p for p in self.pieces if isinstance(p, AttentionPiece)]
        terms = [p.width for p in self.pieces if isinstance(p, Norm)]
        terms += [p.inner or 1 for p in self.pieces if isinstance(p, ProductPiece)]
        frozen = self.settings.frozen
        table = (
            identity_table(self.settings.eps, self.settings.dtype)
            if frozen is None
            else frozen.table
        )
        others = [p.tokens for p in self.pieces if frozen is not None]
        sizes = NetworkSizes.covering(
            inputs=max([p.in_features for p in linear] + terms, default=1),
            outputs=max(
                [p.out_features for p in linear] + [p.weight.shape[1] for p in vectors] + [1]
            ),
            head_dim=max([p.head_dim for p in heads], default=2),
            value_dim=max([p.value_dim for p in heads], default=1),
            tokens=max([tokens, 2, *others, *(p.length for p in heads)]),
        )
        self.settings.frozen = FrozenLayers(
            sizes, table, self.settings.dtype, insists=self.settings.insists
        )

    # ------------------------------------------------------------------------------------ running

    @property
    def pieces(self) -> list[Piece]:
        """Every piece once, in the order in which the graphs run them."""
        return self.model.pieces

    @contextmanager
    def _in_mode(self, mode: str) -> Iterator[None]:
        before, self.settings.mode = self.settings.mode, mode
        try:
            yield
        finally:
            self.settings.mode = before

    def _call(self, given: Any) -> Any:
        args, kwargs = arguments(given)
        return self.model(*args, **kwargs)

    @property
    def left(self) -> tuple[str, ...]:
        """Maps that nothing emulates, allowed by ``strict=False``."""
        return tuple(self.model.left)

    @property
    def outside(self) -> dict[str, int]:
        """What is computed between the pieces and how often, in the first graph."""
        return dict(self.model.graphs[0].outside)

    @full_precision
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network as the original is called."""
        if not torch.compiler.is_exporting():
            check_matmul_precision(self.settings.dtype)
            self._check_dtypes((*args, *kwargs.values()))
        return self.model(*args, **kwargs)

    @full_precision
    def run(self, *args: Any, **kwargs: Any) -> Result:
        """As calling it, with the certificate, the attestation and the ledger of this run.

        ``value`` is the first tensor of the output, ``parts["output"]`` all of it. The result's
        ``enclosure``, how far this output is from the exact one, is computed when it is asked for.
        """
        watch = PieceRecorder(self.settings)
        with watch.on():
            output = self(*args, **kwargs)
        attestation, ledger = watch.attest(), watch.ledger
        graph, _ = self.model.called(args, kwargs)
        for what, times in graph.outside.items():
            ledger.note("host", f"{what} between pieces", times)
        for part in self.left:
            ledger.note("host", f"{part}, which nothing emulates")
        parts = {"output": output}
        outputs = floats_of(output)
        return Result(
            outputs[0], self.certificate, attestation, ledger,
            passes=watch.passes, parts=parts,
            enclosed=partial(of_outputs, self, args, kwargs, outputs),
        )  # fmt: skip

    def _check_dtypes(self, values: Sequence[Any]) -> None:
        for value in values:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            if is_float and value.dtype != self.dtype:
                raise DtypeError(
                    f"an input has dtype {value.dtype}, the certificates hold for {self.dtype}; "
                    f"convert it, or build the network with dtype={value.dtype}"
                )

    @full_precision
    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """The original network itself, in float64.

        Of one that was read from a file, the graph that was captured of it and checked against it.
        """
        structure, tensors = self.model.signature.flatten(args, kwargs)
        return self.model.original(structure, tensors)

    def train(self, mode: bool = True) -> InContext:
        """Does nothing: frozen weights are not trained, and dropout stays off."""
        del mode
        super().train(False)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InContext:
        if fn(torch.zeros((), dtype=self.settings.dtype)).dtype != self.settings.dtype:
            raise DtypeError(
                f"the certificates hold for {self.settings.dtype}; build the network with dtype= "
                "instead of casting it"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.settings.frozen is not None:
            self.settings.frozen.to(fn(torch.zeros((), dtype=self.settings.dtype)).device)
        return self

    # ------------------------------------------------------------------------------ what is known

    @property
    def dtype(self) -> torch.dtype:
        """What the certificates are for."""
        return self.settings.dtype

    @property
    def frozen(self) -> FrozenLayers:
        """The two frozen layers."""
        return self.settings.layers

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights, the same for every network of these sizes."""
        return self.frozen.digest

    @property
    def certificate(self) -> RangeCertificate:
        """The proven error in every entry of the output, for every input that is in range.

        It multiplies worst cases of every layer: for deep networks it is far above what is
        measured, and infinite where an operation between the pieces has no bound over a range.
        :meth:`enclosure` is what is proven of the output on one input: close to what is measured
        at any depth.
        """
        return over_ranges(self)

    def enclosure(
        self, *args: Any, functional: Tensor | None = None, **kwargs: Any
    ) -> InputEnclosure:
        """How far the output on these arguments is from the exact network's, proven.

        It is the distance from a float64 run of the source, and what that run's rounding can be, by
        adjoints. Whatever the pieces did, it is in that distance.

        Parameters
        ----------
        args, kwargs
            As the network takes them.
        functional
            Coefficients in the shape of the first output: the bound is then that of
            |sum of c (emulated - exact)| alone, and costs one reverse pass.
        """
        return of_input(self, args, kwargs, functional)

    def carried(self) -> dict[str, float]:
        """Certified error of an entry behind every piece, over all inputs in range."""
        return {step.symbol: step.value for step in self.certificate.derivation[1:]}

    @full_precision
    def measure(self, inputs: Tensor | Sequence[Any]) -> float:
        """Run inputs and compare every piece, and the whole, with the exact network in float64.

        Returns the largest deviation of an output; :meth:`report` shows those of the pieces.
        """
        worst = 0.0
        self.frozen.check()
        with torch.no_grad():
            for given in _inputs(inputs, self.dtype):
                with self._in_mode("measure"):
                    found = self._call(given)
                args, named = arguments(given)
                want = self.reference(*args, **named)
                pairs = zip(floats_of(found), floats_of(want), strict=True)
                worst = max([worst, *(_distance(a, b) for a, b in pairs)])
        self._deviation = worst
        return worst

    def report(self, measure: Tensor | Sequence[Any] | None = None) -> Report:
        """Layer by layer: what is emulated and how, ranges, tokens, certified and measured."""
        if measure is not None:
            self.measure(measure)
        carried = self.carried()
        rows = [
            ReportRow(p.name, p.kind, p.how, p.range, p.tokens, p.certified, p.measured,
                carried.get(p.name, math.nan), p.widened, p.standing)
            for p in self.pieces
        ]  # fmt: skip
        certificate = self.certificate
        return Report(
            rows=tuple(rows),
            outside=self.outside,
            unsupported=self.left,
            sizes=self.frozen.sizes,
            grid_tokens=self.frozen.table.tokens,
            dtype=self.settings.dtype,
            backend=self.settings.backend,
            certified=certificate.error,
            measured=self._deviation,
            standing=certificate.kind,
        )

    # -------------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        what = (
            "A network run in context: its weights are prompts, read by two frozen "
            "softmax-attention layers."
        )
        return what, {
            "Certificate": self.certificate.explain(),
            "Layer by layer": str(self.report()),
        }

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything that :meth:`unpack` needs: a JSON-ready config and the prompts' tensors."""
        return files.pack(self)

    @classmethod
    def unpack(cls, content: dict[str, Any], tensors: dict[str, Tensor], **_: Any) -> InContext:
        """The inverse of :meth:`pack`."""
        return cls(files.unpack(content, tensors))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as what a folder holds: plain data and tensors."""
        return InContext.unpack, self.pack()

    def __deepcopy__(self, memo: dict[int, Any]) -> InContext:
        copied = InContext(copy.deepcopy(self.model, memo))
        copied._deviation = self._deviation
        return copied


def _distance(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want).abs().max())
