"""``as_published`` has the script's settings, and ``our_reading`` those that the table says.

Sizes are read off the specification at the paper's scale. Everything else is read off data and
networks as they are built at smoke scale: distributions by their moments, the target, the softmax
and its scale by writing the formula down once more.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from iceform.errors import ShapeError
from iceform_estimators.tables import is_number
from studies import STUDIES
from studies.ames import houses
from studies.heads import assemble
from studies.house_prices import house_prices, rows_in_ames
from studies.housing import _split
from studies.networks import SelfAttention
from studies.script import COMMIT, FACTS, page
from studies.statistics import ALGORITHMS
from studies.training import Curves

PAGE = Path(__file__).parents[4] / "results" / "settings.md"
CPU = torch.device("cpu")
COLUMNS = ("as_published", "our_reading")
FIRST = torch.arange(8).expand(2, -1)
TASKS: dict = {}


def plan_of(study, column):
    spec = STUDIES[study].spec(column, "smoke")
    wanted = {"variant": ("script", "leak"), "role": ("frozen",)}
    plans = STUDIES[study].plans(spec, (0, 1), 1 << 10)
    return next(
        p for p in plans if all(p.labels[k] in v for k, v in wanted.items() if k in p.labels)
    )


def task_of(study, column):
    """Built once: the tests only look at it."""
    if (study, column) not in TASKS:
        TASKS[study, column] = STUDIES[study].build(plan_of(study, column), CPU)
    return TASKS[study, column]


class Looked:
    """What a column has; a method for each setting that no size says."""

    def __init__(self, study, column):
        self.study, self.column = study, column
        self.spec = STUDIES[study].spec(column, "paper")

    @property
    def task(self):
        return task_of(self.study, self.column)

    def network(self):
        return getattr(self.task, "network", self.task.stack.network)

    def start(self):
        return {k: p[0] for k, p in self.task.stack.parameters.items()}


def schedules(look):
    spec = STUDIES[look.study].spec(look.column, "paper")
    plans = STUDIES[look.study].plans(spec, (0,), 1)
    return " and ".join(dict.fromkeys(str(p.labels.get("schedule", "constant")) for p in plans))


def distribution(x):
    """The mean, the deviation and the ends give it away."""
    mean, deviation = float(x.mean()), float(x.std())
    low, high = math.floor(float(x.min())), math.ceil(float(x.max()))
    if deviation == pytest.approx((high - low) / math.sqrt(12), rel=0.02):
        assert float(x.max()) < high
        return f"uniform in [{low}, {high})"
    kurtosis = float(((x - mean) / deviation).pow(4).mean())
    assert kurtosis == pytest.approx(3, abs=0.2), "neither uniform nor normal"
    return f"{round(deviation)} N(0, 1) - {round(-mean)}"


def by_hand(p, x, w, *, scaled, over_w):
    """Study 1's head: keys of the data, queries of W, values of the data."""

    def tokens(name, data):
        own = (data @ p[f"{name}.weight"] + p[f"{name}.bias"]) * p[f"{name}.scale"]
        constant = p[f"{name}.constant"].expand(len(data), -1, -1)
        return torch.cat([own, constant], 1)

    data, prompt = tokens("data", x), tokens("prompt", w)
    k, v, q = (t @ p[f"{n}.weight"] + p[f"{n}.bias"]
               for n, t in (("k", data), ("v", data), ("q", prompt)))  # fmt: skip
    scores = torch.einsum("bkd,bqd->bkq", k, q) / (math.sqrt(k.shape[-1]) if scaled else 1)
    weights = torch.softmax(scores, -1 if over_w else -2)
    out = weights @ v
    if "out.weight" in p:
        out = out @ p["out.weight"] + p["out.bias"]
    return out[:, : x.shape[1]]


def residual_matches(look, **formula):
    """Whether the network is this formula, on data of unit size so that softmaxes differ."""
    p, source = look.start(), torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, 20, d, generator=source) for d in (25, 24))
    made = look.network()({k: t[None] for k, t in p.items()}, x[None], w[None])[0]
    return float((made - by_hand(p, x, w, **formula)).abs().max()) <= 1e-5


