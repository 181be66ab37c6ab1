"""``iceform check``: certified and measured, and what is refused."""

import json

import pytest
import torch

from tests.cli import terminal

pytest.importorskip(
    "transformers", reason="stock targets need transformers"
).utils.logging.disable_progress_bar()


def run(*words):
    return terminal.run("check", *words)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    from iceform import targets

    folder = tmp_path_factory.mktemp("checked")
    targets.write("gpt2", targets.LinearDescent(2, 3, positions=32, pairs=6), folder / "model")
    torch.manual_seed(0)
    rows = (2 * torch.rand(8, 3) - 1).tolist()
    lines = ["a,b,label", *(",".join(map(str, row)) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines))
    return folder


def test_a_folder_is_checked(place):
    found = run(place / "model", "--data", place / "data.csv", "--set", "lr=0.3", "--json")
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["ok"]
    assert said["measured"] <= said["certified"] <= 1e-10
    assert said["attestation"]["weights"] == said["attestation"]["expected"]


def test_the_target_may_be_named(place):
    last, first = (
        run(place / "model", "--data", place / "data.csv", "--target", name, "--json")
        for name in ("label", "a")
    )
    assert json.loads(last.stdout)["answer"] != json.loads(first.stdout)["answer"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "none"], "no column 'none'"),
        (["--set", "lr"], "--set takes name=value"),
        (["--set", "rate=1"], "no parameter is called 'rate'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(place, words, says):
    found = run(place / "model", "--data", place / "data.csv", *words)
    assert found.exit_code != 0
    assert says in found.output
    assert "Traceback" not in found.output


def test_a_folder_that_is_none_is_refused(place, tmp_path):
    found = run(tmp_path, "--data", place / "data.csv")
    assert found.exit_code != 0
    assert "cannot be read" in found.output
