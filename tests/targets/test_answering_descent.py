"""The next token is the rounded exact prediction, and where that is not certain it is said."""

from collections import defaultdict

import pytest
import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import targets
from iceform.targets.quantizer import Quantizer

from .alone import alone
from .stock import written

SPEC = targets.AnsweringDescent(2, 4, positions=96, step=2.0**-7)
MOST = 20
RUN = """
    import transformers
    folder, prompts, attention, out = sys.argv[1:]
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention
    )
    made = {}
    for name, ids in load_file(prompts).items():
        made[name] = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=1
        )
    save_file(made, out)
"""


def data(n, seed):
    """Samples in a box, labels of a line with noise, and a query."""
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, 2, dtype=torch.float64) - 1
    y = (x @ torch.randn(2).double() + 0.2 * torch.randn(n).double()).clamp(-2, 2)
    return x, y, 2 * torch.rand(2, dtype=torch.float64) - 1


def judge(model, ids, x, y, query):
    """Whether the certificate names a tie beforehand; the answer is within it, or fails."""
    value, tie = model.read(ids[None]), model.spec.tie(x, y, query)
    beyond = model.spec.distance(value, x, y, query=query)
    assert beyond <= model.certificate(x, y, query=query).error
    assert tie or value == model.spec.reference(x, y, query)
    return tie


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    return written("gpt2", SPEC, tmp_path_factory.mktemp("answerer"))


def test_predictions_are_the_next_token(answerer):
    model, networks = answerer
    problems, ties = [data(5, s) for s in range(40)], 0
    for network in networks.values():
        ids = torch.cat([model.prompt(x, y, query=q) for x, y, q in problems])
        made = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=1
        )
        ties += sum(judge(model, i, *p) for i, p in zip(made, problems, strict=True))
    assert ties <= 2


@pytest.mark.slow
def test_a_thousand_problems_where_iceform_is_not(answerer, tmp_path):
    model, _ = answerer
    problems, ties = defaultdict(list), 0
    for seed in range(1000):
        problems[f"{1 + seed % MOST}"].append(data(1 + seed % MOST, seed))
    prompts = {
        n: torch.cat([model.prompt(x, y, query=q) for x, y, q in each])
        for n, each in problems.items()
    }
    save_file(prompts, tmp_path / "prompts")
    for attention in ("eager", "sdpa"):
        files = str(tmp_path / "prompts"), attention, str(tmp_path / attention)
        alone(RUN, str(model.path), *files)
        for n, made in load_file(tmp_path / attention).items():
            for ids, problem in zip(made, problems[n], strict=True):
                ties += judge(model, ids, *problem)
    assert ties <= 2000 / 50


def test_the_prediction_is_least_squares(answerer):
    """Against descent written again, on data that are levels already."""
    model, networks = answerer
    x, y, q = (model.spec.levels.nearest(v) for v in data(8, 3))
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(4):
        w = w - 0.5 * x.T @ (x @ w - y) / 8
    found = model.spec.run(networks["eager"], x, y, query=q)
    assert abs(float(found - w @ q)) <= model.spec.step / 2 + 1e-9


def test_check(answerer):
    model, _ = answerer
    x, y, q = data(4, 1)
    found = ice.check(model.path, x, y, query=q)
    assert found.ok
    assert found.certificate.terms["arithmetic"] < 1e-6


def test_a_tie_is_named():
    levels = Quantizer(2.0, 2.0**-7)
    numbers = torch.tensor([0.5, 0.5 + 2.0**-8, 0.5 + 2.0**-8 + 1e-7, -2.0, 2.5]).double()
    assert levels.certain(numbers, 1e-6).tolist() == [True, False, False, True, True]
    assert levels.certain(numbers, 1e-8).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(("bound", "step"), [(2.0, 0.01), (2.0, 4.0), (2.1, 0.5), (1e6, 1.0)])
def test_levels_that_are_not_exact_are_refused(bound, step):
    with pytest.raises(ice.errors.BoundError):
        targets.AnsweringDescent(2, 1, bound=bound, step=step)


def test_decoders_are_gpt2_in_float64(tmp_path):
    with pytest.raises(ice.errors.TargetError, match="an encoder does not generate"):
        targets.write("bert", SPEC, tmp_path / "no")
    with pytest.raises(ice.errors.DtypeError, match="float64"):
        targets.AnsweringDescent(2, 2, dtype="float32")
