"""Saved machines, algorithms and fits of version 2 load and give the same answers."""

import pytest

from tests.corpus.test_corpus import answers, check_damage, check_kept

from .folders import FOLDERS, ROOT


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_version_2_gives_the_same(name):
    check_kept(FOLDERS[name], ROOT / name, answers(ROOT)[name])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_folder_of_version_2_is_refused(name, tmp_path):
    check_damage(FOLDERS[name], ROOT / name, tmp_path)
