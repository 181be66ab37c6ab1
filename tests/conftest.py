"""Shapes and types inside the library are checked while the tests run.

Only modules behind the border are hooked: where users' own arguments come in, the library's own
exceptions must be seen.
"""

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook(
    [
        # Not the Triton kernels: the compiler reads their source as it stands.
        "iceform.backends.fused",
        "iceform.backends.loops",
        "iceform.backends.registry",
        "iceform.backends.windowed",
        "iceform.interpolation.fitting",
        "iceform.interpolation.local",
        "iceform.interpolation.posterior",
    ],
    "beartype.beartype",
)
pytest.register_assert_rewrite("tests.conformance")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
