"""A stock checkpoint behind torch.compile and in onnxruntime: the same answers, as certified."""

import logging
import warnings

import pytest
import torch
from torch import nn

from iceform import targets

from .stock import data, exact, off, written

SPEC = targets.LinearDescent(2, 2, positions=40, pairs=4)
SINGLE = targets.LinearDescent(2, 2, positions=40, dtype="float32")
BOTH = (SPEC, pytest.param(SINGLE, marks=pytest.mark.slow))
GIVEN = {"lr": 0.7, "penalty": 0.2, "momentum": 0.4}


@pytest.fixture(scope="module", params=BOTH, ids=lambda spec: spec.dtype)
def stock(request, tmp_path_factory):
    return written("gpt2", request.param, tmp_path_factory.mktemp("runtimes"))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_traced_graph_answers_within_the_certificate(stock, attention):
    model, networks = stock
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    traced = torch.compile(networks[attention], backend="eager", dynamic=False)
    x, y = data(9)
    certified = model.certificate(x, y, attention, **GIVEN).error
    assert off(model, traced, x, y, **GIVEN) <= certified
    assert counters["stats"]["unique_graphs"]  # it was traced, not left to Python
    torch._dynamo.reset()


class Stream(nn.Module):
    """The network as a function of its prompt alone."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, prompt):
        return self.network(inputs_embeds=prompt, use_cache=False).last_hidden_state


def onnx_session(network, prompt, path):
    import onnxruntime

    tokens = torch.export.Dim("tokens", min=3, max=40)
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # The exporter's own use of parts of torch that are going away.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Stream(network), (prompt,), str(path), dynamo=True, input_names=["prompt"],
            dynamic_shapes=({1: tokens},), verbose=False,
        )  # fmt: skip
    logger.setLevel(before)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )


def test_onnxruntime_answers_within_the_certificate(stock, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs iceform[export]")
    pytest.importorskip("onnxscript", reason="needs iceform[export]")
    model, networks = stock
    session = onnx_session(networks["eager"], model.prompt(*data(9)), tmp_path / "model.onnx")
    for n in (1, 9, 30):
        x, y = data(n, seed=n)
        (out,) = session.run(None, {"prompt": model.prompt(x, y, **GIVEN).numpy()})
        hidden = torch.from_numpy(out)
        assert hidden.dtype == model.spec.torch_dtype
        wrong = float((model.read(hidden) - exact(model, x, y, **GIVEN)).abs().max())
        assert wrong <= model.certificate(x, y, **GIVEN).error
