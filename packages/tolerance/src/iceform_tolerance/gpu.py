"""The theorem on a GPU, for half-precision inputs: four kernels, and the host waits once.

:func:`iceform_tolerance.sums.weighted_sums` is itself an attention kernel of a known kind, so
the theorem says how far its sums are from exact ones (:func:`~.theorem.sums_error`): a factor of
about 1.01 for bfloat16, and that is multiplied in. Columns of non-negative numbers are rounded
upwards; values are numbers of the format as they are. Where the factor would pass `_SHARP`, or the
kernels do not take the problem, sums are taken in float64 instead, which changes nothing but time.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from iceform.arithmetic import compounded, log_steps
from iceform_tolerance.inputs import check_finite
from iceform_tolerance.kind import KernelKind
from iceform_tolerance.theorem import check_range, own_error_steps

if TYPE_CHECKING:
    from iceform_tolerance.inputs import Problem

_HALVES = (torch.bfloat16, torch.float16)
_COLUMNS = 4
_SHARP = 0.05  # the largest logarithm of the factor that counts as sharp


def supports(problem: Problem, kind: KernelKind) -> bool:
    """Whether the kernels support this problem; they test finiteness themselves."""
    if problem.q.dtype != kind.dtype or kind.dtype not in _HALVES or problem.mask is not None:
        return False
    if not _on_device(problem.q):
        return False
    from iceform_tolerance.sums import MOST_COLUMNS, WIDEST

    return problem.dim <= WIDEST and _COLUMNS * problem.v.shape[-1] <= MOST_COLUMNS


def walked(problem: Problem, kind: KernelKind) -> Tensor | None:
    """The bound, (heads, rows, values); None where float64 is to be taken."""
    from iceform_tolerance.sums import finished, read, weighted_sums

    queries, diagonal, keys = problem.q.shape[2], problem.diagonal, problem.keys
    last = keys if diagonal is None else min(keys, queries + diagonal)
    q, k = problem.q.flatten(1, 2).contiguous(), problem.k.contiguous()
    shared = read(k, problem.v.contiguous(), seen=last)
    walk = weighted_sums(
        q,
        k,
        shared.columns,
        shared.weights,
        scale=problem.scale,
        queries=queries,
        diagonal=diagonal,
    )
    fixed, by_n = tables(
        kind, abs(problem.scale), problem.dim, keys, diagonal is not None, q.device
    )
    out, asked = finished(q, walk, shared, fixed, by_n, queries=queries, diagonal=diagonal)
    whole, off, logit, largest, reach = asked.tolist()
    if not math.isfinite(whole):
        check_finite(**problem.given)
    check_range(kind, logit * max(1.0, abs(problem.scale)), last * largest)
    # A column's largest entry is a number of its format.
    return out if off <= _SHARP and reach * (1 + 8 * kind.low.u) <= kind.low.largest else None


def _on_device(q: Tensor) -> bool:
    return q.is_cuda and importlib.util.find_spec("triton") is not None


def walks_kind(kind: KernelKind) -> KernelKind:
    """What kind of kernel the walk is."""
    from iceform_tolerance.sums import BLOCK

    return KernelKind.of(
        kind.dtype, device="cuda", probabilities=kind.dtype, output=torch.float32, block=BLOCK
    )


@lru_cache(maxsize=64)
def tables(
    kind: KernelKind, scale: float, dim: int, keys: int, causal: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Constants of the kinds for the last kernel: plain ones, and ones by the count of keys."""
    from iceform_tolerance.sums import FIXED, STEPS

    own = walks_kind(kind)
    n = torch.arange(1 if causal else keys, keys + 1, dtype=torch.float64)
    per, constant = own_error_steps(dim, keys)
    fixed = {
        "scale": scale,
        "float64_per": per,
        "float64_at": constant,
        "sharp": _SHARP,
        "touched": 2 * dim + 16,
        "root": math.sqrt(dim),
        "own_rounds": log_steps(2 * own.probability_unit),
        "own_spills": 2 * own.probability_underflow,
        "rounds": -log_steps(-kind.probability_unit),
        "probability_unit": kind.probability_unit,
        "probability_underflow": kind.probability_underflow,
        "output_unit": kind.output_unit,
        "output_underflow": kind.output_underflow,
    }
    steps = {"log": n.log()}
    for name, each in (("own_", own), ("", kind)):
        unit = each.wide.faithful
        fixed |= {
            name + "per_k": scale * compounded(each.logit_steps(dim) + each.argument_steps, unit),
            name + "argument": compounded(each.argument_steps, unit),
            name + "underflow": 4 * each.underflow * max(1.0, scale),
            name + "online": float(each.online),
        }
        steps |= {
            name + "numerator": each.numerator_steps(n, keys) * each.step,
            name + "denominator": each.denominator_steps(n, keys) * each.step,
            name + "exp": each.exp_logs(n, keys).expand_as(n),
            name + "count": each.underflow * (2 * n + each.rescalings(n, keys) + 8),
        }
    numbers = torch.tensor([fixed[name] for name in FIXED], dtype=torch.float64)
    return numbers.to(device), torch.stack([steps[name] for name in STEPS]).to(device)
