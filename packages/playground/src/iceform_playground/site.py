"""The playground as static files: ``python -m iceform_playground.site FOLDER``, or ``make site``.

The page is the one that ``iceform play`` serves, with another engine behind it: the frozen network
is an ONNX file that onnxruntime-web runs in the browser, and what takes the library to find out is
found now and written beside it: tables with their proven errors, and literal runs of the computer.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from iceform.attention import FrozenNetwork, digested
from iceform.errors import IntegrityError, ProgramError
from iceform.functions import Loss
from iceform.interpolation import Interpolant
from iceform_estimators.machine import CLIP, CLIP_SQUARED, IDENTITY
from iceform_playground import questions as asked
from iceform_playground.algorithms import loss_of
from iceform_playground.answers import TableAnswer
from iceform_playground.files import page_files
from iceform_playground.fitting import the_machine
from iceform_playground.lookups import rates, tabulated
from iceform_playground.stepping import attention, step_through
from iceform_playground.tasks import catalogue

# onnxruntime-web as npm has it: the version, and what its registry says of the archive.
RUNTIME = "1.30.0"
_INTEGRITY = (  # SHA-512
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
_RUNTIME_FILES = {  # as the page calls them: any host sends these as what they are
    "ort.wasm.min.mjs": "ort.js",
    "ort-wasm-simd-threaded.mjs": "ort-wasm.js",
    "ort-wasm-simd-threaded.wasm": "ort.wasm.gz",
}

SHARES = (0.1, 0.5, 0.9)  # quantiles and expectiles that have tables
FORMULAS = ("sqrt(z^2 + 0.01)", "log(cosh(4*z))/4", "softplus(z) - z/2", "z^2/2")
PROGRAMS: dict[str, dict[str, float]] = {
    "least_squares": {"steps": 3},
    "kernel_regression": {},
    "pagerank": {},
}
_TOKENS = (33, 65, 129)  # of tables that the sliders can ask for
_REACHES = tuple(2.0**k for k in range(6))  # residuals on a board of height 2
_LINES = tuple(2.0**k for k in range(13))  # a line's table costs nothing
_CLIPS = tuple(2.0**k for k in range(-6, 11))
_SQUARES = tuple(2.0**k for k in range(11))
_FARTHEST = 4.0  # as iceform_playground.paths bounds curvatures
_NETWORK, _WEIGHTS = "machine.onnx", "machine.weights"


@dataclass(frozen=True)
class _Held:
    """A loss that the page has tables of."""

    algorithm: str
    loss: str  # as the page's own losses are called
    parameters: Mapping[str, float] = field(default_factory=dict)
    formula: str = FORMULAS[0]

    @property
    def key(self) -> str:
        """Its name among the files' contents."""
        shares = [f"{v:g}" for v in self.parameters.values()] if self._option else []
        return ":".join([self.algorithm, *shares, *([self.loss] if self._typed else [])])

    @property
    def usual(self) -> bool:
        """Whether it is what its algorithm starts with."""
        shares = [self.parameters[self.algorithm]] if self._option else []
        return self.formula == FORMULAS[0] and all(share == 0.5 for share in shares)

    @property
    def _typed(self) -> bool:
        return self.algorithm == "custom"

    @property
    def _option(self) -> bool:
        return self.algorithm in ("quantile", "expectile")

    @property
    def asked(self) -> asked.Loss:
        """As the server is asked for it."""
        options = {self.algorithm: self.parameters[self.algorithm]} if self._option else {}
        return asked.Loss(algorithm=self.algorithm, options=options, formula=self.formula)


def _losses() -> Iterator[_Held]:
    """Every loss that an algorithm of the page looks up, by steps or in a loop of its own."""
    for name in ("linear", "ridge", "lasso", "elastic-net"):
        yield _Held(name, "squared")
    yield _Held("logistic", "logistic")
    yield _Held("svm", "squared_hinge")
    yield _Held("absolute", "absolute", {"width": 0.1})
    yield _Held("hinge", "hinge", {"width": 0.1})
    for share in SHARES:
        yield _Held("quantile", "quantile", {"quantile": share, "width": 0.05})
        yield _Held("expectile", "expectile", {"expectile": share})
    for formula in FORMULAS:
        yield _Held("custom", formula, formula=formula)


def _told(it: Interpolant) -> dict[str, Any]:
    return TableAnswer.of(it).model_dump()


def _tables(held: _Held, loss: Loss) -> dict[str, dict[str, Any]]:
    """By grid tokens, and then by reach."""
    f = loss.derivative
    if f.affine is not None:
        how = asked.Lookup()
        return {"any": {f"{r:g}": _told(tabulated(f, r, how)) for r in _LINES}}
    return {
        str(n): {f"{r:g}": _told(tabulated(f, r, asked.Lookup(tokens=n))) for r in _REACHES}
        for n in _TOKENS
    }


