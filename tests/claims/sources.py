"""Where every number of the pages comes from.

A source is a set of numbers as they are printed, or of whole sentences, made from what produces
them: cells of results/, files of benchmarks/results, constants of the package, constants that a
named test asserts. What nothing produces is stated, and says what it is: a definition, somebody
else's number, or a measurement whose file was not kept.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from benchmarks import others
from studies import STUDIES, load_records, published, script
from studies.report import markdown_table
from studies.tables import number, pick, rates, readers, shown, with_deviation
from tests.claims.quotes import CELLS, STATED
from tests.claims.scan import COUNTED, ROOT
from tests.claims.written import BLOCKS, benchmark_rows
from tests.networks import figures

ERRATA = "docs/errata.md"


@dataclass(frozen=True)
class Source:
    """What stands behind some numbers of a page.

    ``kind`` is measured, certified, asserted by a test, defined, theirs, or not kept.
    """

    page: str  # a pattern
    kind: str
    where: str  # file, test or definition; with seed, c and dtype where they matter
    values: frozenset[str] = frozenset()
    sentences: tuple[str, ...] = field(default=())

    def of(self, page: str) -> bool:
        return fnmatch(page, self.page)


def canonical(number: str) -> str:
    """As it is printed, but for the kind of minus."""
    return number.replace("−", "-").replace("e-0", "e-")


def _numbers(texts: Iterable[str]) -> frozenset[str]:
    found = re.findall(r"(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?:e[-−]?\d+)?", " ".join(texts))
    return frozenset(map(canonical, found))


# ---------------------------------------------------------------------------------------------
# the studies
# ---------------------------------------------------------------------------------------------


@cache
def _records() -> list[dict]:
    return load_records(ROOT / "results")


def _cells() -> Iterable[Source]:
    for page, study, column, metric, variant in CELLS:
        value = shown(pick(_records(), study, column, metric, **variant))
        where = f"results/cells/{study}/{column}, {metric} {variant}"
        kind = "certified" if "certified" in metric else "measured"
        if "±" in value and not value.endswith("± 0"):
            yield Source(page, kind, where, sentences=(value,))
        else:
            yield Source(page, kind, where, _numbers([value.removesuffix(" ± 0")]))


def _studies() -> Iterable[Source]:
    yield from _cells()
    cells = [*published.HEADS.values(), *published.RESIDUAL.values()]
    cells += [
        c for t in (published.STATISTICS, published.HOUSING) for m in t.values() for c in m.values()
    ]
    printed = tuple(with_deviation(c) for c in cells)
    single = [str(c[0]) for c in cells] + [number(c[0]) for c in cells]
    where = "the paper, section 6 (studies/published.py)"
    yield Source("docs/studies*.md", "theirs", where, _numbers(single), printed)
    slope = next(c for c in rates(_records()) if c.label == "published (heads)").slope
    yield Source(
        "docs/studies.md",
        "measured",
        "slope of the published table",
        _numbers([f"{-2 * slope:.1f}"]),
    )
    solved = pick(_records(), "heads", "our_reading", "oracle mse", heads=1, schedule="constant")
    yield Source("docs/studies.md", "measured", "results/cells/heads/our_reading, oracle mse",
                 _numbers([number(solved.mean)]))  # fmt: skip
    lines = [line for study in STUDIES for line in script.page(study)]
    yield Source("results/settings.md", "theirs", "studies/script.py", sentences=tuple(lines))
    facts = [str(f.value) for f in script.FACTS] + [
        f"{f.value:,}" for f in script.FACTS if isinstance(f.value, int)
    ]
    yield Source("docs/studies*.md", "theirs", "studies/script.py", _numbers(facts))
    table = tuple(markdown_table(readers(_records())))
    yield Source("docs/studies.md", "measured", "results/cells, tables.readers", sentences=table)
    best = [
        number(min(pick(_records(), "housing", "their_script", f"{a}: frozen mse").values))
        for a in ("lasso", "ridge", "linear")
    ]
    told = (f"The best of the five comes to {best[0]}, {best[1]} and {best[2]}",)
    yield Source("docs/studies.md", "measured", "study 4's trainings", sentences=told)
    for column in ("their_script", "as_published"):
        after, ends = (
            [
                number(v)
                for v in sorted(pick(_records(), "residual", column, m, variant="script").values)
            ]
            for m in ("mse after 19 epochs", "mse")
        )
        told = (f"{', '.join(after[:-1])} and {after[-1]}", f"between {ends[0]} and {ends[-1]}.")
        yield Source(
            "docs/studies.md", "measured", f"study 1's trainings, {column}", sentences=told
        )


# ---------------------------------------------------------------------------------------------
# constants that tests assert, and constants of the package
# ---------------------------------------------------------------------------------------------


def constants(node: ast.AST) -> set[float]:
    """Numbers that stand in code, docstrings aside."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and type(part.value) in (int, float):
            found.add(float(part.value))
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.Pow, ast.Mult)):
            sides = part.left, part.right
            if all(isinstance(s, ast.Constant) and type(s.value) in (int, float) for s in sides):
                a, b = (float(s.value) for s in sides)
                if isinstance(part.op, ast.Pow):
                    found.add(a**b)
                elif isinstance(part.op, ast.Mult):
                    found.add(a * b)
                elif b:
                    found.add(a / b)
    return found


