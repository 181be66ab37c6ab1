"""Words: the right one leads every other in the language-model head; then all is proven."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from iceform import tuning
from iceform.targets.text.certificate import TextCertificate, TextMargin
from iceform.targets.text.features import code
from iceform.targets.text.layers import KIND, SCORE
from iceform.targets.text.proof.heads import HeadProof
from iceform.targets.text.proof.numbers import SOFTMAX
from iceform.targets.text.proof.stream import MEAN, NORM, ROOT


class WordProof(HeadProof):
    """Everything that is proven, and the certificate that says it."""

    # ----------------------------------------------------------------------------- certificate

    def certificate(self) -> TextCertificate:
        self._check_rest()
        self._check_norm()
        self._check_functions()
        self._check_codes()
        for number in range(len(self.design.layers)):
            self._layer(number)
        self._scores()
        return TextCertificate(
            self._statement(), self.sizes.dtype, tuple(self.margins.values()), tuple(self.steps),
            self.enumerated, self._assumptions(), tuple(self.failures),
        )  # fmt: skip

    def _statement(self) -> str:
        return (
            "For every text that check() accepts, every token of greedy decoding is the "
            f"interpreter's, up to {self.sizes.positions:,} positions (proven)"
        )

    def _assumptions(self) -> tuple[str, ...]:
        return (
            f"matrix products round as {self.sizes.dtype}, in any order (no TF32, no bf16); "
            "products with exact zeros are exact",
            self._norm_assumption(),
            f"a softmax weight near 1, its value and their product are off by {SOFTMAX:g} units",
            "exp is monotone and within a factor 2 of exact far below 1",
            "heads that look where their rows say, and move what these name, do what the "
            "interpreter does (read in the design, tried on random programs, not enumerated)",
        )

    def _norm_assumption(self) -> str:
        return (
            f"a norm's root is off by at most {ROOT:g} units of roundoff, its mean by at most "
            f"{MEAN:g} units of the ballast"
        )

    # -------------------------------------------------------------------------------- scores

    def _scores(self) -> None:
        """The language-model head: every word that is right against every other word."""
        found = self.weights.scores
        said = self.design.readout(self.layers.scores)
        off = float(((found - said).abs() @ (self.exact + self.mean)).max())
        units = (NORM + self.root / self.u + 40) * self.u
        largest = float((said.abs() @ self.exact_features).max())
        codes = float((said.abs() @ (self.error * (self.exact_features > 0))).max())
        error = 2 * (off + units * largest + codes)
        kinds = {"number": self._number_states(), "trace": self._label_states(),
                 "write": self._write_states()}  # fmt: skip
        for kind, states in kinds.items():
            tokens = [t for t, w in enumerate(self.sizes.words) if w.kind == kind]
            margin = min(self._least_lead(states, tokens), self._other_kinds(kind))
            self._note(
                TextMargin(f"scores: {kind}", margin, error, "every word against every other")
            )
            self.enumerated[f"scores of {kind} words, each against all"] = len(states)

    def _other_kinds(self, kind: str) -> float:
        """The lead over words of other kinds, whatever other features hold."""
        f = self.features
        comparisons = f.segments - 1 + sum(2**bits - 1 for bits in f.digits)
        most = {"number": comparisons, "trace": 3 * f.label_bits, "write": sum(f.address.values())}
        own = {"number": comparisons, "trace": f.label_bits,
               "write": f.name_bits + f.index_bits}  # fmt: skip
        others = max(v for k, v in most.items() if k != kind)
        return float(KIND + SCORE * (own[kind] - others))

    def _least_lead(self, states: Tensor, tokens: list[int]) -> float:
        least, used = math.inf, states.any(0)  # elsewhere all states are 0
        states, scores = states[:, used], self.layers.scores[:, used]
        for start in range(0, len(states), tuning.PROOF_ROWS):
            part = states[start : start + tuning.PROOF_ROWS] @ scores.T
            right = torch.tensor(tokens[start : start + tuning.PROOF_ROWS])[:, None]
            lead = part.gather(1, right)[:, 0] - part.scatter(1, right, -math.inf).max(1).values
            least = min(least, float(lead.min()))
        return least

    def _states(self, kind: str, codes: Iterator[dict[str, Tensor]]) -> Tensor:
        """Ideal streams of which each says one word."""
        rows = []
        for held in codes:
            row = torch.zeros(self.features.all.total).double()
            row[self.at(kind)] = row[self.at("one")] = 1.0
            for name, bits in held.items():
                row[self.at(name)] = bits
            rows.append(row)
        return torch.stack(rows)

    def _number_states(self) -> Tensor:
        levels = np.array([w.units for w in self.sizes.words if w.units is not None])
        rows = torch.zeros(len(levels), self.features.all.total).double()
        rows[:, self.at("is_write")] = rows[:, self.at("one")] = 1.0
        for name, passed in self.features.level_codes(levels).items():
            rows[:, self.at(name)] = passed
        return rows

    def _label_states(self) -> Tensor:
        bits = self.features.label_bits
        return self._states(
            "is_number",
            ({"run.next": code(w.label or 0, bits)} for w in self.sizes.words if w.kind == "trace"),
        )

    def _write_states(self) -> Tensor:
        f = self.features
        return self._states(
            "is_trace",
            (
                {f"run.d.{p}": h[p] for p in f.address if p in h}  # type: ignore[misc]
                for h in (f.of_word(w) for w in self.sizes.words if w.kind == "write")
            ),
        )
