r"""thm:attn_sim_f: one head computes f(w.x_i - y_i) x_i for every sample at once.

Every sample i brings a block of grid tokens (i, k) and a query token. The query of sample c meets
the token (i, k) with the logit

.. math:: \beta (2 l_k (z_i - m) - l_k^2) - M \, 1\{i \ne c\}, \qquad z_i = w \cdot x_i - y_i,

so within its own block it is a softmax look-up of z_c, and the margin M keeps it there. The
paper prints M = 2 d B^2 + B - ln eps0; since max_l (2 l z - l^2) = z^2 the margin must cover
beta max z^2, which :func:`iceform.interpolation.bounds.margin` does.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from iceform.attention import Features, FrozenNetwork, Lift, SoftmaxAttention
from iceform.backends import BACKENDS
from iceform.backends.extremes import Extremes
from iceform.certificates import Certificate, Step, Verification
from iceform.constructions.base import Emulator, Plan, Prompt
from iceform.constructions.domain import Domain
from iceform.constructions.selection import choose
from iceform.errors import BoundError, PrecisionError
from iceform.functions import ScalarFunction
from iceform.functions.losses import Loss
from iceform.interpolation import Interpolant, RoundingModel, bounds
from iceform.validation import check_choice, check_tensors, unit_roundoff

__all__ = ["Rates", "ResidualEmulator", "three_inputs"]

_LEAK_BITS = 8  # the leak is kept this many bits below rounding; a margin costs no precision


@dataclass(frozen=True)
class Rates:
    """How a sample's value row is scaled: gain (v_k x_i - offset_i) + shrink w."""

    gain: float = 1.0
    shrink: float = 0.0


