"""The page's parts, one by one, against Python's."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

import iceform_playground
from iceform.computer.library import EXAMPLES
from iceform.errors import IntegrityError, ProgramError
from iceform.heads import digested
from iceform.tables import Interpolant
from iceform_playground import command, npm, program_runs
from iceform_playground.catalogue import algorithms, entries
from iceform_playground.loss_tables import losses, table_json
from iceform_playground.machine_files import machine_files, the_machine
from iceform_playground.site import catalogue
from playground_tests.conftest import hosted
from playground_tests.visit import CHROMIUM

pytestmark = pytest.mark.xdist_group("browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install it")
F64 = torch.float64


# ---------------------------------------------------------------------------------------------
# the look-up layer
# ---------------------------------------------------------------------------------------------


def some_prompts():
    machine = the_machine()
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=F64) - 1

    table = Interpolant.fit(torch.tanh, -8, 8, tokens=33)
    looked = machine.start().look_ups(table, draw(6, 5), draw(6), draw(5), draw(6))
    read = machine.start().kernel(draw(30, 2), draw(30, 1), draw(7, 2), 5.0)
    seen = torch.rand(3, 30, generator=generator) < 0.5
    hiding = machine.start().kernel(draw(30, 2), draw(30, 2), draw(3, 2), 5.0, seen=seen)
    return looked, read, hiding


def test_the_network_as_a_file_is_the_network(tmp_path):
    import onnxruntime

    for name, data in machine_files().items():
        plain = gzip.decompress(data) if name.endswith(".gz") else data
        (tmp_path / name.removesuffix(".gz")).write_bytes(plain)
    session = onnxruntime.InferenceSession(str(tmp_path / "machine.onnx"))
    network = the_machine().network
    for prompt in some_prompts():
        tokens = prompt.tokens
        (out,) = session.run(["output"], {"tokens": tokens.numpy()})
        assert float((torch.from_numpy(out) - network(tokens)).abs().max()) <= 1e-13
    # Other weights beside the same graph are another network: nothing is folded into it.
    weights = bytearray((tmp_path / "machine.weights").read_bytes())
    weights[:] = bytes(len(weights))
    (tmp_path / "machine.weights").write_bytes(weights)
    session = onnxruntime.InferenceSession(str(tmp_path / "machine.onnx"))
    (out,) = session.run(["output"], {"tokens": tokens.numpy()})
    assert not out.any()


def hashed(about: dict, weights: bytes) -> str:
    """As the page hashes what it has."""
    sha = hashlib.sha256()
    for part in about["digested"]:
        text = isinstance(part, str)
        sha.update(part.encode() if text else weights[part[0] : part[0] + part[1]])
    return sha.hexdigest()


def test_the_digest_is_of_the_bytes_that_the_page_has():
    files = machine_files()
    weights = gzip.decompress(files["machine.weights.gz"])
    assert hashed(json.loads(files["machine.json"]), weights) == the_machine().digest
    named = [piece for piece in digested(the_machine().network) if not isinstance(piece, str)]
    assert len(weights) == sum(len(data) for _, data in named)


# ---------------------------------------------------------------------------------------------
# modules of the page
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(browser: Browser) -> Iterator[Page]:
    """A page of the same host as the page's modules, which can be tried one by one."""
    with hosted(Path(iceform_playground.__file__).parent / "page") as address:
        page = browser.new_page()
        page.goto(address + "icon.svg")
        yield page
        page.close()


