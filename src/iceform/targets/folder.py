"""A stock checkpoint on disk: what transformers reads, and what iceform says about it.

``config.json`` and ``model.safetensors`` are all that ``AutoModel.from_pretrained(path)`` needs,
with no code of ours. The weights' metadata hold the sizes that they follow from, the prompt's
layout, the certificate and the ground truth; ``iceform.json`` shows the same, ``README.md`` is the
card (:mod:`iceform.store`). Since transformers reads the config beside the weights, it is not there
while the two could be of two saves: a save that is killed then leaves a folder that transformers
refuses, and :func:`load` reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iceform import store
from iceform.certificates import Certificate
from iceform.codec import decode, encode
from iceform.errors import IceformError, IntegrityError, ProgramError, ShapeError, TargetError
from iceform.targets.ablation import example
from iceform.targets.architectures import Architecture, architecture
from iceform.targets.target import KINDS, Target
from iceform.validation import dtype_name, path_of, plain_tensor

_KIND = "target"
RECORD = "iceform.json"
CONFIG = "config.json"
CARD = "README.md"
VIEWS = (CONFIG, RECORD, CARD)
# Kinds that earlier versions wrote.
_GONE = {
    "written_descent": "is written and read no more: ice.TextComputer() is a GPT-2 that writes the "
    "run of any program, descent among them, by generate()"
}

_CARD = """\
---
library_name: transformers
license: apache-2.0
tags:
- iceform
- in-context
- {name}
---

# A stock {name} that runs {title}

No training and no remote code: the weights follow from the sizes in `iceform.json`.

```python
import iceform as ice
import torch
from transformers import {classes}

{usage}
```

The prompt, token by token:

{layout}

Per layer: {heads} heads of {size}, {layers} layers, a stream of {hidden}. Which head does what is
in `iceform.json` under `ground_truth`.

## Certificate

{certificate}

