"""Records as tables: mean and deviation over seeds, beside what was published."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from iceform.errors import ProgramError
from studies import published
from studies.heads import ROLES, HeadsStudy
from studies.housing import HousingStudy
from studies.residual import BY_COLUMN, ResidualStudy
from studies.statistics import ALGORITHMS, StatisticsStudy
from studies.study import ABLATIONS, COLUMNS, FIGURE, SCALES, Study
from studies.training import SCHEDULES

__all__ = [
    "Rates", "Section", "Series", "Table", "comparisons", "rates", "readers", "sections",
    "summary_csv",
]  # fmt: skip

Records = Sequence[dict[str, Any]]
Row = tuple[str, ...]
_MINUS = "\N{MINUS SIGN}"
_THEIRS = "their_script"


@dataclass(frozen=True)
class Table:
    """A table of strings with a caption."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One study: what the script does, what we do, what was run of it, and its tables."""

    name: str
    title: str
    flaws: tuple[str, ...]
    read: str
    asked: str
    ran: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Summary:
    """Mean and deviation of a number over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float | None:
        """Of the sample; None for one value."""
        if len(self.values) < 2:
            return None
        off = math.fsum((v - self.mean) ** 2 for v in self.values)
        return math.sqrt(off / (len(self.values) - 1))

    @property
    def range(self) -> str:
        """The lowest and the highest."""
        return f"{number(min(self.values))} to {number(max(self.values))}"

    def __str__(self) -> str:
        return with_deviation((self.mean, self.deviation))


def number(value: float) -> str:
    """Three digits, in powers of ten where that reads better."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e5:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("-", _MINUS)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 5)}f}".replace("-", _MINUS)


def with_deviation(cell: published.Cell) -> str:
    """Mean and, where there is one, deviation."""
    mean, deviation = cell
    return number(mean) if deviation is None else f"{number(mean)} ± {number(deviation)}"


def pick(
    records: Records, study: str, column: str, metric: str, **variant: str | int | None
) -> Summary | None:
    """A metric over a cell's seeds, one value each; None asks for records without that label.

    Study 4 has two records for each seed, one a role, and what depends on the data alone is in
    both. Records of one seed that differ are different cells, and refused.
    """
    values: dict[tuple[str, int], float] = {}
    for r in records:
        labels = all(r["variant"].get(k) == v for k, v in variant.items())
        if (r["study"], r["column"]) != (study, column) or metric not in r["metrics"] or not labels:
            continue
        value, key = float(r["metrics"][metric]), (r["scale"], r["seed"])
        if values.setdefault(key, value) != value:
            raise ProgramError(
                f"{study}, {column}: seed {r['seed']} has {values[key]} and {value} for "
                f"{metric!r}; name the variant beside {variant}"
            )
    return Summary(tuple(values.values())) if values else None


def shown(found: Summary | None) -> str:
    """As in a table; a dash where nothing was run."""
    return "–" if found is None else str(found)


def sections(records: Records) -> list[Section]:
    """All four studies."""
    made = (
        (ResidualStudy(), _residual),
        (HeadsStudy(), _heads),
        (StatisticsStudy(), _regressions("statistics", published.STATISTICS)),
        (HousingStudy(), _regressions("housing", published.HOUSING)),
    )
    return [
        Section(s.name, s.title, s.flaws, s.read, s.asked, tuple(_ran(s, records)),
                tuple(build(records)))
        for s, build in made
    ]  # fmt: skip


def _ran(study: Study[Any], records: Records) -> Iterable[str]:
    """How much of each column there is, and at what length."""
    for scale in SCALES:
        own = [r for r in records if r["study"] == study.name and r["scale"] == scale]
        if not own:
            continue
        for column in COLUMNS:
            yield f"{_label(column)}: {_extent(study, column, scale, own)}"


