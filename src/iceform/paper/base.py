"""Emulator: an exact algorithm, the frozen network that runs it, and the proof that it does."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, wraps
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from iceform import tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.balls import balls_of, uppermost
from iceform.certificates import Certificate, RecordingBackend, Result, Verification, weakest
from iceform.certificates import DerivationStep as Step
from iceform.codec import encode
from iceform.errors import (
    BoundError,
    DeviceError,
    DtypeError,
    IceformError,
    IntegrityError,
    PrecisionError,
    ProgramError,
)
from iceform.expressions import Loss, ScalarFunction
from iceform.expressions.ball_tensors import BallTensor
from iceform.heads import FrozenNetwork, LookUps, Prompt
from iceform.heads.inspection import Trace, trace_network
from iceform.heads.network import outside_transforms
from iceform.paper.in_graph import InGraph
from iceform.pretrained import Pretrained
from iceform.run import Backend, bind, resolve
from iceform.tables import Interpolant
from iceform.tables.storage import describe_table, reached, table_from
from iceform.validation import (
    check_capacity,
    check_dtype,
    check_eps,
    check_matmul_precision,
    check_tensors,
    dtype_name,
    for_later,
    full_precision,
    guard,
    unit_roundoff,
    untraced,
)

# Where calls come in from outside, whatever modes are on there.
_BORDER = ("__init__", "forward", "prompt", "reference", "run", "step_at", "through", "trace")


_PROOFS = {
    "hard": "modulus of continuity and mass of far nodes",
    "spectral": "theta-function bound of the linear look-up",
    "fitted": "Taylor enclosure on a mesh, after the fit",
    "graded": "Taylor enclosure on a mesh, after the fit",
}


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a layer of attention, which its costs follow from.

    Attributes
    ----------
    tokens, features
        Of its input.
    heads
        How many, each with its own maps but for those that are ``shared``.
    logit, values
        Rows of a head's W_K and W_Q, and of its W_V.
    answers
        Tokens that W_O gives; no more than that many ask.
    shared
        How many of W_K and W_Q are the same for all heads, and held once.
    applied
        How often the layer is applied.
    """

    tokens: int
    features: int
    heads: int
    logit: int
    values: int
    answers: int
    shared: int = 0
    applied: int = 1

    @property
    def parameters(self) -> int:
        """Numbers in its matrices."""
        maps = (2 * self.heads - self.shared * (self.heads - 1)) * self.logit
        return (maps + self.heads * self.values) * self.features + self.tokens * self.answers

    @property
    def held(self) -> int:
        """Numbers of a pass: keys, queries and values, scores and their softmax."""
        each = 2 * self.answers + 2 * self.logit + self.values
        return self.tokens * (self.features + self.heads * each)

    @property
    def flops(self) -> int:
        """Multiplications and additions of all its passes."""
        rows = self.features * (2 * self.logit + self.values)
        one = 2 * self.tokens * (self.answers * (self.logit + self.values) + rows)
        return self.applied * self.heads * one


@dataclass(frozen=True)
class Plan:
    """Sizes of the literal network, known before anything is built.

    Attributes
    ----------
    grid_tokens
        Look-up tokens per sample.
    tokens, features, head_dim, heads, layers
        Sizes of a prompt and of the network.
    prompts
        Prompts that one pass takes.
    parameters
        Frozen numbers in the network.
    weight_bytes
        What they take.
    literal_bytes
        What a literal forward pass takes for one prompt: weights, prompt, keys, queries, values
        and the (tokens x tokens) scores with their softmax.
    fused_bytes
        What a fused pass takes beside its inputs and outputs.
    literal_flops, fused_flops
        Multiplications and additions of one pass.

    Examples
    --------
    >>> plan = LinearLayer(2, 3, eps=1e-6).plan
    >>> plan.layers, plan.heads
    (1, 3)
    """

    grid_tokens: int
    tokens: int
    features: int
    head_dim: int
    heads: int
    layers: int
    parameters: int
    weight_bytes: int
    literal_bytes: int
    fused_bytes: int
    literal_flops: int
    fused_flops: int
    prompts: int = 1

    @classmethod
    def of(
        cls,
        layers: Sequence[LayerSizes],
        dtype: torch.dtype,
        *,
        grid: int,
        prompt: tuple[int, int],
        looked: int | None = None,
        more: int = 0,
        lifted: int = 0,
        prompts: int = 1,
        at_once: int = 1,
        products: int = 0,
    ) -> Plan:
        """The sizes of a network from those of its layers and of its prompt.

        ``looked`` counts the values of a table that a fused pass weighs, ``products`` what it
        multiplies beside; None where it multiplies the matrices. ``more`` counts weights that are
        not the layers', ``lifted`` what is held as a prompt is made longer. A literal pass holds
        one layer's scores at a time, of ``at_once`` prompts.
        """
        size, tokens = torch.finfo(dtype).bits // 8, math.prod(prompt)
        parameters = more + sum(layer.parameters for layer in layers)
        literal = tokens + lifted + max(layer.held for layer in layers)
        fused = literal if looked is None else tokens + 2 * min(looked, tuning.ENTRIES_AT_ONCE)
        flops = prompts * sum(layer.flops for layer in layers)
        return cls(
            grid_tokens=grid,
            tokens=prompt[0],
            features=prompt[1],
            head_dim=layers[0].logit,
            heads=sum(layer.heads * layer.applied for layer in layers),
            layers=sum(layer.applied for layer in layers),
            parameters=parameters,
            weight_bytes=8 * parameters,
            literal_bytes=size * (parameters + at_once * literal),
            fused_bytes=size * fused,
            literal_flops=flops,
            fused_flops=flops if looked is None else 2 * products + 8 * looked,
            prompts=prompts,
        )

    def to_dict(self) -> dict[str, int]:
        """For tables and JSON."""
        return asdict(self)


