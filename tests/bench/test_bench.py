"""The circuit benchmark: effects are exact, records are whole, and what is handed in is refused."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
import transformers

from iceform import bench, store
from iceform.bench.building import CaseSpec, compile_case, exact_truth
from iceform.bench.case import measured_everywhere, read_case
from iceform.bench.methods import METHODS, PairedRuns, masked
from iceform.bench.network import PatchedRuns
from iceform.cli import main
from iceform.errors import IntegrityError, ParameterError, ProgramError, ShapeError
from iceform.targets.text import TextComputer

SMALL = ("vote.data.hard", "thresholded-mean.data.hard-turned", "two-hops.query.hard")
KNOBS = ("soft", "decoys", "forward", "superposed")
_LOADED: dict[str, bench.Case] = {}


def loaded(name: str) -> bench.Case:
    if name not in _LOADED:
        _LOADED[name] = bench.load(name)
    return _LOADED[name]


@pytest.fixture(params=SMALL)
def case(request):
    return loaded(request.param)


@pytest.fixture
def vote():
    return loaded("vote.data.hard")


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (lambda _: bench.load("induct.query.hard"), ProgramError, "induction.query.hard"),
        (lambda _: bench.load("vote.data"), ProgramError, "vote.data.hard"),
        (lambda _: bench.load(3), ParameterError, "got 3"),
        (lambda c: bench.score("vote.data.hard", {}), ProgramError, "bench.load(name)"),
        (lambda c: c.metric(len(c.pairs("test"))), ShapeError, "the pairs 0 to 7, got 8"),
        (lambda c: c.private("x"), ProgramError, "a seed is a whole number, got 'x'"),
    ],
)
def test_what_a_new_user_mistypes_is_told(vote, asked, error, says):
    with pytest.raises(error) as refused:
        asked(vote)
    assert says in str(refused.value)


def test_at_least_sixty_cases_of_twelve_programs_and_at_most_six_of_each():
    names = bench.cases()
    each = [name.split(".")[0] for name in names]
    assert len(names) == len(set(names)) >= 60
    assert len(set(each)) >= 12
    assert max(each.count(program) for program in each) <= 6
    traits = {t for p in bench.programs() for t in bench.program(p).traits}
    assert traits >= {"threshold", "minimum", "selection", "cancellation", "aliasing", "flag"}


def _compiled(name, **knobs):
    """A case's network, drawn prompts and their exact answers."""
    compiled, generator = compile_case(CaseSpec(name, **knobs)), torch.Generator().manual_seed(3)
    ids = torch.stack([compiled.program.draw(generator) for _ in range(12)])
    return compiled, ids, torch.stack([compiled.program.exact(one) for one in ids])


@pytest.mark.parametrize(
    ("name", "knobs"),
    [(name, {"decoys": 1}) for name in bench.programs()]
    + [(n.split(".")[0], {"forward": True}) for n in bench.cases() if n.endswith("forward")],
)
def test_a_program_computes_what_its_reference_says(name, knobs):
    compiled, ids, exact = _compiled(name, **knobs)
    assert bool(compiled.network.forward) == knobs.get("forward", False)
    if compiled.centres is None:
        assert torch.equal(compiled.answered(ids), exact)
    else:
        answers = compiled.read(compiled.network.plain(compiled.network.start(ids)))
        assert float((answers - exact).abs().median()) < 1e-6


@pytest.mark.parametrize(
    "spec",
    [
        CaseSpec("text-branch", "flag", decoys=0), CaseSpec("bert-histogram"),
        CaseSpec("variation", forward=True), CaseSpec("vote", soft=True),
        CaseSpec("nearest", soft=True, superposed=True),
    ],
    ids=lambda spec: spec.id,
)  # fmt: skip
def test_stock_transformers_give_the_same_logits(spec, tmp_path):
    """Heads, feed-forward maps, masks and norms are those of the stock code, in float64."""
    compiled, ids, _ = _compiled(spec.program, **{k: getattr(spec, k) for k in KNOBS})
    case = bench.Case(spec, compiled, {}, {})
    case.save_model(tmp_path)
    kind = getattr(transformers, compiled.config["architectures"][0])
    model = kind.from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = model(ids).logits
    meant = compiled.network.logits(ids)
    assert float((logits - meant).abs().max()) < 1e-7 * float(meant.abs().max())