def _extent(study: Study[Any], column: str, scale: str, own: Records) -> str:
    spec = study.spec(column, scale)
    plans = study.plans(spec, tuple(range(spec.seeds)), 1)
    wanted = sum(len(plan.seeds) for plan in plans)
    found = [r for r in own if r["column"] == column]
    if not found:
        return "not run"
    text = f"{len(found)} of {wanted} cells"
    if column == "constructed":
        return text
    lengths = {
        name: (_listed(r["spec"][name] for r in found),
               _listed(getattr(plan.spec, name) for plan in plans))
        for name in ("epochs", "samples")
    }  # fmt: skip
    return ", ".join(
        [text, *(f"{ran} of {whole} {name}" for name, (ran, whole) in lengths.items())]
    )


def _listed(values: Iterable[int]) -> str:
    return " and ".join(f"{v:,}" for v in sorted(set(values)))


def _get(
    records: Records, study: str, column: str, **variant: str | int | None
) -> Callable[[str], str]:
    return lambda metric: shown(pick(records, study, column, metric, **variant))


def _label(column: str) -> str:
    return column.replace("_", " ")


def _residual(records: Records) -> Iterable[Table]:
    rows = [
        ("published (figure)", with_deviation(published.RESIDUAL["test mse"]), "", "", "", "", ""),
    ]
    labels = {
        "script": "as published: the script's settings, targets fed as input",
        "script-without-leak": "as published, without the leak",
        "leak": "our reading: targets fed as input",
        "no-leak": "our reading, without the leak",
        "no-leak-normal-x": "… and X ~ 10 N(0, 1) − 5",
        "no-leak-w-per-sample": "… and one w per sample (uniform X)",
        "no-leak-fresh-w": "… and a fresh W per sample (uniform X)",
        "asked": "as the theorem asks",
        "asked-cosine": "as the theorem asks, cosine decay",
        "asked-unit-x": "as the theorem asks, X ~ N(0, 1)",
    }
    for column, variants in BY_COLUMN.items():
        for name in variants:
            label = _label(column) if column == _THEIRS else labels[name]
            get = _get(records, "residual", column, variant=name)
            rows.append(
                (label, get("mse"), get("r2"), get("trivial mse"), get("prompt zero mse"),
                 get("prompt random mse"), get("prompt another mse"))
            )  # fmt: skip
    get = _get(records, "residual", "constructed")
    rows.append(("constructed, no training", get("mse"), get("r2"), get("trivial mse"), "", "", ""))
    header = ("", "test MSE", "R²", "mean predictor", "zero prompt", "random prompt",
              "another's prompt")  # fmt: skip
    yield Table("Test error after training; the oracle's is 0", header, tuple(rows))
    yield Table(
        "Constructed: one frozen head on the test rows, float64",
        ("samples", "largest error", "certified", "grid tokens"),
        ((get("samples"), get("sup error"), get("certified"), get("grid tokens")),),
    )


def _main_heads(records: Records, column: str, heads: int, schedule: str | None) -> Summary | None:
    """The error of study 2's table, probes left out."""
    return pick(records, "heads", column, "mse", heads=heads, schedule=schedule, probe=None)


