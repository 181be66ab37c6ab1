"""The studies: data, columns, smoke runs of everything, sweeps, command line, report."""

import csv
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from iceform.errors import BoundError, DeviceError, IntegrityError, ProgramError
from studies import (
    COLUMNS,
    STUDIES,
    Request,
    heads,
    load_records,
    residual,
    run,
    statistics,
    theirs,
)
from studies.__main__ import main
from studies.ames import Encoder, houses, number_columns
from studies.heads import assemble
from studies.house_prices import house_prices
from studies.published import HEADS
from studies.randomness import permutation
from studies.report import write
from studies.residual import saturating
from studies.script import COMMIT
from studies.sweeps import groups
from studies.tables import Rates, number, pick, rates, sections

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Everything at smoke scale, in this process: the tests are two of them already."""
    out = tmp_path_factory.mktemp("smoke")
    records = run(Request(tuple(STUDIES), out=out))
    return out, records


# ---------------------------------------------------------------------------------------------
# data
# ---------------------------------------------------------------------------------------------


def test_the_ames_table_is_the_one_described():
    data = houses()
    assert len(data) == 2930
    assert data.features.shape[1] == 79 + 2
    assert len(number_columns(data)) == 36
    everything = np.arange(len(data))
    assert Encoder(missing_level=False)(data, everything).shape[1] == 260
    assert Encoder()(data, everything).shape[1] == 276
    assert Encoder(missing_level=False, identifiers=True)(data, everything).shape[1] == 262
    assert int((data.features["area"] > 4000).sum()) == 5


def test_the_encoding_does_not_see_rows_it_is_not_fitted_on():
    data = houses()
    fitted, numbers = np.arange(0, len(data), 2), number_columns(data)
    once = Encoder()(data, fitted)
    moved = data.features.copy()
    moved.loc[1::2, numbers] += 1000.0
    again = Encoder()(replace(data, features=moved), fitted)
    assert torch.equal(once[fitted], again[fitted])
    assert once[fitted][:, : len(numbers)].mean(0).abs().max() <= 1e-12
    assert bool((once[:, once[fitted].abs().sum(0) == 0] == 0).all()), "unseen levels are zeros"


def test_the_encoding_has_an_indicator_for_every_level_but_the_first():
    data = houses()
    rows = np.arange(len(data))
    column = data.features["Lot.Shape"]
    levels = sorted(column.unique())
    numbers = number_columns(data)
    before = [n for n in data.features if n not in (*numbers, "Order", "PID")]
    before = before[: before.index("Lot.Shape")]
    start = len(numbers) + sum(data.features[n].nunique(dropna=False) - 1 for n in before)
    block = Encoder()(data, rows)[:, start : start + len(levels) - 1]
    for place, level in enumerate(levels[1:]):
        assert block[:, place].tolist() == (column == level).astype(float).tolist(), level


def built(study, column, **labels):
    spec = STUDIES[study].spec(column, "smoke")
    plans = STUDIES[study].plans(spec, (0, 1), 1 << 10)
    plan = next(p for p in plans if all(p.labels.get(k) == v for k, v in labels.items()))
    return STUDIES[study].build(plan, CPU), spec


def test_the_published_residual_network_is_fed_its_targets():
    leaking, _ = built("residual", "as_published", variant="script")
    honest, _ = built("residual", "as_published", variant="script-without-leak")
    index = torch.arange(4).expand(2, -1)
    (tokens, _), target = leaking.batch(index)
    assert torch.equal(tokens[..., :-1], target)
    (tokens, _), target = honest.batch(index)
    assert not torch.equal(tokens[..., :-1], target)


def test_the_residual_target_is_the_theorem_s_where_it_asks():
    task, _ = built("residual", "as_the_theorem_asks", variant="asked")
    (tokens, w), target = task.batch(torch.arange(4).expand(2, -1))
    x, y = tokens[..., :-1], tokens[..., -1]
    z = (x.double() * w.double()).sum(-1) - y.double()
    exact = torch.tanh(z)[..., None] * x.double()
    assert (target - exact).abs().max() <= 1e-4 * exact.abs().max()


def test_the_published_head_is_a_softmax_over_queries():
    k, q, v = (torch.randn(2, 5, 3, dtype=torch.float64) for _ in range(3))
    weights = torch.softmax(k @ q.mT, -1)
    published = assemble(k, q, v, over_queries=True)
    assert (published - torch.einsum("bkq,bkd->bqd", weights, v)).abs().max() <= 1e-14
    right = assemble(k, q, v, over_queries=False)
    attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert (right - attention).abs().max() <= 1e-14
    assert (right - published).abs().max() > 0.1


def test_statistics_as_the_theorem_asks_learn_the_algorithm_s_predictions():
    task, spec = built("statistics", "as_the_theorem_asks")
    (tokens,), goal = task.batch(torch.arange(6).expand(2, -1))
    d, n = spec.dim, spec.tokens
    x, w = tokens[..., :n, :d], tokens[..., :n, d : 2 * d]
    assert ((x * w).sum(-1) - goal[..., 0]).abs().max() <= 1e-4
    context = tokens[..., n:, :]
    assert bool((context[..., -1] == 1).all())
    assert bool((tokens[..., :n, -2:] == 0).all()), "queries carry no label"


@pytest.mark.parametrize("layers", [1, 4])
def test_models_with_learnt_prompts_see_names_and_no_coefficients(layers):
    """Two samples with one context differ by the algorithm's name alone, and so do their goals."""
    task, spec = built("statistics", "as_the_theorem_asks", prompt="learnt", layers=layers)
    (tokens,), goal = task.batch(torch.arange(6).expand(2, -1))
    assert tokens.shape[0] == 2, "one model a seed"
    d, n = spec.dim, spec.tokens
    assert torch.equal(tokens[..., d : 2 * d].sum(-1), torch.ones(tokens.shape[:-1]))
    place = tokens[..., 0, d : 2 * d].argmax(-1)
    assert place.tolist() == [[0, 1, 2, 0, 1, 2]] * 2, "the algorithms come in turn"
    exact = (task.x[:, :6] @ task.coef[:, torch.arange(6), place[0]][..., None])[..., 0]
    assert (exact - goal[..., 0]).abs().max() <= 1e-4
    task.coef = task.coef * 0 + 7.0
    assert torch.equal(task.batch(torch.arange(6).expand(2, -1))[0][0], tokens)
    out = task.stack.network(task.stack.parameters, tokens)
    assert out.shape == (2, 6, n, 1)


