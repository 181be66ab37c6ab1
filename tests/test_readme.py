"""Every Python block and every command of the README runs, in the install that it names."""

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = re.findall(r'^python (-c ".+?")$', README, re.MULTILINE | re.DOTALL)
EXTRAS = ["export"]  # which the README says to install


def test_python_blocks_run_in_order_and_then_the_shell(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # two write checkpoints
    assert len(BLOCKS) == 3
    namespace: dict = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "within the certified" in capfd.readouterr().out
    (line,) = SHELL
    alone = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *shlex.split(line)],
        capture_output=True, text=True, check=False, env=alone, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "s = 2.25" in done.stdout


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_inside_the_repository_lead_somewhere():
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_it_is_one_screen():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    assert len(prose.split()) <= 500


def test_every_install_that_is_named_is_tried():
    named = re.findall(r"pip install '?\.(?:\[(\w+)\])?'?", README)
    assert named == EXTRAS


def reached_index() -> str:
    """Why no packages can be installed here; empty where they can."""
    done = pip(sys.executable, "index", "versions", "python-flint", check=False)
    return "" if done.returncode == 0 else "no package index can be reached from here"


def pip(python, *words: str, check: bool = True) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True, text=True, check=check, cwd=ROOT, timeout=1800,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_blocks_run_in_a_clean_environment(extra, tmp_path):
    """What the README says to install is all that its blocks and its shell lines need."""
    if why := reached_index():
        pytest.skip(why)
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    try:
        pip(python, "install", "--quiet", "-c", "constraints.txt", f".[{extra}]")
    except subprocess.CalledProcessError as failed:
        pytest.fail(f"pip install .[{extra}]: {failed.stderr[-2000:]}")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ICEFORM"))}
    for words in (["-c", "\n\n".join(BLOCKS)], *map(shlex.split, SHELL)):
        done = subprocess.run(
            [str(python), *words],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=clean, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
