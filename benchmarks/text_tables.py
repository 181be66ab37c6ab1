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
        "| text | settings | prompt | run | wrong | `generate()` |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: row["name"]):
        settings = ", ".join(f"{k} {v}" for k, v in row["settings"].items())
        made = {True: "equal", False: "DIFFERS", None: ""}[row.get("greedy_equal")]
        lines.append(
            f"| {row['name'].replace('_', ' ')} | {settings} | {row['prompt']} | {row['tokens']} "
            f"| {row['wrong']} | {made} |"
        )
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
        f"on a {kept['device'].upper()}, in batches of {kept['batch']}: "
        f"**{found['wrong']} wrong**.{lead}"
    )


def random_programs() -> str:
    """Greedy decoding of random programs."""
    return _programs(RANDOM, "by `generate()`")


def forced_programs() -> str:
    """Random programs in one pass each: any, and long ones."""
    files = (FORCED, FORCED.with_name("text-forced-long.json"))
    return "\n\n".join(_programs(path, "by teacher forcing") for path in files)


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