def _heads(records: Records) -> Iterable[Table]:
    counts = list(published.HEADS)
    rows = [("published", *(with_deviation(published.HEADS[h]) for h in counts))]
    for column, schedule, label in (
        ("their_script", "constant", "their script"),
        ("as_published", "constant", "as published: the script's settings"),
        ("our_reading", "constant", "our reading, constant rate"),
        ("our_reading", "cosine", "our reading, cosine decay"),
        ("as_the_theorem_asks", "cosine", "as the theorem asks, cosine decay"),
        ("as_the_theorem_asks", "constant", "as the theorem asks, constant rate"),
    ):
        found = [_main_heads(records, column, h, schedule) for h in counts]
        if any(f is not None for f in found):
            rows.append((label, *map(shown, found)))
    yield Table(
        "MSE of the assembled head by number of trained heads",
        ("heads", *map(str, counts)),
        tuple(rows),
    )
    yield from _heads_probes(records)
    yield from _heads_controls(records, counts)
    grids = sorted(
        {(r["variant"]["regime"], r["variant"]["grid"]) for r in records
         if r["study"] == "heads" and r["column"] == "constructed"}
    )  # fmt: skip
    body = []
    split = []
    for regime, grid in grids:
        get = _get(records, "heads", "constructed", regime=regime, grid=grid)
        if regime == "split":
            split.append((str(grid), get("entry error"), get("certified of an entry"), get("mse")))
        else:
            body.append((regime, str(grid), get("mse"), get("sup error"), get("certified")))
    if body:
        header = ("regime", "grid tokens", "MSE", "largest error", "certified on the data")
        yield Table("Constructed: the head in the prompt, no training", header, tuple(body))
    if split:
        columns = ("heads", "largest error of K, Q, V", "certified", "MSE of the output")
        yield Table(
            "Constructed in the theorem's shape: 60 tokens in each head", columns, tuple(split)
        )


def _heads_controls(records: Records, counts: Sequence[int]) -> Iterable[Table]:
    rows = []
    for column, schedule in (
        ("as_published", "constant"), ("our_reading", "constant"), ("our_reading", "cosine"),
        ("as_the_theorem_asks", "cosine"),
    ):  # fmt: skip
        for h in counts:
            get = _get(records, "heads", column, heads=h, schedule=schedule, probe=None)
            if get("mse") == "–":
                continue
            rows.append(
                (f"{_label(column)}, {schedule}", str(h), get("r2"), get("trivial mse"),
                 get("oracle mse"), get("flipped maxima"), get("prompt zero mse"),
                 get("prompt random mse"))
            )  # fmt: skip
    header = ("column", "heads", "R²", "mean predictor", "least squares", "flipped maxima",
              "zero prompt", "random prompt")  # fmt: skip
    if rows:
        yield _without_empty_columns(Table("Controls", header, tuple(rows)))


_LEARNT = 0.01  # mean squared error of a network's K, Q or V that has left the plateau


def _heads_probes(records: Records) -> Iterable[Table]:
    """The head count that was looked at more closely: how many of its networks have learnt."""
    kinds: dict[str, dict[str, str | None]] = {
        "constant rate": {"schedule": "constant", "probe": None},
        "cosine decay": {"schedule": "cosine", "probe": None},
        "constant rate, Glorot start": {"schedule": "constant", "probe": "xavier"},
        "constant rate, longer": {"schedule": "constant", "probe": "longer"},
    }
    own = [r for r in records if r["study"] == "heads" and r["column"] == "our_reading"]
    probed = {r["variant"]["heads"] for r in own if "probe" in r["variant"]}
    rows = []
    for label, variant in kinds.items():
        found = [
            r for r in own
            if r["variant"]["heads"] in probed
            and all(r["variant"].get(k) == v for k, v in variant.items())
        ]  # fmt: skip
        if not found:
            continue
        networks = [r["metrics"][f"mse of {role}"] for r in found for role in ROLES]
        learnt = sum(error < _LEARNT for error in networks)
        mse = Summary(tuple(r["metrics"]["mse"] for r in found))
        epochs = _listed(r["spec"]["epochs"] for r in found)
        rows.append((label, epochs, str(mse), f"{learnt} of {len(networks)}"))
    if rows:
        header = ("", "epochs", "MSE", f"networks with an error below {_LEARNT}")
        caption = f"{_listed(probed)} heads in our reading: where the networks stand"
        yield Table(caption, header, tuple(rows))


def _without_empty_columns(table: Table) -> Table:
    kept = [i for i, cells in enumerate(zip(*table.rows, strict=True)) if set(cells) != {"–"}]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(table.caption, tuple(table.header[i] for i in kept), rows)


