"""``iceform run``, ``list`` and ``explain``: answers, refusals, files, signals."""

import contextlib
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from iceform import cli
from iceform.arithmetic import at_most
from iceform.errors import IntegrityError, ProgramError
from iceform.heads import LookUpLayout
from iceform_estimators.algorithms import kinds, named
from iceform_estimators.command import app
from iceform_estimators.command.app import all_options, command
from iceform_estimators.tables import _write_ames, table_from
from tests.conformance import WRITES

DOCS = Path(__file__).parents[4] / "docs" / "estimators.md"
NAMES = [kind.name for kind in kinds()]
TARGETS = {"regression": "rent", "classification": "let", "decomposition": None}

# What scikit-learn's own stopping rules leave, relative to the largest coefficient: Newton and
# coordinate descent go on to rounding, lbfgs does not.
PEER_ACCURACY = {"huber": 1e-4}
NEWTON_ACCURACY = 1e-7


def run(*arguments: str):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = command([str(a) for a in arguments])
    said = {"stdout": out.getvalue(), "stderr": err.getvalue()}
    return SimpleNamespace(exit_code=status, output="".join(said.values()), **said)


def done(*arguments: str):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str) -> str:
    """The one line that a refusal prints."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def flats(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size, floor = rng.uniform(30, 120, rows), rng.integers(0, 6, rows)
    quarter = rng.choice(["north", "south", "old town"], rows)
    rent = 9 * size + 20 * floor + 150 * (quarter == "old town") + rng.normal(0, 40, rows)
    let = np.where(rent + rng.normal(0, 150, rows) > rent.mean(), "late", "soon")
    frame = pd.DataFrame({"size": size, "floor": floor, "quarter": quarter, "rent": rent})
    frame["let"], frame["viewings"] = let, rng.poisson(np.exp(3 - size / 60))
    frame.loc[3, "size"], frame.loc[5, "quarter"] = np.nan, None
    return frame


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "flats.csv"
    flats().to_csv(path, index=False)
    return path


def asked(name: str, data: Path) -> list[str]:
    entry = named(name)
    target = "viewings" if name == "poisson" else TARGETS[entry.task]
    others = {"rent", "let", "viewings"} - {target}
    drops = [word for other in sorted(others) for word in ("--drop", other)]
    return ["run", name, "--data", str(data), *(["--target", target] if target else []), *drops]


# ---------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("backend", ["fused", "literal"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_changed_weights_are_refused(write, backend, data, monkeypatch):
    build = LookUpLayout.build

    def changed(*sizes):
        made = build(*sizes)
        write(made)
        return made

    monkeypatch.setattr(LookUpLayout, "build", changed)
    assert "weights were changed" in refused(*asked("ridge", data), "--backend", backend)


@pytest.mark.parametrize("name", NAMES)
def test_every_program_runs_and_agrees_with_scikit_learn(name, data):
    entry = named(name)
    found = json.loads(done(*asked(name, data), "--json").stdout)
    assert found["data"]["rows"]["train"] == 48
    assert found["data"]["rows"]["test"] == 12
    assert re.fullmatch("[0-9a-f]{64}", found["digest"])
    assert found["attestation"]["weights"] == found["attestation"]["expected"] == found["digest"]
    assert {line["where"] for line in found["ledger"]} >= {"prompt", "host"}
    peer = found["scikit_learn"]
    if entry.peer is None:
        assert peer is None
        return
    assert peer["class"] == entry.peer.path
    assert found["scores"].keys() == peer["scores"].keys()
    if entry.peer.differs:
        return
    assert found["certified_error"] is not None
    if peer["coefficient_distance"] is None:
        assert peer["prediction_distance"] <= found["certified_error"] + 1e-9
        return
    largest = max(map(abs, found["coefficients"].values()))
    allowed = found["certified_error"] + PEER_ACCURACY.get(name, NEWTON_ACCURACY) * largest
    assert peer["coefficient_distance"] <= allowed, (peer["coefficient_distance"], allowed)


def test_the_screen_says_what_the_json_says(data):
    shown = done(*asked("ridge", data)).stdout
    found = json.loads(done(*asked("ridge", data), "--json").stdout)
    for words in (
        "48 to learn from, 12 to test",
        "centred and scaled",
        at_most(found["certified_error"], ".2e"),
        found["digest"][:16],
        f"{found['scores']['R²']:,.6g}",
        "1 missing number",
    ):
        assert words in shown, words
    for name in found["coefficients"]:
        assert name in shown


def test_options_reach_the_program(data):
    weak = json.loads(done(*asked("lasso", data), "--alpha", "0.1", "--json").stdout)
    strong = json.loads(done(*asked("lasso", data), "--alpha", "50", "--json").stdout)
    assert weak["options"] == {"alpha": 0.1}
    small, large = (sum(abs(v) for v in found["coefficients"].values()) for found in (strong, weak))
    assert small < large
    assert any(value == 0 for value in strong["coefficients"].values())


@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_another_program_is_refused(name, data):
    entry = named(name)
    every = all_options()
    for option in sorted(set(every) - set(entry.options())):
        value = "uniform" if option == "weights" else "whiten" if option == "precondition" else "3"
        line = refused(*asked(name, data), every[option].flag, value)
        assert f"{name} has no {every[option].flag}; it has --" in line


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ridge", ["--alpha", "-1"], "alpha"),
        ("knn", ["--n-neighbors", "1000"], "n_neighbors must be between 1 and 48"),
        ("pca", ["--n-components", "99"], "n_components must be between 1 and"),
        ("ridge", ["--test-share", "1.5"], "share of test rows"),
        ("ridge", ["--unknown", "guess"], "unknown must be one of error, ignore"),
        ("ridge", ["--device", "abacus"], "device 'abacus' cannot be used"),
        ("ridge", ["--device", "meta"], "meta"),
        ("ridge", ["--eps", "0"], "eps must be positive"),
        ("ridge", ["--eps", "1e-30"], "is the error that can be certified"),
        ("knn", ["--eps", "1e-300"], "is the error that can be certified"),
        ("lasso", ["--drop", "sise"], "no column 'sise'; did you mean 'size'?"),
        ("lasso", ["--new", "nowhere.csv"], "nowhere.csv does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(name, options, words, data, tmp_path):
    out = tmp_path / "out.csv"
    assert words in refused(*asked(name, data), *options, "--predictions", out)
    assert list(tmp_path.iterdir()) == []


def test_eps_is_reached_or_refused(data):
    found = json.loads(done(*asked("huber", data), "--tol", "1e-2", "--json").stdout)
    loose = found["certified_error"]
    eps = str(loose / 10) if loose is not None else "1e-3"
    tight = json.loads(done(*asked("huber", data), "--eps", eps, "--json").stdout)
    assert tight["certified_error"] <= float(eps)
    line = refused(*asked("ridge", data), "--eps", "1e-30")
    best = float(re.search(r"([0-9.e-]+) is the error", line)[1])
    assert json.loads(done(*asked("ridge", data), "--eps", str(best * 1.1), "--json").stdout)


def test_names_of_programs():
    assert named("Elastic_Net").name == "elastic-net"
    with pytest.raises(ProgramError, match=r"did you mean ridge\?"):
        named("rigde")
    with pytest.raises(ProgramError, match="there are elastic-net, expectile"):
        named("zzz")
    assert "no algorithm is called 'rigde'" in refused("run", "rigde", "--data", "x.csv")
    assert "no algorithm is called 'rigde'" in refused("explain", "rigde")


def test_the_records_name_what_exists():
    import importlib

    import iceform_estimators as in_context

    for kind in kinds():
        assert getattr(in_context, kind.estimator).algorithm is kind
        if kind.peer is not None:
            module, _, name = kind.peer.path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), kind.peer.path


def test_a_command_is_the_one_that_is_given(capsys, monkeypatch):
    """Whatever the process was started with."""
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert cli.main(["list", "--json"]) == 0
    assert "algorithms" in json.loads(capsys.readouterr().out)
    assert cli.main(["inspect", "houses.csv"]) == 2
    assert "iceform inspect is gone" in capsys.readouterr().err


def test_the_list(data):
    shown = done("list").stdout
    parsed = json.loads(done("list", "--json").stdout)
    assert [p["name"] for p in parsed["algorithms"]] == NAMES
    for program in parsed["algorithms"]:
        assert f" {program['name']} " in shown
        assert set(program["options"]) <= {o.flag for o in all_options().values()}


# ---------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty; a table needs a header and rows"),
        ("a,y\n1,low\n2,high\n3,low\n4,high\n5,low\n", "holds text ('low' in row 1), a regression"),
        ("a,y\n7,1\n7,2\n7,3\n7,4\n7,5\n", "no features left: 'a' (constant: always 7"),
        ("a,y\n1,7\n2,7\n3,7\n4,7\n5,7\n", "the target column 'y' of bad.csv is always 7"),
        ("a,y\n1,2\n2,3\n", "leave fewer than 2 to learn from"),
        (b"\xff\x01\x02", "neither Parquet nor CSV in UTF-8: byte 0 is 0xff"),
    ],
)
def test_bad_files_leave_nothing_behind(content, words, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    outputs = ["--report", tmp_path / "r.html", "--predictions", tmp_path / "p.csv"]
    line = refused("run", "ridge", "--data", path, "--target", "y", *outputs)
    assert words in line
    assert list(tmp_path.iterdir()) == [path]


def test_bad_paths(tmp_path):
    assert "is a directory" in refused("run", "ridge", "--data", tmp_path, "--target", "y")
    line = refused("run", "ridge", "--data", tmp_path / "no.csv", "--target", "y")
    assert "does not exist" in line


def test_an_unknown_category(tmp_path):
    frame = pd.DataFrame({"t": ["a", "b"] * 10, "n": np.arange(20.0), "y": np.arange(20.0) ** 2})
    frame.to_csv(tmp_path / "old.csv", index=False)
    pd.DataFrame({"t": ["a", "mauve"], "n": [1, 2]}).to_csv(tmp_path / "new.csv", index=False)
    ask = ["run", "ridge", "--data", tmp_path / "old.csv", "--target", "y", "--new"]
    ask += [tmp_path / "new.csv", "--predictions", tmp_path / "p.csv"]
    line = refused(*ask)
    for words in ("'t' of new.csv", "'mauve'", "row 2", "known are a, b", "--unknown ignore"):
        assert words in line
    assert not (tmp_path / "p.csv").exists()
    shown = done(*ask, "--unknown", "ignore").stdout
    assert "t = mauve: zeros" in shown
    written = pd.read_csv(tmp_path / "p.csv")
    assert written["part"].value_counts().to_dict() == {"test": 4, "new": 2}


def test_columns_that_say_nothing_are_left_out_and_named(tmp_path):
    frame = pd.DataFrame({"c": 3, "id": [f"k{i}" for i in range(20)], "n": np.arange(20.0)})
    frame["y"] = frame["n"] * 2 + np.sin(frame["n"])
    _, test = table_from(frame, "y").split(0.2, 0, None)
    frame["late"] = 5
    frame.loc[int(test.rows[0]) - 1, "late"] = 4  # the one other value is in a test row
    frame.to_csv(tmp_path / "c.csv", index=False)
    ask = ["run", "ridge", "--data", tmp_path / "c.csv", "--target", "y"]
    shown = done(*ask).stdout
    assert re.search(r"left out: c +constant: always 3", shown)
    assert re.search(r"left out: id +an identifier", shown)
    assert re.search(r"left out: late +constant: always 5", shown)
    found = json.loads(done(*ask, "--json").stdout)
    assert list(found["coefficients"]) == ["n"]


def test_targets_of_classifiers(tmp_path):
    frame = pd.DataFrame({"n": np.arange(30.0), "y": np.arange(30), "k": [0, 1, 2] * 10})
    frame.to_csv(tmp_path / "k.csv", index=False)
    ask = ["--data", tmp_path / "k.csv", "--target"]
    assert "30 different values in 30 rows, which are no classes" in refused(
        "run", "logistic", *ask, "y"
    )
    found = json.loads(done("run", "svm", *ask, "k", "--json").stdout)
    assert {name.partition(": ")[0] for name in found["coefficients"]} == {"0", "1", "2"}
    assert "needs a --target; k.csv has the columns n, y, k" in refused(
        "run", "ridge", "--data", tmp_path / "k.csv"
    )


# ---------------------------------------------------------------------------------------- files


def test_predictions_are_those_of_the_test_rows(data, tmp_path):
    frame = flats()
    frame.loc[[7, 8], "rent"] = np.nan
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    ask = asked("ridge", tmp_path / "gaps.csv")
    for name, reader in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        found = json.loads(done(*ask, "--predictions", tmp_path / name, "--json").stdout)
        written = reader(tmp_path / name)
        assert list(written) == ["row", "part", "actual", "predicted"]
        assert written["part"].value_counts().to_dict() == {"test": 12, "unlabelled": 2}
        tested = written[written["part"] == "test"]
        np.testing.assert_array_equal(frame["rent"][tested["row"] - 1], tested["actual"])
        assert written[written["part"] == "unlabelled"]["row"].tolist() == [8, 9]
        rmse = np.sqrt(((tested["actual"] - tested["predicted"]) ** 2).mean())
        assert rmse == pytest.approx(found["scores"]["RMSE"], rel=1e-12)
        assert found["files"] == {"predictions": str(tmp_path / name)}


def test_components_are_written_for_all_rows(data, tmp_path):
    done(*asked("pca", data), "--n-components", "2", "--predictions", tmp_path / "p.csv")
    written = pd.read_csv(tmp_path / "p.csv")
    assert list(written) == ["row", "part", "component_1", "component_2"]
    assert sorted(written["row"]) == list(range(1, 61))


class Page(HTMLParser):
    """What a page refers to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "srcset", "href")]

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("name", ["ridge", "lasso", "logistic", "knn", "svm", "pca"])
def test_the_page_is_whole(name, data, tmp_path):
    out = tmp_path / "deep" / "page.html"
    found = json.loads(done(*asked(name, data), "--report", out, "--json").stdout)
    page = Page(out.read_text(encoding="utf-8"))
    assert page.links
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    text = " ".join(" ".join(page.words).split())
    assert found["digest"] in text
    assert f"iceform run {name} --data {data}" in text
    assert named(name).objective in text
    assert re.search(r"\|(found - optimal|emulated - exact)\| <=", text)
    for line in found["preparation"]:
        assert line["done"] in text
    for coefficient in found["coefficients"]:
        assert coefficient in text
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]


