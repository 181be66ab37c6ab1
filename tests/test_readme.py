"""Every Python block and every command of the README runs."""

import re
import subprocess
import sys
from pathlib import Path

from iceform import tables

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "|emulated - exact| <=" in capsys.readouterr().out


def test_the_plan_command_runs():
    (command,) = re.findall(r"`iceform (plan [^`]*)`", README)
    done = subprocess.run(
        [sys.executable, "-m", "iceform", *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "token" in done.stdout


def test_make_targets_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_inside_the_repository_lead_somewhere():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (root / link).exists(), link


def test_the_commands_of_the_table_section_run(tmp_path):
    lines = re.findall(r"^iceform (.+)$", README, re.MULTILINE)
    assert any(line.startswith("run ") for line in lines)
    table = tables.ames()
    some = table.features[["area", "Overall.Qual", "Year.Built", "Bldg.Type"]]
    some.assign(price=table.target).to_csv(tmp_path / "houses.csv", index=False)
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "iceform", *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"iceform {line}: {done.stderr}"
    assert (tmp_path / "lasso.html").stat().st_size > 10_000
