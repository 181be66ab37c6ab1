"""Impossibilities that the pages once stated, and the networks that contradict them.

One frozen head for least squares is in tests/errata/test_descent.py. Here: full-batch descent for a
nonlinear f under a causal mask, with the samples placed once, before the state.
"""

import re

import numpy as np
import pytest
import torch

import iceform as ice
from tests.claims.scan import ROOT, pages

F64 = torch.float64
FALSE = (
    r"not by one layer",
    r"not one layer, but",
    r"more layers do not help",
    r"as far off as any frozen layer",
    r"with frozen weights it cannot",
    r"which leaves full-batch descent",
)


class CausalNetwork:
    """Attention layers on a residual stream of named features; every token sees those before it.

    Every head lets the state token ask and no other: the rest see the null token, which holds zeros
    in whatever is moved.
    """

    HIDDEN = -1e5

    def __init__(self, names):
        self.at = {name: i for i, name in enumerate(names)}
        self.layers = []

    def head(self, pairs, moves):
        """Logits are sums of scale * query[a] * key[b], moves copy key features to the query's."""
        size = len(self.at)
        logit, value = torch.zeros(size, size, dtype=F64), torch.zeros(size, size, dtype=F64)
        for a, b, scale in [*pairs, ("idle", "full", self.HIDDEN)]:
            logit[self.at[a], self.at[b]] += scale
        for source, target, scale in moves:
            value[self.at[source], self.at[target]] += scale
        return logit, value

    def __call__(self, tokens):
        future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
        for layer in self.layers:
            tokens = tokens + sum(
                torch.softmax((tokens @ logit @ tokens.T).masked_fill(future, -torch.inf), 1)
                @ (tokens @ value)
                for logit, value in layer
            )
        return tokens


PAIRS, DELTA, WEIGHT = 5, 0.35, 2.0**24  # sum_j a_j sinh(j delta z) = z; weight of the null token
REACH = 4.0  # of residuals
BOUND = 1.6  # of f


def full_batch_step(network, n, d):
    """The layers of one step: three a sample, and one."""
    z = np.linspace(-REACH, REACH, 801)
    sinh = np.sinh(DELTA * np.outer(z, np.arange(1, PAIRS + 1)))
    scales = np.linalg.lstsq(sinh, z, rcond=1e-12)[0]
    away = [("state", "full", network.HIDDEN), ("state", "state", -network.HIDDEN)]
    for i in range(n):
        sample = [("state", f"not{i}", network.HIDDEN)]  # the sample and the null token are left
        residual = []
        for j in range(1, PAIRS + 1):
            for t in (j * DELTA, -j * DELTA):
                logit = [(f"w{k}", f"x{k}", t) for k in range(d)] + [("state", "y", -t)]
                moved = ("sample", "z", np.sign(t) * scales[j - 1] * WEIGHT / 2)
                residual.append(network.head([*sample, *logit, ("state", "weight", 1.0)], [moved]))
        entry = [("z", "slope", 1.0), ("state", "bias", 1.0), ("state", "no entry", network.HIDDEN)]
        gated = [(f"u{k}", f"g{k}", -1.0) for k in range(d)]
        half = [(f"u{k}", f"g{k}", 1.0) for k in range(d)]
        network.layers += [
            residual,
            [network.head(entry, [("value", "o", 1.0)])],
            [
                network.head([*sample, ("o", "sample", 1.0)], gated),
                network.head(sample, half),
                network.head([*away, ("state", "null", network.HIDDEN)],
                             [("z", "z", -1.0), ("o", "o", -1.0)]),  # forgotten
            ],
        ]  # fmt: skip
    moves = [(f"g{k}", f"{to}{k}", s) for k in range(d) for to, s in (("w", 1.0), ("g", -1.0))]
    network.layers.append([network.head([*away, ("state", "null", network.HIDDEN)], moves)])


def prompt(network, x, y, rate, table):
    """A null token, table entries, samples, the state."""
    n, d = x.shape
    entries = table.tokens
    tokens = torch.zeros(1 + entries + n + 1, len(network.at), dtype=F64)
    column = {name: tokens[:, i] for name, i in network.at.items()}
    column["null"][0], column["weight"][0] = 1.0, np.log(WEIGHT)
    column["full"][1:], column["idle"][:-1], column["state"][-1] = 1.0, 1.0, 1.0
    held, samples = slice(1, 1 + entries), slice(1 + entries, -1)
    column["no entry"][:] = 1.0
    column["no entry"][held] = 0.0
    centre = (table.low + table.high) / 2
    column["slope"][held] = table.keys.slopes
    column["bias"][held] = table.keys.biases - centre * table.keys.slopes
    column["value"][held] = table.values
    column["sample"][samples], column["y"][samples] = 1.0, y
    for k in range(d):
        column[f"x{k}"][samples] = x[:, k]
        column[f"u{k}"][samples] = 2 * BOUND * rate / n * x[:, k]
    for i in range(n):
        column[f"not{i}"][1:] = 1.0
        column[f"not{i}"][1 + entries + i] = 0.0
    return tokens


@pytest.mark.parametrize("seed", [1, 2])
def test_full_batch_descent_for_any_f_runs_under_a_causal_mask(seed):
    """3 n + 1 layers a step: the residual of one sample, its look-up, its share of the gradient in
    a second register; then that register is added to w.
    """
    d, n, rate, steps = 2, 5, 0.9, 4
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, d, generator=generator, dtype=F64) - 1
    y = 2 * torch.rand(n, generator=generator, dtype=F64) - 1
    names = ["null", "full", "idle", "state", "sample", "weight", "y", "slope", "bias", "value"]
    names += ["no entry", "z", "o", *(f"{m}{k}" for m in "xuwg" for k in range(d))]
    network = CausalNetwork([*names, *(f"not{i}" for i in range(n))])
    for _ in range(steps):
        full_batch_step(network, n, d)
    assert len(network.layers) == steps * (3 * n + 1)

    def odds(z):
        return torch.log((BOUND + torch.tanh(z)) / (BOUND - torch.tanh(z)))

    table = ice.Interpolant.fit(odds, -REACH, REACH, tokens=81, estimate=True)
    found = network(prompt(network, x, y, rate, table))
    w = torch.zeros(d, dtype=F64)
    for _ in range(steps):
        w = w - rate / n * torch.tanh(x @ w - y) @ x
    off = float((found[-1, [network.at[f"w{k}"] for k in range(d)]] - w).abs().max())
    assert off <= 2e-5
    assert "off by less than 2e-5" in pages()["docs/targets/descents.md"]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="pages are not in the package")
@pytest.mark.parametrize("words", FALSE)
def test_no_page_says_that_it_cannot_be(words):
    pattern = re.compile(words.replace(" ", r"\s+"), re.IGNORECASE)
    folders = ("src", "docs", "studies", "tests", "benchmarks")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.is_file()]
    texts = [f for f in [*files, *ROOT.glob("*.md")] if f.suffix in (".py", ".md", ".ipynb")]
    found = [
        str(f.relative_to(ROOT))
        for f in texts
        if f.name != "test_counterexamples.py" and pattern.search(f.read_text(encoding="utf-8"))
    ]
    assert not found
