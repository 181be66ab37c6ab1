"""``python -m benchmarks.text``: random programs against the text machine, and its speed.

Random programs are run by the interpreter, then the network reads program and run in one pass, and
at every position that it would have generated the highest score must be the interpreter's word
(teacher forcing: the first wrong word, if there is one, is found as by ``generate()``). Printed:
programs, tokens, wrong ones, and by how much the right word led at least. Then tokens per second
of ``generate()``, alone and in a batch, beside a GPT-2 of the same shape with random weights in the
same process.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from iceform.targets.checking import kernels
from iceform.targets.text.campaign import Campaign, forced, random_text
from iceform.targets.text.interpreter import TextRun
from iceform.targets.text.machine import TextComputer

__all__ = ["campaign", "main"]


def campaign(
    computer: TextComputer, seed: int, seconds: float, batch: int, device: str
) -> Iterator[Campaign]:
    """Batches of random programs until the time is up; the counts after each."""
    draw, found = random.Random(seed), Campaign()
    network = computer.model().to(device)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        runs: list[TextRun] = []
        while len(runs) < batch:
            runs.append(computer.check(random_text(computer.sizes, draw)))
        forced(network, runs, found)
        yield found


def speed(computer: TextComputer, batch: int, count: int, device: str) -> None:
    """Tokens per second of generate(), and of random weights of the same shape."""
    network = computer.model().to(device)
    config = {**computer.config(), "eos_token_id": None}
    drawn = GPT2LMHeadModel(GPT2Config(**config)).to(device, computer.dtype).eval()
    loop = "1: n = n + 1\n2: s = s * 0.5 goto 1\nn = 0 s = 1"
    asked = computer.tokenizer(loop, return_tensors="pt").input_ids.to(device)
    for rows in (1, batch):
        seconds = [_generate(net, asked.expand(rows, -1), count) for net in (network, drawn)]
        print(
            f"{rows} at a time: {rows * count / seconds[0]:,.0f} tokens/s, "
            f"{seconds[1] / seconds[0]:.2f} times random weights of the same shape"
        )


def _generate(network: GPT2LMHeadModel, asked: torch.Tensor, count: int) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with kernels(network.device), torch.no_grad():
            network.generate(
                asked, attention_mask=torch.ones_like(asked), do_sample=False,
                min_new_tokens=count, max_length=asked.shape[1] + count,
            )  # fmt: skip
        times.append(time.perf_counter() - start)
    return sorted(times)[1]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of random programs")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--library", action="store_true", help="the float64 machine")
    parser.add_argument("--tokens", type=int, default=96, help="generated to take the speed")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between lines")
    asked = parser.parse_args()
    computer = TextComputer.library() if asked.library else TextComputer()
    print(computer, flush=True)
    shown, found = time.monotonic(), Campaign()
    for found in campaign(computer, asked.seed, asked.seconds, asked.batch, asked.device):
        if time.monotonic() - shown > asked.every:
            shown = time.monotonic()
            print(found.explain(), flush=True)
    print(found.explain())
    for text in found.failed[:3]:
        print(repr(text))
    if asked.tokens:
        speed(computer, asked.batch, asked.tokens, asked.device)
    raise SystemExit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
