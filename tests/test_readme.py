"""Every Python block and every command of the README runs."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from iceform import Interpolant
from iceform.cli.app import app
from iceform_estimators import tables

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one writes a checkpoint
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 4
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert "|emulated - exact| <=" in capsys.readouterr().out


def test_make_targets_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_inside_the_repository_lead_somewhere():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (root / link).exists(), link


def test_the_commands_run(tmp_path, monkeypatch):
    """In this process: how a fresh one starts is looked at in tests/cli."""
    monkeypatch.chdir(tmp_path)
    table = tables.ames()
    some = table.features[["area", "Overall.Qual", "Year.Built", "Bldg.Type"]]
    some.assign(price=table.target).to_csv("houses.csv", index=False)
    lines = re.findall(r"^iceform (.+)$", README, re.MULTILINE)
    lines += re.findall(r"`iceform (plan [^`]*)`", README)
    assert {line.split()[0] for line in lines} == {"list", "run", "explain", "plan"}
    for line in lines:
        done = CliRunner().invoke(app, line.split())
        assert done.exit_code == 0, f"iceform {line}: {done.output}"
        assert "token" in done.stdout or not line.startswith("plan")
    assert (tmp_path / "lasso.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "f"), [("tanh", torch.tanh), ("sin", torch.sin), ("relu", torch.relu)]
)
def test_the_numbers_of_the_table_are_what_comes_out(name, f):
    """To the digits that are printed: the paper's regime measured, ours certified."""
    row = re.search(
        rf"^\| {name}[^|]*\| (\d+) \| ([\d.e-]+) \| ([\d.e-]+) \|$", README, re.MULTILINE
    )
    assert row, name
    tokens, measured, certified = int(row[1]), float(row[2]), float(row[3])
    z = torch.linspace(-10, 10, 40_001, dtype=torch.float64)
    hard = Interpolant.hard(f, -10, 10, cells=tokens - 1)
    assert float((hard(z) - f(z)).abs().max()) == pytest.approx(measured, rel=0.06)
    ours = Interpolant.fit(f, -10, 10, tokens=tokens)
    assert ours.error <= 1.5 * certified
    assert ours.error >= 0.5 * certified
    assert ours.kind == "proven"


ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# Which install, of those that the README names, each of its blocks is promised to run in.
NEEDS = {"": (0, 2), "export": (0, 1, 2), "web": (0, 2), "tables": (0, 2, 3), "sklearn": (0, 2, 3)}


def test_every_install_that_is_named_is_tried():
    named = set(re.findall(r"pip install '?\.(?:\[(\w+)\])?'?", README))
    assert named == set(NEEDS)
    assert {number for each in NEEDS.values() for number in each} == set(range(len(BLOCKS)))


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
@pytest.mark.parametrize("extra", NEEDS)
def test_blocks_run_in_a_clean_environment(extra, tmp_path):
    """What the README says to install is all that its blocks need."""
    if why := reached_index():
        pytest.skip(why)
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    what = f".[{extra}]" if extra else "."
    try:
        pip(python, "install", "--quiet", "-c", "constraints.txt", what)
    except subprocess.CalledProcessError as failed:
        pytest.fail(f"pip install {what}: {failed.stderr[-2000:]}")
    code = "\n\n".join(BLOCKS[number] for number in NEEDS[extra])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ICEFORM"))}
    done = subprocess.run(
        [str(python), "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=clean, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
