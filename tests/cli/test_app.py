"""The command line: what it prints, what it refuses, and how."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import iceform
from iceform import LOSSES, GradientStep, PrecisionError, cli
from iceform.arithmetic import at_most
from iceform.cli.app import app
from iceform.cli.planning import other_regime

ROOT = Path(__file__).parents[2]
SIZES = ["--dim", "3", "--samples", "5"]


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})


def refused(*arguments: str) -> str:
    """The one line that a refusal prints."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_plan_prints_the_numbers_of_the_plan(loss):
    result = run("plan", *SIZES, "--eps", "1e-5", "--loss", loss)
    assert result.exit_code == 0, result.output
    step = GradientStep(loss, dim=3, samples=5, eps=1e-5)
    for size in ("grid_tokens", "tokens", "features", "head_dim", "heads", "parameters"):
        assert f" {step.plan.to_dict()[size]:,} " in result.stdout, size
    assert f"{step.certificate:.2e}" in result.stdout
    for name, value in step.certificate.terms.items():
        assert name in result.stdout
        assert at_most(value, ".2e") in result.stdout
    assert "hard (the paper's)" in result.stdout


@pytest.mark.parametrize("loss", LOSSES)
def test_json_is_the_plan(loss):
    result = run("plan", *SIZES, "--eps", "1e-3", "--loss", loss, "--json")
    assert result.exit_code == 0, result.output
    parsed = json.loads(result.stdout)
    step = GradientStep(loss, dim=3, samples=5, eps=1e-3)
    assert parsed["plan"] == step.plan.to_dict()
    assert parsed["error"] == step.certificate.error
    assert parsed["terms"] == dict(step.certificate.terms)
    assert parsed["other"]["regime"] == "hard"
    assert parsed["other"]["plan"]["grid_tokens"] > parsed["plan"]["grid_tokens"]


def test_options_reach_the_construction():
    options = ["--eps", "1e-2", "--bound", "2", "--dtype", "float32", "--regime", "hard"]
    parsed = json.loads(run("plan", *SIZES, *options, "--json").stdout)
    step = GradientStep(
        "squared", dim=3, samples=5, eps=1e-2, bound=2.0, dtype=torch.float32, regime="hard"
    )
    assert parsed["plan"] == step.plan.to_dict()
    assert parsed["regime"] == "hard"
    assert parsed["other"]["regime"] == "spectral"


def test_a_spectral_table_that_cannot_be_had_is_left_out(monkeypatch):
    def cannot(*_):
        raise PrecisionError("no")

    monkeypatch.setattr("iceform.cli.planning._again", cannot)
    options = ["plan", *SIZES, "--eps", "1e-2", "--regime", "hard"]
    assert "The spectral regime cannot be had" in run(*options).stdout
    assert json.loads(run(*options, "--json").stdout)["other"] is None


def test_the_plan_counts_the_shortest_prompt_that_is_known():
    asked = ("plan", *SIZES, "--eps", "1e-3", "--loss")
    short = iceform.CompactStep("huber", dim=3, samples=5, eps=1e-3).plan.tokens
    assert json.loads(run(*asked, "huber", "--json").stdout)["fewest_tokens"] == short
    assert f"{short:,} tokens" in run(*asked, "huber").stdout
    assert json.loads(run(*asked, "logistic", "--json").stdout)["fewest_tokens"] is None


def test_a_small_hard_table_is_planned_exactly():
    step = GradientStep("huber", dim=2, samples=3, eps=1e-2)
    need = other_regime(step, 1e-2)
    hard = GradientStep("huber", dim=2, samples=3, eps=1e-2, regime="hard")
    assert need.plan == hard.plan
    assert need.error == hard.certificate.error


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_the_estimate_of_the_hard_regime_follows_its_law(loss, monkeypatch):
    """What is estimated without building is what would be built, to a few per cent."""
    eps = 2e-3
    step = GradientStep(loss, dim=2, samples=3, eps=eps)
    built = other_regime(step, eps).plan.grid_tokens
    monkeypatch.setattr("iceform.cli.planning._MOST_BUILT", 0)
    need = other_regime(step, eps)
    assert need.terms is None
    assert need.refusal is None
    assert need.plan.grid_tokens == pytest.approx(built, rel=0.3)


