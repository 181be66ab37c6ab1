"""The operations of aten that a network may be made of, and what becomes of each.

moves
    Numbers are moved or made, nothing is computed with them: they run as they are.
natives
    Computed as the original does, and listed in the report: sums, products of two activations,
    means, roots.
anything else that computes with activations
    A map that nothing here emulates: refused, or with ``strict=False`` listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Arguments of moves that are numbers put in.
PUT_IN = {"masked_fill": (2,), "constant_pad_nd": (2,), "pad": (3,), "where": (1, 2),
          "scatter": (3,)}  # fmt: skip
# Moves that make numbers of none: the argument that is the number, or the number itself.
_ARGUMENT = {"full_like": 1, "new_full": 2, "fill": 1, "full": 1, "scalar_tensor": 0}
_NUMBER = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0, "eye": 1.0, "zeros": 0.0,
           "zeros_like": 0.0, "new_zeros": 0.0, "arange": math.inf}  # fmt: skip

_MOVES = frozenset((
    "alias", "arange", "as_strided", "atleast_1d", "atleast_2d", "block_diag", "broadcast_to",
    "cat",
    "chunk", "clone", "concat", "concatenate", "constant_pad_nd", "contiguous", "copy",
    "detach", "detach_", "diagonal", "expand", "expand_as", "eye",
    "fill", "flatten", "flip", "full", "full_like", "gather", "getitem", "index",
    "index_select", "is_same_size", "lift_fresh", "lift_fresh_copy", "masked_fill",
    "meshgrid", "movedim", "narrow", "new_full", "new_ones", "new_zeros",
    "ones", "ones_like", "pad", "permute", "repeat", "repeat_interleave", "reshape", "roll",
    "scalar_tensor", "scatter", "select", "slice", "slice_scatter", "select_scatter",
    "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "t", "tile", "to",
    "transpose", "tril", "triu", "unbind", "unflatten", "unfold", "unsafe_split", "unsafe_chunk",
    "unsqueeze", "view", "view_as", "where", "zeros", "zeros_like", "_to_copy",
    "_unsafe_view", "_reshape_alias", "sym_size", "sym_numel", "sym_stride", "numpy_T",
    "mT", "type_as", "dropout", "hstack", "vstack", "reshape_as", "im2col", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "upsample_nearest1d", "upsample_nearest2d",
))  # fmt: skip
# Moves that keep every number once, and that cut rows.
KEEPS_ALL = frozenset((
    "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "t", "unflatten",
    "expand", "swapaxes", "movedim", "clone",
))  # fmt: skip
CUTS = frozenset(("split", "split_with_sizes", "chunk"))
_NATIVES = frozenset((
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "square", "pow", "sqrt",
    "rsqrt", "reciprocal", "layer_norm", "matmul", "mm", "bmm", "addmm", "linear",
    "linalg_vector_norm", "norm", "clamp_min", "clamp", "rms_norm", "baddbmm", "var",
    "addcmul", "native_layer_norm",
))  # fmt: skip
_RANDOM = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli",
    "multinomial", "normal", "uniform", "randperm", "poisson", "dropout", "alpha_dropout",
    "feature_dropout", "native_dropout", "rrelu", "exponential", "geometric", "cauchy",
    "log_normal",
))  # fmt: skip


def is_move(name: str) -> bool:
    """Whether an operation only moves or makes numbers."""
    return name in _MOVES


def is_native(name: str) -> bool:
    """Whether an operation runs as in the original, and is listed."""
    return name in _NATIVES


def is_random(name: str) -> bool:
    """Whether an operation draws its result."""
    return name in _RANDOM


def makes(name: str) -> bool:
    """Whether an operation makes numbers of none, whatever it is given."""
    return name in _ARGUMENT or name in _NUMBER


def made_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the entries that such an operation makes are, or are bounded by."""
    if name in _NUMBER:
        return _NUMBER[name]
    place = _ARGUMENT[name]
    return args[place] if place < len(args) else kwargs["fill_value"]


def put_in(name: str, args: Sequence[Any]) -> list[float]:
    """The numbers that a move puts in among those that it moves."""
    given = [args[i] for i in PUT_IN.get(name, ()) if i < len(args)]
    return [float(n) for n in given if isinstance(n, int | float)]
