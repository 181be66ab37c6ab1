"""Random wrong programs: which faults there are, which statements they spare, and the draw.

**The rules, fixed before the first run.** A fault replaces one expression of a source file by
another; :func:`faults` lists them all. Spared, because no test should depend on it, is

- text: docstrings, annotations, decorators, strings, the text of errors and warnings (``raise``,
  ``assert``, ``warn``), and what only makes text to read (``PROSE``);
- tuning: statements that name a number of ``iceform.tuning``, which say how hard a search looks,
  how much is held in memory at once, or how long a guard may take, and nothing about an answer;
- subfolders: Triton kernels need a GPU, and ``computer/library`` holds programs.

**The draw.** Every fault of a folder has a number, the hash of ``SEED``, its place and its text.
The ``COUNT`` with the smallest numbers are drawn, at most one a statement. So a change of the
source replaces only the mutants that it touches.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SEED = 2029
COUNT = 25
FOLDERS = ("arithmetic", "tables", "heads", "run", "computer", "certificates")
SOURCE = Path(__file__).parents[2] / "src" / "iceform"
# By key, of those that survive: why no test can see it.
REASONS: dict[str, str] = json.loads(Path(__file__).with_name("unseen.json").read_text())

PROSE = {
    *("__repr__", "__str__", "__format__", "extra_repr", "explain", "statement", "assumption"),
    *("_shown", "_show", "_table", "_row", "_made_of", "_told", "_unbounded", "_unsettled"),
}
PROSE_FILES = {"computer/explain.py"}
# Statements that name ``iceform.tuning``, or one of these tables of first guesses and limits.
TUNING = {
    *("tuning", "_FITTED", "_GRADED", "_LAMBDAS", "_PLATEAU", "_SHARES", "_CHUNK", "_FITS"),
    *("MANY", "MOST_FITTED_TOKENS", "MOST_HARD_CELLS", "MOST_TURNS", "SAMPLED"),
}

_FLIPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
            ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
            ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}  # fmt: skip
_BORDERS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
            ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
            ast.NotIn: ast.In}  # fmt: skip
_PAIRS = ("min max", "minimum maximum", "amin amax", "floor ceil", "any all", "argmin argmax",
          "low high", "lower upper", "cos sin", "log1p expm1", "log exp")  # fmt: skip
_OTHER = {a: b for pair in _PAIRS for a, b in (pair.split(), reversed(pair.split()))}
_SIZES = {"abs", "absolute", "sqrt", "square", "relu"}
_SYMMETRIC = {"min", "max", "minimum", "maximum", "hypot", "equal", "add", "gcd", "hull", "meet"}
_OUTWARD = {"_outward", "outward", "above", "below", "nextafter", "upward", "uppermost", "_up",
            "computed", "_signed", "_numbers", "clamp", "clamped"}  # fmt: skip


def faults(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """What can go wrong at a node: the kind of fault, what is replaced, and by what."""
    match node:
        case ast.BinOp(left, op, right):
            if type(op) in _FLIPPED:
                yield "operator", node, ast.BinOp(left, _FLIPPED[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub):
                yield "term dropped", node, left
                yield "term dropped", node, right
            if isinstance(op, ast.Mult | ast.Div):
                yield "factor dropped", node, left
        case ast.AugAssign(op=ast.Add() | ast.Sub() | ast.Mult() as op):
            other = copy.copy(node)
            other.op = _FLIPPED[type(op)]()
            yield "operator", node, other
        case ast.Compare(left, ops, values):
            for i, op in enumerate(ops):
                if type(op) in _BORDERS:
                    moved = [*ops[:i], _BORDERS[type(op)](), *ops[i + 1 :]]
                    yield "comparison", node, ast.Compare(left, moved, values)
        case ast.BoolOp(op, values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and, or", node, ast.BoolOp(other_op, values)
            yield "condition dropped", node, ast.BoolOp(op, values[:-1])
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield "sign", node, operand
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            yield "negation", node, operand
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield "negation", test, ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value) if isinstance(value, bool):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value) if isinstance(value, int):
            yield "constant", node, ast.Constant(value + 1)
        case ast.Constant(value) if isinstance(value, float):
            yield "constant", node, ast.Constant(2 * value or 1.0)
        case ast.Attribute(value, name, context) if name in _OTHER:
            yield "extreme", node, ast.Attribute(value, _OTHER[name], context)
        case ast.Expr(ast.Call() as call):
            yield "statement dropped", call, ast.Constant(None)
        case ast.Call(func, args, keywords):
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if isinstance(func, ast.Name) and name in _OTHER:
                yield "extreme", node, ast.Call(ast.Name(_OTHER[name]), args, keywords)
            if name in _SIZES | _OUTWARD:
                inner = func.value if isinstance(func, ast.Attribute) else None
                whole = inner is not None and not _is_module(inner)
                kept = inner if whole else next(iter(args), None)
                if kept is not None and not isinstance(kept, ast.Starred):
                    yield "call dropped", node, kept
            starred = any(isinstance(argument, ast.Starred) for argument in args[:2])
            if len(args) > 1 and not starred and name not in _SYMMETRIC:
                yield (
                    "arguments swapped",
                    node,
                    ast.Call(func, [args[1], args[0], *args[2:]], keywords),
                )
            for i in range(len(keywords)):
                others = keywords[:i] + keywords[i + 1 :]
                yield "argument dropped", node, ast.Call(func, args, others)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"math", "torch", "pairs", "np"}


@dataclass(frozen=True)
class Fault:
    """One wrong program.

    Attributes
    ----------
    path, function, kind
        The file under ``src/iceform``, where in it, and the kind of fault.
    statement, before, after
        The first line of the statement, and what becomes of a part of it.
    nth
        Which of several that read alike.
    line, span
        The first line of the part, and where it begins and ends in the file, in bytes.
    """

    path: str
    function: str
    kind: str
    statement: str
    before: str
    after: str
    nth: int
    line: int
    span: tuple[int, int]

    @property
    def key(self) -> str:
        """The same for as long as the statement stands there."""
        where = f"{self.path} {self.function}".strip()
        again = f" ({self.nth + 1})" if self.nth else ""
        return f"{where}: {self.before} -> {self.after} in {self.statement}{again}"

    def number(self, seed: int) -> str:
        """By which it is drawn."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()

    def apply(self, source: Path) -> None:
        """Change a copy of ``src``."""
        path = source / "iceform" / self.path
        now = {fault.key: fault.span for fault in all_faults(self.path, source / "iceform")}
        text, (start, stop) = path.read_bytes(), now[self.key]
        path.write_bytes(text[:start] + self.after.encode() + text[stop:])


