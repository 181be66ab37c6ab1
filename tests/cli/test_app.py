"""The command line: what it prints, what it refuses, and how."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import iceform
from iceform import cli
from iceform.arithmetic import at_most
from iceform.cli.exits import missing_extra
from iceform.cli.planning import other_regime
from iceform.errors import PrecisionError
from iceform.expressions import LOSSES
from iceform.paper import GradientStep
from tests.cli.terminal import Shown, run

ROOT = Path(__file__).parents[2]
SIZES = ["--dim", "3", "--samples", "5"]


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


@pytest.mark.sampled(5)
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
    short = iceform.paper.CompactStep("huber", dim=3, samples=5, eps=1e-3).plan.tokens
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


def test_every_command_has_help_with_an_example():
    for name in cli.COMMANDS:
        words = run(name, "--help")
        assert words.exit_code == 0
        assert f"Example: iceform {name} " in words.stdout
        assert "--json" in words.stdout


def test_the_commands_need_nothing_beyond_the_core():
    """Each in a process in which whatever an extra brings cannot be imported."""
    extras = sorted({"typer", "rich", "matplotlib", "jinja2", "pandas", "sklearn", "scipy"})
    code = f"""
import sys
for name in {extras!r}:
    sys.modules[name] = None
from iceform.cli import main
assert main(["plan", *{SIZES!r}]) == 0
assert main([]) == 2
assert "torch" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_that_is_slow():
    code = "import sys\nfrom iceform.cli import main\nmain([])\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_named(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError("no", name="transformers.models")

    monkeypatch.setattr(cli.COMMANDS["check"], "main", missing)
    assert refused("check") == (
        "error: transformers is not installed; run pip install 'iceform[export]'"
    )


def test_an_interrupt_is_one_line_and_its_own_status(monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.COMMANDS["plan"], "main", stopped)
    result = run("plan")
    assert (result.exit_code, result.stderr) == (130, "interrupted: nothing was written\n")


def test_a_package_adds_a_command(monkeypatch):
    def added(words):
        print(*words)
        return 7

    class Added:
        name, value, dist = "shout", "nowhere:shout", None

        @staticmethod
        def load():
            return added

    def entry_points(group, name=None):
        assert group == "iceform.commands"
        return [Added] if name in (None, "shout") else []

    monkeypatch.setattr(cli, "entry_points", entry_points)
    assert run("shout", "a", "b") == Shown(7, "a b\n", "")
    assert " shout " in run("--help").stdout


@pytest.mark.parametrize(("name", "package"), cli.PACKAGES.items())
def test_a_command_of_a_package_that_is_not_installed_names_it(name, package, monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda **_: [])
    for words in ((), ("--help",)):
        assert refused(name, *words) == (
            f"error: iceform {name} is in a package: pip install {package}"
        )


def test_other_missing_modules_are_not_hidden():
    assert missing_extra(ModuleNotFoundError("no", name="nowhere")) is None


def test_python_m_iceform(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["iceform", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("iceform", run_name="__main__")
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"iceform {iceform.__version__}\n"


@pytest.mark.parametrize("words", [(), ("--help",), ("run", "--help"), ("run", "--seeds", "3")])
def test_commands_that_are_gone_say_what_to_do_instead(words, monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda **_: [])
    assert "run python -m studies" in refused("experiments", *words)
    assert (ROOT / "studies" / "__main__.py").is_file()
    assert "pandas.read_csv('FILE').info()" in refused("inspect", *words)
    assert not {"experiments", "inspect"} & set(run("--help").stdout.split())