@cache
def _errata_tests() -> tuple[dict[str, set[float]], dict[str, set[float]]]:
    """Constants of every test of the errata, and of every module outside its tests."""
    tests, modules = {}, {}
    for path in (ROOT / "tests" / "errata").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        rest = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                tests[node.name] = constants(node)
            else:
                rest |= constants(node)
        modules[path.name] = rest
    return tests, modules


_HOLE = r"[\d.e-]+(?:\s+to\s+[\d.e-]+)?"


@cache
def asserted_sentences() -> list[re.Pattern]:
    """Sentences that tests of the errata compute and look for, their holes open."""
    found = []
    for path in sorted((ROOT / "tests" / "errata").glob("test_*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "assert_on_page":
                continue
            (sentence,) = call.args
            if isinstance(sentence, ast.Call):  # f"...".replace(...)
                sentence = sentence.func.value
            if isinstance(sentence, ast.JoinedStr):
                parts = [
                    re.escape(v.value) if isinstance(v, ast.Constant) else _HOLE
                    for v in sentence.values
                ]
                found.append(re.compile("".join(parts).replace(r"\ ", r"\s+"), re.DOTALL))
    return found


def section_constants(text: str, start: int) -> set[float]:
    """What the tests that a part of the errata names assert."""
    tests, modules = _errata_tests()
    whole = max(text.rfind("\n## ", 0, start), 0)
    part = max(text.rfind("\n### ", 0, start), whole)
    ends = [text.find(mark, part + 1) for mark in ("\n### ", "\n## ")]
    body = text[part : min((e for e in ends if e > 0), default=len(text))]
    named = re.findall(r"`(test_\w+)`", body)
    head = text[whole : text.find("\n### ", whole)]
    named += re.findall(r"`(test_\w+)`", head)
    allowed = set().union(*(tests.get(name, set()) for name in named)) if named else set()
    for module in re.findall(r"`(test_\w+\.py)`", head):
        allowed |= modules.get(module, set())
    return allowed


def module_constants(page: str) -> set[float]:
    """Constants of the code beside a docstring: of the modules in its folder."""
    return _folder_constants((ROOT / page).parent)


@cache
def _folder_constants(folder: Path) -> set[float]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py"))
    return set().union(*map(constants, trees))


# ---------------------------------------------------------------------------------------------
# benchmarks
# ---------------------------------------------------------------------------------------------


def _rounded(value: float) -> set[str]:
    """The ways in which the pages print a measurement."""
    made = {f"{value:.{d}f}" for d in range(4)} | {
        f"{value:.0e}",
        f"{value:.1e}",
        f"{value:.3g}",
        f"{value:.2g}",
    }
    return {canonical(m) for m in made} | {m.removeprefix("0") for m in made if m.startswith("0.")}


def _benchmarks() -> Iterable[Source]:
    """Rows of the tables against the rows of the files that they are of."""
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    rows = {
        name: json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["rows"]
        for name in ("h200", "h200-called", "h200-users")
    }
    for line in text.splitlines():
        case = _case(line)
        if case is None:
            continue
        name, suite, wanted = case
        values = set()
        for r in rows[name]:
            if r["suite"] == suite and all(w in r["case"] for w in wanted):
                found = (r[key] for key in ("ms", "ratio", "error"))
                values |= set().union(*(_rounded(v) for v in found if v is not None))
                values |= _numbers([r["note"], r["case"]])
        values |= _share_of_the_read(rows[name], suite, wanted) | _numbers(wanted)
        yield Source(
            "benchmarks/README.md", "measured", f"benchmarks/results/{name}.json: {suite} {wanted}",
            sentences=(line,) if _agrees(line, values) else (), values=frozenset(),
        )  # fmt: skip


def _agrees(line: str, values: set[str]) -> bool:
    """Whether every figure of a row is one of its file's, sizes aside."""
    cells = line.split("|")[2:]
    found = re.findall(r"(?<![\w^.])\d+(?:\.\d+)?(?:e-\d+)?(?=\s|x|%|\)|,|;|$)", " ".join(cells))
    large = [n for n in found if not (n.isdigit() and int(n) <= COUNTED)]
    return all(canonical(n) in values for n in large)


def _share_of_the_read(rows: list[dict], suite: str, wanted: tuple[str, ...]) -> set[str]:
    own = {
        r["method"]: r["ms"]
        for r in rows
        if r["suite"] == suite and all(w in r["case"] for w in wanted)
    }
    if "read x once" not in own:
        return set()
    return {f"{100 * own['read x once'] / ms:.0f}" for ms in own.values()}


_POWER = re.compile(r"2\^(\d+) x (\d+)")


def _case(line: str) -> tuple[str, str, tuple[str, ...]] | None:
    """File, suite and what the case must hold, of a row of the first table."""
    size = _POWER.search(line)
    if line.startswith("| step, 2^") and size:
        dtype = re.search(r"(float32|bfloat16|float64)", line)[0]
        return "h200", "step", (f"n={2 ** int(size[1])} d={size[2]} {dtype}",)
    if found := re.match(r"\| head, n=(\d+), (\w+)[^|]*\| [\d.]+ ms", line):
        return "h200-users", "head", (f"n={found[1]} ", f" {found[2]}")
    if found := re.match(r"\| encoder of MiniLM's shape, (\d+ x \d+ tokens, \w+)", line):
        return "h200-users", "networks", (found[1],)
    if line.startswith(("| ridge, 200", "| lasso, 200")):
        return "h200-called", "loop", ("200 passes",)
    if line.startswith("| cost against n, d=16 | exponent 0.97 |"):
        return "h200", "scaling", ()
    return None


def _throughput() -> Iterable[Source]:
    """The table of training throughput, row by row."""
    files = {
        name: {
            r["case"]: r
            for r in json.loads((ROOT / f"results/throughput-{name}.json").read_text())["rows"]
        }
        for name in ("h200", "h200-compiled", "cpu")
    }
    cases = {
        "study 1": "residual", "study 2, 1 head": "heads 1", "study 2, 6 heads": "heads 6",
        "study 2, 12 heads": "heads 12", "study 3 (compiled, as it runs)": "statistics",
        "study 4": "housing",
    }  # fmt: skip
    lines = []
    for label, case in cases.items():
        on_gpu, on_cpu = files["h200"][case], files["cpu"][case]
        lines.append(_row(label, on_gpu) + f" {on_cpu['ratio']:.1f}")
    lines.append(_row("study 4, compiled", files["h200-compiled"]["housing"]))
    yield Source(
        "results/README.md", "measured", "results/throughput-*.json", sentences=tuple(lines)
    )
    seconds = {f"{r['seconds of the group']:.0f}" for r in _records()}
    yield Source("results/README.md", "measured", "cells, seconds of the group", frozenset(seconds))


def _row(label: str, r: dict) -> str:
    ratio = f"{r['ratio']:.1f}" if r["ratio"] < 100 else f"{r['ratio']:.0f}"
    return f"| {label} | {r['models']} | {r['plain ms']:.2f} | {r['stacked ms']:.4f} | {ratio} |"


# ---------------------------------------------------------------------------------------------
# all of them
# ---------------------------------------------------------------------------------------------


def _others() -> Iterable[Source]:
    """Other people's constructions, as docs/comparison.md has them."""
    file = "benchmarks/results/others-cpu.json"
    rows = json.loads((ROOT / file).read_text())["rows"]
    errors = {f"{r['largest error']:.0e}" for r in rows if "largest error" in r}
    yield Source(
        "docs/comparison.md", "measured", f"{file}, float64, seeds 0 to 4",
        frozenset(map(canonical, errors)), tuple(others.table(rows)),
    )  # fmt: skip


def _certified() -> Iterable[Source]:
    """MiniLM's sentences, as docs/networks.md has them."""
    words, sound = figures.summed_up(figures.rows([figures.KEPT]))
    where = figures.KEPT.relative_to(ROOT).as_posix()
    yield Source("docs/networks.md", "measured", where, sentences=(f"{words}.",) if sound else ())


def locked() -> list[tuple[str, str]]:
    """Words around numbers that their sources alone do not tell from their neighbours."""
    lines = (ROOT / "tests/claims/locked.txt").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line]


def _stated() -> Iterable[Source]:
    for page, kind, where, values in STATED:
        sentences = tuple(v for v in values if " " in v)
        numbers = frozenset(canonical(v) for v in values if " " not in v)
        yield Source(page, kind, where, numbers, sentences)
    for block in BLOCKS:
        where = f"{block.kept.relative_to(ROOT).as_posix()}, by {block.command}"
        yield Source(block.page, "measured", where, sentences=(block.shown(),))


def _called() -> Iterable[Source]:
    """What benchmarks/README says of a GradientStep, from the files of the benchmarks."""
    rows = [r for r in benchmark_rows("h200-users") if r["suite"] in ("emulator", "attest")]
    spot = [r["ms"] for r in rows if r["suite"] == "attest" and r["method"] == "attestation"]
    yield Source(
        "benchmarks/README.md", "measured", "benchmarks/results/h200-users.json, suite attest",
        sentences=(f"takes {min(spot):.0f} to {max(spot):.0f} ms",),
    )  # fmt: skip


@cache
def sources() -> tuple[Source, ...]:
    """Every source there is."""
    made: list[Callable[[], Iterable[Source]]] = [
        _studies, _benchmarks, _called, _throughput, _others, _certified, _stated,
    ]  # fmt: skip
    return tuple(s for make in made for s in make())
