"""Files: old or new and never a third thing; every damage is noticed."""

import json
import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import iceform as ice
from iceform import store, targets
from iceform.errors import CapacityError, IntegrityError
from iceform.export import from_pretrained
from iceform.networks import in_context
from iceform.paper.library import PromptLibrary, RidgePrompts
from iceform.tables import Interpolant, storage
from studies.checkpoints import read_record, read_state

from .store_faults import KINDS, drafts

F64 = torch.float64


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double()
    return in_context(model, calibration=[torch.randn(4, 2, dtype=F64)])


# ------------------------------------------------------------------------------- every kind of file

SAVED = {
    "emulator": lambda: ice.paper.GradientStep("logistic", 0.1, dim=1, samples=2, eps=1e-3),
    "library": lambda: PromptLibrary(dim=1, samples=2, algorithms=[RidgePrompts()]),
    "network": network,
    "prompt": lambda: ice.paper.LinearLayer(2, 1, samples=1).prompt(
        torch.eye(1, 2, dtype=F64), torch.ones(1, 2, dtype=F64)
    ),
}
FILES = ["model.safetensors", "config.json", "README.md"]
PLACES = (
    [f"{name}/{file}" for name in SAVED for file in FILES]
    + [f"target/{file}" for file in [*FILES, "iceform.json"]]
    + ["checkpoint/state.safetensors", "record/cell.json", "table/table.safetensors"]
)
READ = {
    "target": targets.load,
    "checkpoint": lambda folder: read_state(folder / "state.safetensors", "i"),
    "record": lambda folder: read_record(folder / "cell.json"),
    "table": lambda folder: store.read_tensors(folder / "table.safetensors", "table"),
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    root = tmp_path_factory.mktemp("shelf")
    for name, build in SAVED.items():
        build().save_pretrained(root / name)
    for name in ("target", "checkpoint", "record"):
        kind = KINDS[name]()
        kind.keep(kind.things[0], root / name)
    table = Interpolant.fit(torch.tanh, -1.0, 1.0, eps=1e-3)
    storage._write(root / "table" / "table.safetensors", table)
    return root


def read(place: Path):
    return READ.get(place.parent.name, from_pretrained)(place.parent)


def unnoticed(place: Path, count: int) -> list:
    """Of ``count`` flipped bits at random places, those after which a read is no refusal."""
    read(place)
    whole, draw, missed = place.read_bytes(), random.Random(str(place.name)), []
    for _ in range(count):
        byte, bit = draw.randrange(len(whole)), draw.randrange(8)
        changed = bytearray(whole)
        changed[byte] ^= 1 << bit
        place.write_bytes(changed)
        try:
            read(place)
        except IntegrityError:
            continue
        except Exception as raised:
            missed.append((byte, bit, repr(raised)))
        else:
            missed.append((byte, bit, "read"))
    place.write_bytes(whole)
    read(place)
    return missed


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_anywhere_is_noticed(shelf, place):
    assert not unnoticed(shelf / place, 40)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_at_a_thousand_places_is_noticed(shelf, place):
    assert not unnoticed(shelf / place, 1000)


@pytest.mark.slow
def test_a_flipped_bit_in_an_onnx_file_is_noticed(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs iceform[export]")
    from iceform.export.onnx_library import OnnxLibrary

    machine = SAVED["library"]()
    place = ice.export.onnx(machine, tmp_path / "machine.onnx")
    whole, draw = place.read_bytes(), random.Random(0)
    for _ in range(1000):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        place.write_bytes(changed)
        with pytest.raises(IntegrityError):
            OnnxLibrary(machine, place)


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\n", lambda d: b""])
@pytest.mark.parametrize("place", ["emulator/model.safetensors", "record/cell.json"])
def test_a_byte_less_or_more_is_noticed(shelf, place, change):
    whole = (shelf / place).read_bytes()
    (shelf / place).write_bytes(change(whole))
    with pytest.raises(IntegrityError, match=r"cannot be read|altered"):
        read(shelf / place)
    (shelf / place).write_bytes(whole)


# ----------------------------------------------------------------------------------- what is sealed


def test_a_view_of_another_save_is_left_aside_and_a_damaged_one_is_not(tmp_path):
    """What a kill between the commit and its views leaves."""
    first, second = (ice.paper.GradientStep("squared", r, dim=1, samples=2) for r in (0.1, 0.2))
    folder = first.save(tmp_path / "a")
    (second.save(tmp_path / "b") / "model.safetensors").replace(folder / "model.safetensors")
    assert ice.load(folder).certificate.to_json() == second.certificate.to_json()
    card = folder / "README.md"
    card.write_bytes(card.read_bytes().replace(b"Certificate", b"Certificatf"))
    with pytest.raises(IntegrityError, match=r"README\.md is not what was saved there"):
        ice.load(folder)


def test_one_kind_is_not_read_as_another(shelf):
    with pytest.raises(IntegrityError, match="holds a Prompt, not a checkpoint"):
        read_state(shelf / "prompt" / "model.safetensors", "i")
    shutil.copy(shelf / "checkpoint" / "state.safetensors", shelf / "model.safetensors")
    with pytest.raises(IntegrityError, match="holds a checkpoint, not a target"):
        targets.load(shelf)
    with pytest.raises(IntegrityError, match=r"holds a config\.json, not a record"):
        read_record(shelf / "prompt" / "config.json")


def nested(depth: int) -> dict:
    found: dict = {}
    for _ in range(depth):
        found = {"a": [found]}
    return found


def test_json_has_a_depth_and_a_size(tmp_path, monkeypatch):
    path = tmp_path / "deep.json"
    store.write_json(path, nested(30), "deep")
    assert store.read_json(path, "deep") == nested(30)
    store.write_json(path, nested(60), "deep")
    with pytest.raises(IntegrityError, match="nested more than 100 deep"):
        store.read_json(path, "deep")
    bomb = b'{"a":' * 200_000
    with pytest.raises(IntegrityError, match="nested more than 100 deep"):
        store.parse_json(bomb, "a bomb")
    assert store.parse_json(b'{"a": "[[[' + b"[" * 500 + b'"}', "brackets in words")
    monkeypatch.setattr(store, "LARGEST_JSON", 1000)
    store.write_json(path, {"a": "x" * 2000}, "long")
    with pytest.raises(IntegrityError, match="longer than 1000 bytes"):
        store.read_json(path, "long")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[]", b"3", b"", b"9" * 5000, b'{"a": }'])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(IntegrityError, match="cannot be read"):
        store.parse_json(data, "it")


def test_a_record_without_its_results_does_not_count_as_finished(shelf, tmp_path):
    found = store.read_json(shelf / "record" / "cell.json", "record")
    found["metric"] = found.pop("metrics")
    store.write_json(tmp_path / "cell.json", found, "record")
    with pytest.raises(IntegrityError, match=r"it has no metrics.*delete it"):
        read_record(tmp_path / "cell.json")


def test_the_file_is_one_that_safetensors_reads_and_sha256_tells(tmp_path):
    """The digest by hand: the SHA-256 of the file with 64 zeros in its place."""
    from hashlib import sha256

    from safetensors import safe_open

    path = tmp_path / "a.safetensors"
    digest = store.write_tensors(path, "kind", {"n": 1}, {"b": torch.ones(3), "a": torch.eye(2)})
    data = path.read_bytes()
    assert data.count(digest.encode()) == 1
    assert sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("a"), torch.eye(2))
        assert file.metadata()["sha256"] == digest
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["iceform"])["content"] == {"n": 1}
    assert store.read_tensors(path).sha256 == digest


