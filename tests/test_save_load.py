"""What is saved comes back bit for bit, in any process; what was touched does not come back."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import store
from iceform.errors import IntegrityError, ProgramError
from iceform.paper import Emulator
from iceform.paper.library import PromptLibrary, RidgePrompts

F32, F64 = torch.float32, torch.float64
FILES = ["README.md", "config.json", "model.safetensors"]
SIZES = {"dim": 2, "samples": 3, "bound": 1.0}


def own_function(z):
    return z * torch.exp(-z.square())


# name: how to build it, the shapes of its inputs, and the user's own function where it has one.
XYW, XY = [(3, 2), (3,), (2,)], [(3, 2), (3,)]
CASES = {
    "residual": (lambda: ice.paper.ResidualMap("logistic", eps=1e-6, **SIZES), XYW, None),
    "residual, own f": (
        lambda: ice.paper.ResidualMap(own_function, eps=1e-6, **SIZES), XYW, own_function
    ),
    "residual, graded": (
        lambda: ice.paper.ResidualMap(torch.relu, eps=1e-2, **SIZES), XYW, torch.relu
    ),
    "gradients": (lambda: ice.paper.SampleGradients("poisson", eps=1e-6, **SIZES), XYW, None),
    "step, literal": (
        lambda: ice.paper.GradientStep("squared", 0.3, 0.1, backend="literal", **SIZES), XYW, None
    ),
    "step, float32": (
        lambda: ice.paper.GradientStep("squared", 0.3, eps=1e-3, dtype=F32, **SIZES), XYW, None
    ),
    "step, hard": (
        lambda: ice.paper.GradientStep("huber", 0.3, eps=1e-1, regime="hard", **SIZES), XYW, None
    ),
    "step, a parameter": (
        lambda: ice.paper.GradientStep(
            ice.expressions.loss_named("absolute", width=0.5), 0.3, **SIZES
        ),
        XYW, None,
    ),
    "step, a narrow domain": (
        lambda: ice.paper.GradientStep(
            "squared", 0.3, x_norm=1.2, w_norm=1.2, y_bound=1.0, z_range=(-2.0, 2.0), **SIZES
        ),
        XYW, None,
    ),
    "descent": (lambda: ice.paper.GradientDescent("squared", 5, eps=1e-6, **SIZES), XYW, None),
    "descent, unrolled": (
        lambda: ice.paper.GradientDescent(
            "squared", 5, l2=0.2, schedule="nesterov", unrolled=True, backend="literal", **SIZES
        ),
        XYW, None,
    ),
    "descent, own f": (
        lambda: ice.paper.GradientDescent(own_function, 2, 0.5, eps=1e-4, **SIZES),
        XYW, own_function,
    ),
    "least squares": (
        lambda: ice.paper.LeastSquares(condition=50.0, radius=9.0, **SIZES), XY, None
    ),
    "ridge": (lambda: ice.paper.RidgeRegression(1.0, radius=9.0, **SIZES), XY, None),
    "linear, rows": (
        lambda: ice.paper.LinearLayer(3, 2, samples=4, eps=1e-6), [(4, 3), (2, 3)], None
    ),
    "linear, embedding": (
        lambda: ice.paper.LinearLayer(3, 2, samples=4, encoding="embedding", backend="literal"),
        [(4, 3), (2, 3)], None,
    ),
    "head": (
        lambda: ice.paper.AttentionHead(3, 2, 2, 4, eps=1e-6),
        [(4, 3), (2, 3), (2, 3), (2, 3)], None,
    ),
    "hopfield map": (
        lambda: ice.paper.HopfieldMap(
            own_function, [0.5, -1.0], 0.25, samples=3, backend="literal"
        ),
        [(3, 2)], own_function,
    ),
    "hopfield residual": (
        lambda: ice.paper.HopfieldResidual("squared", backend="literal", **SIZES), XYW, None
    ),
    "hopfield step": (
        lambda: ice.paper.HopfieldStep("squared", 0.2, backend="literal", **SIZES), XYW, None
    ),
    "truncated": (
        lambda: ice.paper.TruncatedLinear(-1.0, 1.0, 2, dim=2, samples=3, tokens=16),
        [(3, 2), (2,), ()], None,
    ),
}  # fmt: skip


def inputs_for(shapes, dtype):
    """Well inside every domain, and with samples that are well conditioned."""
    generator = torch.Generator().manual_seed(7)
    drawn = [0.4 * torch.rand(s, generator=generator, dtype=F64) + 0.1 for s in shapes]
    if shapes[0] == (3, 2):
        drawn[0] = torch.tensor([[0.9, 0.1], [-0.2, 0.8], [0.5, -0.6]], dtype=F64)
    return [t.to(dtype) for t in drawn]


PROGRAM = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
import iceform
for folder in sorted(Path(sys.argv[1]).iterdir()):
    if not (folder / "saved").exists():
        continue
    try:
        emulator = iceform.load(folder / "saved")
        inputs = load_file(folder / "inputs.safetensors")
        result = emulator(*(inputs[k] for k in sorted(inputs)))
    except Exception as raised:
        print(f"{folder.name}: {raised!r}", file=sys.stderr)
        continue
    save_file({"out": result.contiguous()}, folder / "again.safetensors")
    lines = [type(emulator).__name__, emulator.digest, repr(emulator.certificate.error)]
    (folder / "again.txt").write_text("\\n".join(lines))
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Every construction saved, and read back by one fresh process."""
    root = tmp_path_factory.mktemp("shelf")
    built = {}
    for name, (build, shapes, _) in CASES.items():
        folder = root / name.replace(", ", "_").replace(" ", "_")
        folder.mkdir()
        emulator = build()
        inputs = inputs_for(shapes, emulator.dtype)
        emulator.save(folder / "saved")
        save_file({f"{i}": t for i, t in enumerate(inputs)}, folder / "inputs.safetensors")
        built[name] = (folder, emulator, inputs)
    path = os.pathsep.join([str(Path(ice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(root)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return built, done


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_process_gives_the_same_digest_and_the_same_bits(shelf, name):
    built, done = shelf
    folder, emulator, inputs = built[name]
    assert (folder / "again.txt").exists(), done.stderr
    kind, digest, error = (folder / "again.txt").read_text().splitlines()
    assert kind == type(emulator).__name__
    assert digest == emulator.digest
    assert float(error) == emulator.certificate.error
    again = load_file(folder / "again.safetensors")["out"]
    want = emulator(*inputs)
    assert again.dtype == want.dtype
    assert torch.equal(again, want), f"largest difference {float((again - want).abs().max()):.3e}"


@pytest.mark.parametrize("name", CASES)
def test_the_same_process_gives_everything_back(shelf, name):
    folder, emulator, inputs = shelf[0][name]
    again = ice.load(folder / "saved", f=CASES[name][2])
    assert type(again) is type(emulator)
    assert (again.dtype, again.backend, again.eps) == (
        emulator.dtype, emulator.backend, emulator.eps
    )  # fmt: skip
    assert again.plan == emulator.plan
    assert again.certificate.to_json() == emulator.certificate.to_json()
    assert torch.equal(again.interpolant.values, emulator.interpolant.values)
    assert torch.equal(again(*inputs), emulator(*inputs))
    assert torch.equal(again.reference(*inputs), emulator.reference(*inputs))
    tokens, want = again.prompt(*inputs).tokens, emulator.prompt(*inputs).tokens
    assert torch.equal(tokens, want)
    # Saved once more, it is the same file.
    twice = again.save(folder / "twice")
    for file in FILES:
        assert (twice / file).read_bytes() == (folder / "saved" / file).read_bytes(), file


@pytest.mark.parametrize("name", CASES)
def test_a_folder_holds_three_files_and_no_drafts(shelf, name):
    folder, *_ = shelf[0][name]
    names = sorted(p.name for p in (folder / "saved").iterdir())
    assert names == FILES
    json.loads((folder / "saved" / "config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "saved" / "model.safetensors", "pt") as file:
        assert "interpolant.values" in file.keys()  # noqa: SIM118 - not a dictionary


# ------------------------------------------------------------------------- a user's own function

OWN = [name for name, case in CASES.items() if case[2] is not None]


@pytest.mark.parametrize("name", OWN)
def test_a_function_that_is_not_saved_is_asked_for_when_it_is_needed(shelf, name):
    folder, emulator, inputs = shelf[0][name]
    again = Emulator.load(folder / "saved")
    assert torch.equal(again(*inputs), emulator(*inputs))
    with pytest.raises(ProgramError, match=r"loaded without its function.*load\(path, f=\.\.\.\)"):
        again.reference(*inputs)


@pytest.mark.parametrize("name", OWN)
def test_a_function_may_be_given_again(shelf, name):
    folder, emulator, inputs = shelf[0][name]
    again = Emulator.load(folder / "saved", f=CASES[name][2])
    want = emulator.reference(*inputs)
    assert torch.equal(again.reference(*inputs), want)
    off = float((again(*inputs) - want).abs().max())
    assert off <= again.certificate.error


def test_a_named_loss_needs_no_function(shelf):
    folder, emulator, inputs = shelf[0]["step, a parameter"]
    again = ice.load(folder / "saved")
    assert torch.equal(again.reference(*inputs), emulator.reference(*inputs))


# ---------------------------------------------------------------------------------- damaged files


@pytest.fixture
def saved(tmp_path):
    """A small emulator with fitted values, on disk."""
    emulator = ice.paper.GradientStep("logistic", 0.4, 0.1, dim=1, samples=2, eps=1e-3)
    return emulator.save(tmp_path / "saved")


def test_undamaged_is_read(saved):
    assert isinstance(ice.load(saved), ice.paper.GradientStep)
    assert isinstance(ice.load(str(saved)), ice.paper.GradientStep)


def outcome(folder: Path) -> str:
    """What a load of the folder comes to: "read", or the exception's name."""
    try:
        ice.load(folder)
    except Exception as raised:
        return type(raised).__name__
    return "read"


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[byte] ^= 1 << bit
    return bytes(changed)


def undetected_flips(folder: Path, places) -> list[tuple[int, int, str]]:
    """Flips of (byte, bit) after which a load does not raise IntegrityError, and what it does."""
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    missed = []
    for byte, bit in places:
        file.write_bytes(flipped(whole, byte, bit))
        found = outcome(folder)
        if found != "IntegrityError":
            missed.append((byte, bit, found))
    file.write_bytes(whole)
    ice.load(folder)
    return missed


def tensors_in(file: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor's bytes are, by the header."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return {
        name: tuple(8 + length + offset for offset in entry["data_offsets"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_a_flipped_bit_in_any_tensor_is_noticed(saved):
    for name, (start, stop) in tensors_in(saved / "model.safetensors").items():
        middle = (start + stop) // 2
        # Lowest bit of a fraction, highest bit of an exponent, a sign.
        places = [(start, 0), (middle, 3), (stop - 1, 6), (stop - 1, 7)]
        missed = undetected_flips(saved, places)
        assert not missed, f"{name}: {missed}"


def test_a_flipped_bit_in_the_header_is_noticed(saved):
    start = min(start for start, _ in tensors_in(saved / "model.safetensors").values())
    places = [(byte, byte % 7) for byte in range(0, start, 23)]
    missed = undetected_flips(saved, places)
    assert not missed, f"{missed}"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("file", FILES)
def test_truncated_files(saved, file, share):
    whole = (saved / file).read_bytes()
    (saved / file).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(IntegrityError, match=rf"{file} (cannot be read|.*altered)"):
        ice.load(saved)


def test_the_weights_are_needed_and_their_views_are_not(saved):
    before = ice.load(saved)
    for file in ("config.json", "README.md"):
        (saved / file).unlink()
        assert ice.load(saved).certificate.to_json() == before.certificate.to_json()
    (saved / "model.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"model\.safetensors cannot be read"):
        ice.load(saved)


def test_missing_folders(tmp_path, saved):
    with pytest.raises(IntegrityError, match="cannot be read: there is no such folder"):
        ice.load(tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match="cannot be read: there is no such folder"):
        ice.load(saved / "config.json")


@pytest.mark.parametrize("text", ["[]", "3", "null", '"config"', "{}", "not json", "\x00\x01"])
def test_configs_that_are_no_configs(saved, text):
    (saved / "config.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"config|cannot be read"):
        ice.load(saved)


def test_configs_that_are_no_text(saved):
    (saved / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(IntegrityError, match="cannot be read"):
        ice.load(saved)


def forge(folder: Path, change) -> None:
    """An edit by someone who also seals the file again: what it says is checked on its own."""
    path = folder / "model.safetensors"
    stored = store.read_tensors(path)
    change(stored.content)
    store.write_tensors(path, stored.kind, stored.content, stored.tensors)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind", "Telepathy", "holds no emulator"),
        ("kind", None, "holds no emulator"),
        ("kind", "Emulator", "holds no emulator"),
        ("arguments", {}, "holds no emulator"),
        ("arguments", None, "holds no emulator"),
        ("interpolant", {}, "holds no emulator"),
        ("digest", "0" * 64, "altered"),
        ("digest", None, "altered"),
    ],
)
def test_configs_that_name_something_else(saved, key, value, message):
    forge(saved, lambda config: config.update({key: value}))
    with pytest.raises(IntegrityError, match=message):
        ice.load(saved)


@pytest.mark.parametrize("key", ["kind", "arguments", "interpolant", "digest"])
def test_configs_with_something_missing(saved, key):
    forge(saved, lambda config: config.pop(key))
    with pytest.raises(IntegrityError, match="folder"):
        ice.load(saved)


def test_another_format_is_refused_by_its_number(saved, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 3)
    forge_as_3 = ice.paper.GradientStep("squared", 0.4, dim=1, samples=2)
    forge_as_3.save(saved)
    monkeypatch.undo()
    with pytest.raises(IntegrityError, match="is of format 3, this version reads 2"):
        ice.load(saved)


def test_a_folder_of_the_first_format_is_refused(saved):
    """Weights without a description, and a config that has it."""
    tensors = load_file(saved / "model.safetensors")
    save_file(tensors, saved / "model.safetensors")
    (saved / "config.json").write_text('{"format": 1, "kind": "GradientStep"}')
    with pytest.raises(IntegrityError, match=r"no seal of format 2.*an earlier version wrote it"):
        ice.load(saved)


def leaves(config, path=()):
    """Every number, string and null in a config, by its path."""
    pairs = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in pairs:
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def other(value):
    """A neighbour of a value that changes what it means."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 1.25 * value if value else 0.125
    return value + "x" if isinstance(value, str) else 0.75


def test_an_edited_config_is_noticed_wherever_it_is_edited(saved):
    whole = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    missed = []
    for path, value in leaves(whole):
        changed = copy.deepcopy(whole)
        *parents, last = path
        place = changed
        for key in parents:
            place = place[key]
        place[last] = other(value)
        (saved / "config.json").write_text(json.dumps(changed))
        found = outcome(saved)
        if found != "IntegrityError":
            missed.append((".".join(map(str, path)), found))
    assert not missed, f"{len(missed)} edits went unnoticed or raised something else: {missed}"


def test_a_forged_certificate_is_noticed(saved):
    """The most tempting edit of all: an error a thousand times smaller, sealed again."""

    def boast(config):
        config["interpolant"]["error"] /= 1000
        config["certificate"]["error"] /= 1000

    forge(saved, boast)
    with pytest.raises(IntegrityError, match=r"states an error of .* is proved of it"):
        ice.load(saved)


def test_values_that_were_changed_are_noticed_by_the_proof(saved):
    path = saved / "model.safetensors"
    stored = store.read_tensors(path)
    stored.tensors["interpolant.values"][3] += 1e-3
    store.write_tensors(path, stored.kind, stored.content, stored.tensors)
    with pytest.raises(IntegrityError, match=r"states an error of .* is proved of it"):
        ice.load(saved)


KINDS = {"residual": "proven", "step, hard": "proven", "step, a parameter": "proven"}


@pytest.mark.parametrize("name", [*KINDS, *OWN])
def test_what_was_not_proved_again_is_claimed(shelf, name):
    folder, emulator, _ = shelf[0][name]
    again = ice.load(folder / "saved")
    assert again.certificate.kind == KINDS.get(name, "claimed")
    assert again.certificate.error == emulator.certificate.error
    given = ice.load(folder / "saved", f=CASES[name][2])
    assert given.certificate.kind == emulator.certificate.kind == "proven"


def test_the_files_of_two_functions_do_not_mix(tmp_path):
    """Two emulators with the same frozen weights and other programs."""
    first = ice.paper.GradientStep("squared", 0.4, dim=1, samples=2, eps=1e-3, tokens=9)
    second = first.reprogram(torch.sin)
    a, b = first.save(tmp_path / "a"), second.save(tmp_path / "b")
    assert first.digest == second.digest
    (a / "model.safetensors").write_bytes((b / "model.safetensors").read_bytes())
    # Whole, and of one save: the weights are what is read, and the config is a view of another.
    assert ice.load(a, f=torch.sin).certificate.to_json() == second.certificate.to_json()
    with pytest.raises(ProgramError, match="pass the function it was made for"):
        ice.load(a, f=torch.cos)


def test_a_tensor_too_many_or_too_few_is_noticed(saved):
    file = saved / "model.safetensors"
    stored = store.read_tensors(file)
    more = {**stored.tensors, "network.extra": torch.zeros(1)}
    store.write_tensors(file, stored.kind, stored.content, more)
    with pytest.raises(IntegrityError, match="altered"):
        ice.load(saved)
    name = next(k for k in stored.tensors if k.startswith("network."))
    fewer = {k: v for k, v in stored.tensors.items() if k != name}
    store.write_tensors(file, stored.kind, stored.content, fewer)
    with pytest.raises(IntegrityError, match="altered"):
        ice.load(saved)


def test_tensors_of_another_dtype_are_noticed(saved):
    file = saved / "model.safetensors"
    stored = store.read_tensors(file)
    shorter = {k: v.float() for k, v in stored.tensors.items()}
    store.write_tensors(file, stored.kind, stored.content, shorter)
    with pytest.raises(IntegrityError):
        ice.load(saved)


# ------------------------------------------------------------------------------------- writing


def test_saving_again_replaces_what_was_there(saved):
    other_one = ice.paper.GradientStep("squared", 0.1, dim=1, samples=2)
    other_one.save(saved)
    assert ice.load(saved).digest == other_one.digest
    assert sorted(p.name for p in saved.iterdir()) == FILES


def test_folders_are_made_and_returned(tmp_path):
    emulator = ice.paper.GradientStep("squared", 0.1, dim=1, samples=2)
    folder = emulator.save(tmp_path / "a" / "b" / "c")
    assert folder == tmp_path / "a" / "b" / "c"
    assert ice.load(folder).digest == emulator.digest


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_disk_that_fails_leaves_no_drafts_and_no_half_files(saved, monkeypatch, step):
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    calls = []
    replace = os.replace

    def failing(source, target):
        calls.append(target)
        if len(calls) == step:
            raise OSError("no space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        ice.paper.GradientStep("squared", 0.1, dim=1, samples=2).save(saved)
    monkeypatch.undo()
    assert sorted(p.name for p in saved.iterdir()) == sorted(before)
    if step == 1:
        assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert ice.load(saved).loss.name == ("logistic" if step == 1 else "squared")


# ------------------------------------------------------------------------------------- results

DATA = inputs_for(XY, F64)


def on_computer():
    program = ice.compile(ice.algorithm(lambda x, y: ice.mean(x * y)), dim=2, samples=3)
    return ice.Computer.for_programs([program]).run(program, *DATA)


RESULTS = {
    "library": lambda: PromptLibrary(2, 3).run(RidgePrompts(), *DATA),
    "computer": on_computer,
    "construction": lambda: ice.paper.ResidualMap(torch.tanh, **SIZES).run(*inputs_for(XYW, F64)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_with_all_that_is_known_of_it(name, tmp_path):
    check_kept(RESULTS[name](), tmp_path)


def check_kept(result, tmp_path):
    """What is read is what was saved, but for proofs, which are claims now."""
    again = ice.load(result.save(tmp_path / "kept"))
    assert torch.equal(again.value, result.value)
    assert again.digest == result.digest
    assert again.ledger.entries == result.ledger.entries
    assert again.parts.keys() == result.parts.keys()
    assert again.certificate.error == result.certificate.error
    assert again.certificate.kind == "claimed"  # nobody has proved it again
    assert result.attestation.ok
    assert again.attestation.ok is None  # nor seen it run
    assert "claimed by the file" in again.attestation.explain()
    assert (again.enclosure is None) == (result.enclosure is None)
    if result.enclosure is not None:
        assert isinstance(again.enclosure, ice.Enclosure)
        assert again.enclosure.kind == "claimed"
        assert again.enclosure.error == result.enclosure.error


def test_a_forged_attestation_is_a_claim(tmp_path):
    folder = RESULTS["construction"]().save(tmp_path / "kept")
    for boast in (
        {"weights": "0" * 64, "expected": "0" * 64, "rows": 10**6, "literal": True},
        {"claimed": False, "literal": True, "backend": "literal"},
    ):
        forge(folder, lambda content, said=boast: content["attestation"].update(said))
        again = ice.load(folder).attestation
        assert again.claimed
        assert again.ok is None
        forge(folder, lambda content: content["attestation"].pop("claimed", None))


@pytest.mark.parametrize(
    ("given", "ok"),
    [
        ({}, None),  # nothing was run again
        ({"rows": 3}, True),
        ({"literal": True}, True),
        ({"rows": 3, "claimed": True}, None),
        ({"rows": 3, "difference": 2.0, "allowed": 1.0}, False),
        ({"rows": 3, "difference": float("nan"), "allowed": 1.0}, False),
    ],
)
def test_an_attestation_is_as_good_as_what_was_run_again(given, ok):
    assert ice.certificates.Attestation("a", "a", "fused", **given).ok is ok
    assert ice.certificates.Attestation("a", "b", "fused", **given).ok is False
    assert ice.certificates.Attestation("", "", "fused", **given).ok is False
    both = [
        ice.certificates.Attestation("a", "a", "fused", **given),
        ice.certificates.Attestation("a", "a", "literal"),
    ]
    assert ice.certificates.Attestation.together(both).ok is ok
    unseen = ice.certificates.Attestation("a", "a", "fused", note="no time was left")
    for all_three in ([*both, unseen], [*reversed(both), unseen], [unseen, *both]):
        assert ice.certificates.Attestation.together(all_three).ok is (ok and None)


def test_data_that_a_run_has_not_kept_are_named_when_it_is_saved(tmp_path):
    result = dataclasses.replace(RESULTS["computer"](), _data=None)
    assert result.data_digest() is None
    assert ice.load(result.save(tmp_path / "kept", *DATA)).data_digest() == result.data_digest(
        *DATA
    )


def test_a_file_in_the_way_is_refused(tmp_path):
    result, file = RESULTS["construction"](), tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ProgramError, match="is a file; name a folder"):
        result.save(file)
    assert file.read_text() == "mine"
