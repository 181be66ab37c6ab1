"""Probes and transplants tell two constructions apart whose mechanism is known."""

import dataclasses

import pytest
import torch

from iceform import plots
from iceform.errors import ProgramError, ShapeError
from iceform.lab import (
    GPT2Shape,
    InContextTask,
    LabTable,
    by_context,
    compiled,
    line,
    nearest,
    probe,
    random_network,
    shifted,
    transplant,
)

SMALL = GPT2Shape(dim=2, layers=4, width=40, heads=4, inner=64, positions=24)
LARGE = GPT2Shape(dim=5, layers=8, width=128, heads=8, inner=512, positions=64)
SHAPES = [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)]
TASK = InContextTask("noisy", 2, 0.1)


def task_of(shape):
    return InContextTask("noisy", shape.dim, 0.1)


def both(shape):
    return {name: compiled(name, shape) for name in ("primal", "dual")}


def value(table, column, **where):
    (row,) = table.where(**where).rows
    return row[column]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"d{s.dim}")
def test_a_transplant_tells_primal_from_dual(shape):
    table = transplant(both(shape), task_of(shape))
    for name, other in (("primal", "dual"), ("dual", "primal")):
        assert value(table, "correlation", network=name, mechanism=name) >= 0.8
        assert abs(value(table, "correlation", network=name, mechanism=other)) <= 0.2


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"d{s.dim}")
def test_probes_find_weights_in_the_primal_network_alone(shape):
    networks, task = both(shape), task_of(shape)
    weights, prediction = (probe(networks, task, target) for target in ("w", "prediction"))
    before = shape.layers - 1  # the state that the last layer reads
    assert value(weights, "R2", network="primal", layer=before) >= 0.8
    assert value(weights, "R2", network="dual", layer=before) <= 0.2
    assert value(prediction, "R2", network="primal", layer=before) <= 0.2
    assert value(prediction, "R2", network="dual", layer=before) >= 0.8
    # Only after the examples were copied and a step was taken.
    assert value(weights, "R2", network="primal", layer=1) <= 0.2


def test_transplanting_where_nothing_is_held_moves_nothing_primal():
    table = transplant(both(SMALL), TASK, layer=0)
    assert set(table.column("correlation")) == {0.0}  # the states of a query differ in nothing


def test_a_network_is_nearest_to_its_own_algorithm():
    table = nearest(both(SMALL), TASK)
    for name in ("primal", "dual"):
        rows = table.where(network=name).rows
        assert min(rows, key=lambda row: row["distance"])["algorithm"] == "own"
        assert value(table, "distance", network=name, algorithm="own") < 0.02
    nearest_of = {
        name: min(
            (r for r in table.where(network=name).rows if "GD-4" in r["algorithm"]),
            key=lambda row: row["distance"],
        )["algorithm"]
        for name in ("primal", "dual")
    }
    assert nearest_of == {"primal": "primal GD-4", "dual": "dual GD-4"}


def test_errors_by_context_fall_and_bayes_is_below():
    table = by_context({"primal": compiled("primal", SMALL)}, TASK, prompts=1024)
    errors = {n: table.where(network=n).column("error") for n in ("primal", "Bayes")}
    assert all(a <= b * 1.02 for a, b in zip(errors["Bayes"], errors["primal"], strict=True))
    assert errors["primal"][11] < 0.2 * errors["primal"][0]
    assert errors["primal"][0] == pytest.approx(2, rel=0.15)  # nothing is known yet: |w|^2


def test_descent_fails_where_its_step_is_too_long_and_scales_with_w():
    table = shifted({"primal": compiled("primal", SMALL)}, TASK)
    share = {shift: value(table, "error", network="primal", shift=shift) for shift in
             ("as it was", "x doubled", "w doubled")}  # fmt: skip
    assert share["x doubled"] > 3 * share["as it was"]
    assert share["w doubled"] == pytest.approx(share["as it was"], rel=0.2)
    assert value(table, "error", network="Bayes", shift="x doubled") < 0.2


def test_a_line_begins_and_ends_with_its_networks():
    first, second = random_network(SMALL), compiled("primal", SMALL)
    table = line(first, second, TASK, points=3, prompts=64)
    x, y, clean, _ = TASK.draw(64, 12, torch.Generator().manual_seed(0))
    for at, network in ((0.0, first), (1.0, second)):
        error = float((network(x, y) - clean).square().mean())
        assert value(table, "error", at=at) == pytest.approx(error, rel=1e-5)
    assert table.column("at") == [0.0, 0.5, 1.0]


def test_tables_are_printed_stored_and_drawn():
    table = transplant({"dual": compiled("dual", SMALL)}, TASK, prompts=32)
    assert LabTable.from_dict(table.to_dict()) == table
    head, columns, row = str(table).splitlines()
    assert head == "transplants (correlation by mechanism)"
    assert columns.split() == ["network", "primal", "dual"]
    assert row.startswith("dual ")
    bars = plots.lab_table(table).axes[0]
    assert len(bars.patches) == 2
    assert bars.patches[1].get_height() == pytest.approx(value(table, "correlation",
                                                               mechanism="dual"))  # fmt: skip
    drawn = plots.lab_table(by_context({"dual": compiled("dual", SMALL)}, TASK, prompts=8)).axes[0]
    assert [line.get_label() for line in drawn.lines] == ["dual", "Bayes"]
    assert list(drawn.lines[0].get_xdata()) == list(range(12))


def test_bad_questions_are_refused():
    networks = both(SMALL)
    for wrong, error, said in (
        (lambda: probe(networks, TASK, "b"), ProgramError, "w, prediction"),
        (lambda: probe(networks, TASK, prompts=100), ShapeError, "at least 160 prompts"),
        (lambda: probe(networks, InContextTask("sparse", 2)), ProgramError, "not sparse"),
        (lambda: transplant(networks, TASK, layer=4), ShapeError, "0 to 3, got 4"),
        (lambda: transplant(networks, TASK, at=12), ShapeError, "from 1 to 11, got 12"),
        (lambda: by_context(networks, InContextTask(dim=3)), ShapeError, "dim 3"),
        (lambda: nearest({**networks, "wide": random_network(dataclasses.replace(SMALL, width=48))},
                         TASK), ShapeError, "in one shape"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            wrong()