def _stored() -> dict[str, Any]:
    """Tables with their errors, and errors against tokens."""
    found, curves = [], {}
    for held in _losses():
        loss = loss_of(held.asked)
        own = held.algorithm in ("absolute", "hinge", "custom")
        found.append({
            "key": held.key, "algorithm": held.algorithm, "loss": held.loss, "kind": loss.kind,
            "parameters": dict(held.parameters), "name": loss.derivative.name, "unscaled": own,
            "bend": loss.curvature_on(-_FARTHEST, _FARTHEST)[1], "tables": _tables(held, loss),
        })  # fmt: skip
        if held.usual:
            question = asked.LookupQuestion(loss=held.asked)
            curves[held.key] = rates(question, _unhurried).model_dump()
    return {
        "losses": found,
        "rates": curves,
        "clips": {f"{r:g}": _told(CLIP.on(r)) for r in _CLIPS},
        "squares": {f"{r:g}": _told(CLIP_SQUARED.on(r)) for r in _SQUARES},
        "identity": {f"{r:g}": _told(IDENTITY.on(r)) for r in _LINES},
    }


def _unhurried() -> None:
    pass


# ---------------------------------------------------------------------------------------------
# the network
# ---------------------------------------------------------------------------------------------


def _network(network: FrozenNetwork) -> dict[str, bytes]:
    """The layer as an ONNX graph whose weights lie beside it, and what its digest is made of."""
    weights, places = b"", {}
    parts: list[str | list[int]] = []
    for piece in digested(network):
        if isinstance(piece, str):
            parts.append(piece)
            continue
        name, data = piece
        places[name] = (len(weights), len(data))
        parts.append([len(weights), len(data)])
        weights += bytes(data)
    machine = the_machine()
    about = {
        "dim": machine.dim, "samples": machine.samples, "tokens": machine.tokens, "digested": parts,
    }  # fmt: skip
    return {
        _NETWORK: _graph(network, places),
        _WEIGHTS: weights,
        "machine.json": json.dumps(about).encode(),
    }


