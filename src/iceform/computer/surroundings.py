"""What an author's function may read that is no value of its program, and whether it changes.

A loop is traced a few times and runs as often as its count says, so every turn must write the same
graph. Python is deterministic: a turn that begins with the same surroundings as the one before it
does the same. **Surroundings** are everything that the function can read: names of its frames that
may still be read (:func:`live`), closures, defaults, attributes, the globals that its code names,
and the same of every function that it reaches. They are written down before and after every turn,
and a turn that changes them is refused; by induction all further turns are like the traced ones.

That needs two things more, and both are refused where they fail. What is reached must be open to
inspection: a generator, an ``itertools.count`` or a file keeps its state where nobody can look. And
nothing may come from outside, such as the time or a random number: functions that are written in C
must be known to depend on their arguments alone.
"""

from __future__ import annotations

import builtins
import dis
import functools
import random
import re
import struct
import sys
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from iceform.computer.graph import refuse
from iceform.computer.values import Value, is_number
from iceform.program import SourceLine

# Packages whose functions depend on their arguments alone, but for what _OUTSIDE names.
_TRUSTED = frozenset({
    "iceform", "torch", "numpy", "math", "cmath", "operator", "_operator", "itertools",
    "functools", "_functools", "fractions", "numbers", "statistics", "collections",
    "_collections", "dataclasses", "enum", "typing", "types", "abc", "_abc", "copy", "bisect",
    "_bisect", "heapq", "_heapq", "string", "contextlib", "jaxtyping", "beartype",
})  # fmt: skip
# Of torch and NumPy: what reads files, memory as it was, or entropy
_OUTSIDE = frozenset({
    "empty", "empty_like", "empty_strided", "seed", "initial_seed", "load", "loadtxt",
    "genfromtxt", "fromfile", "memmap", "from_file", "hub",
})  # fmt: skip
_IMPURE = frozenset({
    "id", "hash", "open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "dir",
    "__import__", "breakpoint", "help", "memoryview",
})  # fmt: skip
_PLAIN: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, Fraction, type(...), range, slice,
    torch.dtype, torch.device, torch.Size, np.dtype, np.generic,
)  # fmt: skip
_HOLDERS = (list, tuple, dict, set, frozenset, deque, MappingProxyType)
_OPEN = (object, *_HOLDERS, OrderedDict, defaultdict, int, float, complex, str, bytes)
_DESCRIPTORS = (
    ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    WrapperDescriptorType,
)  # fmt: skip
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)

_POINTER = struct.calcsize("P")

Path = str
Token = Any


@dataclass
class Snapshot:
    """Surroundings at one moment: what every path to something held, and the objects themselves."""

    tokens: dict[Path, Token] = field(default_factory=dict)
    objects: list[Any] = field(default_factory=list)  # kept alive, so that no id is used twice
    paths: dict[tuple[int, str], Path] = field(default_factory=dict)

    def changed(self, later: Snapshot) -> Path | None:
        """The first path under which something else is found later."""
        for path in [*self.tokens, *later.tokens]:
            before, after = self.tokens.get(path, _MISSING), later.tokens.get(path, _MISSING)
            if before != after and not _one_name(before, after):
                return path
        return None


_MISSING = "nothing"


@dataclass(frozen=True)
class _CarriedValue:
    """A value of the program: what it is, and the names under which the loop carries it."""

    value: int
    handle: int
    names: frozenset[str]


def _one_name(before: Token, after: Token) -> bool:
    """Whether both are the value of one name, which the loop carries."""
    both = isinstance(before, _CarriedValue) and isinstance(after, _CarriedValue)
    return both and bool(before.names & after.names)


