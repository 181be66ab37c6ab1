"""What campaigns count: wrong words where they are, whatever the batches, workers and ways."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks import text, text_speed
from iceform.targets.text.campaign import Campaign, DrawnRun, drawn_runs, forced, generated
from iceform.targets.text.machine import TextComputer

LENGTH = (0, 512)


@pytest.fixture(scope="module")
def small():
    return TextComputer(positions=512, labels=20, scalars=20, arrays=2, indices=2, cells=8)


@pytest.fixture(scope="module")
def network(small):
    return small.model()


def altered(runs: list[DrawnRun], at: int) -> list[DrawnRun]:
    """The same, but for one word of each run that should follow."""
    out = []
    for run in runs:
        tokens = list(run.tokens)
        tokens[at - run.count] += 1
        out.append(DrawnRun(tuple(tokens), run.count))
    return out


def test_every_wrong_word_is_counted_and_its_program_named(small, network):
    runs = drawn_runs(small.sizes, "3", 6, LENGTH)
    right, parts, wrong = Campaign(), Campaign(), Campaign()
    forced(network, runs, right)
    forced(network, runs, parts, at_once=7)
    assert right == parts
    assert (right.wrong, right.failed, right.tokens) == (0, [], sum(run.count for run in runs))
    last = [(*run.tokens[:-1], run.tokens[-1] + 1) for run in runs]
    spoilt = [DrawnRun(t, r.count) for t, r in zip(last, runs, strict=True)]
    forced(network, [*runs[:3], *spoilt[3:]], wrong)
    assert (wrong.wrong, wrong.failed) == (3, [run.prompt for run in runs[3:]])
    assert wrong.margin is not None
    assert wrong.margin < -127


def test_generated_runs_are_compared_to_their_last_word(small, network):
    runs = drawn_runs(small.sizes, "4", 4, LENGTH)
    right, wrong = Campaign(), Campaign()
    generated(network, runs, right)
    generated(network, altered(runs, 1), wrong)
    assert (right.wrong, wrong.wrong) == (0, len(runs))


@pytest.mark.parametrize("way", ["graph", "eager", "dynamic"])
def test_each_way_of_decoding_is_compared_in_the_very_run(small, network, way, monkeypatch):
    monkeypatch.setattr(text_speed, "TOGETHER", 1)
    monkeypatch.setattr(text_speed, "ALONE", 1)
    networks = {"sdpa": network, "eager": small.model(attention="eager")}
    runs = text_speed.inputs(small, 3)
    found = text_speed.measured(networks, way, runs)
    assert (found["wrong"], found["compared"]) == (0, 4 * 3 * runs[0].count)
    assert text_speed.measured(networks, way, altered(runs, 4))["wrong"] == 4 * 3


def test_a_way_that_fails_does_not_end_the_others(small, tmp_path, monkeypatch):
    monkeypatch.setattr(text_speed, "CPU", (("no such way", 1), ("dynamic", 1)))
    monkeypatch.setattr(text_speed, "generating", lambda *_, way: 1 / 0)
    out = tmp_path / "speed.json"
    assert text_speed.gpu_speed(small, {}, "cpu", 60, out) == 0
    assert out.read_text().count("ZeroDivisionError") == 2


@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_workers(small):
    asked = (small.sizes, 5, 2, LENGTH)
    alone = list(islice(text.drawn(*asked, 0, 0), 20))
    assert list(islice(text.drawn(*asked, 0, 2), 20)) == alone
    assert list(islice(text.drawn(*asked, 11, 1), 9)) == alone[11:]  # as after a break