# ----------------------------------------------------------------------------------- transactions


class Failing:
    """The n-th call of any of these fails as a full disk does."""

    CALLS = ("open", "write", "fsync", "replace")

    def __init__(self, monkeypatch, at: int) -> None:
        self.count, self.at = 0, at
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, real):
        def call(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        return call


@pytest.mark.parametrize("name", KINDS)
def test_a_disk_that_fails_at_any_step_leaves_old_or_new_and_no_draft(name, tmp_path, monkeypatch):
    check_failing_disk(KINDS[name](), tmp_path, monkeypatch)


def check_failing_disk(kind, tmp_path, monkeypatch):
    """Whichever step of a save the disk fails at, what is read is the old thing or the new."""
    at, refusals = 0, 0
    while True:
        at += 1
        kind.keep(kind.things[0], tmp_path)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        with monkeypatch.context() as patched:
            failing = Failing(patched, at)
            try:
                kind.keep(kind.things[1], tmp_path)
            except (OSError, IntegrityError) as refused:
                refusals += "No space left" in str(refused)
            over = failing.count < at
        assert not drafts(tmp_path), at
        after = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        if after != before:
            assert kind.read(tmp_path) in kind.marks
        if over:
            assert kind.read(tmp_path) == kind.marks[1]
            break
    assert refusals == at - 1 >= 7  # two opened, locked, written, flushed, renamed, flushed


def test_a_check_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    store.write({path: b"old"})

    def refuse(draft):
        assert draft.read_bytes() == b"new"
        raise IntegrityError("not as it should be")

    with pytest.raises(IntegrityError, match="not as it should be"):
        store.write({path: b"new"}, check=refuse)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path):
    path, other = tmp_path / "a", tmp_path / ".b.0.draft"
    (tmp_path / ".a.0123456789abcdef.draft").write_bytes(b"of a killed writer")
    other.write_bytes(b"of another file")

    def meanwhile(draft):
        store.write({path: b"second"})
        assert draft.read_bytes() == b"first"

    store.write({path: b"first"}, check=meanwhile)
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [".b.0.draft", "a"]


