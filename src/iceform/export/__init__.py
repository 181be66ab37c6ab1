"""Into other tools: the Hub's layout, ONNX, TransformerLens and nnsight."""

from iceform.export.hub import from_pretrained, save_pretrained

__all__ = ["from_pretrained", "save_pretrained"]