_GIVEN: dict[str, str | int | None] = {"prompt": None}  # not a learnt one: study 3
_ASKED = "as_the_theorem_asks"
_BILINEAR = ("their_script", "as_published", "our_reading")  # whose label is no algorithm's
_PROMPTS = {"right prompt": "frozen"} | {
    "another algorithm's prompt" if k == "another" else f"{k} prompt": f"frozen, {k} prompt"
    for k in ABLATIONS
}
_YARDSTICKS = {
    "mean predictor, MSE to labels": "trivial mse",
    "the algorithm itself, MSE to labels": "oracle mse",
    "frozen, R² on labels": "frozen r2",
    "baseline, R² on labels": "baseline r2",
    "frozen, MSE to the algorithm": "frozen fidelity",
    "baseline, MSE to the algorithm": "baseline fidelity",
    "model trained on linear alone, MSE to labels": "linear baseline mse",
    "deviation over five test draws": "spread over test draws",
}
_MACHINE = {
    "penalty, picked on the training split": "alpha",
    "largest distance to scikit-learn's coefficients": "distance to scikit-learn",
    "certified distance to the exact ones": "certified",
    "proven (1) or estimated (0)": "proven",
    "MSE to scikit-learn's predictions": "frozen fidelity",
    "passes through the layer": "passes",
    "MSE on held-out labels": "test mse",
    "… without the five houses above 4000 sq ft": "test mse without large houses",
}
_Printed = dict[str, dict[str, published.Cell]]
_Rows = Iterable[tuple[str, Callable[[str], str], str]]  # label, a column's cells, metric


def _by_algorithm(caption: str, rows: _Rows, above: Sequence[Row] = ()) -> Iterable[Table]:
    """A column for every algorithm; rows of which nothing was run are left out."""
    body = [(label, *(get(f"{a}: {metric}") for a in ALGORITHMS)) for label, get, metric in rows]
    kept = (*above, *(row for row in body if set(row[1:]) != {"–"}))
    if kept:
        yield Table(caption, ("", *ALGORITHMS), kept)


def _regressions(study: str, printed: _Printed) -> Callable[[Records], Iterable[Table]]:
    """The tables of study 3, whose rate is constant or decays, or of study 4."""
    schedules = SCHEDULES if study == "statistics" else ("",)

    def getters(records: Records, column: str) -> Iterable[tuple[str, Callable[[str], str]]]:
        for s in schedules:
            yield s, _get(records, study, column, **({"schedule": s} if s else {}), **_GIVEN)

    def compared(records: Records) -> Iterable[Table]:
        models = ("baseline", "frozen")
        yield from _by_algorithm(
            "Error on the labels (MSE)",
            ((", ".join(filter(None, (_label(column), s, model))), get, f"{model} mse")
             for column in (*_BILINEAR, _ASKED) for s, get in getters(records, column)
             for model in models),
            [(f"published, {m}", *(with_deviation(printed[m][a]) for a in ALGORITHMS))
             for m in models],
        )  # fmt: skip

    def controls(records: Records, column: str) -> Iterable[Table]:
        for s, get in getters(records, column):
            caption = ", ".join(filter(None, ("Controls", _label(column), s)))
            yield from _by_algorithm(caption, ((n, get, m) for n, m in _YARDSTICKS.items()))

    def prompts(records: Records, column: str, measure: str, what: str) -> Iterable[Table]:
        yield from _by_algorithm(
            f"Does the prompt matter? Frozen model {_label(column)}, MSE to {what}",
            ((f"{s}, {n}" if s else n, get, f"{metric} {measure}")
             for s, get in getters(records, column) for n, metric in _PROMPTS.items()),
        )  # fmt: skip

    def tables(records: Records) -> Iterable[Table]:
        yield from compared(records)
        for column in _BILINEAR:
            yield from controls(records, column)
        for column in _BILINEAR[1:]:
            yield from prompts(records, column, "mse", "labels")
        yield from controls(records, _ASKED)
        if study == "statistics":
            yield from _between(records)
        yield from prompts(records, _ASKED, "fidelity", "the algorithm's predictions")
        if study == "statistics":
            yield from _in_context(records)
        made = _get(records, study, "constructed")
        caption = "Constructed: one frozen machine, three prompts, no training"
        yield from _by_algorithm(caption, ((n, made, metric) for n, metric in _MACHINE.items()))

    return tables


