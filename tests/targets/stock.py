"""Stock models for tests: loaded once, run on many prompts."""

import functools

import pytest

transformers = pytest.importorskip("transformers", reason="stock targets need transformers")
transformers.utils.logging.disable_progress_bar()

from iceform import targets  # noqa: E402


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