def test_the_command_on_the_page_does_it_again(data, tmp_path):
    out = tmp_path / "page.html"
    ask = [*asked("elastic-net", data), "--alpha", "2", "--no-scale", "--seed", "4", "--json"]
    first = json.loads(done(*ask, "--report", out, "--text", "floor").stdout)
    (command,) = re.findall(r'<pre class="command">(.*?)</pre>', out.read_text(encoding="utf-8"))
    again = json.loads(done(*shlex.split(command)[1:], "--json").stdout)
    assert again["coefficients"] == first["coefficients"]


def test_what_cannot_be_written_is_refused_before_any_work(data, tmp_path):
    ask = asked("ridge", data)
    assert "is a directory" in refused(*ask, "--report", tmp_path)
    assert "would overwrite the input" in refused(*ask, "--predictions", data)
    assert "another output" in refused(
        *ask, "--report", tmp_path / "x", "--predictions", tmp_path / "x"
    )
    (tmp_path / "file").write_text("")
    assert "not a directory" in refused(*ask, "--report", tmp_path / "file" / "x.html")
    assert "not a plain file" in refused(*ask, "--report", "/dev/null")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_a_folder_that_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(IntegrityError, match="is not writable"):
        app.check_targets({"report": tmp_path / "x.html"})


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_while_writing_leaves_the_old_files(failure, data, tmp_path, monkeypatch):
    old = {tmp_path / "r.html": "old page", tmp_path / "p.csv": "old table"}
    for path, content in old.items():
        path.write_text(content)
    real, seen = os.write, []

    def fail_at_the_second(handle, content):
        if handle not in seen:
            seen.append(handle)
        if len(seen) == 2:
            real(handle, content[:10])
            raise failure
        return real(handle, content)

    monkeypatch.setattr(os, "write", fail_at_the_second)
    result = run(
        *asked("ridge", data), "--report", tmp_path / "r.html", "--predictions", tmp_path / "p.csv"
    )
    interrupted = isinstance(failure, KeyboardInterrupt)
    assert result.exit_code == (130 if interrupted else 2)
    assert ("interrupted" if interrupted else "No space left") in result.stderr
    assert result.stdout == ""
    monkeypatch.undo()
    assert {path: path.read_text() for path in tmp_path.iterdir()} == old