def test_the_frozen_model_sees_every_algorithm_and_a_baseline_one():
    task, _ = built("housing", "our_reading", role="frozen")
    rows, algorithms = task._rows_and_algorithms(torch.arange(6).expand(2, -1))
    assert rows.tolist() == [[0, 0, 0, 1, 1, 1]] * 2
    assert algorithms[0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    other, _ = built("housing", "our_reading", role="baselines")
    _, algorithms = other._rows_and_algorithms(torch.arange(4).expand(2, -1))
    assert algorithms[0].tolist() == [[0] * 4, [1] * 4, [2] * 4]


def test_test_time_prompts_come_from_training_rows_alone():
    task, spec = built("housing", "as_the_theorem_asks", role="frozen")
    pairs, train = task.test_pairs[0, 0], task.x[0, : spec.train]
    for row in pairs[:20, :-1]:
        assert bool((train == row).all(1).any())


# ---------------------------------------------------------------------------------------------
# results
# ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_smoke_run_of_everything_gives_finite_numbers(smoke):
    _, records = smoke
    seen = {(r["study"], r["column"]) for r in records}
    assert seen == {(s, c) for s in STUDIES for c in COLUMNS if c != "their_script"}
    for r in records:
        for name, value in r["metrics"].items():
            assert math.isfinite(value), (r["study"], r["variant"], name)


@pytest.mark.slow
def test_constructed_errors_are_what_is_promised(smoke):
    _, records = smoke
    residual = [
        r["metrics"] for r in records if (r["study"], r["column"]) == ("residual", "constructed")
    ]
    heads = [
        r["metrics"] for r in records
        if (r["study"], r["column"]) == ("heads", "constructed")
        and r["variant"] == {"regime": "spectral", "grid": 21}
    ]  # fmt: skip
    assert len(residual) == len(heads) == 2
    for m in residual:
        assert m["sup error"] <= m["certified"] <= 1e-8, m
    for m in heads:
        assert m["sup error"] <= 1e-10, m
        assert m["sup error"] <= m["certified"], m


@pytest.mark.slow
def test_constructed_regressions_are_within_certificate_of_scikit_learn(smoke):
    _, records = smoke
    for r in records:
        if r["column"] != "constructed" or r["study"] not in ("statistics", "housing"):
            continue
        for algorithm in ("lasso", "ridge", "linear"):
            off, certified, proven = (
                r["metrics"][f"{algorithm}: {name}"]
                for name in ("distance to scikit-learn", "certified", "proven")
            )
            # scikit-learn rounds, and its lasso stops at a tolerance.
            assert off <= certified + (1e-6 if algorithm == "lasso" else 1e-11), (r["study"], off)
            assert certified <= 1e-11, (r["study"], algorithm, certified)
            # Some columns of the houses add up to others: least squares has many answers there.
            assert proven == ((r["study"], algorithm) != ("housing", "linear"))


@pytest.mark.slow
def test_a_constructed_study_runs_on_one_digest(smoke):
    """Seeds, data and algorithms differ; sizes differ only where the size is what is studied."""
    _, records = smoke
    for study in STUDIES:
        cells = [r for r in records if (r["study"], r["column"]) == (study, "constructed")]
        by_size = {}
        for r in cells:
            size = (r["variant"].get("regime"), r["variant"].get("grid"))
            by_size.setdefault(size, set()).add(r["notes"]["digest"])
            assert r["notes"]["domain"], study
            assert "attention" in {line["where"] for line in r["notes"]["ledger"]}
        assert all(len(digests) == 1 for digests in by_size.values()), study
        if study != "heads":
            assert len(by_size) == 1


def test_permuting_or_replacing_targets_does_not_change_the_weights():
    """The weights that answer are those of the machine that was built before there were data."""
    spec = STUDIES["statistics"].spec("constructed", "smoke")
    machine = statistics.frozen_machine(spec)
    before = machine.digest
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, spec.dim, generator=generator, dtype=torch.float64)
    y = torch.randn(48, generator=generator, dtype=torch.float64)
    answers = [
        statistics.emulate(machine, x, labels, spec.alpha_lasso, spec.alpha_ridge)
        for labels in (y, y.flip(0), 100 * y + 3)
    ]
    digests = {r.digest for a in answers for r in a.results.values()}
    assert digests == {before} == {statistics.frozen_machine(spec).digest}
    first, *others = (a.results["ridge"].coef for a in answers)
    for coef in others:
        assert (coef - first).abs().max() > 1e-3  # the answers do follow the targets


