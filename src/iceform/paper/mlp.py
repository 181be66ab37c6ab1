r"""A small network in context: every weight in the prompt, every activation a look-up.

Linear maps are read by a :class:`LinearLayer` each. Activations are looked up by one look-up layer
(:mod:`iceform.heads.lookups`) that they all share: its prompt holds the activation's table, and
for every number z a sample x = 0 with the label -z, so that the layer looks up w.x - y = z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from iceform import tuning
from iceform.arithmetic import at_most, exactly
from iceform.arithmetic.units import OUTWARD_MANY, OUTWARD_MOST
from iceform.certificates import (
    Attestation,
    Certificate,
    DerivationStep,
    Ledger,
    RecordingBackend,
    Result,
    weakest,
)
from iceform.certificates.result import joined
from iceform.errors import BoundError, PrecisionError, ShapeError
from iceform.expressions import ScalarFunction
from iceform.heads import FrozenNetwork, LookUpLayout, LookUps
from iceform.paper.in_graph import InGraph
from iceform.paper.residual import BLOCK, check_logits, room_for
from iceform.paper.rows import LinearLayer
from iceform.paper.selection import choose
from iceform.run import Backend, bind, rounding_of
from iceform.tables import Interpolant, regimes
from iceform.validation import check_positive, check_size, for_later, untraced


class MLP(InGraph):
    """A multi-layer perceptron whose weights and biases are all in the prompt.

    ``net(x, w1, b1, w2, b2, ...)``: x is (*batch, samples, sizes[0]), w_l is
    (*batch, sizes[l], sizes[l-1]) and b_l (*batch, sizes[l]). Every linear map is a
    :class:`LinearLayer` (the bias rides along as the weight of a constant one), every activation a
    table in the prompt of one look-up layer. The last layer has no activation.

    The error of a layer's input is multiplied by the largest row sum of |w| and by the
    activation's steepness; each look-up adds its own.

    Parameters
    ----------
    sizes
        Features of the input, the hidden layers and the output.
    activation
        Continuous and elementwise.
    samples, bound, weight_bound
        Tokens of x, and entrywise bounds of x and of weights and biases.
    reach
        Bounds of |w x + b| of each layer, checked on every input; by default the worst case.
    eps
        The sup-norm error to certify; None takes the best the dtype can do.
    dtype, backend
        What the certificate is for.

    Examples
    --------
    >>> net = MLP([1, 1, 1], torch.tanh, eps=1e-3)
    >>> one, half, none = torch.ones(1, 1).double(), torch.tensor([[0.5]]).double(), torch.zeros(1)
    >>> out = net(one, half, none.double(), one, none.double())  # tanh(0.5 x) at x = 1
    >>> abs(float(out) - 0.46212) <= 1e-3
    True
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Callable[[Tensor], Tensor] | ScalarFunction,
        *,
        samples: int = 1,
        bound: float = 1.0,
        weight_bound: float = 1.0,
        reach: Sequence[float] | None = None,
        eps: float | None = tuning.EPS,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ShapeError(f"an MLP needs at least two sizes, got {tuple(sizes)}")
        self.sizes = tuple(check_size("sizes", s) for s in sizes)
        self.activation, self.dtype, self.eps = activation, dtype, eps
        self.weight_bound = check_positive("weight_bound", weight_bound, dtype=dtype)
        if reach is not None and len(reach) != len(sizes) - 1:
            raise ShapeError(
                f"reach needs {len(sizes) - 1} bounds, one per layer, got {len(reach)}"
            )
        self.layers = nn.ModuleList()
        self._linear: list[LinearLayer] = []
        self.tables: list[Interpolant] = []
        self._functions: list[ScalarFunction] = []
        size = max(1.0, check_positive("bound", bound))
        last = len(sizes) - 2
        for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            layer = LinearLayer(
                fan_in + 1,
                fan_out,
                samples=samples,
                bound=size,
                weight_bound=weight_bound,
                reach=None if reach is None else reach[index],
                eps=None,
                dtype=dtype,
                backend=backend,
            )
            self.layers.append(layer)
            self._linear.append(layer)
            if index < last:
                size = max(1.0, self._add_activation(layer, eps))
        error = self.certificate.error
        if eps is not None and not error <= eps:
            raise PrecisionError(
                f"{at_most(error, '.3g')} is certified, not eps = {eps:.3g}; pass reach= for your "
                "network, a "
                "smaller weight_bound, or eps=None",
                best=error,
            )

    def _add_activation(self, layer: LinearLayer, eps: float | None) -> float:
        """Fit the activation on a layer's range; the bound of what it returns.

        What runs stays within the reach; the exact network is off that by what was lost on the way.
        """
        *_, carried = self._carried()
        exact = layer.reach + math.fsum(carried.values())
        worst = layer.dim * layer.bound * layer.weight_bound
        high = layer.reach * OUTWARD_MANY + layer.certificate.error
        high = max(high, min(exact, worst) * OUTWARD_MANY)
        f = ScalarFunction.of(self.activation, -high, high)
        share = None if eps is None else eps / (8 * len(self.sizes) * max(1.0, self._gain_after()))
        regimes.check_enclosed(f, -high, high, share)
        table = (
            Interpolant.fit(f, -high, high, share)
            if self.dtype == torch.float64
            # In a narrower format rounding decides: keys that crowd at kinks make large logits.
            else choose(
                f, (-high, high), eps=None, regime="spectral", tokens=None, dtype=self.dtype,
                gain=1.0, total=lambda it: it.error + self._rounded(layer, it),
            )
        )  # fmt: skip
        check_logits(table, high + abs(table.grid.center))
        self.tables.append(table)
        self._functions.append(f)
        mesh = torch.linspace(-high, high, 4097, dtype=torch.float64)
        # |f| <= |A| + e, and A is as steep as that between the points: e once more at one of them.
        largest = float(f(mesh).abs().max()) * OUTWARD_MOST + 2 * table.error
        return largest + table.steepness * high / 2048

    def _rounded(self, layer: LinearLayer, table: Interpolant) -> float:
        """What a look-up of a layer's output rounds by."""
        terms = table.high + abs(table.grid.center)
        return table.rounding(rounding_of(layer.backend).model(self.dtype, table, terms, 1))

    def _gain_after(self) -> float:
        """Worst-case growth of an error through the layers that follow."""
        done = len(self.tables) + 1
        fans = self.sizes[done:-1]
        return math.prod(max(1.0, (f + 1) * self.weight_bound) for f in fans)

    @property
    def certificate(self) -> Certificate:
        """Look-up errors, carried through the layers."""
        parts, steps = dict[str, float](), []
        for index, (layer, parts) in enumerate(zip(self._linear, self._carried(), strict=True)):
            total, rows = math.fsum(parts.values()), at_most(layer.dim * self.weight_bound, ".4g")
            steps.append(
                DerivationStep(f"layer {index}", "error of its output", total, f"rows {rows}")
            )
        first = self._linear[0]
        return Certificate.total(
            parts,
            domain={
                "samples x dim": f"{first.samples} x {self.sizes[0]}",
                "max |x|": first.bound,
                "max |weights|": self.weight_bound,
            },
            dtype=self.dtype,
            backend=first.backend,
            derivation=tuple(steps),
            assumptions=tuple(dict.fromkeys(a for t in self.tables for a in t.assumptions)),
            kind=weakest(t.kind for t in self.tables),
        )

    def _carried(self) -> Iterator[dict[str, float]]:
        """What the output of every layer is off by; of the newest without its activation yet."""
        parts = {"linear": 0.0, "activation": 0.0, "rounding": 0.0}
        for index, layer in enumerate(self._linear):
            rows = layer.dim * self.weight_bound
            parts = {name: rows * value for name, value in parts.items()}
            parts["linear"] += layer.certificate.error
            if index < len(self.tables):
                table = self.tables[index]
                parts = {name: table.steepness * value for name, value in parts.items()}
                parts["activation"] += table.error
                parts["rounding"] += self._rounded(layer, table)
            yield parts

    @property
    def layout(self) -> LookUpLayout:
        """Sizes of the look-up layer; they say little about the activations' tables."""
        tokens = max((table.tokens for table in self.tables), default=1)
        return LookUpLayout(1, BLOCK, room_for(tokens))

    @property
    @for_later
    def look_ups(self) -> FrozenNetwork:
        """The frozen layer that every activation is looked up by."""
        built = self._modules.get("_look_ups")
        if built is None:
            built = self.layout.build(self.dtype)
            self.add_module("_look_ups", built)
        assert isinstance(built, FrozenNetwork)
        return built

    @property
    def networks(self) -> tuple[FrozenNetwork, ...]:
        """Every frozen network, of the linear maps in order and then the look-up layer."""
        return (*(layer.network for layer in self._linear), self.look_ups)

    @property
    def digest(self) -> str:
        """SHA-256 over the frozen networks' digests."""
        return joined(network.digest for network in self.networks)

    @property
    def backend(self) -> str:
        """How the networks are evaluated."""
        return self._linear[0].backend

    def _bind(self) -> list[Backend]:
        first = self._linear[0]
        return [bind(network, first.binding) for network in self.networks]

    def _axes(self, inputs: int) -> tuple[Sequence[int], Sequence[int]]:
        first = self._linear[0]
        return (2, *(2, 1) * (inputs // 2)), (first.samples, self.sizes[-1])

    def forward(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """Run the network in context."""
        return self._run(self._bind(), x, *parameters)

    def run(self, x: Tensor, *parameters: Tensor) -> Result:
        """As calling it, with the certificate, the attestation and the ledger of this run."""
        ledger = Ledger()
        watched = [RecordingBackend(backend, ledger) for backend in self._bind()]
        value = self._run(list(watched), x, *parameters)
        ledger.note("prompt", "a layer's input, weights and biases", len(self.layers))
        if self.tables:
            ledger.note("prompt", "an activation's table and input", len(self.tables))
        attestation = Attestation.together([witness.attest() for witness in watched])
        passes = sum(witness.passes for witness in watched)
        return Result(value, self.certificate, attestation, ledger, passes=passes)

    def _run(self, backends: Sequence[Backend], x: Tensor, *parameters: Tensor) -> Tensor:
        *linear, look_up = backends
        pairs = self._pairs(parameters)
        for index, (weight, bias) in enumerate(pairs):
            theta = torch.cat([weight, bias[..., None]], -1)
            with_one = torch.cat([x, torch.ones_like(x[..., :1])], -1)
            x = self._linear[index].through(linear[index], with_one, theta)
            if index < len(self.tables):
                self._check_range(index, x)
                x = self._activate(look_up, self.tables[index], x)
        return x

    def _activate(self, backend: Backend, table: Interpolant, z: Tensor) -> Tensor:
        flat = z.reshape(-1)
        prompt = LookUps(self.layout, table, flat.new_zeros(len(flat), 1), -flat, flat.new_zeros(1))
        return backend.run(prompt)[..., -1].reshape(z.shape)

    @untraced
    def _check_range(self, index: int, x: Tensor) -> None:
        table, largest = self.tables[index], float(x.detach().abs().max())
        if not largest <= table.high:
            raise BoundError(
                f"layer {index} reaches {largest:.6g}, its activation is certified up to "
                f"{exactly(table.high)}; raise reach="
            )

    def reference(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """The exact network (float64)."""
        x = x.double()
        for index, (weight, bias) in enumerate(self._pairs(parameters)):
            x = x @ weight.double().mT + bias.double()[..., None, :]
            if index < len(self.tables):
                x = self._functions[index](x)
        return x

    def _pairs(self, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        if len(parameters) != 2 * len(self.layers):
            raise ShapeError(
                f"this network takes {len(self.layers)} pairs of weight and bias after x, got "
                f"{len(parameters)} tensors"
            )
        return list(zip(parameters[::2], parameters[1::2], strict=True))
