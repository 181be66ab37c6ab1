"""Into other tools: the Hub's layout, ONNX, TransformerLens and nnsight.

Nothing here is imported before it is called for: each part says which extra it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iceform.errors import ProgramError
from iceform.export.hub import from_pretrained, save_pretrained

__all__ = ["from_pretrained", "load", "nnsight", "onnx", "save_pretrained", "transformer_lens"]

load = from_pretrained


def onnx(thing: Any, path: str | Path, *, check: bool = True, example: Any = None) -> Path:
    """The frozen network of a machine or an emulator as an ONNX file whose input is the prompt.

    See :func:`iceform.export.onnx_file.onnx`. Of a network in context, the whole of it, with its
    own inputs, of which ``example`` is one: :func:`iceform.export.network_file.network_onnx`.
    """
    from iceform.export.onnx_file import onnx as write
    from iceform.networks import InContext

    if not isinstance(thing, InContext):
        return write(thing, path, check=check)
    from iceform.export.network_file import network_onnx

    if example is None:
        raise ProgramError("a network in context is exported on an input: pass example=")
    return network_onnx(thing, path, example, check=check)


def transformer_lens(thing: Any) -> Any:
    """A TransformerLens module with hooks at every head: see :mod:`iceform.export.lens`."""
    from iceform.export.lens import transformer_lens as hooked

    return hooked(thing)


def nnsight(thing: Any) -> Any:
    """An nnsight model of the same hooked network: see :mod:`iceform.export.lens`."""
    from iceform.export.lens import nnsight as wrapped

    return wrapped(thing)