def _graph(network: FrozenNetwork, places: Mapping[str, tuple[int, int]]) -> bytes:
    """Embed, attend, read out; as in PyTorch only queries that are read out are computed."""
    from onnx import TensorProto, helper

    network.check()
    buffers = dict(network.named_buffers())
    embed, attend = "layers.0.", "layers.1."
    w_o = buffers[attend + "w_o"]
    rows = (w_o[0] != 0).any(-1).nonzero()[:, 0]
    held = [
        _outside(name, tuple(buffers[name].shape), *places[name])
        for name in buffers
    ]  # fmt: skip
    held.append(helper.make_tensor("rows", TensorProto.INT64, [len(rows)], rows.tolist()))
    held.append(helper.make_tensor("first", TensorProto.INT64, [1], [0]))
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Transpose", [embed + "features"], "A", {"perm": [1, 0]}),
        ("Transpose", [embed + "spread"], "B", {"perm": [1, 0]}),
        ("MatMul", [embed + "places", "B"], "placed", {}),
        ("Add", ["placed", embed + "constant"], "positions", {}),
        ("MatMul", ["tokens", "A"], "carried", {}),
        ("Add", ["carried", "positions"], "x", {}),
        *[("Squeeze", [attend + w, "first"], w, {}) for w in ("w_k", "w_q", "w_v", "w_o")],
        *[("Transpose", [w], f"{w}'", {"perm": [1, 0]}) for w in ("w_k", "w_q", "w_v", "w_o")],
        ("Gather", ["x", "rows"], "asking", {"axis": 1}),
        ("MatMul", ["asking", "w_q'"], "queries", {}),
        ("MatMul", ["x", "w_k'"], "keys", {}),
        ("Transpose", ["keys"], "keys'", {"perm": [0, 2, 1]}),
        ("MatMul", ["queries", "keys'"], "scores", {}),
        ("Softmax", ["scores"], "weights", {"axis": -1}),
        ("MatMul", ["x", "w_v'"], "values", {}),
        ("MatMul", ["weights", "values"], "looked", {}),
        ("Gather", ["w_o'", "rows"], "reads", {"axis": 1}),
        ("MatMul", ["reads", "looked"], "output", {}),
    ]
    nodes = [helper.make_node(kind, given, [out], **more) for kind, given, out, more in steps]
    double, (_, count, read) = TensorProto.DOUBLE, w_o.shape
    wide = buffers[attend + "w_v"].shape[1]

    def shaped(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, double, ["prompts", *shape])

    given = [shaped("tokens", count, network.features.total)]
    out = [shaped("output", read, wide), shaped("weights", len(rows), count)]
    graph = helper.make_graph(nodes, "look-up layer", given, out, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model.metadata_props.add(key="iceform.digest", value=network.digest)
    return bytes(model.SerializeToString())


def _outside(name: str, shape: tuple[int, ...], offset: int, length: int) -> Any:
    """A weight that lies in a file of its own."""
    from onnx import TensorProto

    held = TensorProto(name=name, data_type=TensorProto.DOUBLE, dims=shape)
    held.data_location = TensorProto.EXTERNAL
    for key, value in (("location", _WEIGHTS), ("offset", offset), ("length", length)):
        held.external_data.add(key=key, value=str(value))
    return held


# ---------------------------------------------------------------------------------------------
# what the browser runs it with
# ---------------------------------------------------------------------------------------------


def _runtime(keep: Path) -> dict[str, bytes]:
    """onnxruntime-web, from npm's registry; the archive is kept and checked against its record."""
    archive = keep / f"onnxruntime-web-{RUNTIME}.tgz"
    if not archive.exists():
        keep.mkdir(parents=True, exist_ok=True)
        _fetch(archive)
    data = archive.read_bytes()
    found = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != _INTEGRITY:
        archive.unlink()
        raise IntegrityError(
            f"{archive} is not onnxruntime-web {RUNTIME}: its SHA-512 is {found[:16]}..., expected "
            f"{_INTEGRITY[:16]}...; it was removed, run this again"
        )
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        return {own: _member(packed, name) for name, own in _RUNTIME_FILES.items()}


def _member(packed: tarfile.TarFile, name: str) -> bytes:
    entry = packed.extractfile(f"package/dist/{name}")
    assert entry is not None
    data = entry.read()
    return _zipped(data) if _RUNTIME_FILES[name].endswith(".gz") else data


def _fetch(archive: Path) -> None:
    npm = shutil.which("npm")
    advice = f"or put the file there yourself: onnxruntime-web {RUNTIME} as npm pack writes it"
    if npm is None:
        raise ProgramError(
            f"npm is missing, which fetches what the browser runs the network with into {archive}; "
            f"install Node.js, {advice}"
        )
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", "--silent", f"onnxruntime-web@{RUNTIME}"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        written = sorted(Path(place).glob("*.tgz"))
        if done.returncode or not written:
            said = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
            raise ProgramError(
                f"npm could not fetch onnxruntime-web: {said[0]}; try again, {advice}"
            )
        shutil.move(written[0], archive)


# ---------------------------------------------------------------------------------------------
# the whole
# ---------------------------------------------------------------------------------------------


def _programs() -> Iterator[tuple[str, bytes]]:
    """Literal runs of the computer, with the attention of every cycle."""
    for name, settings in PROGRAMS.items():
        question = asked.ProgramQuestion(program=name, settings=settings)
        answer = step_through(question, _unhurried)
        cycles = [
            attention(
                asked.CycleQuestion(program=name, settings=settings, cycle=k), _unhurried
            ).model_dump()
            for k in range(len(answer.cycles))
        ]
        run = {"answer": answer.model_dump(), "cycles": cycles}
        yield f"program-{name}.json.gz", _zipped(json.dumps(run).encode())


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _offer() -> dict[str, Any]:
    """The catalogue, with settings that have tables, and programs that have runs."""
    offer = catalogue().model_dump()
    for entry in offer["algorithms"]:
        for slider in entry["sliders"]:
            if slider["name"] in ("quantile", "expectile"):
                slider["choices"] = list(SHARES)
    offer["programs"] = [one for one in offer["programs"] if one["name"] in PROGRAMS]
    return offer


def build(folder: Path, *, keep: Path) -> None:
    """Write the page that needs no server into a folder.

    Parameters
    ----------
    folder
        Written anew.
    keep
        Where what is fetched is kept for the next time.
    """
    page = folder / "page"
    shutil.rmtree(folder, ignore_errors=True)
    page.mkdir(parents=True)
    files = {name: part.body for name, part in page_files().items()}
    front = files.pop("index.html").replace(b"<html", b'<html data-engine="page"', 1)
    (folder / "index.html").write_bytes(front)
    files |= _runtime(keep)
    files |= _network(the_machine().network)
    files["catalogue.json"] = json.dumps(_offer()).encode()
    files["stored.json.gz"] = _zipped(json.dumps(_stored()).encode())
    files |= dict(_programs())
    for name, data in files.items():
        (page / name).write_bytes(data)


def main() -> None:
    """Write the playground into the folder that is named."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    build(folder, keep=Path("out/npm"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