def _between(records: Records) -> Iterable[Table]:
    get = _get(records, "statistics", _ASKED, **_GIVEN)
    pairs = ("lasso to ridge", "lasso to linear", "ridge to linear")
    cells = tuple(map(get, pairs))
    if set(cells) != {"–"}:
        caption = "How far the algorithms' own predictions are apart (MSE), as the theorem asks"
        yield Table(caption, pairs, (cells,))


def _in_context(records: Records) -> Iterable[Table]:
    """Models that see the context alone beside those that are given coefficients."""
    own = [r for r in records if r["study"] == "statistics" and "layers" in r["variant"]]
    kinds = {
        f"context and a learnt prompt, {layers} layer{'s' if layers > 1 else ''}, {epochs} epochs":
        _get(records, "statistics", _ASKED, layers=layers)
        for layers, epochs in sorted({(r["variant"]["layers"], r["spec"]["epochs"]) for r in own})
    } | {
        "context and the coefficients": _get(records, "statistics", _ASKED, layers=None),
        "constructed, context alone": _get(records, "statistics", "constructed"),
    }  # fmt: skip
    if own:
        caption = "What is the model given? MSE to the algorithm's predictions"
        yield from _by_algorithm(caption, ((n, get, "frozen fidelity") for n, get in kinds.items()))


# ---------------------------------------------------------------------------------------------
# a reader's table: every number of the paper's section 6
# ---------------------------------------------------------------------------------------------

_CONFIDENCE = 0.95
_FACTOR = 2.0  # a number that is off by less counts as reproduced
_WHY = {
    ("residual", "train mse"): "with the targets in the input, which the text does not say",
    ("residual", "test mse"): "the same",
    ("heads", "4"): "after 50 epochs most of these networks stand on a plateau",
    ("statistics", "baseline, ridge"): "nor does the script have baselines",
    ("housing", "frozen, lasso"): "the script's 8 heads cannot be built, 4 are used",
}


@dataclass(frozen=True)
class _Published:
    """One number of the paper, how many trainings it is of, and where ours is found."""

    study: str
    name: str
    cell: published.Cell
    trainings: int
    metric: str
    variant: dict[str, str | int | None]


def published_numbers() -> Iterable[_Published]:
    """All of them, in the paper's order."""
    count = published.TRAININGS
    for name, cell in published.RESIDUAL.items():
        metric = f"{name} after {FIGURE} epochs".replace("test ", "")
        yield _Published(
            "residual", name, cell, count["residual", ""], metric, {"variant": "script"}
        )
    for h, cell in published.HEADS.items():
        labels: dict[str, str | int | None] = {"heads": h, "schedule": "constant"}
        yield _Published("heads", str(h), cell, count["heads", ""], "mse", labels)
    for study, printed in (("statistics", published.STATISTICS), ("housing", published.HOUSING)):
        own: dict[str, str | int | None] = {"schedule": "constant"} if study == "statistics" else {}
        for model, cells in printed.items():
            for a, cell in cells.items():
                metric = f"{a}: {model} mse"
                yield _Published(study, f"{model}, {a}", cell, count[study, model], metric, own)


