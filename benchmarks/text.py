"""``python -m benchmarks.text COMMAND``: the text machine against its interpreter, and its speed.

``forced``   random programs; the network reads program and run in one pass, and at every position
             that it would have generated the highest score must be the interpreter's word (teacher
             forcing: the first wrong word, if there is one, is found as by ``generate()``).
``greedy``   random programs by plain ``generate()`` in batches.
``library``  the algorithms of the library and the example texts on one saved folder, in a process
             where iceform cannot be imported (:mod:`benchmarks.text_alone`).
``speed``    tokens/s of ``generate()`` beside random weights of the same shape in the same run.

Each keeps a JSON file (``--out``). ``forced`` and ``greedy`` go on where their file ends, batch
after batch, until it holds as many tokens as asked for; a file of other weights is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.text_speed import gpu_speed
from iceform.computer.library import EXAMPLES
from iceform.errors import IceformError
from iceform.targets.checking import kernels
from iceform.targets.text import TEXTS, AlgorithmText, text_of
from iceform.targets.text.campaign import Campaign, DrawnRun, drawn_runs, forced, generated
from iceform.targets.text.interpreter import TextRun
from iceform.targets.text.machine import TextComputer
from iceform.targets.text.words import TextSizes

__all__ = ["campaign", "main"]

PAGES = Path(__file__).parents[1] / "results" / "pages"
LONGEST = 2048  # tokens of an algorithm's text and run, for the library on a CPU
GREEDY = 400  # tokens of a run up to which the library is generated too
DRAWN = 8  # batches that are drawn together and sorted by length, so that rows end together


def versions() -> dict[str, str]:
    """Where a file was made."""
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "python": platform.python_version(), "processor": platform.machine()}  # fmt: skip


def processor(device: torch.device | str) -> str:
    """The name of what computes."""
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


# ------------------------------------------------------------------------------ random programs


def drawn(
    sizes: TextSizes, seed: int, batch: int, length: tuple[int, int], skip: int, workers: int
) -> Iterator[list[DrawnRun]]:
    """Batches of random programs without end, after so many; each depends on seed and number.

    ``workers`` processes draw and interpret ahead; what they draw does not depend on their number.
    """
    blocks = count(skip // DRAWN)
    draw = partial(_block, sizes, seed, batch * DRAWN, length)
    for block, runs in enumerate(_ahead(draw, blocks, workers), skip // DRAWN):
        for number in range(DRAWN):
            if block * DRAWN + number >= skip:
                yield runs[number * batch : (number + 1) * batch]


def _block(
    sizes: TextSizes, seed: int, programs: int, length: tuple[int, int], block: int
) -> list[DrawnRun]:
    return drawn_runs(sizes, f"{seed} {block}", programs, length)


def _ahead(
    draw: Callable[[int], list[DrawnRun]], blocks: Iterator[int], workers: int
) -> Iterator[list[DrawnRun]]:
    """What is drawn for each number, in order."""
    if not workers:
        yield from map(draw, blocks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = deque(pool.submit(draw, next(blocks)) for _ in range(workers + 2))
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(pool.submit(draw, next(blocks)))
        finally:
            pool.shutdown(cancel_futures=True)


Compare = Callable[[PreTrainedModel, list[DrawnRun], Campaign], None]


def campaign(computer: TextComputer, compare: Compare, asked: Namespace, out: Path) -> Campaign:
    """Random programs until the file holds so many tokens; written after every batch."""
    length, batch, seed = (asked.shortest, asked.longest), asked.batch, asked.seed
    head = {"machine": repr(computer), "weights_sha256": computer.digest, "batch": batch,
            "shortest": length[0], "longest": length[1], "seed": seed}  # fmt: skip
    found, done, seconds = Campaign(), 0, 0.0
    if out.exists():
        kept = json.loads(out.read_text())
        if {k: kept.get(k, 0) for k in head} != head:
            raise SystemExit(f"{out} is of other weights, batches or seed; move it away")
        found, done, seconds = Campaign(**kept["found"]), kept["batches"], kept["seconds"]
    print(head, flush=True)
    network: Any = computer.model().to(asked.device)  # type: ignore[arg-type]
    batches = drawn(computer.sizes, seed, batch, length, done, asked.workers)
    started = time.perf_counter()
    while found.tokens < asked.tokens and time.perf_counter() - started < asked.seconds:
        began = time.perf_counter()
        compare(network, next(batches), found)
        done, seconds = done + 1, seconds + time.perf_counter() - began
        content = {**head, **versions(), "device": processor(network.device), "batches": done,
                   "seconds": round(seconds, 2), "found": asdict(found)}  # fmt: skip
        out.write_text(json.dumps(content, indent=1))
        print(found.explain(), flush=True)
    return found


# ---------------------------------------------------------------------------------- the library


def algorithm_text(name: str) -> tuple[AlgorithmText, dict[str, Any]]:
    """An example of the library as a text, with as many steps and samples as ``LONGEST`` allows."""
    e = EXAMPLES[name]
    settings, samples = dict(e.settings), len(e.X)
    if "steps" in e.algorithm.parameters:
        settings.setdefault("steps", int(e.algorithm.parameters["steps"].default))
    while True:
        smallest = settings.get("steps", 1) == 1
        try:
            found = text_of(e.algorithm, e.X[:samples], e.y[:samples], **settings)
            if found.tokens <= LONGEST or (smallest and samples == 1):
                plain = {k: v for k, v in settings.items() if isinstance(v, int)}
                return found, {**plain, "samples": samples}
        except IceformError:
            if smallest and samples == 1:
                raise
        if smallest:
            samples = max(1, samples // 2)
        else:
            settings["steps"] = max(1, settings["steps"] * 7 // 8)


def library_texts() -> Iterator[tuple[str, str, TextRun, dict[str, Any]]]:
    """Name, text, run and settings of everything that is run on the library's machine."""
    computer = TextComputer.library()
    for name, text in TEXTS.items():
        yield name, text, computer.check(text), {}
    for name in EXAMPLES:
        found, settings = algorithm_text(name)
        yield name, str(found), found.run, settings


