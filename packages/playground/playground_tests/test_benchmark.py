"""The playground's benchmark, in short: only documented answers, and bounded memory."""

import json

import pytest

from benchmarks.playground import DOCUMENTED, fits, load, main, mixture, percentiles, serve, swaps


@pytest.mark.slow
def test_many_clients_get_documented_answers_alone(capsys):
    names = ["ridge", "kernel"]
    with serve("--workers", "1", "--queue", "2") as server:
        swapped = swaps(server, fits(names, 20))
        loaded = load(server, mixture(names, 20), clients=8, seconds=3)
    assert [each.algorithm for each in swapped] == names
    assert all(0 < each.median <= each.largest for each in swapped)
    assert loaded.undocumented() == []
    assert set(loaded.statuses) <= DOCUMENTED
    assert {200, 429} <= set(loaded.statuses), "eight clients do not fit into three places"
    assert loaded.memory["start"] <= loaded.memory["peak"] < 4 << 30


def test_percentiles():
    found = percentiles([float(i) for i in range(100, 0, -1)])
    assert found == {"count": 100, "p50": 50.5, "p95": 95.0, "max": 100.0}


@pytest.mark.slow
def test_the_command_prints_a_table_and_keeps_it(tmp_path, capsys):
    main(["--clients", "8", "--seconds", "3", "--points", "20", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "playground.json").read_text(encoding="utf-8"))
    printed = capsys.readouterr().out
    assert all(each["algorithm"] in printed for each in kept["swaps"])
    assert kept["load"]["undocumented"] == []
    assert kept["load"]["clients"] == 8
