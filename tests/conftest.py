"""Shapes and types inside the library are checked while the tests run.

Only modules behind the border are hooked: where users' own arguments come in, the library's own
exceptions must be seen.
"""

import gc
import importlib.util
import os
import tempfile

import pytest
import torch
from jaxtyping import install_import_hook

# What is made while tests are collected stays: nobody need look for it again and again.
gc.disable()

if not torch.cuda.is_available():
    # Triton reads this when it is first imported, which torch.compile may do in any test.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tables that one test has fitted are read, and proven again, by the others and what they start.
if "ICEFORM_CACHE" not in os.environ:
    _TABLES = tempfile.TemporaryDirectory(prefix="iceform-tables-")
    os.environ["ICEFORM_CACHE"] = _TABLES.name

if importlib.util.find_spec("beartype") is not None:  # a machine with a GPU may lack it
    install_import_hook(
        [
            # Not the Triton kernels: the compiler reads their source as it stands.
            "iceform.run.primitives",
            "iceform.run.loops",
            "iceform.run.windowed",
            "iceform.tables.regimes",
            "iceform.tables.local",
            "iceform.tables.posterior",
        ],
        "beartype.beartype",
    )
pytest.register_assert_rewrite("tests.conformance")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is ``sampled(count)``, that many cases, evenly spread, stay quick.

    The others are slow: ``make test-all`` has them all.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for some in cases.values():
        (count,) = some[0].get_closest_marker("sampled").args
        quick = {len(some) * k // count for k in range(count)}
        for number, item in enumerate(some):
            if number not in quick:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """As torch.manual_seed, which formats the stack for every device that has not been used yet."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
