"""What becomes of every architecture: right within its certificate, or refused by name.

``python -m tests.networks.scoreboard`` runs all of them and writes the table into
docs/networks.md; names as arguments run those alone and print. ``--jobs N`` runs N at once.
``--keep FILE`` adds a line of JSON for every one that is done and does not run those it has: a run
can be cut short and taken up again, or be carried to the page from another machine.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import iceform as ice
from iceform.networks import in_context
from tests.networks.architectures import ARCHITECTURES, Case, cases

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
KEPT = Path(__file__).parents[2] / "results" / "pages" / "networks-scoreboard.jsonl"
HEADROOM = 4.0
OWN = {torch.float64: 1e-12, torch.float32: 1e-3}  # an original's own rounding, of its output
# Where look-ups and rounding do not bring an answer: what is proven to be nearer counts as right.
FAR = {torch.float64: 2e-7, torch.float32: 6e-3}


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    ``verdict`` is "right", "refused", "wrong", "uncertified" or "raw error".
    """

    name: str
    verdict: str
    dtype: str = ""
    off: float = 0.0
    certified: float = 0.0
    outside: str = ""
    words: str = ""
    seconds: float = 0.0


def judge(case: Case) -> Outcome:
    """Convert it, run it on its calibration input and on another, and compare."""
    begun = time.perf_counter()
    try:
        found = _judged(case)
    except ice.errors.IntegrityError as broken:  # the original is outside the certificate
        found = Outcome(case.name, "wrong", words=str(broken))
    except ice.errors.IceformError as refused:
        words = re.split(r"; write it with|\n", str(refused))[0]
        found = Outcome(case.name, "refused", words=words)
    except Exception as raw:
        traceback.print_exc()
        found = Outcome(case.name, "raw error", words=f"{type(raw).__name__}: {raw}".split("\n")[0])
    return Outcome(**{**vars(found), "seconds": time.perf_counter() - begun})


def _judged(case: Case) -> Outcome:
    torch.manual_seed(0)
    model = case.make().eval().requires_grad_(False)
    given, other = case.draw(), case.draw()
    try:
        net, dtype = _converted(model, given, torch.float64), torch.float64
    except ice.errors.ProgramError as refused:
        if "float32" not in str(refused):
            raise
        net, dtype = _converted(model, given, torch.float32), torch.float32
    off, certified, right = 0.0, 0.0, True
    for one in (given, other):
        try:
            a, b, within = _compared(net, model, one, dtype)
        except ice.errors.BoundError:
            continue  # another range than the calibration's, and said so
        off, certified, right = max(off, a), max(certified, b), right and within
    verdict = "wrong" if not right else "right" if certified < float("inf") else "uncertified"
    outside = ", ".join(sorted(net.outside))
    args, named = ((), given) if isinstance(given, dict) else (given, {})
    args, named = _cast(args, dtype), _cast(named, dtype)
    words = str(net.enclosure(*args, **named).terms) if verdict == "uncertified" else ""
    name = str(dtype).removeprefix("torch.")
    return Outcome(case.name, verdict, name, off, certified, outside, words)


def _converted(model: nn.Module, given: object, dtype: torch.dtype) -> ice.networks.InContext:
    return in_context(model.to(dtype), calibration=[given], headroom=HEADROOM, dtype=dtype)


def _compared(
    net: ice.networks.InContext, model: nn.Module, given: object, dtype: torch.dtype
) -> tuple[float, float, bool]:
    """(error, certified, whether near), with the original itself, run here."""
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    args, kwargs = _cast(args, dtype), _cast(kwargs, dtype)
    with torch.no_grad():
        own = list(_tensors(model(*args, **kwargs)))
    exact, ours = (list(_tensors(f(*args, **kwargs))) for f in (net.reference, net))
    bounds = net.enclosure(*args, **kwargs).bounds
    off, certified, right = 0.0, 0.0, len(own) == len(exact) == len(ours)
    for a, b, c, bound in zip(ours, exact, own, bounds, strict=True):
        away = (a.double() - b).abs()
        room = OWN[dtype] * float(b.abs().max())
        far = bool((bound > FAR[dtype] * b.abs().max().clamp(min=1.0)).any())
        right &= not far and float((b - c).abs().max()) <= room
        off, certified = max(off, float(away.max())), max(certified, float(bound.max()))
    return off, certified, right


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, dict):
        return {k: _cast(v, dtype) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_cast(v, dtype) for v in value)
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


# ------------------------------------------------------------------------------------------ page


def table(outcomes: list[Outcome]) -> str:
    """As the page has it: the right ones by precision, with the worst of them, and the others."""
    parts = []
    for title, ours in (("transformers", True), ("torch", False)):
        some = [o for o in outcomes if (o.name in ARCHITECTURES) == ours]
        counts = ", ".join(
            f"{sum(o.verdict == v for o in some)} {v}"
            for v in ("right", "refused", "wrong", "uncertified", "raw error")
        )
        parts += [f"**{title}**, {len(some)}: {counts}.", ""]
        for dtype in ("float64", "float32"):
            right = [o for o in some if o.verdict == "right" and o.dtype == dtype]
            if right:
                off, certified = max(o.off for o in right), max(o.certified for o in right)
                names = "; ".join(o.name for o in right)
                parts += [
                    f"- {dtype}, off by at most {off:.0e}, certified to {certified:.0e}: {names}."
                ]
        parts += [f"- {o.name} {o.verdict}: {o.words}." for o in some if o.verdict != "right"] + [
            ""
        ]
    return "\n".join(parts).rstrip()


def write(name: str, made: str) -> None:
    """Put a text between its marks in docs/networks.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = PAGE.read_text(encoding="utf-8")
    marked = re.compile(f"{begin}.*{end}", re.DOTALL)
    assert marked.search(text), f"{PAGE.name} has no place for {name}"
    PAGE.write_text(marked.sub(lambda _: f"{begin}\n\n{made}\n\n{end}", text), encoding="utf-8")


def main(names: list[str], jobs: int, keep: Path | None = None) -> int:
    """All, and the page; or those named."""
    chosen = [case.name for case in cases() if not names or case.name in names]
    done = {one.name: one for one in _kept(keep)}
    pool = multiprocessing.get_context("spawn").Pool(jobs) if jobs > 1 else _Here()
    with pool:
        for one in pool.imap_unordered(judged, [name for name in chosen if name not in done]):
            done[one.name] = one
            print(f"{one.name:36}{one.verdict:12}{one.dtype:9}{one.off:9.1e}{one.certified:9.1e}"
                  f"{one.seconds:6.1f}s  {one.outside or one.words[:150]}", flush=True)  # fmt: skip
            if keep is not None:
                with keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(vars(one)) + "\n")
    outcomes = [done[name] for name in chosen]
    if not names:
        lines = (json.dumps(vars(one)) + "\n" for one in outcomes)
        KEPT.write_text("".join(lines), encoding="utf-8")
        write("scoreboard", table(outcomes))
    return int(any(o.verdict not in ("right", "refused") for o in outcomes))


def told() -> str:
    """The table of what was kept."""
    return table(_kept(KEPT))


def _kept(keep: Path | None) -> list[Outcome]:
    lines = keep.read_text(encoding="utf-8").splitlines() if keep and keep.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def judged(name: str) -> Outcome:
    """One case by name, quietly."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return judge(next(case for case in cases() if case.name == name))


class _Here:
    """A pool of this process alone."""

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *failed: object) -> None:
        return None

    imap_unordered = staticmethod(map)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    sys.exit(main(asked.names, asked.jobs, asked.keep))