class Emulator(InGraph, Pretrained, ABC, kept_as="Emulator"):
    """A construction: calling it runs the algorithm by attention.

    A subclass supplies the exact algorithm (:meth:`reference`), the prompt, the network, a fused
    evaluation and a certificate; it inherits validation order, backends, saving and loading, and
    the conformance tests.

    Attributes
    ----------
    interpolant
        The look-up table that the prompt carries.
    shapes, answer
        The shape of each input by its name, and of the answer, batch axes left out.
    dtype, backend, regime, eps
        As asked for.

    Examples
    --------
    >>> em = LinearLayer(2, 1, eps=1e-6)  # any construction is one
    >>> isinstance(em, Emulator), em.certificate.error <= 1e-6, len(em.digest)
    (True, True, 64)
    """

    kinds: ClassVar[dict[str, type[Emulator]]] = {}
    # Arguments that files hold otherwise: a loss by its name, a table by its tokens and values.
    held_apart: ClassVar[frozenset[str]] = frozenset(
        {"loss", "f", "interpolant", "kinks", "tokens", "rates", "grid"}
    )

    interpolant: Interpolant
    dtype: torch.dtype
    backend: str
    eps: float | None
    shapes: dict[str, tuple[int, ...]]
    answer: tuple[int, ...]
    _asked: dict[str, Any]  # by name, as the constructor was called

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Emulator.kinds[cls.__name__] = cls
        if "__init__" in vars(cls):
            cls.__init__ = _noted(cls.__init__)  # type: ignore[method-assign]
        guard(cls, _BORDER)

    def __init__(self, *, eps: float | None, dtype: torch.dtype, backend: str) -> None:
        super().__init__()
        self.eps = check_eps(eps)
        self.dtype = check_dtype(dtype)
        self.backend = resolve(backend)
        self._insists = backend != "auto"

    # ------------------------------------------------------------- what a construction supplies

    @abstractmethod
    def _exactly(self, *inputs: Tensor) -> Tensor:
        """Run the exact algorithm, in float64."""

    @abstractmethod
    def _encode(self, *inputs: Tensor) -> Prompt | LookUps:
        """Encode data and program as tokens, or as what stands for them."""

    @abstractmethod
    def _check_values(self, *inputs: Tensor) -> None:
        """Refuse numbers that the certificate does not cover, in inputs of the right shapes."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """Sizes, before anything is built."""

    @abstractmethod
    def _certify(self, it: Interpolant) -> Certificate:
        """The proven error by a look-up table."""

    @abstractmethod
    def _build_network(self) -> FrozenNetwork: ...

    # ------------------------------------------------------------------------ what it inherits

    @cached_property
    def certificate(self) -> Certificate:
        """The proven error, for every input in the domain."""
        return self._certify(self.interpolant)

    def check(self, *inputs: Tensor) -> None:
        """Refuse inputs that the certificate does not cover: shapes, dtype, device, then values."""
        self._check_shapes(*inputs)
        self._check_values(*inputs)

    def _check_shapes(self, *inputs: Tensor) -> None:
        wanted = self.shapes
        if len(inputs) != len(wanted):
            raise TypeError(f"call with ({', '.join(wanted)}), got {len(inputs)} arguments")
        first = inputs[0]
        device = first.device if isinstance(first, Tensor) else torch.device("cpu")
        pairs = zip(wanted.items(), inputs, strict=True)
        check_tensors({name: (t, shape) for (name, shape), t in pairs}, self.dtype, device)

    def _axes(self, inputs: int) -> tuple[Sequence[int], Sequence[int]]:
        return [len(shape) for shape in self.shapes.values()], self.answer

    def _hold_eps(self, otherwise: str, of: str = "") -> None:
        """Refuse to promise an eps that the certificate does not hold; say what to do instead."""
        error = self.certificate.error
        if self.eps is not None and not error <= self.eps:
            raise PrecisionError(
                f"{at_most(error, '.3g')} is certified{of and ' of '}{of}, not eps = "
                f"{self.eps:.3g}; {otherwise}",
                best=error,
            )

    def extra_repr(self) -> str:
        """What it was asked for, and what is proven of it."""
        asked = {k: v for k, v in self._asked.items() if isinstance(v, (int, float, str)) and v}
        return ", ".join([*(f"{k}={v}" for k, v in asked.items()), self.certificate.statement])

    @full_precision
    def reference(self, *inputs: Tensor) -> Tensor:
        """The exact algorithm, in float64; inputs may lie outside the certified domain."""
        try:
            self.check(*inputs)
        except (BoundError, DtypeError, DeviceError):
            if not all(isinstance(t, Tensor) for t in inputs):
                raise
        return self._exactly(*inputs)

    @full_precision
    def prompt(self, *inputs: Tensor) -> Prompt | LookUps:
        """Data and program as tokens; refused where they would not fit in memory."""
        self.check(*inputs)
        self.check_literal(inputs[0].device)
        return self._encode(*inputs)

    @full_precision
    def forward(self, *inputs: Tensor) -> Tensor:
        """Check the inputs, then run the frozen network on their prompt."""
        if torch.compiler.is_exporting():
            return self._run(self._begin(*inputs), *inputs)
        backend = self._begin(*inputs, later=True)
        try:
            return self._run(backend, *inputs)
        finally:  # whatever the pass says of what it met, changed weights are named before it
            backend.settle()

    @full_precision
    def through(self, backend: Backend, *inputs: Tensor) -> Tensor:
        """Run with a backend that :meth:`bind` returned, for callers that make several passes.

        Refused where the weights are no longer those that it was bound to.
        """
        self._check_once(*inputs)
        backend.recheck()
        return self._run(backend, *inputs)

    def _run(self, backend: Backend, *inputs: Tensor) -> Tensor:
        """Write the prompt, let the backend run the network on it, read out."""
        return self._read(backend.run(self._encode(*inputs)))

    def _read(self, output: Tensor) -> Tensor:
        return output

    def bind(self) -> Backend:
        """The backend on this construction's network, whose weights are checked now."""
        return bind(self.network, self.binding)

    @property
    def binding(self) -> str:
        """The backend to bind, which is "auto" unless another was insisted on."""
        return self.backend if self._insists or self.backend != "fused" else "auto"

    @full_precision
    @untraced
    def run(self, *inputs: Tensor) -> Result:
        """As calling it, with the certificate, the attestation and the ledger of this run."""
        witness = RecordingBackend(self._begin(*inputs))
        value = self._run(witness, *inputs)
        return Result(
            value, self.certificate, witness.attest(), witness.ledger, passes=witness.passes
        )

    @untraced
    def _begin(self, *inputs: Tensor, later: bool = False) -> Backend:
        """Check the inputs and bind the network.

        An exported program has no host that could look at values or weights: it is the literal
        network on the literal prompt, and whoever runs it answers for the domain.
        """
        if torch.compiler.is_exporting():
            return bind(self.network, "literal")
        self._check_once(*inputs)
        bound = bind(self.network, self.binding, later=later)
        if bound.name != self.backend:  # other weights, which are multiplied as they are
            self.check_literal(inputs[0].device)
        return bound

    @untraced
    def _check_once(self, *inputs: Tensor) -> None:
        check_matmul_precision(self.dtype)
        self.check(*inputs)
        if self.backend == "literal":
            self.check_literal(inputs[0].device)

    def check_literal(self, device: torch.device) -> None:
        """Refuse a literal network that would not fit in memory."""
        check_capacity(
            f"the literal network ({self.plan.tokens} tokens of {self.plan.features} features)",
            self.plan.literal_bytes,
            device,
            self._smaller,
        )

    @property
    def _smaller(self) -> str:
        """What to do about a literal network that would not fit."""
        return "use backend='fused', which holds no scores, or fewer samples"

    @full_precision
    def trace(self, *inputs: Tensor) -> Trace:
        """What every layer of the literal network does with the inputs' prompt.

        Of a construction that takes several passes, the first.
        """
        check_matmul_precision(self.dtype)
        self.check(*inputs)
        device, size = inputs[0].device, torch.finfo(self.dtype).bits // 8
        pairs = zip(inputs, self.shapes.values(), strict=True)
        batch = torch.broadcast_shapes(*(t.shape[: t.ndim - len(shape)] for t, shape in pairs))
        # A forward pass holds one layer's scores at a time, a trace those of all of them.
        plan = self.plan
        one = plan.tokens * (2 * plan.tokens + 4 * (plan.features + plan.head_dim))
        held = plan.layers * plan.literal_bytes + size * one * plan.prompts * batch.numel()
        check_capacity("a trace of the literal network", held, device, "trace fewer samples")
        prompt = self._encode(*inputs)
        if isinstance(prompt, LookUps):
            prompt = prompt.prompt()
        network = self.network.to(device)
        return trace_network(network, prompt.tokens, features=prompt.features, roles=prompt.roles)

    @property
    @full_precision
    @for_later
    def network(self) -> FrozenNetwork:
        """The literal frozen weights; built on first use, and refused if they would not fit."""
        built = self._modules.get("_network")
        if built is None:
            check_capacity(
                "the literal weights",
                self.plan.weight_bytes,
                torch.device("cpu"),
                "use fewer features or samples",
            )
            with outside_transforms():
                built = self._build_network().to(self.dtype).seal()
            self.add_module("_network", built)
        assert isinstance(built, FrozenNetwork)
        return built

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights."""
        return self.network.digest

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        moved = fn(torch.zeros((), dtype=self.dtype))
        if moved.dtype != self.dtype:
            raise DtypeError(
                f"the certificate holds for {self.dtype}, so an emulator cannot be cast to "
                f"{moved.dtype}; build one with dtype={moved.dtype}"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _look_up_steps(self, error: float, rounding: float, it: Interpolant) -> Iterable[Step]:
        """The steps that derive a look-up's error, the largest of tables on the same keys."""
        yield Step("h", "grid spacing", it.grid.spacing, f"{it.tokens} tokens, {it.regime} regime")
        yield Step("c", "sharpness beta h^2", it.sharpness, "temperature in units of the grid")
        yield Step("sup|A-f|", "look-up against f on its range", error, _PROOFS[it.regime])
        yield Step("u", "unit roundoff", unit_roundoff(self.dtype), f"half of eps of {self.dtype}")
        yield Step("rounding", "look-up in floating point", rounding, "logits, exp, sums, products")

    def _proved(
        self,
        terms: Mapping[str, float],
        domain: Mapping[str, float | str],
        steps: Iterable[Step],
        *rests_on: Interpolant | Certificate,
        assumed: tuple[str, ...] = (),
    ) -> Certificate:
        """The certificate whose error is the sum of ``terms``, of the weakest kind it rests on."""
        found = dict.fromkeys(a for part in rests_on for a in part.assumptions)
        kinds = [part.kind for part in rests_on] + ["estimated"] * bool(assumed)
        return Certificate.total(
            terms,
            domain=domain,
            dtype=self.dtype,
            backend=self.backend,
            derivation=tuple(steps),
            assumptions=(*found, *assumed),
            kind=weakest(kinds),
            verifier=self._verify,
        )

    def _verify(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        """One instance: the exact algorithm in ball arithmetic, against what is computed.

        Inputs and outputs are floating-point numbers, so they are known exactly; only the
        algorithm itself needs enclosing.
        """
        if inputs[0].ndim > 2:
            raise ProgramError("verify one instance at a time: inputs must have no batch dimension")
        measured, _ = distance(self._exactly, inputs, self(*inputs), bits)
        # Written so that NaN fails.
        return Verification(measured <= certified, measured, certified, bits)

    # ---------------------------------------------------------------------------------- files

    def card(self) -> tuple[str, dict[str, str]]:
        what = f"A frozen softmax-attention network that computes {type(self).__name__}."
        return what, {"Certificate": self.certificate.explain()}

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything that :meth:`unpack` needs: a JSON-ready config and tensors."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        table, held = describe_table(self.interpolant)
        tensors |= {f"interpolant.{k}": v for k, v in held.items()}
        config: dict[str, Any] = {
            "kind": type(self).__name__,
            "arguments": self._config(),
            "interpolant": table,
            "certificate": self.certificate.to_dict(),
            "digest": self.digest,
        }
        return config, tensors

    @classmethod
    def unpack(
        cls, content: dict[str, Any], tensors: dict[str, Tensor], *, f: Any = None, **_: Any
    ) -> Emulator:
        """The inverse of :meth:`pack`."""
        config = content
        try:
            kind = Emulator.kinds[config["kind"]]
            start = "interpolant."
            held = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            it = table_from(config["interpolant"], held)
            if f is not None:
                _check_same_function(it, kind._tabled(f, it))
            emulator = kind._rebuild(config["arguments"], it, f)  # which proves the table anew
            emulator._insists = False  # a file says which backend ran, and insists on none
            found = emulator.interpolant
            reached(it.error, found.error, found.kind)
        except ProgramError:
            raise
        except (KeyError, TypeError, AttributeError, IceformError) as broken:
            raise IntegrityError(
                f"the folder holds no emulator of this version: {broken!r}"
            ) from None
        weights = {k: v for k, v in tensors.items() if k.startswith("network.")}
        built = {f"network.{k}": v for k, v in emulator.network.state_dict().items()}
        same = weights.keys() == built.keys() and all(
            weights[k].dtype == t.dtype and torch.equal(weights[k], t) for k, t in built.items()
        )
        if not same or emulator.digest != config.get("digest"):
            raise IntegrityError(
                "the weights in the folder are not the ones its config describes "
                "(another version of the library wrote them, or the file was altered)"
            )
        return emulator

    @classmethod
    def _tabled(cls, f: Any, it: Interpolant) -> Any:
        """The function whose values a saved table holds, from what is passed to ``load``."""
        return f

    def _config(self) -> dict[str, Any]:
        """Keyword arguments that rebuild this emulator, JSON only; a loss by its name."""
        config = {**encode(self._asked), "eps": self.eps, "dtype": dtype_name(self.dtype)}
        loss = getattr(self, "loss", None)
        return {**config, "loss": loss.to_config()} if isinstance(loss, Loss) else config

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        """The inverse of :meth:`_config`, around a ready look-up table."""
        options = {**arguments, "dtype": getattr(torch, arguments["dtype"]), "interpolant": it}
        loss = [Loss.from_config(options.pop("loss"), f)] if "loss" in options else []
        construct: Callable[..., Emulator] = cls
        return construct(*loss, **options)


def distance(
    exactly: Callable[..., Tensor], inputs: Iterable[Tensor], computed: Tensor, bits: int
) -> tuple[float, float]:
    """How far an answer is from the exact one, and the widest ball of that one.

    The exact algorithm runs on balls of so many bits; inputs and answer are known exactly.
    """
    with balls_of(bits):
        exact: Any = exactly(*map(BallTensor.of, inputs))
        gaps = abs((BallTensor.of(computed) - exact).flatten())
        return max(map(uppermost, gaps)), exact.widest()


def _noted(construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that it notes its arguments, which files need."""
    signature = inspect.signature(construct)

    @wraps(construct)
    def noting(self: Emulator, *args: Any, **kwargs: Any) -> None:
        if "_asked" not in vars(self):
            with suppress(TypeError):  # the constructor says better what is wrong
                vars(self)["_asked"] = _by_name(signature.bind(self, *args, **kwargs), self)
        construct(self, *args, **kwargs)

    return noting


def _by_name(bound: inspect.BoundArguments, made: Emulator) -> dict[str, Any]:
    bound.apply_defaults()
    (_, *given), kinds = bound.arguments.items(), bound.signature.parameters
    plain = {k: v for k, v in given if kinds[k].kind is not inspect.Parameter.VAR_KEYWORD}
    for name, value in given:
        plain |= {} if name in plain else value
    return {name: value for name, value in plain.items() if name not in made.held_apart}


def _derivative(f: Any) -> Any:
    """The function that is looked up: the derivative of a loss, or the function itself."""
    return f.derivative if isinstance(f, Loss) else f


def _check_same_function(it: Interpolant, f: Any) -> None:
    """Refuse a function that the saved look-up table was not made for."""
    function = ScalarFunction.of(_derivative(f), it.low, it.high, kinks=())
    z = torch.linspace(it.low, it.high, tuning.PLACES, dtype=torch.float64)
    off = float((it(z) - function(z)).abs().max())
    allowed = it.error + 64 * torch.finfo(torch.float64).eps * max(it.size, 1.0)
    if not off <= allowed:
        raise ProgramError(
            f"the saved look-up table is off by {off:.3g} from this f, its certified error is "
            f"{at_most(it.error, '.3g')}; pass the function it was made for"
        )
