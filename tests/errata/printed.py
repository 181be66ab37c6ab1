"""The constructions as the paper prints them, small and literal, in float64.

Tokens are columns here, as in the paper: x is (d, n), y is (n,), w is (d,). Keyword arguments
mend one misprint at a time, so that a test can show which one breaks what.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from iceform import Lift, SoftmaxAttention

Scalar = Callable[[Tensor], Tensor]


def attention(tokens: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor, w_o: Tensor) -> Tensor:
    """def:attn with one head: W_V X Softmax((W_K X)' W_Q X) W_O, the softmax over keys."""
    return w_v @ tokens @ torch.softmax((w_k @ tokens).T @ (w_q @ tokens), 0) @ w_o


# ---------------------------------------------------------------------------------------------
# proof of thm:attn_sim_f
# ---------------------------------------------------------------------------------------------


def grid(reach: float, cells: int) -> Tensor:
    """L_0 .. L_P, equally spaced on [-reach, reach]."""
    return torch.linspace(-reach, reach, cells + 1, dtype=torch.float64)


def margin(dim: int, bound: float, eps0: float) -> float:
    """2 d B^2 + B - ln eps0."""
    return 2 * dim * bound**2 + bound - math.log(eps0)


def squares(nodes: Tensor) -> Tensor:
    """S = [-L_0^2, -L_1^2, ..., L_P^2]: the last entry has no minus sign."""
    row = -nodes.square()
    row[-1] = nodes[-1].square()
    return row


def lift_x(
    x: Tensor, y: Tensor, nodes: Tensor, f: Scalar, own: float,
    *, row: Tensor | None = None, beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """[T_1 ... T_n], shape (2d + n + 2, n (P + 1)).

    T_i stacks 2 L x_i, 2 L y_i, f(L) x_i, the row -L^2 and the margin ``own`` times e_i. ``row``
    replaces -L^2 by another row; ``beta`` is the inverse temperature that the print leaves out.
    """
    n = x.shape[1]
    ones = torch.ones_like(nodes)
    row = -nodes.square() if row is None else row
    blocks = torch.eye(n, dtype=torch.float64)
    parts = [
        torch.cat(
            [
                2 * beta * torch.outer(x[:, i], nodes),
                2 * beta * y[i] * nodes[None],
                torch.outer(x[:, i], f(nodes)),
                beta * row[None],
                own * torch.outer(blocks[i], ones),
            ]
        )
        for i in range(n)
    ]
    return torch.cat(parts, 1)


def lift_w(w: Tensor, n: int, *, square_query: float = -1.0) -> Tensor:
    """[W; -1; 0; -1; I_n], shape (2d + n + 2, n). Mended, the second -1 is +1."""
    line = torch.ones(1, n, dtype=torch.float64)
    zero = torch.zeros(len(w), n, dtype=torch.float64)
    return torch.cat(
        [w[:, None] * line, -line, zero, square_query * line, torch.eye(n, dtype=torch.float64)]
    )


def scores(
    x: Tensor, y: Tensor, w: Tensor, nodes: Tensor, own: float,
    *, row: Tensor | None = None, beta: float = 1.0, square_query: float = -1.0,
) -> Tensor:  # fmt: skip
    """[T_1 ... T_n]' Lin_w(W), shape (n (P + 1), n)."""
    keys = lift_x(x, y, nodes, torch.zeros_like, own, row=row, beta=beta)
    return keys.T @ lift_w(w, x.shape[1], square_query=square_query)


def residual_map(
    x: Tensor, y: Tensor, w: Tensor, nodes: Tensor, f: Scalar, own: float, **mended: float | Tensor
) -> Tensor:
    """The proof's head, shape (d, n): its values f(L) x_i under its softmax."""
    values = torch.cat([torch.outer(x[:, i], f(nodes)) for i in range(x.shape[1])], 1)
    return values @ torch.softmax(scores(x, y, w, nodes, own, **mended), 0)


def look_up(f: Scalar, nodes: Tensor, z: Tensor, **mended: float | Tensor) -> Tensor:
    """The head with d = n = 1, x = w = 1 and y = 1 - z, one residual z at a time."""
    one = torch.ones(1, 1, dtype=torch.float64)
    heads = [residual_map(one, (1 - t)[None], one[0], nodes, f, 0.0, **mended) for t in z]
    return torch.stack(heads).flatten()


def exact_map(x: Tensor, y: Tensor, w: Tensor, f: Scalar) -> Tensor:
    """[f(w.x_i - y_i) x_i], shape (d, n)."""
    return f(w @ x - y) * x


def mass_on_wrong_blocks(logits: Tensor, samples: int) -> Tensor:
    """For each query, the attention that leaves its own block, shape (n,)."""
    weights = torch.softmax(logits, 0).reshape(samples, -1, samples).sum(1)
    return weights.sum(0) - weights.diagonal()


# ---------------------------------------------------------------------------------------------
# gradient descent and least squares
# ---------------------------------------------------------------------------------------------


def perturbed_descent(step: Scalar, start: Tensor, errors: Tensor) -> Tensor:
    """How far w <- step(w) + errors[t] strays from w <- step(w), after every step."""
    exact = off = start
    gaps = []
    for error in errors:
        exact, off = step(exact), step(off) + error
        gaps.append(off - exact)
    return torch.stack(gaps)


def frozen_reach(lift: Lift, layer: SoftmaxAttention, corners: Tensor) -> float:
    """The most that a frozen head can output for prompts in the convex hull of ``corners``.

    Attention weights are non-negative and add up to one, so no output exceeds its largest value
    times the column sums of |W_O|; values are affine in the prompt, so largest at a corner.
    """
    values = lift(corners).unsqueeze(-3) @ layer.w_v.mT
    largest = values.abs().amax((0, -2, -1))
    return float((largest * layer.w_o.abs().sum(-2).amax(-1)).sum())