def test_files_have_the_mode_that_others_have(tmp_path):
    store.write({tmp_path / "a": b"x"})
    (tmp_path / "b").write_bytes(b"x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert len(modes) == 1


# ---------------------------------------------------------------------------------------- faults


def faults(*asked: tuple[str, int], folder: Path, before: tuple[str, ...] = ()) -> list[dict]:
    path = os.pathsep.join([str(Path(ice.__file__).parents[1]), str(Path(__file__).parents[1])])
    words = [str(word) for what, count in asked for word in (what, count)]
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "-m", "tests.store_faults", str(folder), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("most", "seconds"), [(3, 0), pytest.param(1000, 20, marks=pytest.mark.slow)]
)
def test_killed_writers_and_two_at_once_leave_old_or_new(tmp_path, most, seconds):
    killed, beside = faults(("kills", most), ("writers", seconds), folder=tmp_path)
    print(killed, beside)
    assert killed["killed"] == killed["old"] + killed["new"] >= 25
    assert min(killed["before replace"], killed["after replace"]) >= 5  # around every commit
    assert killed["drafts left by the killed"] >= killed["before replace"]
    assert len(beside) == 6  # of each of three kinds, either of the two was read


@pytest.mark.slow
def test_a_full_disk_leaves_old_or_new_and_no_draft(tmp_path):
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$0" "$@"'
    space = ["unshare", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*space, mount, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small disk")
    (found,) = faults(("full", 40), folder=tmp_path, before=(*space, mount))
    print(found)
    assert found["refused"] > 20
    assert found["saved"] > 20


def test_a_header_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGEST_JSON", 2000)
    tensors = {f"{'t' * 100}{i}": torch.zeros(1) for i in range(20)}
    with pytest.raises(CapacityError, match="a file holds 2000"):
        store.write_tensors(tmp_path / "new.safetensors", "kind", {}, tensors)
    assert not list(tmp_path.iterdir())
