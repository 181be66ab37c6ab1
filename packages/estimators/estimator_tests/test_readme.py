"""The package's README: its block and its commands run."""

import re
from pathlib import Path

from iceform_estimators import tables
from iceform_estimators.command.app import command

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_block_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    assert "<=" in capsys.readouterr().out


def test_the_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = tables.ames()
    some = table.features[["area", "Overall.Qual", "Year.Built", "Bldg.Type"]]
    some.assign(price=table.target).to_csv("houses.csv", index=False)
    lines = re.findall(r"^iceform (.+)$", README, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"list", "run", "explain"}
    for line in lines:
        assert command(line.split()) == 0, f"iceform {line}"
    assert (tmp_path / "lasso.html").stat().st_size > 10_000
