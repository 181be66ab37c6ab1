"""Kernels with one mistake each, written as people write them: blocks, running maximum, float32."""

import math

import torch


def flash(
    q, k, v, *, block=64, scale=None, causal=False, exp2=True, log2e=True, rescale=True,
    diagonal=0, drop_last=False, low_sums=False,
):  # fmt: skip
    """Blocked online softmax for (batch, heads, n, d) in q.dtype, sums in float32."""
    dtype, n = q.dtype, k.shape[-2]
    wide = dtype if low_sums else torch.float32
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    factor = scale * (math.log2(math.e) if exp2 and log2e else 1.0)
    exp = torch.exp2 if exp2 else torch.exp
    rows = torch.arange(q.shape[-2])[:, None] + diagonal
    top = torch.full((*q.shape[:-1], 1), -1e30)
    total = torch.zeros(*q.shape[:-1], 1, dtype=wide)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
    end = n - (n % block or block) if drop_last else n
    for at in range(0, end, block):
        keys, values = k[..., at : at + block, :], v[..., at : at + block, :]
        s = (q.float() @ keys.float().mT) * factor
        if causal:
            s = s.masked_fill(torch.arange(at, at + keys.shape[-2]) > rows, -math.inf)
        moved = torch.maximum(top, s.amax(-1, keepdim=True))
        p = exp(s - moved)
        alpha = exp(top - moved) if rescale else torch.ones_like(top)
        if low_sums:
            total = total * alpha.to(wide)
            out = out * alpha.to(wide)
            for j in range(keys.shape[-2]):  # as a loop over keys in the low precision would
                total = total + p[..., j : j + 1].to(wide)
                out = out + (p[..., j : j + 1] * values[..., None, j, :].float()).to(wide)
        else:
            total = total * alpha + p.sum(-1, keepdim=True)
            out = out * alpha + p.to(dtype).float() @ values.float()
        top = moved
    return (out / total).to(dtype)
