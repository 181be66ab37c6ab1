"""check: what is enclosed after a run is held to what was certified before it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import iceform as ice
from iceform import targets
from iceform.errors import IntegrityError, PrecisionError, ProgramError
from iceform.targets.checking import Checked, check
from iceform.targets.program_target import ProgramTarget

from .stock import data, descent, transformers


@pytest.fixture(scope="module")
def program():
    return ice.compile(descent, dim=2, samples=4)


@pytest.fixture(scope="module")
def albert(program, tmp_path_factory):
    return program.to("albert", tmp_path_factory.mktemp("check") / "albert", steps=1)


@pytest.mark.parametrize("wrong", [0.0, 1e6, math.nan, math.inf])
def test_a_program_checkpoint_that_answers_something_else_fails(albert, wrong, monkeypatch):
    """Whatever the network returns is not its own measure."""
    right = albert.check(*data())
    assert right.ok
    assert right.measured == right.enclosure.error <= right.certificate.error < 1e-8
    answer = torch.full_like(right.value, wrong)
    monkeypatch.setattr(ProgramTarget, "run", lambda *_, **__: answer)
    found = albert.check(*data())
    assert not found.ok
    assert "OUTSIDE" in str(found)
    distance = float((answer - right.value).abs().max())
    assert found.measured == pytest.approx(distance if math.isfinite(wrong) else math.inf)


def test_an_infinite_certificate_is_met_by_a_stated_tolerance_alone(program, albert, monkeypatch):
    endless = ice.compile(descent, dim=2, samples=4)
    known, own = endless.certify(steps=1)
    bound = replace(known, error=math.inf)
    monkeypatch.setattr(type(endless), "certified_on", lambda *_, **__: (bound, own))
    found = albert.check(*data())
    assert not found.ok
    assert "state within=" in str(found)
    assert albert.check(*data(), within=1e-9).ok
    assert not albert.check(*data(), within=1e-30).ok
    # Larger than any answer: 0 would be as near.
    largest = max(program.ranges[node].size for node in program.graph.outputs.values())
    bound = replace(known, error=largest)
    assert albert.check(*data()).certificate.error == math.inf


def test_nan_and_infinity_never_pass():
    certificate = ice.compile(descent, dim=2, samples=2).certificate
    seen = ice.certificates.Attestation("a", "a", "transformers, sdpa", literal=True)
    for bound in (1e-3, math.inf, math.nan):
        one = replace(certificate, error=bound)
        for measured in (math.nan, math.inf, 1e6):
            for tolerance in (None, 1e-3, math.inf, math.nan):
                assert not Checked(torch.ones(1), measured, one, seen, None, tolerance).ok


def test_a_rounded_step_is_held_to_a_certificate_too(program, tmp_path, monkeypatch):
    """1/3 is no float64: the folder runs the nearest, and the answer is not its own measure."""
    model = program.to("gpt2", tmp_path, steps=2)
    exact, rounded = model.check(*data()), model.check(*data(), lr=0.3)
    assert exact.ok
    assert rounded.ok
    answer = rounded.value + 1e-3
    monkeypatch.setattr(type(model.spec), "run", lambda *_, **__: answer)
    assert not model.check(*data(), lr=0.3).ok


def test_a_setting_of_decoding_is_compared_too(tmp_path):
    spec = targets.AnsweringDescent(dim=2, steps=1)
    model = targets.write("gpt2", spec, tmp_path)
    assert check(tmp_path, *data()).ok
    (tmp_path / "generation_config.json").write_text(json.dumps({"repetition_penalty": 3.0}))
    with pytest.raises(IntegrityError, match=r"repetition_penalty = 3\.0"):
        check(model.path, *data())


def test_without_ball_arithmetic_there_is_one_error_or_the_bound_from_before(
    program, albert, monkeypatch
):
    from iceform.computer import running

    monkeypatch.setattr(running, "available", lambda: False)
    for call in (
        lambda: albert.check(*data()),
        lambda: ice.Computer.for_programs([program]).run(program, *data()),
    ):
        with pytest.raises(PrecisionError, match=r"that w stays within its bounds.*python-flint"):
            call()
    plain = ice.compile(ice.algorithm(lambda x: ice.mean(x * x)), dim=2, samples=4)
    found = ice.Computer.for_programs([plain]).run(plain, data()[0])
    assert found.enclosure is None
    assert found.certificate.kind == "proven"
    assert found.certificate.error == plain.certificate.error


FOLDERS = {
    "albert": lambda p, path: p.to("albert", path),
    "weights": lambda p, path: p.to("bert", path, mode="weights"),
    "gpt2": lambda p, path: p.to("gpt2", path),
    "ids": lambda p, path: targets.write("gpt2", targets.AnsweringDescent(dim=2, steps=1), path),
    "general": lambda p, path: targets.write("bert", targets.GeneralDescent(2, 1), path),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", FOLDERS)
def test_the_card_runs_as_printed(kind, program, tmp_path, capsys, monkeypatch):
    FOLDERS[kind](program, tmp_path)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.S)
    x, y = data()
    exec(
        block, {"path": tmp_path, "X": x, "y": y, "program": program} if "program" in block else {}
    )
    assert "within" in capsys.readouterr().out


@pytest.mark.parametrize("shape", [(1, 0, 64), (2, 5, 64), (5, 64), (1, 5, 32)])
def test_what_is_no_hidden_state_is_not_read(shape):
    spec = targets.LinearDescent(2, 1)
    known = targets.ARCHITECTURES["gpt2"]
    model = targets.StockModel(Path("nowhere"), known, spec)
    wide = tuple(spec.design.hidden if n == 64 else n for n in shape)
    with pytest.raises(ice.errors.ShapeError, match="last_hidden_state is"):
        model.read(torch.zeros(wide, dtype=torch.float64))


def test_what_are_no_ids_is_not_read():
    spec = targets.AnsweringDescent(2, 1)
    model = targets.StockModel(Path("nowhere"), targets.ARCHITECTURES["gpt2"], spec)
    for wrong in (torch.zeros(1, 0).long(), torch.zeros(1, 3), torch.zeros(1, 3, 5).long()):
        with pytest.raises(ice.errors.ShapeError, match="generated ids are whole numbers"):
            model.read(wrong)


@pytest.mark.parametrize("kind", ["albert", "weights", "gpt2"])
def test_a_folder_reads_alike_however_it_was_opened(kind, program, tmp_path):
    x, y = data()
    written, opened = FOLDERS[kind](program, tmp_path), targets.load(tmp_path)
    assert written.spec == opened.spec
    network = transformers.AutoModel.from_pretrained(tmp_path)
    given = {} if kind == "gpt2" else {"program": program}
    prompts = written.prompt(x, y), opened.prompt(x, y, **given)
    assert torch.equal(*prompts)
    with torch.no_grad():
        hidden = network(inputs_embeds=prompts[0]).last_hidden_state
    assert torch.equal(written.read(hidden), opened.read(hidden, **given))
    if given:
        with pytest.raises(ProgramError, match="pass program="):
            opened.read(hidden)