Weights, SHA-256: `{digest}`
"""

_PER_RUN = (
    "Before the fact `program.certify` says how far an answer can be from the exact program's;\n"
    "`ice.check` encloses the distance of this run's in ball arithmetic, and holds it to that."
)


@dataclass(frozen=True)
class TargetRecord:
    """What ``iceform.json`` says of a folder.

    Attributes
    ----------
    kind, architecture
        The target's and the stock model's names.
    sizes, parameters
        What the weights follow from, and the defaults of what is in the prompt: all that is read.
    prompt
        Its tokens and features, in words.
    certificate
        For typical data; None where runs are proven one by one.
    ground_truth, edges
        What every head is for; through which features one reaches another.
    ablation
        What taking heads of the last layer out does on data that stand beside it.
    basis
        The map that mixes the features; None where each has a place of its own.
    weights_sha256
        Of the weights.
    """

    kind: str
    architecture: str
    sizes: dict[str, Any]
    parameters: dict[str, Any]
    prompt: dict[str, Any]
    certificate: dict[str, Any] | None
    ground_truth: list[list[dict[str, Any]]]
    edges: dict[str, dict[str, Any]]
    ablation: dict[str, Any] | None
    basis: dict[str, Any] | None
    weights_sha256: str


@dataclass(frozen=True)
class StockModel:
    """A folder that transformers loads, with its prompt, its readout and what its heads are for.

    Attributes
    ----------
    path
        The folder.
    architecture
        Which stock model it holds.
    spec
        The algorithm, with everything that the weights depend on.

    Examples
    --------
    >>> model = write("gpt2", LinearDescent(dim=1, steps=2), "descent")
    >>> model
    StockModel('descent': gpt2, 2 layers, hidden ...)
    >>> model.find("momentum")  # (layer, head) of the heads with such a role
    [(0, 17), (0, 18), (1, 17), (1, 18)]
    >>> model.ground_truth[1][17]
    {'role': 'momentum, kept', 'reads': ['v'], 'writes': ['w'], ...}
    """

    path: Path
    architecture: Architecture
    spec: Target

    def __repr__(self) -> str:
        d = self.spec.design
        return (
            f"StockModel({str(self.path)!r}: {self.architecture.name}, {len(d.unrolled)} layers, "
            f"hidden {d.hidden})"
        )

    def prompt(self, x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
        """``inputs_embeds`` for these data in the folder's dtype, or token ids."""
        plain_tensor("X", x), plain_tensor("y", y)
        return self.spec.prompt(x, y, **parameters)

    def read(self, out: Tensor, **parameters: Any) -> Any:
        """The answer in ``last_hidden_state`` (or in generated ids), in float64.

        A folder that runs programs is given the ``program``, and answers in the form of its
        algorithm.
        """
        plain_tensor("hidden", out)
        width = self.spec.design.hidden
        said, axes = f"last_hidden_state is (1, tokens, {width})", out.shape[2:] == (width,)
        if self.spec.vocabulary() is not None:
            said, axes = "generated ids are whole numbers (1, tokens)", out.dtype == torch.long
            axes = axes and out.ndim == 2
        if not axes or out.shape[0] != 1 or not out.shape[1]:
            raise ShapeError(f"{said} here, got {tuple(out.shape)} in {dtype_name(out.dtype)}")
        return self.spec.read(out, **parameters)

    @property
    def ground_truth(self) -> list[list[dict[str, Any]]]:
        """What every head is for, by layers, as ``iceform.json`` has it under ``ground_truth``.

        A head's dictionary has its ``role``, the features that it ``reads`` at the tokens it looks
        at and ``writes`` at its own, and those that its ``queries`` and ``keys`` are made of. A
        head that does nothing has the role "idle" alone.
        """
        return self.spec.design.ground_truth()

    def find(self, role: str) -> list[tuple[int, int]]:
        """The (layer, head) of every head whose role begins with this text."""
        return self.spec.design.find(role)

    def certificate(
        self, x: Tensor, y: Tensor, attention: str = "any", **parameters: Any
    ) -> Certificate:
        """What is proven for these data."""
        x, y = plain_tensor("X", x), plain_tensor("y", y)
        settings = {k: v for k, v in parameters.items() if k in self.spec.defaults}
        return self.spec.certificate(self.spec.domain(x, y, **parameters), attention, **settings)

    def files(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the weights that the sizes imply, in the folder's dtype."""
        spec, known = self.spec, self.architecture
        words, design = spec.vocabulary(), spec.design
        if words is not None:
            config, found = known.with_ids(design, words)
        else:
            sizes = design, spec.positions
            config, found = known.config(*sizes), known.tensors(*sizes)
        tensors = {name: t.to(spec.torch_dtype).contiguous() for name, t in found.items()}
        return {**config, "dtype": spec.dtype}, tensors

    def tensors(self) -> dict[str, Tensor]:
        """The weights that the sizes imply, in the folder's dtype."""
        return self.files()[1]

    def config(self) -> dict[str, Any]:
        """config.json."""
        return self.files()[0]


def write(name: str, spec: Target, path: str | Path) -> StockModel:
    """Write ``spec`` as the stock architecture ``name`` into the folder ``path``.

    Parameters
    ----------
    name
        "gpt2", "llama", "bert" or "albert".
    spec
        A target; a compiled program is written by :meth:`iceform.Program.to`.
    path
        The folder.

    Raises
    ------
    TargetError
        If the architecture cannot do it; the message says why and which one can. If ``path`` is no
        folder that can be written, or holds a model of somebody else's.

    Examples
    --------
    >>> model = write("gpt2", LinearDescent(dim=1, steps=2), "descent")
    >>> sorted(path.name for path in model.path.iterdir())
    ['README.md', 'config.json', 'iceform.json', 'model.safetensors']
    """
    check_path(path_of(path))
    if not isinstance(spec, Target):
        raise ProgramError(
            f"not a target: {spec!r}; see iceform.targets, and program.to for compiled programs"
        )
    known = architecture(name)
    spec.check_architecture(name)
    known.check_dtype(spec.torch_dtype)
    known.check_fits(spec.design)
    model = StockModel(path_of(path), known, spec)
    config, tensors = model.files()
    typical = spec.example_domain()
    certificate = None if typical is None else spec.certificate(typical)
    sha = digest(tensors)
    record = TargetRecord(
        spec.kind,
        name,
        spec.sizes(),
        spec.parameters(),
        prompt={"tokens": spec.layout(), "features": spec.design.features.names(),
                "mirrored": "feature f is at f and, negated, at hidden/2 + f"},
        certificate=None if certificate is None else json.loads(certificate.to_json()),
        ground_truth=spec.design.ground_truth(),
        edges=spec.design.edges(),
        ablation=example(spec),
        basis=None if spec.design.rotation is None else spec.design.rotation.describe(),
        weights_sha256=sha,
    )  # fmt: skip
    views = {CONFIG: config, CARD: _card(spec, name, certificate, sha)}
    write_checkpoint(model.path, _KIND, encode(record), tensors, views, known.tokenizer)
    return model


def write_checkpoint(
    folder: Path,
    kind: str,
    record: dict[str, Any],
    tensors: Mapping[str, Tensor],
    views: dict[str, Any],
    plain: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write weights with a record in them, and beside them what transformers and people read."""
    beside = {**views, RECORD: record}
    store.write_folder(folder, kind, record, tensors, lambda _: beside, [CONFIG], plain or {})
    return folder


def check_path(folder: Path) -> None:
    """Refuse, before anything is made, what could not be written or would be lost."""
    above = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "is no folder" if not above.is_dir() else "may not be written"
        raise TargetError(f"{folder} cannot be made: {above} {why}; give another path")
    if (folder / CONFIG).exists() and not (folder / RECORD).exists():
        raise TargetError(
            f"{folder} holds a {CONFIG} that iceform did not write, and it would be lost; give an "
            "empty folder"
        )


def load(path: str | Path) -> StockModel:
    """Read a folder that :func:`write` wrote: its prompt, readout, certificate and ground truth.

    Raises
    ------
    IntegrityError
        If a file is missing, altered, or describes no target.

    Examples
    --------
    >>> _ = write("gpt2", LinearDescent(dim=1, steps=2), "descent")
    >>> load("descent").spec.steps
    2
    """
    folder = path_of(path)
    content = store.read_folder(folder, VIEWS, _KIND).content
    try:
        record = decode(TargetRecord, content)
        if record.kind not in KINDS:
            why = _GONE.get(record.kind, "is not known here")
            raise IntegrityError(f"a {record.kind!r} {why}")
        spec = decode(KINDS[record.kind], {**record.sizes, **record.parameters})
        known = architecture(record.architecture)
        spec.check_architecture(known.name)
        known.check_dtype(spec.torch_dtype)
    except (TypeError, ValueError, IceformError) as broken:
        raise IntegrityError(f"{folder} does not describe a target: {broken}") from None
    return StockModel(folder, known, spec)


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    sha = sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def _card(spec: Target, name: str, certificate: Certificate | None, digest: str) -> str:
    """Markdown with the front matter that the Hub reads."""
    return _CARD.format(
        classes="AutoModel" if spec.vocabulary() is None else "AutoModelForCausalLM",
        usage=spec.usage(),
        name=name,
        title=spec.title,
        layout="\n".join(f"{i}. {line}" for i, line in enumerate(spec.layout(), 1)),
        heads=spec.design.heads,
        size=spec.design.head_size,
        layers=len(spec.design.unrolled),
        hidden=spec.design.hidden,
        certificate=_PER_RUN if certificate is None else f"```\n{certificate.explain()}\n```",
        digest=digest,
    )
