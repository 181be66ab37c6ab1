"""ONNX: a network in context as one file, checked by onnxruntime (needs ``iceform[export]``).

Its inputs and outputs are the network's own. The weights are in it as the prompts hold them, and
every look-up is the softmax over its table's tokens. What a file cannot do is refuse: inputs out of
range are looked up beyond a table's end, and nothing is certified of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iceform.arithmetic import at_most
from iceform.errors import IntegrityError, ProgramError
from iceform.export.onnx_file import need, write_file
from iceform.networks import InContext
from iceform.networks.structure import arguments, floats_of
from iceform.validation import full_precision, written_out

_ROUNDINGS = 8  # how much farther off onnxruntime may be than torch, which sums in other orders


class _FlatGraph(nn.Module):
    """The graph of one kind of call, tensors in and out."""

    def __init__(self, network: InContext, structure: Any) -> None:
        super().__init__()
        self.model, self._structure = network.model, structure

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the network on tensors alone, without the structure of its inputs."""
        graph = self.model.graph_for(self._structure, list(tensors))
        return tuple(graph.run(self.model, tensors))


@full_precision
def network_onnx(network: InContext, path: str | Path, example: Any) -> Path:
    """Write a network in context as an ONNX file with the network's own inputs and outputs.

    Before it is kept, onnxruntime runs it on the example, and what it returns is compared with the
    original's.

    Parameters
    ----------
    network
        What to export.
    path
        The file to write.
    example
        Arguments, as ``calibration=`` takes them; sizes that the network leaves open are so in the
        file.

    Raises
    ------
    CapacityError
        If the weights would not fit an ONNX file.
    ProgramError
        If an operation of the network has no form in ONNX.
    IntegrityError
        If onnxruntime's results are further from the original's than is certified.
    """
    need("onnx", "onnxscript", "onnxruntime")
    network.frozen.check()
    args, kwargs = arguments(example)
    with torch.no_grad():
        network(*args, **kwargs)  # in range, and its graph is known
        structure, tensors = network.model.signature.flatten(args, kwargs)
        return write_file(
            path, network.model, "a smaller network", network.digest,
            partial(_exported, network, structure, tensors),
            lambda runs: _compare(network, runs, args, kwargs, tensors),
        )  # fmt: skip


def _exported(network: InContext, structure: Any, tensors: list[Tensor]) -> Any:
    auto = torch.export.Dim.AUTO
    shapes = (tuple(dict.fromkeys(range(t.ndim), auto) for t in tensors),)
    flat = _FlatGraph(network, structure).eval()
    program = torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
    try:
        return torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.scalar_tensor.default: _number()},
        )
    except torch.onnx.errors.OnnxExporterError as refused:
        why = str(refused).split("Exception summary")[-1].strip(" #\n")
        raise ProgramError(
            f"{network.model.title} has an operation that ONNX has no form for: {why[:300]}"
        ) from refused


def _number() -> Callable[..., Any]:
    """A number in a graph as float64 has it: the exporter's own form of it is float32's."""
    import numpy as np
    from onnx import TensorProto, numpy_helper
    from onnxscript import opset18 as op

    def scalar_tensor(
        s: Any, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False
    ) -> Any:
        del layout, device, pin_memory
        if isinstance(s, float) and dtype == TensorProto.DOUBLE:
            return op.Constant(value=numpy_helper.from_array(np.array(s, dtype=np.float64)))
        return op.Cast(s, to=1 if dtype == -1 else dtype)

    return scalar_tensor


def _compare(network: InContext, runs: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
    """The example through the file: no farther from the original than torch, but for rounding."""
    proof = network.enclosure(*args, **kwargs)
    if not math.isfinite(proof.error):
        raise ProgramError(
            f"{network.model.title}: nothing is proven of its output on the example "
            f"({', '.join(proof.terms)}), so no file could be told from another; give an example "
            "that network.enclosure bounds"
        )
    bounds = proof.bounds
    named = {
        i.name: written_out(t.detach().cpu()).numpy()
        for i, t in zip(runs.get_inputs(), tensors, strict=True)
    }
    found = [torch.from_numpy(t) for t in runs.run(None, named)]
    found = [t for t in found if t.is_floating_point()]
    wanted = floats_of(network.reference(*args, **kwargs))
    for ours, exact, bound in zip(found, wanted, bounds, strict=True):
        off = (ours.double() - exact).abs()
        least = torch.finfo(ours.dtype).eps * float(exact.abs().max())
        if not bool((off <= _ROUNDINGS * (bound.max() + least)).all()):
            raise IntegrityError(
                f"{network.model.title}: onnxruntime is off by {float(off.max()):.3g} from the "
                f"original, and torch by {at_most(float(bound.max()), '.3g')}; nothing was kept"
            )
