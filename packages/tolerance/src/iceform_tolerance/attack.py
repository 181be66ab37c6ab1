"""Held against the bound: correct kernels on hard inputs, and a search for the worst of them.

By shape and dtype: what is printed and what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice

import torch
from torch import Tensor

from iceform.validation import dtype_name
from iceform_tolerance.backends import KernelBackend
from iceform_tolerance.cases import CASES, Inputs, Shape, draw
from iceform_tolerance.exact import plain_value, reference_and_bound
from iceform_tolerance.kernels import Recipe, random_recipe, simulate
from iceform_tolerance.kind import HARDWARE_ULPS, KernelKind

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
QUICK = ("random", "same sign")
ADVERSARIES = (
    Recipe("zero", "away", "zero", block=1, exp="apart"),
    Recipe("zero", "zero", "away", block=16, exp="up"),
    Recipe("nearest", "nearest", "nearest", order="unit", block=64),
    Recipe("away", "away", "zero", online=False, exp="apart"),
)
_PROBED = 8  # queries of a shape that the search looks at: the others are like them
_LONGEST = Shape(1, 1, 2, 8, keys=32_768)
_EVERY = 97  # small runs between two long ones


@dataclass(frozen=True)
class AttackRow:
    """A kernel on inputs beside its tolerance: of one case, or of several summed up.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> tried = row(backend_named("sdpa"), Shape(1, 1, 4, 8), torch.float32, cpu, cases=["ties"])
    >>> tried.kernel, tried.dtype, tried.elements, tried.error <= tried.bound
    ('sdpa', 'float32', 32, True)
    """

    kernel: str
    dtype: str
    case: str  # where it came nearest to its bound
    shape: str
    cases: int = 0  # attention heads with inputs of their own
    elements: int = 0
    violations: int = 0
    error: float = 0.0  # there; infinite for NaN, and where nothing ran
    bound: float = 0.0
    ratio: float = 0.0  # error / bound, the largest
    largest_error: float = 0.0
    empty_rows: str = ""  # what rows that see nothing hold: "", "zeros", "NaN", "other"
    skipped: tuple[str, ...] = ()  # cases that the kernel does not take, and why

    @classmethod
    def of(cls, rows: Sequence[AttackRow]) -> AttackRow:
        """Sum up rows of one kernel and dtype."""
        ran = [row for row in rows if row.cases]
        top = worst(ran or rows)
        most = max((row.largest_error for row in ran), default=math.inf)
        empty = ", ".join(sorted({row.empty_rows for row in ran} - {""}))
        skipped = tuple(why for row in rows for why in row.skipped)
        if not ran:
            top = replace(top, case="", error=math.inf, ratio=math.inf)
        return replace(
            top,
            cases=sum(row.cases for row in ran),
            elements=sum(row.elements for row in ran),
            violations=sum(row.violations for row in ran),
            largest_error=most,
            empty_rows=empty,
            skipped=skipped,
        )

    def to_dict(self) -> dict[str, object]:
        """For JSON: None is infinite."""
        unknown = (math.inf, -math.inf)
        return {name: None if x in unknown else x for name, x in asdict(self).items()}


def examine(
    out: Tensor, inputs: Inputs, kind: KernelKind, kernel: str, case: str, shape: str
) -> AttackRow:
    """Compare one output with its tolerance."""
    allowed, exact = reference_and_bound(inputs.problem(), kind)
    off = ((out.double() - exact.value).abs() - exact.error).clamp(min=0.0)
    off = torch.where(out.isnan().to(off.device), math.inf, off)
    empty = allowed == 0
    seen = ~empty
    share = torch.where(empty, 0.0, off / allowed)
    at = int(share.argmax())
    return AttackRow(
        kernel=kernel,
        dtype=_name(inputs),
        case=case,
        shape=shape,
        cases=math.prod(inputs.q.shape[:-2]),
        elements=int(seen.sum()),
        violations=int((share > 1).sum()),
        error=float(off.flatten()[at]),
        bound=float(allowed.flatten()[at]),
        ratio=float(share.flatten()[at]),
        largest_error=float(off[seen].max()),
        empty_rows=_empty_rows(out.double()[empty]),
    )


def _name(inputs: Inputs) -> str:
    return dtype_name(inputs.q.dtype)


def _empty_rows(values: Tensor) -> str:
    if not values.numel():
        return ""
    if bool((values == 0).all()):
        return "zeros"
    return "NaN" if bool(values.isnan().all()) else "other"


def row(
    backend: KernelBackend,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = 0,
    causal: bool = False,
    cases: Sequence[str] = tuple(CASES),
) -> AttackRow:
    """Run a kernel on every case of a shape.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> tried = row(backend_named("sdpa"), Shape(1, 1, 4, 8), torch.float32, cpu, cases=["ties"])
    >>> tried.violations, tried.ratio <= 1
    (0, True)
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for case in cases:
        inputs = draw(case, shape, dtype, generator, device)
        if causal and inputs.mask is None:
            inputs = replace(inputs, causal=True)
        found.append(_against(backend, inputs, case, str(shape)))
    return AttackRow.of(found)


def _against(backend: KernelBackend, inputs: Inputs, case: str, shape: str) -> AttackRow:
    out, kind = backend.run(inputs), backend.kind(inputs.q.dtype, inputs.q.device)
    if isinstance(out, str):
        return AttackRow(backend.name, _name(inputs), case, shape, skipped=(f"{case}: {out}",))
    return examine(out, inputs, kind, backend.name, case, shape)


