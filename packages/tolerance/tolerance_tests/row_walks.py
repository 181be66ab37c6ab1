"""The walk on a GPU by the functions that define it."""

import math

import torch

from iceform_tolerance import gpu
from iceform_tolerance.theorem import Norms


def norms_of(problem, longest, top):
    """Sizes of all rows, of the longest key of each head and the largest logits that were met."""
    _, group, queries, _ = problem.q.shape
    present = torch.tensor(float(problem.keys), dtype=torch.float64)
    if problem.diagonal is not None:
        seen = torch.arange(queries, device=top.device) + problem.diagonal + 1
        present = seen.clamp(1, problem.keys).double().repeat(group)[None, :, None]
    q = torch.linalg.vector_norm(problem.q.flatten(1, 2).double(), dim=-1, keepdim=True)
    met = torch.where(top == -math.inf, 0.0, top)[..., None].double().abs() * (1 + 2.0**-20)
    return Norms(
        present=present, keys=problem.keys, dim=problem.dim, scale=abs(problem.scale), q=q,
        q_exact=q, q_moved=0.0, k=longest, k_moved=0.0, bias=0.0, top=met + gpu._SHARP,
    )  # fmt: skip
