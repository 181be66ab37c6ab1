"""A theorem from outside the package is one class, and the conformance suite checks its proof."""

from functools import partial

import torch

import iceform as ice
from iceform.paper.rows import RowEmulator
from tests.paper.test_rows import _Rows


class TwoViews(RowEmulator):
    """x -> (a x, b x): two maps of every sample side by side, both in the prompt."""

    def __init__(self, dim, rows, samples=1, tokens=None, **options):
        super().__init__(
            dim=dim, samples=samples, rows=rows, names=("a", "b"), tokens=tokens, **options
        )

    def _exactly(self, *inputs):
        x, a, b = (t.double() for t in inputs)
        return torch.cat([x @ a.mT, x @ b.mT], -1)


class TestTwoViews(_Rows):
    eps = (1e-8, 1e-3, 0.3)
    make = partial(TwoViews, 3, (2, 1), samples=5)


def test_a_theorem_from_outside_is_saved_explained_and_loaded(tmp_path):
    made = TwoViews(2, (1, 1), samples=3)
    x, a, b = torch.rand(3, 2).double(), torch.rand(1, 2).double(), torch.rand(1, 2).double()
    made.save_pretrained(tmp_path)
    again = ice.load(tmp_path)
    assert isinstance(again, TwoViews)
    assert torch.equal(again(x, a, b), made(x, a, b))
    assert again.digest == made.digest
    assert "range of the products" in made.certificate.explain()
    assert made.run(x, a, b).attestation is not None
