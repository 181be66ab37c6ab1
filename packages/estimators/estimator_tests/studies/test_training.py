"""The engine: stacks equal models alone, kills change nothing, precision is what it says."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

import iceform
from iceform.errors import BoundError, IntegrityError, ProgramError
from studies.networks import SelfAttention, stack
from studies.randomness import generator, permutation, take
from studies.training import Stack, Trainer, Training, _Graph, full_precision

NETWORK = SelfAttention(6, 5, 5, 8, 2, 9, 4)
SEEDS = (0, 1, 2)
RATE = 1e-3
PER_EPOCH = 13  # steps: graphs of ten and of one are replayed in every epoch


def make(
    seeds=SEEDS, epochs=4, schedule="cosine", name="s", validate=None, samples=96, rate=RATE,
    device="cpu",
):  # fmt: skip
    def drawn(what, *shape):
        parts = [torch.randn(*shape, generator=generator("cpu", s, what)) for s in seeds]
        return torch.stack(parts).to(device)

    x, w = drawn("x", samples, 5, 6), drawn("w", 6, 4)

    def batch(index):
        data = take(x, index)
        return (data,), data @ w[:, None]

    start = stack([NETWORK.initial(generator("cpu", s, "start")) for s in seeds])
    training = Training(epochs, 16, rate, schedule)
    return Stack(name, NETWORK, start, training, samples, seeds, batch, validate)


def trained(stacks, **options):
    trainer = Trainer(stacks, **options)
    trainer.run()
    return trainer


def same_bits(one, other):
    return all(torch.equal(p, other[name]) for name, p in one.items())


def assert_same_models(one, other):
    """Parameters to 1e-6, but for the bias of the keys.

    A key's bias adds the same to all logits of a query, so its gradient is 0; what Adam makes of
    the rounding there means nothing, and changes no output.
    """
    keys = slice(NETWORK.hidden, 2 * NETWORK.hidden)
    for name, p in one.items():
        gap = (p - other[name]).detach().abs()
        if name == "qkv.bias":
            gap[..., keys] = 0
        assert gap.max() <= 1e-6, f"{name} is off by {gap.max():.3g}"
    x = torch.randn(len(one["in.weight"]), 8, 5, 6).to(one["in.weight"].device)
    off = (NETWORK(one, x) - NETWORK(other, x)).abs().max()
    assert off <= 1e-6, f"outputs are off by {off:.3g}"


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_stack_is_its_models_one_at_a_time(schedule):
    together = trained([make(schedule=schedule)]).parameters()["s"]
    for place, seed in enumerate(SEEDS):
        alone = trained([make((seed,), schedule=schedule)]).parameters()["s"]
        assert_same_models({k: p[place : place + 1] for k, p in together.items()}, alone)


def test_training_is_what_a_plain_loop_does():
    trainer = trained([make((3,), epochs=2, schedule="constant")])
    own = make((3,), epochs=2, schedule="constant")
    leaves = {k: p.clone().requires_grad_() for k, p in own.parameters.items()}
    adam = torch.optim.Adam(leaves.values(), lr=RATE)
    for epoch in range(2):
        for index in permutation(96, "cpu", "order", 3, epoch).split(16):
            (x,), y = own.batch(index[None])
            adam.zero_grad()
            (NETWORK(leaves, x) - y).square().mean().backward()
            adam.step()
    assert_same_models(trainer.parameters()["s"], leaves)


def test_weights_that_are_kept_transposed_learn_the_same():
    """Their gradients come with other strides than they have, as those of torch's own layers do."""

    def turned(parameters):
        return {k: p.mT.contiguous() if k.endswith("weight") else p for k, p in parameters.items()}

    def network(parameters, x):
        back = {k: p.mT if k.endswith("weight") else p for k, p in parameters.items()}
        return NETWORK(back, x)

    own = make()
    other = replace(own, network=network, parameters=turned(own.parameters))
    once, again = (trained([s]).parameters()["s"] for s in (own, other))
    assert_same_models(once, turned(again))


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    once, again, other = (trained([make(s)]).parameters()["s"] for s in (SEEDS, SEEDS, (5, 6, 7)))
    assert all(torch.equal(once[k], again[k]) for k in once)
    assert not torch.equal(once["in.weight"], other["in.weight"])


