"""docs/comparison.md: whom it speaks of, and that what it says of iceform is so."""

import pytest

import iceform as ice
from iceform.heads.variants import ProjectedAttention
from tests.claims.scan import ROOT, pages

PAGE = "docs/comparison.md"
pytestmark = pytest.mark.skipif(not (ROOT / PAGE).exists(), reason="pages are not in the package")


@pytest.mark.parametrize(
    "words",
    [
        "https://github.com/physicsrob/torchwright_doom",
        "without a causal mask unless asked for one",
        "indirect loads and stores",
        "https://github.com/omarespejel/provable-transformer-vm",
        "https://github.com/xxxxkkkqq/Lean4-Transformer-Vm-OSS",
        "https://arxiv.org/abs/2602.08857",
        "https://arxiv.org/abs/2605.08475",
        "https://arxiv.org/abs/2601.16450",
    ],
)
def test_others_are_there(words):
    assert words in " ".join(pages()[PAGE].split())


def test_the_computer_is_four_layers_of_attention_and_nothing_else():
    """Four against thirteen and eight, and no MLP: every parameter belongs to a head."""

    @ice.algorithm
    def double(x, y):
        return x + x

    program = ice.compile(double, dim=1, samples=2)
    network = ice.Computer.for_programs([program]).network
    assert [type(layer) for layer in network.layers] == [ProjectedAttention] * 4
    of_heads = sum(p.numel() for layer in network.layers for p in layer.state_dict().values())
    assert sum(p.numel() for p in network.state_dict().values()) == of_heads
    text = " ".join(pages()[PAGE].split())
    assert "is four layers of softmax attention and no MLP" in text