def test_weights_of_the_constructed_heads_know_no_data():
    """They are functions of the specification, which is written before anything is drawn."""
    for study, build in (("residual", residual.frozen_head), ("heads", heads.frozen_head)):
        spec = STUDIES[study].spec("constructed", "smoke")
        more = () if study == "residual" else ("spectral", spec.grid[0])
        em = build(spec, *more)
        before = em.network.digest
        x = torch.zeros(spec.tokens, spec.dim, dtype=torch.float64)
        if study == "residual":
            em(x, x[:, 0], x[0])
        else:
            em(x, *(x.new_zeros(spec.width, spec.dim) for _ in range(3)))
        assert em.network.digest == before == build(spec, *more).network.digest
        with pytest.raises(BoundError):
            em(*((x + 1000.0, x[:, 0], x[0]) if study == "residual" else
                 (x + 1000.0, *(x.new_zeros(spec.width, spec.dim) for _ in range(3)))))  # fmt: skip


@pytest.mark.slow
def test_splitting_the_grid_over_heads_falls_as_one_over_the_heads(smoke):
    """The theorem's rate, of what it is about: the entries of K, Q and V."""
    _, records = smoke
    found = {
        r["variant"]["grid"]: r["metrics"] for r in records
        if r["variant"].get("regime") == "split"
    }  # fmt: skip
    assert len(found) > 2
    for heads_, m in found.items():
        assert m["entry error"] <= m["certified of an entry"]
        scaled = heads_ * m["entry error"] / found[1]["entry error"]
        assert 0.8 <= scaled <= 1.25, (heads_, scaled)


