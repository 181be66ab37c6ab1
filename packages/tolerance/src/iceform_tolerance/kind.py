r"""What kind of kernel a tolerance is for: its formats, its exponential, how it walks over rows.

The counts of steps below are those of :mod:`iceform_tolerance.theorem`; U is the faithful unit
of ``accumulate``.

* *Scale.* sqrt(σ) rounded and multiplied into q and into k is four steps; σ and log2(e) rounded,
  multiplied and applied to the logit are four; both habits together are six. A mask's addition is
  one more: `SCALE_STEPS` = 7.
* *Split products.* A float32 product by three tf32 products has a = a1 + a2 + r with
  |r| <= 2^-21 |a| (a2 is cut off) and leaves a2 b2 <= 2^-22 |ab| out: 2.5 2^-21 = 10 U, and three
  sums in place of one.
* *Argument.* With s the logit and m the final reference, both in absolute value: subtraction and
  multiplication by log2(e) are three steps of m - s over all references that come between, which
  telescope; the rounded reference is one step of max(|s|, |m|): four of each. Rows that are split
  over several blocks of threads and merged by their log-sum-exps add one rounding of m + log L, the
  logarithm within two steps, and three steps of a difference of log-sum-exps: 14 cover all of it.
* *Finish.* Product, reciprocal (within an ulp), its product, and the same again for merged parts:
  ten steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from iceform.arithmetic import Format, format_of, fused_steps, log_steps, sum_steps
from iceform.errors import BoundError
from iceform.validation import check_positive, check_size

SCALE_STEPS = 7
WHOLE_ARGUMENT_STEPS = 4
ONLINE_ARGUMENT_STEPS = 14
FINISH_STEPS = 10
SPLIT_SUMS = 3
SPLIT_PRODUCT_STEPS = 10

# CUDA's ex2.approx.ftz.f32: a relative error of 2^-22. Also every libm and every factor that
# PyTorch's CPU kernel rescales by.
HARDWARE_ULPS = 2.0
# PyTorch's CPU kernel takes the exponentials of float32 rows by `exp_u20` and those of float16 and
# bfloat16 rows by `fexp_u20`, whose cubic is off by up to 1.13e-4: 944 ulps of float32.
SINGLE_ON_CPU_ULPS = 20.0
HALF_ON_CPU_ULPS = 1024.0


@dataclass(frozen=True)
class KernelKind:
    """A kind of kernel; see :func:`iceform_tolerance.tolerance` for the fields.

    Examples
    --------
    >>> kind = KernelKind.of(torch.bfloat16)
    >>> kind.accumulate, kind.online
    (torch.float32, True)
    """

    dtype: torch.dtype
    accumulate: torch.dtype
    probabilities: torch.dtype
    output: torch.dtype
    exp_ulps: float
    rescale_ulps: float
    online: bool
    block: int
    split: bool

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        accumulate: torch.dtype | None = None,
        *,
        device: torch.device | str = "cpu",
        probabilities: torch.dtype | None = None,
        output: torch.dtype | None = None,
        exp_ulps: float | None = None,
        rescale_ulps: float = HARDWARE_ULPS,
        online: bool = True,
        block: int = 1,
        split: bool | None = None,
    ) -> KernelKind:
        """A kind with its defaults filled in, and checked; sums are in float32 or wider."""
        if accumulate is None:
            accumulate = torch.float64 if dtype == torch.float64 else torch.float32
        low, wide = format_of(dtype), format_of(accumulate)
        if wide.u > low.u:
            raise BoundError(
                f"accumulate={wide.name} is narrower than dtype={low.name}: no kernel adds what it "
                f"reads in fewer bits; pass accumulate=torch.{low.name}"
            )
        on_gpu = torch.device(device).type == "cuda"
        if exp_ulps is None:
            exp_ulps = _exp_ulps(dtype, accumulate, on_gpu)
        return cls(
            dtype=dtype,
            accumulate=accumulate,
            probabilities=format_of(dtype if probabilities is None else probabilities).dtype,
            output=format_of(dtype if output is None else output).dtype,
            exp_ulps=check_positive("exp_ulps", exp_ulps),
            rescale_ulps=check_positive("rescale_ulps", rescale_ulps),
            online=bool(online),
            block=check_size("block", block),
            split=(on_gpu and dtype == torch.float32) if split is None else bool(split),
        )

    @property
    def low(self) -> Format:
        """The format of q, k and v."""
        return format_of(self.dtype)

    @property
    def wide(self) -> Format:
        """The format of sums."""
        return format_of(self.accumulate)

    @property
    def step(self) -> float:
        """What one operation in ``accumulate`` adds to a logarithm: l."""
        return log_steps(self.wide.faithful)

    @property
    def underflow(self) -> float:
        """λ of one operation in ``accumulate``, or of reading one number."""
        read = self.low.underflow if self.low.flushes else 0.0
        return max(self.wide.underflow, read)

    @property
    def probability_unit(self) -> float:
        """Unit of the rounding of probabilities; zero where they are kept."""
        kept = format_of(self.probabilities).u <= self.wide.u
        return 0.0 if kept else format_of(self.probabilities).u

    @property
    def probability_underflow(self) -> float:
        """λ of the rounding of probabilities."""
        return format_of(self.probabilities).rounded_underflow if self.probability_unit else 0.0

    @property
    def output_unit(self) -> float:
        """Unit of the rounding of the output; zero where it is the accumulator itself."""
        return 0.0 if format_of(self.output).u <= self.wide.u else format_of(self.output).u

    @property
    def output_underflow(self) -> float:
        """λ of the rounding of the output."""
        return format_of(self.output).rounded_underflow

    @property
    def argument_steps(self) -> int:
        """Steps of |s| and of |m| from the logit to the exponential."""
        return ONLINE_ARGUMENT_STEPS if self.online else WHOLE_ARGUMENT_STEPS

    def logit_steps(self, dim: int) -> int:
        """Steps of each product in a scaled logit."""
        if self.split:
            return SPLIT_SUMS * sum_steps(dim) + SPLIT_PRODUCT_STEPS + SCALE_STEPS
        return sum_steps(dim) + 1 + SCALE_STEPS

    def rescalings(self, present: Tensor, keys: int) -> Tensor:
        """How often the reference may move: at most once for a block that has a key to see."""
        if not self.online:
            return torch.zeros_like(present)
        return (present - 1).clamp(min=0, max=math.ceil(keys / self.block))

    def numerator_steps(self, present: Tensor, keys: int) -> Tensor:
        """Steps of a product p v until it is in the output."""
        sums = SPLIT_SUMS if self.split else 1
        products = SPLIT_PRODUCT_STEPS if self.split else 0
        adding = sums * fused_steps(present, keys)
        return adding + self.rescalings(present, keys) + products + FINISH_STEPS

    def denominator_steps(self, present: Tensor, keys: int) -> Tensor:
        """Steps of a probability until it has divided the output."""
        return fused_steps(present, keys) + self.rescalings(present, keys) + FINISH_STEPS

    def exp_logs(self, present: Tensor, keys: int) -> Tensor:
        """What exponentials may add to the logarithm of a weight: its own, and every rescaling's.

        An ulp of x is at most 2u|x|; merged parts have two factors more.
        """
        own = log_steps(self.exp_ulps * 2 * self.wide.u)
        factor = log_steps(self.rescale_ulps * 2 * self.wide.u)
        merged = 2 if self.online else 0
        return own + (self.rescalings(present, keys) + merged) * factor


def _exp_ulps(dtype: torch.dtype, accumulate: torch.dtype, on_gpu: bool) -> float:
    """Of PyTorch's kernels; their fast exponentials on CPU are float32's, others are good ones."""
    if on_gpu or accumulate != torch.float32:
        return HARDWARE_ULPS
    return SINGLE_ON_CPU_ULPS if dtype == torch.float32 else HALF_ON_CPU_ULPS
