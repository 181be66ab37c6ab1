"""Random texts that end, and teacher forcing: the network against the interpreter.

Every operation, literals and variables, scalars, cells, computed addresses and tables, all tests.
Jumps go forward, except those of counters that nothing else writes, so that every program ends.
Saturation, ties and junk are part of it: nothing is avoided but what ``check`` refuses.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from iceform import tuning
from iceform.targets.checking import kernels
from iceform.targets.text.interpreter import TextRun, check
from iceform.targets.text.words import FUNCTIONS, PAIRS, TESTS, TextSizes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What is drawn, and in how many of a hundred cases.
_NUMBERS = {"near 0": 60, "any": 35, "an end or 0": 5}
_PLACES = {"scalar": 50, "indexed": 30, "cell": 20}
_OPERANDS = {"number": 25, "place": 60, "table": 15}
_LINES = {"next cell": 10, "index": 5, "loop": 13, "any": 72}
_ENDS = {"none": 65, "a test, but of the end": 25, "a test": 5, "goto": 5}
_TABLES = {"own table": 30, "none": 70}


@dataclass
class _Writer:
    sizes: TextSizes
    draw: random.Random
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes, draw = self.sizes, self.draw
        self.filled = min(tuning.CAMPAIGN_FILLED, sizes.cells)
        self.indices = draw.sample(sizes.index_names, min(2, sizes.indices))
        plain = [n for n in sizes.scalar_names if n not in self.indices]
        chosen = draw.sample(plain, min(8, len(plain)))
        self.counters, self.scalars = chosen[:2], chosen[2:]
        self.arrays = draw.sample(sizes.array_names, min(2, sizes.arrays))
        others = [a for a in sizes.array_names if a not in self.arrays]
        self.tables = others[:1] if self.pick(_TABLES) == "own table" else []

    def pick(self, shares: dict[str, int]) -> str:
        """A kind, as often as its share says."""
        return self.draw.choices(list(shares), list(shares.values()))[0]

    def number(self) -> str:
        """A number word: small, any, or the largest."""
        levels, draw = self.sizes.format.levels, self.draw
        near = 2 << self.sizes.format.fraction
        kind = self.pick(_NUMBERS)
        if kind == "near 0":
            units = self.sizes.format.rounded(draw.randint(-near, near))
        else:
            units = draw.choice(levels if kind == "any" else (levels[0], levels[-1], 0))
        return self.sizes.format.word(units)

    def place(self) -> str:
        """A scalar, a cell, or a computed address."""
        kind = self.pick(_PLACES)
        if not self.arrays or kind == "scalar":
            return self.draw.choice(self.scalars)
        array = self.draw.choice(self.arrays)
        if self.indices and kind == "indexed":
            return f"{array}[{self.draw.choice(self.indices)}]"
        return f"{array}[{self.draw.randrange(self.filled)}]"

    def operand(self) -> str:
        """A place, a number, or a table at a name."""
        kind = self.pick(_OPERANDS)
        if self.tables and kind == "table":
            called = self.draw.choice([*self.scalars, *self.indices, *self.counters])
            return f"{self.tables[0]}({called})"
        return self.number() if kind == "number" else self.place()

    def expression(self) -> str:
        """Any operation."""
        kinds = ["copy", "function", "pair", *"++--****"]
        kind = self.draw.choice(kinds + ["third"] * (3 * self.sizes.third_operand))
        if kind == "copy":
            return self.operand()
        if kind == "function":
            return f"{self.draw.choice(FUNCTIONS)}({self.operand()})"
        if kind == "pair":
            return f"{self.draw.choice(PAIRS)}({self.operand()}, {self.operand()})"
        if kind == "third":
            sign = self.draw.choice("+-")
            return f"{self.operand()} {sign} {self.operand()} * {self.operand()}"
        return f"{self.operand()} {kind} {self.operand()}"

    def write(self, count: int) -> None:
        """So many lines."""
        draw = self.draw
        while len(self.lines) < count - 1:
            label, kind = len(self.lines) + 1, self.pick(_LINES)
            if self.indices and kind == "next cell" and len(self.lines) < count - 2:
                index = draw.choice(self.indices)
                self.lines.append(f"{label}: {index} = {index} + 1")
                self.lines.append(f"{label + 1}: {index} = min({index}, {self.filled - 1})")
            elif self.indices and kind in ("next cell", "index"):
                target = draw.choice(self.indices)
                source = draw.choice([*self.indices, str(draw.randrange(self.filled))])
                self.lines.append(f"{label}: {target} = {source}")
            elif kind != "any":
                counter = draw.choice(self.counters)
                back = draw.randint(1, label)
                self.lines.append(f"{label}: {counter} = {counter} - 1 if > 0 goto {back}")
            else:
                self.lines.append(f"{label}: {self.place()} = {self.expression()}{self.end(count)}")
        self.lines.append(f"{count}: {self.place()} = {self.expression()} goto end")

    def end(self, count: int) -> str:
        """Nothing, or a jump forward."""
        label, kind = len(self.lines) + 1, self.pick(_ENDS)
        target = self.draw.choice([*map(str, range(label + 1, count + 1)), "end"])
        if kind == "none" or (target == "end" and kind == "a test, but of the end"):
            return ""
        if kind == "goto":
            return f" goto {target}"
        return f" if {self.draw.choice(TESTS)} 0 goto {target}"

    def data(self) -> str:
        """A value for everything that may be read."""
        places = [*self.scalars, *(f"{a}[{c}]" for a in self.arrays for c in range(self.filled))]
        out = [f"{place} = {self.number()}" for place in places]
        out += [f"{index} = {self.draw.randrange(self.filled)}" for index in self.indices]
        out += [f"{counter} = {self.draw.randint(1, 12)}" for counter in self.counters]
        for table in self.tables:
            values = ", ".join(self.number() for _ in range(self.sizes.cells))
            out.append(f"{table} = [{values}]")
        self.draw.shuffle(out)
        return " ".join(out)


def random_text(sizes: TextSizes, draw: random.Random) -> str:
    """A program of a few lines with data, drawn at random; it ends."""
    writer = _Writer(sizes, draw)
    writer.write(draw.randint(3, min(tuning.CAMPAIGN_LINES, sizes.labels)))
    return "\n".join([*writer.lines, writer.data()])


@dataclass
class Campaign:
    """Counts of a campaign, and the programs that went wrong."""

    programs: int = 0
    tokens: int = 0
    wrong: int = 0
    margin: float | None = None  # least lead of a right word; generate() does not say it
    failed: list[list[int]] = field(default_factory=list)  # their prompts, in tokens

    def explain(self) -> str:
        """In one line."""
        least = "" if self.margin is None else f", least margin {self.margin:.1f}"
        return f"programs {self.programs:,}, tokens {self.tokens:,}, wrong {self.wrong:,}{least}"


@dataclass(frozen=True)
class DrawnRun:
    """Tokens of a prompt and its run, and how many of them the run is."""

    tokens: tuple[int, ...]
    count: int

    @property
    def prompt(self) -> list[int]:
        """What the network is given."""
        return list(self.tokens[: -self.count])

    @property
    def run(self) -> list[int]:
        """What it should write."""
        return list(self.tokens[-self.count :])


def drawn_run(run: TextRun) -> DrawnRun:
    """A run in tokens, with the prefix that the tokenizer puts before its text."""
    sizes = run.program.sizes
    words = (*sizes.prefix, *run.program.words, "[1]", *run.words)
    return DrawnRun(tuple(sizes.ids[word] for word in words), len(run.words))


def drawn_runs(sizes: TextSizes, seed: str, count: int, length: tuple[int, int]) -> list[DrawnRun]:
    """So many random programs, run by the interpreter; they depend on the seed alone.

    Programs are left out that take fewer or more tokens with their run than ``length`` says. The
    shortest come first, so that neighbours in a batch end together.
    """
    draw = random.Random(seed)
    found: list[DrawnRun] = []
    while len(found) < count:
        run = check(sizes, random_text(sizes, draw))
        if length[0] <= run.tokens <= length[1]:
            found.append(drawn_run(run))
    return sorted(found, key=lambda run: len(run.tokens))


def forced(
    network: PreTrainedModel, runs: list[DrawnRun], found: Campaign, at_once: int = 1 << 14
) -> None:
    """Read runs in one pass and count the words that the network would not have written.

    The scores of all words are held of so many positions ``at_once``.
    """
    widest = max(len(run.tokens) for run in runs)
    rows = [[*run.tokens, *[0] * (widest - len(run.tokens))] for run in runs]
    places = [(k, len(run.tokens) - run.count + t) for k, run in enumerate(runs)
              for t in range(run.count)]  # fmt: skip
    padded = torch.tensor(rows, device=network.device)
    row, at = torch.tensor(places, device=network.device).T
    with torch.no_grad(), kernels(network.device):
        states = network.base_model(
            padded, attention_mask=torch.ones_like(padded), use_cache=False
        ).last_hidden_state
        leads = [
            _lead(network.lm_head(states[rows_, at_ - 1]), padded[rows_, at_])
            for rows_, at_ in zip(row.split(at_once), at.split(at_once), strict=True)
        ]
    lead = torch.cat(leads)
    bad = ~(lead > 0)  # so is one that is not a number
    found.programs, found.tokens = found.programs + len(runs), found.tokens + len(lead)
    found.wrong += int(bad.sum())
    least = float(lead.min())
    found.margin = least if found.margin is None else min(found.margin, least)
    for number in sorted(set(row[bad].tolist())):
        found.failed.append(runs[number].prompt)


def _lead(logits: Tensor, wanted: Tensor) -> Tensor:
    """By how much the wanted word's score is above every other one, exactly."""
    right = logits.gather(1, wanted[:, None])[:, 0].double()
    return right - logits.scatter_(1, wanted[:, None], -torch.inf).max(1).values.double()