def test_a_copy_of_the_authors_code_must_be_theirs(tmp_path):
    for name in theirs.FILES:
        (tmp_path / name).write_text("print('something else')\n")
    with pytest.raises(IntegrityError, match="is not the file of commit"):
        Request(("heads",), code=tmp_path)
    with pytest.raises(IntegrityError, match="has no"):
        theirs.check_copy(tmp_path / "nowhere")
    with pytest.raises(ProgramError, match="--their-code"):
        Request(("heads",), ("their_script",))


needs_their_code = pytest.mark.skipif(
    "ICEFORM_THEIR_CODE" not in os.environ, reason="needs the authors' code"
)


@needs_their_code
def test_the_authors_code_runs(tmp_path):
    code = Path(os.environ["ICEFORM_THEIR_CODE"])
    records = run(Request(tuple(STUDIES), ("their_script",), out=tmp_path, code=code))
    assert {r["study"] for r in records} == set(STUDIES)
    for r in records:
        assert r["notes"]["commit"] == COMMIT
        assert all(math.isfinite(v) and v > 0 for v in r["metrics"].values())


class _OurOrder(torch.utils.data.DataLoader):
    """A loader of theirs whose shuffles are ours, one for each pass."""

    def __init__(self, data, batch_size, shuffle):
        super().__init__(data, batch_size=batch_size)
        self.shuffled, self.epoch = shuffle, 0

    def __iter__(self):
        order = list(range(len(self.dataset)))
        if self.shuffled:
            order = permutation(len(self.dataset), "cpu", "order", 1, self.epoch).tolist()
            self.epoch += 1
        for at in range(0, len(order), self.batch_size):
            yield default_collate([self.dataset[i] for i in order[at : at + self.batch_size]])


@needs_their_code
@pytest.mark.parametrize("study", ["residual", "heads"])
def test_the_authors_own_loop_comes_to_the_same(tmp_path, monkeypatch, study):
    """Their ``train_model``, whole, on the batches that our engine takes, from the same start."""
    code = Path(os.environ["ICEFORM_THEIR_CODE"])
    records = run(Request((study,), ("their_script",), out=tmp_path, code=code))
    spec = STUDIES[study].spec("their_script", "smoke")
    name = {"residual": "att_sim_f", "heads": "attn_sim_attn"}[study]
    sizes = (spec.epochs, spec.batch, spec.lr, spec.tokens, spec.hidden)
    with theirs.script(code, name) as script:
        monkeypatch.setattr(script, "DataLoader", _OurOrder)
        if study == "residual":
            said = []
            monkeypatch.setattr(script, "print", said.append, raising=False)
            theirs._start(1)
            data = script.SimFDataset(spec.samples, spec.tokens, spec.dim)
            script.train_model(spec.points, data, *sizes)
            loss = float(said[-1].removeprefix("Test Loss: "))
        else:
            theirs._start(0)
            data = script.SimAttentionDataset(spec.samples, spec.tokens, spec.dim, spec.hidden)
            theirs._start(theirs._SEED + 1)
            loss = script.train_model(4, spec.points, data, *sizes)
    (ours,) = [
        r["metrics"]["mse"] for r in records if r["seed"] == 1 and r["variant"].get("heads", 4) == 4
    ]
    assert ours == pytest.approx(loss, rel=3e-5)  # printed to four decimals, or float32's sums


def _affine(name, layer):
    return {f"{name}.weight": layer.weight.mT, f"{name}.bias": layer.bias[None]}


def _tokens(name, mapping, constant):
    return _affine(name, mapping.token_proj) | {
        f"{name}.scale": mapping.modulation, constant: mapping.interp_tokens
    }  # fmt: skip