def test_a_case_of_a_text_is_the_text_computer_itself():
    compiled = compile_case(CaseSpec("text-sum", decoys=0))
    sizes = {"labels": 3, "scalars": 3, "arrays": 0, "indices": 0, "cells": 1, "bits": 3,
             "fraction": 2, "top": 2, "positions": 64}  # fmt: skip
    computer = TextComputer(**sizes)
    assert computer.tensors().keys() == compiled.tensors.keys()
    assert all(torch.equal(t, compiled.tensors[n]) for n, t in computer.tensors().items())
    with pytest.raises(ProgramError, match=r"text-sum\.data\.hard: the program is in the prompt"):
        bench.score(bench.Case(compiled.spec, compiled, {}, {}), {"program": "vote", "steps": 1},
                    track="algorithm")  # fmt: skip


def test_radii_hold_another_order_of_summation():
    """With a stock epsilon: places of the stream in another order, the same numbers but for u."""
    case = loaded("vote.data.soft")
    net, pairs = case.compiled.network, case.pairs("test")
    assert net.norm.rooted
    order = torch.randperm(net.embedding.shape[1], generator=torch.Generator().manual_seed(1))
    names = ("embedding", "places", "unembedding", "reads", "writes")
    other = replace(net, **{name: getattr(net, name)[..., order] for name in names})
    found = [
        dict(PatchedRuns(n, pairs.clean, pairs.corrupt, pairs.words).edge_effects(net.edges))
        for n in (net, other)
    ]
    apart = 0.0
    for edge in net.edges:
        a, b = (each[edge] for each in found)
        apart = max(apart, float((a.center - b.center).abs().max()))
        assert bool(((a.center - b.center).abs() <= a.radius + b.radius).all()), edge
    assert apart > 0
    assert max(float(ball.radius.max()) for ball in found[0].values()) < 1e-9


def test_a_norm_that_only_centres_by_name_is_refused():
    net = loaded("vote.data.hard").compiled.network
    with pytest.raises(IntegrityError, match=r"a norm with epsilon 1 only centres up to 1\.11e-16"):
        replace(net, norm=net.norm._replace(epsilon=1.0, gain=1.0)).check_exact(
            loaded("vote.data.hard").pairs().clean
        )


def test_no_edge_outside_the_record_carries_anything(case):
    truth = measured_everywhere(case)
    assert bool((truth.effective <= truth.carrying).all())
    assert bool((truth.carrying <= truth.recorded).all())
    assert truth.violations == []
    assert 0 < int(truth.effective.sum()) < int(truth.carrying.sum()) < int(truth.recorded.sum())
    # Not vacuous: an effective edge that is said to carry nothing is a violation.
    hidden = truth.carrying & ~truth.effective
    missing = [n for n, e in zip(truth.names, truth.effective, strict=True) if e]
    assert replace(truth, carrying=hidden).violations == missing


def test_an_effect_is_that_of_a_run_with_one_edge_cut(case):
    runs, truth = PairedRuns(case.compiled.network, case.pairs()), case.truth
    strong = truth.strength.argsort(descending=True)[:4].tolist()
    for at in strong:
        kept = torch.ones(len(case.edges), dtype=torch.bool)
        kept[at] = False
        cut = masked(runs, kept)
        assert torch.allclose(cut, truth.effect[:, at], rtol=1e-9, atol=1e-11)
    whole = masked(runs, torch.zeros(len(case.edges)).bool())
    assert torch.allclose(whole, -torch.ones_like(whole), atol=1e-9)


