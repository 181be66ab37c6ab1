"""A machine whose passes are run by onnxruntime."""

from __future__ import annotations

from pathlib import Path

from iceform.backends import Backend
from iceform.constructions import AttentionHead
from iceform.errors import IntegrityError
from iceform.export.onnx_file import (
    DIGEST,
    OnnxRuntime,
    PromptRunner,
    compare,
    need,
    session,
)
from iceform_estimators.machine import Rows


class OnnxMachine(Rows):
    """A machine whose every pass is run by onnxruntime, from one file.

    Programs, prompts and loops are the machine's own; only the pass is not. It is the literal
    network that the file holds, so passes are certified for the literal evaluation.

    Parameters
    ----------
    machine
        The machine that was exported.
    path
        The file.

    Raises
    ------
    IntegrityError
        If the file is not what was exported, or does not return what these weights do on random
        prompts.
    """

    def __init__(self, machine: Rows, path: str | Path) -> None:
        need("onnxruntime")
        self.__dict__.update(machine.__dict__)
        self._session = session(Path(path))
        written = self._session.get_modelmeta().custom_metadata_map.get(DIGEST)
        if written != machine.network.check():
            raise IntegrityError(f"{path} holds other weights than this machine's")
        compare(PromptRunner(machine).eval(), self._session, Path(path))
        literal = {**machine.head._config(), "backend": "literal"}
        head = AttentionHead._rebuild(literal, machine.head.interpolant, None)
        assert isinstance(head, AttentionHead)
        head.add_module("_network", machine.network)
        self.head = head

    def bind(self) -> Backend:
        return OnnxRuntime(self.head.network, self._session)
