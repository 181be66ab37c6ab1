"""Tables on disk: read when they are there, proven again, believed in nothing."""

from pathlib import Path

import pytest
import torch

from iceform import store, tuning
from iceform.tables import Interpolant, regimes, storage

F64 = torch.float64
CASES = {
    "smooth": (torch.tanh, (-3.0, 3.0), {"eps": 1e-9}),
    "kinked": (lambda z: z.clamp(-1, 1), (-4.0, 4.0), {"tokens": 65}),
    "best": (torch.sin, (-2.0, 2.0), {}),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ICEFORM_CACHE", str(tmp_path / "tables"))
    return tmp_path / "tables"


def fitted(name: str) -> Interpolant:
    f, ends, options = CASES[name]
    return Interpolant.fit(f, *ends, **options)


def assert_true(it: Interpolant, name: str) -> None:
    """What is certified holds, whatever was read."""
    f, ends, _ = CASES[name]
    z = torch.linspace(*ends, 20_001, dtype=F64)
    assert float((it(z) - f(z)).abs().max()) <= it.error + 1e-14
    assert it.kind == "proven"


def the_file(place: Path) -> Path:
    (found,) = place.iterdir()
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_fitted_once(name, monkeypatch):
    first = fitted(name)

    def refuse(*_):
        raise AssertionError("it was fitted again")

    monkeypatch.setattr(regimes, "best", refuse)
    again = fitted(name)
    assert torch.equal(first.values, again.values)
    assert (first.grid, first.sharpness, first.regime) == (
        again.grid,
        again.sharpness,
        again.regime,
    )
    assert first.error == again.error
    assert len(again.edges) < len(first.edges) or name == "best"  # proven on as few cells as do


def rewritten(path: Path, change) -> None:
    """By someone who also seals the file again."""
    stored = store.read_tensors(path)
    change(stored.content, stored.tensors)
    store.write_tensors(path, stored.kind, stored.content, stored.tensors)


def moved(table, tensors):
    tensors["values"][7] += 1e-4


def boasting(table, tensors):
    moved(table, tensors)
    table["error"] = 1.0


def short(table, tensors):
    tensors["edges"] = tensors["edges"][3:]


def few(table, tensors):
    table["error"] = 1.0
    tensors["edges"] = tensors["edges"][[0, -1]]


def endless(table, tensors):
    tensors["values"][0] = float("nan")


def narrower(table, tensors):
    table["grid"]["high"] -= 1.0


def crowded(table, tensors):
    table["sharpness"] = 1e300


FAULTS = [moved, boasting, short, few, endless, narrower, crowded]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=() if quick else pytest.mark.slow)
        for name in CASES
        for fault in FAULTS
        for quick in [name == "smooth" or fault in (moved, boasting, few)]
    ],
)
def test_what_a_file_says_is_proven_or_not_used(name, fault, place):
    first = fitted(name)
    rewritten(the_file(place), fault)
    again = fitted(name)
    assert_true(again, name)
    if fault not in (boasting, few) or "eps" in CASES[name][2]:
        assert again.error <= first.error


@pytest.mark.parametrize("cut", [0, 10, 500, -8])
def test_a_damaged_file_is_replaced(cut, place):
    first = fitted("smooth")
    whole = the_file(place).read_bytes()
    the_file(place).write_bytes(whole[:cut] if cut >= 0 else b"\xff" * 64 + whole[64:])
    assert fitted("smooth").error == first.error
    assert the_file(place).read_bytes() == whole


def test_another_function_s_file_is_not_its_table(place, monkeypatch):
    """Were two functions told apart by their names alone, the proof would tell."""
    monkeypatch.setattr(storage, "_key", lambda f, asked: "same")
    Interpolant.fit(torch.sin, -1.0, 1.0, eps=1e-9)
    it = Interpolant.fit(torch.tanh, -1.0, 1.0, eps=1e-9)
    z = torch.linspace(-1, 1, 2001, dtype=F64)
    assert float((it(z) - torch.tanh(z)).abs().max()) <= it.error <= 1e-9


def test_no_file_where_none_is_wanted_or_none_can_be(place, monkeypatch, tmp_path):
    monkeypatch.setenv("ICEFORM_CACHE", "off")
    assert fitted("smooth").error <= 1e-9
    assert not place.exists()
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("ICEFORM_CACHE", str(tmp_path / "taken"))
    assert fitted("smooth").error <= 1e-9


SHIPPED = {
    "tanh": (torch.tanh, 4.0, {"eps": 1e-8}),
    "clip": (lambda z: z.clamp(-1, 1), 8.0, {"tokens": 129, "kinks": (-1.0, 1.0)}),
    "sigmoid": (torch.sigmoid, 16.0, {"tokens": 129}),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_tables_that_ship_are_proven_and_not_fitted(name, place, monkeypatch):
    f, reach, options = SHIPPED[name]

    def refuse(*_):
        raise AssertionError("it was fitted")

    monkeypatch.setattr(regimes, "best", refuse)
    it = Interpolant.fit(f, -reach, reach, **options)
    z = torch.linspace(-reach, reach, 20_001, dtype=F64)
    assert float((it(z) - f(z)).abs().max()) <= it.error + 1e-14
    assert it.kind == "proven"
    assert not place.exists()  # nothing is written of what is there


def test_tables_that_ship_are_believed_no_more_than_others(place, monkeypatch, tmp_path):
    monkeypatch.setattr(storage, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(storage, "_key", lambda f, asked: "same")
    monkeypatch.setenv("ICEFORM_CACHE", str(tmp_path / "shipped"))
    Interpolant.fit(torch.sin, -1.0, 1.0, eps=1e-9)
    monkeypatch.setenv("ICEFORM_CACHE", str(place))
    it = Interpolant.fit(torch.tanh, -1.0, 1.0, eps=1e-9)  # of another function
    z = torch.linspace(-1, 1, 2001, dtype=F64)
    assert float((it(z) - torch.tanh(z)).abs().max()) <= it.error <= 1e-9


def test_an_estimate_is_not_kept(place):
    Interpolant.fit(
        lambda z: torch.from_numpy(z.detach().numpy() ** 2), -1.0, 1.0, 1e-3, estimate=True
    )
    assert not place.exists()


def test_room_is_made(place, monkeypatch):
    monkeypatch.setattr(tuning, "STORAGE_MOST_FILES", 4)
    for k in range(6):
        Interpolant.fit(torch.tanh, -1.0 - k, 1.0, eps=1e-3)
    assert len(list(place.iterdir())) <= 4


def test_a_function_that_agrees_with_another_to_float32_gets_its_own_table(place):
    """Its key is the other's; what is stated there is no bound of its own."""

    def bumpy(z):
        return torch.tanh(z) + 1e-9 * torch.exp(-(((z - 0.12345) * 1e6) ** 2))

    rough = Interpolant.fit(bumpy, -2.0, 2.0, tokens=65)
    plain = Interpolant.fit(torch.tanh, -2.0, 2.0, tokens=65)
    assert rough.error > 1e-10 > plain.error
