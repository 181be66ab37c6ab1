"""Compiling: an algorithm becomes a program for the frozen computer.

The passes, each in the file of its name: trace, ranges, select, tables, assemble.
"""

from __future__ import annotations

import linecache
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

from iceform import extensions, tuning
from iceform.arithmetic import at_most
from iceform.arithmetic.units import next_power_of_two
from iceform.certificates import Certificate, in_form
from iceform.computer.assemble import Assembled, assemble
from iceform.computer.budget import Budget, certify
from iceform.computer.diagnose import Diagnosis, diagnose
from iceform.computer.divisors import divide_by_either_sign
from iceform.computer.explain import explain
from iceform.computer.graph import MOST_TURNS, Graph, Parameter, run_exactly
from iceform.computer.instructions import Assembly
from iceform.computer.interpret import Interpreted, interpret
from iceform.computer.language import Algorithm
from iceform.computer.loop_bounds import growths
from iceform.computer.loop_slices import RangesAtParameters
from iceform.computer.proofs import ExactDistance, enclose
from iceform.computer.ranges import SAMPLED, ProgramDomain, Ranges, find_ranges, seen_in_run
from iceform.computer.select import select
from iceform.computer.tables import SHARE, ProgramTables, narrower
from iceform.computer.turn_counts import most_turns
from iceform.computer.values import is_number
from iceform.computer.virtual import SelectedCode, VirtualCode, VirtualInstruction, VirtualLoop
from iceform.computer.whole_numbers import check_whole
from iceform.errors import (
    BoundError,
    CompileError,
    IceformError,
    PrecisionError,
    PrecisionWarning,
    ProgramError,
    ShapeError,
    TargetError,
)
from iceform.program import Node, Range, SourceLine
from iceform.validation import check_capacity, check_positive, check_size, full_precision

_LEAST = torch.finfo(torch.float64).eps
# Where an example's answer is off by more than a quarter of eps: finer tables and sharper
# comparisons, then these margins too.
_FINER, _MARGINS = SHARE * 2.0**-5, (4, 3 / 2)