@needs_their_code
@torch.no_grad()
def test_the_networks_of_as_published_are_the_authors():
    """The same weights in both, moved from where they start, give the same outputs."""
    code = Path(os.environ["ICEFORM_THEIR_CODE"])
    for name, study in STUDIES.items():
        plans = [study.plans(study.spec(c, "smoke"), (0, 1), 6)[-1 if name == "heads" else 0]
                 for c in ("their_script", "as_published")]  # fmt: skip
        built = theirs.build_theirs(plans[0], CPU, code)
        task = study.build(plans[1], CPU)
        ours = task.network if name == "heads" else task.stack.network
        module = built.modules[0].parts[0] if name == "heads" else built.modules[0]
        for p in module.parameters():
            p.add_(
                torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())), alpha=0.1
            )
        (x, *w), _ = built.batch(torch.arange(4).expand(2, -1))
        if name == "residual":
            made = _tokens("data", module.mapping_A, "data.constant")
            made |= _tokens("prompt", module.mapping_B, "prompt.constant")
            for part in "qkv":
                made |= _affine(part, getattr(module, f"{part}_proj"))
            inputs, wanted = (x[:1], w[0][:1]), module(x[0], w[0][0])
        else:
            inner = getattr(module, "attnm", module)
            made = _tokens("in", inner.mapping_A, "constant")
            parts = [_affine("qkv", getattr(inner.attn1, f"{part}_proj")) for part in "qkv"]
            made |= {k: torch.cat([p[k] for p in parts], -1) for k in parts[0]}
            made |= _affine("out", inner.attn1.out_proj)
            wanted = module(x[0], *(t[0] for t in w))
            if name == "heads":
                wanted, inputs = wanted.mT, (x[:1],)
            else:
                made |= _affine("final", module.linear)
                prompt = w[0][:1, :, None].expand(-1, -1, x.shape[2], -1)
                inputs = (torch.cat([x[:1], prompt], -1),)
        off = (ours({k: p[None] for k, p in made.items()}, *inputs)[0] - wanted).abs().max()
        assert off <= 1e-5 * wanted.abs().max(), (name, float(off))
        assert wanted.std() > 0.01


@needs_their_code
def test_the_houses_of_as_published_are_the_authors():
    with theirs.script(Path(os.environ["ICEFORM_THEIR_CODE"]), theirs._Housing.script) as script:
        script.fetch_openml = theirs._table
        data = script.AmesStatsData()
    x, y = house_prices()
    assert torch.allclose(data.targets[:, 0].double(), y, atol=1e-5)
    apart = torch.cdist(data.features.T.double(), x.T)  # columns come in another order
    assert apart.shape == (262, 262)
    assert float(torch.cat([apart.amin(0), apart.amin(1)]).max()) <= 1e-4


@pytest.mark.slow
def test_least_squares_solves_the_published_heads_task(smoke):
    _, records = smoke
    solved = [
        r["metrics"]["oracle mse"] / r["metrics"]["trivial mse"]
        for r in records if (r["study"], r["column"]) == ("heads", "as_published")
    ]  # fmt: skip
    assert solved
    assert max(solved) <= 1e-6


@pytest.mark.slow
def test_finished_cells_are_not_computed_again(smoke):
    out, records = smoke
    assert groups(Request(tuple(STUDIES), out=out)) == []
    assert run(Request(("heads",), out=out)) == []
    assert len(load_records(out)) == len(records)
    more = groups(Request(("heads",), ("as_published",), out=out, seeds=3))
    assert {seed for g in more for p in g.plans for seed in p.seeds} == {2}


@pytest.mark.slow
def test_processes_and_one_after_another_give_the_same_numbers(smoke, tmp_path):
    _, records = smoke
    alone = run(Request(("statistics",), ("as_published",), out=tmp_path))
    for r in alone:
        other = next(
            s for s in records
            if all(s[k] == r[k] for k in ("study", "column", "variant", "seed"))
        )  # fmt: skip
        assert r["metrics"] == other["metrics"]


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_numbers(smoke, tmp_path):
    from distributed import LocalCluster

    _, records = smoke
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        request = Request(("statistics",), ("as_published",), out=tmp_path)
        there = run(request, dask=cluster.scheduler_address)
    wanted = {
        r["seed"]: r["metrics"] for r in records
        if (r["study"], r["column"]) == ("statistics", "as_published")
    }  # fmt: skip
    assert {r["seed"]: r["metrics"] for r in there} == wanted


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="study"):
        Request(("lasso",))
    with pytest.raises(ValueError, match="seeds"):
        Request(("heads",), seeds=0)
    with pytest.raises(DeviceError, match="cpu or cuda"):
        Request(("heads",), devices=("mps",))
    with pytest.raises(DeviceError, match="CUDA devices are there"):
        Request(("heads",), devices=("cuda:99",))
    with pytest.raises(ValueError, match="scale"):
        groups(Request(("heads",), scale="huge"))
    with pytest.raises(ValueError, match="column"):
        groups(Request(("heads",), ("trained",)))


