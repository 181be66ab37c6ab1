"""The names that iceform offers: its table of contents, old spellings, and what left it."""

import ast
import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import iceform
from iceform import extensions, old_names

ROOT = Path(iceform.__file__).parent
WORDS = """
    algorithm argmax argmin at attend bounded concat constant count index max maximum mean min
    minimum one_hot previous reciprocal repeat running_sum soft_threshold stored sum vector where
    while_ zeros_like
"""
PUBLIC = f"""
    {WORDS} compile Program Computer TextComputer check load in_context Interpolant Formula Loss
    Certificate Enclosure Result IceformError bench lab paper targets plots errors __version__
"""
OLD = [(name, module) for module, names in old_names.NAMES.items() for name in names.split()]


def in_a_process(code: str) -> str:
    """What a program prints, its warnings too, in a process that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT.parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------
# the table of contents
# ---------------------------------------------------------------------------------------------


def test_the_top_level_offers_these_names_and_no_others():
    assert sorted(iceform.__all__) == sorted(PUBLIC.split())
    assert len(set(iceform.__all__)) == len(iceform.__all__)
    for name in iceform.__all__:
        assert hasattr(iceform, name), name
    assert {name for name in dir(iceform) if not name.startswith("__")} <= set(iceform.__all__)


def test_the_words_of_the_language_are_all_there():
    from iceform.computer import language, samples

    words = {*language.__all__, *samples.__all__}
    assert set(WORDS.split()) == words - {"Algorithm", "apply"}


def for_type_checkers() -> dict[str, str]:
    """The names that a type checker sees, and where each is from."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n)]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name
            found[alias.name] = node.module
    return found


def test_a_type_checker_sees_the_same_names_in_the_same_places():
    told = for_type_checkers()
    for name in set(iceform.__all__) - {"__version__"}:
        place = importlib.import_module(told[name])
        assert getattr(iceform, name) is getattr(place, name), name
    beneath = set(told) - set(iceform.__all__)
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"cli"}
    assert beneath == folders - set(iceform.__all__)


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/__init__.py")), ids=lambda p: p.parent.name)
def test_every_level_says_what_it_offers(path):
    level = getattr(iceform, path.parent.name)
    assert level.__all__
    for name in level.__all__:
        assert hasattr(level, name), name


def test_the_import_loads_nothing_that_is_slow():
    code = "import sys, iceform; print({'torch', 'numpy'} & set(sys.modules))"
    assert in_a_process(code).strip() == "set()"


# ---------------------------------------------------------------------------------------------
# no hidden lists
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", extensions.TABLE)
def test_what_is_handed_to_a_level_below_is_there(group):
    for name in extensions.TABLE[group]:
        assert extensions.find(group, name) is not None
    assert extensions.find(group, "nothing of this name") is None


def test_every_kind_that_can_be_saved_is_in_the_table():
    kinds = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                kinds |= {k.value.value for k in node.keywords if k.arg == "kept_as"}
    assert kinds == set(extensions.TABLE["kinds"])
    for name in kinds:
        assert extensions.find("kinds", name).kept_as == name


def test_a_program_is_written_with_nothing_but_the_library_imported(tmp_path):
    said = in_a_process(
        f"""
        import sys
        from iceform.computer.library import EXAMPLES
        program = EXAMPLES["least_squares"].compile()
        assert "iceform.targets" not in sys.modules
        made = program.to("gpt2", {str(tmp_path / "model")!r}, steps=2)
        print(sorted(p.name for p in made.path.iterdir()))
        print(type(program.text([[0.5], [0.25]], [0.5, 0.25], steps=2)).__name__)
        """
    )
    assert "model.safetensors" in said
    assert "AlgorithmText" in said


def test_a_saved_construction_is_read_with_nothing_else_imported(tmp_path):
    iceform.paper.LinearLayer(2, 2, samples=2, eps=1e-3).save(tmp_path)
    code = f"from iceform import pretrained; print(type(pretrained.read({str(tmp_path)!r})))"
    assert "LinearLayer" in in_a_process(code)


# ---------------------------------------------------------------------------------------------
# old spellings, for one release
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "module"), OLD)
def test_an_old_name_warns_once_and_names_the_new_one(name, module):
    vars(iceform).pop(name, None)
    with pytest.warns(DeprecationWarning, match=rf"is iceform\.{module}\.{name} now") as seen:
        old = getattr(iceform, name)
    assert [str(Path(w.filename)) for w in seen] == [__file__]
    assert old is getattr(importlib.import_module(f"iceform.{module}"), name)
    assert getattr(iceform, name) is old  # and warns no more
    assert name not in iceform.__all__


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("old", "new"), old_names.MODULES.items())
def test_an_old_module_is_the_new_one_with_one_warning(old, new):
    said = in_a_process(
        f"""
        import iceform.{old}
        import iceform.{old}, iceform.{new}
        assert iceform.{old} is iceform.{new}
        assert iceform.{new}.__spec__.name == iceform.{new}.__name__ == "iceform.{new}"
        """
    )
    assert said.count("DeprecationWarning") == 1
    assert f"<string>:2: DeprecationWarning: iceform.{old} is iceform.{new} now" in said


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(m, old, new) for m, names in old_names.RENAMED.items() for old, new in names.items()],
)
def test_a_renamed_thing_answers_to_its_old_name_with_a_warning(module, old, new):
    room = importlib.import_module(f"iceform.{module}")
    with pytest.warns(DeprecationWarning, match=rf"iceform\.{module}\.{new} now") as warned:
        assert getattr(room, old) is getattr(room, new)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert old not in room.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        room.Nothing  # noqa: B018


def test_a_module_below_an_old_one_is_loaded_once():
    said = in_a_process(
        """
        import iceform as ice
        from iceform.interpolation.interpolant import Grid
        import iceform.tables.interpolant
        assert Grid is iceform.tables.interpolant.Grid is ice.tables.Grid
        """
    )
    assert said.count("DeprecationWarning") == 1
    assert "DeprecationWarning" in in_a_process("import iceform; iceform.constructions.MLP")


@pytest.mark.parametrize(("name", "where"), old_names.PACKAGES.items())
def test_what_left_for_a_package_says_which(name, where):
    says = f"pip install {where[0]}, then import {where[1]}$"
    with pytest.raises(AttributeError, match=says):
        getattr(iceform, name)
    with pytest.raises(ModuleNotFoundError, match=says):
        importlib.import_module(f"iceform.{name}")


def test_a_name_that_never_was_is_pythons_own_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        iceform.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'iceform.nothing'$"):
        importlib.import_module("iceform.nothing")