def attack(
    cases: int,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    backends: Sequence[KernelBackend] = (),
    *,
    seed: int = 0,
    long: bool = True,
) -> Iterator[AttackRow]:
    """Correct kernels, simulated and given, on small hard inputs, until so many cases are done."""
    generator = torch.Generator().manual_seed(seed)
    done = 0
    for turn, (case, dtype) in enumerate(cycle((c, t) for c in CASES for t in dtypes), start=1):
        if done >= cases:
            return
        shape = _LONGEST if long and turn % _EVERY == 0 else _small(generator)
        inputs = draw(case, shape, dtype, generator, device)
        online = bool(torch.randint(2, (), generator=generator))
        recipe = random_recipe(generator, online)
        if shape is _LONGEST:
            recipe = replace(recipe, order="unit", block=512)
        kind = KernelKind.of(dtype, online=online, exp_ulps=HARDWARE_ULPS)
        out = simulate(inputs.problem(), kind, recipe)
        found = [examine(out, inputs, kind, "simulated", case, str(shape))]
        found += [_against(one, inputs, case, str(shape)) for one in backends]
        done += sum(row.cases for row in found)
        yield from found


def attacked(
    cases: int,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    backends: Sequence[KernelBackend] = (),
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[AttackRow]:
    """Attack the bound with so many cases; a row for each kernel and dtype.

    Examples
    --------
    >>> [one] = attacked(32, [torch.bfloat16], torch.device("cpu"))
    >>> one.kernel, one.dtype, one.violations
    ('simulated', 'bfloat16', 0)
    """
    groups: dict[tuple[str, str], list[AttackRow]] = {}
    done = 0
    for found in attack(cases, dtypes, device, backends, seed=seed):
        done += found.cases
        progress(done)
        groups.setdefault((found.kernel, found.dtype), []).append(found)
    return [AttackRow.of(rows) for _, rows in sorted(groups.items())]


def _small(generator: torch.Generator) -> Shape:
    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    return Shape(16, 2, pick(1, 3, 8), pick(4, 8, 16), pick(1, 7, 16, 33, 65), kv_heads=pick(1, 2))


def worst(rows: Sequence[AttackRow]) -> AttackRow:
    """The one that came nearest to its bound."""
    return max(rows, key=lambda row: row.ratio)


def search(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = 0,
    cases: Sequence[str] = ("random", "same sign", "paths", "rising maximum", "ties"),
    backends: Sequence[KernelBackend] = (),
) -> list[AttackRow]:
    """The worst that correct kernels do at a shape, simulated adversaries and given ones.

    Heads and queries are independent, so one head and a few queries stand for all. The values are
    attacked too: with v the identity a kernel returns its weights, and v = sign(weights - exact
    weights) makes their errors add up.
    """
    small = replace(shape, batch=1, heads=1, kv_heads=1, queries=min(_PROBED, shape.queries))
    small = replace(small, keys=shape.length)
    generator = torch.Generator().manual_seed(seed)
    found: list[AttackRow] = []
    for case in cases:
        inputs = draw(case, small, dtype, generator, device)
        for recipe in ADVERSARIES:
            kind = KernelKind.of(dtype, online=recipe.online, exp_ulps=HARDWARE_ULPS)
            found += _simulated(inputs, kind, recipe, case, str(shape))
        found += [_against(one, inputs, case, str(shape)) for one in backends]
    return found


def _simulated(
    inputs: Inputs, kind: KernelKind, recipe: Recipe, case: str, shape: str
) -> Iterator[AttackRow]:
    out = simulate(inputs.problem(), kind, recipe)
    yield examine(out, inputs, kind, "simulated", case, shape)
    attacked = replace(inputs, v=_worst_values(inputs, kind, recipe))
    out = simulate(attacked.problem(), kind, recipe)
    yield examine(out, attacked, kind, "simulated", f"{case}, worst values", shape)


def _worst_values(inputs: Inputs, kind: KernelKind, recipe: Recipe) -> Tensor:
    """Column c is aimed at query c."""
    keys, values = inputs.v.shape[-2:]
    seen = replace(inputs, v=torch.eye(keys).to(inputs.v).expand(*inputs.v.shape[:-2], -1, -1))
    problem = seen.problem()
    weights = simulate(problem, replace(kind, output=kind.accumulate), recipe)
    signs = torch.sign(weights - plain_value(problem)).mT  # (..., keys, queries)
    columns = list(islice(cycle(range(signs.shape[-1])), values))
    return signs[..., columns].to(inputs.v.dtype)


@dataclass(frozen=True)
class Tightness:
    """The bound over the largest error that a search among correct kernels found.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> near = tightness(Shape(1, 1, 4, 8), torch.bfloat16, cpu, cases=["ties"])
    >>> near.dtype, near.error <= near.bound
    ('bfloat16', True)
    """

    shape: str
    dtype: str
    factor: float  # bound / error, where that is smallest
    error: float
    bound: float
    case: str
    kernel: str
    native: float | None  # the same over the given kernels alone
    violations: int


def tightness(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    backends: Sequence[KernelBackend] = (),
    *,
    seed: int = 0,
    cases: Sequence[str] | None = None,
) -> Tightness:
    """Search, and say how near the worst came.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> near = tightness(Shape(1, 1, 4, 8), torch.bfloat16, cpu, cases=["ties"])
    >>> near.violations, near.factor >= 1
    (0, True)
    """
    options = {} if cases is None else {"cases": cases}
    found = search(shape, dtype, device, seed=seed, backends=backends, **options)
    top = worst(found)
    given = [f for f in found if f.kernel != "simulated" and not f.skipped]
    return Tightness(
        shape=str(shape),
        dtype=top.dtype,
        factor=1 / top.ratio,
        error=top.error,
        bound=top.bound,
        case=top.case,
        kernel=top.kernel,
        native=1 / worst(given).ratio if given and worst(given).ratio > 0 else None,
        violations=sum(f.violations for f in found),
    )