def logits(look):
    scaled = [residual_matches(look, scaled=s, over_w=True) for s in (False, True)]
    assert sum(scaled) == 1
    return ("as they are", "over the root of the width")[scaled.index(True)]


def softmax(look):
    over = [o for o in (True, False)
            if any(residual_matches(look, scaled=s, over_w=o) for s in (True, False))]  # fmt: skip
    assert over == [True]
    return "over the tokens of W"


def residual_target(look):
    (_, w), target = look.task.batch(FIRST)
    x, y = look.task.x[:, :8], look.task.y
    y = y[:, None] if y.dim() == 2 else y[:, :8]
    formula = torch.tanh(torch.einsum("sbnd,sbmd->sbnm", x, w) + y[..., None]) @ x
    assert float((formula - target).abs().max()) <= 1e-4
    return "tanh(X W' + y) X"


def fed(look):
    (tokens, _), target = look.task.batch(FIRST)
    y = look.task.y[:, None] if look.task.y.dim() == 2 else look.task.y[:, :8]
    assert torch.equal(tokens[..., :-1], target)
    assert torch.equal(tokens[..., -1], y.expand(tokens.shape[:-1]))
    return "the target and y"


def constant_tokens(look):
    ramp = look.start()["data.constant"]
    assert torch.equal(ramp, torch.linspace(-1, 1, 40)[:, None].expand(40, 64))
    return "from -1 to 1"


def scales(look):
    assert bool((look.start()["data.scale"] == 1).all())
    return "ones"


def heads_shared(look):
    x, w = look.task.x, look.task.weights
    same = torch.equal(x[0], x[1]) and torch.equal(w[0], w[1])
    assert same or not (torch.equal(x[0], x[1]) or torch.equal(w[0], w[1]))
    return "one for all seeds" if same else "one for each seed"


def heads_split(look):
    if look.task.order is None:
        return "none: data are by seed"
    first, second = look.task.order
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(200))
    assert not torch.equal(first, second)
    return "by seed"


def heads_softmax(look):
    kqv = torch.randn(2, 3, 4, 5, 48, generator=torch.Generator().manual_seed(1)) / 5
    k, q, v = kqv.unbind(1)
    v = v[..., : look.spec.value_width]
    weights = torch.softmax(torch.einsum("sbkd,sbqd->sbkq", k, q), -1)
    wanted = torch.einsum("sbkq,sbkd->sbqd", weights, v)
    assert float((look.task._second(kqv) - wanted).abs().max()) <= 1e-5
    assert float((assemble(k, q, v, over_queries=False) - wanted).abs().max()) > 1e-2
    return "over queries"


def heads_scale(look):
    """A network of two heads, by hand."""
    net = SelfAttention(24, 20, 20, 48, 2, 60, 48)
    p = net.initial(torch.Generator().manual_seed(2))
    x = torch.randn(1, 1, 20, 24, generator=torch.Generator().manual_seed(3))
    tokens = torch.cat([(x[0, 0] @ p["in.weight"] + p["in.bias"]) * p["in.scale"], p["constant"]])
    q, k, v = (tokens @ p["qkv.weight"] + p["qkv.bias"]).split(48, -1)
    parts = [
        torch.softmax(q[:, h : h + 24] @ k[:, h : h + 24].T / math.sqrt(24), -1) @ v[:, h : h + 24]
        for h in (0, 24)
    ]
    wanted = (torch.cat(parts, -1) @ p["out.weight"] + p["out.bias"])[:20]
    made = net({n: t[None] for n, t in p.items()}, x)[0, 0]
    assert float((made - wanted).abs().max()) <= 1e-5
    assert isinstance(look.network(), SelfAttention)
    return "over the root of a head's width"


def width_of_values(look):
    """Columns of the target's V that are not zero, and that the error of V depends on."""
    (tokens,), targets = look.task.batch(FIRST)
    own = int((targets[2].abs().amax((0, 1)) > 0).sum())
    parameters = look.task.stack.parameters
    moved = {k: p.clone() for k, p in parameters.items()}
    moved["out.bias"][2, 0, own:] += 1.0
    network = look.task.stack.network
    assert torch.equal(network(parameters, tokens)[2], network(moved, tokens)[2])
    assert own == look.spec.value_width
    return own


