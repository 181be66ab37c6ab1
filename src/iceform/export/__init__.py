"""Into other tools: the Hub's layout, ONNX, TransformerLens and nnsight.

Nothing here is imported before it is called for: each part says which extra it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iceform.export.hub import from_pretrained, save_pretrained

__all__ = ["from_pretrained", "nnsight", "onnx", "save_pretrained", "transformer_lens"]


def onnx(thing: Any, path: str | Path, *, check: bool = True) -> Path:
    """The frozen network of a machine or an emulator as an ONNX file whose input is the prompt.

    See :func:`iceform.export.onnx_file.onnx`.
    """
    from iceform.export.onnx_file import onnx as write

    return write(thing, path, check=check)


def transformer_lens(thing: Any) -> Any:
    """A TransformerLens module with hooks at every head: see :mod:`iceform.export.lens`."""
    from iceform.export.lens import transformer_lens as hooked

    return hooked(thing)


def nnsight(thing: Any) -> Any:
    """An nnsight model of the same hooked network: see :mod:`iceform.export.lens`."""
    from iceform.export.lens import nnsight as wrapped

    return wrapped(thing)
