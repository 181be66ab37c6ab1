"""A few attacks of every family; ``make attack`` makes many."""

import json

import pytest

from tests.attacks import __main__ as attacks
from tests.attacks.families import DEAR, FAMILIES, ORDINARY
from tests.attacks.kernels import DEVICE, KERNELS, usable
from tests.attacks.outcomes import Outcome

BARS = {"networks": 1000, "hidden state": 1e6}  # through whole layers; before the fact


@pytest.mark.parametrize("family", FAMILIES)
def test_no_certificate_is_violated(family):
    attacks.assert_unbroken(family, FAMILIES[family], 2 if family in DEAR else 3, BARS.get(family))


@pytest.mark.skipif(not usable(), reason="no GPU, and Triton is not interpreted")
@pytest.mark.parametrize("family", KERNELS)
def test_no_certificate_of_a_kernel_is_violated(family):
    row = attacks.Row(family)
    for seed in range(10_000, 10_000 + (40 if DEVICE.type == "cuda" else 3)):
        row.add(seed, KERNELS[family](seed))
    assert not row.violated, row
    assert row.certified, "nothing was certified, so nothing was attacked"


@pytest.mark.parametrize("program", ORDINARY)
def test_ordinary_input_gets_a_proven_bound(program):
    assert [ORDINARY[program](seed) for seed in range(2)] == ["proven"] * 2


def test_shares_of_a_campaign_add_up(tmp_path, monkeypatch):
    """Processes begin at seeds of their own; what they kept makes the table of one."""
    seen = []

    def family(seed):
        seen.append(seed)
        return Outcome(2.0, 3.0 if seed == 101 else 1.0, 1.0, 10) if seed % 2 else "infinite"

    for registry in (attacks.FAMILIES, attacks.ORDINARY):
        monkeypatch.setitem(registry, "made up", family)
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- {m}: begin -->\nold\n<!-- {m}: end -->\n" for m in ("attacks", "ordinary"))
    )
    monkeypatch.setattr(attacks, "PAGE", page)
    monkeypatch.setattr(attacks, "KEPT", tmp_path / "kept.json")
    files = [str(tmp_path / f"{first}.json") for first in (0, 100)]
    for file, first, status in zip(files, (0, 100), (0, 1), strict=True):
        monkeypatch.setattr("sys.argv", [
            "attacks", "made up", "--count", "3", "--first", str(first), "--json", file
        ])  # fmt: skip
        assert attacks.main() == status, "a violated certificate is a failure"
    assert seen == [0, 1, 2, 100, 101, 102]
    assert len(json.loads((tmp_path / "0.json").read_text())) == 1
    monkeypatch.setattr("sys.argv", ["attacks", "--merge", *files])
    assert attacks.main() == 1
    text = page.read_text()
    assert "old" not in text
    assert "| made up | 24 | 6 | 2 | 1 | 1.3 |  |" in text
    again = attacks.tables(list(attacks.merged([tmp_path / "kept.json"]).values()))
    assert all(table in text for table in again.values()), "the page is what was kept"