def mean_of_samples(look):
    """Of 40 test samples 32 and 8 make batches: the mean of their means is another number."""
    task, parameters = look.task, look.task.stack.parameters
    (record, *_) = task.judge(parameters, Curves([torch.zeros(6)]))
    index = torch.arange(160, 200).expand(2, -1)
    tokens, exact = task._projections(index, "right")
    got = look.network()(parameters, tokens).unflatten(0, (2, 3))
    off = task._second(got.double()) - task._second(exact.double())
    each = off[0].square().mean((1, 2))
    halves = (each[:32].mean() + each[32:].mean()) / 2
    assert record.metrics["mse"] == pytest.approx(float(each.mean()), rel=1e-6)
    assert record.metrics["mse"] != pytest.approx(float(halves), rel=1e-3)
    return "mean of samples"


def algorithm_of_a_sample(look):
    mixed = look.task.mixed
    in_turn = torch.arange(mixed.shape[1]).expand_as(mixed) % len(ALGORITHMS)
    if torch.equal(mixed, in_turn):
        return "in turn"
    assert set(mixed.flatten().tolist()) == {0, 1, 2}
    assert not torch.equal(mixed[0], mixed[1])
    return "drawn"


def draws_of_noise(look):
    """Where ridge is fitted on the noise of its labels, its residuals there are the smaller."""
    task = look.task
    w = task.coef[:, :, ALGORITHMS.index("ridge")].double()
    x = task.x.double()
    labels = task.labels[:, :, ALGORITHMS.index("ridge")].double()
    noise = labels - torch.einsum("sbnd,sbd->sbn", x, w)
    plain = task.coef[:, :, ALGORITHMS.index("linear")].double()
    exact = torch.einsum("sbnd,sbd->sbn", x, plain) + noise
    gram = x.mT @ x + 5.0 * torch.eye(24, dtype=torch.float64)
    again = torch.linalg.solve(gram, torch.einsum("sbnd,sbn->sbd", x, exact))
    return 1 if float((again - w).abs().max()) <= 1e-4 else 2


def ridge_penalty(look):
    """The normal equations hold with 5: what is left of them is as small as the noise is."""
    task = look.task
    x = task.x.double()
    ridge, plain = (task.coef[:, :, ALGORITHMS.index(a)].double() for a in ("ridge", "linear"))
    y = torch.einsum("sbnd,sbd->sbn", x, plain)
    left = torch.einsum("sbnd,sbn->sbd", x, y - torch.einsum("sbnd,sbd->sbn", x, ridge))
    fitted = float((left * ridge).sum() / ridge.square().sum())
    return float(round(fitted, 1))


def zeros(look):
    kept = look.task.coef[:, :, ALGORITHMS.index("lasso")] != 0
    assert float(kept.float().mean()) == pytest.approx(0.5, abs=0.05)
    return "each with probability 1/2"


def noise(look):
    lasso = ALGORITHMS.index("lasso")
    exact = torch.einsum("sbnd,sbd->sbn", look.task.x, look.task.coef[:, :, lasso])
    return float(round(float((look.task.labels[:, :, lasso] - exact).std()), 2))


def label(look):
    prices = houses().numbers()
    prices = prices[rows_in_ames()] if look.column == "as_published" else prices
    found = look.task.y[0].double().sort().values
    names = {"log(price)": np.log(prices), "log(1 + price)": np.log1p(prices)}
    off = {name: float((found - torch.from_numpy(np.sort(y))).abs().mean())
           for name, y in names.items()}  # fmt: skip
    best = min(off, key=off.get)
    assert off[best] <= 5e-7, off
    assert max(off.values()) >= 2e-6, off
    return best