def test_a_hard_table_that_cannot_be_had_is_estimated():
    result = run("plan", *SIZES, "--eps", "1e-9")
    assert result.exit_code == 0, result.output
    assert "It cannot be had" in result.stdout
    assert "1/P" in result.stdout
    other = json.loads(run("plan", *SIZES, "--eps", "1e-9", "--json").stdout)["other"]
    assert other["estimate"]
    assert other["plan"]["grid_tokens"] > 1 << 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dim", "0", "--samples", "5"], "dim must be a whole number of at least 1"),
        (["--dim", "3", "--samples", "-1"], "samples must be a whole number of at least 1"),
        ([*SIZES, "--eps", "0"], "eps must be positive"),
        ([*SIZES, "--eps", "nan"], "eps must be positive"),
        ([*SIZES, "--eps", "1e-20"], "eps = 1e-20 cannot be certified"),
        ([*SIZES, "--eps", "1e-12", "--dtype", "float32"], "float32"),
        ([*SIZES, "--bound", "-1"], "bound must be positive"),
        ([*SIZES, "--loss", "cubed"], "no loss is called 'cubed'"),
        ([*SIZES, "--regime", "soft"], "regime must be one of spectral, hard"),
        ([*SIZES, "--dtype", "float16"], "dtype must be one of float64, float32"),
        ([*SIZES, "--regime", "hard", "--eps", "1e-9"], "the hard regime needs"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, words):
    assert words in refused("plan", *options)


@pytest.mark.parametrize(
    "arguments", [["plan"], ["plan", "--dim", "three", "--samples", "5"], ["plans"]]
)
def test_usage_errors_exit_with_2(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_version():
    assert run("--version").stdout == f"iceform {iceform.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_names_the_commands(arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    for command in ("check", "compile", "plan"):
        assert f" {command} " in result.stdout, command


def test_help_of_plan_names_every_loss_and_option():
    words = run("plan", "--help").stdout
    for word in (*LOSSES, "--eps", "--bound", "--regime", "--dtype", "--json", "1e-06"):
        assert word in words


def forget(monkeypatch, *parts):
    """As if these parts of the package had not been imported yet."""
    for part in parts:
        for name in [n for n in sys.modules if f"{n}.".startswith(f"iceform.{part}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(iceform, part, raising=False)


def uninstall(monkeypatch, module):
    """As if this module were not installed."""
    for name in [n for n in sys.modules if n.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_the_command_names_the_extra_that_is_missing(module, monkeypatch, capsys):
    forget(monkeypatch, "cli")
    uninstall(monkeypatch, module)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {module} is not installed; run pip install 'iceform[cli]'"


def test_other_missing_modules_are_not_hidden():
    assert cli.missing_extra(ModuleNotFoundError("no", name="nowhere")) is None


def test_python_m_iceform(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["iceform", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("iceform", run_name="__main__")
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"iceform {iceform.__version__}\n"


@pytest.mark.parametrize("words", [(), ("--help",), ("run", "--help"), ("run", "--seeds", "3")])
@pytest.mark.parametrize("inside", [True, False])
def test_the_studies_are_named_wherever_the_command_is_asked(words, inside, tmp_path, monkeypatch):
    """In a clone and outside of one, for help and for a run: one line that says what to type."""
    monkeypatch.chdir(ROOT if inside else tmp_path)
    assert "run python -m studies" in refused("experiments", *words)
    assert (ROOT / "studies" / "__main__.py").is_file()
    assert "experiments" not in run("--help").stdout
