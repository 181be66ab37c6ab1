"""The cases of the benchmark, and which program a case runs as a question of its own."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from iceform.bench.building import NOISE, CaseSpec
from iceform.bench.case import Case, read_case
from iceform.bench.programs import program, programs
from iceform.bench.scoring import Scores
from iceform.errors import ProgramError
from iceform.validation import path_of

_QUIET = NOISE / 10  # noise where heads cancel: more would drown the answer
_TURNED = (
    "maximum",
    "kernel",
    "shortest-way",
    "thresholded-mean",
    "variation",
    "perceptron",
)
_COPIED = ("spread", "two-hops", "vote", "registers")
_FORWARD = ("thresholded-mean", "clipped-mean", "variation", "vote")
_SUPERPOSED = ("where-largest", "nearest", "kernel", "induction", "two-means", "either")


def _specs() -> list[CaseSpec]:
    found: list[CaseSpec] = []
    for name in programs():
        held = program(name)
        quiet = _QUIET if "cancellation" in held.traits else NOISE
        few = 3 if held.softens else int(held.scores is None)  # decoys
        kinds = [CaseSpec(name, decoys=few)]
        if held.softens:
            kinds += [CaseSpec(name, soft=True),
                      CaseSpec(name, soft=True, annealed=True, noise=quiet)]  # fmt: skip
        kinds += [CaseSpec(name, kind, decoys=few) for kind in held.counterfactuals
                  if kind != "data"]  # fmt: skip
        kinds += [CaseSpec(name, basis=7)] if name in _TURNED else []
        kinds += [CaseSpec(name, copies=2, decoys=2)] if name in _COPIED else []
        kinds += [CaseSpec(name, forward=True)] if name in _FORWARD else []
        kinds += (
            [CaseSpec(name, soft=True, annealed=True, superposed=True)]
            if name in _SUPERPOSED
            else []
        )
        found += kinds[:6]  # at most, of one program
    return found


def cases() -> list[str]:
    """The names of all cases: program, counterfactual and variant.

    Examples
    --------
    >>> from iceform import bench
    >>> bench.cases()[0]
    'maximum.data.hard'
    """
    return [spec.id for spec in _specs()]


def spec_of(name: str) -> CaseSpec:
    """What a case follows from."""
    for spec in _specs():
        if spec.id == name:
            return spec
    near = [c for c in cases() if c.split(".")[0] == name.split(".")[0]]
    near = near or get_close_matches(name, cases(), n=3) or cases()[:3]
    raise ProgramError(
        f"no case is called {name!r}, and no folder; there are {', '.join(near)} (bench.cases() "
        "has all)"
    )


def load(name: str | Path) -> Case:
    """A case by its name, made on the spot, or from the folder that holds it, checked.

    Parameters
    ----------
    name
        One of :func:`cases`, or a folder that :meth:`Case.save` wrote.

    Raises
    ------
    IntegrityError
        If a folder is not what its case implies.
    ProgramError
        If there is no such case.

    Examples
    --------
    >>> load("vote.data.hard").spec.program
    'vote'
    """
    if path_of(name).is_dir():
        return read_case(name)
    return Case.of(spec_of(str(name)))


def score(case: Case, submission: Any, *, split: str = "test", track: str = "circuit") -> Scores:
    """What a submission is worth on a case.

    Parameters
    ----------
    case
        That :func:`load` gave.
    submission
        On the tracks "circuit" and "effect" scores of edges: a tensor in the order of
        ``case.edges``, (edges,) or (pairs, edges), a mapping from names, or a circuit file of MIB.
        On the track "algorithm" ``{"program": ..., "steps": ...}``. Subspaces have a function of
        their own, :func:`iceform.bench.score_subspace`.
    split
        "test" or "validation".
    track
        "circuit", "effect" or "algorithm".

    Examples
    --------
    >>> from iceform import bench
    >>> case = bench.load("vote.data.hard")
    >>> scores = bench.METHODS["exact patching"](case.compiled, case.pairs("test"))
    >>> bench.score(case, scores).values["AUROC effective"]
    1.0
    """
    if not isinstance(case, Case):
        raise ProgramError(f"score takes a case, as bench.load(name) gives it; got {case!r}")
    if track == "algorithm":
        return _algorithm(case, submission)
    return case.score(submission, split, track)


def _algorithm(case: Case, submission: Any) -> Scores:
    if not isinstance(submission, Mapping) or set(submission) != {"program", "steps"}:
        raise ProgramError(
            f"name the program and its steps: {{'program': ..., 'steps': ...}}, got {submission!r}"
        )
    if submission["program"] not in programs():
        raise ProgramError(f"no program is called {submission['program']!r}; see bench.programs()")
    if case.compiled.centres is None:
        raise ProgramError(f"{case.id}: the program is in the prompt, one network runs them all")
    right = submission["program"] == case.spec.program
    steps = submission["steps"] == case.compiled.program.steps
    return Scores(
        case.id, "test", "algorithm", {"program": float(right), "steps": float(right and steps)}
    )


def nearest_reference(case: Case) -> dict[str, Any]:
    """The program whose exact answers are nearest to the network's, of those its tokens fit.

    It is a submission to the track "algorithm".

    Examples
    --------
    >>> case = load("vote.data.hard")
    >>> answer = nearest_reference(case)
    >>> answer["program"], score(case, answer, track="algorithm").values["program"]
    ('vote', 1.0)
    """
    pairs = case.pairs("train")
    ids = torch.cat([pairs.clean, pairs.corrupt])
    net, held = case.compiled.network, case.compiled.program
    answers = case.compiled.read(net.plain(net.start(ids)))
    found: dict[str, float] = {}
    for name in programs():
        other = program(name)
        if len(other.slots) != len(held.slots) or other.scores is not None:
            continue
        try:
            exact = torch.stack([
                other.reference(held.blocks(one)) for one in ids
            ])  # fmt: skip
        except (KeyError, IndexError, RuntimeError, ValueError):
            continue  # written for other tokens
        found[name] = float((exact.double() - answers).abs().mean())
    best = min(found, key=lambda name: found[name])
    return {"program": best, "steps": program(best).steps}
