r"""Gradient descent as a circuit with moderate weights, in a GPT-2 of a given shape.

Prompts are x1, y1, x2, ...; an answer is wanted at every x. Layer 0 copies: a y token attends to
the position before it and takes its x as a. Every other layer is a step of descent.

**Steps.** A softmax over k examples (y tokens) and over as many null tokens (the x tokens, whose
values are 0) that get the share 1 - p of the attention, with a logit +-T z_j on the examples, gives
after the values' difference over 2 T

.. math:: p\,\mathrm{mean}_j(z_j v_j) - p^2\,\mathrm{mean}_j(z_j)\,\mathrm{mean}_j(v_j) + O(T^2),

which is, times eta/p, the step but for the second term: p is 2^-K, and less with few examples. In
the primal circuit z is the residual w.a_j - y_j and the value a_j; in the dual one z is x.a_j and
the value the residual that the y token itself holds. What p must be at a position is in ``wpe``.

**Answers.** The dual circuit holds its prediction. The primal one multiplies w and x in the last
MLP: gelu(z) + gelu(-z) is z^2 sqrt(2/pi) - c z^4 + ..., two scales cancel the z^4, and (w + x)^2 -
(w - x)^2 = 4 w x.

**Norms.** The epsilon is GPT-2's own. A constant (``ballast``) in ``wpe`` keeps the variance of all
tokens nearly equal, a gain undoes it, and the ballast's own gain is 0: nothing reads it. The stream
is mirrored, so that its mean is 0 (:mod:`iceform.heads.design`).

None of this is proven: how far the network is from its algorithm is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.errors import TargetError
from iceform.heads import Design, Features, Head, Move, Row
from iceform.lab.algorithms import PrefixDescent
from iceform.lab.shape import EPSILON, GPT2Shape

PARTS = ("copy", "steps")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class DescentCircuit:
    """Where in a shape the weights of an algorithm go, and what they are.

    Parameters
    ----------
    shape
        The network's.
    algorithm
        Which steps are taken; as many as there are layers after the first.
    parts
        "copy" (the head that pairs y with x, with the code of positions that it reads) and "steps"
        (all of descent, with norms that are the identity and the answer).
    share
        K: examples get a share of at most 2^-K of a step's attention.
    tilt
        T: primal steps weigh examples by exp(+-T residual), dual ones by exp(+-T x.x'). None: 2^-3
        and 2^-4, since x.x' has the longer tail.
    ballast
        The constant that the norms see.
    scale
        Of the products' smaller arguments.
    sharpness
        Half of the logit between the copied position and its nearest rival.
    loudness
        With "copy" alone there is no ballast: the code of positions, whose square is the same for
        all, is so many times louder, and keeps the norms nearly equal.

    Examples
    --------
    >>> shape = GPT2Shape(dim=1, layers=3, width=32, heads=2, positions=8)
    >>> circuit = DescentCircuit(shape, PrefixDescent((0.5, 0.5), damping=5.0))
    >>> [len(heads) for heads in circuit.layers]
    [2, 2, 2]
    """

    shape: GPT2Shape
    algorithm: PrefixDescent
    parts: tuple[str, ...] = PARTS
    share: int = 3
    tilt: float | None = None
    ballast: float = 2**7
    scale: float = 2**-3
    sharpness: float = 2**3
    loudness: float = 2**2

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise TargetError(f"no part is called {part!r}; there are {', '.join(PARTS)}")
        if "steps" in self.parts and "copy" not in self.parts:
            raise TargetError('the steps read what the copy head writes; add "copy" to parts')
        self._check_shape()

    def _check_shape(self) -> None:
        """Refuse a shape that is too small, with what it needs."""
        shape, steps = self.shape, self.algorithm.steps
        heads = max(map(len, self.layers))
        logit = max(head.width for layer in self.layers for head in layer)
        units = len(self._products())
        needs = (
            ("layers", shape.layers, len(steps) + 1, "one to copy and one for every step"),
            ("width", shape.width, 2 * self.features.total, "two for every feature"),
            ("heads", shape.heads, heads, "side by side in a layer"),
            ("head size", shape.head_size, logit, "for the longest logit or value"),
            ("inner", shape.units, units, "eight for every product of w and x"),
        )
        small = [
            f"{name} {least} ({why}), got {got}" for name, got, least, why in needs if got < least
        ]
        if "steps" in self.parts and shape.layers > len(steps) + 1:
            small.append(f"{shape.layers - 1} steps, got {len(steps)}")
        if small:
            raise TargetError(
                f"{self.algorithm.mechanism} descent of {len(steps)} steps in dimension "
                f"{shape.dim} needs {'; '.join(small)}"
            )

    @property
    def tilts(self) -> tuple[float, float]:
        """T and -T."""
        tilt = self.tilt or (2**-3 if self.primal else 2**-4)
        return tilt, -tilt

    @property
    def primal(self) -> bool:
        """Whether weights are held."""
        return self.algorithm.mechanism == "primal"

    @cached_property
    def angles(self) -> tuple[float, ...]:
        """The angles pi/2, pi/4, ... by whose multiples cosines and sines code a position."""
        most = max(1, math.ceil(math.log2(self.shape.positions)) - 1)
        return tuple(math.pi / 2**j for j in range(1, most + 1))

    @cached_property
    def features(self) -> Features:
        """What a token holds."""
        d, waves = self.shape.dim, len(self.angles)
        code = {"parity": 1, "cos": waves, "sin": waves, "nulls": 1 if self.primal else 2}
        held = {"w": d, "answer": 1} if self.primal else {"answer": 1}
        return Features.of(x=d, y=1, a=d, **held, **code, ballast=1)

    @cached_property
    def layers(self) -> tuple[tuple[Head, ...], ...]:
        """The heads."""
        step = self._primal_step if self.primal else self._dual_step
        return (self._copy(), *map(step, self.algorithm.steps))

    @cached_property
    def design(self) -> Design:
        """The heads in the blocks of the shape."""
        blocks = (self.shape.heads, self.shape.head_size)
        return Design(self.features, self.layers, norm=EPSILON, blocks=blocks)

    def _copy(self) -> tuple[Head, ...]:
        """The x before every y; the first token, which sees itself alone, takes it back."""
        sharp, d = self.sharpness, self.shape.dim
        if "steps" not in self.parts:  # the norms make the code's square half of the width
            sharp *= 2 * (1 + len(self.angles)) / self.shape.width
        logit = [(Row.of("parity", 0, -sharp), Row.of("parity"))]
        for j, angle in enumerate(self.angles):  # sharp cos(angle (p - 1 - q)), in two products
            c, s = sharp * math.cos(angle), sharp * math.sin(angle)
            logit.append((Row({("cos", j): c, ("sin", j): s}), Row.of("cos", j)))
            logit.append((Row({("sin", j): c, ("cos", j): -s}), Row.of("sin", j)))

        def taken(sign: float) -> tuple[Move, ...]:
            return tuple(Move(Row.of("x", k), {("a", k): sign}) for k in range(d))

        first = ((Row(constant=sharp), Row.of("parity", 0, -1.0)),)
        return (
            Head("copy x to its y", tuple(logit), taken(1.0)),
            Head("the first x is nobody's", first, taken(-1.0)),
        )

    def _nulls(self, index: int) -> tuple[Row, Row]:
        """What the query adds to the logit of x tokens."""
        return Row.of("nulls", index), Row({("parity", 0): 0.5}, 0.5)

    def _primal_step(self, eta: float) -> tuple[Head, ...]:
        d, heads = self.shape.dim, []
        for tilt in self.tilts:
            logit = [(Row.of("w", k, tilt), Row.of("a", k)) for k in range(d)]
            logit += [(Row(constant=-tilt), Row.of("y")), self._nulls(0)]
            size = -eta * 2**self.share / (2 * tilt)
            moves = tuple(Move(Row.of("a", k), {("w", k): size}) for k in range(d))
            heads.append(Head(f"gradient, tilt {tilt:+g}", tuple(logit), moves))
        return tuple(heads)

    def _dual_step(self, eta: float) -> tuple[Head, ...]:
        d, heads = self.shape.dim, []
        for index, (into, sign) in enumerate((("answer", 1.0), ("y", -1.0))):
            for tilt in self.tilts:
                ask = [Row({("x", k): tilt, ("a", k): tilt}) for k in range(d)]
                logit = [(row, Row.of("a", k)) for k, row in enumerate(ask)]
                size = sign * eta * 2**self.share / (2 * tilt)
                moves = (Move(Row.of("y"), {(into, 0): size}),)
                role = "prediction" if index == 0 else "residual"
                heads.append(Head(f"{role}, tilt {tilt:+g}", (*logit, self._nulls(index)), moves))
        return tuple(heads)

    def _products(self) -> list[tuple[Row, float]]:
        """Units of the last MLP: what they read, and what they add to the answer."""
        if not self.primal or "steps" not in self.parts:
            return []
        units = []
        for scale, part in ((self.scale, 4 / 3), (2 * self.scale, -1 / 3)):
            size = part / (4 * scale**2 * math.sqrt(2 / math.pi))
            for k in range(self.shape.dim):
                for other in (1.0, -1.0):
                    for sign in (scale, -scale):
                        row = Row({("w", k): sign, ("x", k): sign * other})
                        units.append((row, other * size))
        return units

    # ------------------------------------------------------------------------------------ weights

    def tensors(self) -> Tensors:
        """All tensors of the shape in float64: the circuit's own weights, 0 elsewhere.

        With "copy" alone the norms are GPT-2's own at its start and there is no ballast.
        """
        shape = self.shape
        out = {n: torch.zeros(s, dtype=torch.float64) for n, s in shape.tensors().items()}
        whole = "steps" in self.parts
        for layer in range(shape.layers if whole else 1):
            self._put_heads(out, layer)
        self._put_ends(out)
        gain = self._gain() if whole else torch.ones(shape.width, dtype=torch.float64)
        for name in out:
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                out[name] = gain.clone()
        at = f"h.{shape.layers - 1}.mlp."
        for unit, (row, size) in enumerate(self._products()):
            out[at + "c_fc.weight"][:, unit] = self._read(row)
            out[at + "c_proj.weight"][unit] = size * self._written("answer")
        return out

    def _vector(self, name: str, index: int = 0) -> Tensor:
        out = torch.zeros(self.features.total, dtype=torch.float64)
        out[self.features[name].start + index] = 1.0
        return out

    def _written(self, name: str, index: int = 0) -> Tensor:
        return self.design.moved(self._vector(name, index))

    def _read(self, row: Row) -> Tensor:
        each = [c * self._vector(name, j) for (name, j), c in row.reads.items()]
        return self.design.readout(torch.stack(each).sum(0))

    def _put_heads(self, out: Tensors, layer: int) -> None:
        """Queries, keys, values and outputs, each pair of maps with equal largest weights."""
        maps, biases = self.design.matrices(layer), self.design.biases(layer)
        for head in range(len(self.layers[layer])):
            rows = slice(head * self.shape.head_size, (head + 1) * self.shape.head_size)
            _balance([maps["q"][rows], biases["q"][rows]], [maps["k"][rows], biases["k"][rows]])
            _balance([maps["v"][rows], biases["v"][rows]], [maps["o"][:, rows]])
        at = f"h.{layer}.attn."
        out[at + "c_attn.weight"] = torch.cat([maps["q"], maps["k"], maps["v"]]).T.contiguous()
        out[at + "c_attn.bias"] = torch.cat([biases["q"], biases["k"], biases["v"]])
        out[at + "c_proj.weight"] = maps["o"].T.contiguous()

    def _put_ends(self, out: Tensors) -> None:
        """What x, y and the positions write, and what the answer is read by."""
        shape = self.shape
        for k in range(shape.dim):
            out["wte.weight"][k] = self._written("x", k)
        out["wte.weight"][shape.dim] = self._written("y")
        if "steps" in self.parts:
            out["wte.weight"][-1] = self._read(Row.of("answer"))
        places = torch.zeros(shape.positions, self.features.total, dtype=torch.float64)
        at = torch.arange(shape.positions, dtype=torch.float64)
        places[:, self.features["parity"].start] = 1 - 2 * (at % 2)
        for j, angle in enumerate(self.angles):
            places[:, self.features["cos"].start + j] = torch.cos(angle * at)
            places[:, self.features["sin"].start + j] = torch.sin(angle * at)
        if "steps" in self.parts:
            places[:, self.features["nulls"]] = self._null_logits()
            places[:, self.features["ballast"]] = self.ballast
        else:
            places *= self.loudness
        out["wpe.weight"] = self.design.moved(places)

    def _null_logits(self) -> Tensor:
        """log of a null token's weight, so that n examples get the share 2^-K n / (n + damping).

        Position 2k sees k examples and position 2k + 1 one more, both k + 1 null tokens. Residuals
        are those of y tokens: at x tokens their heads see null tokens alone, but for exp(-2 S).
        """
        at = torch.arange(self.shape.positions)
        nulls = (at // 2 + 1).double()
        examples = (at // 2 + at % 2).double()
        rest = 2**self.share * (examples + self.algorithm.damping) - examples
        logits = torch.where(examples > 0, (rest / nulls).log(), torch.zeros_like(nulls))
        if self.primal:
            return logits[:, None]
        hidden = torch.full_like(logits, 2 * self.sharpness)
        return torch.stack([logits, torch.where(at % 2 == 0, hidden, logits)], 1)

    def _gain(self) -> Tensor:
        """Of the norms: the root of a typical token's variance, and 0 on the ballast.

        x, a, w are taken to be standard normal, y to have the variance d; half of the tokens have
        either of the first two.
        """
        typical = self.shape.dim * (3 if self.primal else 2) / 2 + 1 + len(self.angles)
        variance = 2 * (self.ballast**2 + self.shape.dim / 2 + typical) / self.shape.width
        gain = torch.full((self.shape.width,), math.sqrt(variance + EPSILON), dtype=torch.float64)
        gain[self._written("ballast") != 0] = 0.0
        return gain


def _balance(first: Collection[Tensor], second: Collection[Tensor]) -> None:
    """Scale two maps whose product counts, in place, so that their largest weights are equal."""
    a, b = (max(float(part.abs().max()) for part in parts) for parts in (first, second))
    if a > 0 and b > 0:
        factor = math.sqrt(b / a)
        for part in first:
            part.mul_(factor)
        for part in second:
            part.div_(factor)