def test_cosine_ends_at_zero_and_constant_does_not_move():
    cosine, constant = Training(1, schedule="cosine"), Training(1)
    assert cosine.rate(0, 100) == 1e-3
    assert cosine.rate(100, 100) == pytest.approx(0, abs=1e-18)
    assert float(cosine.rate(torch.tensor(30), 100)) == pytest.approx(
        cosine.rate(30, 100), rel=1e-6
    )
    assert constant.rate(77, 100) == 1e-3


def test_curves_hold_an_entry_per_epoch_and_training_learns():
    seen = []
    trainer = trained(
        [make(epochs=20, rate=2e-2, validate=lambda p: seen.append(p) or torch.zeros(3))]
    )
    curves = trainer.curves()["s"]
    assert len(curves.train) == len(curves.held_out) == len(seen) == 20
    assert (curves.train[-1] < 0.5 * curves.train[0]).all(), curves.train


def test_stacks_of_different_length_train_together_as_they_do_alone(tmp_path):
    long = {"name": "long", "samples": 3 * 96}
    path = tmp_path / "state.safetensors"
    first = Trainer([make(**long), make()], checkpoint=path, identity="i")
    first.run(until=7)
    first.save()
    both = trained([make(**long), make()], checkpoint=path, identity="i")
    for alone in (trained([make(**long)]), trained([make()])):
        for name, parameters in alone.parameters().items():
            assert same_bits(parameters, both.parameters()[name]), name
            for one, other in zip(
                alone.curves()[name].train, both.curves()[name].train, strict=True
            ):
                assert torch.equal(one, other), name


@pytest.mark.parametrize("stop", [1, 5, 6, 13])
def test_a_run_stopped_anywhere_resumes_to_the_same_bits(tmp_path, stop):
    whole = trained([make()])
    path = tmp_path / "state.safetensors"
    first = Trainer([make()], checkpoint=path, identity="i")
    first.run(until=stop)
    first.save()
    second = Trainer([make()], checkpoint=path, identity="i")
    assert second.step == stop
    second.run()
    for name, p in whole.parameters()["s"].items():
        assert torch.equal(p, second.parameters()["s"][name]), name
    for a, b in zip(whole.curves()["s"].train, second.curves()["s"].train, strict=True):
        assert torch.equal(a, b)


def test_another_run_s_checkpoint_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    first = Trainer([make()], checkpoint=path, identity="one")
    first.save()
    with pytest.raises(IntegrityError, match=r"belongs to another run.*delete"):
        Trainer([make()], checkpoint=path, identity="two")
    path.write_bytes(b"half a file")
    with pytest.raises(IntegrityError, match="not a checkpoint"):
        Trainer([make()], checkpoint=path, identity="one")


def test_bad_requests_are_refused_before_training():
    with pytest.raises(ProgramError, match="equal epochs"):
        Trainer([make(name="a"), make(name="b", epochs=5)])
    with pytest.raises(ProgramError, match="multiples of the fewest"):
        Trainer([make(name="a"), make(name="b", samples=16 * 7)])
    with pytest.raises(BoundError, match="do not fill a batch of 16"):
        Trainer([make(samples=8)])
    with pytest.raises(ValueError, match="schedule"):
        Training(1, schedule="linear")
    with pytest.raises(ProgramError, match="no checkpoint file"):
        Trainer([make()]).save()


def test_tf32_is_off_inside_and_as_before_outside():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_compiled_steps_are_the_same_steps():
    plain, compiled = (trained([make()], compiled=c).parameters()["s"] for c in (False, True))
    assert_same_models(plain, compiled)


def replayed(graphs, steps):
    """A stand-in for a CUDA graph: it takes the steps that the capture took, once more."""
    graphs._branches(steps)
    return SimpleNamespace(replay=lambda: graphs._branches(steps))


