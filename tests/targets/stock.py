"""Stock models for tests: loaded once, run on many prompts."""

import functools

import pytest
import torch
from safetensors.torch import load_file, save_file

from .alone import alone

transformers = pytest.importorskip("transformers", reason="stock targets need transformers")
transformers.utils.logging.disable_progress_bar()

import iceform as ice  # noqa: E402
from iceform import targets  # noqa: E402


@ice.algorithm
def descent(x, y, *, lr=0.5, steps=2):
    w = ice.zeros_like(x)
    for _ in ice.repeat(steps):
        w = w - lr * ice.mean(x * ((x * w).sum() - y))
    return w


def data(n=4, seed=0, dim=2):
    """Samples in a box, labels of a line with noise."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64, generator=draw) - 1
    w, noise = (torch.randn(k, dtype=torch.float64, generator=draw) for k in (dim, n))
    return x, (x @ w / dim + 0.2 * noise).clamp(-1, 1)


@functools.cache
def written(name, spec, folder):
    """(the folder's handle, its networks by attention)."""
    model = targets.write(name, spec, folder)
    return model, {kind: targets.network(model, kind) for kind in ("eager", "sdpa")}


def exact(model, x, y, **parameters):
    """The exact algorithm's answer to the data as the prompt holds them."""
    dtype = model.spec.torch_dtype
    return model.spec.reference(x.to(dtype), y.to(dtype), **parameters)


def off(model, network, x, y, **parameters):
    """The largest distance from the exact algorithm; infinite where it is NaN."""
    return model.spec.distance(model.spec.run(network, x, y, **parameters), x, y, **parameters)


def assert_within(model, networks, x, y, **parameters):
    """Both attentions stay within their certificates; returns certified and measured."""
    found = []
    for kind, network in networks.items():
        certified = model.certificate(x, y, kind, **parameters).error
        measured = off(model, network, x, y, **parameters)
        where = f"{model.spec} {kind} n = {len(x)} {parameters}"
        assert measured <= certified, f"{where}: off by {measured:.3e}, certified {certified:.3e}"
        found.append((certified, measured))
    return max(found)


RUN = """
    from pathlib import Path
    from transformers import AutoModel
    network = AutoModel.from_pretrained(sys.argv[1])
    for prompt in sorted(Path(sys.argv[2]).glob("*.prompt")):
        with torch.no_grad():
            hidden = network(**load_file(prompt)).last_hidden_state
        save_file({"hidden": hidden}, prompt.with_suffix(".hidden"))
"""


def enclosed_alone(programs, cases, folder):
    """How far answers are from the exact programs', given where iceform is not importable.

    All programs are on one weights file; returned by name.
    """
    for name, one in programs.items():
        prompt = one.prompt(cases[name].X, cases[name].y)
        save_file({"inputs_embeds": prompt}, folder / f"{name}.prompt")
    alone(RUN, str(one.path), str(folder))
    found = {}
    for name, one in programs.items():
        given = {"program": one.program, **one.settings}
        answer = one.spec.flat(load_file(folder / f"{name}.hidden")["hidden"], **given)
        found[name] = one.spec.judge(answer, cases[name].X, cases[name].y, "sdpa", **given)[1]
    return found
