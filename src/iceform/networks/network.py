"""InContext: a torch network whose every map is read from the prompt by two frozen layers."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from iceform.backends import resolve
from iceform.certificates import Certificate, Result, Step, weakest
from iceform.errors import BoundError, DtypeError, IntegrityError, ProgramError
from iceform.networks.architecture import build, describe
from iceform.networks.audit import operations_outside, refuse_missed, unsupported
from iceform.networks.convert import convert
from iceform.networks.frozen import FrozenLayers, NetworkSizes, identity_table
from iceform.networks.pieces import EmbeddingMap, Heads, LinearMap, Piece, Settings, Span
from iceform.networks.report import Report, Row
from iceform.networks.walk import Route, UnknownShapeError, first_span, walk
from iceform.networks.watching import Watching
from iceform.pretrained import Pretrained
from iceform.validation import (
    check_choice,
    check_dtype,
    check_eps,
    check_matmul_precision,
    check_positive,
    check_size,
    full_precision,
)

__all__ = ["InContext", "in_context"]

_KNOWN = {"add", "add_"}  # operations between pieces that a walk accounts for
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
    """The same network with every linear map, head and activation emulated (sec. 4.3).

    Parameters
    ----------
    model
        Made of ``nn.Linear``, ``nn.Embedding``, ``nn.LayerNorm``, activations,
        ``nn.MultiheadAttention``, ``nn.TransformerEncoder`` or BERT-style encoders of
        transformers, in any container. It is copied, not changed.
    eps
        What one look-up may be off by, as a share of its range; None takes the best the dtype
        can do.
    calibration
        Inputs to take ranges from: tensors, tuples of arguments or dictionaries of keyword
        arguments.
    bound
        Instead of calibration: max |input|; ranges then come from norms of the weights, which
        hold for every such input and are wider. Not needed where token ids go in.
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

    Raises
    ------
    ProgramError
        Naming the parts that cannot be emulated.
    """
    settings = Settings(
        eps=check_eps(eps),
        dtype=check_dtype(_dtype_of(model) if dtype is None else dtype),
        backend=resolve(backend),
        headroom=check_positive("headroom", headroom),
        on_range=check_choice("on_range", on_range, ("raise", "widen")),
    )
    if settings.headroom < 1:
        raise BoundError(f"headroom must be at least 1, got {headroom!r}")
    shape = describe(model)
    converted = convert(copy.deepcopy(model).to(settings.dtype).eval(), settings)
    left = unsupported(converted)
    if left and strict:
        raise ProgramError(
            f"nothing here emulates {', '.join(left)}; replace them, or pass strict=False to have "
            "them listed in the report instead"
        )
    network = InContext(converted, settings, left, shape)
    if not network.pieces:
        raise ProgramError(f"{type(model).__name__} has no map to emulate")
    if calibration is not None:
        network._calibrate(_inputs(calibration, settings.dtype), tokens, strict)
    else:
        network._bound(bound, 1 if tokens is None else check_size("tokens", tokens))
    network.frozen.check()
    return network


def _dtype_of(model: nn.Module) -> torch.dtype:
    floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
    if not floats:
        raise ProgramError(f"{type(model).__name__} has no parameters; pass dtype=")
    return floats[0]


def _inputs(calibration: Tensor | Sequence[Any], dtype: torch.dtype) -> list[Any]:
    given = [calibration] if isinstance(calibration, Tensor) else list(calibration)
    if not given:
        raise ProgramError("calibration is empty; give a few typical inputs")
    return [_cast(one, dtype) for one in given]


def _cast(given: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors as ``dtype``, wherever they are in an input."""
    if isinstance(given, Mapping):
        return {k: _cast(v, dtype) for k, v in given.items()}
    if isinstance(given, tuple | list):
        return tuple(_cast(v, dtype) for v in given)
    is_float = isinstance(given, Tensor) and given.is_floating_point()
    return given.to(dtype) if is_float else given