@needs_chromium
def test_prompts_are_written_as_python_writes_them(parts: Page):
    looked, read, hiding = some_prompts()
    layout = looked.layout
    sizes = {"dim": layout.dim, "samples": layout.samples, "tokens": layout.tokens}
    script = """async ([sizes, kind, ...given]) => {
      const prompts = await import('/prompts.js');
      const { tokens } = prompts[kind](new prompts.Layout(sizes), ...given);
      return [...tokens];
    }"""
    data = {
        "x": looked.x.tolist(), "y": looked.y.tolist(), "w": looked.w.tolist(),
        "offsets": looked.offsets.tolist(),
    }  # fmt: skip
    table = table_json(looked.table)
    assert (
        parts.evaluate(script, [sizes, "lookUps", table, data]) == looked.tokens.flatten().tolist()
    )
    for average in (read, hiding):
        data = {
            "keys": average.keys.tolist(), "biases": average.biases.tolist(),
            "values": average.values.tolist(), "points": average.points.tolist(),
            "seen": None if average.seen is None else average.seen.tolist(),
        }  # fmt: skip
        written = parts.evaluate(script, [sizes, "averages", data])
        assert written == average.tokens.flatten().tolist()


@needs_chromium
def test_losses_and_their_curvatures_are_pythons(parts: Page):
    z = torch.linspace(-4, 4, 41, dtype=F64)
    for one in losses():
        loss = one.loss
        script = """async ([name, parameters, z]) => {
          const { LOSSES } = await import('/losses.js');
          const { slope, bend } = LOSSES[name](parameters);
          return [z.map(slope), z.map(bend)];
        }"""
        slope, bend = parts.evaluate(script, [one.name, dict(one.parameters), z.tolist()])
        assert slope == pytest.approx(loss.derivative(z).tolist(), rel=1e-14, abs=1e-15), one
        assert bend == pytest.approx(loss.curvature.bend(z).tolist(), rel=1e-12, abs=1e-14), one


@needs_chromium
def test_eigenvalues_and_metrics(parts: Page):
    rows = torch.rand(20, 6, generator=torch.Generator().manual_seed(3), dtype=F64)
    matrix = rows.mT @ rows
    script = """async (matrix) => {
      const { eigen, Metric } = await import('/algebra.js');
      const { values, vectors } = eigen(matrix);
      return [values, vectors, new Metric(matrix, 20).step(matrix[0])];
    }"""
    values, vectors, step = parts.evaluate(script, matrix.tolist())
    assert values == pytest.approx(torch.linalg.eigvalsh(matrix).tolist(), rel=1e-12)
    own = torch.tensor(vectors, dtype=F64)
    apart = own @ matrix - torch.tensor(values, dtype=F64)[:, None] * own
    assert float(apart.abs().max()) < 1e-12
    assert step == pytest.approx([1.0, *[0.0] * 5], abs=1e-11)


