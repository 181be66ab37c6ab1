"""Folders as version 2 wrote them: what each was made of, and what is asked of it again.

``python -m tests.corpus`` writes those that are missing and leaves the others alone: a folder that
is written anew shows only that today's files can be read today.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import iceform as ice
from iceform import store, targets
from iceform.lab import GPT2Shape
from iceform.lab.model import load_network, random_network
from iceform.networks import in_context
from iceform.tables import Interpolant, storage

F64 = torch.float64
ROOT = Path(__file__).parent
SIZES = {"dim": 1, "samples": 2, "eps": 1e-3}
X, Y = torch.tensor([[0.5], [-0.25]], dtype=F64), torch.tensor([0.25, 0.125], dtype=F64)
W = torch.tensor([0.375], dtype=F64)
TABLE = "table.safetensors"


@dataclass(frozen=True)
class Kept:
    """How a folder was written, how it is read, its digest and its answer to one question."""

    write: Callable[[Path], Any]
    answer: Callable[[Any], torch.Tensor]
    read: Callable[[Path], Any] = ice.load
    digest: Callable[[Any], str] = lambda thing: thing.digest


def _saved(build: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda path: build().save(path)


def _network() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.LayerNorm(2)).double()
    return in_context(model, calibration=[torch.randn(4, 2, dtype=F64)])


def _result() -> Any:
    program = ice.compile(ice.algorithm(lambda x, y: ice.mean(x * y)), dim=1, samples=2)
    return ice.Computer.for_programs([program]).run(program, X, Y)


def _stock(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out = targets.checking.network(model)(inputs_embeds=model.prompt(X, Y))
    return model.read(out.last_hidden_state)


def _table(path: Path) -> Interpolant:
    kept = store.read_tensors(path / TABLE, "table")
    return storage.table_from(kept.content, kept.tensors)


def _lab() -> Any:
    shape = GPT2Shape(dim=1, positions=8, width=8, layers=1, heads=2, inner=8)
    return random_network(shape)


FOLDERS = {
    "step": Kept(
        _saved(lambda: ice.paper.GradientStep("logistic", 0.4, 0.1, **SIZES)),
        lambda step: step(X, Y, W),
    ),
    "descent": Kept(
        _saved(lambda: ice.paper.GradientDescent("squared", 3, schedule="nesterov", **SIZES)),
        lambda descent: descent(X, Y, W),
    ),
    "ridge": Kept(
        _saved(lambda: ice.paper.RidgeRegression(1.0, dim=1, samples=2, radius=9.0)),
        lambda ridge: ridge(X, Y),
    ),
    "head": Kept(
        _saved(lambda: ice.paper.AttentionHead(1, 1, 1, 2, eps=1e-3)),
        lambda head: head(X, W[None], W[None], W[None]),
    ),
    "hopfield": Kept(
        _saved(lambda: ice.paper.HopfieldMap([torch.sin, torch.cos], [0.5], 0.25, samples=2)),
        lambda hopfield: hopfield(X),
    ),
    "prompt": Kept(
        _saved(lambda: ice.paper.LinearLayer(1, 1, samples=2, eps=1e-3).prompt(X, W[None])),
        lambda prompt: prompt.tokens,
        digest=lambda prompt: " ".join(prompt.roles),
    ),
    "network": Kept(_saved(_network), lambda network: network(torch.eye(2, dtype=F64))),
    "result": Kept(_saved(_result), lambda result: result.value.reshape(-1)),
    "target": Kept(
        lambda path: targets.write("gpt2", targets.LinearDescent(1, 1, positions=8, pairs=2), path),
        _stock,
        targets.load,
        lambda model: targets.folder.digest(model.tensors()),
    ),
    "trainable": Kept(
        _saved(_lab),
        lambda network: network.tensors["wte.weight"],
        load_network,
        lambda network: targets.folder.digest(network.tensors),
    ),
    "table": Kept(
        lambda path: storage._write(path / TABLE, Interpolant.fit(torch.tanh, -1.0, 1.0, eps=1e-3)),
        lambda table: table(X),
        _table,
        lambda table: repr(table.error),
    ),
}


def add_missing(folders: dict[str, Kept], root: Path) -> None:
    """Write the folders that are not there, and what they say, into ``answers.json``."""
    listed = root / "answers.json"
    known = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    for name in sorted(folders.keys() - known.keys()):
        kept = folders[name]
        kept.write(root / name)
        thing = kept.read(root / name)
        answer = kept.answer(thing).double().flatten().tolist()
        known[name] = {"digest": kept.digest(thing), "answer": answer}
    listed.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
