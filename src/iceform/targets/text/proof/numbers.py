"""Numbers: what number words hold, and how far results keep from the boundaries of rounding."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch

from iceform import tuning
from iceform.arithmetic.balls import balls_of
from iceform.targets.text.features import code
from iceform.targets.text.interpreter import LevelArithmetic, is_rounded_function
from iceform.targets.text.proof.stream import NORM, StreamProof
from iceform.targets.text.words import FUNCTIONS

SOFTMAX = 4.0  # units of a weight near 1 times a value: exponential, sum, division, product


class NumberProof(StreamProof):
    """Every function at every level, and the clearance of every result."""

    # ---------------------------------------------------------------------------- numbers

    @property
    def read_units(self) -> float:
        """Units of a number that a head copies: norm, root, a difference, softmax, sum."""
        return NORM + self.root / self.u + 2 + SOFTMAX + 1

    @property
    def own_units(self) -> float:
        """Units of a number that a token copies within itself."""
        return self.read_units + 1

    def _check_functions(self) -> None:
        """Every function at every level, against exact arithmetic."""
        form, at = self.features.format, self.at("at")
        scale = 2.0 ** (form.fraction + form.top)
        tokens = [t for t, w in enumerate(self.sizes.words) if w.units is not None]
        held = self.weights.words[tokens, at] * scale
        with balls_of(tuning.TEXT_BITS) as flint:
            for token, row in zip(tokens, held.tolist(), strict=True):
                word = self.sizes.words[token]
                assert word.units is not None
                for name, value in zip(FUNCTIONS, row, strict=True):
                    said = int(value) if value.is_integer() else None
                    if said is None or not is_rounded_function(flint, form, name, word.units, said):
                        self.fail(f"{name}({word.text}) in the weights is not the interpreter's")
        self.enumerated["functions, at every level"] = len(tokens) * len(FUNCTIONS)

    def _check_codes(self) -> None:
        """Value, bits, sign and nearest cell of every number word are the level's."""
        form, held = self.features.format, self.weights.words
        tokens = [t for t, w in enumerate(self.sizes.words) if w.kind == "number"]
        units = np.array([self.sizes.words[t].units for t in tokens])
        rows = held[tokens].numpy()
        scale = 2.0 ** -(form.fraction + form.top)
        powers = 2.0 ** np.arange(self.features.value_bits)
        bits = rows[:, self.at("positive")] @ powers - rows[:, self.at("negative")] @ powers
        wrong = (rows[:, self.at("value")][:, 0] != units * scale) | (bits != units)
        wrong |= rows[:, self.at("sign")][:, 0] != np.sign(units)
        exact = LevelArithmetic(form)
        last = self.sizes.cells - 1
        cells = [min(max(0, exact.nearest(int(u))), last) for u in units]
        places = torch.stack([code(c, self.features.cell_bits) for c in cells]).numpy()
        wrong |= (rows[:, self.at("place")] != places).any(1)
        if wrong.any():
            self.fail(f"{int(wrong.sum())} number words do not hold their level")
        self.enumerated["value, sign, bits and nearest cell of number words"] = len(tokens)

    # ------------------------------------------------------------------------- clearance

    def _absolute(self) -> float:
        """Error of a read that does not shrink with the number: the mean's rounding and leaks."""
        return 2 * self.u * self.mean + max(self.leaks.values()) * self._widest

    @cached_property
    def clearance(self) -> tuple[float, float]:
        """Least distance of a result from a boundary less its error, in steps.

        For the boundaries between segments, and for those of digits.
        """
        form, u = self.features.format, self.u
        read = self.say(
            "read",
            "NORM + root + 2 + SOFTMAX + 1 units",
            self.read_units * u,
            "relative error of an operand in the stream",
        )
        total = self.say(
            "sum",
            "read + own",
            read + self.own_units * u,
            "relative to |a| + |b|: read, then added to the result",
        )
        product = self.say(
            "product",
            "read + own + bits + 1 units",
            read + (self.own_units + form.bits + 1) * u,
            "relative: one term a bit, all of one sign",
        )
        absolute = self.say(
            "absolute",
            "2 u mean + leaks",
            self._absolute(),
            "over 2^top: does not shrink with the number",
        )
        rest = self.say("rest", "own (2 + 1/15) + 4 units", (self.own_units * (2 + 1 / 15) + 4) * u,
                        "relative to the result: scaling, and the digits taken away")  # fmt: skip
        scale = 2.0 ** (form.fraction + form.top)  # units a result over 2^top
        errors = total, product, absolute * scale, rest
        found = []
        if form.count <= tuning.PROOF_LEVELS:
            found.append(self._enumerated(*errors))
        if form.count > tuning.PROOF_LEVELS or self.sizes.third_operand:  # triples are too many
            found.append(self._bounded(*errors))
        segments, digits = (min(each) for each in zip(*found, strict=True))
        self.say("clearance of segments", "min (distance - error)", segments, "steps")
        self.say("clearance of digits", "min (distance - error)", digits, "steps")
        return segments, digits

    def _enumerated(
        self, total: float, product: float, absolute: float, rest: float
    ) -> tuple[float, float]:
        """Every pair of levels: sum, difference, product, maximum and minimum."""
        form = self.features.format
        levels = np.array(form.levels, dtype=np.float64)
        found = [(math.inf, math.inf)]
        for start in range(0, len(levels), tuning.PROOF_ROWS):
            a = levels[start : start + tuning.PROOF_ROWS, None]
            sizes = np.abs(a) + np.abs(levels)
            added = total * sizes + 2 * absolute
            found.append(self._least(a + levels, added, rest))
            products = a * levels / 2.0**form.fraction
            off = product * np.abs(products) + (2 * np.abs(a) / 2.0**form.fraction + 1) * absolute
            found.append(self._least(products, off, rest))
            # b + max(a - b, 0): two more sums
            found.append(self._least(np.maximum(a, levels), 2 * added, rest))
        self.enumerated["pairs of levels, each added, multiplied and compared"] = len(levels) ** 2
        return min(f[0] for f in found), min(f[1] for f in found)

    def _least(self, exact: np.ndarray, error: np.ndarray, rest: float) -> tuple[float, float]:
        """Least clearances of results in units, in steps."""
        f = self.features
        bits, last = f.format.bits, f.segments - 1
        sizes = np.abs(exact)
        segment = np.clip(np.frexp(sizes)[1] - bits, 0, last)
        step = np.exp2(segment)
        shift = np.array([f.shift(j) for j in range(last + 1)])
        # Boundaries of digits lie at whole numbers + 1/2 - shift.
        at = exact / step + shift[segment] - 0.5
        away = np.abs(at - np.round(at)) - (error + rest * sizes) / step
        inside = (exact < f.edge(last, 1)) & (exact > f.edge(last, -1))
        digits = float(np.where(inside, away, np.inf).min())
        edges = [
            float(((np.abs(exact - f.edge(j, sign)) - error) / 2.0**j).min())
            for j in range(last + 1)
            for sign in (1, -1)
        ]
        return min(edges), digits

    def _bounded(
        self, total: float, product: float, absolute: float, rest: float
    ) -> tuple[float, float]:
        """For segment j, results that are no levels: their distance is at least half a granule.

        Where a sum is no level its finer operand is below 2^bits granules, so that |a| + |b| is at
        most 2^(bits + 1) steps. Where c + a b is none, a b is below 2^(2 bits) granules: |c| +
        |a b| is at most 2^(2 bits + 1) steps, and never more than three times the largest level.
        Levels are half a step from a boundary.
        """
        f, least = self.features, math.inf
        bits, last = f.format.bits, f.segments - 1
        for j in range(last + 1):
            largest = 3 * 2.0 ** (bits + last - j)  # steps
            third = min(2.0 ** (2 * bits + 1), largest) if self.sizes.third_operand else 0.0
            size = max(third, 2.0 ** (bits + 1))
            fixed = (2.0 ** (f.format.top + 1) + 4) * absolute / 2.0**j + rest * 2.0**bits
            error = (total + product) * size + fixed
            worst = 2 * (total + product) * largest + fixed
            least = min(least, f.shift(j) - error, 0.5 - f.shift(j) - worst)
        return least, least

    @property
    def _widest(self) -> float:
        """How much larger than 1 a feature of any token can be: a product that saturates."""
        return 4 * 2.0**self.features.format.top