class InContext(nn.Module, Pretrained):
    """A network in context; build one with :func:`in_context`.

    Calling it is calling the original. It has no parameters: weights are prompts, kept as buffers.

    Attributes
    ----------
    model
        The original's structure, made of pieces.
    settings
        dtype, backend, eps and what happens out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        left: Sequence[str] = (),
        shape: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.left, self.shape = tuple(left), shape
        self.outside: dict[str, int] | None = None
        self._deviation = math.nan

    # --------------------------------------------------------------------------------- setting up

    def _calibrate(self, inputs: list[Any], tokens: int | None, strict: bool) -> None:
        with self._in_mode("calibrate"), torch.no_grad():
            for given in inputs:
                self._call(given)
        silent = [p.name for p in self.pieces if math.isinf(p.order)]
        if silent:
            raise ProgramError(f"calibration never reached {', '.join(silent)}")
        self._size(1 if tokens is None else check_size("tokens", tokens))
        for piece in self.pieces:
            piece.settle()
        self._size(1 if tokens is None else tokens)

        def run() -> None:
            with torch.no_grad():
                self._call(inputs[0])

        self.outside, missed = operations_outside(self.model, run)
        if strict:
            refuse_missed(missed)

    def _bound(self, bound: float | None, tokens: int) -> None:
        self._size(tokens)
        route = Route(self.settings.unit, tokens, settle=True)
        try:
            walk(self.model, self._first(bound), route)
        except UnknownShapeError as unknown:
            raise ProgramError(
                f"ranges cannot be bounded through {unknown}; pass calibration= instead"
            ) from None
        self._size(tokens)

    def _first(self, bound: float | None) -> Span | None:
        first = first_span(self.model)
        if first is None:
            return None
        if bound is None:
            raise ProgramError("give calibration= or bound=, from which ranges can be taken")
        entry = check_positive("bound", bound)
        return Span(entry * math.sqrt(first.width), entry, 0.0, first.width)

    def _size(self, tokens: int) -> None:
        linear = [p for p in self.pieces if isinstance(p, LinearMap)]
        vectors = [p for p in self.pieces if isinstance(p, EmbeddingMap)]
        heads = [p for p in self.pieces if isinstance(p, Heads)]
        frozen = self.settings.frozen
        table = (
            identity_table(self.settings.eps, self.settings.dtype)
            if frozen is None
            else frozen.table
        )
        others = [p.tokens for p in self.pieces if frozen is not None]
        sizes = NetworkSizes.covering(
            inputs=max([p.in_features for p in linear], default=1),
            outputs=max(
                [p.out_features for p in linear] + [p.weight.shape[1] for p in vectors] + [1]
            ),
            head_dim=max([p.head_dim for p in heads], default=2),
            value_dim=max([p.value_dim for p in heads], default=1),
            tokens=max([tokens, 2, *others, *(p.length for p in heads)]),
        )
        self.settings.frozen = FrozenLayers(sizes, table, self.settings.dtype)

    # ------------------------------------------------------------------------------------ running

    @property
    def pieces(self) -> list[Piece]:
        """Every piece once, in the order in which calibration reached them."""
        found = [m for m in self.model.modules() if isinstance(m, Piece)]
        return sorted(found, key=lambda piece: piece.order)

    @contextmanager
    def _in_mode(self, mode: str) -> Iterator[None]:
        before, self.settings.mode = self.settings.mode, mode
        try:
            yield
        finally:
            self.settings.mode = before

    def _call(self, given: Any) -> Any:
        if isinstance(given, Mapping):
            return self.model(**given)
        return self.model(*given) if isinstance(given, tuple | list) else self.model(given)

    @full_precision
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the original's."""
        if not torch.compiler.is_exporting():
            check_matmul_precision(self.settings.dtype)
            self._check_dtypes((*args, *kwargs.values()))
            self.frozen.check()
        return self.model(*args, **kwargs)

    @full_precision
    def run(self, *args: Any, **kwargs: Any) -> Result:
        """As calling it, with the certificate, the attestation and the ledger of this run.

        ``value`` is the first tensor of the output, ``parts["output"]`` all of it.
        """
        watch = Watching(self.settings)
        with watch.on():
            output = self(*args, **kwargs)
        attestation, ledger = watch.attest(), watch.ledger
        for what, times in (self.outside or {}).items():
            ledger.note("host", f"{what} between pieces", times)
        for part in self.left:
            ledger.note("host", f"{part}, which nothing emulates")
        value, certificate = _tensors(output)[0], self.certificate or self._unbounded()
        parts = {"output": output}
        return Result(value, certificate, attestation, ledger, passes=watch.passes, parts=parts)

    def _unbounded(self) -> Certificate:
        """Where the order of the maps is not known, nothing is proven of the whole."""
        return Certificate.total(
            {"not bounded: the order of its maps is not known": math.inf},
            domain={"ranges": "as calibrated, checked at every piece"},
            dtype=self.settings.dtype,
            backend=self.settings.backend,
            derivation=(),
        )

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
        """The original network, exactly, in float64."""
        exact = copy.deepcopy(self.model).double()
        wide, named = _cast(args, torch.float64), _cast(kwargs, torch.float64)
        with self._in_mode("exact"):
            return exact(*wide, **named)

    def train(self, mode: bool = True) -> InContext:
        """Nothing: frozen weights are not trained, and dropout stays off."""
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
    def certificate(self) -> Certificate | None:
        """The proven error of the whole network, in every entry of its output.

        None where the order of the maps is not known: then only pieces are certified. The bound
        multiplies norms of every layer's weights, and for deep networks it is far above what is
        measured; where it is no smaller than what the output can reach, it says nothing.
        """
        route = Route(self.settings.unit, self.frozen.sizes.tokens)
        try:
            last = walk(self.model, first_span(self.model), route)
        except UnknownShapeError:
            return None
        # A shape that was taken for a known one has pieces, or operations, that no walk meets.
        met = all(piece.name in route.errors for piece in self.pieces)
        if not met or not set(self.outside or ()) <= _KNOWN:
            return None
        own = max(p.certified for p in self.pieces)
        return Certificate.total(
            {"look-ups and rounding, carried through the layers": last.error},
            domain={"ranges": "as calibrated, checked at every piece", "tokens": route.tokens},
            dtype=self.settings.dtype,
            backend=self.settings.backend,
            derivation=(
                Step("max e", "largest error of a piece alone", own, "certified on its range"),
                *(
                    Step(name, "2-norm of a token's error behind it", value, "norms of the weights")
                    for name, value in route.errors.items()
                ),
            ),
            assumptions=tuple(dict.fromkeys(a for p in self.pieces for a in p.assumptions)),
            kind=weakest(p.standing for p in self.pieces),
        )

    def carried(self) -> dict[str, float]:
        """Certified 2-norm of a token's error behind every piece; empty for unknown shapes."""
        certificate = self.certificate
        if certificate is None:
            return {}
        return {step.symbol: step.value for step in certificate.derivation[1:]}

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
                args = given if isinstance(given, tuple | list) else (given,)
                named = given if isinstance(given, Mapping) else {}
                want = self.reference(*(() if named else args), **named)
                pairs = zip(_tensors(found), _tensors(want), strict=True)
                worst = max([worst, *(_distance(a, b) for a, b in pairs)])
        self._deviation = worst
        return worst

    def report(self, measure: Tensor | Sequence[Any] | None = None) -> Report:
        """Layer by layer: what is emulated and how, ranges, tokens, certified and measured."""
        if measure is not None:
            self.measure(measure)
        carried = self.carried()
        rows = [
            Row(p.name, p.kind, p.how, p.emulated, p.range, p.tokens, p.certified, p.measured,
                carried.get(p.name, math.nan), p.widened)
            for p in self.pieces
        ]  # fmt: skip
        certificate = self.certificate
        return Report(
            rows=tuple(rows),
            outside=dict(self.outside or {}),
            watched=self.outside is not None,
            unsupported=self.left,
            sizes=self.frozen.sizes,
            grid_tokens=self.frozen.table.tokens,
            dtype=self.settings.dtype,
            backend=self.settings.backend,
            certified=math.nan if certificate is None else certificate.error,
            measured=self._deviation,
        )

    # -------------------------------------------------------------------------------------- files

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything that :meth:`unpack` needs: a JSON-ready config and the prompts' tensors."""
        s = self.settings
        certificate = self.certificate
        config = {
            "shape": self.shape,
            "settings": {
                "eps": s.eps,
                "dtype": str(s.dtype).removeprefix("torch."),
                "backend": s.backend,
                "headroom": s.headroom,
                "on_range": s.on_range,
            },
            "sizes": self.frozen.sizes.to_dict(),
            "pieces": [{"name": p.name, "ranges": p.ranges()} for p in self.pieces],
            "outside": self.outside,
            "not_emulated": list(self.left),
            "certificate": None if certificate is None else json.loads(certificate.to_json()),
            "digest": self.digest,
        }
        return config, dict(self.model.state_dict())

    @classmethod
    def unpack(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | None = None
    ) -> InContext:
        """The inverse of :meth:`pack`; ``model`` gives the shape where the file does not."""
        if model is None and config["shape"] is None:
            raise ProgramError(
                "this network's shape is not in the file; pass model=, a module of that shape "
                "(its weights do not matter)"
            )
        given = config["settings"]
        settings = Settings(
            eps=check_eps(given["eps"]),
            dtype=check_dtype(getattr(torch, given["dtype"], None)),
            backend=resolve(given["backend"]),
            headroom=check_positive("headroom", given["headroom"]),
            on_range=check_choice("on_range", given["on_range"], ("raise", "widen")),
        )
        source = build(config["shape"]) if model is None else copy.deepcopy(model)
        converted = convert(source.to(settings.dtype).eval(), settings)
        network = cls(converted, settings, config["not_emulated"], config["shape"])
        network._restore(config, tensors)
        return network

    def _restore(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        table = identity_table(self.settings.eps, self.settings.dtype)
        sizes = NetworkSizes(**config["sizes"])
        self.settings.frozen = FrozenLayers(sizes, table, self.settings.dtype)
        try:
            self.model.load_state_dict(tensors, strict=True)
        except RuntimeError as broken:
            raise IntegrityError(f"the prompts do not fit the network: {broken}") from None
        pieces = {piece.name: piece for piece in self.pieces}
        for order, saved in enumerate(config["pieces"]):
            pieces[saved["name"]].restore(saved["ranges"])
            pieces[saved["name"]].order = order
        self.outside = config["outside"]
        if self.frozen.check() != config["digest"]:
            raise IntegrityError(
                "the frozen layers that this version builds are not the ones that were saved"
            )


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output
    return [t for t in values if isinstance(t, Tensor) and t.is_floating_point()]


def _distance(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want).abs().max())
