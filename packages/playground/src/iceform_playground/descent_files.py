"""A live GPT-2 whose layers are steps of descent, as files that a browser runs.

The graph is what ``torch.onnx`` makes of the ``GPT2Model`` that ``transformers`` loads. It takes
the points, and a gate for every head: 1 leaves it, 0 takes it out. It returns the coefficients in
the residual stream before the first layer and after each, and where the state token looked.

Beside it is the mechanism, head by head, from the design: with that the page predicts what a
missing head does, and compares. For the points that it opens with the prediction's distance from
the network is proven here, by balls; for the points of a visitor the page estimates it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iceform.targets import DataDomain, LinearDescent, contribution, unmirrored, write
from iceform_playground.onnx_graph import exported
from iceform_playground.weights_file import WeightsFile

_SAMPLES = 24
_SETTINGS: dict[str, Any] = {"lr": 1.0, "penalty": 0.05, "momentum": 0.5}
_CODE = """\
spec = ice.targets.LinearDescent(dim=2, steps=12, positions=64, pairs=4)
model = ice.targets.write("gpt2", spec, folder)
network = transformers.AutoModel.from_pretrained(folder)
out = network(inputs_embeds=model.prompt(X, y, lr=1.0, penalty=0.05, momentum=0.5))
slope = model.read(out.last_hidden_state)"""


class DescentRun(nn.Module):
    """Points and gates in; coefficients by layer, and the attention of the state token, out."""

    of_x: Tensor
    of_y: Tensor
    empty: Tensor
    reads: Tensor

    def __init__(self, network: nn.Module, spec: LinearDescent) -> None:
        super().__init__()
        self.network = network
        self.heads = spec.design.heads
        none = torch.zeros(_SAMPLES, dtype=torch.float64)
        empty = _prompt(spec, torch.stack([none, none], 1))
        for name in ("x", "y"):
            one = torch.stack([torch.ones_like(none), none] if name == "x" else [none, none + 1], 1)
            self.register_buffer(f"of_{name}", (_prompt(spec, one) - empty)[0, 1])
        self.register_buffer("empty", empty)
        width = empty.shape[-1]
        reads = unmirrored(spec.design, torch.eye(width, dtype=torch.float64)[None])[0]
        self.register_buffer("reads", reads[:, spec.design.features["w"]])
        self._gates: list[Tensor] = []
        blocks: Any = network.h
        for layer, block in enumerate(blocks):
            block.attn.c_proj.register_forward_pre_hook(self._gate(layer))

    def _gate(self, layer: int) -> Any:
        def pass_through(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if not self._gates:
                return given
            (mixed,) = given
            parts = mixed.unflatten(-1, (self.heads, -1)) * self._gates[-1][layer][:, None]
            return (parts.flatten(-2),)

        return pass_through

    def forward(self, points: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        self._gates.append(gates)
        rows = points[:, :1] * self.of_x + points[:, 1:] * self.of_y
        given = self.empty + nn.functional.pad(rows, (0, 0, 1, 1))[None]
        out = self.network(inputs_embeds=given, output_attentions=True, output_hidden_states=True)
        self._gates.pop()
        lines = torch.stack([hidden[0, -1] @ self.reads for hidden in out.hidden_states])
        return lines, torch.stack([layer[0, :, -1] for layer in out.attentions])


def specification() -> LinearDescent:
    """Twelve steps of ridge regression with momentum, one layer each."""
    return LinearDescent(dim=2, steps=12, positions=64, pairs=4, **_SETTINGS)


def points() -> Tensor:
    """Those that the page opens with: places x and labels y, along a line."""
    generator = torch.Generator().manual_seed(4)
    x = 2 * torch.rand(_SAMPLES, generator=generator, dtype=torch.float64) - 1
    noise = torch.randn(_SAMPLES, generator=generator, dtype=torch.float64)
    y = ((x + noise / 4) / 2).clamp(-1, 1)
    return ((1000 * torch.stack([x, y], 1)).round() / 1000).contiguous()


def live_network(folder: Path) -> DescentRun:
    """The network that the page runs, as transformers loads it."""
    import transformers

    spec = specification()
    write("gpt2", spec, folder / "gpt2")
    network = transformers.AutoModel.from_pretrained(folder / "gpt2", attn_implementation="eager")
    return DescentRun(network, spec).eval()


def descent_files() -> dict[str, bytes]:
    """Graph, weights, and what the page needs to know of the circuit."""
    spec = specification()
    with tempfile.TemporaryDirectory() as place:
        run = live_network(Path(place))
    weights = WeightsFile.of("gpt2.weights", _digested(run.network))
    ones = torch.ones(spec.steps, spec.design.heads, dtype=torch.float64)
    graph = exported(
        run, (points(), ones), weights, ["points", "gates"], ["lines", "attention"],
        unread=("wte.weight",),  # tokens come as numbers
    )  # fmt: skip
    return {
        "gpt2.onnx.gz": gzip.compress(graph, mtime=0),
        "gpt2.weights.gz": gzip.compress(weights.data, mtime=0),
        "gpt2.json": json.dumps(_about(spec, run.network, weights)).encode(),
    }


def samples(given: Tensor) -> tuple[Tensor, Tensor]:
    """Points as a regression: features 1 and x, and the label."""
    return torch.stack([torch.ones_like(given[:, 0]), given[:, 0]], 1), given[:, 1]


def _prompt(spec: LinearDescent, given: Tensor) -> Tensor:
    x, y = samples(given)
    return spec.prompt(x, y, **_SETTINGS)


def _digested(network: nn.Module) -> Any:
    for name, tensor in sorted(network.state_dict().items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"
        yield name, tensor.contiguous().numpy().tobytes()


def _about(spec: LinearDescent, network: nn.Module, weights: WeightsFile) -> dict[str, Any]:
    domain = DataDomain.box(spec.dim, _SAMPLES, 1.0)
    certificate = spec.certificate(domain, **_SETTINGS)
    sha = hashlib.sha256()
    for piece in weights.digested:
        if isinstance(piece, str):
            sha.update(piece.encode())
        else:
            sha.update(weights.data[piece[0] : sum(piece)])
    ticks, pairs = list(spec.combination.ticks), spec.combination
    truth = spec.design.ground_truth()[0]
    x, y = samples(points())
    found = [
        [contribution(spec, x, y, head, layer=layer, **_SETTINGS) for head in range(len(truth))]
        for layer in range(spec.steps)
    ]
    return {
        "architecture": type(network).__name__, "layers": spec.steps, "heads": len(truth),
        "points": points().tolist(), **_SETTINGS, "code": _CODE,
        "digested": weights.digested, "digest": sha.hexdigest(),
        "roles": [head["role"] for head in truth],
        "pairs": [
            {"t": sign * j * pairs.delta, "share": -sign * pairs.weights[j - 1] / 2}
            for j, sign in ticks
        ],
        "leak": pairs.leak_bits, "logit": spec.null_logit(_SAMPLES, _SETTINGS["lr"]),
        "certified": certificate.error, "kind": certificate.kind,
        "without": [[one.answer.tolist() for one in row] for row in found],
        "within": max(one.error for row in found for one in row),
    }  # fmt: skip