def library(out: Path) -> bool:
    """Everything on one saved folder, in a process without iceform."""
    computer = TextComputer.library()
    rows = sorted(library_texts(), key=lambda row: row[2].tokens)
    with tempfile.TemporaryDirectory() as place:
        folder, asked, found = (Path(place) / n for n in ("machine", "asked.json", "found.json"))
        computer.save(folder)
        texts = [
            {"name": name, "text": text, "run": list(run.words), "greedy": len(run.words) <= GREEDY}
            for name, text, run, _ in rows
        ]
        asked.write_text(json.dumps(texts))
        script = str(Path(__file__).with_name("text_alone.py"))
        elsewhere = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [sys.executable, "-P", script, str(folder), str(asked), str(found)]
        subprocess.run(command, check=True, env=elsewhere, cwd=place)
        content = json.loads(found.read_text())
    for row, (_, _, _, settings) in zip(content["rows"], rows, strict=True):
        row["settings"] = settings
    content = {"machine": repr(computer), "weights_sha256": computer.digest, **content}
    out.write_text(json.dumps(content, indent=1))
    return all(not row["wrong"] and row.get("greedy_equal", True) for row in content["rows"])


# ---------------------------------------------------------------------------------------- speed


def speed(computer: TextComputer, count: int, device: str, out: Path) -> None:
    """Tokens/s of generate() by batch and cache, and of random weights of the same shape."""
    network: Any = computer.model().to(device)  # type: ignore[arg-type]
    config = AutoConfig.for_model(**{**computer.config(), "eos_token_id": None})
    make: Any = AutoModelForCausalLM.from_config
    plain = make(config).to(device, computer.dtype).eval()
    loop = "1: n = n + 1\n2: s = s * 0.5 goto 1\nn = 0 s = 1"
    asked = computer.tokenizer(loop, return_tensors="pt").input_ids.to(device)
    rows = []
    for batch in (1, 8, 32):
        for cache in ("dynamic", "static"):
            prompt = asked.expand(batch, -1)
            both = [_generate(net, prompt, count, cache) for net in (network, plain)]
            rows.append({"batch": batch, "cache": cache, "tokens_s": batch * count / both[0],
                         "random_weights_tokens_s": batch * count / both[1],
                         "ratio": both[1] / both[0]})  # fmt: skip
            print(rows[-1], flush=True)
    content = {"machine": repr(computer), "weights_sha256": computer.digest, **versions(),
               "device": device, "clock": "CPU time" if device == "cpu" else "wall",
               "tokens": count, "rows": rows}  # fmt: skip
    out.write_text(json.dumps(content, indent=1))


def _generate(network: Any, asked: torch.Tensor, count: int, cache: str) -> float:
    """Seconds, the least of three; on a CPU of its time, which other work does not lengthen."""
    clock = time.process_time if network.device.type == "cpu" else time.perf_counter
    times = []
    for _ in range(3):
        start = clock()
        with kernels(network.device), torch.no_grad():
            network.generate(
                asked, attention_mask=torch.ones_like(asked), do_sample=False,
                min_new_tokens=count, max_length=asked.shape[1] + count,
                cache_implementation=cache, disable_compile=True,
            )  # fmt: skip
        times.append(clock() - start)
    return min(times)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=("forced", "greedy", "library", "speed"))
    parser.add_argument("--out", type=Path, help="default results/pages/text-COMMAND.json")
    parser.add_argument("--tokens", type=int, default=100_000, help="of forced and greedy")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--shortest", type=int, default=0, help="tokens of a program and run")
    parser.add_argument("--longest", type=int, default=4096, help="the same, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no batch begins later")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw programs ahead")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--float64", action="store_true", help="the library's machine")
    parser.add_argument("--architecture", choices=("gpt2", "llama"), default="gpt2")
    asked = parser.parse_args()
    kind = "" if asked.architecture == "gpt2" else f"{asked.architecture}-"
    out = asked.out or PAGES / f"text-{kind}{asked.command}.json"
    if asked.command == "library":
        raise SystemExit(not library(out))
    computer = TextComputer.library() if asked.float64 else TextComputer()
    if asked.architecture != "gpt2":
        computer = TextComputer(architecture=asked.architecture)
    if asked.command == "speed" and asked.device.startswith("cuda"):
        head = {"machine": repr(computer), "weights_sha256": computer.digest, **versions()}
        raise SystemExit(bool(gpu_speed(computer, head, asked.device, asked.seconds, out)))
    if asked.command == "speed":
        speed(computer, 48, asked.device, out)
        return
    compare = forced if asked.command == "forced" else generated
    found = campaign(computer, compare, asked, out)
    for prompt in found.failed[:3]:
        print(" ".join(computer.sizes.words[token].text for token in prompt))
    raise SystemExit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
