"""Training side by side is training alone, and goes on after a kill to the same bits."""

import dataclasses

import pytest
import torch

from iceform.errors import BoundError, DeviceError, IntegrityError, ProgramError, ShapeError
from iceform.lab import (
    GPT2Shape,
    InContextTask,
    TrainingPlan,
    TrainingStart,
    compiled,
    profile,
    random_network,
    train,
)
from iceform.lab.starts import start_named
from iceform.lab.training import _TrainingStack

SHAPE = GPT2Shape(dim=1, layers=4, width=32, heads=2, inner=16, positions=8)
PLAN = TrainingPlan(InContextTask("noisy", 1, 0.1), SHAPE, steps=8, batch=4, held_out=16, points=4)
STARTS = ["random", "compiled"]


class KilledError(Exception):
    """Stands for a signal."""


def weights(cells):
    return [cell.network.tensors for cell in cells]


def assert_same(first, second):
    for a, b in zip(weights(first), weights(second), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert [c.curve for c in first] == [c.curve for c in second]


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    given = {"lr": [1e-3, 1e-2], "seeds": 2, "every": 0}
    whole = train(STARTS, PLAN, **given)

    def kill(done, total):
        assert total == 2 * PLAN.steps
        if done == 12:
            raise KilledError

    with pytest.raises(KilledError):
        train(STARTS, PLAN, **given, folder=tmp_path, progress=kill)
    steps = []
    again = train(
        STARTS, PLAN, **given, folder=tmp_path, progress=lambda done, total: steps.append(done)
    )
    # The first stack was finished; the second goes on behind its last checkpoint, at step 3 of 8.
    assert steps == [12, 14, 16]
    assert_same(whole, again)
    finished = train(STARTS, PLAN, **given, folder=tmp_path, progress=kill)
    assert_same(whole, finished)
    assert [(c.start, c.lr, c.seed) for c in whole[:3]] == [
        ("random", 1e-3, 0), ("random", 1e-3, 1), ("random", 1e-2, 0),
    ]  # fmt: skip


def test_a_checkpoint_of_another_training_is_not_gone_on_with(tmp_path):
    train(["random"], PLAN, lr=[1e-3], folder=tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    other = dataclasses.replace(PLAN, batch=5)
    train(["random"], other, lr=[1e-3], folder=tmp_path)
    (new,) = set(tmp_path.glob("*.safetensors")) - {path}
    path.replace(new)
    with pytest.raises(IntegrityError, match="belongs to another training"):
        train(["random"], other, lr=[1e-3], folder=tmp_path)


def test_networks_side_by_side_are_what_each_is_alone():
    """With its own rate, gradient clipping, mask and loop, against torch's Adam.

    Answers are compared: biases of keys change nothing, and Adam blows their rounding up.
    """
    rates = [1e-3, 1e-2]
    starts = ["random", "circuit only", "looped"]
    x, y, *_ = PLAN.held_out_prompts()
    together = train(starts, PLAN, lr=rates, seeds=[3], together=6)
    for cell in together:
        (alone,) = train([cell.start], PLAN, lr=[cell.lr], seeds=[3])
        torch.testing.assert_close(cell.network(x, y), alone.network(x, y), rtol=1e-3, atol=1e-4)
    for lr in rates:
        (trained,) = [c.network for c in together if c.start == "random" and c.lr == lr]
        torch.testing.assert_close(trained(x, y), by_torch(lr)(x, y), rtol=1e-3, atol=1e-4)
    answers = [cell.network(x, y) for cell in together]
    for i, one in enumerate(answers):
        assert all(float((one - other).abs().max()) > 1e-3 for other in answers[:i])


def by_torch(lr):
    """The same training by an optimiser and a loop of torch's own."""
    network = start_named("random", SHAPE).make(3)
    leaves = {name: t.requires_grad_() for name, t in network.tensors.items()}
    adam = torch.optim.Adam(leaves.values(), lr=lr)
    for step in range(PLAN.steps):
        x, y, *_ = PLAN.prompts(3, step)
        adam.zero_grad()
        (network(x, y) - y).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(leaves.values(), 1.0)
        adam.param_groups[0]["lr"] = lr * PLAN.rate(step)
        adam.step()
    return network


def test_masks_and_loops_are_kept():
    before = {name: start_named(name, SHAPE).make(0) for name in ("circuit only", "looped")}
    only, looped = train(["circuit only", "looped"], PLAN, lr=[1e-2])
    for name, own in before["circuit only"].mask.items():
        old, new = before["circuit only"].tensors[name], only.network.tensors[name]
        assert torch.equal(old[~own], new[~own])
    assert any(
        not torch.equal(only.network.tensors[n], before["circuit only"].tensors[n])
        for n in only.network.tensors
    )
    for name in [n for n in looped.network.tensors if n.startswith("h.1.")]:
        second, third = (looped.network.tensors[n] for n in (name, name.replace("h.1.", "h.2.")))
        assert torch.equal(second, third), name
        last = looped.network.tensors[name.replace("h.1.", "h.3.")]
        assert "c_attn.weight" not in name or not torch.equal(second, last)


def test_training_learns_and_says_when():
    plan = dataclasses.replace(PLAN, steps=60, batch=16, points=6)
    (cell,) = train(["random"], plan, lr=[1e-2])
    assert cell.error < 0.9 * cell.curve[0][1]
    assert [step for step, _ in cell.curve] == [0, 10, 20, 30, 40, 50, 60]
    assert cell.steps_to(cell.error) <= 60
    assert cell.steps_to(0.0) is None
    assert sum(cell.by_context) / len(cell.by_context) == pytest.approx(cell.error)


def test_every_seed_sees_prompts_of_its_own_unless_told_otherwise():
    """Seeds that differ in their upper bits alone too: torch's generator looks at the lower 32."""
    seeds, same = (
        (0, 1, 2, 1 << 32, (1 << 32) + 1, -1),
        dataclasses.replace(PLAN, same_prompts=True),
    )
    for draws in ([PLAN.prompts(seed, 3).x for seed in seeds],
                  [PLAN.prompts(1, step).x for step in range(PLAN.steps)]):  # fmt: skip
        for i, one in enumerate(draws):
            assert all(not torch.isclose(one, other).any() for other in draws[:i])
    for seed in seeds:
        # The prompts of the experiments that are kept: those of the step alone.
        as_kept = PLAN.task.draw(PLAN.batch, PLAN.length, torch.Generator().manual_seed(3))
        assert torch.equal(same.prompts(seed, 3).x, as_kept.x)
    (one, other), (a, b) = (
        train(["circuit only"], plan, lr=[1e-2], seeds=2) for plan in (PLAN, same)
    )
    assert one.curve[0] == other.curve[0] == a.curve[0]
    assert one.curve[-1] != other.curve[-1]
    assert_same([a], [b])


def test_held_out_prompts_are_never_trained_on():
    held_out = PLAN.held_out_prompts().x[:4]
    for seed in range(3):
        for step in range(PLAN.steps):
            assert not torch.isclose(PLAN.prompts(seed, step).x, held_out).any(-1).all()


def test_bad_training_is_refused_before_it_begins():
    for wrong, error, said in (
        (lambda: train(["warm"], PLAN, lr=[1e-3]), ProgramError, "random, compiled, dual, copy"),
        (lambda: train([], PLAN, lr=[1e-3]), ProgramError, "names of their own"),
        (lambda: train(["random"] * 2, PLAN, lr=[1e-3]), ProgramError, "names of their own"),
        (lambda: train(["random"], PLAN, lr=[-1.0]), BoundError, "lr must be positive"),
        (lambda: train(["random"], PLAN, lr=[1e-3], seeds=0), ShapeError, "seeds"),
        (lambda: train(["random"], PLAN, lr=[1e-3], precision="tf32"), DeviceError,
         "of CUDA devices, not of cpu"),
        (lambda: train(["random"], PLAN, lr=[1e-3], precision="half"), ProgramError,
         "float32, tf32"),
        (lambda: train(["random"], PLAN, lr=[1e-3], backend="jit"), ProgramError,
         "plain, compiled, triton"),
        (lambda: profile(["random"], PLAN, lr=[1e-3], steps=0), ShapeError, "steps"),
        (lambda: dataclasses.replace(PLAN, steps=0), ShapeError, "steps"),
        (lambda: dataclasses.replace(PLAN, examples=5), ShapeError, "holds 1 to 4"),
        (lambda: dataclasses.replace(PLAN, task=InContextTask(dim=2)), ShapeError, "dim 2 and"),
        (lambda: train([TrainingStart("other", lambda _: compiled("primal"))], PLAN, lr=[1e-3]),
         ShapeError, "not of the plan's shape"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            wrong()


def test_an_error_that_is_no_number_is_named():
    stack = _TrainingStack(PLAN, [(start_named("random", SHAPE), 1e-3, 7)], "cpu")
    stack.weights["wpe.weight"][:] = torch.nan
    with pytest.raises(BoundError, match=r"random \(lr 0.001, seed 7\) has no finite error"):
        stack.measure()


@pytest.mark.slow
def test_compiled_layers_train_what_plain_ones_do():
    """Every start's own treatment too: a mask, a loop, and rates beside each other."""
    starts, given = ["random", "circuit only", "looped"], {"lr": [1e-3, 1e-2], "together": 6}
    x, y, *_ = PLAN.held_out_prompts()
    both = (train(starts, PLAN, **given, backend=name) for name in ("plain", "compiled"))
    for plain, fused in zip(*both, strict=True):
        torch.testing.assert_close(fused.network(x, y), plain.network(x, y), rtol=1e-3, atol=1e-4)
        assert fused.error != fused.curve[0][1]


def test_a_profile_is_of_the_whole_training():
    plan = dataclasses.replace(PLAN, steps=600_000)
    told = profile(["random"], plan, lr=[1e-3, 1e-2], seeds=1, steps=2)
    assert (told["networks"], told["backend"], told["precision"]) == (2, "plain", "float32")
    minutes = told["ms a step"] * 10 + told["s a measurement"] * PLAN.points / 60
    assert told["minutes"] == pytest.approx(minutes)
    assert told["ms a step"] >= told["of them on the host"] > 0
    assert told["mean error"] > 0


def test_a_network_is_moved_whole_and_stays_where_it_was():
    """Every tensor, and what it was made of."""
    network = compiled("primal", SHAPE)
    moved = network.to("meta")
    assert {t.device.type for t in moved.tensors.values()} == {"meta"}
    assert {t.device.type for t in network.tensors.values()} == {"cpu"}
    assert (moved.algorithm, moved.shape, moved.name) == (
        network.algorithm, network.shape, network.name
    )  # fmt: skip
    again = random_network(SHAPE).to("cpu")
    x, y, *_ = PLAN.held_out_prompts()
    assert torch.equal(again(x, y), random_network(SHAPE)(x, y))
