"""A library of prompts whose passes are run by onnxruntime."""

from __future__ import annotations

from pathlib import Path

from iceform.errors import IntegrityError
from iceform.export.onnx_file import DIGEST, OnnxRuntime, PromptRunner, compare, need, session
from iceform.paper import AttentionHead
from iceform.paper.library import PromptLibrary
from iceform.run import Backend


class OnnxLibrary(PromptLibrary):
    """A :class:`~iceform.paper.library.PromptLibrary` whose every pass is run by onnxruntime.

    Algorithms, prompts and loops are the library's own; only the pass is not. It is the literal
    network that the file holds, so passes are certified for the literal evaluation.

    Parameters
    ----------
    library
        The library that was exported.
    path
        The file that :func:`iceform.export.onnx` wrote.

    Raises
    ------
    IntegrityError
        If the file is not what was exported, or does not return what these weights do on random
        prompts.
    """

    def __init__(self, library: PromptLibrary, path: str | Path) -> None:
        need("onnxruntime")
        self.__dict__.update(library.__dict__)
        self._session = session(Path(path))
        written = self._session.get_modelmeta().custom_metadata_map.get(DIGEST)
        if written != library.network.check():
            raise IntegrityError(f"{path} holds other weights than this library's")
        compare(PromptRunner(library).eval(), self._session, Path(path))
        literal = {**library.head._config(), "backend": "literal"}
        head = AttentionHead._rebuild(literal, library.head.interpolant, None)
        assert isinstance(head, AttentionHead)
        head.add_module("_network", library.network)
        self.head = head

    def bind(self) -> Backend:
        """onnxruntime, on the file."""
        return OnnxRuntime(self.head.network, self._session)
