"""``iceform checkpoints``: every card runs as it is printed, in its own folder."""

import re
import subprocess
import sys

import pytest

from iceform.cli import main

pytest.importorskip("transformers", reason="needs iceform[export]")


@pytest.mark.slow
def test_cards_run_as_printed(tmp_path):
    assert main(["checkpoints", str(tmp_path)]) == 0
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 5
    for folder in folders:
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.startswith("---\nlibrary_name: transformers\nlicense: apache-2.0\n")
        (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", block],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("within the certified" in done.stdout) != (folder.name == "text-gpt2")