class Checkpoint(Protocol):
    """A folder that transformers loads, with a program for its prompt."""

    @property
    def path(self) -> Path:
        """The folder."""

    def prompt(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Tensor:
        """``inputs_embeds``: the program and these data."""

    def read(self, hidden: Tensor) -> Any:
        """The answer in ``last_hidden_state``, in the form that the algorithm returns."""

    def check(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Any:
        """Load it, attest it, run it, and enclose the distance from the exact program."""


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled algorithm, as :func:`iceform.compile` makes it.

    It is run by a :class:`~iceform.computer.Computer`. ``certificate`` bounds the error of every
    run on data of its domain, ``explain()`` lists its instructions and what each adds to that,
    ``diagnose(X, y)`` says which lines lose precision on given data, and ``to(...)`` writes it
    into a stock transformer.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> program = ice.compile(energy, dim=1, samples=3)
    >>> program.certificate.error < 1e-8, program.plan["instructions"]
    (True, 3)
    >>> program.reference([[0.5], [1.0], [-1.0]])
    tensor([0.7500], dtype=torch.float64)
    """

    algorithm: Algorithm
    graph: Graph
    ranges: Ranges
    assembled: Assembled
    fused: SelectedCode
    eps: float
    share: float = SHARE  # of eps that one look-up may be off by

    def __repr__(self) -> str:
        tables, n = self.assembly.tables, len(self.assembly.instructions)
        return (
            f"Program({self.name}, dim={self.graph.dim}, samples={self.samples}, eps={self.eps}: "
            f"{n} instructions, {len(tables)} tables with {sum(t.tokens for t in tables)} entries)"
        )

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.graph.name

    @property
    def assembly(self) -> Assembly:
        """Instructions, variables and tables."""
        return self.assembled.assembly

    @property
    def samples(self) -> int:
        """The most samples that it was compiled for."""
        return self.domain.samples

    @property
    def domain(self) -> ProgramDomain:
        """What data and parameters may be."""
        return self.ranges.domain

    def parameters(self, **settings: Any) -> dict[str, Tensor]:
        """Every parameter's value, defaults filled in."""
        found = self.algorithm.values(self.graph.dim, settings)
        check_whole(self.graph, found)
        return found

    @property
    def counts(self) -> set[str]:
        """The parameters that count turns of a loop."""
        return self.graph.counts

    def written(self, **settings: Any) -> dict[str, Tensor]:
        """Every parameter as a prompt holds it: numbers, or vectors where the program has one."""
        given = self.parameters(**settings)
        wide = self.assembly.parameters
        return {name: value if wide[name] else value[0] for name, value in given.items()}

    def reference(self, X: Any, y: Any = None, **settings: Any) -> Any:
        """The exact algorithm on tensors, but for float64's rounding."""
        return self.algorithm(X, y, **settings)

    def traced(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Any:
        """The graph run on tensors."""
        return self.packed(run_exactly(self.graph, self._given(X, y, settings)))

    def checked(self, X: Any, y: Any = None, **settings: Any) -> tuple[Tensor, Tensor]:
        """Samples (n, d) and targets (n,) in float64; what does not fit is refused."""
        x, targets = self.algorithm.samples(X, y, self.graph.dim)
        if len(x) > self.samples:
            raise ShapeError(
                f"{self.name} was compiled for at most {self.samples} samples, got {len(x)}; "
                f"compile with samples={len(x)}"
            )
        self.domain.check(x, targets, self.parameters(**settings))
        return x, targets

    def _given(self, X: Tensor, y: Tensor | None, settings: dict[str, Any]) -> dict[str, Tensor]:
        targets = self.algorithm.targets(X, y)
        return {"x": X, "y": targets[:, None], **self.parameters(**settings)}

    def interpreted(
        self,
        X: Tensor,
        y: Tensor | None = None,
        *,
        exact: bool = False,
        width: int | None = None,
        **settings: Any,
    ) -> Interpreted:
        """The instructions run without attention; see :mod:`iceform.computer.interpret`."""
        targets = self.algorithm.targets(X, y)
        given = self.parameters(**settings)
        return interpret(self.assembly, X, targets, given, exact=exact, width=width)

    def enclosed(
        self, X: Tensor, y: Tensor | None, computed: Mapping[str, Tensor], eps: float = 0.0,
        **settings: Any,
    ) -> ExactDistance:  # fmt: skip
        """The distance of computed answers from the exact ones, in ball arithmetic.

        A comparison that came too near to a tie is refused where answers are off by more than eps.
        """
        given = self._given(X, y, settings)
        columns = {
            n: v[..., None] if self.graph.outputs[n].width is None else v
            for n, v in computed.items()
        }
        return enclose(self.graph, self.ranges, self.fused.gaps, given, columns, eps)

    def certify(
        self, dtype: torch.dtype = torch.float64, backend: str = "auto", **settings: Any
    ) -> tuple[Certificate, dict[VirtualInstruction, Budget]]:
        """What is known before the fact at given parameters, and what every instruction adds.

        That is on the computer that :meth:`Computer.for_programs` makes for this program alone.
        ``backend`` is that of a run; "auto" is "fused", which is what frozen weights run by.
        """
        width = next_power_of_two(self.assembly.width)
        return self.certified_on(width, dtype, backend, settings)

    def certified_on(
        self, width: int, dtype: torch.dtype, backend: str, settings: Mapping[str, Any]
    ) -> tuple[Certificate, dict[VirtualInstruction, Budget]]:
        """As :meth:`certify`, on a computer whose values have so many components."""
        backend = "fused" if backend == "auto" else backend
        given = self.parameters(**settings)
        self.domain.check_parameters(given)
        scalars = {n: float(v[0]) for n, v in given.items() if not self.graph.parameters[n].vector}
        values, loops = (
            RangesAtParameters(self.ranges, scalars),
            list(_virtual_loops(self.fused.code)),
        )
        counts = {loop: values[n] for loop in loops if (n := loop.source.count) is not None}
        turns = {loop: (math.ceil(c.low), math.floor(c.high)) for loop, c in counts.items()}
        for loop in loops:
            most = None if loop in turns else most_turns(loop.source, self.ranges)
            if most is not None:
                turns[loop] = (0, most)
        grown = {loop: tuple(growths(loop.source, values)) for loop in loops}
        return certify(self.fused, self.assembled, self.ranges, turns, grown, width, dtype, backend)

    @cached_property
    def _certified(self) -> tuple[Certificate, dict[VirtualInstruction, Budget]]:
        return self.certify()

    @property
    def certificate(self) -> Certificate:
        """What is known before the fact, for all data of the domain and default turns of loops."""
        return self._certified[0]

    @property
    def budget(self) -> dict[VirtualInstruction, Budget]:
        """What every instruction adds to the error."""
        return self._certified[1]

    def diagnose(self, X: Tensor, y: Tensor | None = None, **settings: Any) -> Diagnosis:
        """Which lines lose precision on these data, what comes near to a tie or to 0, and a bound.

        Returns
        -------
        A :class:`~iceform.computer.diagnose.Diagnosis`; ``print`` shows the worst of each kind.
        """
        return diagnose(self, *self.checked(X, y, **settings), settings)

    def with_bounds(self, bounds: Mapping[str, Range]) -> Program:
        """The same program compiled with other bounds of names that loops carry."""
        old = self.ranges
        stated = {**old.bounds, **bounds}
        ranges = find_ranges(self.graph, old.domain, stated, old.example, old.margin)
        return _selected(self.algorithm, self.graph, ranges, self.eps, self.share)

    def explain(self) -> str:
        """The program as assembly, with the error budget of each instruction."""
        return explain(self)

    @overload
    def to(
        self, name: str, path: str | Path, *, trainable: Literal[False] = ..., **settings: Any
    ) -> Checkpoint: ...

    @overload
    def to(
        self, name: str, path: str | Path | None = ..., *, trainable: Literal[True], **settings: Any
    ) -> Any: ...

    def to(
        self,
        name: str,
        path: str | Path | None = None,
        *,
        mode: str | None = None,
        cycles: int | None = None,
        dtype: str = "float64",
        beside: Iterable[Program] = (),
        trainable: bool = False,
        **settings: Any,
    ) -> Any:
        """Write a stock transformer that runs this program.

        Parameters
        ----------
        name
            "albert" (layers shared: depth is the number of cycles), "bert" (unrolled), and for
            programs that are descent on least squares "gpt2" or, in float32, "llama".
        path
            The folder, for ``transformers.AutoModel.from_pretrained``; None where it is trainable
            and shall not be saved.
        mode
            "prompt": the program is in the prompt, the weights know the sizes alone. "weights":
            its instructions are layers, two each, of a "bert"; loops are unrolled as these
            settings say, and data, parameters and tables are in the prompt. "descent": the program
            is recognised as gradient descent, and each of its steps is one layer of a "gpt2" or
            "llama" (least squares with penalty, momentum, any step sizes) or two of a "bert" (any
            bounded f of the residual); step size, penalty and momentum are in the prompt.
            "full_batch": the same for any bounded f as a "gpt2" or "llama", 3 n + 1 layers a
            step, n the samples that the program was compiled for. None:
            "descent" for "gpt2" and "llama", "weights" for a "bert" whose loops are counted and
            that is given neither ``cycles`` nor ``beside``, else "prompt".
        cycles
            Prompt mode: instructions that a run may take; None for what these settings take, and
            the programs beside with their defaults.
        dtype
            "float64" or "float32".
        beside
            Prompt mode: other programs that the same weights shall hold.
        trainable
            Write a "gpt2" of a given ``shape`` with moderate weights, for prompts x1, y1, x2, ...
            (``layout="garg"``); ``fill``, ``parts`` and ``seed`` are as for
            ``ice.lab.compiled``. It is not certified.
        **settings
            Parameters that prompts hold unless told otherwise.

        Returns
        -------
        The folder with ``prompt(X, y)``, ``read(hidden)`` and ``check(X, y)``; where it is
        trainable, an ``ice.lab.TrainableNetwork``.

        Raises
        ------
        TargetError
            If it cannot be done; the message says why.
        """
        if trainable:
            return extensions.find("writers", "trainable")(self, name, path, **settings)
        if path is None:
            raise TargetError("a certified checkpoint is written into a folder: give path=")
        write: Callable[..., Checkpoint] = extensions.find("writers", "checkpoint")
        return write(
            self, name, path, mode=mode, cycles=cycles, dtype=dtype, beside=beside, **settings
        )

    def text(self, X: Any, y: Any = None, **settings: Any) -> Any:
        """The program on these data as a text for a GPT-2 that runs what is typed.

        ``settings`` are parameters of the algorithm, and ``sizes`` of the machine. Returns an
        :class:`iceform.targets.text.from_program.AlgorithmText`.
        """
        return extensions.find("writers", "text")(self, X, y, **settings)

    @property
    def plan(self) -> dict[str, int]:
        """What it takes, before anything is built."""
        a = self.assembly
        return {
            "instructions": len(a.instructions),
            "variables": len(a.variables),
            "width": a.width,
            "tables": len(a.tables),
            "entries": sum(t.tokens for t in a.tables),
            "samples": self.samples,
        }

    def packed(self, outputs: Mapping[str, Tensor]) -> Any:
        """Answers in the way that the author returns them."""
        form = self.graph.packed
        return outputs["value"] if form == "one" else in_form(form, outputs)


@full_precision
def compile(
    algorithm: Algorithm,
    dim: int | None = None,
    samples: int | None = None,
    domain: Any = None,
    eps: float = 1e-8,
    bounds: Mapping[str, Any] | None = None,
    example: Any = None,
    margin: float | None = None,
    **parameter_ranges: Any,
) -> Program:
    r"""Compile an algorithm into a program for the frozen computer.

    Parameters
    ----------
    algorithm
        A function decorated with ``@ice.algorithm``.
    dim, samples
        d, and the largest n; None for those of the example.
    domain
        What the data may be: None for \\|x\\|, \\|y\\| <= 1, a number B for \\|x\\|, \\|y\\| <= B,
        or ``{"x": (low, high), "y": (low, high)}``; None for one that is not named, and a list of
        pairs for the features one by one. With an example, None is what its data span, each feature
        for itself, and as much once more at each end.
    eps
        The error that tables are made for.
    bounds
        Of names that loops carry: ``{"w": 4.0}`` says that \\|w\\| <= 4, ``{"w": (0, 1)}`` a range.
    example
        Data such as those to come, (X, y), or X for an algorithm of x alone. The algorithm is run
        on them with its default parameters. Where intervals say too little, values are assumed to
        be at most 32 times as large as they were there (8 times where they are compared, divided by
        or the like), and what is divided by at least a thirty-second as far from 0. Every run
        checks that, and its answer is refused, with the line, where it fails. Where the answer on
        the example is not within eps so, tables are made finer and comparisons sharper, and then a
        margin of 4 or 1.5 is taken.
    margin
        How many times as large as in the example values may be, and how many times nearer to 0
        where it matters, in place of these numbers: a number above 1. A small one makes narrow
        ranges, so that more is known before the fact, and more runs are refused.
    **parameter_ranges
        For a parameter ``lr``, ``lr=(0.01, 1)``; without, from a sixteenth to twice its default.

    Raises
    ------
    CompileError
        Quotes the line of the algorithm that cannot be compiled.

    Examples
    --------
    >>> @ice.algorithm
    ... def energy(x):
    ...     return ice.mean(x * x)
    >>> ice.compile(energy, dim=1, samples=3)
    Program(energy, dim=1, samples=3, eps=1e-08: 3 instructions, 3 tables with 87 entries)
    """
    if not isinstance(algorithm, Algorithm):
        raise ProgramError(
            f"compile takes a function made by @ice.algorithm, got {type(algorithm).__name__}"
        )
    data = None if example is None else _example(algorithm, example, dim)
    dim = data["x"].shape[1] if dim is None and data is not None else dim
    samples = len(data["x"]) if samples is None and data is not None else samples
    dim, samples = check_size("dim", dim), check_size("samples", samples)
    check_positive("eps", eps)
    if margin is not None and not (example is not None and margin > 1 and math.isfinite(margin)):
        raise ProgramError(
            f"margin is how far values may go beyond those of an example, a number above 1; got "
            f"{margin!r}" + (" and no example" if example is None else "")
        )
    if eps < _LEAST:
        raise PrecisionError(
            f"eps = {eps:.3g} is below what float64 tells apart at 1; ask for "
            f"{at_most(_LEAST, '.2g')} or more",
            best=_LEAST,
        )
    check_capacity(
        f"tracing {algorithm.name} on random data",
        tuning.COMPILE_HELD * dim * min(samples, SAMPLED),
        torch.device("cpu"),
        "compile it for fewer features",
    )
    graph = algorithm.graph(dim)
    spanned = {} if data is None else {n: _spanned(data[n]) for n in ("x", "y")}
    space = _domain(graph, domain, samples, parameter_ranges, spanned)
    seen: dict[Node, Range] = {}
    if data is not None:
        given = {**data, **algorithm.values(dim, {})}
        space.check(data["x"], data["y"], {})
        seen_in_run(graph, given, seen, MOST_TURNS)
        if divide_by_either_sign(graph.block, seen):
            seen_in_run(graph, given, seen, MOST_TURNS)
    stated = {n: _range(n, b) for n, b in (bounds or {}).items()}
    program, right = _fitting(algorithm, graph, space, stated, seen, margin, eps, data)
    coarse = [] if right else list(_coarse(program.assembled, eps))
    if coarse:
        _warn_of_tables(coarse, eps)
    return program


def _fitting(
    algorithm: Algorithm, graph: Graph, space: ProgramDomain, stated: Mapping[str, Range],
    seen: Mapping[Node, Range], margin: float | None, eps: float, data: Mapping[str, Tensor] | None,
) -> tuple[Program, bool]:  # fmt: skip
    """A program whose answer on the example is within eps, and whether it is one.

    Where it is not at first, tables are made finer and comparisons sharper; then ranges are made
    narrower, as if the author had stated a margin. Without an example there is one way, and nothing
    to tell by.
    """
    margins = _MARGINS if data is not None and margin is None else ()
    ways = [(margin, SHARE), (margin, _FINER), *((m, _FINER) for m in margins)]
    found: tuple[float, Program] | None = None
    refused: CompileError | None = None
    for number, (width, share) in enumerate(ways):
        try:
            ranges = find_ranges(graph, space, stated, seen, width)
            program = _selected(algorithm, graph, ranges, eps, share)
        except CompileError as error:
            refused = refused or error
            if not margins:
                break
            continue
        if data is None:
            return program, False
        off = _off_by(program, data)
        if found is None or off < found[0]:
            found = off, program
        if off <= 1 and (4 * off <= 1 or number > 0):
            break
    if found is None:
        assert refused is not None
        raise refused
    return found[1], found[0] <= 1


def _selected(
    algorithm: Algorithm, graph: Graph, ranges: Ranges, eps: float, share: float
) -> Program:
    """Instructions and tables of a graph with ranges."""
    fused = select(graph, ranges, eps * share, sharp=share < SHARE)
    assembled = assemble(graph, fused, ProgramTables(eps * share))
    return Program(algorithm, graph, ranges, assembled, fused, eps, share)


def _coarse(
    assembled: Assembled, eps: float
) -> Iterator[tuple[VirtualInstruction, float, float, float]]:
    """Look-ups that are off by more than eps, relative to what they hold where that is large.

    By how much, how large what they hold is, and what eps allows. Errors count in the units of the
    program: a register holds its value divided by a power of two.
    """
    told: set[tuple[str, SourceLine | None]] = set()
    for i, virtual in zip(assembled.assembly.instructions, assembled.virtual, strict=True):
        table = assembled.assembly.table(i.table)
        if virtual is None or table.jump is not None or (i.table, virtual.place) in told:
            continue
        told.add((i.table, virtual.place))
        scale = virtual.dst.scale
        off, size = (table.f_error + table.g_error) * scale, virtual.dst.range.size * scale
        allowed = eps * max(1.0, size)
        if off > allowed:
            yield virtual, off, size, allowed


def _off_by(program: Program, data: Mapping[str, Tensor]) -> float:
    """What the answer on an example is off by, as a multiple of what eps allows, entry by entry.

    That is by the tables and without attention.
    """
    X, y = data["x"], data["y"][:, 0]
    exact = run_exactly(program.graph, program._given(X, y, {}))
    try:
        found = program.interpreted(X, y).outputs
    except IceformError:
        return math.inf
    shares = [
        (found[n].reshape(v.shape) - v).abs() / v.abs().clamp(min=1.0) for n, v in exact.items()
    ]
    each = torch.cat([share.flatten() for share in shares]).nan_to_num(nan=math.inf)
    return float(each.max()) / program.eps


def _warn_of_tables(
    coarse: list[tuple[VirtualInstruction, float, float, float]], eps: float
) -> None:
    """Say which look-ups are off by more than eps, and which narrower range would do."""
    for virtual, off, size, allowed in coarse:
        place = virtual.place
        source = "" if place is None else linecache.getline(place.file, place.line).strip()
        found = narrower(virtual, allowed / virtual.dst.scale)
        mend = (
            "give narrower ranges to parameters, bounds to names, or ice.bounded to a value"
            if found is None
            else f"its argument is in {found[0]}, and if it stays in {found[1]}, say so: "
            "ice.bounded(value, low, high), or bounds= of a name"
        )
        what = f"which computes {virtual.dst.name}, " if virtual.dst.name else ""
        warnings.warn(
            f"a look-up in line {place.line if place else '?'}, {source!r}, {what}is off by "
            f"{off:.2g} where values reach {size:.2g}, and eps = {eps:.2g} allows "
            f"{allowed:.2g}; {mend}, or compile with eps={off / max(1.0, size):.2g}",
            PrecisionWarning,
            stacklevel=4,
        )


def _virtual_loops(code: VirtualCode) -> Iterator[VirtualLoop]:
    for item in code.items:
        if isinstance(item, VirtualLoop):
            yield item
            yield from _virtual_loops(item.body)


def _example(algorithm: Algorithm, example: Any, dim: Any) -> dict[str, Tensor]:
    """X (n, d) and y (n, 1) of an example."""
    several = isinstance(example, tuple)
    if several and len(example) != 2:
        raise ShapeError(
            f"an example is (X, y), or X for an algorithm of x alone; got a tuple of {len(example)}"
        )
    x, targets = algorithm.samples(*(example if several else (example, None)))
    if dim not in (None, x.shape[1]):
        raise ShapeError(
            f"dim is {dim}, and the X of the example has {x.shape[1]} features: leave dim out, or "
            "give an example of as many"
        )
    for name, values in (("X", x), ("y", targets)):
        if not bool(values.isfinite().all()):
            worst = float(values[~values.isfinite()][0])
            raise BoundError(
                f"{name} of the example holds {worst}, and ranges are taken from it: leave such "
                "samples out"
            )
    return {"x": x, "y": targets[:, None]}


def _spanned(columns: Tensor) -> list[Range]:
    """What the columns of data span, and more."""
    ends = zip(columns.amin(0).tolist(), columns.amax(0).tolist(), strict=True)
    return [Range(low, high).around() for low, high in ends]


def _domain(
    graph: Graph,
    domain: Any,
    samples: int,
    ranges: Mapping[str, Any],
    spanned: Mapping[str, list[Range]],
) -> ProgramDomain:
    unknown = set(ranges) - set(graph.parameters)
    if unknown:
        raise ProgramError(
            f"{graph.name} has no parameter {sorted(unknown)[0]!r} to give a range; it has "
            f"{', '.join(graph.parameters) or 'none'}"
        )
    given = domain if isinstance(domain, Mapping) else dict.fromkeys(("x", "y"), domain)
    for name in set(given) - {"x", "y"}:
        raise ProgramError(f"domain has the ranges of x and y, got one of {name!r}")
    each = {n: spanned.get(n, 1.0) if given.get(n) is None else given[n] for n in ("x", "y")}
    features, (y, *_) = _features(each["x"], graph.dim), _features(each["y"], 1)
    x = reduce(Range.join, features)
    apart = features if any(f != x for f in features) else ()
    counts = graph.counts
    computed = {a.attr for node in graph.block.walk() for a in node.args if a.op == "parameter"}
    parameters = {
        name: _range(name, ranges[name])
        if name in ranges
        else _usual(p, name in counts, name in computed)
        for name, p in graph.parameters.items()
    }
    return ProgramDomain(x, y, parameters, samples, tuple(apart))


def _features(given: Any, count: int) -> list[Range]:
    """One range for each feature, out of one for all or a list of them."""
    several = isinstance(given, (list, tuple)) and not all(map(is_number, given))
    if several and len(given) != count:
        raise BoundError(f"domain has {len(given)} ranges for {count} features")
    return [_range("x", one) for one in (given if several else [given] * count)]


def _range(name: str, given: Any) -> Range:
    """``(low, high)``, or a number for +-that."""
    if isinstance(given, Range):
        return given
    pair = (-abs(given), abs(given)) if is_number(given) else given
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low <= high and math.isfinite(high - low)):
        raise BoundError(
            f"the range of {name} must be a number, or (low, high), finite and in order; got "
            f"{given!r}"
        )
    return Range(low, high)


def _usual(parameter: Parameter, counts: bool, computed: bool) -> Range:
    """The range of a parameter that was given none."""
    if isinstance(parameter.default, tuple) or parameter.vector:
        held = torch.as_tensor(parameter.default, dtype=torch.float64)
        return Range(min(-1.0, float(held.min())), max(1.0, float(held.max())))
    default = float(parameter.default)
    if counts:  # computed with as well: 0 turns must be asked for, since it may be divided by
        least = 1.0 if computed and default >= 1 else 0.0
        return Range(least, max(tuning.COMPILE_MOST_STEPS, 2 * default))
    if default == 0:
        return Range(-1.0, 1.0)
    ends = sorted((default / tuning.COMPILE_LOWER, 2 * default))
    return Range(*ends)
