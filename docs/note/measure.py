"""Every number of the note, from runs: writes numbers.json, numbers.tex and the figures.

``python docs/note/measure.py`` runs everything (about three minutes); ``python
docs/note/measure.py residual heads`` runs these groups and keeps the others. A number has a kind:
a *size* is counted on what was built, a bound is *proven* and printed rounded up, and what was
*measured* is the largest error over the drawn instances.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import iceform as ice
from iceform.plots import LIGHT
from iceform.tables import bounds

HERE = Path(__file__).parent
KEPT, MACROS, FIGURES = HERE / "numbers.json", HERE / "numbers.tex", HERE / "figures"
ONE_LAYER = HERE.parent / "figures" / "one_layer.json"
F64 = torch.float64

Number = dict[str, Any]
sys.path.insert(0, str(HERE))
import neighbours  # noqa: E402


def size(value: float) -> Number:
    """Counted."""
    return {"kind": "size", "value": value}


def proven(value: float) -> Number:
    """A bound."""
    return {"kind": "proven", "value": value}


def measured(value: float) -> Number:
    """The largest error seen."""
    return {"kind": "measured", "value": value}


def _draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(*shape, generator=generator, dtype=F64) - 1


def _off(emulator: Any, *inputs: Tensor) -> float:
    return float((emulator(*inputs) - emulator.reference(*inputs)).abs().max())


def _row(emulator: Any, *inputs: Tensor) -> dict[str, Number]:
    """Sizes, the certificate, and the largest error over the inputs and their corners."""
    plan, corners = emulator.plan, [torch.where(t >= 0, 1.0, -1.0).to(t) for t in inputs]
    off = max(_off(emulator, *inputs), _off(emulator, *corners))
    return {
        "Grid": size(plan.grid_tokens), "Tokens": size(plan.tokens), "Wide": size(plan.features),
        "Heads": size(plan.heads), "Layers": size(plan.layers), "Rank": size(plan.head_dim),
        "Weights": size(plan.parameters), "Proven": proven(emulator.certificate.error),
        "Seen": measured(off),
    }  # fmt: skip


# ------------------------------------------------------------------------------- the groups


def look_up() -> dict[str, Number]:
    """Tables: a line, a smooth function, a kink, and the paper's regime."""
    line = ice.Interpolant.identity(-10, 10, eps=1e-12)
    z = torch.linspace(-10, 10, 20_001, dtype=F64)
    found = {"LineTokens": size(line.tokens), "LineProven": proven(line.error),
             "LineSeen": measured(float((line(z) - z).abs().max()))}  # fmt: skip
    for name, table in {
        "Hard": ice.Interpolant.hard(torch.tanh, -10, 10, cells=64),
        "Fitted": ice.Interpolant.fit(torch.tanh, -10, 10, tokens=65),
        "Kink": ice.Interpolant.fit(torch.relu, -10, 10, tokens=65),
    }.items():
        off = float((table(z) - table.function(z)).abs().max())
        found |= {f"{name}Tokens": size(table.tokens), f"{name}Proven": proven(table.error),
                  f"{name}Seen": measured(off)}  # fmt: skip
    return found


def residual() -> dict[str, Number]:
    """f(w.x - y) x by one head, and the two margins of the block mask."""
    em = ice.paper.ResidualMap(torch.tanh, dim=2, samples=8, eps=1e-8)
    found = _row(em, _draw(500, 8, 2), _draw(500, 8, seed=1), _draw(500, 2, seed=2))
    reach, cells, sharpness, leak = 2.0, 16, 4.0, 0.01
    needed = bounds.margin(sharpness, 2 * reach / cells, reach, 2, 2, leak)
    return found | {"MarginNeeded": proven(needed), "MarginPrinted": size(3 - math.log(leak))}


def step() -> dict[str, Number]:
    """One step of logistic regression."""
    em = ice.paper.GradientStep("logistic", lr=0.5, dim=2, samples=8, eps=1e-8)
    labels = (_draw(500, 8, seed=1) > 0).double()
    off = _off(em, _draw(500, 8, 2), labels, _draw(500, 2, seed=2))
    return {"Grid": size(em.plan.grid_tokens), "Proven": proven(em.certificate.error),
            "Seen": measured(off)}  # fmt: skip


