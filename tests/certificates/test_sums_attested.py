"""What is attested of a sum: its last samples, its mean to a few units, and in little memory."""

from dataclasses import replace

import pytest
import torch

from iceform import tuning
from iceform.certificates import Attestation, RecordingBackend
from iceform.errors import IntegrityError
from iceform.heads import LookUpLayout, LookUps
from iceform.run import FusedBackend
from iceform.run.windowed import tell
from iceform.tables import Interpolant
from iceform.validation import unit_roundoff

LAYOUT = LookUpLayout(dim=2, samples=4, tokens=80)
TABLE = Interpolant.fit(torch.tanh, -6, 6, 1e-8)
TILE, PARTS = 3, 40
TILES = 2 * PARTS + 17  # the last one is in a part that is neither the first nor the last


def look_ups(rows):
    g = torch.Generator().manual_seed(7)
    x, y = torch.rand(rows, 2, generator=g).double() + 0.5, -torch.ones(rows).double()
    return LookUps(LAYOUT, TABLE, x, y, torch.tensor([0.5, 0.25]).double())


class Tiled(FusedBackend):
    """Adds up a few rows at a time in many parts, all but one sample."""

    def __init__(self, missing=None):
        super().__init__(LAYOUT.build())
        self.missing = missing

    def total(self, prompt, watch=None, *_):
        rows = self.run(prompt)[..., :-1].clone()
        if self.missing is not None:
            rows[self.missing] = 0.0
        tiles = rows.split(TILE)
        sums = torch.stack([torch.cat(tiles[part::PARTS]).sum(0) for part in range(PARTS)])
        tell(sums, TILE, whole=True)
        return sums.sum(0)


class OffMean(FusedBackend):
    """Right in every part of a sum, and off in the mean by some units of it."""

    def __init__(self, units):
        super().__init__(LAYOUT.build())
        self.units = units

    def total(self, *given):
        found = super().total(*given)
        return found * (1 + self.units * unit_roundoff(found.dtype))


class Noting(FusedBackend):
    """Remembers the shapes of what it returns."""

    def __init__(self):
        super().__init__(LAYOUT.build())
        self.shapes = []

    def run(self, prompt):
        rows = super().run(prompt)
        self.shapes.append(tuple(rows.shape))
        return rows


def test_the_last_tile_of_many_is_always_looked_at():
    """A sum that stops too soon is noticed every time, whichever other part is drawn."""
    count = (TILES - 1) * TILE + 1
    for missing in (None, count - 1):
        watched = RecordingBackend(Tiled(missing))
        watched.total(look_ups(count))
        for _ in range(4):
            if missing is None:
                assert watched.attest().ok
            else:
                with pytest.raises(IntegrityError, match="from the literal matrices"):
                    watched.attest()


def test_a_mean_may_be_off_by_units_of_the_mean_and_not_of_the_sum():
    """One part, eight more operations and the answer's own rounding: eleven units."""
    for units, fine in ((0, True), (4, True), (40, False)):
        watched = RecordingBackend(OffMean(units))
        watched.mean(look_ups(1000))
        if fine:
            assert watched.attest().ok
        else:
            with pytest.raises(IntegrityError, match="from the literal matrices"):
                watched.attest()


def test_a_sum_is_attested_in_as_little_memory_as_is_said(monkeypatch):
    """All rows of a part are run again, and no more numbers at once than may be held."""
    monkeypatch.setattr(tuning, "BACKEND_LOGITS", 800)
    watched = RecordingBackend(Noting())
    watched.total(look_ups(1000))
    watched.inner.shapes.clear()
    assert watched.attest().ok
    assert sum(rows for rows, _ in watched.inner.shapes) == 1000
    assert max(rows * wide for rows, wide in watched.inner.shapes) <= 400
    assert min(rows for rows, _ in watched.inner.shapes[:-1]) == 400 // 3


def test_what_a_file_says_of_a_run_is_a_claim_and_says_all_of_it():
    found = Attestation("a" * 64, "a" * 64, "fused", 4, 1e-12, 2e-12, "a note")
    assert found.ok
    read = Attestation.from_dict(found.to_dict())
    assert read == replace(found, claimed=True)
    assert read.ok is None
    assert Attestation.from_dict({**found.to_dict(), "claimed": False}).claimed