def test_radii_hold_what_float64_rounds(vote):
    """On weights that are scaled by powers of two the numbers stay, and so do the balls."""
    truth = vote.truth
    assert 0 < float(truth.radius.max()) < 1e-9
    again = exact_truth(vote.compiled, vote.pairs("test"))
    assert torch.equal(truth.effect, again.effect)
    for instead in ("zero", "mean", "resample"):
        assert float(truth.nodes[instead].radius.max()) < 1e-9


def test_exact_patching_is_perfect_and_random_scores_are_not(case):
    found = {
        name: case.score(METHODS[name](case.compiled, case.pairs("test"))).values
        for name in ("exact patching", "random", "composition")
    }
    assert found["exact patching"]["AUROC effective"] == 1.0
    assert found["exact patching"]["AP effective"] == 1.0
    assert found["composition"]["AUROC effective"] < 0.999
    assert found["random"]["AP effective"] < 0.5


def test_gradients_miss_a_threshold():
    case = loaded("vote.data.hard")
    effects = {
        name: bench.score(case, METHODS[name](case.compiled, case.pairs("test")), track="effect")
        for name in ("exact patching", "EAP")
    }
    assert effects["exact patching"].values["effect error"] == 0.0
    assert effects["EAP"].values["effect error"] > 0.5


@pytest.mark.parametrize(
    ("submission", "error", "says"),
    [
        (lambda c: torch.zeros(3), ShapeError, "got (3,)"),
        (lambda c: torch.full((len(c.edges),), torch.nan), ProgramError, "nan"),
        (
            lambda c: dict.fromkeys([*c.edges, "a9.h0->logits"], 0.0),
            ProgramError,
            "'a9.h0->logits'",
        ),
        (lambda c: dict.fromkeys([*c.edges, "w->v"], 0.0), ProgramError, "'w->v'"),
        (lambda c: dict.fromkeys(c.edges[1:], 0.0), ShapeError, "input->"),
        (lambda c: dict.fromkeys(c.edges, "much"), ProgramError, "'much'"),
        (lambda c: dict.fromkeys(c.edges, float("inf")), ProgramError, "inf"),
        (lambda _: "nowhere.json", ProgramError, "no file nowhere.json"),
    ],
)
def test_submissions_that_are_none_are_refused_by_name(vote, submission, error, says):
    with pytest.raises(error) as refused:
        vote.score(submission(vote))
    assert says in str(refused.value)


def test_a_folder_is_read_again_and_its_graph_is_a_submission(vote, tmp_path):
    folder = vote.save(tmp_path / "case")
    again = read_case(folder)
    assert again.edges == vote.edges
    assert torch.equal(again.truth.effect, vote.truth.effect)
    assert bench.score(again, folder / "graph.json").values["AUROC effective"] == 1.0
    graph = json.loads((folder / "graph.json").read_text())
    assert {"cfg", "nodes", "edges"} <= graph.keys()
    idle = {f"m0->a1.h{h}<q>": {"score": 0.0} for h in range(2)}  # MIB's files name them
    graph["edges"] |= idle
    assert bench.score(again, graph).values["AP effective"] == 1.0


def _resealed(folder):
    """The digests of a case.json that somebody has put right again."""
    held = store.read_json(folder / "case.json", "bench case")
    held["sha256"] = {n: sha256((folder / n).read_bytes()).hexdigest() for n in held["sha256"]}
    store.write_json(folder / "case.json", held, "bench case")


def _put(folder, name, change):
    path = folder / f"{name}.safetensors"
    tensors = store.read_tensors(path).tensors
    change(tensors)
    store.write_tensors(path, "bench case", {"case": ""}, tensors)


def _label(folder):
    path = folder / "graph.json"
    graph = json.loads(path.read_text())
    graph["edges"]["input->logits"]["in_graph"] ^= True
    path.write_text(json.dumps(graph))


