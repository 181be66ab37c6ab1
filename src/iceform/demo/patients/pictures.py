"""The pictures of the report, with the words around them."""

from __future__ import annotations

import torch

from iceform import plots
from iceform.constructions import GradientDescent, GradientStep
from iceform.demo.patients.library import Tick
from iceform.demo.patients.losses import LR, W_NORM, X_NORM, DiabetesData, first_coefficients
from iceform.interpolation import Interpolant
from iceform.pages import Illustration, illustrate

__all__ = ["attention_picture", "error_picture", "trajectory_picture", "weight_picture"]

_DESCENT_LR = 3.0
_DESCENT_L2 = 0.05
_DESCENT_NORM = 2.0
_DESCENT_PASSES = 40
_DESCENT_EPS = 1e-8
_SHOWN = 6  # samples in the attention map
_SHOWN_EPS = 1e-6
_SHOWN_TOKENS = 33  # grid tokens in the picture of look-up weights


def error_picture(tick: Tick) -> Illustration:
    """How the error falls with the grid tokens, in either regime."""
    curves = plots.error_curves()
    tick("error against tokens")
    return illustrate(
        lambda theme: plots.error_against_tokens(curves, theme=theme),
        title="Warm beats cold",
        text="A softmax over grid tokens is a smooth look-up table. The usual way is to make it so "
        "cold that it picks the nearest token; then twice the tokens halve the error. At a "
        "moderate temperature, with values fitted to the function, every few tokens bring another "
        "digit, and the bound that is proved lies right on what is measured.",
        alt="Error against grid tokens for tanh. The hard regime falls slowly along the line 1/P, "
        f"from {curves[0].measured[0]:.1g} to {curves[0].measured[-1]:.1g}; the spectral regime "
        f"falls to {curves[1].measured[-1]:.0e} with {curves[1].tokens[-1]} tokens.",
    )


def weight_picture(tick: Tick) -> Illustration:
    """Where attention looks as z moves, in either regime."""
    reach = 10.0
    hard = Interpolant.hard(torch.tanh, -reach, reach, cells=_SHOWN_TOKENS - 1)
    spectral = Interpolant.fit(torch.tanh, -reach, reach, tokens=_SHOWN_TOKENS)
    tick("look-up weights")
    return illustrate(
        lambda theme: plots.lookup_weights(hard, spectral, theme=theme),
        title="Where attention looks",
        text="As z moves to the right, attention moves up the grid. Cold attention jumps from one "
        "token to the next, and the result is a staircase. Warm attention blends a handful of "
        "neighbours, and the blend follows the curve.",
        alt="Attention over grid tokens as z moves: a staircase of single tokens in the hard "
        "regime, a soft diagonal band in the spectral one, and tanh as read off by either.",
    )


def attention_picture(data: DiabetesData, tick: Tick) -> Illustration:
    """The attention map of one step by the literal matrices."""
    x, y = data.x[:_SHOWN], data.labels["squared"][:_SHOWN]
    w = first_coefficients(data)
    step = GradientStep(
        "squared",
        LR,
        dim=x.shape[1],
        samples=len(x),
        eps=_SHOWN_EPS,
        backend="literal",
        x_norm=X_NORM,
        w_norm=W_NORM,
    )
    tick("attention map")
    return illustrate(
        lambda theme: plots.attention(step, x, y, w, theme=theme),
        title="Everybody reads their own table",
        text="Each sample brings its own look-up table and one query, and all of them share one "
        "attention head. A margin in the frozen keys keeps every query in its own block: what "
        "strays into the others is far below rounding. The network of this picture has "
        f"{len(x)} samples and {step.plan.tokens} tokens.",
        alt="Attention of the query tokens over all tokens, in powers of ten: bright blocks on the "
        "diagonal, everything else below rounding.",
    )


def trajectory_picture(data: DiabetesData, tick: Tick) -> Illustration:
    """Gradient descent beside the exact one, pass by pass."""
    n, d = data.x.shape
    y = data.labels["logistic"]
    top = float(torch.linalg.matrix_norm(data.x, 2) ** 2) / n
    # The logistic loss curves by at most 1/4; the norm is computed to far better than 1e-9.
    hessian = (_DESCENT_L2, 0.25 * top * (1 + 1e-9) + _DESCENT_L2)

    def descent(steps: int, table: Interpolant | None = None) -> GradientDescent:
        return GradientDescent(
            "logistic", steps, _DESCENT_LR, _DESCENT_L2, hessian=hessian, dim=d, samples=n,
            eps=_DESCENT_EPS, backend="literal", x_norm=X_NORM, w_norm=_DESCENT_NORM,
            w_bound=_DESCENT_NORM, interpolant=table,
        )  # fmt: skip

    whole = descent(_DESCENT_PASSES)
    start = torch.zeros(d, dtype=torch.float64)
    emulated = whole.trajectory(data.x, y, start)
    exact = whole.trajectory(data.x, y, start, exact=True)
    counts = range(1, _DESCENT_PASSES + 1)
    certified = [descent(t, whole.interpolant).certificate.error for t in counts]
    tick("gradient descent")
    return illustrate(
        lambda theme: plots.trajectories(emulated, exact, certified, theme=theme),
        title="Forty passes, no drift",
        text="Logistic regression by gradient descent: the output of each pass goes into the next "
        f"prompt. With {whole.plan.grid_tokens} grid tokens per sample the coefficients follow the "
        "exact ones, and the difference stays below the certificate of that pass.",
        alt="Coefficients over forty passes, exact and emulated on top of each other; below, their "
        f"largest difference, which ends at {float((emulated - exact)[-1].abs().max()):.0e} under "
        f"a certificate of {certified[-1]:.0e}.",
    )
