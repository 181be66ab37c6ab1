"""Facts of the authors' public code, setting by setting: where it says so, and what.

The code is https://github.com/MAGICS-LAB/algo_emu at the commit below; nothing of it is in this
package. ``as_published`` has these settings, and the tests compare it with this table one by one;
where it cannot, or where a number of ours needs something else, ``published`` and ``why`` say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["COMMIT", "FACTS", "REPOSITORY", "Fact", "page"]

REPOSITORY = "https://github.com/MAGICS-LAB/algo_emu"
COMMIT = "6d3929763369d0cd058a08add6596e5c13846564"

Value = int | float | str | tuple[int, ...]

_F = "att_sim_f.py"
_A = "attn_sim_attn.py"
_S = "att_sim_statistical.py"
_H = "att_sim_statistical_ames_data.py"
_M = "attention_model.py"
_I = "interpolation.py"


@dataclass(frozen=True)
class Fact:
    """One setting of one study's script.

    Attributes
    ----------
    study, setting
        What it is about.
    file, line
        Where the script says it.
    value
        What it says.
    published, reading
        What ``as_published`` and ``our_reading`` have; None for the same.
    why
        Why ``as_published`` differs, where it does.
    """

    study: str
    setting: str
    file: str
    line: int
    value: Value
    reading: Value | None = None
    published: Value | None = None
    why: str = ""

    @property
    def as_published(self) -> Value:
        """What the column of this name has."""
        return self.value if self.published is None else self.published

    @property
    def our_reading(self) -> Value:
        """What the column of this name has."""
        return self.value if self.reading is None else self.reading


_LEFT_OUT = "an incomplete batch ends our epochs early: our engine takes equal steps"
_TRAININGS = "the script trains once; we train five times, for a spread"

FACTS = (
    Fact("residual", "samples", _F, 109, 50_000),
    Fact("residual", "tokens", _F, 110, 20),
    Fact("residual", "features", _F, 111, 24),
    Fact("residual", "width", _F, 112, 64),
    Fact("residual", "tokens, constant ones included", _F, 113, 60),
    Fact("residual", "epochs", _F, 114, 100, reading=19),
    Fact("residual", "batch", _F, 115, 32),
    Fact("residual", "rate", _F, 116, 0.001),
    Fact("residual", "schedule", _F, 73, "constant"),
    Fact("residual", "share for training", _F, 77, 0.8),
    Fact("residual", "X", _F, 41, "uniform in [-5, 5)", reading="uniform in [0, 1)"),
    Fact("residual", "W", _F, 42, "one for all samples"),
    Fact("residual", "y", _F, 45, "one for all samples", reading="one for each sample"),
    Fact("residual", "target", _F, 46, "tanh(X W' + y) X"),
    Fact("residual", "what is fed", _F, 49, "the target and y"),
    Fact("residual", "width of values", _M, 215, 24, reading=64),
    Fact("residual", "output layer", _M, 216, "none", reading="64 to 24"),
    Fact("residual", "logits", _M, 223, "as they are", reading="over the root of the width"),
    Fact("residual", "softmax", _M, 224, "over the tokens of W"),
    Fact("residual", "scales of tokens at the start", _I, 48, "ones"),
    Fact("residual", "constant tokens at the start", _I, 51, "from -1 to 1"),
    Fact("residual", "trainings", _F, 120, 1, reading=5, published=5, why=_TRAININGS),
    Fact("heads", "samples", _A, 231, 50_000),
    Fact("heads", "tokens", _A, 232, 20),
    Fact("heads", "features", _A, 233, 24),
    Fact("heads", "width", _A, 234, 48),
    Fact("heads", "tokens, constant ones included", _A, 210, 60),
    Fact("heads", "epochs", _A, 237, 50),
    Fact("heads", "batch", _A, 235, 32),
    Fact("heads", "rate", _A, 236, 0.001),
    Fact("heads", "schedule", _A, 92, "constant", reading="constant and cosine"),
    Fact("heads", "share for training", _A, 82, 0.8),
    Fact("heads", "seeds", _A, 245, 11),
    Fact("heads", "heads", _A, 260, (1, 2, 4, 6, 8, 12)),
    Fact("heads", "X", _A, 30, "2 N(0, 1) - 1"),
    Fact("heads", "width of K and Q", _A, 31, 48),
    Fact("heads", "width of V", _A, 33, 24, reading=48),
    Fact("heads", "data and target", _A, 239, "one for all seeds", reading="one for each seed"),
    Fact("heads", "split", _A, 84, "by seed", reading="none: data are by seed"),
    Fact("heads", "softmax of the target", _A, 40, "over queries"),
    Fact("heads", "logits of the networks", _M, 70, "over the root of a head's width"),
    Fact("heads", "error", _A, 171, "mean of batches of 32", reading="mean of samples",
         published="mean of samples", why="the script's last batch holds 16 and counts as much"),
    Fact("statistics", "samples", _S, 181, 50_000),
    Fact("statistics", "samples for training", _S, 212, 50_000, reading=40_000),
    Fact("statistics", "samples for testing, of each algorithm", _S, 235, 5000, reading=10_000),
    Fact("statistics", "tokens", _S, 182, 20),
    Fact("statistics", "features", _S, 183, 24),
    Fact("statistics", "width", _S, 184, 48),
    Fact("statistics", "tokens, constant ones included", _S, 189, 60),
    Fact("statistics", "heads", _S, 190, 6),
    Fact("statistics", "epochs", _S, 187, 300),
    Fact("statistics", "batch", _S, 185, 32),
    Fact("statistics", "steps of an epoch", _S, 212, 1563, reading=1250, published=1562,
         why=_LEFT_OUT),
    Fact("statistics", "rate", _S, 186, 0.001),
    Fact("statistics", "schedule", _S, 210, "constant", reading="constant and cosine"),
    Fact("statistics", "X", _S, 40, "2 N(0, 1) - 1"),
    Fact("statistics", "noise", _S, 198, 0.05),
    Fact("statistics", "zeros in lasso's w", _S, 49, "each with probability 1/2"),
    Fact("statistics", "ridge's penalty", _S, 53, 5.0),
    Fact("statistics", "draws of noise for ridge", _S, 59, 2, reading=1),
    Fact("statistics", "algorithm of a sample", _S, 43, "drawn", reading="in turn"),
    Fact("statistics", "trainings", _S, 202, 1, reading=5, published=5, why=_TRAININGS),
    Fact("statistics", "baselines", _S, 192, "none", reading="three", published="three",
         why="the text has them, the script does not"),
    Fact("housing", "rows", _H, 31, 1460, reading=2930),
    Fact("housing", "label", _H, 35, "log(1 + price)", reading="log(price)"),
    Fact("housing", "missing words", _H, 40, "a level", reading="zeros"),
    Fact("housing", "missing numbers", _H, 42, "the median"),
    Fact("housing", "levels", _H, 45, "all but the first"),
    Fact("housing", "standardised", _H, 49, "every column", reading="numbers"),
    Fact("housing", "features", _H, 179, 262),
    Fact("housing", "penalties", _H, 26, 1.0),
    Fact("housing", "rows that the regressions see", _H, 53, "all"),
    Fact("housing", "tokens", _H, 178, 1),
    Fact("housing", "width", _H, 180, 524),
    Fact("housing", "tokens, constant ones included", _H, 185, 100),
    Fact("housing", "heads", _H, 186, 8, reading=4, published=4,
         why="8 do not divide 524, which attention_model.py checks in line 56"),
    Fact("housing", "epochs", _H, 183, 300),
    Fact("housing", "batch", _H, 181, 32),
    Fact("housing", "steps of an epoch", _H, 193, 37, reading=219, published=36, why=_LEFT_OUT),
    Fact("housing", "rate", _H, 182, 0.001),
    Fact("housing", "schedule", _H, 205, "constant"),
    Fact("housing", "share for training", _H, 190, 0.8),
    Fact("housing", "algorithm of a row", _H, 72, "drawn whenever it is read", reading="all three"),
    Fact("housing", "trainings", _H, 196, 1, reading=5, published=5, why=_TRAININGS),
    Fact("housing", "baselines", _H, 188, "none", reading="three", published="three",
         why="the text has them, the script does not"),
)  # fmt: skip


def page(study: str) -> list[str]:
    """The lines of a study's table in results/settings.md."""
    head = ("setting", "in the script", "where", "`as_published`", "`our_reading`")
    rows = [_row(fact) for fact in FACTS if fact.study == study]
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _row(fact: Fact) -> tuple[str, ...]:
    ours = "the same" if fact.published is None else f"{_shown(fact.published)}: {fact.why}"
    reading = "the same" if fact.reading is None else _shown(fact.reading)
    return fact.setting, _shown(fact.value), f"`{fact.file}`, {fact.line}", ours, reading


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