class Surroundings:
    """Everything that an author's function can read, written down and watched."""

    def __init__(self, function: Any, place: SourceLine | None) -> None:
        self.function, self.place = function, place
        self.codes: set[CodeType] = set()  # of the author's side
        self.names: set[str] = set()  # that these codes name
        self.foreign: str | None = None  # a call that the watch did not know
        self._before: Any = None

    # ------------------------------------------------------------------------------- the moment

    def seen(
        self, frame: FrameType | None = None, carried: Mapping[str, Any] | None = None
    ) -> Snapshot:
        """The surroundings now; of a loop in ``frame`` too, less the values that it carries."""
        while True:
            known = len(self.names)
            out = self._once(frame, carried or {})
            if len(self.names) == known:  # attributes of packages are looked up by these names
                return out

    def _once(self, frame: FrameType | None, carried: Mapping[str, Any]) -> Snapshot:
        walk = _Traversal(self, carried)
        walk.add("the random numbers of Python", hash(random.getstate()))
        state: Any = np.random.get_state()  # noqa: NPY002
        walk.add("the random numbers of NumPy", (state[1].tobytes(), *state[2:]))
        walk.add("the random numbers of torch", torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_initialized():
            states = [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
            walk.add("the random numbers of torch on GPUs", tuple(states))
        for depth, one in enumerate(self._frames(frame)):
            names = live(one)
            for name, value in one.f_locals.items():
                if name in names and depth == 0:
                    walk.named(name, value)
                elif name in names:
                    walk.visit(f"{name} of {one.f_code.co_name}, {depth} calls out,", value)
        walk.visit(getattr(self.function, "__name__", "the function"), self.function)
        return walk.out

    def _frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """From a loop's frame out to the function's own."""
        code = getattr(self.function, "__code__", None)
        while frame is not None:
            if not _trusted(frame.f_globals.get("__name__")):
                yield frame
            if frame.f_code is code:
                return
            frame = frame.f_back

    # -------------------------------------------------------------------------------- the watch

    def __enter__(self) -> Surroundings:
        self._before = sys.getprofile()
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and self.foreign is None and frame.f_code in self.codes:
            why = _reads_outside(argument)
            if why:
                self.foreign = f"{_called(argument)} in line {frame.f_lineno}, {why}"

    def check_calls(self) -> None:
        """Refuse what was called and may read something from outside."""
        if self.foreign is not None:
            raise refuse(_advice(f"this algorithm calls {self.foreign}"), self.place)


def _advice(what: str) -> str:
    return (
        f"{what}: hidden from the program, so that turns of a loop, or two runs, may differ; "
        "compute it before and use the number, or keep what changes in names, lists, tuples or "
        "dicts of the function"
    )


def _called(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, ModuleType) else getattr(
        function, "__module__", None
    )  # fmt: skip
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", repr(function))
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def _reads_outside(function: Any) -> str:
    """Why a function in C may depend on more than its arguments; nothing if it does not."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, ModuleType) or owner is None:
        module = getattr(owner, "__name__", None) or getattr(function, "__module__", None)
        if module == "builtins" and name in _IMPURE:
            return "which looks at the interpreter or at the world around it"
        if module not in (None, "builtins") and not _trusted(module):
            return "which may read something from outside"
        return "which may read something from outside" if name in _OUTSIDE else ""
    kind = owner if isinstance(owner, type) else type(owner)
    if kind is torch.Generator and name not in _OUTSIDE:  # begins with a seed that is fixed
        return ""
    return "" if _transparent(kind) else f"which belongs to a {_kind(kind)}"


def _trusted(module: Any) -> bool:
    return (
        isinstance(module, str)
        and module.partition(".")[0] in _TRUSTED
        and not module.startswith(("numpy.random", "iceform.computer.library"))
    )


def _kind(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _transparent(kind: type) -> bool:
    """Whether what an object of this type holds is there to be seen."""
    if kind in (*_PLAIN, *_OPEN) or issubclass(kind, (Value, torch.Tensor, np.ndarray, type)):
        return True
    if kind.__module__ in ("itertools", "functools", "builtins"):
        return False
    return _trusted(kind.__module__) and kind is not torch.Generator


def _hides(kind: type) -> bool:
    """Whether objects of a type have room for something that is no attribute."""
    base = kind.__base__
    if base is None or kind in _OPEN:
        return False
    held = [name for name, part in vars(kind).items() if isinstance(part, MemberDescriptorType)]
    held += [name for name in ("__dict__", "__weakref__") if name in vars(kind)]
    return kind.__basicsize__ > base.__basicsize__ + _POINTER * len(held)


# ---------------------------------------------------------------------------------------------
# the walk
# ---------------------------------------------------------------------------------------------


class _Traversal:
    """One look at everything that can be reached."""

    def __init__(self, around: Surroundings, carried: Mapping[str, Any]) -> None:
        self.around, self.out = around, Snapshot()
        self.carried: dict[int, set[str]] = {}
        for name, value in carried.items():
            if isinstance(value, Value):
                self.carried.setdefault(id(value), set()).add(name)

    def add(self, path: Path, token: Token) -> None:
        """Write down what is under a path."""
        self.out.tokens[path] = token

    def named(self, path: Path, value: Any) -> None:
        """What a name of the loop's frame holds: values and numbers in it are the loop's own."""
        if isinstance(value, Value) or is_number(value):
            return
        if type(value) in (list, tuple, dict):
            if self._first(path, value):
                keys = list(value) if isinstance(value, dict) else len(value)
                self.add(path, (type(value), keys))
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in pairs:
                    self.named(f"{path}[{key!r}]", item)
        else:
            self.visit(path, value)

    def visit(self, path: Path, value: Any) -> None:
        """Anything."""
        if isinstance(value, _PLAIN):
            self.add(path, (type(value), repr(value)))
        elif isinstance(value, Value):
            self.out.objects += [value, value.handle]
            names = frozenset(self.carried.get(id(value), ()))
            self.add(path, _CarriedValue(id(value), id(value.handle), names))
        elif isinstance(value, ModuleType):
            self._module(path, value)
        elif self._first(path, value):
            self._object(path, value)

    def _first(self, path: Path, value: Any, part: str = "") -> bool:
        """Whether an object is met for the first time; else the path says where it was."""
        other = self.out.paths.get((id(value), part))
        if other is None:
            self.out.paths[id(value), part] = path
            self.out.objects.append(value)
        elif other != path:
            self.add(path, ("the same as", other))
        return other is None

    def _object(self, path: Path, value: Any) -> None:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            self._array(path, value)
        elif isinstance(value, FunctionType):
            self._function(path, value)
        elif isinstance(value, BuiltinFunctionType):
            self._builtin(path, value)
        elif isinstance(value, _DESCRIPTORS):
            self.add(path, id(value))
        elif isinstance(value, MethodType):
            self.visit(f"{path}.__self__", value.__self__)
            self.visit(f"{path}.__func__", value.__func__)
        elif isinstance(value, CellType):
            self.visit(path, _content(value))
        elif isinstance(value, functools.partial):
            self._parts(path, func=value.func, args=value.args, keywords=value.keywords)
        elif isinstance(value, _WRAPPERS):
            self._wrapper(path, value)
        elif isinstance(value, type):
            self._type(path, value)
        else:
            self._instance(path, value)

    def _parts(self, path: Path, **parts: Any) -> None:
        for name, part in parts.items():
            self.visit(f"{path}.{name}", part)

    def _array(self, path: Path, value: Any) -> None:
        if isinstance(value, np.memmap):
            raise self._opaque(path, value)
        if isinstance(value, np.ndarray):
            held = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
            self.add(path, (value.shape, str(value.dtype), held))
        else:
            kept = value.detach().cpu().contiguous().flatten()
            held = bytes(kept.view(torch.uint8).tolist()) if kept.numel() else b""
            self.add(path, (tuple(value.shape), str(value.dtype), held, value._version))

    def _function(self, path: Path, value: Any) -> None:
        self.add(path, id(value.__code__))
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        if _trusted(value.__globals__.get("__name__")):
            for name, cell in cells:  # what a decorator holds
                if isinstance(_content(cell), (FunctionType, MethodType, functools.partial)):
                    self.visit(f"{name} of {path}", cell)
            return self._named_attributes(path, value)
        self.add(f"{path}.__name__", (value.__name__, value.__qualname__, value.__doc__))
        self._parts(
            path, __defaults__=value.__defaults__, __kwdefaults__=value.__kwdefaults__,
            __dict__=value.__dict__,
        )  # fmt: skip
        for name, note in value.__annotations__.items():
            self.add(f"{path}: {name}", repr(note) if isinstance(note, _PLAIN) else id(note))
        for name, cell in cells:
            self.visit(f"{name} of {path}", cell)
        self._code(path, value.__code__, value.__globals__)

    def _code(self, path: Path, code: CodeType, names: Mapping[str, Any]) -> None:
        """Globals that a code names, and codes within it."""
        self.around.codes.add(code)
        self.around.names.update(code.co_names)
        for constant in _flat(code.co_consts):
            if isinstance(constant, str):
                self.around.names.add(constant)
            elif isinstance(constant, CodeType):
                self._code(path, constant, names)
        for name in code.co_names:
            if name in names:
                self.visit(f"{names.get('__name__')}.{name}", names[name])
            elif hasattr(builtins, name):
                self.visit(name, getattr(builtins, name))

    def _builtin(self, path: Path, value: Any) -> None:
        self.add(path, id(value))
        why = _reads_outside(value)
        if why:
            raise refuse(_advice(f"this algorithm uses {_called(value)}, {why}"), self.around.place)
        if not isinstance(value.__self__, (ModuleType, type, type(None))):
            self.visit(f"{path}.self", value.__self__)

    def _wrapper(self, path: Path, value: Any) -> None:
        for name in ("__func__", "fget", "fset", "fdel", "func"):
            if hasattr(value, name):
                self.visit(f"{path}.{name}", getattr(value, name))

    def _module(self, path: Path, module: ModuleType) -> None:
        """The attributes of a module that the author's codes name."""
        if module.__name__.startswith("numpy.random"):
            raise refuse(
                _advice(f"this algorithm uses {module.__name__}, which draws random numbers"),
                self.around.place,
            )
        self.add(path, id(module))
        self._named_attributes(path, module)

    def _named_attributes(self, path: Path, owner: Any) -> None:
        """Of something that is not walked through: the attributes that the author's codes name."""
        held = getattr(owner, "__dict__", {})
        if isinstance(owner, ModuleType):  # what it loads when it is asked for
            held = {n: getattr(owner, n) for n in self.around.names & {*held, *dir(owner)}}
        for name in sorted(self.around.names & set(held)):
            if name in _OUTSIDE and _trusted(getattr(owner, "__name__", None)):
                why = f"this algorithm uses {path}.{name}, which may read something from outside"
                raise refuse(_advice(why), self.around.place)
            kept = getattr(type(owner), name, None)
            if self._first(f"{path}.{name}", owner, name) and not isinstance(
                kept, functools.cached_property
            ):
                self.visit(f"{path}.{name}", held[name])

    def _type(self, path: Path, kind: type) -> None:
        self.add(path, id(kind))
        if kind.__module__ == "builtins" or _trusted(kind.__module__):
            return self._named_attributes(path, kind)
        if _hides(kind):
            raise refuse(
                _advice(f"this algorithm uses {_kind(kind)}, which the compiler does not know"),
                self.around.place,
            )
        for base in kind.__bases__:
            self.visit(f"{path}.{base.__name__}", base)
        for name, value in vars(kind).items():
            if name not in _OF_TYPES:
                self.visit(f"{path}.{name}", value)

    def _instance(self, path: Path, value: Any) -> None:
        kind = type(value)
        if isinstance(value, _HOLDERS):
            self._items(path, value)
        elif _trusted(kind.__module__) and _transparent(kind):
            self.add(path, id(value))
            return self._named_attributes(path, value)
        if any(map(_hides, kind.__mro__)):
            raise self._opaque(path, value)
        if kind not in _OPEN:
            self.visit(f"{path}.__class__", kind)
        if isinstance(value, defaultdict):
            self.visit(f"{path}.default_factory", value.default_factory)
        if isinstance(value, (int, float, complex, str, bytes)):
            self.add(path, repr(value))
        for name, part in sorted(_attributes(value)):
            self.visit(f"{path}.{name}", part)

    def _items(self, path: Path, value: Any) -> None:
        if isinstance(value, (set, frozenset)):
            self.add(path, sorted(map(repr, value)))
            return
        self.add(path, (type(value), len(value)))
        if isinstance(value, (dict, MappingProxyType)):
            for place, (key, item) in enumerate(value.items()):
                self.visit(f"{path}.keys()[{place}]", key)
                self.visit(f"{path}[{key!r}]", item)
        else:
            for place, item in enumerate(value):
                self.visit(f"{path}[{place}]", item)

    def _opaque(self, path: Path, value: Any) -> Exception:
        what = f"{path} is of type {_kind(type(value))}, which nobody can look into"
        return refuse(_advice(what), self.around.place)


_OF_TYPES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"}
)  # fmt: skip


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing in it yet
        return _MISSING


def _flat(constants: Iterable[Any]) -> Iterator[Any]:
    for constant in constants:
        if isinstance(constant, (tuple, frozenset)):
            yield from _flat(constant)
        else:
            yield constant


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Of an instance, in its dictionary and in its slots."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name, part in vars(kind).items():
            if isinstance(part, MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


# ---------------------------------------------------------------------------------------------
# names that may still be read
# ---------------------------------------------------------------------------------------------

_TOUCHED = re.compile("(LOAD|STORE|DELETE)_(?:FAST|DEREF|CLOSURE|CLASSDEREF|FROM_DICT_OR_DEREF)")
_ENDS = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE",
})  # fmt: skip


