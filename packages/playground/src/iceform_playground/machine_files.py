"""The playground's machine, one frozen look-up layer, as files that a browser runs."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import Any

from iceform.heads import FrozenNetwork, digested
from iceform_estimators.machine import Machine
from iceform_playground.weights_file import WeightsFile

_EMBED, _ATTEND = "layers.0.", "layers.1."


@lru_cache(maxsize=1)
def the_machine() -> Machine:
    """The playground's machine: ten features, four samples to a prompt, blocks of 129 tokens."""
    return Machine(10, 4, layout="stream", tokens=129)


def machine_files() -> dict[str, bytes]:
    """The layer as an ONNX graph, its weights, and what its digest is made of."""
    machine = the_machine()
    weights = WeightsFile.of("machine.weights", digested(machine.network))
    about = {
        "dim": machine.dim, "samples": machine.samples, "tokens": machine.tokens,
        "digested": weights.digested,
    }  # fmt: skip
    return {
        "machine.onnx": _graph(machine.network, weights),
        f"{weights.name}.gz": gzip.compress(weights.data, mtime=0),
        "machine.json": json.dumps(about).encode(),
    }


def _graph(network: FrozenNetwork, weights: WeightsFile) -> bytes:
    """Embed, attend, read out; as in PyTorch only queries that are read out are computed."""
    from onnx import TensorProto, helper

    network.check()
    buffers = dict(network.named_buffers())
    w_o = buffers[_ATTEND + "w_o"]
    rows = (w_o[0] != 0).any(-1).nonzero()[:, 0]
    double = TensorProto.DOUBLE
    held = [
        weights.point(TensorProto(name=name, data_type=double, dims=tuple(buffer.shape)), name)
        for name, buffer in buffers.items()
    ]
    held.append(helper.make_tensor("rows", TensorProto.INT64, [len(rows)], rows.tolist()))
    held.append(helper.make_tensor("first", TensorProto.INT64, [1], [0]))
    nodes = [helper.make_node(kind, given, [out], **more) for kind, given, out, more in _steps()]
    _, count, read = w_o.shape
    wide = buffers[_ATTEND + "w_v"].shape[1]

    def shaped(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, double, ["prompts", *shape])

    given = [shaped("tokens", count, network.features.total)]
    out = [shaped("output", read, wide), shaped("weights", len(rows), count)]
    graph = helper.make_graph(nodes, "look-up layer", given, out, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model.metadata_props.add(key="iceform.digest", value=network.digest)
    return bytes(model.SerializeToString())


def _steps() -> list[tuple[str, list[str], str, dict[str, Any]]]:
    """Steps of the graph: operation, inputs, output, attributes."""
    turned = {"perm": [1, 0]}
    return [
        ("Transpose", [_EMBED + "features"], "A", turned),
        ("Transpose", [_EMBED + "spread"], "B", turned),
        ("MatMul", [_EMBED + "places", "B"], "placed", {}),
        ("Add", ["placed", _EMBED + "constant"], "positions", {}),
        ("MatMul", ["tokens", "A"], "carried", {}),
        ("Add", ["carried", "positions"], "x", {}),
        *[("Squeeze", [_ATTEND + w, "first"], w, {}) for w in ("w_k", "w_q", "w_v", "w_o")],
        *[("Transpose", [w], f"{w}'", turned) for w in ("w_k", "w_q", "w_v", "w_o")],
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
