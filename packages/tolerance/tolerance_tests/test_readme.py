"""The package's README: its block and its commands run."""

import re
import shlex
from pathlib import Path

from iceform_tolerance.command import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_block_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})


def test_the_first_command_runs(capsys):
    line = re.search(r"^iceform tolerance (.+)$", README, re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1].replace("4 8 1024 64", "1 2 24 8"))  # smaller: it takes a minute
    assert main([*words, "--no-search"]) == 0
    assert "bfloat16" in capsys.readouterr().out
