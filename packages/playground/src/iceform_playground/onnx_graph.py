"""A module as an ONNX graph that names the places of its weights in a file beside it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from iceform_playground.weights_file import WeightsFile

_WRAPPED = "network."  # before the names of weights, as a wrapper holds the network


def exported(
    module: nn.Module, example: tuple[Tensor, ...], weights: WeightsFile, given: list[str],
    returned: list[str], dynamic_shapes: Any = None, unread: tuple[str, ...] = (),
) -> bytes:  # fmt: skip
    """Export a module by ``torch.onnx``; weights of ``module.network`` are those of the file.

    ``unread`` names weights of the file that the graph has no use for.
    """
    with _quietly(), torch.no_grad():
        made = torch.onnx.export(
            module,
            example,
            dynamo=True,
            optimize=False,  # so that weights stay as they are, and their names
            verbose=False,
            input_names=given,
            output_names=returned,
            dynamic_shapes=dynamic_shapes,
        )
    assert made is not None
    model: Any = made.model_proto
    names = {_WRAPPED + name for name in weights.places if name not in unread}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            weights.point(tensor, tensor.name.removeprefix(_WRAPPED))
            names.discard(tensor.name)
    assert not names, f"weights that the graph does not hold: {sorted(names)}"
    model.ClearField("functions")
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _quietly() -> Any:
    """Without the exporter's chatter: packages that it looks for, and warnings of its own parts."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
