"""``python -m benchmarks.text_llama``: could the text machine be a Llama? What its positions allow.

A Llama has no absolute positions: every pair of numbers of a query and of a key is turned by an
angle that grows with the position, and RMSNorm is computed in float32 whatever the weights' dtype.
So the machine's two kinds of heads must be had from turned pairs. This measures both, with the
stock rotary embedding in float32, at the usual theta of 500,000 and heads of 64:

- *look back t tokens*: constant queries and keys, the query turned by t: the score at a distance d
  is a sum of cos(theta_i (d - t)) over the fast pairs;
- *the latest write to a name*: ten bits of a code in the ten slowest pairs, and one pair whose
  score cos(theta d + phase) falls with the distance. The right token must lead an older write to
  the same name, and a newer write to a name that differs in one bit.

Leads are the least over all distances, from queries at several positions, in logits, as float32
computes them; the reference is the same in float64.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

OUT = Path(__file__).parents[1] / "results" / "pages" / "text-llama.json"
THETA, SIZE, POSITIONS = 500_000.0, 64, 4096
FAST, BITS, FALLING = 12, 10, 20  # pairs that look back; of a code; the pair that falls
LOOK, MATCH, RECENT, PHASE = 128.0, 2.0**17, 2.0**18, 0.4  # scores; the phase in radians
APART = 2  # tokens between two writes, at least


def turned(vectors: Tensor, positions: Tensor) -> Tensor:
    """Vectors (n, size) at positions, as a stock Llama turns queries and keys."""
    rope: Any = {"rope_type": "default", "rope_theta": THETA}
    config = LlamaConfig(
        hidden_size=SIZE, num_attention_heads=1, head_dim=SIZE, rope_parameters=rope,
        max_position_embeddings=POSITIONS,
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(vectors[None], positions[None])
    whole = vectors[None, None]
    return apply_rotary_pos_emb(whole, whole, cos, sin)[0][0, 0]


def pair(i: int, length: float, angle: float = 0.0) -> Tensor:
    """A vector in pair i: the rotary embedding turns places i and i + size/2."""
    out = torch.zeros(SIZE, dtype=torch.float64)
    out[i], out[i + SIZE // 2] = length * math.cos(angle), length * math.sin(angle)
    return out


def speeds() -> Tensor:
    """Radians a token, of each pair."""
    return THETA ** (-torch.arange(SIZE // 2).double() * 2 / SIZE)


def scores(query: Tensor, keys: Tensor, at: int, dtype: torch.dtype) -> Tensor:
    """Of a query at a position against keys (n, size) at 0, 1, ..."""
    q = turned(query[None].to(dtype), torch.tensor([at]))
    k = turned(keys.to(dtype), torch.arange(len(keys)))
    return (k @ q[0]).double()


def look_back(t: int, at: int, dtype: torch.dtype) -> float:
    """The lead of the token t back over all others before a position."""
    angles = speeds()
    query = sum(pair(i, LOOK, -t * float(angles[i])) for i in range(FAST))
    key = sum(pair(i, 1.0) for i in range(FAST))
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    found = scores(query, key.expand(at + 1, -1), at, dtype)
    meant = float(found[at - t])
    found[at - t] = -math.inf
    return meant - float(found.max())


def latest(at: int, dtype: torch.dtype) -> tuple[float, float]:
    """The lead of a write over an older one of its name, and over newer ones of other names."""
    slow = range(SIZE // 2 - BITS, SIZE // 2)
    query = sum((pair(i, MATCH) for i in slow), pair(FALLING, RECENT, PHASE))
    same = sum((pair(i, 1.0) for i in slow), pair(FALLING, 1.0))
    right = scores(query, same.expand(at + 1, -1), at, dtype)
    older = float((right[APART:] - right[:-APART]).min())
    least = math.inf
    for flipped in slow:
        other = same - 2 * pair(flipped, 1.0)
        found = scores(query, other.expand(at + 1, -1), at, dtype)
        least = min(least, float((right - found.flip(0).cummax(0).values.flip(0)).min()))
    return older, least


def main() -> None:
    """Measure, print and keep."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        places = (63, 1023, POSITIONS - 1)
        back = min(look_back(t, at, dtype) for t in range(1, 6) for at in places)
        both = [latest(at, dtype) for at in places]
        rows.append({
            "dtype": str(dtype).removeprefix("torch."), "look_back": back,
            "older_write": min(b[0] for b in both), "other_name": min(b[1] for b in both),
        })  # fmt: skip
        print(rows[-1])
    content = {"theta": THETA, "head": SIZE, "positions": POSITIONS, "torch": torch.__version__,
               "transformers": transformers.__version__, "rows": rows}  # fmt: skip
    OUT.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