@needs_chromium
def test_features_look_ups_and_links(parts: Page):
    x = torch.linspace(-1, 1, 7, dtype=F64)
    script = """async ([x, coef]) => {
      const { linear } = await import('/model.js');
      return x.map((at) => linear('curve', coef.length, coef, 0.25)(at, 0));
    }"""
    coef = [0.5, -1.0, 2.0, 0.125]
    # Legendre's polynomials as their textbook has them
    p = [x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    exact = 0.25 + sum(c * part for c, part in zip(coef, p, strict=True))
    assert parts.evaluate(script, [x.tolist(), coef]) == pytest.approx(exact.tolist(), rel=1e-12)
    table = Interpolant.fit(torch.tanh, -4, 4, tokens=33)
    z = [-4.0, -0.3, 0.0, 2.7]
    script = """async ([table, z]) => {
      const { lookUp } = await import('/model.js');
      return z.map((at) => lookUp(table, at));
    }"""
    ours = table(torch.tensor(z, dtype=F64)).tolist()
    assert parts.evaluate(script, [table_json(table), z]) == pytest.approx(ours, abs=1e-12)
    script = """async (points) => {
      const { packPoints, unpackPoints } = await import('/state.js');
      return unpackPoints(packPoints(points));
    }"""
    points = [{"x": i / 10 - 1, "y": 1 - (i % 7) / 3.5, "group": i % 2} for i in range(21)]
    for sent, back in zip(points, parts.evaluate(script, points), strict=True):
        assert back == pytest.approx(sent, abs=5.1e-4)


# ---------------------------------------------------------------------------------------------
# what is computed when the page is built
# ---------------------------------------------------------------------------------------------


def test_what_the_page_offers():
    offer = catalogue()
    assert [one["name"] for one in offer["algorithms"]] == list(entries())
    (quantile,) = (one for one in algorithms() if one["name"] == "quantile")
    assert quantile["objective"].endswith("; alpha = 0"), "what no slider sets is said"
    assert {one["name"] for one in offer["programs"]} == set(program_runs.PROGRAMS)
    assert offer["machine"]["digest"] == the_machine().digest
    tabled = {one.algorithm for one in losses()}
    assert {name for name, entry in entries().items() if entry.descends} <= tabled


def test_a_stored_run_is_the_trace():
    stored = program_runs.program_run("least_squares")
    answer, example = stored["answer"], EXAMPLES["least_squares"]
    program = example.compile()
    trace = program_runs.the_computer().trace(program, example.X, example.y, steps=3)
    instructions = list(trace.prompt.assembly.instructions)
    executed = [instructions[step["instruction"]] for step in answer["cycles"]]
    assert executed == trace.instructions
    memory = {v["name"]: v["start"] for v in answer["variables"]}
    for cycle in range(trace.cycles + 1):
        for name, rows in memory.items():
            exact = trace.memory[name][cycle, :, : trace.prompt.assembly.width]
            ours = torch.tensor(rows, dtype=F64).expand_as(exact)
            torch.testing.assert_close(ours, exact, rtol=1e-5, atol=0)
        if cycle < trace.cycles:
            memory |= answer["cycles"][cycle]["changed"]
    assert answer["off"] <= answer["certificate"]["error"] + 1e-14, "float64 rounds too"
    assert answer["digest"] == trace.network.digest
    assert answer["parameters"]["steps"] == 3
    for layer, seen in zip(stored["cycles"][6]["layers"], trace.layers(6), strict=True):
        assert layer["layer"] == seen.layer
        for head in layer["heads"]:
            for row, query in zip(head["weights"], head["queries"], strict=True):
                exact = seen.heads[head["name"]][seen.roles.index(query)]
                kept = [exact[seen.roles.index(key)].item() for key in head["keys"]]
                assert row == pytest.approx(kept, rel=1e-5, abs=1e-300)


def test_without_npm_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    package = npm.PACKAGES[0]
    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    with pytest.raises(ProgramError, match=r"npm is missing.*install Node.js, or put the file"):
        package.fetch(tmp_path)
    archive = tmp_path / f"{package.name}-{package.version}.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(IntegrityError, match="is not onnxruntime-web"):
        package.fetch(tmp_path)
    assert not archive.exists(), "so that the next time fetches it"


# ---------------------------------------------------------------------------------------------
# iceform play
# ---------------------------------------------------------------------------------------------


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        command.main(words)
    assert left.value.code == 2
    said: str = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_a_page_that_is_not_built_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "BUILT", tmp_path)
    assert "python -m iceform_playground.site" in refused(capsys, "--no-open")


def test_a_port_that_is_taken_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "index.html").write_text("here", encoding="utf-8")
    monkeypatch.setattr(command, "BUILT", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"port {port} of 127.0.0.1" in refused(capsys, "--port", str(port), "--no-open")
    assert "--port 0" in refused(capsys, "--port", "70000", "--no-open")


def test_play_serves_the_page_and_opens_a_browser(tmp_path, monkeypatch, capsys):
    from http.server import ThreadingHTTPServer
    from urllib.request import urlopen

    (tmp_path / "index.html").write_text("here", encoding="utf-8")
    monkeypatch.setattr(command, "BUILT", tmp_path)
    with hosted(tmp_path) as address, urlopen(address) as reply:
        assert reply.read() == b"here"
    opened: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)

    def interrupted(server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    assert command.main(["--port", "0"]) == 0
    assert opened[0] in capsys.readouterr().out
    assert opened[0].startswith("http://127.0.0.1:")
    assert command.main(["--port", "0", "--no-open"]) == 0
    assert len(opened) == 1
