"""A design's record is true: a patch at a head moves the features it leads to, and no other."""

import runpy
from pathlib import Path

import pytest
import torch

from tests.specimens import SPECIMENS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", params=SPECIMENS)
def specimen(request):
    return SPECIMENS[request.param], SPECIMENS[request.param].make()


def heads_of(module):
    """Every head of the literal network: its layer, its place and its label."""
    return [
        (layer, head, label)
        for layer, part in enumerate(module.network.layers)
        for head, label in enumerate(getattr(part, "labels", ()))
    ]


def test_it_is_within_its_certificate(specimen):
    known, module = specimen
    for seed in range(3):
        inputs = known.inputs(seed)
        off = (module(*inputs) - module.reference(*inputs)).abs().max()
        assert float(off) <= module.certificate.error


def test_the_network_has_the_heads_of_the_design(specimen):
    _, module = specimen
    told = [head["role"] for layer in module.design.ground_truth() for head in layer]
    assert told == [label for _, _, label in heads_of(module)]


def test_a_patch_at_a_head_changes_exactly_what_is_said(specimen):
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    from iceform.export import transformer_lens

    known, module = specimen
    model, inputs = transformer_lens(module), known.inputs()
    width = module.answer[-1] if known is not SPECIMENS["truncated-line"] else 1
    before = model(*inputs).reshape(-1, width)
    seen = set()
    for layer, head, label in heads_of(module):

        def scale(z, hook, head=head):
            z = z.clone()
            z[..., head, :] *= 1.5
            return z

        patched = model.run_with_hooks(*inputs, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", scale)])
        changed = (patched.reshape(-1, width) != before).any(0).nonzero().flatten().tolist()
        affects = known.affects(layer, label)
        if known is SPECIMENS["truncated-line"]:
            # A head whose part of the grid no sample falls into changes nothing.
            assert set(changed) <= set(affects)
        else:
            assert tuple(changed) == affects, label
        seen |= set(changed)
    assert seen == set(range(width))


def test_each_part_of_a_split_grid_answers_for_its_own_samples():
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    from iceform.export import transformer_lens

    known = SPECIMENS["truncated-line"]
    module = known.make()
    x, w, _ = known.inputs()
    _, cache = transformer_lens(module).run_with_cache(x, w, torch.zeros((), dtype=torch.float64))
    z = x @ w
    given = cache["z", 0][: len(z), :, 0]  # (samples, heads)
    owner = ((z + 2) / 4 * len(heads_of(module))).floor().long().clamp(0, 3)
    for i, head in enumerate(owner.tolist()):
        share = given[i].abs() / given[i].abs().sum()
        assert float(share[head]) > 0.99 or abs(float(z[i])) % 1 < 0.1, (i, z[i], share)


@pytest.mark.filterwarnings("default")  # of what others import
def test_the_example_finds_the_circuit(capsys):
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    runpy.run_path(str(EXAMPLES / "find_circuit.py"), run_name="__main__")
    assert "found ['V row 1', 'target head 0']" in capsys.readouterr().out
