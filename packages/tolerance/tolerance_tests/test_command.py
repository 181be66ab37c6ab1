"""`iceform tolerance`: the table, the JSON, the exit status."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from iceform_tolerance.command import main


@pytest.fixture
def run(capsys):
    """Exit status and everything that was printed."""

    def run(*arguments):
        status = main(arguments)
        shown = capsys.readouterr()
        return SimpleNamespace(exit_code=status, output=shown.out + shown.err)

    return run


SMALL = ("--shape", "1", "2", "24", "8")


def test_the_table(run):
    done = run("--against", "sdpa", "--dtype", "bf16", "--dtype", "fp32", *SMALL)
    assert done.exit_code == 0, done.output
    for word in ("bfloat16", "float32", "error", "bound", "ratio", "violations", "search"):
        assert word in done.output


def test_the_json(run):
    done = run("--dtype", "fp16", *SMALL, "--json", "--kv-heads", "1")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    (row,) = found["rows"]
    assert row["violations"] == 0
    assert 0 < row["ratio"] <= 1
    assert row["error"] <= row["bound"]
    assert row["empty_rows"] == "zeros"
    assert 1 <= found["search"][0]["factor"] <= 50


def test_an_attack(run):
    done = run("--attack", "300", "--dtype", "bf16", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["attack"]
    assert sum(row["cases"] for row in rows) >= 300
    assert {row["kernel"] for row in rows} == {"simulated", "sdpa"}


def no_scale(q, k, v, attn_mask=None, is_causal=False, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=1.0,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def test_a_wrong_kernel_of_ones_own_breaks_its_bound(run):
    done = run("--against", f"{__name__}:no_scale", *SMALL, "--no-search", "--json")
    assert done.exit_code == 1, done.output
    assert json.loads(done.output)["rows"][0]["violations"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--against", "magic"), "no kernel is called 'magic'"),
        (("--against", "nowhere:at_all"), "cannot be imported"),
        (("--dtype", "int4"), "--dtype must be one of"),
        (("--device", "tpu"), "--device must be cpu or cuda"),
        (("--shape", "1", "1", "0", "8"), "at least 1"),
        (("--kv-heads", "0"), "kv_heads must be"),
        (("--kv-heads", "3", "--shape", "1", "4", "16", "8"), "cannot share 3"),
        (("--attack", "0"), "--attack must be"),
    ],
)
def test_what_cannot_be_run_is_one_line(run, arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.strip().count("\n") == 0


def test_the_benchmark_runs(tmp_path):
    saved = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.tolerance", "attack", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--cases", "200", "--out", saved],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(saved.read_text())
    assert found["attack"]["violations"] == 0
    assert found["attack"]["cases"] >= 200
