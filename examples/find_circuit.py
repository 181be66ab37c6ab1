"""Find a known circuit by activation patching, and check it against the ground truth.

The specimen is an attention head whose weights are in the prompt: eight heads compute it. Two
prompts differ in one row of W_V. Patching each head's output from the clean run into the other one
shows which heads carry the difference; the specimen's mechanism says which ones should.

    python examples/find_circuit.py
"""

from __future__ import annotations

import torch

from iceform import zoo
from iceform.export import transformer_lens

ROW = 1  # the row of W_V that is corrupted
CARRIES = 0.5  # share of the difference that a head must restore to be part of the circuit


def prompts(specimen: zoo.Specimen) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Inputs, and the same inputs with one row of W_V turned around."""
    x, w_k, w_q, w_v = specimen.inputs()
    turned = w_v.clone()
    turned[ROW] = -turned[ROW]
    return (x, w_k, w_q, w_v), (x, w_k, w_q, turned)


def restored(specimen: zoo.Specimen) -> dict[str, float]:
    """For every head: the share of the output's difference that patching it restores."""
    model = transformer_lens(specimen.module)
    clean, corrupted = prompts(specimen)
    want, cache = model.run_with_cache(*clean)
    base = model(*corrupted)
    shares = {}
    for fact in specimen.mechanism:
        name = f"blocks.{fact.layer}.attn.hook_z"
        ours = cache[name][..., fact.head, :]

        def patch(z: torch.Tensor, hook: object, ours=ours, head=fact.head) -> torch.Tensor:
            z = z.clone()
            z[..., head, :] = ours
            return z

        patched = model.run_with_hooks(*corrupted, fwd_hooks=[(name, patch)])
        shares[fact.label] = 1 - float((patched - want).norm() / (base - want).norm())
    return shares


def main() -> None:
    """Patch every head, print what it restores, compare with the truth."""
    specimen = zoo.load("attention-head")
    shares = restored(specimen)
    found = {label for label, share in shares.items() if share > CARRIES}
    for fact in specimen.mechanism:
        print(f"{fact.label:14s} restores {shares[fact.label]:6.1%}   {fact.computes}")
    truth = {f"V row {ROW}", "target head 0"}
    print(f"\nfound {sorted(found)}; the mechanism says {sorted(truth)}")
    if found != truth:
        raise SystemExit("activation patching missed the circuit")


if __name__ == "__main__":
    main()
