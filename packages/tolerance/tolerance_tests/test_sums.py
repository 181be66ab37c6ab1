"""Attacks on the kernels that add up weighted columns, with 64 bits of mantissa beside them.

They run on a GPU, or a few of them in Triton's interpreter.
"""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from row_walks import norms_of

from iceform_tolerance import gpu
from iceform_tolerance.inputs import problem_of
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.theorem import check_range, reached, sums_error

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
LONG = np.longdouble
assert np.finfo(LONG).eps < 1e-18, "these attacks need a longer mantissa than float64's"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def usable() -> bool:
    """Whether the kernels can run here at all."""
    try:
        from iceform.run import triton
    except ImportError:
        return False
    return DEVICE.type == "cuda" or triton.interpreted()


class Attacked(NamedTuple):
    """Where an attack came nearest to its bound."""

    certified: float
    off: float


def _rounded_up(logits: torch.Tensor, dtype: torch.dtype, block: int) -> torch.Tensor:
    """Whether a probability is too large as ``dtype`` holds it, relative to the running maximum."""
    parts = logits.split(block, 1)
    tops = torch.stack([part.amax(1) for part in parts], 1).cummax(1).values
    off = [
        (p := (part - tops[:, i, None]).exp()).to(dtype).double() > p
        for i, part in enumerate(parts)
    ]
    return torch.cat(off, 1)


def sums(seed: int) -> Attacked | str:
    """Softmax-weighted sums of columns in odd units; logits flat, sharp, equal, of one large key.

    Half of the columns are of those keys whose probability rounds upwards: nothing averages out.

    What is attacked is what tolerances use of them: sums of either sign are off by no more than
    the theorem says of such a kernel, and sums of what is not negative are hardly too small.
    """
    from iceform_tolerance.sums import BLOCK, weighted_sums

    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, causal = draw.choice([BF16, torch.float16]), draw.choice([False, True, "lower_right"])
    large = [1000, 4097] if DEVICE.type == "cuda" else []
    rows, keys = draw.choice([1, 17, 64, 64]), draw.choice([1, 5, 63, 64, 65, 300, *large])
    dim, count = draw.choice([1, 3, 16, 64, 128]), draw.choice([1, 7, 40])
    q, k = (torch.randn(n, dim, generator=g, dtype=F64) for n in (rows, keys))
    how = draw.choice(["", "", "", "one key", "one key", "equal"])
    if how == "one key":
        k[draw.randrange(keys)] *= 4.0
    k = k[:1].expand(keys, dim) if how == "equal" else k
    q = q * draw.choice([0.0, 0.1, 1.0, 1.0, 8.0, 8.0])
    units = torch.randint(*((-120, 100) if dtype == BF16 else (-22, 12)), (count,), generator=g)
    c = torch.randn(keys, count, generator=g, dtype=F64) * 2.0 ** units.double()
    q, k = q.to(dtype), k.to(dtype)
    aligned = _rounded_up(q.double() @ k.double().T / math.sqrt(dim), dtype, BLOCK)
    c[:, ::2] = aligned[draw.randrange(rows), :, None] * 2.0 ** units[::2].double()
    c = c.to(dtype)
    shares = torch.rand(1, keys, generator=g).to(DEVICE)
    problem = problem_of(*(t.to(DEVICE)[None, None] for t in (q, k, c)), causal=causal)
    columns = torch.cat([c, c.abs()], 1)[None].to(DEVICE)
    found, mean, top = weighted_sums(
        problem.q.flatten(1, 2).contiguous(), problem.k.contiguous(), columns.contiguous(), shares,
        scale=problem.scale, queries=rows, diagonal=problem.diagonal,
    )  # fmt: skip
    longest = k.double().norm(dim=-1).amax()[None, None, None].to(DEVICE) * (1 + 2.0**-40)
    kind = KernelKind.of(dtype, device="cuda", probabilities=dtype, output=F32, block=BLOCK)
    norms = norms_of(problem, longest, top)
    own, lost = sums_error(kind, norms)
    reach = c.double().abs().amax().to(DEVICE)
    check_range(kind, *map(float, reached(norms, reach)))
    if not float(own.max()) <= gpu._SHARP:
        return "refused"  # float64 is taken instead
    sizes = c.double().abs().to(DEVICE)
    under = 2 * kind.probability_underflow * sizes.sum(0) + lost * (1 + 2 * sizes.amax(0))

    at_q, at_k, at_c, at_w = (
        t.double().cpu().numpy().astype(LONG) for t in (q, k, columns[0], shares[0])
    )
    logits = LONG(problem.scale) * (at_q @ at_k.T)
    if problem.diagonal is not None:
        last = np.arange(rows)[:, None] + problem.diagonal
        logits = np.where(np.arange(keys)[None] <= last, logits, -np.inf)
    sees = np.isfinite(logits).any(1)
    weights = np.exp(logits[sees] - logits[sees].max(1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)

    def numbers(t: torch.Tensor) -> Any:
        return t.double().cpu().expand(1, rows, -1)[0].numpy().astype(LONG)[sees]

    got, more, unsure = numbers(found), np.exp(numbers(own)), np.expm1(numbers(own))
    size, exact = got[:, count:] + numbers(under), weights @ at_c
    w_got, w_exact = numbers(mean[..., None]), (weights @ at_w)[:, None]
    either, above = more * (unsure * size + numbers(under)), more * size - got[:, count:]
    allowed = [np.concatenate([either, above], 1), more * (w_got + 4 * numbers(lost)) - w_got]
    away = np.concatenate([np.abs(got - exact)[:, :count], (exact - got)[:, count:]], 1)
    bound, missed = (
        np.concatenate([part.ravel() for part in t]) for t in (allowed, [away, w_exact - w_got])
    )
    if not len(bound):
        return "refused"  # no row sees a key
    worst = int(np.argmax(np.maximum(missed, 0) / np.maximum(bound, np.finfo(LONG).tiny)))
    return Attacked(float(bound[worst]), float(max(missed[worst], 0)))


@pytest.mark.skipif(not usable(), reason="no GPU, and Triton is not interpreted")
def test_sums_stay_within_what_the_theorem_says():
    outcomes = [
        sums(seed) for seed in range(10_000, 10_000 + (2000 if DEVICE.type == "cuda" else 3))
    ]
    certified = [outcome for outcome in outcomes if outcome != "refused"]
    assert certified, "nothing was certified, so nothing was attacked"
    assert not [outcome for outcome in certified if not outcome.off <= outcome.certified]