def generated(network: PreTrainedModel, runs: list[DrawnRun], found: Campaign) -> None:
    """Run texts at once by plain ``generate()`` and count the words that are not the run's."""
    with kernels(network.device):
        made = decoded(network, runs, max_length=_widest(runs) + max(run.count for run in runs))
    found.programs += len(runs)
    for run, written in zip(runs, made, strict=True):
        wrong = sum(a != b for a, b in zip_longest(run.run, written[: run.count]))
        found.tokens, found.wrong = found.tokens + run.count, found.wrong + wrong
        if wrong:
            found.failed.append(run.prompt)


def decoded(network: PreTrainedModel, runs: list[DrawnRun], **settings: Any) -> list[list[int]]:
    """What ``generate()`` writes after the prompts at once, padded on the left."""
    pad, widest = network.generation_config.pad_token_id, _widest(runs)
    prompts = [run.prompt for run in runs]
    asked = torch.tensor([[pad] * (widest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in prompts])
    generate: Any = network.generate
    with torch.no_grad():
        made = generate(
            asked.to(network.device), attention_mask=mask.to(network.device), **settings
        )
    written: list[list[int]] = made[:, widest:].tolist()
    return written


def _widest(runs: list[DrawnRun]) -> int:
    return max(len(run.prompt) for run in runs)
