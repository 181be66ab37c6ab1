"""One ONNX file of a library of prompts runs all of it, through onnxruntime."""

import numpy as np
import pytest
import torch

import iceform as ice
from iceform.errors import IntegrityError, ProgramError
from iceform.export import onnx
from iceform.paper.library import (
    ComponentPrompts,
    DescentPrompts,
    HopfieldPrompts,
    KernelPrompts,
    PromptLibrary,
    RidgePrompts,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="needs iceform[export]")
pytest.importorskip("onnxscript", reason="needs iceform[export]")

from iceform.export.onnx_file import PromptRunner  # noqa: E402
from iceform.export.onnx_file import session as session_of  # noqa: E402
from iceform.export.onnx_library import OnnxLibrary  # noqa: E402

F32, F64 = torch.float32, torch.float64
DIM, SAMPLES = 2, 4
STEPS = {"steps": 3, "lr": 0.2, "l2": 0.1, "w_bound": 1.0, "tokens": 9}
LIBRARY = [
    *(DescentPrompts(loss, **STEPS) for loss in ice.expressions.LOSSES if loss != "squared"),
    DescentPrompts("squared", steps=3, lr=0.2),
    RidgePrompts(tol=1e-3),
    KernelPrompts(2.0, queries=4),
    ComponentPrompts(1),
    HopfieldPrompts(steps=2),
]


def data(program, dtype):
    generator = torch.Generator().manual_seed(1)
    x = (1.4 * torch.rand(SAMPLES, DIM, generator=generator, dtype=F64) - 0.7).to(dtype)
    if isinstance(program, HopfieldPrompts):
        return x, x[0].clone()
    y = torch.rand(SAMPLES, generator=generator, dtype=F64)
    loss = getattr(program, "loss", "")
    kind = (
        ice.expressions.loss_named(loss).kind
        if isinstance(loss, str) and loss in ice.expressions.LOSSES
        else ""
    )
    return x, (torch.sign(y - 0.5) if kind == "margin" else y).to(dtype)


@pytest.fixture(scope="module", params=[F64, F32], ids=["float64", "float32"])
def exported(request, tmp_path_factory):
    machine = PromptLibrary(DIM, SAMPLES, algorithms=LIBRARY, dtype=request.param)
    path = onnx(machine, tmp_path_factory.mktemp("onnx") / "machine.onnx")
    return machine, path


@pytest.fixture(scope="module")
def opened(exported):
    return OnnxLibrary(*exported)


@pytest.mark.parametrize("program", LIBRARY, ids=lambda p: p.label)
def test_one_file_runs_every_program(exported, opened, program):
    assert len(LIBRARY) >= 12
    machine, _ = exported
    x, y = data(program, machine.dtype)
    ours, theirs = machine.run(program, x, y), opened.run(program, x, y)
    assert ours.passes == theirs.passes
    assert ours.digest == theirs.digest
    off = float((ours.value - theirs.value).abs().max())
    if machine.dtype == F64:
        assert off <= 1e-10, f"{program.label}: {off:.3e}"
    allowed = ours.certificate.error + theirs.certificate.error
    assert off <= allowed, f"{program.label}: {off:.3e} against {allowed:.3e}"


def test_batch_and_tokens_are_dynamic(exported):
    machine, path = exported
    session = session_of(path)
    (given,) = session.get_inputs()
    assert given.shape[:2] == ["batch", "tokens"]
    runner = PromptRunner(machine)
    assert runner.fewest < runner.tokens
    x, y = data(LIBRARY[0], machine.dtype)
    prompt = machine.prompt(LIBRARY[0], x, y).tokens
    whole = machine.network(prompt)
    # The prompt's own padding may be left out: the file puts it back.
    used = int((prompt[:, machine.head.dim - 2] == 0).sum())
    used = max(used, runner.fewest)
    for batch in (1, 5):
        (out,) = session.run(None, {"tokens": prompt[:used].expand(batch, -1, -1).numpy()})
        assert out.shape[:2] == (batch, used)
        off = float((torch.from_numpy(out) - whole[:used]).abs().max())
        assert off <= (1e-10 if machine.dtype == F64 else 1e-3), off


def test_a_linear_map_takes_any_number_of_tokens(tmp_path):
    em = ice.paper.LinearLayer(3, 2, samples=6, eps=1e-10, backend="literal")
    session = session_of(onnx(em, tmp_path / "linear.onnx"))
    x, theta = torch.rand(6, 3, dtype=F64), torch.rand(2, 3, dtype=F64)
    tokens = em.prompt(x, theta).tokens
    for count in (2, 4, 6):
        (out,) = session.run(None, {"tokens": tokens[None, :count].numpy()})
        off = float((torch.from_numpy(out)[0] - x[:count] @ theta.T).abs().max())
        assert off <= em.certificate.error


