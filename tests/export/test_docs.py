"""Every cell of the pages on networks and export runs, in order, without a kernel."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NEEDS = {
    "networks": (),
    "export": ("onnxruntime", "onnxscript", "transformer_lens", "nnsight"),
}


# The documentation runs all of them too.
@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p == "networks" else ()) for p in NEEDS]
)
def test_cells_run_in_order(page, tmp_path, monkeypatch):
    for module in NEEDS[page]:
        pytest.importorskip(module, reason="needs iceform[export,interp]")
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    cells = re.findall(r"```\{code-cell\}\n(.*?)```", text, re.DOTALL)
    assert cells
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    # One file, as a reader would run it: nnsight looks for the source of its blocks.
    script = tmp_path / f"{page}.py"
    script.write_text("\n".join(cells), encoding="utf-8")
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": page})


@pytest.mark.parametrize("page", NEEDS)
def test_scripts_that_are_named_exist(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for name in re.findall(r"examples/\w+\.py", text):
        assert (DOCS.parent / name).exists(), name
