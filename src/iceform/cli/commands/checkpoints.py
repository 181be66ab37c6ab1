"""``iceform checkpoints``: five stock checkpoints in one folder, with cards that run as printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from iceform.cli.as_json import add_json, print_json

SUMMARY = "Write five stock checkpoints, each with a card, into a folder."


def main(words: Sequence[str]) -> int:
    """Write them; what is there already is written anew."""
    parser = argparse.ArgumentParser(
        prog="iceform checkpoints",
        description=f"{SUMMARY} transformers loads each of them with no code of ours; needs "
        "iceform[export].",
        epilog="Example: iceform checkpoints folder",
    )
    parser.add_argument("folder", type=Path, help="where the five folders go")
    add_json(parser)
    options = parser.parse_args(words)
    written = []
    for name, write in _writers().items():
        write(options.folder / name)
        written.append(str(options.folder / name))
        if not options.json:
            print(written[-1])
    if options.json:
        print_json({"folders": written})
    return 0


def _writers() -> dict[str, Callable[[Path], object]]:
    from iceform import TextComputer
    from iceform.targets import AnsweringDescent, GeneralDescent, LinearDescent, write

    descent = LinearDescent(dim=3, steps=12, positions=256)
    in_float32 = LinearDescent(dim=3, steps=6, positions=256, dtype="float32", reach=2.0)
    return {
        "descent-gpt2": lambda path: write("gpt2", descent, path),
        "descent-llama": lambda path: write("llama", in_float32, path),
        "any-loss-bert": lambda path: write("bert", GeneralDescent(dim=3, steps=4), path),
        "answers-gpt2": lambda path: write("gpt2", AnsweringDescent(dim=2, steps=3), path),
        "text-gpt2": lambda path: TextComputer().save(path),
    }