def descent() -> dict[str, Number]:
    """25 steps for f = tanh with a penalty, and least squares by passes."""
    em = ice.paper.GradientDescent(
        torch.tanh, steps=25, lr=1.0, l2=0.02, dim=2, samples=16, eps=1e-8
    )
    x = _draw(50, 16, 2)
    y = x @ torch.tensor([0.6, -0.35], dtype=F64)
    off = _off(em, x, y, 0.8 * _draw(50, 2, seed=2))
    x = _draw(64, 3)
    y = x @ torch.tensor([0.4, -0.3, 0.2], dtype=F64)
    values = torch.linalg.eigvalsh(x.mT @ x / 64)
    condition = 1.05 * float(values[-1] / values[0])
    solver = ice.paper.LeastSquares(dim=3, samples=64, condition=condition,
                                    largest=float(values[-1]), eps=1e-9, radius=1.0)  # fmt: skip
    exact = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    return {
        "Steps": size(25), "Proven": proven(em.certificate.error), "Seen": measured(off),
        "Passes": size(solver.passes), "Condition": measured(condition),
        "SquaresProven": proven(solver.certificate.error),
        "SquaresSeen": measured(float((solver(x, y) - exact).abs().max())),
    }  # fmt: skip


def one_layer() -> dict[str, Number]:
    """Least squares and ridge by one frozen head, on 1000 data sets and their corners."""
    found: dict[str, Number] = {}
    for name, em in {
        "Squares": ice.paper.OneLayerLeastSquares(samples=1, condition=16.0, eps=1e-4),
        "RidgeOneOne": ice.paper.OneLayerRidge(1.0, samples=1, dim=1, eps=1e-6),
        "RidgeOneTwo": ice.paper.OneLayerRidge(1.0, samples=1, dim=2, eps=1e-6),
        "RidgeTwoOne": ice.paper.OneLayerRidge(1.0, samples=2, dim=1, eps=1e-6),
    }.items():
        n, d = em.domain.samples, em.domain.dim
        x, y = _draw(1000, n, d), _draw(1000, n, seed=1)
        if em.least:
            x = x.sign() * (0.25 + 0.75 * x.abs())
        row = _row(em, x, y)
        found |= {f"{name}{key}": row[key] for key in ("Grid", "Proven", "Seen")}
    kept = json.loads(ONE_LAYER.read_text(encoding="utf-8"))
    passes = [row["passes"]["passes"] for row in kept["ridge"]]
    return found | {"FewestPasses": size(min(passes)), "MostPasses": size(max(passes))}


def heads() -> dict[str, Number]:
    """A target head in the prompt, in both encodings, and the theorem's own split."""
    found: dict[str, Number] = {}
    x, weights = _draw(200, 6, 4), [_draw(200, r, 4, seed=r) for r in (3, 5, 2)]
    weights[1] = weights[1][:, :3]
    for name in ("embedding", "rows"):
        em = ice.paper.AttentionHead(4, 3, 2, tokens=6, encoding=name, eps=1e-8)
        row = _row(em, x, *weights)
        found |= {f"{name.title()}{key}": value for key, value in row.items()}
    return found


def truncated() -> dict[str, Number]:
    """The line cut off at both ends, its grid split over heads."""
    em = ice.paper.TruncatedLinear(-1.0, 1.0, heads=8, dim=2, samples=6, tokens=34, bound=1.0)
    return _row(em, _draw(500, 6, 2), _draw(500, 2, seed=1), _draw(500, seed=2))


def hopfield() -> dict[str, Number]:
    """A function from R to R^3 by one Hopfield layer."""
    fs = (torch.sin, torch.tanh, lambda z: 2 * z - 1)
    em = ice.paper.HopfieldMap(fs, [1.0, -1.0], 0.5, samples=50, bound=1.0, eps=1e-9)
    return _row(em, _draw(50, 50, 2))


