"""Faults, in a process of their own: writers killed at every point, two at once, a full disk.

A child is forked, saves one thing over another, and kills itself before, in or after a call to the
system; the folder must then hold the old thing or the new one, whole, and it is known which.
``python -m tests.store_faults FOLDER kills MOST`` prints counts as JSON.
"""

import errno
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import iceform as ice
from iceform import store, targets
from iceform.export import from_pretrained
from studies.checkpoints import read_record, read_state, write_record, write_state
from tests.mortal import Mortal

F64 = torch.float64


@dataclass(frozen=True)
class Kind:
    """Two things to save at a place, and how to read which of them is there."""

    things: tuple[Any, Any]
    keep: Callable[[Any, Path], Any]  # nnsight gives every object a .save
    read: Callable[[Path], Any]  # of what was read, what tells the two apart
    marks: tuple[Any, Any]


def model() -> Kind:
    first, second = (
        ice.paper.GradientStep("squared", rate, dim=2, samples=3) for rate in (0.1, 0.2)
    )
    return Kind(
        (first, second),
        lambda thing, path: thing.save(path),
        lambda path: from_pretrained(path).certificate.error,
        (first.certificate.error, second.certificate.error),
    )


def target() -> Kind:
    few, many = (targets.LinearDescent(1, steps, positions=8, pairs=2) for steps in (1, 2))
    return Kind(
        (few, many),
        lambda spec, path: targets.write("gpt2", spec, path),
        _config_of_its_weights,
        (1, 2),
    )


def _config_of_its_weights(path: Path) -> int:
    """The steps that the weights are for; a config beside them is of the same save."""
    found = targets.load(path)
    if (path / "config.json").exists():
        config = store.read_json(path / "config.json", "config.json")
        assert config == json.loads(json.dumps(found.config())), "a config of another save"
    return int(found.spec.sizes()["steps"])


def checkpoint() -> Kind:
    def read(path: Path) -> int:
        tensors, notes = read_state(path / "state.safetensors", "i")
        assert bool((tensors["w"] == notes["step"]).all())
        return int(notes["step"])

    return Kind(
        (1, 2),
        lambda step, path: write_state(
            path / "state.safetensors", {"w": torch.full((2000,), step)},
            {"identity": "i", "step": step},
        ),
        read,
        (1, 2),
    )  # fmt: skip


def record() -> Kind:
    base = dict.fromkeys(("study", "column", "scale", "spec"), "x")

    def content(seed: int) -> dict[str, Any]:
        return {**base, "seed": seed, "metrics": {"mse": [seed] * 500}}

    return Kind(
        (1, 2),
        lambda seed, path: write_record(path / "cell.json", content(seed)),
        lambda path: read_record(path / "cell.json")["seed"],
        (1, 2),
    )


def report() -> Kind:
    """No digest, since people read it: one page or the other, from its first byte to its last."""

    def read(path: Path) -> bytes:
        page = (path / "page.html").read_bytes()
        assert len(set(page)) == 1, "half a page"
        return page[:1]

    return Kind(
        (b"1", b"2"),
        lambda mark, path: store.write({path / "page.html": mark * 50_000}),
        read,
        (b"1", b"2"),
    )


# A library computes as it is read, and a process that has computed is not one to fork.
KINDS = {k.__name__: k for k in (model, target, checkpoint, record, report)}


def drafts(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*.draft")] if folder.exists() else []


def _points(kind: Kind, folder: Path) -> list[str]:
    """Where a save of the second thing over the first can be killed, in order."""
    kind.keep(kind.things[0], folder)
    counted = Mortal()
    store.os = counted  # type: ignore[assignment]
    try:
        kind.keep(kind.things[1], folder)
    finally:
        store.os = os
    return counted.points


def _killed(kind: Kind, folder: Path, point: int) -> None:
    """A child that dies at this point of saving the second thing."""
    child = os.fork()
    if child == 0:
        try:
            store.os = Mortal(point)  # type: ignore[assignment]
            kind.keep(kind.things[1], folder)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"point {point} was not reached: {status}"


def _chosen(points: list[str], most: int) -> list[int]:
    """So many of the points, evenly, and those around the commit, whatever is chosen."""
    commit = points.index("before replace")
    evenly = [round(k * (len(points) - 1) / max(1, most - 1)) for k in range(most)]
    return sorted({commit, commit + 1, *evenly} if most < len(points) else range(len(points)))


def kills(most: int, root: Path) -> dict[str, Any]:
    """Writers killed at named points, at most so many a kind, what is there then, and leftovers.

    Before the first rename, the commit, it is the old thing; from then on the new one.
    """
    found = Counter()
    for name, make in KINDS.items():
        kind, folder = make(), root / name
        points = _points(kind, folder)
        commit = points.index("before replace")
        for point in _chosen(points, most):
            kind.keep(kind.things[0], folder)
            assert not drafts(folder), (name, drafts(folder))  # swept by this writer
            _killed(kind, folder, point)
            found["drafts left by the killed"] += len(drafts(folder))
            place = kind.marks.index(kind.read(folder))
            assert place == (point > commit), (name, points[point], point, commit, place)
            found[points[point]] += 1
            found["killed"] += 1
            found[("old", "new")[place]] += 1
        kind.keep(kind.things[1], folder)  # the next writer sweeps what the killed ones left
        assert kind.read(folder) == kind.marks[1], name
        assert not drafts(folder), (name, drafts(folder))
    return dict(found)


def _saving(kind: Kind, folder: Path, place: int) -> int:
    """A child that saves the thing at this place again and again until it is killed, once begun."""
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(begun, b".")
            while True:
                kind.keep(kind.things[place], folder)
        finally:
            os._exit(1)
    os.read(ready, 1)
    os.close(ready), os.close(begun)
    return child


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself: {status}"


def writers(seconds: int, root: Path) -> dict[str, Any]:
    """Two writers on one folder, a reader beside them."""
    found = Counter()
    for name in ("model", "checkpoint", "record"):
        kind, folder = KINDS[name](), root / name
        kind.keep(kind.things[0], folder)
        children = [_saving(kind, folder, place) for place in (0, 1)]
        until = time.monotonic() + seconds
        while time.monotonic() < until or len([k for k in found if k.startswith(name)]) < 2:
            found[f"{name}: {kind.marks.index(kind.read(folder)) + 1}"] += 1
        for child in children:
            _end(child)
    return dict(found)


def full(count: int, root: Path) -> dict[str, Any]:
    """A disk that other files have filled, with less and less room for a draft."""
    found = Counter()
    for name, make in KINDS.items():
        kind, folder = make(), root / name
        kind.keep(kind.things[0], folder)
        filler = root / "filler"
        _fill(filler)
        for _ in range(count):
            with filler.open("r+b") as file:
                file.truncate(max(0, filler.stat().st_size - 4096))
            try:
                kind.keep(kind.things[1], folder)
            except (OSError, ice.errors.IntegrityError) as refused:
                found["refused" if "No space left" in str(refused) else repr(refused)] += 1
                assert kind.read(folder) == kind.marks[0], name
            else:
                found["saved"] += 1
                assert kind.read(folder) == kind.marks[1], name
                kind.keep(kind.things[0], folder)
            assert not drafts(root), drafts(root)
        filler.unlink()
    assert found.keys() == {"refused", "saved"}, found
    return dict(found)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as refused:
            if refused.errno != errno.ENOSPC:
                raise


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    for place, (what, number) in enumerate(zip(asked[::2], asked[1::2], strict=True)):
        run = {"kills": kills, "writers": writers, "full": full}[what]
        print(json.dumps(run(int(number), Path(folder) / str(place))))