class ResidualEmulator(Emulator):
    """What every construction on residuals shares: tokens, margin, keys and the certificate."""

    def __init__(
        self,
        loss: Loss,
        *,
        dim: int,
        samples: int,
        bound: float,
        eps: float | None,
        regime: str,
        dtype: torch.dtype,
        backend: str,
        rates: Rates,
        kinks: Sequence[float] | None = None,
        tokens: int | None = None,
        x_norm: float | None = None,
        w_norm: float | None = None,
        y_bound: float | None = None,
        w_bound: float | None = None,
        z_range: tuple[float, float] | None = None,
        interpolant: Interpolant | None = None,
    ) -> None:
        super().__init__(eps=eps, dtype=dtype, backend=backend)
        self.regime = check_choice("regime", regime, ("spectral", "hard"))
        self.domain = Domain.of(
            dim,
            samples,
            bound,
            x_norm=x_norm,
            w_norm=w_norm,
            y_bound=y_bound,
            w_bound=w_bound,
            z_range=z_range,
            labelled=loss.kind == "residual",
            dtype=self.dtype,
        )
        self.rates = rates
        self.loss = loss
        self._asked: dict[str, Any] = {
            "dim": dim, "samples": samples, "bound": bound, "eps": eps, "regime": regime,
            "backend": backend, "x_norm": x_norm, "w_norm": w_norm, "y_bound": y_bound,
            "w_bound": w_bound, "z_range": z_range,
        }  # fmt: skip
        if interpolant is not None:
            self._check_covers(interpolant)
        self.interpolant = interpolant or self._choose(loss.derivative, kinks, tokens)
        error = self.certificate.error
        if self.eps is not None and not error <= self.eps:
            raise PrecisionError(
                f"with these {self.interpolant.tokens} grid tokens {error:.3g} is certified, "
                f"not eps = {self.eps:.3g}; use eps=None to accept that",
                best=error,
            )

    # ------------------------------------------------------------------------ the look-up table

    def _choose(
        self, f: ScalarFunction, kinks: Sequence[float] | None, tokens: int | None
    ) -> Interpolant:
        low, high = self._span()
        f = ScalarFunction.of(f, low, high, kinks)
        return choose(
            f,
            (low, high),
            eps=self.eps,
            regime=self.regime,
            tokens=tokens,
            dtype=self.dtype,
            gain=self.rates.gain * self.domain.x,
            total=lambda it: self._certify(it).error,
        )

    def _check_covers(self, it: Interpolant) -> None:
        low, high = self._span()
        if not (it.low <= low and high <= it.high):
            raise BoundError(
                f"the look-up table covers [{it.low:.6g}, {it.high:.6g}], residuals reach "
                f"[{low:.6g}, {high:.6g}]; start from a loss on the residual, or pass z_range="
            )

    def _span(self) -> tuple[float, float]:
        """The range of z, widened by what rounding can add to a computed z."""
        low, high = self.domain.residuals
        unit = unit_roundoff(self.dtype)
        slack = 4 * (self.domain.dim + 4) * unit * (self.domain.terms + abs(low) + abs(high))
        return low - slack, high + slack

    # ----------------------------------------------------------------------------- certificate

    @cached_property
    def certificate(self) -> Certificate:
        """The proven error of one pass."""
        return self._certify(self.interpolant)

    def _rounding_model(self, it: Interpolant) -> RoundingModel:
        terms = self.domain.terms + abs(it.grid.center)
        return BACKENDS[self.backend].model(self.dtype, it, terms, self.domain.dim)

    @property
    def _offset_bound(self) -> float:
        return self.domain.x * self.domain.y if self.loss.kind == "glm" else 0.0

    def _certify(self, it: Interpolant, rates: Rates | None = None) -> Certificate:
        rates = rates or self.rates
        d, unit = self.domain, unit_roundoff(self.dtype)
        model = self._rounding_model(it)
        looked = it.rounding(model)
        row = rates.gain * (it.size * d.x + self._offset_bound)
        leaked = self._leak(it, model)
        carried = self._carried(it, rates)
        sums = self._sum_error()
        terms = {
            "interpolation": rates.gain * d.x * it.error,
            "leak": 2 * row * leaked,
            "rounding": rates.gain * d.x * looked + carried + sums * (row + self._kept(rates)),
        }
        steps = (
            Step("h", "grid spacing", it.grid.spacing, f"{it.tokens} tokens, {it.regime} regime"),
            Step("c", "sharpness beta h^2", it.sharpness, "temperature in units of the grid"),
            Step("sup|A-f|", "look-up against f on the range of z", it.error, _PROOFS[it.regime]),
            Step("M", "margin between blocks", self.margin_of(it), "covers beta max z^2"),
            Step("leak", "mass outside a sample's own block", leaked, "by the margin"),
            Step("max|v|", "largest value", it.size, "what leaked mass can carry"),
            Step("gain", "factor of the look-up in the output", rates.gain * d.x, "gain max|x|"),
            Step("u", "unit roundoff", unit, f"half of eps of {self.dtype}"),
            Step("rounding", "look-up in floating point", looked, "logits, exp, sums, products"),
        )
        return Certificate.total(
            terms,
            domain=d.describe(),
            dtype=self.dtype,
            backend=self.backend,
            derivation=steps,
            assumptions=it.assumptions,
            _verifier=self._verify,
        )

    def _carried(self, it: Interpolant, rates: Rates) -> float:
        """Rounding of what rides along in the value rows: products, offsets and w."""
        unit = unit_roundoff(self.dtype)
        along = self._kept(rates) + rates.gain * self._offset_bound
        if self.backend == "dense":
            return unit * (2 * it.significant(unit) + 8) * along
        return 8 * unit * along + 2 * unit * rates.gain * it.size * self.domain.x

    def _kept(self, rates: Rates) -> float:
        """Bound of what is carried of w."""
        return rates.shrink * self.domain.w

    def _sum_error(self) -> float:
        """Relative error of the readout's sum over samples; none where each is read alone."""
        return 0.0

    @property
    def leak_target(self) -> float:
        """The mass outside a sample's own block that the margin allows."""
        return unit_roundoff(self.dtype) * 2.0**-_LEAK_BITS

    def margin_of(self, it: Interpolant) -> float:
        """M for the given look-up table, dtype and number of samples."""
        n = self.domain.samples
        return _log_rivals(it, n) - _log_own(it) - math.log(self.leak_target)

    def _leak(self, it: Interpolant, model: RoundingModel) -> float:
        """Mass outside the own block, logits off by their rounding; fused passes have none."""
        if self.backend != "dense":
            return 0.0
        keys = it.keys
        margin = self.margin_of(it)
        largest = float((keys.slopes.abs() * model.magnitude + keys.biases.abs()).max()) + margin
        off = 2 * model.gamma * largest
        exact = math.exp(_log_rivals(it, self.domain.samples) - _log_own(it) - margin)
        return exact * math.exp(min(off, 700.0))

    # --------------------------------------------------------------------------- prompt, weights

    @property
    def beta(self) -> float:
        """Inverse temperature c / h^2, the scale of the frozen keys."""
        return self.interpolant.sharpness / self.interpolant.grid.spacing**2

    @property
    def margin(self) -> float:
        """M, the frozen margin between blocks."""
        return self.margin_of(self.interpolant)

    @property
    def features(self) -> Features:
        """The feature axis of a prompt."""
        d, n = self.domain.dim, self.domain.samples
        return Features.of(
            key_x=d, key_y=1, key_bias=1, other_blocks=n, value=d, w=d, is_query=1, block=n
        )

    def _encode(self, *inputs: Tensor) -> Prompt:
        """Tokens of all samples' look-up tables and queries."""
        x, y, w = inputs
        return self._prompt(x, y, w, self.rates)

    def _prompt(self, x: Tensor, y: Tensor, w: Tensor, rates: Rates) -> Prompt:
        return Prompt(self._lift(rates).to(x)(self._pack(x, y, w)), self.features, self._roles)

    def _pack(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """The paper's Z: one token [x; y; w; offset] per sample."""
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-1], w.shape[:-1])
        n, d = self.domain.samples, self.domain.dim
        x, y, offset = self.loss.encode(x, y)
        parts = [
            x.expand(*batch, n, d),
            y.expand(*batch, n)[..., None],
            w[..., None, :].expand(*batch, n, d),
        ]
        if offset is not None:
            parts.append(offset.expand(*batch, n, d))
        return torch.cat(parts, -1)

    @property
    def _roles(self) -> tuple[str, ...]:
        nodes = self.interpolant.grid.nodes.tolist()
        n = self.domain.samples
        grid = [f"sample {i}, grid z = {z:.4g}" for i in range(n) for z in nodes]
        return tuple(grid + [f"query of sample {i}" for i in range(n)])

    def _lift(self, rates: Rates) -> Lift:
        base = self._base_lift
        maps = base.feature_maps.clone()
        value = self.features["value"]
        maps[1, value] *= rates.gain
        if maps.shape[0] == 4:
            maps[3, value] *= rates.gain
        d = self.domain.dim
        maps[2, value, d + 1 : 2 * d + 1] = rates.shrink * torch.eye(d, dtype=maps.dtype)
        return Lift(maps, base.token_maps, base.constant)

    @cached_property
    def _base_lift(self) -> Lift:
        """sum_l A_l Z R_l + C with rates (1, 0), in float64."""
        it, at = self.interpolant, self.features
        n, d, g = self.domain.samples, self.domain.dim, it.tokens
        offsets = self.loss.kind == "glm"
        packed = 2 * d + 1 + (d if offsets else 0)
        x, y, w = slice(0, d), d, slice(d + 1, 2 * d + 1)
        eye = torch.eye(d, dtype=torch.float64)
        maps = torch.zeros(4 if offsets else 3, at.total, packed, dtype=torch.float64)
        maps[0, at["key_x"], x], maps[0, at["key_y"], y] = eye, 1.0
        maps[1, at["value"], x] = eye
        maps[2, at["w"], w] = eye
        if offsets:
            maps[3, at["value"], 2 * d + 1 :] = -eye

        slopes = it.keys.slopes / (2 * self.beta)
        biases = -it.keys.biases / self.beta
        blocks = torch.eye(n, dtype=torch.float64)
        token_maps = torch.zeros(maps.shape[0], n, n * g + n, dtype=torch.float64)
        token_maps[0, :, : n * g] = torch.kron(blocks, slopes[None])
        token_maps[1, :, : n * g] = torch.kron(blocks, it.values[None])
        own = torch.kron(blocks, torch.ones(1, g, dtype=torch.float64))
        token_maps[2] = torch.cat([own, blocks], 1)
        if offsets:
            token_maps[3, :, : n * g] = own

        constant = torch.zeros(n * g + n, at.total, dtype=torch.float64)
        constant[: n * g, at["key_y"]] = (it.grid.center * slopes).repeat(n)[:, None]
        constant[: n * g, at["key_bias"]] = biases.repeat(n)[:, None]
        constant[:, at["other_blocks"]] = 1.0
        constant[: n * g, at["other_blocks"]] -= own.T
        constant[n * g :, at["is_query"]] = 1.0
        constant[n * g :, at["block"]] = blocks
        return Lift(maps, token_maps, constant)

    def _keys_and_queries(self) -> tuple[Tensor, Tensor]:
        """W_K and W_Q, each (d + 2 + n, features)."""
        at, d, n = self.features, self.domain.dim, self.domain.samples
        w_k = torch.zeros(d + 2 + n, at.total, dtype=torch.float64)
        w_q = torch.zeros_like(w_k)
        coordinates, label, bias, blocks = slice(0, d), d, d + 1, slice(d + 2, None)
        w_k[coordinates, at["key_x"]] = 2 * self.beta * torch.eye(d, dtype=torch.float64)
        w_k[label, at["key_y"]] = -2 * self.beta
        w_k[bias, at["key_bias"]] = -self.beta
        w_k[blocks, at["other_blocks"]] = -self.margin * torch.eye(n, dtype=torch.float64)
        w_q[coordinates, at["w"]] = torch.eye(d, dtype=torch.float64)
        w_q[label, at["is_query"]] = 1.0
        w_q[bias, at["is_query"]] = 1.0
        w_q[blocks, at["block"]] = torch.eye(n, dtype=torch.float64)
        return w_k, w_q

    @abstractmethod
    def _values_and_readout(self) -> tuple[Tensor, Tensor]:
        """W_V (d, features) and W_O (tokens, out_tokens)."""

    def _build_network(self) -> FrozenNetwork:
        w_k, w_q = self._keys_and_queries()
        w_v, w_o = self._values_and_readout()
        layer = SoftmaxAttention(w_k[None], w_q[None], w_v[None], w_o[None], labels=[self._label])
        return FrozenNetwork([layer], self.features)

    _label = "look up f(w.x - y)"
    _out_tokens = 1

    def _queries_of(self, count: int) -> Tensor:
        """[0; I_n]: read the query tokens."""
        n = self.domain.samples
        readout = torch.zeros(count, n, dtype=torch.float64)
        readout[count - n :] = torch.eye(n, dtype=torch.float64)
        return readout

    @property
    def plan(self) -> Plan:
        """Sizes of the literal network and of a fused pass."""
        d, n, g = self.domain.dim, self.domain.samples, self.interpolant.tokens
        return plan_residual(d, n, g, self._out_tokens, self.dtype, glm=self.loss.kind == "glm")

    # ------------------------------------------------------------------------------ evaluation

    def check(self, *inputs: Tensor) -> None:
        """Shapes, dtype, device, then values."""
        x, y, w = three_inputs(inputs)
        self._check_shapes(x, y, w)
        self._check_values(x, y, w)

    def _check_shapes(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        n, d = self.domain.samples, self.domain.dim
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        check_tensors({"x": (x, (n, d)), "y": (y, (n,)), "w": (w, (d,))}, self.dtype, device)

    def _check_values(self, x: Tensor, y: Tensor, w: Tensor, seen: Extremes | None = None) -> None:
        """Bounds, labels and range; ``seen`` has looked at all samples already."""
        self.domain.check_data(x, y, seen)
        self.domain.check_coefficients(w)
        self.loss.check_labels(y)
        self.check_range(x, y, w)

    def check_range(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        """Refuse residuals outside an explicit z_range."""
        if self.domain.z_range is not None:
            x, y, _ = self.loss.encode(x.detach(), y.detach())
            self.domain.check_residuals((x @ w.detach()[..., None])[..., 0] - y)

    def _dense(self, *inputs: Tensor) -> Tensor:
        return self._read(self.network.to(inputs[0].device)(self._encode(*inputs).tokens))

    def _read(self, output: Tensor) -> Tensor:
        return output

    def _exact(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """l'(z_i) x_i - offset_i in float64, shape (*batch, n, d)."""
        x, y, w = x.double(), y.double(), w.double()
        samples, labels, offset = self.loss.encode(x, y)
        z = (samples @ w[..., None])[..., 0] - labels
        gradients = self.loss.derivative(z)[..., None] * samples
        return gradients if offset is None else gradients - offset

    def _verify(self, *inputs: Tensor, certified: float, bits: int) -> Verification:
        from iceform.constructions.verification import verify

        return verify(self, inputs, certified, bits)

    def _config(self) -> dict[str, Any]:
        return {
            **self._asked,
            "dtype": str(self.dtype).removeprefix("torch."),
            "loss": self.loss.to_config(),
        }

    @classmethod
    def _rebuild(cls, arguments: dict[str, Any], it: Interpolant, f: Any) -> Emulator:
        return rebuild_with_loss(cls, arguments, it, f)


def rebuild_with_loss(
    kind: Callable[..., Emulator], arguments: dict[str, Any], it: Interpolant, f: Any
) -> Emulator:
    """Call a constructor whose first argument is a loss with what a file says."""
    options = dict(arguments)
    loss = Loss.from_config(options.pop("loss"), f)
    options["dtype"] = getattr(torch, options["dtype"])
    return kind(loss, interpolant=it, **options)


_PROOFS = {
    "hard": "modulus of continuity and mass of far nodes",
    "spectral": "theta-function bound of the linear look-up",
    "fitted": "Taylor enclosure on a mesh, after the fit",
    "graded": "Taylor enclosure on a mesh, after the fit",
}


def _log_own(it: Interpolant) -> float:
    """A lower bound of ln sum_k e^{logit_k} in a sample's own block, over z in the range.

    On a uniform grid some node is within h/2 of z, which gives beta t^2 - c/4. Graded keys are
    pinned so that the token at the center has logit 0 for every z.
    """
    return -it.sharpness / 4 if it.uniform else 0.0


def _log_rivals(it: Interpolant, samples: int) -> float:
    """An upper bound of ln of all other blocks' and query tokens' mass before the margin."""
    if it.uniform:
        reach = max(it.high - it.grid.center, it.grid.center - it.low)
        return bounds.rivals(it.sharpness, it.grid.spacing, reach, samples, samples)
    ends = torch.tensor([it.low, it.high], dtype=torch.float64) - it.grid.center
    # A log-sum-exp of lines is convex, so its largest value is at an end of the range.
    most = torch.logsumexp(ends[:, None] * it.keys.slopes + it.keys.biases, 1).max()
    others = most + math.log(samples - 1) if samples > 1 else torch.tensor(-math.inf)
    return float(torch.logaddexp(others.double(), torch.tensor(math.log(samples)).double()))


def plan_residual(
    dim: int, samples: int, grid: int, out_tokens: int, dtype: torch.dtype, *, glm: bool = False
) -> Plan:
    """Sizes of a residual construction."""
    d, n, g = dim, samples, grid
    tokens, features, head_dim = n * g + n, 3 * d + 2 * n + 3, d + 2 + n
    weights = 2 * head_dim * features + d * features + tokens * out_tokens
    terms = 4 if glm else 3
    packed = (3 if glm else 2) * d + 1
    lift = terms * (features * packed + n * tokens + tokens * features) + tokens * features
    activations = tokens * (2 * features + 2 * head_dim + 2 * d) + 2 * tokens * tokens
    size = torch.finfo(dtype).bits // 8
    return Plan(
        grid_tokens=g,
        tokens=tokens,
        features=features,
        head_dim=head_dim,
        heads=1,
        layers=1,
        parameters=weights,
        weight_bytes=weights * 8,
        dense_bytes=(weights + activations) * size + lift * 8,
        fused_bytes=2 * min(n * g, 1 << 22) * size + 2 * n * size,
        dense_flops=2 * tokens * features * (2 * head_dim + d) + 2 * tokens**2 * (head_dim + d),
        fused_flops=4 * n * d + 8 * n * g,
    )


def three_inputs(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """X, y and w, or a refusal of any other number of inputs."""
    if len(inputs) != 3:
        raise TypeError(f"call with (X, y, w), got {len(inputs)} arguments")
    return inputs[0], inputs[1], inputs[2]
