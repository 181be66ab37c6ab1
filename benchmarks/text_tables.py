"""What :mod:`benchmarks.text` kept, as tables of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iceform.arithmetic import at_least

KEPT = Path(__file__).parents[1] / "results" / "pages"
LIBRARY, RANDOM, FORCED, SPEED, LLAMA = (
    KEPT / f"text-{name}.json" for name in ("library", "greedy", "forced", "speed", "llama-forced")
)

GPU = KEPT / "text-speed-gpu.json"
WAYS = {
    "dynamic": "`generate()`, attention without fused kernels",
    "kernels": "`generate()`, attention as torch chooses",
    "static": "`generate()`, static cache, not compiled",
    "compiled": "`generate()`, static cache, compiled",
    "graph": "static cache, step as a CUDA graph",
    "eager": "static cache, step as a CUDA graph, eager attention",
}


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def library() -> str:
    """One file, all texts."""
    kept = _read(LIBRARY)
    rows = kept["rows"]
    greedy = [row for row in rows if "greedy_equal" in row]
    equal = sum(row["greedy_equal"] for row in greedy)
    wrong, tokens = (sum(row[k] for row in rows) for k in ("wrong", "tokens"))
    lines = [
        f"`{kept['machine']}`, weights {kept['weights_sha256'][:12]}..., a `{kept['class']}` in a "
        "process where iceform could not be imported: "
        f"{len(rows)} texts, {tokens:,} tokens, {wrong} wrong; by `generate()` too: {equal} of "
        f"{len(greedy)} equal. The right word led by at least "
        f"{at_least(min(row['least_lead'] for row in rows), '.4g')} logits.",
        "",
        "| text | prompt | run | `generate()` |",
        "|---|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: (bool(row["settings"]), row["name"])):
        made = {True: "equal", False: "DIFFERS", None: ""}[row.get("greedy_equal")]
        name = f"`{row['name']}`" if row["settings"] else row["name"]  # a typed text has none
        lines.append(f"| {name} | {row['prompt']} | {row['tokens']} | {made} |")
    return "\n".join(lines)


def _programs(path: Path, how: str) -> str:
    """What a campaign of random programs found."""
    kept = _read(path)
    found = kept["found"]
    least = found["margin"]
    said = "" if least is None else at_least(least, ".4g")
    lead = f" The right word led by at least {said} logits." if said else ""
    least_tokens = f"{kept['shortest']} to " if kept.get("shortest") else "at most "
    return (
        f"{found['programs']:,} random programs of {least_tokens}{kept['longest']} tokens on "
        f"`{kept['machine']}` ({kept['weights_sha256'][:12]}...), {found['tokens']:,} tokens {how} "
        f"on {_processor(kept['device'])}, in batches of {kept['batch']}: "
        f"**{found['wrong']} wrong**.{lead}"
    )


def _processor(device: str) -> str:
    """In a sentence."""
    return "a CPU" if device == "cpu" else f"an {device}"


def _campaigns(first: Path, how: str) -> str:
    """The file of a campaign, and those whose names go on from its name."""
    files = sorted(first.parent.glob(f"{first.stem}*.json"), key=lambda path: len(path.stem))
    return "\n\n".join(_programs(path, how) for path in files)


def random_programs() -> str:
    """Greedy decoding of random programs."""
    return _campaigns(RANDOM, "by `generate()`")


def forced_programs() -> str:
    """Random programs in one pass each: any, long ones, and what else was kept."""
    return _campaigns(FORCED, "by teacher forcing")


def gpu_speed() -> str:
    """Tokens a second by way of decoding, on a GPU."""
    kept = _read(GPU)
    rows = [row for row in kept["rows"] if "tokens_s" in row]
    compared, wrong = (sum(row[k] for row in rows) for k in ("compared", "wrong"))
    lines = [
        f"{kept['device']}, torch {kept['torch']}, transformers {kept['transformers']}, runs of "
        f"{rows[0]['run']} tokens alone and {rows[-1]['run']} in a batch, wall time, the least of "
        f"three; {compared:,} tokens compared with the interpreter's, **{wrong} wrong**:",
        "",
        "| rows at once | how | tokens/s |",
        "|---:|---|---:|",
    ]
    for row in sorted(rows, key=lambda row: (row["batch"], row["tokens_s"])):
        lines.append(f"| {row['batch']:,} | {WAYS[row['way']]} | {row['tokens_s']:,.0f} |")
    for row in kept["rows"]:
        if "failed" in row:
            lines.append(f"| {row['batch']:,} | {WAYS[row['way']]} | failed |")
    return "\n".join(lines)


def speed() -> str:
    """Tokens a second, and the ratio to random weights."""
    kept = _read(SPEED)
    lines = [
        "| rows at once | cache | tokens/s | random weights of the same shape | ratio |",
        "|---:|---|---:|---:|---:|",
    ]
    for row in kept["rows"]:
        lines.append(
            f"| {row['batch']} | {row['cache']} | {row['tokens_s']:.0f} "
            f"| {row['random_weights_tokens_s']:.0f} | {row['ratio']:.2f} |"
        )
    return "\n".join(lines)


def llama() -> str:
    """Random programs on the Llama, in one pass each and by ``generate()``."""
    greedy = LLAMA.with_name("text-llama-greedy.json")
    return f"{_programs(LLAMA, 'by teacher forcing')}\n\n{_programs(greedy, 'by `generate()`')}"
