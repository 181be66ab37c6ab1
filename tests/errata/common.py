"""What the tests of the errata share: draws, the literal network read by hand, and the page."""

from pathlib import Path

import torch
from torch import Tensor

import iceform as ice
from iceform.paper import SampleGradients

F64 = torch.float64
UNIT = torch.finfo(F64).eps / 2
PAGE = Path(__file__).parents[2] / "docs" / "errata.md"


# ---------------------------------------------------------------------------------------------
# draws
# ---------------------------------------------------------------------------------------------


def uniform(generator, low, high, *shape):
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=F64)


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=F64)


def whole(generator, low, high):
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def drawn(generator, n, d, *batch, bound=1.0):
    """X, y and w in the domain."""
    return [uniform(generator, -bound, bound, *batch, *s) for s in ((n, d), (n,), (d,))]


def with_corners(parts, bound=1.0):
    """The same, and as many at the corners of the domain."""
    return [torch.cat([t, bound * t.sign()]) for t in parts]


def tensors(*values):
    return [torch.tensor(v, dtype=F64) for v in values]


# ---------------------------------------------------------------------------------------------
# what is compared
# ---------------------------------------------------------------------------------------------


def largest(off):
    return float(off.abs().max())


def assert_apart(printed, more_than, mended, at_most):
    """The print is off by more than a bound that the mended formula keeps: exchanged, it fails."""
    assert at_most < more_than < printed, printed
    assert mended <= at_most, mended


def literal_rows(em: SampleGradients, *inputs: Tensor) -> Tensor:
    """What the queries of all blocks of all prompts return, shape (*batch, n, d).

    By the literal network on its literal tokens: no backend has a part in it.
    """
    answers = em.network(em.prompt(*inputs).tokens)  # (*batch, prompts, queries, d + 1)
    asked = answers[..., : em.layout.samples, :].flatten(-3, -2)
    return asked[..., : em.domain.samples, : em.domain.dim]


def assert_certified(em, *inputs, exact=None, eps=None):
    """iceform's construction on these inputs is within its certificate, and that within eps."""
    one_pass = isinstance(em, ice.paper.SampleGradients)
    out = literal_rows(em, *inputs) if one_pass else em(*inputs)
    off = (out - (em.reference(*inputs) if exact is None else exact)).abs()
    where = tuple(torch.nonzero(off == off.max())[0].tolist())
    assert largest(off) <= em.certificate.error, (
        f"off by {largest(off):.3e} at {where}, certified {em.certificate.error:.3e}"
    )
    assert eps is None or em.certificate.error <= eps


# ---------------------------------------------------------------------------------------------
# docs/errata.md, and how it writes numbers
# ---------------------------------------------------------------------------------------------


def text():
    """The page with its line breaks undone."""
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def short(value):
    """Two digits, as the page writes them: .057, 8.8e-4, 54."""
    if value < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    plain = f"{value:.2g}" if value < 10 else f"{value:.0f}"
    return plain.removeprefix("0") if value < 1 else plain


def span(values):
    """From the least to the largest."""
    return f"{short(min(values))} to {short(max(values))}"


def assert_on_page(sentence):
    """The page says so, where there is a page."""
    if PAGE.exists():
        assert sentence in text(), f"docs/errata.md should say: {sentence}"