def _leak(tensors):
    for name in ("clean", "corrupt", "words"):
        tensors[f"test.{name}"][0] = tensors[f"train.{name}"][5]


def _put_effect(folder):
    _put(folder, "effects", lambda t: t["test.effect"][1].mul_(1.5))


def _put_record(folder):
    _put(folder, "effects", lambda t: t["test.recorded"].logical_not_())


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (_label, "input->logits is labelled"),
        (lambda f: _put(f, "effects", lambda t: t["test.effective"].logical_not_()), "labelled"),
        (_put_effect, "on pair 1 of test"),
        (_put_record, "called recorded"),
        (lambda f: _put(f, "pairs", _leak), "also in train"),
        (lambda f: _put(f, "model", lambda t: t["lm_head.weight"].mul_(2)), "lm_head.weight"),
    ],
)  # fmt: skip
def test_what_is_tampered_with_is_refused_by_name(vote, tmp_path, tamper, says):
    folder = vote.save(tmp_path / "case")
    tamper(folder)
    with pytest.raises(IntegrityError, match=r"is not the file that case\.json names"):
        read_case(folder)
    _resealed(folder)
    with pytest.raises(IntegrityError, match=says):
        read_case(folder)


def test_a_case_that_radii_leave_undecided_is_refused_by_name():
    """Turned features of a descent: its radii are far larger than its effects."""
    with pytest.raises(ProgramError, match=r"least-squares\.data\.hard-turned: .* undecided"):
        bench.Case.of(bench.CaseSpec("least-squares", basis=7))


def test_private_pairs_are_of_no_split(vote):
    pairs, truth = vote.private(seed=5, count=4)
    assert len(pairs) == 4
    assert truth.violations == []
    held = {
        tuple(row.tolist())
        for p in vote.splits.values()
        for row in torch.cat([p.clean, p.corrupt], 1)
    }
    assert not {tuple(row.tolist()) for row in torch.cat([pairs.clean, pairs.corrupt], 1)} & held


def test_softened_networks_are_measured_and_never_certified():
    soft = loaded("vote.data.soft")
    close = soft.compiled.closeness()
    assert close["kind"] == "measured"
    assert 0 < close["median"] < 0.1
    largest, hard = (
        float(case.compiled.network.reads.abs().max()) for case in (soft, loaded("vote.data.hard"))
    )
    assert largest <= hard / 100
    assert soft.compiled.config["layer_norm_epsilon"] == 1e-5  # as GPT-2 has it
    assert "certificate" not in json.dumps(close)
    assert not hasattr(soft, "certificate")


def test_a_soft_descent_is_near_the_exact_one():
    """Its pairs of heads and its null token count alike what outweighs what."""
    close = compile_case(CaseSpec("least-squares", soft=True)).closeness()
    assert 0 < close["median"] < close["largest"] < close["span"] / 50


def test_subspaces_are_judged_by_interchange():
    case = loaded("two-hops.query.hard")
    site = next(s for s in bench.sites(case) if s.variable == "hop")
    truth = bench.score_subspace(case, site, site.subspace).values
    assert truth["interchange error"] < 1e-9
    assert truth["overlap"] == pytest.approx(1)
    probe = bench.score_subspace(case, site, bench.SUBSPACE_METHODS["linear probe"](case, site))
    chance = bench.score_subspace(case, site, bench.SUBSPACE_METHODS["random"](case, site))
    assert probe.values["overlap"] > chance.values["overlap"]
    with pytest.raises(ShapeError, match="for hop is"):
        bench.score_subspace(case, site, site.subspace[:, :1])
    with pytest.raises(ProgramError, match="not independent"):
        bench.score_subspace(case, site, torch.ones_like(site.subspace))


def test_aliases_are_found():
    case = loaded("registers.data.hard")
    found = {site.variable: site.aliases for site in bench.sites(case)}
    assert "also" in found["kept"]
    assert "kept" in found["also"]


