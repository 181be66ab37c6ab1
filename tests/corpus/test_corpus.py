"""Folders that version 2 wrote load, with the same weights and the same answers."""

import json
import shutil

import pytest
import torch

from iceform import store
from iceform.errors import IntegrityError
from tests.corpus.folders import FOLDERS, ROOT, TABLE, Kept

# Processors differ in how they round a sum.
ROUNDING = 1e-10
TENSORS = {"table": TABLE}


def check_kept(kept: Kept, folder, said) -> None:
    """What is read has the digest and gives the answer that were noted when it was written."""
    thing = kept.read(folder)
    assert kept.digest(thing) == said["digest"]
    wanted = torch.tensor(said["answer"], dtype=torch.float64)
    found = kept.answer(thing).double().flatten()
    torch.testing.assert_close(found, wanted, rtol=ROUNDING, atol=ROUNDING)


def check_damage(kept: Kept, folder, tmp_path, name=store.WEIGHTS) -> None:
    """A flipped bit, a missing file and a field that is gone are refused."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / name
    whole = file.read_bytes()
    for place in (9, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(IntegrityError):
            kept.read(copy)
    file.unlink()
    with pytest.raises(IntegrityError, match="cannot be read: there is no such file"):
        kept.read(copy)
    file.write_bytes(whole)
    stored = store.read_tensors(file)
    fewer = dict(list(stored.content.items())[1:])
    store.write_tensors(file, stored.kind, fewer, stored.tensors)
    with pytest.raises(IntegrityError):
        kept.read(copy)


def answers(root) -> dict:
    return json.loads((root / "answers.json").read_text(encoding="utf-8"))


def test_the_corpus_is_whole():
    assert answers(ROOT).keys() == FOLDERS.keys()
    assert len(FOLDERS) >= 10


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_version_2_gives_the_same(name):
    if name == "target":
        pytest.importorskip("transformers", reason="checkpoints need transformers")
    check_kept(FOLDERS[name], ROOT / name, answers(ROOT)[name])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_folder_of_version_2_is_refused(name, tmp_path):
    check_damage(FOLDERS[name], ROOT / name, tmp_path, TENSORS.get(name, store.WEIGHTS))