def against(cell: published.Cell, trainings: int, ours: Summary) -> tuple[float, float, float]:
    """Ours over the published number, and the ends of a 95 % interval.

    Where the paper has a mean of several trainings the interval is Welch's, for the difference of
    two means. Where it has one training, it is where our trainings predict one more: a t interval
    of the logarithms, since errors are positive and skewed.
    """
    from scipy.stats import t

    def reach(freedom: float) -> float:
        return float(t.ppf((1 + _CONFIDENCE) / 2, freedom))

    mean, deviation = cell
    n = len(ours.values)
    if n < 2:
        return ours.mean / mean, 0.0, math.inf
    if trainings > 1:
        a, b = (deviation or 0.0) ** 2 / trainings, (ours.deviation or 0.0) ** 2 / n
        off = reach((a + b) ** 2 / (a**2 / (trainings - 1) + b**2 / (n - 1))) * math.sqrt(a + b)
        return ours.mean / mean, max(0.0, ours.mean - off) / mean, (ours.mean + off) / mean
    logs = Summary(tuple(math.log(value / mean) for value in ours.values))
    off = reach(n - 1) * (logs.deviation or 0.0) * math.sqrt(1 + 1 / n)
    return math.exp(logs.mean), math.exp(logs.mean - off), math.exp(logs.mean + off)


def _verdict(low: float, high: float) -> str:
    """Of an interval of ours over published."""
    chance = low <= 1 <= high
    if low >= 1 / _FACTOR and high <= _FACTOR:
        return "yes" if chance else "yes, but for a difference beyond chance"
    return "cannot tell, trainings differ too much" if chance else "no"


def readers(records: Records) -> Table:
    """For each of the paper's numbers: the script's and ours, and whether they reproduce it."""
    rows = []
    for n in published_numbers():
        name, why = f"{n.study}: {n.name}", _WHY.get((n.study, n.name), "")
        found = {
            column: ours
            for column in ("their_script", "as_published")
            if (ours := pick(records, n.study, column, n.metric, **n.variant)) is not None
        }
        for column, ours in found.items():
            ratio, low, high = against(n.cell, n.trainings, ours)
            verdict = _verdict(low, high)
            rows.append(
                (name, with_deviation(n.cell), _label(column), shown(ours), ours.range,
                 f"{number(ratio)} ({number(low)} to {number(high)})",
                 f"{verdict}: {why}" if why else verdict)
            )  # fmt: skip
        if not found:
            rows.append((name, with_deviation(n.cell), "–", "–", "–", "–", "not run"))
    header = ("number", "published", "column", "ours", "lowest to highest",
              "ours / published (95 %)", "reproduced")  # fmt: skip
    return Table("Every number of section 6", header, tuple(rows))


# ---------------------------------------------------------------------------------------------
# the figure of all studies
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One column of a study: means and deviations at places that have names."""

    label: str
    points: tuple[tuple[str, float, float], ...]  # place, mean, deviation (0 where there is none)


def _series(label: str, found: dict[str, Summary | published.Cell | None]) -> Series:
    points = []
    for place, value in found.items():
        if isinstance(value, Summary):
            points.append((place, value.mean, value.deviation or 0.0))
        elif value is not None:
            points.append((place, value[0], value[1] or 0.0))
    return Series(label, tuple(points))


_LEAK = ("targets fed", "not fed")
_TRAINED: dict[str, dict[str, str | int | None]] = {
    "their_script": {"schedule": "constant"},
    "as_published": {"schedule": "constant"},
    "our_reading": {"schedule": "constant"},
    "as_the_theorem_asks": {"schedule": "cosine", **_GIVEN},
}


def comparisons(records: Records) -> dict[str, list[Series]]:
    """The paper's numbers and ours for every study, as the figure shows them."""
    heads = [_series("published", {str(h): cell for h, cell in published.HEADS.items()})]
    residual = [_series("published", {_LEAK[0]: published.RESIDUAL["test mse"]})]
    made = {"residual": residual, "heads": heads}
    variants = {
        "their_script": ("script", None),
        "as_published": ("script", "script-without-leak"),
        "our_reading": ("leak", "no-leak"),
        "as_the_theorem_asks": (None, "asked"),
    }  # whose targets are the input, and whose are not
    for column, schedule in _TRAINED.items():
        label = _label(column)
        pick_ = {h: pick(records, "heads", column, "mse", heads=h, probe=None, **schedule)
                 for h in published.HEADS}  # fmt: skip
        heads.append(_series(label, {str(h): found for h, found in pick_.items()}))
        both = {
            place: pick(records, "residual", column, "mse", variant=name)
            for place, name in zip(_LEAK, variants[column], strict=True)
            if name is not None
        }
        residual.append(_series(label, dict(both)))
    for study, printed in (("statistics", published.STATISTICS), ("housing", published.HOUSING)):
        made[study] = [_series("published", dict(printed["frozen"]))]
        for column, schedule in _TRAINED.items():
            own = schedule if study == "statistics" else {}
            found = {a: pick(records, study, column, f"{a}: frozen mse", **own) for a in ALGORITHMS}
            made[study].append(_series(_label(column), dict(found)))
    return {study: [s for s in series if s.points] for study, series in made.items()}


