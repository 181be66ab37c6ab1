"""A run of a stock GPT-2 that does least squares, layer by layer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from iceform.targets import LinearDescent, unmirrored, write

_DIM, _STEPS, _SAMPLES = 3, 12, 40
_CODE = """\
spec = ice.targets.LinearDescent(dim=3, steps=12, positions=256)
model = ice.targets.write("gpt2", spec, folder)
network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
out = network(inputs_embeds=model.prompt(X, y, lr=1.0), output_hidden_states=True)
answer = model.read(out.last_hidden_state)"""


def stock_run() -> dict[str, Any]:
    """Coefficients in the residual stream after every layer, beside descent written in a line."""
    import transformers

    spec = LinearDescent(dim=_DIM, steps=_STEPS, positions=256)
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(_SAMPLES, _DIM, generator=generator, dtype=torch.float64) - 1
    noise = torch.randn(_SAMPLES, generator=generator, dtype=torch.float64)
    y = (x @ torch.tensor([0.8, -0.5, 0.3], dtype=torch.float64) + 0.1 * noise).clamp(-1, 1)
    with tempfile.TemporaryDirectory() as place:
        model = write("gpt2", spec, Path(place) / "gpt2")
        network = transformers.AutoModel.from_pretrained(
            Path(place) / "gpt2", attn_implementation="eager"
        )
        with torch.no_grad():
            out = network(inputs_embeds=model.prompt(x, y, lr=1.0), output_hidden_states=True)
        answer = model.read(out.last_hidden_state)
        at = spec.design.features["w"]
        stream = [unmirrored(spec.design, h)[0, -1, at] for h in out.hidden_states[:-1]]
        certificate = model.certificate(x, y, lr=1.0)
    stream.append(answer)
    w = torch.zeros(_DIM, dtype=torch.float64)
    exact = [w]
    for _ in range(_STEPS):
        w = w - x.mT @ (x @ w - y) / _SAMPLES
        exact.append(w)
    return {
        "architecture": type(network).__name__,
        "layers": network.config.n_layer,
        "heads": network.config.n_head,
        "dim": _DIM,
        "samples": _SAMPLES,
        "stream": [part.tolist() for part in stream],
        "exact": [part.tolist() for part in exact],
        "off": [float((a - b).abs().max()) for a, b in zip(stream, exact, strict=True)],
        "certified": certificate.error,
        "kind": certificate.kind,
        "code": _CODE,
    }
