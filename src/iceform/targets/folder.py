"""A stock checkpoint on disk: what transformers reads, and what iceform says about it.

``config.json`` and ``model.safetensors`` are all that ``AutoModel.from_pretrained(path)`` needs,
with no code of ours. ``iceform.json`` holds the sizes that the weights follow from, the prompt's
layout, the certificate and the ground truth; ``README.md`` is the card.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from iceform.certificates import Certificate
from iceform.computer.compile import Program
from iceform.errors import IceformError, IntegrityError, ProgramError, TargetError
from iceform.targets.architectures import Architecture, architecture
from iceform.targets.card import card
from iceform.targets.design import Vocabulary
from iceform.targets.stock_computer import StockComputer
from iceform.targets.target import KINDS, Target

__all__ = ["StockModel", "digest", "load", "write"]

FORMAT = 1
_CYCLES = 512
RECORD = "iceform.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"


@dataclass(frozen=True)
class StockModel:
    """A folder that transformers loads, with its prompt and its readout."""

    path: Path
    architecture: Architecture
    spec: Target

    def prompt(self, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        """``inputs_embeds`` for these data in the folder's dtype, or token ids."""
        return self.spec.prompt(x, y, **parameters)

    def read(self, out: Tensor) -> Tensor:
        """The answer in ``last_hidden_state`` (or in generated ids), in float64."""
        return self.spec.read(out)

    def certificate(
        self, x: Tensor, y: Tensor, attention: str = "any", **parameters: Any
    ) -> Certificate:
        """What is proven for these data."""
        settings = {k: v for k, v in parameters.items() if k in self.spec.defaults}
        return self.spec.certificate(self.spec.domain(x, y, **parameters), attention, **settings)

    def tensors(self) -> dict[str, Tensor]:
        """The weights that the sizes imply, in the folder's dtype."""
        words = self.spec.vocabulary()
        found = (
            self.architecture.tensors(self.spec.design, self.spec.positions)
            if words is None
            else self._with_ids(words)[1]
        )
        return {name: t.to(self.spec.torch_dtype).contiguous() for name, t in found.items()}

    def config(self) -> dict[str, Any]:
        """config.json."""
        words = self.spec.vocabulary()
        found = (
            self.architecture.config(self.spec.design, self.spec.positions)
            if words is None
            else self._with_ids(words)[0]
        )
        return {**found, "dtype": self.spec.dtype}

    def _with_ids(self, words: Vocabulary) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if self.architecture.with_ids is None:
            raise TargetError(f"a {self.architecture.name} that reads token ids is not written yet")
        return self.architecture.with_ids(self.spec.design, words)


def write(
    name: str, spec: Target | Program, path: str | Path, *, cycles: int = _CYCLES
) -> StockModel:
    """Write ``spec`` as the stock architecture ``name`` into the folder ``path``.

    Parameters
    ----------
    name
        "gpt2", "llama", "bert" or "albert".
    spec
        A target, or a compiled program: then the computer that holds it.
    path
        The folder.
    cycles
        Of that computer.

    Raises
    ------
    TargetError
        If the architecture cannot do it; the message says why and which one can.
    """
    if isinstance(spec, Program):
        spec = StockComputer.for_programs([spec], cycles)
    if not isinstance(spec, Target):
        raise ProgramError(f"not a target: {spec!r}; see iceform.targets")
    known = architecture(name)
    spec.check_architecture(name)
    known.check_dtype(spec.torch_dtype)
    known.check_fits(spec.design)
    model = StockModel(Path(path), known, spec)
    tensors, config = model.tensors(), model.config()
    typical = spec.typical()
    certificate = None if typical is None else spec.certificate(typical)
    sha = digest(tensors)
    record = {
        "format": FORMAT,
        "kind": spec.kind,
        "architecture": name,
        "sizes": spec.sizes(),
        "parameters": spec.parameters(),
        "prompt": {"tokens": spec.layout(), "features": spec.design.features.names(),
                   "mirrored": "feature f is at f and, negated, at hidden/2 + f"},
        "certificate": None if certificate is None else json.loads(certificate.to_json()),
        "ground_truth": spec.design.ground_truth(),
        "basis": None if spec.design.rotation is None else spec.design.rotation.describe(),
        "weights_sha256": sha,
    }  # fmt: skip
    model.path.mkdir(parents=True, exist_ok=True)
    _put(model.path / WEIGHTS, lambda to: save_file(tensors, to, metadata={"format": "pt"}))
    _put(model.path / CONFIG, lambda to: to.write_text(json.dumps(config, indent=2), "utf-8"))
    _put(model.path / RECORD, lambda to: to.write_text(json.dumps(record, indent=1), "utf-8"))
    text = card(spec, name, certificate, sha)
    _put(model.path / CARD, lambda to: to.write_text(text, "utf-8"))
    return model


def load(path: str | Path) -> StockModel:
    """The prompt, readout and certificate of a folder that :func:`write` wrote."""
    folder = Path(path)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise IntegrityError(f"{folder} cannot be read: {broken}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise IntegrityError(f"{folder / RECORD} is not of format {FORMAT}")
    kind = KINDS.get(str(record.get("kind")))
    if kind is None:
        raise IntegrityError(f"{folder} holds a {record.get('kind')!r}, which is not known here")
    try:
        spec = kind.from_record(record["sizes"], record["parameters"])
        known = architecture(record["architecture"])
        spec.check_architecture(known.name)
        known.check_dtype(spec.torch_dtype)
    except (KeyError, TypeError, ValueError, IceformError) as broken:
        raise IntegrityError(f"{folder / RECORD} does not describe a target: {broken}") from None
    return StockModel(folder, known, spec)


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    sha = sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _put(path: Path, save: Callable[[Path], Any]) -> None:
    """Write beside the target, then rename: a reader never sees half a file."""
    draft = path.with_name(path.name + ".draft")
    try:
        save(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