# ---------------------------------------------------------------------------------------------
# rates
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """Error against size: one curve of the rate plot.

    ``slope`` is that of log error against log size, by least squares.
    """

    label: str
    sizes: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def slope(self) -> float:
        x, y = [math.log(s) for s in self.sizes], [math.log(e) for e in self.errors]
        mx, my = math.fsum(x) / len(x), math.fsum(y) / len(y)
        over = math.fsum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
        return over / math.fsum((a - mx) ** 2 for a in x)


def rates(records: Records) -> list[Rates]:
    """Root mean squared error of an emulated head: published, trained, hard and spectral."""
    counts = tuple(published.HEADS)
    curves = [
        Rates("published (heads)", counts, tuple(published.HEADS[h][0] ** 0.5 for h in counts))
    ]
    for column, schedule, label in (
        ("as_published", "constant", "trained, the script's settings (heads)"),
        ("our_reading", "constant", "trained, our reading, constant rate (heads)"),
        ("our_reading", "cosine", "trained, our reading, cosine decay (heads)"),
        ("as_the_theorem_asks", "cosine", "trained as the theorem asks (heads)"),
    ):
        found = {h: _main_heads(records, column, h, schedule) for h in counts}
        _add(curves, label, {h: f.mean**0.5 for h, f in found.items() if f is not None})
    for regime in ("hard", "spectral"):
        grids = sorted(
            {int(r["variant"]["grid"]) for r in records
             if r["study"] == "heads" and r["variant"].get("regime") == regime}
        )  # fmt: skip
        found = {
            g: pick(records, "heads", "constructed", "mse", regime=regime, grid=g) for g in grids
        }
        points = {g: f.mean**0.5 for g, f in found.items() if f is not None and f.mean > 0}
        _add(curves, f"{regime} look-ups (grid tokens)", points)
    return curves


def _add(curves: list[Rates], label: str, points: dict[int, float]) -> None:
    if len(points) > 1:
        curves.append(Rates(label, tuple(points), tuple(points.values())))


def summary_csv(records: Records) -> str:
    """One row per study, column, variant and metric: mean, deviation, seeds."""
    cells: dict[tuple[str, ...], list[float]] = {}
    for r in records:
        variant = " ".join(f"{k}={v}" for k, v in r["variant"].items())
        for metric, value in r["metrics"].items():
            names = (r["study"], r["column"], r["scale"], variant, metric)
            cells.setdefault(names, []).append(float(value))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("study", "column", "scale", "variant", "metric", "mean", "deviation", "seeds"))
    for key, values in cells.items():
        s = Summary(tuple(values))
        deviation = "" if s.deviation is None else repr(s.deviation)
        writer.writerow((*key, repr(s.mean), deviation, len(values)))
    return out.getvalue()