def test_the_algorithm_is_a_question_too(vote):
    counted = loaded("thresholded-mean.data.hard-turned")
    assert bench.nearest_reference(counted) == {"program": "thresholded-mean", "steps": 1}
    assert bench.score(vote, {"program": "maximum", "steps": 1}, track="algorithm").values == {
        "program": 0.0, "steps": 0.0,
    }  # fmt: skip
    with pytest.raises(ProgramError, match="no program is called 'sort'"):
        bench.score(vote, {"program": "sort", "steps": 1}, track="algorithm")


def test_the_command_builds_and_scores(vote, tmp_path, capsys):
    assert main(["bench", "build", "vote.data.hard", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "vote.data.hard"
    assert main(["bench", "--json", "score", str(folder), str(folder / "graph.json")]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["AUROC effective"] == 1.0
    assert main(["bench", "cases"]) == 0
    assert "perceptron.parameter.hard" in capsys.readouterr().out


def test_stock_code_gives_the_same_logits_and_the_same_attributions(vote):
    """transformers in float64, and TransformerLens' own attribution patching in float32."""
    pytest.importorskip("transformer_lens", reason="iceform[interp]")
    from transformer_lens.tools.analysis import attribution_patching as theirs

    model, pairs = vote.transformer_lens(), vote.pairs("test")
    with torch.no_grad():
        logits = model(pairs.clean).double()
    assert torch.allclose(logits, vote.compiled.network.logits(pairs.clean), atol=1e-3)
    edges = theirs.EdgeAttributionConfig(granularity="edge")
    case = loaded("two-hops.query.hard")
    model, pairs = case.transformer_lens(), case.pairs("test")
    ours = METHODS["EAP"](case.compiled, pairs)
    for i in range(2):
        found = theirs.attribution_patch(
            model, pairs.corrupt[i : i + 1], pairs.clean[i : i + 1], case.metric(i), edges
        )
        scores = case.from_transformer_lens(found.edge_scores)
        assert torch.allclose(torch.tensor(list(scores.values())).double(), ours[i], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in bench.cases() if n.endswith(".data.soft")])
def test_public_tools_run_unmodified_in_float32(name):
    """TransformerLens' attribution_patch, faithfulness and fit_das, and nnsight."""
    pytest.importorskip("transformer_lens", reason="iceform[interp]")
    nnsight = pytest.importorskip("nnsight", reason="iceform[interp]")
    from transformer_lens.tools.analysis import attribution_patching as theirs
    from transformer_lens.tools.analysis.interchange import fit_das

    case = bench.load(name)
    model, pairs = case.transformer_lens(), case.pairs("test")
    edges = theirs.EdgeAttributionConfig(granularity="edge")
    one = pairs.clean[:1], pairs.corrupt[:1]
    found = theirs.attribution_patch(model, *one, case.metric(0), edges)
    assert bool(torch.tensor([*found.edge_scores.values()]).isfinite().all())
    circuit = [*found.edge_scores]
    whole = theirs.faithfulness(model, *one, case.metric(0), circuit)
    assert whole.recovered == pytest.approx(1, abs=1e-2)
    first = case.compiled.first_answer
    das = fit_das(
        model, "blocks.1.hook_resid_pre", pairs.clean, pairs.corrupt,
        pairs.words[:, 1] - first, lambda ids: model(ids)[:, -1, first:], rank=1,
        base_positions=torch.full((len(pairs),), pairs.clean.shape[1] - 1),
        source_positions=torch.full((len(pairs),), pairs.clean.shape[1] - 1), epochs=1,
    )  # fmt: skip
    assert das is not None
    stock = nnsight.NNsight(model.original_model)
    with stock.trace(pairs.clean):
        out = stock.lm_head.output.save()
    assert torch.allclose(
        out.double(), case.compiled.network.logits(pairs.clean), atol=2e-2, rtol=1e-3
    )
