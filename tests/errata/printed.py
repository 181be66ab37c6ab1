"""The constructions as the paper prints them, small and literal, in float64.

Tokens are columns here, as in the paper: x is (d, n), y is (n,), w is (d,). Keyword arguments
mend one misprint at a time, so that a test can show which one breaks what.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from iceform.heads import Lift, SoftmaxAttention

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


# ---------------------------------------------------------------------------------------------
# thm:multi-head-truncated_in-context
# ---------------------------------------------------------------------------------------------


def truncated_heads(
    x: Tensor, w: Tensor, low: float, high: float, heads: int, beta: float,
    *, t: float = 0.0, offset: bool = False, ends: bool = False, local: bool = False,
    before: float | None = None, dtype: torch.dtype = torch.float64,
) -> Tensor:  # fmt: skip
    """The H heads on [X; 0 w .. (n-1) w; w .. w; I_n], shape (H, n): their sum is the output.

    Mended one at a time: ``offset`` puts -2 k t into l_k, ``ends`` lets the outermost guards carry
    a and b, ``local`` counts each head's keys from its own first token. ``before`` is L_{-1}, which
    def:interpolation does not define; a - h unless told.
    """
    d, n = x.shape
    inner, spacing = n - 2, (high - low) / (heads * (n - 2))
    tokens = torch.cat([x, ramps(w, n), torch.eye(n, dtype=torch.float64)]).to(dtype)
    eye, i = torch.eye(d, dtype=torch.float64), torch.arange(n, dtype=torch.float64)
    out = []
    for head in range(heads):
        first = head * inner - 1
        nodes = low + (first + i) * spacing
        if head == 0 and before is not None:
            nodes[0] = before
        biases = (first + i) * (nodes + low) - 2 * (first + i) * t * offset
        if local:
            biases = i * (2 * nodes[0] + i * spacing) - 2 * i * t * offset
        w_k = torch.zeros(d + 1, 3 * d + n, dtype=torch.float64)
        w_k[:d, d : 2 * d] = -2 * eye
        w_k[:d, 2 * d : 3 * d] = 0.0 if local else -2 * first * eye
        w_k[d, 3 * d :] = biases
        w_q = torch.zeros_like(w_k)
        w_q[:d, :d], w_q[d, 3 * d :] = eye, 1.0
        values = torch.zeros(1, 3 * d + n, dtype=torch.float64)
        values[0, 3 * d + 1 : -1] = nodes[1:-1]
        if ends and head == 0:
            values[0, 3 * d] = low
        if ends and head == heads - 1:
            values[0, -1] = high
        weights = [m.to(dtype) for m in (-beta * w_k, w_q, values, torch.eye(n))]
        out.append(attention(tokens, *weights)[0])
    return torch.stack(out)


def ramps(w: Tensor, n: int) -> Tensor:
    """[0 w .. (n-1) w; w .. w], shape (2 len(w), n)."""
    count = torch.arange(n, dtype=w.dtype)
    return torch.cat([w[:, None] * count, w[:, None].expand(-1, n)])


def truncated(z: Tensor, tokens: int, *args: float, **options: float | bool | None) -> Tensor:
    """Sum of the heads at d = 1, w = 1, for any number of z, ``tokens`` of them at a time."""
    one = torch.ones(1, dtype=torch.float64)
    padded = torch.nn.functional.pad(z, (0, -len(z) % tokens))
    chunks = [truncated_heads(c[None], one, *args, **options).sum(0) for c in padded.split(tokens)]
    return torch.cat(chunks)[: len(z)]


def head_cases(z: float, heads: int, inner: int) -> list[set[int]]:
    """lem:all_heads_cases on the grid L_k = k: for each head, the cases that hold."""
    found = []
    for h in range(1, heads + 1):
        first, last = (h - 1) * inner, h * inner
        cases = {
            1: first <= z <= last - 1,
            2: not first - 1 <= z <= last,
            3: first - 1 <= z <= first or last - 1 <= z <= last,
        }
        found.append({case for case, holds in cases.items() if holds})
    return found


# ---------------------------------------------------------------------------------------------
# thm:attn_sim_attn_multi: weights along the embedding
# ---------------------------------------------------------------------------------------------


def head(x: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor) -> Tensor:
    """The target, W_V X Softmax((W_K X)' W_Q X)."""
    return w_v @ x @ torch.softmax((w_k @ x).T @ (w_q @ x), 0)


def embedded_rows(
    x: Tensor, w: Tensor, rows: int, heads: int, low: float, high: float, beta: float,
    *, offset: Callable[[int, int], int], constant_keys: bool = False,
) -> Tensor:  # fmt: skip
    """The first layer, shape (rows, n): ``heads`` (H) heads for each of the 3 d_h rows.

    ``offset(h, H)`` says which block of w the map E_h of head h takes. ``constant_keys`` is the
    displayed A_h X_p = [X; k_j 1; I]; otherwise the middle block is E_h (ramp + K_h) w, as computed
    in the lines before.
    """
    d, n = x.shape
    inner, spacing = n - 2, (high - low) / (heads * (n - 2))
    prompt = torch.cat([x, ramps(w, n), torch.eye(n, dtype=torch.float64)])
    i, eye = torch.arange(n, dtype=torch.float64), torch.eye(d, dtype=torch.float64)
    out = torch.zeros(rows, n, dtype=torch.float64)
    for h in range(1, rows * heads + 1):
        own = (h - 1) % heads  # h % H - 1
        first = own * inner - 1
        pick = torch.zeros(d, len(w), dtype=torch.float64)
        at = d * offset(h, heads)
        pick[:, at : at + d] = eye[:, : max(0, min(d, len(w) - at))]
        ramp, flat = (0 * pick, pick) if constant_keys else (pick, first * pick)
        a_h = torch.block_diag(eye, torch.cat([ramp, flat], 1), torch.eye(n, dtype=torch.float64))
        nodes = low + (first + i) * spacing
        w_k = torch.zeros(d + 1, 2 * d + n, dtype=torch.float64)
        w_k[:d, d : 2 * d], w_k[d, 2 * d :] = -2 * eye, (first + i) * (nodes + low)
        w_q = torch.zeros_like(w_k)
        w_q[:d, :d], w_q[d, 2 * d :] = eye, 1.0
        values = torch.zeros(1, 2 * d + n, dtype=torch.float64)
        values[0, 2 * d + 1 : -1] = nodes[1:-1]
        looked = attention(a_h @ prompt, -beta * w_k, w_q, values, torch.eye(n).double())
        out[(h - 1) // heads] += looked[0]
    return out


# ---------------------------------------------------------------------------------------------
# thm:attn_sim_attn: weights as rows
# ---------------------------------------------------------------------------------------------


def row_heads(
    x: Tensor, mats: tuple[Tensor, Tensor, Tensor], nodes: Tensor, beta: float,
    *, factor: float = 1.0, readout: bool = False, prompt: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """The 3n heads Attn_j o Lin_j, each of shape (3n, P + 1), or (3n, n) with ``readout``.

    ``factor`` multiplies the grid in Lin^Q and Lin^V: 1 as printed, 2 as the lines after need.
    ``prompt`` is fed instead of [X; W_K'; W_Q'; W_V'].
    """
    (d, n), count = x.shape, len(nodes)
    prompt = torch.cat([x, *(m.T for m in mats)]) if prompt is None else prompt
    eye = torch.eye(d, dtype=torch.float64)
    constant = torch.zeros(2 * d + 3, count, dtype=torch.float64)
    constant[2 * d, :n], constant[2 * d + 1], constant[2 * d + 2] = 1.0, nodes, -nodes.square()
    w_k = torch.zeros(d + 1, 2 * d + 3, dtype=torch.float64)
    w_k[:d, d : 2 * d], w_k[d, 2 * d + 2] = beta * eye, beta
    w_q = torch.zeros_like(w_k)
    w_q[:d, :d], w_q[d, 2 * d] = eye, 1.0
    w_o = torch.eye(count, n if readout else count, dtype=torch.float64)
    out = []
    for block, scale in enumerate((2.0, factor, factor)):
        for j in range(n):
            tokens = constant.clone()
            tokens[:d, :n] += x
            row = prompt[(block + 1) * d : (block + 2) * d, j]
            tokens[d : 2 * d] += torch.outer(row, scale * nodes)
            w_v = torch.zeros(3 * n, 2 * d + 3, dtype=torch.float64)
            w_v[block * n + j, 2 * d + 1] = 1.0
            out.append(attention(tokens, w_k, w_q, w_v, w_o))
    return out


def second_layer(kqv: Tensor, rows: int) -> Tensor:
    """The proof's Attn_s on [K; Q; V] of ``rows`` rows each."""
    eye, zero = torch.eye(rows, dtype=torch.float64), torch.zeros(rows, rows, dtype=torch.float64)
    w_k, w_q, w_v = (torch.cat([eye if i == j else zero for j in range(3)], 1) for i in range(3))
    return attention(kqv, w_k, w_q, w_v, torch.eye(kqv.shape[1], dtype=torch.float64))


def row_beta(dim: int, bound: float, cells: int, eps1: float) -> float:
    """(4/4) ln(4 d B^2 P / eps1) B DeltaL."""
    return math.log(4 * dim * bound**2 * cells / eps1) * bound * 2 * dim * bound**2 / cells


# ---------------------------------------------------------------------------------------------
# from K', Q', V' to the output
# ---------------------------------------------------------------------------------------------


def propagated(eps0: float, tokens: int, largest: float) -> float:
    """eps0 + n B 2 |1 - e^{2 eps0 (B + 1/2)}|, B the largest entry of K, Q, V."""
    return eps0 + tokens * largest * 2 * abs(1 - math.exp(2 * eps0 * (largest + 0.5)))


# ---------------------------------------------------------------------------------------------
# the Hopfield layer
# ---------------------------------------------------------------------------------------------


def hopfield(
    states: Tensor, stored: Tensor, w_k: Tensor, w_q: Tensor, w_v: Tensor, beta: float
) -> Tensor:
    """def:hopfield: W_V W_K Y Softmax(beta (W_K Y)' W_Q R)."""
    keys = w_k @ stored
    return w_v @ keys @ torch.softmax(beta * keys.T @ (w_q @ states), 0)


def hopfield_residual(
    x: Tensor, y: Tensor, w: Tensor, nodes: Tensor, f: Scalar, own: float, beta: float,
    *, square_query: float = -1.0,
) -> Tensor:  # fmt: skip
    """Proof of thrm:hopfield_sim_f, shape (d, n): W_K = W_Q = I, so beta multiplies the margin."""
    d, n = x.shape
    stored, states = lift_x(x, y, nodes, f, own), lift_w(w, n, square_query=square_query)
    eye = torch.eye(len(stored), dtype=torch.float64)
    return hopfield(states, stored, eye, eye, eye[d + 1 : 2 * d + 1], beta)