def computer() -> dict[str, Number]:
    """One block for two programs: sizes by their formulas, and runs of both."""
    from iceform.computer import Computer, library
    from iceform.computer.compile import compile

    programs = {"Ridge": compile(library.ridge, dim=3, samples=12),
                "Lasso": compile(library.lasso, dim=3, samples=12)}  # fmt: skip
    machine = Computer.for_programs(programs.values())
    sizes = machine.sizes
    x = _draw(12, 3)
    y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=F64) / 3
    found = {"Wide": size(sizes.width), "Lanes": size(sizes.lanes),
             "Features": size(machine.layout.features.total), "Heads": size(2 * sizes.width + 17),
             "Layers": size(len(machine.network.layers))}  # fmt: skip
    for name, program in programs.items():
        run = machine.execute(machine.prompt(program, x, y, steps=20))
        exact = program.reference(x, y, steps=20)
        found |= {
            f"{name}Cycles": size(run.cycles),
            f"{name}Tokens": size(len(machine.prompt(program, x, y, steps=20).tokens)),
            f"{name}Seen": measured(float((run.outputs["value"] - exact).abs().max())),
        }  # fmt: skip
    found["RidgeProven"] = proven(programs["Ridge"].certify(steps=20)[0].error)
    return found


def needs() -> dict[str, Number]:
    """Lower bounds beside what is built: bits of a prompt, tokens of a look-up, layers."""
    from iceform.computer import ComputerSizes, library
    from iceform.computer.compile import compile
    from iceform.computer.prompt_bits import PromptBits
    from iceform.tables.fewest_tokens import fewest_tokens

    found: dict[str, Number] = {}
    for name in ("ridge", "lasso"):
        program = compile(getattr(library, name), dim=3, samples=12)
        bits = PromptBits.of(ComputerSizes.needed(program.assembly, 12))
        found |= {
            f"{name.title()}Needed": size(math.ceil(bits.needed)),
            f"{name.title()}Fields": size(bits.fields),
            f"{name.title()}Stored": size(bits.stored),
        }
    for name, times in {"Sin": 1, "FastSin": 5}.items():
        f = lambda z, times=times: torch.sin(times * z)  # noqa: E731
        found[f"{name}Least"] = size(fewest_tokens(f, -10.0, 10.0, 1e-8))
        for digits, eps in {"Two": 1e-2, "Eight": 1e-8}.items():
            found[f"{name}{digits}"] = size(ice.Interpolant.fit(f, -10.0, 10.0, eps).tokens)
    return found


def text() -> dict[str, Number]:
    """The stock GPT-2 that runs what is typed: sizes, and whether its certificate holds."""
    machine = ice.TextComputer()
    found, config = machine.certificate, machine.config()
    if not found.holds:
        raise SystemExit(f"the text machine's certificate does not hold: {found.failures}")
    return {
        "Layers": size(config["n_layer"]), "Wide": size(config["n_embd"]),
        "Words": size(config["vocab_size"]), "Heads": size(config["n_head"]),
        "Positions": size(config["n_positions"]), "Margins": size(len(found.margins)),
        "Least": size(round(min(m.gap - m.error for m in found.margins), 1)),
    }  # fmt: skip


