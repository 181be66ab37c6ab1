"""The stream: what a token holds, what the norm does, and how rounding moves a row of a map."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from iceform.certificates import DerivationStep
from iceform.targets.architectures import architecture
from iceform.targets.text.certificate import TextMargin
from iceform.targets.text.layers import TextLayers
from iceform.targets.text.proof.weights import StoredWeights
from iceform.validation import unit_roundoff

NORM = 3.0  # units: a normalised feature is x times the root, plus the mean's share, times a weight
ROOT = 4.0  # units by which the norm's root may be off; taken for granted
MEAN = 2.0  # units of the ballast by which the norm's mean may be off; taken for granted
LEAST = 16.0  # logits that must be left: a leak of 1e-7 a token


@dataclass(frozen=True)
class LayerMaps:
    """One layer: what the design says, and by how much the stored weights differ (out, in)."""

    said: dict[str, Tensor]
    off: dict[str, Tensor]
    biases: dict[str, Tensor]
    off_biases: dict[str, Tensor]


class StreamProof:
    """What all parts of the proof add up: margins, steps, cases, failures; norm and weights."""

    def __init__(self, layers: TextLayers, embedding: Tensor, tensors: dict[str, Tensor]) -> None:
        self.layers, self.design = layers, layers.design
        self.features, self.sizes = layers.features, layers.features.sizes
        self.words, self.tensors = embedding, tensors
        self.weights = StoredWeights(tensors, architecture(self.sizes.architecture))
        self.u = unit_roundoff(getattr(torch, self.sizes.dtype))
        self.failures: list[str] = []
        self.margins: dict[str, TextMargin] = {}
        self.steps: list[DerivationStep] = []
        self.enumerated: dict[str, int] = {}
        self.leaks: dict[tuple[int, int], float] = {}
        self.unbalanced = 0.0  # bound of the sum over a token's places
        self.backs: dict[int, float] = {}
        self._carries_numbers = False  # from the layer on that reads operands; codes before
        self._maps: dict[int, LayerMaps] = {}  # of the layer at hand

    def fail(self, reason: str) -> None:
        if reason not in self.failures:
            self.failures.append(reason)

    def say(self, symbol: str, formula: str, value: float, why: str) -> float:
        self.steps.append(DerivationStep(symbol, formula, value, why))
        return value

    def _note(self, margin: TextMargin) -> None:
        """Keep the worst margin of heads with one name."""
        if margin.left < self.margins.setdefault(margin.what, margin).left:
            self.margins[margin.what] = margin
        if not margin.left >= LEAST:
            self.fail(f"{margin.what}: {margin.left:.3g} logits are left of {margin.gap:.3g}")

    # ------------------------------------------------------------------------------ the stream

    def at(self, name: str) -> slice:
        return self.features.all[name]

    @cached_property
    def places(self) -> int:
        return self.design.hidden

    @cached_property
    def exact(self) -> Tensor:
        """Bound of |x| at tokens that matter: codes, flags and numbers over 2^top are at most 1."""
        out = torch.zeros(self.places).double()
        out[: self.features.all.total] = 1.0
        out[self.at("larger")] = 2.0
        return self._with_own(out)

    def _with_own(self, out: Tensor) -> Tensor:
        own = self.design.own_places()
        first, last = own["balance"]
        out[first:last] = float(self._nonzero()) / (last - first)
        for name in ("ballast", "minus ballast"):
            out[own[name][0]] = self.design.ballast
        return out

    def _nonzero(self) -> float:
        """Bound of the sum of all features of a token: what a word has, and what heads add."""
        words = float(self.words.abs().sum(1).max()) + 1 + 2 * len(self.features.periods)
        return words + sum(len(h.moves) for layer in self.design.layers[:5] for h in layer) + 8

    @property
    def deviation(self) -> float:
        """By how much the features change the norm's root, relative."""
        squares = float(self.exact[: self.features.all.total].square().sum())
        first, last = self.design.own_places()["balance"]
        squares += float(self.exact[first:last].square().sum())
        return squares / (4 * self.design.ballast**2)

    @property
    def root(self) -> float:
        """Relative error that all features of a token share."""
        return ROOT * self.u + self.deviation

    @property
    def mean(self) -> float:
        """Bound of a token's mean, as it is subtracted: what is not balanced, and rounding."""
        return MEAN * self.u * self.design.ballast + self.unbalanced / self.places

    def _check_norm(self) -> None:
        self.say("u", "unit roundoff", self.u, f"of {self.sizes.dtype}")
        self.say(
            "deviation",
            "sum of squares/(4 C^2)",
            self.deviation,
            f"of the norm's root from that of the ballast C = {self.design.ballast:g}",
        )
        self._check_mean()

    def _check_mean(self) -> None:
        self.say("mean", "MEAN u C + sum/width", self.mean, "what a norm may subtract")

    # ----------------------------------------------------------------------------- the weights

    def _check_rest(self) -> None:
        """Norms, feed-forward maps and biases are what they should be; words and positions."""
        expected = float(torch.tensor(self.design.norm_weight, dtype=self._dtype))
        for name, tensor in self.tensors.items():
            held = tensor.double()
            if not bool(torch.isfinite(held).all()):
                self.fail(f"{name} holds numbers that are not finite")
            wanted = self.weights.required(name, expected)
            if wanted is not None and bool((held != wanted).any()):
                self.fail(f"{name} is not {wanted:g} everywhere")
        meant = (self.design.embedded(self.words), self.design.moved(self.features.positions()))
        self.error = torch.zeros(self.places).double()
        for held, said in zip(self.weights.embeddings, meant, strict=False):
            self.error = self.error + (held - said).abs().max(0).values
            self.unbalanced += float(held.sum(1).abs().max())
        self._check_apart()
        # The ballast is the same for all tokens; how far its two places are apart is a mean.
        for name in ("ballast", "minus ballast"):
            place = self.design.own_places()[name][0]
            if float(self.error[place]) > self.u * self.design.ballast:
                self.fail(f"the ballast ({name}) is off by {float(self.error[place]):.3g}")

    def _check_apart(self) -> None:
        """No feature is both of words and of positions, so that their sum is exact."""
        count = self.features.all.total
        each = [held[:, :count].abs().sum(0) > 0 for held in self.weights.embeddings]
        if bool(torch.stack(each).sum(0).gt(1).any()):
            self.fail("a feature is written by words and by positions")

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.sizes.dtype)
        return found

    def maps(self, number: int) -> LayerMaps:
        if number in self._maps:
            return self._maps[number]
        said, biases = self.design.matrices(number), self.design.biases(number)
        off = {k: (held - said[k]).abs() for k, held in self.weights.maps(number).items()}
        wrong = {k: (held - biases[k]).abs() for k, held in self.weights.biases(number).items()}
        self._maps = {number: LayerMaps(said, off, biases, wrong)}
        return self._maps[number]

    def row_errors(self, maps: LayerMaps, kind: str) -> tuple[Tensor, Tensor]:
        """For every row of a map: bounds of its value and of its error, at tokens that matter."""
        rows = maps.said[kind].abs()
        largest = rows @ self.exact_features + maps.biases[kind].abs()
        error = rows @ (self.error * (self.exact_features > 0))
        error = error + (NORM * self.u + self.root) * (rows @ self.exact_features)
        error = error + 2 * self.u * self.mean * rows.sum(1)
        error = error + (rows > 0).sum(1) * self.u * largest
        error = error + maps.off[kind] @ (self.exact + self.mean) + maps.off_biases[kind]
        return largest, error

    @cached_property
    def exact_features(self) -> Tensor:
        """Bounds of features; the stream's own places are not read by design."""
        out = self.exact.clone()
        out[self.features.all.total :] = 0.0
        return out
