"""A network as two files: an ONNX graph, and beside it the bytes of its weights.

The page hashes the bytes that it hands to the session. What a digest is made of (texts, and places
in the file) goes with them, so that the page's SHA-256 is the library's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WeightsFile:
    """The bytes of a network's weights, and where each weight is.

    Attributes
    ----------
    name
        Of the file.
    data
        Its bytes.
    places
        Of each weight: the first byte, and how many.
    digested
        What the SHA-256 is of, in order: a text, or ``[first byte, how many]``.
    """

    name: str
    data: bytes
    places: dict[str, tuple[int, int]]
    digested: list[str | list[int]]

    @classmethod
    def of(cls, name: str, pieces: Iterable[str | tuple[str, Any]]) -> WeightsFile:
        """From what a digest is of: texts, and weights by name with their bytes."""
        data, places = bytearray(), {}
        digested: list[str | list[int]] = []
        for piece in pieces:
            if isinstance(piece, str):
                digested.append(piece)
                continue
            weight, content = piece
            places[weight] = (len(data), len(content))
            digested.append([len(data), len(content)])
            data += content
        return cls(name, bytes(data), places, digested)

    def point(self, tensor: Any, weight: str) -> Any:
        """Let an ONNX tensor name its place in this file instead of holding its numbers."""
        from onnx import TensorProto

        offset, length = self.places[weight]
        tensor.ClearField("raw_data")
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
