"""The tables that ship with the library are those that estimators ask for first."""

from contextlib import suppress

from iceform.errors import PrecisionError
from iceform.tables import regimes, storage
from iceform_estimators.machine import build_tables, stream


def test_every_table_that_make_tables_writes_ships(tmp_path, monkeypatch):
    """Under the name by which it is asked for now."""

    class ThereIsOneError(Exception):
        pass

    missing = []

    def found(*_):
        raise ThereIsOneError

    def fitted(f, low, high, eps, tokens):
        missing.append((f.name, high, eps))
        raise PrecisionError("not here", best=1.0)

    monkeypatch.setenv("ICEFORM_CACHE", str(tmp_path))
    monkeypatch.setattr(storage, "_read", found)
    monkeypatch.setattr(regimes, "best", fitted)
    stream._tabulate.cache_clear()
    for fit in build_tables.fits():
        with suppress(ThereIsOneError, PrecisionError):
            fit()
    assert missing == [("relu", 4.0, 1e-8), ("relu", 8.0, 1e-8)]  # more tokens than there are
