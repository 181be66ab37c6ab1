"""Find a known circuit by activation patching, and check it against the ground truth.

The network is an attention head whose weights are in the prompt: eight heads compute it. Two
prompts differ in one row of W_V. Patching each head's output from the clean run into the other one
shows which heads carry the difference; the design says which ones should.

    python examples/find_circuit.py
"""

from __future__ import annotations

import torch

from iceform.export import transformer_lens
from iceform.paper import AttentionHead

ROW = 1  # the row of W_V that is corrupted
CARRIES = 0.5  # share of the difference that a head must restore to be part of the circuit
ENTRIES = 4  # of a token


def prompts() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Tokens and the rows of W_K, W_Q and W_V, and the same with one row of W_V turned around."""
    draw = torch.Generator().manual_seed(0)
    x, w_k, w_q, w_v = (
        2 * torch.rand(rows, ENTRIES, generator=draw, dtype=torch.float64) - 1
        for rows in (5, 2, 2, 3)
    )
    turned = w_v.clone()
    turned[ROW] = -turned[ROW]
    return (x, w_k, w_q, w_v), (x, w_k, w_q, turned)


def restored(network: AttentionHead) -> dict[str, float]:
    """For every head: the share of the output's difference that patching it restores."""
    model = transformer_lens(network)
    clean, corrupted = prompts()
    want, cache = model.run_with_cache(*clean)
    base = model(*corrupted)
    shares = {}
    for layer, heads in enumerate(network.design.layers):
        for number, head in enumerate(heads):
            name = f"blocks.{layer}.attn.hook_z"
            ours = cache[name][..., number, :]

            def patch(z: torch.Tensor, hook: object, ours=ours, number=number) -> torch.Tensor:
                z = z.clone()
                z[..., number, :] = ours
                return z

            patched = model.run_with_hooks(*corrupted, fwd_hooks=[(name, patch)])
            shares[head.role] = 1 - float((patched - want).norm() / (base - want).norm())
    return shares


def main() -> None:
    """Patch every head, print what it restores, compare with the truth."""
    network = AttentionHead(ENTRIES, 2, 3, 5, eps=1e-8, backend="literal")
    shares = restored(network)
    for role, share in shares.items():
        print(f"{role:14s} restores {share:6.1%}")
    found = {role for role, share in shares.items() if share > CARRIES}
    truth = {f"V row {ROW}", "target head 0"}
    print(f"\nfound {sorted(found)}; the design says {sorted(truth)}")
    if found != truth:
        raise SystemExit("activation patching missed the circuit")


if __name__ == "__main__":
    main()
