"""What the pages quote: cells of the studies, and what is stated with no result behind it."""

from iceform.experiments.published import HEADS

STUDIES = "docs/studies.md"
_QUOTED = [
    ("residual", "our_reading", "mse", {"variant": "leak"}),
    ("residual", "our_reading", "mse", {"variant": "no-leak"}),
    ("residual", "our_reading", "trivial mse", {"variant": "no-leak"}),
    ("residual", "our_reading", "r2", {"variant": "no-leak"}),
    ("residual", "as_the_theorem_asks", "r2", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "r2", {"variant": "asked-unit-x"}),
    ("residual", "as_the_theorem_asks", "mse", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "prompt another mse", {"variant": "asked"}),
    ("residual", "as_the_theorem_asks", "trivial mse", {"variant": "asked"}),
    *[("residual", "as_published", m, {"variant": "script-without-leak"})
      for m in ("mse", "trivial mse", "r2")],
    *[("residual", "constructed", m, {}) for m in ("sup error", "certified", "grid tokens")],
    *[("heads", "constructed", m, {"regime": "spectral", "grid": 21})
      for m in ("sup error", "certified", "grid tokens")],
    *[("heads", "constructed", "entry error", {"regime": "split", "grid": h}) for h in HEADS],
    *[("heads", "constructed", "mse", {"regime": "split", "grid": h}) for h in (1, 12)],
    *[("statistics", "constructed", f"{a}: {m}", {}) for a in ("lasso", "ridge", "linear")
      for m in ("certified", "distance to scikit-learn")],
    *[("housing", "constructed", f"ridge: {m}", {})
      for m in ("certified", "distance to scikit-learn")],
    ("housing", "constructed", "linear: distance to scikit-learn", {}),
    *[("housing", "constructed", f"{a}: test mse", {}) for a in ("lasso", "ridge", "linear")],
    *[("heads", "our_reading", "mse", {"heads": h, "schedule": s, "probe": None})
      for h in HEADS for s in ("constant", "cosine")],
    *[("heads", "our_reading", "mse", {"probe": p}) for p in ("longer", "xavier")],
    *[("heads", "as_the_theorem_asks", "r2", {"heads": h}) for h in (1, 12)],
    *[("heads", "constructed", m, {"regime": "hard", "grid": 2049})
      for m in ("mse", "grid tokens")],
    *[("statistics", "our_reading", f"{a}: frozen mse", {"schedule": s})
      for a in ("lasso", "ridge", "linear") for s in ("constant", "cosine")],
    *[("statistics", "our_reading", f"{a}: linear baseline mse", {"schedule": "constant"})
      for a in ("lasso", "ridge", "linear")],
    ("statistics", "our_reading", "ridge: baseline mse", {"schedule": "constant"}),
    ("statistics", "our_reading", "lasso: spread over test draws", {"schedule": "constant"}),
    ("statistics", "as_the_theorem_asks", "ridge to linear", {}),
    ("statistics", "as_the_theorem_asks", "lasso to linear", {}),
    *[("statistics", "as_the_theorem_asks", f"{a}: frozen fidelity", {})
      for a in ("lasso", "ridge", "linear")],
    *[("housing", c, f"{a}: frozen mse", {})
      for c in ("our_reading", "as_the_theorem_asks") for a in ("lasso", "ridge", "linear")],
    ("housing", "our_reading", "lasso: frozen, zero prompt mse", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen, another prompt fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: frozen, zero prompt fidelity", {}),
    ("housing", "as_the_theorem_asks", "lasso: trivial mse", {}),
    ("housing", "as_the_theorem_asks", "ridge: baseline mse", {}),
]  # fmt: skip

# Page, study, column, metric, variant: as results/cells has them, mean and deviation over seeds.
CELLS = [(STUDIES, *cell) for cell in _QUOTED]

# Page, kind, what it is, and the numbers as they are printed (or whole sentences of them).
STATED: list[tuple[str, str, str, list[str]]] = [
    ("*", "defined", "versions that pyproject.toml asks for", ["3.11"]),
    ("*", "theirs", "the paper's address", ["2508.17550"]),
    ("*", "theirs", "the paper's section on linear layers", ["4.3"]),
    ("*", "theirs", "sales and features of the Ames houses (tests/experiments)", ["2930", "79"]),
    ("*", "theirs", "years of publications", ["2011", "2017", "2023", "2025", "2026"]),
    ("*", "defined", "dates are days since then", ["1970"]),
    ("*", "defined", "statuses: HTTP, and Ctrl-C", ["429", "503", "130", "127.0"]),
    ("*", "certified", "tokens of a straight line, Interpolant.identity", ["25"]),
    (STUDIES, "defined", "the epoch of the paper's figure; epochs of a probe", ["19", "150"]),
    (
        STUDIES,
        "defined",
        "domains and sizes of the constructed columns",
        ["64", "500", "13", "6.5", "21", "2049", "120", "60", "200", "276", "24", "10,000"],
    ),
    (STUDIES, "defined", "thresholds of the plateau (test_story)", ["33", "0.01", "0.1"]),
    (
        STUDIES,
        "defined",
        "our reading's training samples; the noise's variance, its oracle",
        ["40,000", "0.0025", "0.00250"],
    ),
    (STUDIES, "measured", "least squares in our reading, oracle mse", ["1.1e-9"]),
    (STUDIES, "theirs", "plotting.py, lines 9 and 10", ["0.133", "0.058"]),
    (
        "docs/studies_settings.md",
        "theirs",
        "plotting.py, lines 9 and 10",
        ["0.113", "0.162", "0.148", "0.133", "0.144", "0.152", "0.058"],
    ),
    ("docs/studies_settings.md", "theirs", "the commit's day", ["26"]),
    (
        "docs/studies_settings.md",
        "measured",
        "columns of house_prices (test_settings)",
        ["37", "225"],
    ),
    ("docs/studies_settings.md", "theirs", "the text, section 6", ["10,000", "1000"]),
    ("docs/errata.md", "theirs", "the day of the edition", ["21"]),
    ("docs/errata.md", "defined", "heads of a draw (test_figures.HEADS)", ["On 20 random heads"]),
    (
        "docs/errata.md",
        "measured",
        "float32, four draws; test_figures holds them within half",
        ["float64 and 1.8 to 21 in float32", "From each head's first token: .38 to 1.0"],
    ),
    (
        "docs/errata.md",
        "measured",
        "float32; test_truncated holds it below",
        ["from the middle of each head: .020 in float32"],
    ),
    (
        "docs/errata.md",
        "asserted",
        "tests/errata/test_truncated.py",
        ["off by 3.0, 3.0 and 1.5 on $[-3, -1]$"],
    ),
    (
        "docs/theorems/attention_head_rows.md",
        "theirs",
        "sizes of the paper's study 2",
        ["24", "20", "48"],
    ),
    (
        "docs/theorems/*",
        "asserted",
        "tests/errata, as docs/errata.md has them",
        ["4674", ".0241", ".32", "747", "381", "56"],
    ),
    (
        "docs/theorems/attention_head_rows.md",
        "not kept",
        "random heads of another draw",
        [".39", ".99", ".008", ".013"],
    ),
    ("docs/theorems/least_squares.md", "certified", "tokens per sample", ["20"]),
    ("docs/theorems/attention_head.md", "defined", "heads of the cell below", ["300"]),
    ("docs/theorems/computer.md", "defined", "cycles of a test", ["200"]),
    ("docs/how_it_works.md", "defined", "where float64's exponential is 0", ["745"]),
    ("docs/export.md", "defined", "digits of a SHA-256", ["64"]),
    ("docs/sparse.md", "defined", "zero as a solver prints it", ["0.0"]),
    ("docs/comparison.md", "theirs", "Loom's opcodes, TracrBench's programs", ["22", "121"]),
    ("docs/comparison.md", "defined", "sizes of benchmarks/others.py", ["20", "24"]),
    ("docs/letter.md", "theirs", "the day of the edition, lines of scripts", ["21", "49", "40"]),
    ("docs/comparison.md", "theirs", "the authors' frozen head: its README", ["100", "16"]),
    (
        "docs/tolerances.md",
        "theirs",
        "SLEEF's and torch's documented exponentials",
        ["20", "1024", "1.1e-4", "0.99995", "14"],
    ),
    ("docs/tolerances.md", "certified", "the theorem's own rounding", ["1.05", "1.01"]),
    ("docs/tolerances.md", "defined", "keys of a family of cases", ["32", "768"]),
    (
        "docs/targets.md",
        "certified",
        "tests/targets",
        ["1e-11", "1e-10", "1e-4", "0.2", "0.125", "1.5", "32", "24", "80"],
    ),
    ("CHANGELOG.md", "defined", "examples of texts in tables", ["01234", "1,234", "2020"]),
    (
        "CHANGELOG.md",
        "asserted",
        "tests/machine, tests/computer, tests/networks",
        ["1e-12", "16", "39"],
    ),
    ("CHANGELOG.md", "asserted", "tests/sklearn: iris beside scikit-learn", ["1e-8"]),
    ("CHANGELOG.md", "not kept", "a range before a mend", ["1e39"]),
    ("docs/targets.md", "certified", "the cell above, and tests/targets", ["1e-8"]),
    ("CHANGELOG.md", "not kept", "memory of a fit", ["10^6 x 50 in under 1 GiB"]),
    (
        "README.md",
        "measured",
        "hard look-ups at c = 12, float64 (tests/claims)",
        [
            "| tanh | 65 | 0.10 | 4e-7 |",
            "| sin | 33 | 0.21 | 3e-8 |",
            "| relu (a kink) | 129 | 0.051 | 2e-7 |",
            "| identity, any range | 25 | 0.014 × range | 1e-14 × range |",
        ],
    ),
    (
        "README.md",
        "not kept",
        "one H200, as called; benchmarks/README.md says of which run",
        ["takes 1.5 to 2.2 times as long"],
    ),
    (
        "README.md",
        "measured",
        "benchmarks/results/h200.json, suite step",
        ["it 0.28 to 0.54 times"],
    ),
    (
        "benchmarks/README.md",
        "defined",
        "sizes of what is run",
        ["200", "50", "60", "64", "256", "1024", "512", "2.11", "3.6", "2.13", "10^5 samples"],
    ),
    (
        "results/README.md",
        "defined",
        "sizes of what was run",
        [
            "19",
            "50",
            "150",
            "300",
            "100",
            "2.11",
            "3.12",
            "2.13",
            "50,000",
            "32",
            "1e-3",
            "524",
            "20",
        ],
    ),
    ("results/README.md", "asserted", "tests/experiments/test_training.py", ["1e-6"]),
    (
        "results/README.md",
        "measured",
        "cells, groups one after another, rounded",
        ["109", "181", "136"],
    ),
    ("results/README.md", "not kept", "two runs compared by hand", ["0.3", "19"]),
    ("docs/certificates.md", "defined", "a standard, and default bits", ["754", "256"]),
    (
        "docs/certificates.md",
        "defined",
        "digits and sizes of the tests named there",
        ["50", "30", "20"],
    ),
    (
        "docs/networks.md",
        "defined",
        "sizes of all-MiniLM-L6-v2 and of what is run",
        ["384", "36", "72", "200", "50", "1.5", "16"],
    ),
    ("docs/networks.md", "asserted", "tests/networks/test_minilm.py", ["4e-11", "3e-7", "6e-12"]),
    ("docs/networks.md", "measured", "adjoint certificates over layers", ["39", "5e-10"]),
    ("docs/networks.md", "defined", "W(1/e), and gelu beyond 8", ["0.2785", "5e-15"]),
    (
        "src/*",
        "defined",
        "float64: bits, exponents, where exp ends",
        ["106", "709", "740", "1023", "2044", "7e-4", "1e-38", "1e-290", "53", "1022"],
    ),
    (
        "src/*",
        "defined",
        "examples in docstrings",
        ["0.3", "1024", "0.6", "1.2e-5", "1.2", "1,234", "1.234", "1234", "2020", "12.3"],
    ),
    ("src/*", "theirs", "patients of scikit-learn's diabetes set", ["442"]),
    ("src/*", "measured", "columns of house_prices (test_settings)", ["37", "225"]),
    ("src/*", "defined", "W(1/e)", ["0.2785"]),
    (
        "src/*",
        "asserted",
        "tests of the module",
        ["7e-18", "128", "2e-7", "2.5", "1.01", "26", "150"],
    ),
]

# Blocks of pages as commands wrote them: kind, command, digest (python -m tests.claims --blocks).
WRITTEN = {
    ("docs/networks.md", "scoreboard"): (
        "measured",
        "python -m tests.networks.scoreboard",
        "543405a47297825a",
    ),
    ("docs/certificates.md", "attacks"): ("measured", "make attack", "3a6d1b4982997a1e"),
    ("docs/certificates.md", "mutants"): ("measured", "make mutants", "e3b0c44298fc1c14"),
    ("benchmarks/README.md", "h200, not kept"): (
        "not kept",
        "python -m benchmarks emulator",
        "b056facb78a1121a",
    ),
    ("benchmarks/README.md", "cpu, not kept"): (
        "not kept",
        "python -m benchmarks emulator",
        "412f263c0b169406",
    ),
}