def row_algorithms(look):
    stack = look.task.stack
    if stack.draw is None:
        assert stack.examples == 3 * look.task.spec.train
        return "all three"
    epochs = [stack.draw(0, e) for e in range(2)]
    assert all(sorted((e // 3).tolist()) == list(range(stack.examples)) for e in epochs)
    shown = [dict(zip((e // 3).tolist(), (e % 3).tolist(), strict=True)) for e in epochs]
    assert shown[0] != shown[1]
    assert set((epochs[0] % 3).tolist()) == {0, 1, 2}
    return "drawn whenever it is read"


def regressions_see(look):
    """The coefficients are one for all splits, so no split's test rows were left out."""
    assert look.task.coef.shape == (3, 262)
    return "all"


def standardised(look):
    deviation = look.task.x[0].double().std(0, correction=0)
    ones = int(((deviation - 1).abs() <= 1e-4).sum())
    return "every column" if ones == 262 else "numbers" if ones == 38 else f"{ones} columns"


def frame_of(look):
    """The columns that are words and those that are numbers, Id or Order and PID left out."""
    rows = rows_in_ames() if look.column == "as_published" else np.arange(2930)
    frame = houses().features.iloc[rows].drop(columns=["Order", "PID"]).reset_index(drop=True)
    frame.loc[frame["Mas.Vnr.Area"].notna() & frame["Mas.Vnr.Type"].isna(), "Mas.Vnr.Type"] = "None"
    if look.column == "our_reading":
        frame["Mas.Vnr.Type"] = frame["Mas.Vnr.Type"].replace("None", np.nan)
    words = [c for c in frame if not is_number(frame[c])]
    return frame, words


def columns(look, *, level, first):
    """How many there are with a level for missing words or not, the first one left out or not."""
    frame, words = frame_of(look)
    numbers = len(frame.columns) - len(words) + (1 if look.column == "as_published" else 2)
    return numbers + sum(frame[w].nunique(dropna=not level) - (not first) for w in words)


def missing_words(look):
    counts = {level: columns(look, level=level, first=False) for level in (True, False)}
    assert sum(c == look.task.x.shape[-1] for c in counts.values()) == 1, counts
    return "a level" if counts[True] == look.task.x.shape[-1] else "zeros"


def levels(look):
    level = look.column == "as_published"
    assert columns(look, level=level, first=True) > look.task.x.shape[-1]
    assert columns(look, level=level, first=False) == look.task.x.shape[-1]
    return "all but the first"


def missing_numbers(look):
    """A column of the design is the frontage with its median where it is missing."""
    frame, _ = frame_of(look)
    frontage = frame["Lot.Frontage"]
    assert frontage.isna().sum() > 200
    order = _split(look.spec, 0)
    found = look.task.x[0].double()
    for fill, name in ((frontage.median(), "the median"), (frontage.mean(), "the mean")):
        known = torch.from_numpy(frontage.fillna(fill).to_numpy()[order])
        wanted = (known - known.mean()) / known.std(correction=0)
        if float((found - wanted[:, None]).abs().amax(0).min()) <= 1e-5:
            return name
    return "something else"


def baselines(look):
    plans = STUDIES[look.study].plans(look.spec, (0,), 1 << 10)
    models = sum({str(p.variant): p.models for p in plans if labelled(p)}.values())
    return {1: "none", 4: "three"}[models]


def labelled(plan):
    return plan.labels.get("schedule", "constant") == "constant"


CHECKS = {
    "samples": lambda k: k.spec.samples,
    "tokens": lambda k: k.spec.tokens,
    "features": lambda k: k.spec.dim,
    "width": lambda k: k.spec.hidden,
    "tokens, constant ones included": lambda k: k.spec.points,
    "epochs": lambda k: k.spec.epochs,
    "batch": lambda k: k.spec.batch,
    "rate": lambda k: k.spec.lr,
    "schedule": schedules,
    "share for training": lambda k: k.spec.train / k.spec.samples,
    "seeds": lambda k: k.spec.seeds,
    "trainings": lambda k: k.spec.seeds,
    "heads": lambda k: k.spec.heads,
    "X": lambda k: distribution(k.task.x[0].double()),
    "steps of an epoch": lambda k: plan_at_scale(k).length[0],
    "samples for training": lambda k: k.spec.train,
    "samples for testing, of each algorithm": lambda k: k.spec.test,
    "noise": noise,
    "zeros in lasso's w": zeros,
    "ridge's penalty": ridge_penalty,
    "draws of noise for ridge": draws_of_noise,
    "algorithm of a sample": algorithm_of_a_sample,
    "W": lambda k: "one for all samples" if k.task.w.shape == (2, 20, 24) else "one for each",
    "y": lambda k: f"one for {'all samples' if k.task.y.shape == (2, 20) else 'each sample'}",
    "target": residual_target,
    "what is fed": fed,
    "width of values": lambda k: k.start()["v.weight"].shape[1],
    "output layer": lambda k: "64 to 24" if "out.weight" in k.start() else "none",
    "logits": logits,
    "softmax": softmax,
    "scales of tokens at the start": scales,
    "constant tokens at the start": constant_tokens,
    "width of K and Q": lambda k: k.task.weights.shape[-1],
    "width of V": width_of_values,
    "data and target": heads_shared,
    "split": heads_split,
    "softmax of the target": heads_softmax,
    "logits of the networks": heads_scale,
    "error": mean_of_samples,
    "baselines": baselines,
    "rows": lambda k: k.spec.samples,
    "label": label,
    "missing words": missing_words,
    "missing numbers": missing_numbers,
    "levels": levels,
    "standardised": standardised,
    "penalties": lambda k: k.spec.lasso_grid[0] if k.spec.lasso_grid == k.spec.ridge_grid else None,
    "rows that the regressions see": regressions_see,
    "algorithm of a row": row_algorithms,
}


def plan_at_scale(look):
    plans = STUDIES[look.study].plans(look.spec, (0,), 1)
    return next(p for p in plans if p.labels.get("role", "frozen") == "frozen")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f"{f.study}: {f.setting}")
def test_settings_are_the_script_s_or_what_the_table_says(fact, column):
    found = CHECKS[fact.setting](Looked(fact.study, column))
    wanted = getattr(fact, column)
    assert found == (pytest.approx(wanted) if isinstance(wanted, float) else wanted)


def test_a_difference_from_the_script_has_a_reason():
    for fact in FACTS:
        assert (fact.published is None) == (fact.why == ""), fact
        assert fact.published != fact.value
        assert fact.reading != fact.value


def test_the_script_s_own_number_of_heads_is_refused():
    (fact,) = (f for f in FACTS if (f.study, f.setting) == ("housing", "heads"))
    with pytest.raises(ShapeError, match="8 heads do not divide a width of 524"):
        SelfAttention(524, 1, 1, 524, fact.value, 100, 1)


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in the package")
def test_the_page_is_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert COMMIT[:12] in text
    for study in STUDIES:
        assert "\n".join(page(study)) in text, study
    assert len(re.findall(r"^\| (?!---|setting)", text, re.MULTILINE)) == len(FACTS)


# ---------------------------------------------------------------------------------------------
# the table of study 4
# ---------------------------------------------------------------------------------------------

FIRST_PRICES = (208_500, 181_500, 223_500, 140_000, 250_000)  # of Ids 1 to 5, as OpenML has them
SUM_OF_PRICES = 264_144_946


def test_house_prices_is_the_table_that_the_script_reads():
    rows = rows_in_ames()
    assert len(rows) == len(set(rows.tolist())) == 1460
    x, y = house_prices()
    assert x.shape == (1460, 262)
    prices = torch.expm1(y).round()
    assert prices[:5].tolist() == list(FIRST_PRICES)
    assert float(prices.sum()) == SUM_OF_PRICES
    assert float(x.mean(0).abs().max()) <= 1e-12
    ids = torch.arange(1460, dtype=torch.float64)
    assert torch.allclose(x[:, 0], (ids - ids.mean()) / ids.std(correction=0))


def test_lasso_of_the_script_has_no_coefficient():
    from sklearn.linear_model import Lasso

    x, y = house_prices()
    assert not Lasso(alpha=1.0).fit(x.numpy(), y.numpy()).coef_.any()
    assert not task_of("housing", "as_published").coef[ALGORITHMS.index("lasso")].any()
