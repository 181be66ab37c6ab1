"""The zoo's ground truth is true: patching a head changes what its fact says, and nothing else."""

import runpy
from pathlib import Path

import pytest
import torch

import iceform as ice
from iceform import zoo

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", params=zoo.list())
def specimen(request):
    return zoo.load(request.param)


def test_names():
    assert "gd-logistic" in zoo.list()
    assert len(zoo.list()) >= 8
    with pytest.raises(
        ice.errors.ProgramError, match="no specimen 'dodo'; there are residual-tanh"
    ):
        zoo.load("dodo")


def test_a_specimen_is_within_its_certificate(specimen):
    for seed in range(3):
        inputs = specimen.inputs(seed)
        off = (specimen.module(*inputs) - specimen.module.reference(*inputs)).abs().max()
        assert float(off) <= specimen.module.certificate.error
    assert not torch.equal(specimen.inputs(0)[0], specimen.inputs(1)[0])
    assert torch.equal(specimen.inputs(2)[0], specimen.inputs(2)[0])


def test_every_head_has_one_fact(specimen):
    labels = [
        (layer, head, label)
        for layer, part in enumerate(specimen.module.network.layers)
        for head, label in enumerate(getattr(part, "labels", ()))
    ]
    assert labels == [(f.layer, f.head, f.label) for f in specimen.mechanism]
    text = specimen.explain()
    for fact in specimen.mechanism:
        assert fact.label in text
        assert specimen.fact(fact.label, fact.layer) is fact
    with pytest.raises(ice.errors.ProgramError, match="no head 'nose'"):
        specimen.fact("nose")


def test_a_patch_at_a_head_changes_exactly_what_its_fact_says(specimen):
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    from iceform.export import transformer_lens

    model = transformer_lens(specimen.module)
    inputs = specimen.inputs()
    before = specimen.answer(model(*inputs))
    seen = set()
    for fact in specimen.mechanism:

        def scale(z, hook, head=fact.head):
            z = z.clone()
            z[..., head, :] *= 1.5
            return z

        hooks = [(f"blocks.{fact.layer}.attn.hook_z", scale)]
        after = specimen.answer(model.run_with_hooks(*inputs, fwd_hooks=hooks))
        changed = (after != before).flatten(0, -2).any(0).nonzero().flatten().tolist()
        if specimen.name == "truncated-line":
            # A head whose part of the grid no sample falls into changes nothing.
            assert set(changed) <= set(fact.affects)
        else:
            assert tuple(changed) == fact.affects, fact
        seen |= set(changed)
    assert seen == set(range(before.shape[-1]))


def test_each_part_of_a_split_grid_answers_for_its_own_samples():
    specimen = zoo.load("truncated-line")
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    from iceform.export import transformer_lens

    model = transformer_lens(specimen.module)
    x, w, _ = specimen.inputs()
    inputs = (x, w, torch.zeros((), dtype=torch.float64))
    _, cache = model.run_with_cache(*inputs)
    z = x @ w
    given = cache["z", 0][: len(z), :, 0]  # (samples, heads)
    owner = ((z + 2) / 4 * len(specimen.mechanism)).floor().long().clamp(0, 3)
    for i, head in enumerate(owner.tolist()):
        share = given[i].abs() / given[i].abs().sum()
        assert float(share[head]) > 0.99 or abs(float(z[i])) % 1 < 0.1, (i, z[i], share)


@pytest.mark.filterwarnings("default")  # of what others import
def test_the_example_finds_the_circuit(capsys):
    pytest.importorskip("transformer_lens", reason="needs iceform[interp]")
    runpy.run_path(str(EXAMPLES / "find_circuit.py"), run_name="__main__")
    assert "found ['V row 1', 'target head 0']" in capsys.readouterr().out
