"""Tokens/s of the text machine on a GPU, each run compared with the interpreter's.

``python -m benchmarks.text speed --device cuda`` runs one program on as many inputs as a batch has
rows. All runs have one length, so that every token counted is one that its row needs. Ways:

``dynamic``   plain ``generate()``.
``kernels``   the same, with attention by whatever kernel torch takes by itself.
``static``    ``generate(cache_implementation="static")``, not compiled.
``compiled``  the same as ``transformers`` runs it by default on a GPU: its step is compiled and
              captured as a CUDA graph.
``graph``     :func:`replayed`: the step captured by ``torch.cuda.graph``, and nothing between two.
``eager``     the same with ``attn_implementation="eager"``.

What is set up once for a shape (compiling, capturing) is not in the time; reading the prompt is.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from iceform.targets.checking import kernels
from iceform.targets.text.campaign import DrawnRun, decoded, drawn_run
from iceform.targets.text.machine import TextComputer

PROGRAM = """\
1: t = recip(r)
2: t = a * t
3: r = r + t
4: r = r * 0.5
5: n = n - 1 if > 0 goto 1
6: s = r goto end
a = {a} r = {r} n = {turns}
"""
ALONE, TOGETHER = 20, 12  # turns of its loop
# Way, rows at once; the first ones first, if time is short.
GPU = (
    ("dynamic", 1), ("graph", 1), ("eager", 4096), ("graph", 4096), ("eager", 8192),
    ("eager", 1), ("compiled", 1), ("eager", 2048), ("dynamic", 512), ("kernels", 512),
    ("static", 1), ("dynamic", 4096), ("eager", 512), ("compiled", 2048), ("eager", 12288),
)  # fmt: skip
CPU = (("dynamic", 1), ("static", 1), ("graph", 1), ("eager", 1), ("eager", 8), ("dynamic", 8))


def inputs(computer: TextComputer, rows: int) -> list[DrawnRun]:
    """The program on so many inputs, drawn at random."""
    form, draw = computer.sizes.format, random.Random(rows)
    levels = [units for units in form.levels if 1 << form.fraction < 8 * units]
    made = []
    for _ in range(rows):
        a, r = (form.word(draw.choice(levels)) for _ in range(2))
        text = PROGRAM.format(a=a, r=r, turns=ALONE if rows == 1 else TOGETHER)
        made.append(drawn_run(computer.check(text)))
    return made


def generating(network: Any, runs: list[DrawnRun], way: str) -> Callable[[], list[list[int]]]:
    """Decoding by ``generate()``."""
    settings: dict[str, Any] = {"max_length": len(runs[0].tokens)}
    if way in ("static", "compiled"):
        settings |= {"cache_implementation": "static", "disable_compile": way == "static"}

    def decode() -> list[list[int]]:
        with nullcontext() if way == "kernels" else kernels(network.device):
            return decoded(network, runs, **settings)

    return decode


def replayed(network: Any, runs: list[DrawnRun]) -> Callable[[], list[list[int]]]:
    """Greedy decoding of prompts of one length; on a GPU a captured step, replayed.

    Nothing but public parts of torch and transformers: ``StaticCache``, the model's ``forward``
    with a mask of four dimensions, and ``torch.cuda.graph``. The host waits once, at the end.
    """
    device, count = network.device, runs[0].count
    asked = torch.tensor([run.prompt for run in runs], device=device)
    rows, width = asked.shape
    cache = StaticCache(config=network.config, max_cache_len=width + count)
    token, written = asked[:, :1].clone(), torch.zeros(rows, count, dtype=torch.long, device=device)
    position, at = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(2))
    mask = torch.zeros(1, 1, 1, width + count, device=device, dtype=network.dtype)
    seen = torch.zeros(1, 1, 1, 1, device=device, dtype=network.dtype)

    def keep(logits: Tensor) -> None:
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        written.index_copy_(1, at, token)
        at.add_(1)

    def prefill() -> None:
        cache.reset()
        at.zero_()
        position.fill_(width)
        mask.zero_()[..., width:] = -torch.inf
        keep(network(asked, past_key_values=cache, use_cache=True, logits_to_keep=1).logits)

    def step() -> None:
        mask.index_copy_(3, position, seen)
        keep(
            network(
                token, past_key_values=cache, use_cache=True, attention_mask=mask,
                position_ids=position[None],
            ).logits
        )  # fmt: skip
        position.add_(1)

    def decode(again: Callable[[], None]) -> list[list[int]]:
        with torch.no_grad(), kernels(device):
            prefill()
            for _ in range(count - 1):
                again()
        found: list[list[int]] = written.tolist()
        return found

    if device.type != "cuda":
        return lambda: decode(step)
    with torch.no_grad(), kernels(device):
        prefill()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return lambda: decode(graph.replay)


def measured(networks: dict[str, Any], way: str, runs: list[DrawnRun]) -> dict[str, Any]:
    """The least of three runs after one to warm up; wrong tokens of all of them."""
    torch.compiler.reset()
    began, wanted, wrong = time.perf_counter(), [run.run for run in runs], 0
    network, times = networks["eager" if way == "eager" else "sdpa"], []
    make: Any = replayed if way in ("graph", "eager") else partial(generating, way=way)
    decode = make(network, runs)
    for _ in range(4):
        start = time.perf_counter()
        made = decode()
        times.append(time.perf_counter() - start)
        wrong += sum(
            a != b for pair in zip(made, wanted, strict=True) for a, b in zip_longest(*pair)
        )
    tokens = len(runs) * runs[0].count
    return {"way": way, "batch": len(runs), "tokens_s": round(tokens / min(times[1:]), 1),
            "prompt": len(runs[0].prompt), "run": runs[0].count, "compared": 4 * tokens,
            "wrong": wrong, "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


def gpu_speed(
    computer: TextComputer, head: dict[str, Any], device: str, seconds: float, out: Path
) -> int:
    """Every way that the seconds allow; the file is written after each. Wrong tokens in all."""
    networks = {kind: computer.model(attention=kind).to(device) for kind in ("sdpa", "eager")}  # type: ignore[arg-type]
    name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    content = {**head, "device": name, "clock": "wall", "rows": []}
    began = time.perf_counter()
    for way, rows in GPU if device.startswith("cuda") else CPU:
        if time.perf_counter() - began > seconds:
            content["left_out"] = [*content.get("left_out", []), [way, rows]]
            continue
        try:
            found = measured(networks, way, inputs(computer, rows))
        except Exception as error:  # out of memory, or what a compiler raises: the next one may go
            found = {"way": way, "batch": rows, "failed": f"{type(error).__name__}: {error}"[:500]}
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        content["rows"].append(found)
        print(found, flush=True)
        out.write_text(json.dumps(content, indent=1))
    return sum(row.get("wrong", 0) for row in content["rows"])
