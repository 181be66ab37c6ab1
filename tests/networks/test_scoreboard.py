"""Architectures: right within the certificate or refused by name, never anything else."""

import pytest
import torch

from iceform.networks import in_context
from tests.networks import architectures, scoreboard

# Convolutions and pooling, causal masks, einsum, softmax without values, gates, a norm written out.
QUICK = ("CNN", "scaled_dot_product_attention, causal", "einsum", "SwiGLU", "Softmax", "RMSNorm")
MUST = (
    "BertModel", "RobertaModel", "DistilBertModel", "AlbertModel", "ElectraModel", "MPNetModel",
    "ViTModel", "GPT2Model", "LlamaModel", "T5EncoderModel", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "MLP", "CNN",
)  # fmt: skip
CASES = {case.name: case for case in architectures.cases()}


@pytest.mark.parametrize("name", QUICK)
def test_modules_of_torch(name):
    found = scoreboard.judge(CASES[name])
    assert found.verdict == "right", found
    assert found.off > 0  # emulated, that is
    assert found.certified < 1e-8


def test_rotary_positions_and_a_norm_that_casts():
    pytest.importorskip("transformers", reason="needs iceform[export]")
    found = scoreboard.judge(CASES["LlamaModel"])
    assert (found.verdict, found.dtype) == ("right", "float32"), found
    assert found.certified < 1e-2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_of_them():
    pytest.importorskip("transformers", reason="needs iceform[export]")
    found = {name: scoreboard.judge(case) for name, case in CASES.items()}
    bad = [o for o in found.values() if o.verdict not in ("right", "refused")]
    assert not bad, bad
    assert all(found[name].verdict == "right" for name in MUST)


def test_a_wrong_network_is_called_wrong(monkeypatch):
    """The judge compares with the original: one that is off by more than certified is seen."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 3))
    case = architectures.Case("off", lambda: model, architectures.tokens)
    right = scoreboard.in_context

    def off(given, **options):
        net = right(given, **options)
        inner = net.model.forward
        net.model.forward = lambda *args, **kwargs: inner(*args, **kwargs) + 1e-6
        return net

    monkeypatch.setattr(scoreboard, "in_context", off)
    assert scoreboard.judge(case).verdict == "wrong"


@pytest.mark.slow
def test_gpt2_decodes_the_same_tokens():
    """Greedy decoding of 64 tokens, every logit within the certificate of its input."""
    transformers = pytest.importorskip("transformers", reason="needs iceform[export]")
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=80, n_embd=16, n_layer=2, n_head=2, use_cache=False,
        bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double().eval().requires_grad_(False)
    ids = torch.randint(3, 50, (1, 4))
    calibration = [{"input_ids": torch.randint(3, 50, (2, 72)), "use_cache": False}]
    net = in_context(model, calibration=calibration, tokens=72)
    ours = theirs = ids
    for step in range(64):
        found = net(input_ids=ours, use_cache=False).logits[:, -1]
        want = model(input_ids=theirs, use_cache=False).logits[:, -1]
        if step % 21 == 0:
            last = torch.zeros(50, 1, ours.shape[1], 50, dtype=torch.float64)
            last[torch.arange(50), 0, -1, torch.arange(50)] = 1.0
            for i in range(0, 50, 10):
                one = net.enclosure(input_ids=ours, use_cache=False, functional=last[i])
                assert float((found - want)[0, i].abs()) <= one.error < 1e-6
        assert float((found - want).abs().max()) < 1e-8
        ours, theirs = (
            torch.cat([t, logits.argmax(-1, keepdim=True)], -1)
            for t, logits in ((ours, found), (theirs, want))
        )
        assert torch.equal(ours, theirs)
    assert ours.shape == (1, 68)