def test_a_failure_of_ours_is_not_hidden(data, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("iceform_estimators.command.running.run", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run(*asked("ridge", data))


def test_a_peer_that_fails_is_no_failure_of_ours(data, monkeypatch):
    def broken(*_, **__):
        raise ValueError("not today")

    monkeypatch.setattr("iceform_estimators.command.running.build_peer", broken)
    result = done(*asked("ridge", data), "--json")
    assert json.loads(result.stdout)["scikit_learn"] is None
    assert "warning: scikit-learn: not today" in result.stderr
    assert "scikit-learn" not in done(*asked("ridge", data)).stdout


# ---------------------------------------------------------------------------------------- processes


# As at a terminal: tests that run in the background inherit an interrupt that is ignored.
_AT_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("iceform", run_name="__main__", alter_sys=True)
"""


def started(*arguments: str, stderr) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", _AT_A_TERMINAL, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"},
    )


def read_until(descriptor: int, words: bytes, seen: io.BytesIO, seconds: float) -> bool:
    """Collect what is written to a terminal until some words appear."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            seen.write(os.read(descriptor, 4096))
        if words in seen.getvalue():
            return True
    return False


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    """A real process at a terminal, interrupted in the middle of its passes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
    frame["y"] = rng.choice(["p", "q"], 200)  # cannot be separated: the perceptron never ends
    frame.to_csv(tmp_path / "d.csv", index=False)
    terminal, other = pty.openpty()
    files = ["--report", tmp_path / "r.html", "--predictions", tmp_path / "p.csv"]
    process = started(
        "run", "perceptron", "--data", tmp_path / "d.csv", "--target", "y", "--max-passes",
        "1000000000", *files, stderr=other,
    )  # fmt: skip
    os.close(other)
    seen = io.BytesIO()
    try:
        assert read_until(terminal, b"fitting", seen, 120), seen.getvalue()
        time.sleep(0.5)
        assert process.poll() is None, "it should still be looping"
        process.send_signal(signal.SIGINT)
        drain = threading.Thread(
            target=read_until, args=(terminal, b"nothing was written", seen, 30), daemon=True
        )
        drain.start()
        out, _ = process.communicate(timeout=60)
        drain.join(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert process.returncode == 130, seen.getvalue()
    assert out == b""
    assert b"Traceback" not in seen.getvalue()
    assert b"interrupted: nothing was written" in seen.getvalue()
    assert [p.name for p in tmp_path.iterdir()] == ["d.csv"]


def test_json_is_all_there_is_on_stdout(data, tmp_path):
    process = started(*asked("ridge", data), "--json", stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["algorithm"] == "ridge"
    assert err == b""  # no terminal, no progress bar


# ------------------------------------------------------------------------------------- explaining


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_is_what_the_frozen_matrices_answer(name):
    found = json.loads(done("explain", name, "--json").stdout)
    assert found["name"] == name
    for prompt in found["prompts"]:
        if prompt["certified"] is not None:
            assert prompt["off"] <= prompt["certified"], prompt["title"]
        assert np.abs(np.subtract(prompt["answer"], prompt["exact"])).max() <= prompt["off"]
        *seen, query = prompt["tokens"]
        assert sum(token["weight"] for token in seen) == pytest.approx(1, abs=1e-9)
        assert query["w"] is not None
    titles = [prompt["title"] for prompt in found["prompts"]]
    assert ("the soft threshold" in titles) == (name in ("lasso", "elastic-net"))
    assert found["certificate"]["error"] > 0


@pytest.mark.parametrize("name", ["lasso", "logistic", "knn"])
def test_the_explanation_on_the_screen(name):
    short, full = done("explain", name).stdout, done("explain", name, "--full").stdout
    for shown in (short, full):
        assert "The frozen matrices return" in shown
        assert ("|found - optimal| <=" in shown) == (name != "knn")
    assert len(full.splitlines()) >= len(short.splitlines())


def test_explaining_own_data(data):
    found = json.loads(
        done(
            "explain", "ridge", "--data", data, "--target", "rent", "--alpha", "3", "--json"
        ).stdout
    )
    assert found["data"]["source"] == "flats.csv"
    assert found["data"]["rows"] == 60
    assert "give their file with --data" in refused("explain", "ridge", "--target", "rent")


def test_inspect_names_its_replacement():
    for words in (["houses.csv"], ["--help"], []):
        line = refused("inspect", *words)
        for part in ("iceform inspect is gone", "pandas.read_csv", "iceform run --text"):
            assert part in line


def test_what_argparse_refuses_is_one_line(data):
    assert "required: --data" in refused("run", "ridge", "--target", "rent")
    assert "invalid float value: 'much'" in refused(*asked("ridge", data), "--alpha", "much")
    assert "unrecognized arguments: --schema" in refused(
        *asked("ridge", data), "--schema", "s.toml"
    )


def test_a_reader_that_has_enough_is_no_failure():
    process = subprocess.run(
        f"{shlex.quote(sys.executable)} -m iceform list | head -1",
        shell=True, capture_output=True, check=True,
    )  # fmt: skip
    assert b"algorithm" in process.stdout
    assert process.stderr == b""


# ---------------------------------------------------------------------------------------- the page


def commands() -> list[str]:
    cells = re.findall(
        r"^%%bash\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [line.partition(" | ")[0] for cell in cells for line in cell.splitlines()]


@pytest.mark.slow
def test_every_command_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(commands()) > 4
    for line in commands():
        program, *words = shlex.split(line)
        if program == "python":
            assert words[:2] == ["-m", "iceform_estimators.tables"]
            _write_ames(*words[2:])
        elif words[0] != "plan":  # a command of the core, whose tests run it
            assert program == "iceform"
            done(*words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ames.csv", "ames.html", "ames_lasso.csv"]


def test_the_documentation_names_every_option_it_uses():
    shown = done("run", "--help").stdout + done("explain", "--help").stdout
    for core in ("compile", "check", "plan"):
        asked = [sys.executable, "-m", "iceform", core, "--help"]
        shown += subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    for flag in set(re.findall(r"(?<![\w-])--[a-z][\w-]+", DOCS.read_text(encoding="utf-8"))):
        assert flag in shown, flag


def test_a_page_bounds_no_coefficient_that_is_not_unique(tmp_path):
    """One indicator is the other's complement: only fitted values are certified then."""
    rows = [(f"{i % 7}.5", "ab"[i % 2], 3.0 * (i % 7) + i % 2 + 0.01 * i) for i in range(40)]
    (tmp_path / "d.csv").write_text(
        "x,kind,t\n" + "\n".join(f"{x},{k},{t}" for x, k, t in rows) + "\n"
    )
    ask = ("run", "lasso", "--data", tmp_path / "d.csv", "--target", "t", "--alpha", "0.001")
    said = done(*ask, "--report", tmp_path / "r.html").stdout
    page = (tmp_path / "r.html").read_text()
    assert "the coefficients are not unique" in said
    assert "fit the data as well" in page
    assert "bar as wide as its certified error" not in page
    assert "The certified line" not in page