def causal() -> dict[str, Number]:
    """Full batch under a causal mask, in a stock GPT-2."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    x = _draw(4, 2)
    y = x @ torch.tensor([0.6, -0.3], dtype=F64)
    design = ice.targets.CausalDescent(dim=2, steps=2, samples=4)
    with tempfile.TemporaryDirectory() as folder:
        ice.targets.write("gpt2", design, Path(folder) / "full")
        config = json.loads((Path(folder) / "full" / "config.json").read_text(encoding="utf-8"))
        report = ice.check(Path(folder) / "full", x, y, f="tanh(z)")
    return {
        "Layers": size(config["n_layer"]), "Heads": size(config["n_head"]),
        "Wide": size(config["n_embd"]), "Steps": size(2), "Samples": size(4),
        "Proven": proven(report.certificate.error), "Seen": measured(report.measured),
    }  # fmt: skip


def others() -> dict[str, Number]:
    """Constructions of others: two by their formulas, two by their published code."""
    x, asked = _draw(16, 4), _draw(8, 4, seed=1)
    y = x @ torch.tensor([0.5, -0.2, 0.1, 0.4], dtype=F64)
    step = asked @ (0.3 * (x.mT @ y) / 16)
    linear = neighbours.linear_attention_step(x, y, asked, 0.3)
    alpha, eps = 0.1, 1e-6
    values = torch.linalg.eigvalsh(x.mT @ x / 16)
    low, high = float(values[0]) + alpha, float(values[-1]) + alpha
    exact = torch.linalg.solve(x.mT @ x / 16 + alpha * torch.eye(4, dtype=F64), x.mT @ y / 16)
    reach = float(x.norm(dim=1).max()) * 2 * float(exact.norm())
    layers = neighbours.layers_of_theorem_four(high / low, reach, eps)
    ridge = neighbours.relu_attention_ridge(x, y, alpha, 1 / high, layers)
    kept = json.loads(neighbours.KEPT.read_text(encoding="utf-8"))
    table = ice.Interpolant.fit(torch.sigmoid, -3, 3, tokens=29)
    z = torch.linspace(-3, 3, 20_001, dtype=F64)
    found = {
        "LinearSeen": measured(float((linear - step).abs().max())),
        "ReluLayers": size(layers), "ReluSeen": measured(float((ridge - exact).abs().max())),
        "ReluSumSeen": measured(neighbours.relu_sum_error(torch.sigmoid, 3.0, 29)),
        "SoftmaxSumProven": proven(table.error),
        "SoftmaxSumSeen": measured(float((table(z) - torch.sigmoid(z)).abs().max())),
        "LinearWide": size(5), "LinearTokens": size(17),
        "ReluWide": size(10), "ReluTokens": size(16),
    }  # fmt: skip
    for who, names in {
        "giannou": ("layers", "heads", "width", "tokens", "loops", "same"),
        "loom": ("layers", "heads", "width", "tokens", "steps"),
    }.items():
        found |= {f"{who.title()}{name.title()}": size(kept[who][name]) for name in names}
    found["GiannouSeen"] = measured(kept["giannou"]["before_correction"])
    found["LoomSeen"] = measured(kept["loom"]["off"])
    return found


GROUPS: dict[str, Callable[[], dict[str, Number]]] = {
    "lookup": look_up, "residual": residual, "step": step, "descent": descent,
    "onelayer": one_layer, "heads": heads, "truncated": truncated, "hopfield": hopfield,
    "computer": computer, "needs": needs, "text": text, "causal": causal, "others": others,
}  # fmt: skip
QUICK = ("residual", "step", "heads", "truncated")  # what the tests compute again


# ------------------------------------------------------------------------------ what is written


def told(number: Number) -> str:
    """As TeX, for math mode: bounds rounded up, errors to two digits."""
    value = float(number["value"])
    if number["kind"] == "size":
        return f"{value:.1f}" if value != int(value) else str(int(value))
    if value == 0:
        return "0"
    if 0.01 <= value < 1000:
        scale = 10.0 ** max(0, 1 - math.floor(math.log10(value)))
        return f"{(math.ceil if number['kind'] == 'proven' else round)(value * scale) / scale:g}"
    exponent = math.floor(math.log10(value))
    digits = value / 10.0**exponent
    rounded = math.ceil(10 * digits) / 10 if number["kind"] == "proven" else round(digits, 1)
    if rounded >= 10:
        rounded, exponent = rounded / 10, exponent + 1
    return rf"{rounded:.1f}\cdot10^{{{exponent}}}"


def macros(kept: dict[str, dict[str, Number]]) -> str:
    """One macro a number."""
    lines = ["% Written by measure.py from numbers.json; do not edit."]
    for group, numbers in kept.items():
        for name, number in numbers.items():
            lines.append(rf"\newcommand{{\{group}{name}}}{{{told(number)}}}")
    return "\n".join(lines) + "\n"


def _error_against_tokens() -> Figure:
    figure = Figure(figsize=(5.6, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    z = torch.linspace(-10, 10, 8001, dtype=F64)
    for axes, f, name in ((left, torch.tanh, "tanh"), (right, torch.relu, "relu")):
        counts = (9, 17, 33, 65, 129)
        hard = [ice.Interpolant.hard(f, -10, 10, cells=n - 1) for n in counts]
        fitted = [ice.Interpolant.fit(f, -10, 10, tokens=n) for n in counts]
        axes.loglog(counts, [float((t(z) - f(z)).abs().max()) for t in hard], "o-",
                    color=LIGHT.hard, label="large $\\beta$, $v_k = f(L_k)$")  # fmt: skip
        axes.loglog(counts, [float((t(z) - f(z)).abs().max()) for t in fitted], "s-",
                    color=LIGHT.spectral, label="fitted, measured")  # fmt: skip
        axes.loglog(
            counts, [t.error for t in fitted], "--", color=LIGHT.spectral, label="fitted, proven"
        )
        axes.set_title(f"{name} on [-10, 10]")
        axes.set_xlabel("tokens")
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.minorticks_off()
    left.set_ylabel("sup error")
    left.legend(loc="lower left", fontsize=7)
    return figure


def _tokens_or_passes() -> Figure:
    kept = json.loads(ONE_LAYER.read_text(encoding="utf-8"))
    ridge, squares = kept["ridge"], kept["least squares"]
    figure = Figure(figsize=(5.6, 2.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    entries = [row["samples"] for row in ridge]
    left.semilogy(entries, [r["one layer"]["tokens"] for r in ridge], "o-", color=LIGHT.hard,
                  label="one layer")  # fmt: skip
    left.semilogy(entries, [r["passes"]["tokens"] for r in ridge], "s-", color=LIGHT.spectral,
                  label="gradient descent")  # fmt: skip
    left.set_xticks(entries)
    left.set_xlabel("entries of X (d = 1)")
    left.set_ylabel("tokens")
    left.legend(fontsize=7)
    kappas = [row["condition"] for row in squares]
    right.loglog(kappas, [r["one layer"]["tokens"] for r in squares], "o-", color=LIGHT.hard,
                 label="tokens of one layer")  # fmt: skip
    right.loglog(kappas, [r["passes"]["passes"] for r in squares], "s-", color=LIGHT.spectral,
                 label="passes of descent")  # fmt: skip
    right.loglog(
        kappas, [12 * k**0.5 for k in kappas], "--", color=LIGHT.faint, label="$12\\sqrt{\\kappa}$"
    )
    right.set_xticks(kappas, [f"{k:g}" for k in kappas])
    right.minorticks_off()
    right.set_xlabel("condition number $\\kappa$ (n = d = 1)")
    right.legend(fontsize=7)
    return figure


def _softmax_or_relu() -> Figure:
    figure = Figure(figsize=(3.9, 2.5), layout="constrained")
    axes = figure.subplots()
    counts = (5, 9, 13, 17, 21, 25, 29, 33)
    relus = [neighbours.relu_sum_error(torch.sigmoid, 3.0, n) for n in counts]
    tables = [ice.Interpolant.fit(torch.sigmoid, -3, 3, tokens=n).error for n in counts]
    axes.semilogy(counts, relus, "o-", color=LIGHT.hard, label="ReLU heads, measured")
    axes.semilogy(counts, tables, "s--", color=LIGHT.spectral, label="softmax tokens, proven")
    axes.set_xlabel("heads, or tokens of one head")
    axes.set_ylabel("sup error")
    axes.legend(fontsize=7)
    return figure


DRAWN = {"error_against_tokens": _error_against_tokens, "tokens_or_passes": _tokens_or_passes,
         "softmax_or_relu": _softmax_or_relu}  # fmt: skip


def main(asked: list[str]) -> None:
    """Run the groups asked for, or all, and write everything."""
    kept: dict[str, Any] = {}
    if asked and KEPT.exists():
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
    for name, group in GROUPS.items():
        if not asked or name in asked:
            kept[name] = group()
            print(name, {key: number["value"] for key, number in kept[name].items()})
    kept = {name: kept[name] for name in GROUPS if name in kept}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    MACROS.write_text(macros(kept), encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        if not asked or "figures" in asked:
            with LIGHT.applied():
                draw().savefig(FIGURES / f"{name}.pdf", metadata={"CreationDate": None})


if __name__ == "__main__":
    main(sys.argv[1:])