def test_a_saturating_table_is_certified_on_its_whole_range():
    it = saturating(torch.tanh, 12.0, 40.0, 1e-6)
    z = torch.linspace(-40, 40, 40_001, dtype=torch.float64)
    off = float((it(z) - torch.tanh(z)).abs().max())
    assert off <= it.error <= 1e-5, (off, it.error)


# ---------------------------------------------------------------------------------------------
# report and command line
# ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report_holds_published_numbers_beside_ours(smoke, tmp_path):
    _, records = smoke
    paths = {p.name: p for p in write(records, tmp_path)}
    assert set(paths) == {
        "report.html", "report.md", "summary.csv", "rates.png", "heads.png", "learning.png",
        "studies.png",
    }  # fmt: skip
    page, text = paths["report.html"].read_text(), paths["report.md"].read_text()
    for value in ("3.47 ± 0.381", "0.0354 ± 0", "0.0680 ± 0.0150"):
        assert value in page, value
        assert value in text, value
    rows = list(csv.DictReader(paths["summary.csv"].read_text().splitlines()))
    mine = [
        r["metrics"]["mse"] for r in records
        if r["study"] == "heads" and r["variant"] == {"heads": 1, "schedule": "constant"}
        and r["column"] == "as_published"
    ]  # fmt: skip
    wanted = next(
        row for row in rows
        if row["column"] == "as_published" and row["variant"] == "heads=1 schedule=constant"
        and row["metric"] == "mse"
    )  # fmt: skip
    assert float(wanted["mean"]) == pytest.approx(sum(mine) / len(mine), rel=1e-12)
    assert int(wanted["seeds"]) == len(mine)


@pytest.mark.slow
def test_the_slope_of_the_published_table_is_not_one_over_h(smoke):
    _, records = smoke
    curves = {c.label: c for c in rates(records)}
    # Of the root mean squared error; the table's own MSE falls as H^-0.65 to H^-0.7.
    assert -0.36 < curves["published (heads)"].slope < -0.3
    assert curves["spectral look-ups (grid tokens)"].slope < -10
    assert len(HEADS) == 6


def test_a_fitted_slope_is_that_of_a_power_law():
    sizes = (1.0, 2.0, 5.0, 9.0)
    assert Rates("", sizes, tuple(3 * s**-1.5 for s in sizes)).slope == pytest.approx(-1.5)


def test_a_seed_counts_once_however_many_records_hold_it():
    """Study 4 has a record a role, and the mean price's error in both: five seeds, not ten."""

    def record(seed, role, value):
        metrics = {"trivial mse": value}
        return {"study": "housing", "column": "as_published", "scale": "paper", "seed": seed,
                "variant": {"role": role}, "metrics": metrics}  # fmt: skip

    roles = ("frozen", "baselines")
    records = [record(s, role, 1.0 + s) for role in roles for s in range(3)]
    found = pick(records, "housing", "as_published", "trivial mse")
    assert found.values == (1.0, 2.0, 3.0)
    assert found.deviation == pytest.approx(1.0)
    with pytest.raises(ProgramError, match=r"seed 0 has 1\.0 and 9\.0"):
        pick([*records, record(0, "frozen", 9.0)], "housing", "as_published", "trivial mse")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.469, "3.47"), (0.0003, "0.00030"), (1e-9, "1.0e−9"), (185.7, "186")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_there_is_nothing_to_report_without_results(tmp_path):
    with pytest.raises(ProgramError, match="no results"):
        write([], tmp_path)


@pytest.mark.slow
def test_every_section_names_the_flaws(smoke):
    for section in sections(smoke[1]):
        assert section.flaws
        assert section.tables
        for t in section.tables:
            assert all(len(row) == len(t.header) for row in t.rows), t.caption


def test_the_command_line_lists_runs_and_reports(tmp_path, capsys):
    assert main(["list"]) == 0
    assert "residual" in capsys.readouterr().out
    assert main(["run", "heads", "--column", "as_published", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "cells computed" in told.out
    assert re.fullmatch(
        r"(\d+) of \1 groups; heads as_published .*: done", told.err.split("\n")[-2]
    )
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report" / "report.html").exists()
    with pytest.raises(SystemExit, match="2"):
        main(["run", "heads", "--device", "cuda:99"])
    assert "error:" in capsys.readouterr().err