def all_faults(path: str, root: Path = SOURCE) -> list[Fault]:
    """Every fault of a file that the rules do not spare."""
    text = (root / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    found = []

    def visit(node: ast.AST, function: str, statement: str) -> None:
        if isinstance(node, ast.stmt):
            statement = _first_line(node)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                function = f"{function}.{node.name}".lstrip(".")
        for kind, old, new in faults(node):
            start, stop = (
                starts[line - 1] + column
                for line, column in (
                    (old.lineno, old.col_offset), (old.end_lineno, old.end_col_offset)
                )
            )  # fmt: skip
            after = ast.unparse(new)
            if after == ast.unparse(old):
                continue
            after = after if isinstance(new, ast.stmt) else f"({after})"
            fault = Fault(path, function, kind, statement, ast.unparse(old), after, 0, old.lineno,
                          (start, stop))  # fmt: skip
            found.append(replace(fault, nth=seen[fault.key]))
            seen[fault.key] += 1
        for child in _children(node):
            if not _spared(child):
                visit(child, function, statement)

    if path not in PROSE_FILES:
        visit(ast.parse(text), "", "")
    return found


def _first_line(node: ast.stmt) -> str:
    """As it reads without the block that follows."""
    bare = copy.copy(node)
    for block in ("body", "orelse", "finalbody", "handlers"):
        if hasattr(bare, block):
            setattr(bare, block, [])
    return ast.unparse(bare).strip()


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations and decorators."""
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "bases", "type_comment"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def _spared(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in PROSE
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("warn", "TypeVar", "cast")):
        return True
    if isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef):
        own = [node.test] if isinstance(node, ast.If | ast.While) else [node]
        if isinstance(node, ast.For | ast.With | ast.Try):
            own = []
        names = {n.id for part in own for n in ast.walk(part) if isinstance(n, ast.Name)}
        return bool(names & TUNING) and not isinstance(node, ast.If | ast.While)
    # A condition on a tuning constant is one; what it guards is not.
    return isinstance(node, ast.Compare) and bool(
        {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & TUNING
    )


def every(folder: str) -> list[Fault]:
    """All faults of a folder's files."""
    files = sorted((SOURCE / folder).glob("*.py"))
    return [fault for file in files for fault in all_faults(f"{folder}/{file.name}")]


def drawn(folder: str, seed: int = SEED, count: int = COUNT) -> list[Fault]:
    """The mutants of a folder, by file and line."""
    taken: dict[tuple[str, str, str], Fault] = {}
    for fault in sorted(every(folder), key=lambda fault: fault.number(seed)):
        taken.setdefault((fault.path, fault.function, fault.statement), fault)
    return sorted(list(taken.values())[:count], key=lambda fault: (fault.path, fault.line))