EMULATORS = {
    "step": (
        lambda dtype: ice.paper.GradientStep(
            "squared", 0.3, dim=2, samples=3, eps=None, dtype=dtype, backend="literal"
        ),
        [(3, 2), (3,), (2,)],
    ),
    "head": (
        lambda dtype: ice.paper.AttentionHead(3, 2, 2, 4, eps=None, dtype=dtype, backend="literal"),
        [(4, 3), (2, 3), (2, 3), (2, 3)],
    ),
}


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", EMULATORS)
def test_emulators(tmp_path, name, dtype):
    build, shapes = EMULATORS[name]
    em = build(dtype)
    inputs = [torch.rand(s, dtype=F64).to(dtype) for s in shapes]
    session = session_of(onnx(em, tmp_path / "em.onnx"))
    tokens = em.prompt(*inputs).tokens
    (out,) = session.run(None, {"tokens": tokens.expand(2, -1, -1).numpy()})
    want = em.network(tokens)
    tolerance = 1e-12 if dtype == F64 else 1e-4
    assert float((torch.from_numpy(out) - want).abs().max()) <= tolerance


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(ProgramError, match="no frozen network"):
        onnx(RidgePrompts(), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_machine_is_refused(exported):
    machine, path = exported
    other = PromptLibrary(DIM, SAMPLES + 1, algorithms=[RidgePrompts()], dtype=machine.dtype)
    with pytest.raises(IntegrityError, match="other weights"):
        OnnxLibrary(other, path)


def test_a_wrong_result_is_noticed_before_the_file_is_kept(tmp_path, monkeypatch):
    em = ice.paper.LinearLayer(3, 2, samples=2, eps=1e-10, backend="literal")
    from iceform.export import onnx_file

    right = onnx_file.session

    class Off:
        def __init__(self, path):
            self.session = right(path)

        def run(self, *args):
            return [out + 1e-6 for out in self.session.run(*args)]

    monkeypatch.setattr(onnx_file, "session", Off)
    with pytest.raises(IntegrityError, match="not a file of these weights"):
        onnx(em, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def forged(machine, path, to, sign):
    """A copy with the second layer's W_V times 1.5, signed anew or not."""
    import onnx as onnx_package

    from iceform.export.onnx_file import SHA, UNSIGNED, signed

    model = onnx_package.load(str(path))
    read, write = onnx_package.numpy_helper.to_array, onnx_package.numpy_helper.from_array
    values = machine.network.layers[1].w_v
    held = [
        t for t in model.graph.initializer
        if any(np.array_equal(read(t), w.numpy()) for w in (values, values.mT))
    ]  # fmt: skip
    assert held
    for weight in held:
        weight.CopyFrom(write((1.5 * read(weight)).astype(read(weight).dtype), weight.name))
    if sign:
        (own,) = (p for p in model.metadata_props if p.key == SHA)
        own.value = UNSIGNED
    data = model.SerializeToString()
    to.write_bytes(signed(data) if sign else data)
    return to


@pytest.mark.parametrize("sign", [False, True], ids=["as recorded", "signed anew"])
def test_a_forged_file_is_refused(exported, tmp_path, sign):
    machine, path = exported
    match = "not a file of these weights" if sign else "not what was exported"
    with pytest.raises(IntegrityError, match=match):
        OnnxLibrary(machine, forged(machine, path, tmp_path / "forged.onnx", sign))


def test_a_truncated_file_is_refused(exported, tmp_path):
    machine, path = exported
    (tmp_path / "short.onnx").write_bytes(path.read_bytes()[:-100])
    with pytest.raises(IntegrityError):
        OnnxLibrary(machine, tmp_path / "short.onnx")


def test_passes_of_onnxruntime_are_attested(exported, opened):
    machine, _ = exported
    x, y = data(LIBRARY[-1], machine.dtype)
    attestation = opened.run(LIBRARY[-1], x, y).attestation
    assert attestation.ok
    assert attestation.backend == "onnxruntime"
    assert attestation.weights == machine.digest


def test_a_machine_whose_weights_changed_is_not_exported(tmp_path):
    em = ice.paper.LinearLayer(3, 2, samples=2, eps=1e-10)
    em.network.layers[0].w_v.data.mul_(1.5)
    with pytest.raises(IntegrityError, match="weights were changed"):
        onnx(em, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


LOOK_UPS = {
    "step": lambda dtype: ice.paper.GradientStep(
        "squared", 0.3, dim=2, samples=3, eps=None, dtype=dtype, backend="literal"
    ),
    "compact": lambda dtype: ice.paper.CompactStep(
        "squared", 0.3, dim=2, samples=3, eps=None, dtype=dtype, backend="literal"
    ),
}


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_file_of_zeros_is_no_file_of_look_ups(tmp_path, name, dtype):
    """Margins hide tokens by logits of 2^50, which explain no difference of the others."""
    thing = LOOK_UPS[name](dtype)
    check_zeros(PromptRunner(thing), onnx(thing, tmp_path / "right.onnx"))


def check_zeros(network, path):
    """A file is one of the network's weights, and is none once its own are zeros."""
    import onnx as onnx_package

    from iceform.export.onnx_file import SHA, UNSIGNED, compare, signed

    runner = network.eval()
    compare(runner, session_of(path), path)
    model = onnx_package.load(str(path))
    read, write = onnx_package.numpy_helper.to_array, onnx_package.numpy_helper.from_array
    for weight in model.graph.initializer:
        if read(weight).dtype.kind == "f":
            weight.CopyFrom(write(0 * read(weight), weight.name))
    (own,) = (p for p in model.metadata_props if p.key == SHA)
    own.value = UNSIGNED
    path.write_bytes(signed(model.SerializeToString()))
    with pytest.raises(IntegrityError, match="not a file of these weights"):
        compare(runner, session_of(path), path)