def live(frame: FrameType) -> set[str]:
    """The names of a frame that may be read, before they are written, from where it stands.

    By its own code: a function that was made before and reads a name has it in its closure.
    """
    code = frame.f_code
    if not code.co_flags & 1:  # names in a dictionary: all
        return set(frame.f_locals)
    return _live_after(code)(frame.f_lasti) | set(code.co_freevars)


@functools.lru_cache(maxsize=256)
def _live_after(code: CodeType) -> Callable[[int], set[str]]:
    """By the offset of an instruction; the usual fixed point over the ways through the code."""
    bytecode = dis.Bytecode(code)
    lines = list(bytecode)
    place = {one.offset: i for i, one in enumerate(lines)}
    after = [_following(lines, i, place) for i in range(len(lines))]
    for entry in bytecode.exception_entries:  # type: ignore[attr-defined]
        for i, one in enumerate(lines):
            if entry.start <= one.offset < entry.end:
                after[i].append(place[entry.target])
    effects = [_read_and_written(one) for one in lines]
    before: list[set[str]] = [set() for _ in lines]
    changing = True
    while changing:
        changing = False
        for i in reversed(range(len(lines))):
            read, written = effects[i]
            now = read | (_union(before, after[i]) - written)
            changing |= now != before[i]
            before[i] = now
    offsets = list(place)
    return lambda offset: _union(before, after[bisect_right(offsets, offset) - 1])


def _union(sets: list[set[str]], which: list[int]) -> set[str]:
    return set().union(*(sets[i] for i in which))


def _following(lines: list[dis.Instruction], i: int, place: Mapping[int, int]) -> list[int]:
    one = lines[i]
    out = [] if one.opname in _ENDS or i + 1 == len(lines) else [i + 1]
    if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
        out.append(place[one.argval])
    return out


def _read_and_written(one: dis.Instruction) -> tuple[set[str], set[str]]:
    """Names that an instruction reads first, and those that it writes."""
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    read: set[str] = set()
    written: set[str] = set()
    for word, name in zip(_TOUCHED.findall(one.opname), names, strict=False):
        if word == "LOAD" and name not in written:
            read.add(name)
        elif word != "LOAD":
            written.add(name)
    return read, written


def instruction(frame: FrameType) -> tuple[str, str]:
    """The instruction at which a frame stands, and the one that follows."""
    lines = [one for one in dis.get_instructions(frame.f_code) if one.opname != "EXTENDED_ARG"]
    at = bisect_right([one.offset for one in lines], frame.f_lasti) - 1
    return lines[at].opname, lines[min(at + 1, len(lines) - 1)].opname
