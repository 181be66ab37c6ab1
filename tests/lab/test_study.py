"""The study that is kept: what its file says is what its networks do."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from iceform import lab, store
from studies.lab import EXPERIMENTS, KIND, main, run

FOLDER = Path(__file__).parents[2] / "results" / "lab"
SMALL = EXPERIMENTS["small"]
SAME_PROMPTS = ("d5", "d10")  # what is kept of them: all seeds saw the prompts of seed 0

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="results are not in the package")


def kept_of(name):
    return store.read_json(FOLDER / f"{name}.json", KIND)


@pytest.fixture(scope="module")
def kept():
    return kept_of("small")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_kept_file_is_of_the_experiment_as_it_stands(name):
    whole, kept = EXPERIMENTS[name], kept_of(name)
    asked = json.loads(json.dumps(dataclasses.asdict(whole)))
    asked["plan"]["same_prompts"] = name in SAME_PROMPTS
    assert kept["experiment"] == asked
    crossed = [(start, lr, seed) for start in whole.starts for lr in whole.lr
               for seed in whole.each_seed]  # fmt: skip
    assert [(c["start"], c["lr"], c["seed"]) for c in kept["cells"]] == crossed
    for cell in kept["cells"]:
        assert [step for step, _ in cell["curve"]] == whole.plan.measured_at()


@pytest.mark.parametrize("start", SMALL.kept)
@pytest.mark.parametrize("name", ["small", pytest.param("d5", marks=pytest.mark.slow)])
def test_a_kept_network_has_the_error_that_the_file_says(name, start):
    network, plan = lab.load_network(FOLDER / name / start), EXPERIMENTS[name].plan
    assert network.shape == plan.shape
    x, y, clean, _ = plan.held_out_prompts()
    with torch.no_grad():
        errors = (network(x, y) - clean).square().mean(0)
    told = min((c for c in kept_of(name)["cells"] if c["start"] == start and c["seed"] == 0),
               key=lambda cell: cell["curve"][-1][1])  # fmt: skip
    torch.testing.assert_close(errors, torch.tensor(told["by_context"]), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "d5"])
@pytest.mark.parametrize("start", SMALL.kept)
def test_transformer_lens_opens_a_kept_network(name, start):
    """It gives the network's own answers, and others where its hook silences a head."""
    lens = pytest.importorskip("transformer_lens.model_bridge", reason="needs iceform[interp]")
    network, plan = lab.load_network(FOLDER / name / start), EXPERIMENTS[name].plan
    x, y, *_ = plan.prompts(0, 0, 8)
    bridge = lens.TransformerBridge.boot_transformers(str(FOLDER / name / start))
    whole = bridge.original_model
    stock, prompt = getattr(whole, whole.base_model_prefix), network.prompt(x, y)

    def silence(z, hook):
        z = z.clone()
        z.view(*z.shape[:2], plan.shape.heads, -1)[:, :, 0] = 0.0
        return z

    with torch.no_grad():
        answers = network(x, y)
        opened = network.read(stock(inputs_embeds=prompt).last_hidden_state)
        with bridge.hooks(fwd_hooks=[("blocks.0.attn.hook_z", silence)]):
            broken = network.read(stock(inputs_embeds=prompt).last_hidden_state)
    torch.testing.assert_close(opened, answers, rtol=1e-4, atol=1e-4)
    assert float((broken - answers).abs().max()) > 1e-2


def test_the_kept_transplants_are_those_of_the_kept_networks(kept):
    networks = {start: lab.load_network(FOLDER / "small" / start) for start in SMALL.kept}
    networks["constructed dual"] = lab.compiled("dual", SMALL.plan.shape)
    found = lab.transplant(networks, SMALL.plan.task, prompts=1024)
    told = lab.LabTable.from_dict(kept["tables"]["transplant"])
    for row in found.rows:
        name = row["network"]
        label = name if "constructed" in name else f"{name}, lr {SMALL.lr[0]:g}, seed 0"
        (value,) = told.where(network=label, mechanism=row["mechanism"]).column("correlation")
        assert value == pytest.approx(row["correlation"], abs=1e-3)


def test_the_large_experiments_are_crossed_as_they_should_be():
    """Five seeds, three rates and every start in five dimensions, and shapes that hold them."""
    for name, dim, seeds in (("d5", 5, 5), ("d10", 10, 3)):
        experiment = EXPERIMENTS[name]
        first, second = (experiment.plan.prompts(seed, 0, 2).x for seed in (0, 1))
        assert not torch.equal(first, second)
        assert (experiment.plan.shape.dim, experiment.seeds) == (dim, seeds)
        assert len(experiment.lr) >= 2
        assert set(experiment.starts) == {
            "random", "compiled", "copy head", "shuffled", "circuit only", "looped", "random looped"
        }  # fmt: skip
        lab.compiled("dual", experiment.plan.shape)


def test_steps_are_timed_by_the_command(capsys):
    given = ["--profile", "1", "--starts", "random", "--seeds", "0", "--steps", "100"]
    assert main(["small", *given]) == 0
    told = capsys.readouterr().out
    assert told.startswith("networks 1, backend plain, precision float32, ms a step ")
    assert ", minutes " in told


@pytest.mark.slow
def test_a_study_is_run_by_one_command_and_read_when_it_is_finished(tmp_path):
    short = dataclasses.replace(SMALL, plan=dataclasses.replace(SMALL.plan, steps=2))
    path = run("small", tmp_path, short)
    first = store.read_json(path, KIND)
    assert set(first["tables"]) >= {"ends", "transplant", "probe_w", "nearest", "shifted", "line"}
    run("small", tmp_path, short)
    again = store.read_json(path, KIND)
    assert first["cells"] == again["cells"]