def test_graphs_keep_count_where_stacks_differ_in_length(monkeypatch, tmp_path):
    for name in ("Stream", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(_Graph, "_captured", replayed)

    def stacks():
        return [
            make(schedule="constant", samples=16 * PER_EPOCH),
            make(schedule="constant", samples=3 * 16 * PER_EPOCH, name="long"),
        ]

    host = trained(stacks()).parameters()
    monkeypatch.setattr(Trainer, "_advance", lambda self: _Graph(self.lanes))
    path = tmp_path / "state.safetensors"
    first = Trainer(stacks(), checkpoint=path, identity="i")
    first.run(until=31)
    first.save()
    for run in (trained(stacks()), trained(stacks(), checkpoint=path, identity="i")):
        for name, parameters in run.parameters().items():
            assert same_bits(parameters, host[name]), name


# ---------------------------------------------------------------------------------------------
# on a GPU: graphs of steps
# ---------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def on_gpu(seeds=SEEDS, **options):
    return make(seeds, samples=16 * PER_EPOCH, device="cuda", **options)


def long_on_gpu():
    return make(name="long", samples=3 * 16 * PER_EPOCH, device="cuda")


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_graph_of_steps_is_the_steps_one_after_another(compiled):
    stacks = [on_gpu(name="a"), on_gpu(name="b", schedule="constant"), long_on_gpu()]
    graphed = trained(stacks, device="cuda", compiled=compiled)
    host = Trainer(stacks, "cuda", compiled=compiled)
    with full_precision():
        for epoch in range(host.epochs):
            for lane in host.lanes:
                lane.shuffle(epoch)
                for _ in range(lane.stack.steps):
                    lane.step()
    for name, p in graphed.parameters().items():
        assert same_bits(p, host.parameters()[name]), name


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_run_is_the_same_bits_again_and_resumed(tmp_path, compiled):
    stacks, options = [on_gpu(), long_on_gpu()], {"device": "cuda", "compiled": compiled}
    whole, again = (trained(stacks, **options).parameters() for _ in range(2))
    path = tmp_path / "state.safetensors"
    first = Trainer(stacks, checkpoint=path, identity="i", **options)
    first.run(until=31)
    first.save()
    resumed = trained(stacks, checkpoint=path, identity="i", **options).parameters()
    for name, parameters in whole.items():
        assert same_bits(parameters, again[name]), name
        assert same_bits(parameters, resumed[name]), name


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_stack_is_its_models_one_at_a_time(compiled):
    together = trained([on_gpu()], device="cuda", compiled=compiled).parameters()["s"]
    for place, seed in enumerate(SEEDS):
        alone = trained([on_gpu((seed,))], device="cuda", compiled=False).parameters()["s"]
        assert_same_models({k: p[place : place + 1] for k, p in together.items()}, alone)


# ---------------------------------------------------------------------------------------------
# kill -9
# ---------------------------------------------------------------------------------------------

# Dies at a point of a write, if it is given one, else counts them.
VICTIM = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from iceform import store
    from studies import Request, run
    from tests.mortal import Mortal

    store.os = Mortal(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    run(Request(("heads",), ("as_published",), out=Path(sys.argv[1]), every=0.0, seeds=1))
    print(len(store.os.points))
    """
)


def victim(out: Path, *point: int) -> subprocess.CompletedProcess:
    places = [Path(iceform.__file__).parents[1], Path(__file__).parents[4]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", VICTIM, *map(str, (out, *point))]
    return subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, text=True)


def results(out: Path) -> dict[str, object]:
    from studies import load_records

    records = load_records(out)
    return {f"{r['variant']} {r['seed']}": (r["metrics"], r["curves"]) for r in records}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 10], ids=["once", "ten times"])
def test_kill_9_amid_writes_changes_no_number(tmp_path, kills):
    whole = victim(tmp_path / "whole")
    assert whole.returncode == 0
    # Each run goes on where the last one was killed: with shares of all points each is reached.
    share = int(whole.stdout.split()[-1]) // (kills + 1)
    luck = random.Random(kills)
    for _ in range(kills):
        assert victim(tmp_path / "killed", luck.randint(0, share)).returncode == -signal.SIGKILL
    assert victim(tmp_path / "killed").returncode == 0
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert not list((tmp_path / "killed" / "checkpoints").iterdir())
