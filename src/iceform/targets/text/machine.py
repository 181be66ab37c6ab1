r"""TextComputer: a stock GPT-2 or Llama; the prompt is a program, what follows is its run.

    computer = TextComputer()
    computer.run("1: s = a * a goto end\n a = 1.5")      # 's = 2.25 [end]'
    computer.save("folder")                               # then, anywhere, without this package:
                                                          # pipeline("text-generation", "folder")

The weights follow from the sizes alone (:class:`~iceform.targets.text.words.TextSizes`); the
program, its data and its answer are text. With ``mode="weights"`` the program is in the weights and
the text is data only.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from iceform import store
from iceform.codec import decode, encode
from iceform.errors import (
    IntegrityError,
    ParameterError,
    PrecisionError,
    ProgramError,
)
from iceform.heads import Design
from iceform.targets.architectures import architecture
from iceform.targets.checking import kernels
from iceform.targets.folder import CARD, CONFIG, VIEWS, check_path, digest, write_checkpoint
from iceform.targets.text.certificate import TextCertificate
from iceform.targets.text.features import TextFeatures
from iceform.targets.text.in_weights import carried, sizes_with
from iceform.targets.text.interpreter import TextRun, check
from iceform.targets.text.layers import TextLayers
from iceform.targets.text.proof import certify
from iceform.targets.text.rotary import RotaryLayers
from iceform.targets.text.syntax import ProgramText, TextError, parse
from iceform.targets.text.words import END, LIBRARY, TextSizes
from iceform.validation import (
    check_choice,
    check_matmul_precision,
    dtype_name,
    full_precision,
    path_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

KIND = "text computer"
GENERATION = "generation_config.json"
TRUTH = "ground_truth.json"
MODES = ("prompt", "weights")
_FORMAT = ("bits", "fraction", "top")
_ACTIVATION = {"gpt2": {"activation_function": "gelu_new"}, "llama": {"hidden_act": "silu"}}
_TITLES = {"gpt2": "GPT-2", "llama": "Llama"}
# Of a config: what no run depends on.
_LOOSE = ("architectures", "dtype", "use_cache", "cache_implementation", "transformers_version",
          "_from_model_config")  # fmt: skip
_ATTENTION = ("sdpa", "eager")
_LABEL = re.compile(r"\s*(\d+:)")
_EXAMPLE = "1: s = a * a goto end\na = 1.5"


class TextComputer:
    r"""A GPT-2, or a Llama, that runs what you type.

    Parameters
    ----------
    sizes
        How large it is; by keyword instead: ``bits``, ``fraction``, ``top`` of its numbers,
        ``labels``, ``scalars``, ``arrays``, ``indices``, ``cells``, ``positions``, ``tables``,
        ``dtype``, ``architecture`` ("gpt2" or "llama").
    mode
        "prompt": programs are text. "weights": one program is in the weights, the text is its data.
    program
        The lines of that program, without data.

    Examples
    --------
    >>> small = {"positions": 64, "labels": 4, "scalars": 20, "arrays": 0, "indices": 0}
    >>> computer = TextComputer(**small)
    >>> computer.run("1: s = a * a goto end\na = 1.5")
    's = 2.25 [end]'
    >>> computer.check("1: s = a / a goto end\na = 1.5")
    Traceback (most recent call last):
    iceform.targets.text.syntax.TextError: line 1, '/': there is no division. Write ...

    With the program in the weights the text is data only:

    >>> square = TextComputer(**small, mode="weights", program="1: s = a * a goto end")
    >>> square.interpret("a = 2")
    's = 4 [end]'
    """

    def __init__(
        self,
        sizes: TextSizes | None = None,
        *,
        mode: str = "prompt",
        program: str | None = None,
        **named: Any,
    ) -> None:
        check_choice("mode", mode, MODES)
        self.mode = mode
        self.program: str | None = program
        self.sizes = _sizes(sizes, named)
        self._held: ProgramText | None = None
        if (mode == "weights") != (program is not None):
            raise ParameterError(
                'TextComputer(mode="weights", program=...) takes a program, and no other mode '
                "does. In the prompt a program is part of the text that is run."
            )
        if program is not None:
            self._held = _without_data(parse(self.sizes, program))
            self.sizes = sizes_with(self._held)

    @classmethod
    def library(cls, **rest: Any) -> TextComputer:
        """The float64 machine that the library's algorithms run on: finer numbers, more room."""
        return cls(LIBRARY, **rest)

    def __repr__(self) -> str:
        held = "" if self._held is None else f", {len(self._held.lines)} lines in the weights"
        d, kind = self.design, "llama, " if self.sizes.is_rotary else ""
        return (
            f"TextComputer({kind}{self.sizes.dtype}, {len(d.layers)} layers, width {d.hidden}, "
            f"{len(self.sizes.words)} words{held})"
        )

    # -------------------------------------------------------------------------------- text

    def check(self, text: str) -> TextRun:
        """Run a text by the interpreter, or refuse it with line, word and remedy."""
        if self._held is None:
            return check(self.sizes, text)
        if not isinstance(text, str):
            raise ProgramError(f"data are a text, got {type(text).__name__}. Pass a str.")
        assert self.program is not None
        for number, line in enumerate(text.split("\n"), 1):
            if found := _LABEL.match(line):
                message = "the program is in the weights; the text is its data only."
                raise TextError(number, found[1], message)
        above = self.program.rstrip("\n").count("\n") + 1
        try:
            whole = parse(self.sizes, f"{self.program.rstrip(chr(10))}\n{text}")
            words = whole.words[len(self._held.words) :]
            return check(self.sizes, replace(whole, sizes=self.sizes, words=words))
        except TextError as error:
            if error.line <= above:
                raise
            message = str(error).split(": ", 1)[1]
            raise TextError(error.line - above, error.word, message) from None

    def interpret(self, text: str) -> str:
        """The text that follows, by the interpreter: exact, no network."""
        return self.check(text).text

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Text to words, with the prefix before and ``[1]`` after it."""
        return self.sizes.tokenizer()

    # ----------------------------------------------------------------------------- network

    @cached_property
    def features(self) -> TextFeatures:
        """What tokens hold."""
        return TextFeatures(self.sizes)

    @cached_property
    def layers(self) -> TextLayers:
        """What heads do."""
        kind = RotaryLayers if self.sizes.is_rotary else TextLayers
        return kind(self.features, gathers=self._held is None)

    @property
    def design(self) -> Design:
        """Features and heads."""
        return self.layers.design

    @property
    def dtype(self) -> torch.dtype:
        """That the weights are written for."""
        found: torch.dtype = getattr(torch, self.sizes.dtype)
        return found

    @cached_property
    def _written(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        known = architecture(self.sizes.architecture)
        known.check_fits(self.design)
        config, tensors = known.with_ids(self.design, self.layers.vocabulary(self._words()))
        config |= {
            **_ACTIVATION[self.sizes.architecture], "bos_token_id": 0, "pad_token_id": self._end,
            "eos_token_id": self._end, "dtype": self.sizes.dtype,
        }  # fmt: skip
        return config, {name: t.to(self.dtype).contiguous() for name, t in tensors.items()}

    def _words(self) -> Tensor:
        """The features of all words, with the program if it is in the weights."""
        if self._held is None:
            return self.features.word_features()
        return carried(self.features, self._held)

    @property
    def _end(self) -> int:
        return next(
            token
            for token, word in enumerate(self.sizes.words)
            if word.kind == "trace" and word.label == END
        )

    def config(self) -> dict[str, Any]:
        """config.json."""
        return deepcopy(self._written[0])

    def tensors(self) -> dict[str, Tensor]:
        """The weights that the sizes (and the program in the weights) imply."""
        return {name: tensor.clone() for name, tensor in self._written[1].items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights that the sizes imply."""
        return digest(self._written[1])

    def model(self, dtype: torch.dtype | None = None, attention: str = "sdpa") -> PreTrainedModel:
        """A new ``GPT2LMHeadModel`` or ``LlamaForCausalLM`` with these weights."""
        _check_dtype(self.dtype, dtype or self.dtype)
        check_choice("attention", attention, _ATTENTION)
        from transformers import AutoConfig, AutoModelForCausalLM

        settings = AutoConfig.for_model(**self.config())
        make: Any = AutoModelForCausalLM.from_config
        made = make(settings, attn_implementation=attention)
        stock: PreTrainedModel = made.to(self.dtype).eval()
        stock.load_state_dict(self._written[1])
        made.generation_config.update(**self._generation())
        return stock

    @cached_property
    def _network(self) -> PreTrainedModel:
        return self.model()

    def _generation(self) -> dict[str, Any]:
        return {
            "do_sample": False, "num_beams": 1, "max_length": self.sizes.positions,
            "bos_token_id": 0, "pad_token_id": self._end, "eos_token_id": self._end,
        }  # fmt: skip

    def attest(self, network: PreTrainedModel) -> str:
        """The digest of a network's weights; refused if the sizes imply others, or a config."""
        self._check_config("config", network.config, self.config())
        self._check_config("generation config", network.generation_config, self._generation())
        found = digest(dict(network.state_dict()))
        if found != self.digest:
            raise IntegrityError(
                f"the network's weights are {found[:12]}..., the sizes imply {self.digest[:12]}...;"
                " nothing is promised of others. Take TextComputer.model()."
            )
        return found

    def _check_config(self, what: str, config: Any, implied: dict[str, Any]) -> None:
        """Refuse a setting that is not what the sizes imply, or else not the default."""
        said: dict[str, Any] = config.to_dict()
        for name, value in {**type(config)().to_dict(), **implied}.items():
            held = said.get(name, value)  # None, False and 0 are all of a setting that is off
            if name not in _LOOSE and held != value and (held or value):
                raise IntegrityError(
                    f"the network's {what} has {name} = {held!r}, the sizes imply {value!r}; "
                    "nothing is promised of others. Take TextComputer.model()."
                )

    @full_precision
    def run(
        self,
        text: str | Sequence[str],
        *,
        network: PreTrainedModel | None = None,
        **generation: Any,
    ) -> str | list[str]:
        """What ``generate()`` writes after a text, or after each of several at once.

        Every text is checked first, so that nothing is generated for one that is wrong, and what
        the network writes is compared with the interpreter's words. Greedy decoding only: a
        program is run, not drawn.
        """
        _check_greedy(generation)
        if not isinstance(text, str | list | tuple):
            kind = type(text).__name__
            raise ProgramError(f"run() takes a text or a list of texts, got {kind}. Pass a str.")
        texts = [text] if isinstance(text, str) else list(text)
        runs = [self.check(one) for one in texts]
        if not runs:
            return []
        stock = self._network if network is None else network
        if not hasattr(stock, "generation_config"):
            kind = type(stock).__name__
            raise ParameterError(f"run(..., network=...) takes TextComputer.model(), got a {kind}.")
        for parameter in stock.parameters():
            _check_dtype(self.dtype, parameter.dtype)
        check_matmul_precision(self.dtype)
        self.attest(stock)
        written: list[str] = []
        for batch in self._batches(runs):
            at = len(written)
            written += self._generate(stock, texts[at : at + len(batch)], batch)
        return written[0] if isinstance(text, str) else written

    def _batches(self, runs: list[TextRun]) -> Iterator[list[TextRun]]:
        """Neighbours whose longest prompt and longest run fit the positions together."""
        batch: list[TextRun] = []
        for run in runs:
            both = [*batch, run]
            prompt = max(one.program.prompt_tokens for one in both)
            if prompt + max(len(one.words) for one in both) > self.sizes.positions:
                yield batch
                both = [run]
            batch = both
        yield batch

    def _generate(self, stock: PreTrainedModel, texts: list[str], runs: list[TextRun]) -> list[str]:
        """What the network writes after texts; refused where the interpreter writes otherwise."""
        asked = self.tokenizer(texts, padding=True, return_tensors="pt").to(stock.device)
        prompt, generate = asked.input_ids.shape[1], cast(Any, stock.generate)
        with kernels(stock.device), torch.no_grad():
            tokens = generate(
                asked.input_ids, attention_mask=asked.attention_mask, do_sample=False, num_beams=1,
                max_length=prompt + max(len(run.words) for run in runs),
            )  # fmt: skip
        written = [self._read(row) for row in tokens[:, prompt:].tolist()]
        for said, run in zip(written, runs, strict=True):
            if said != run.words:
                raise IntegrityError(self._otherwise(said, run.words))
        return [run.text for run in runs]

    def _otherwise(self, said: tuple[str, ...], words: tuple[str, ...]) -> str:
        """What to say of a network that writes something else than the interpreter."""
        pairs = enumerate(zip_longest(said, words), 1)
        place, (word, right) = next((k, both) for k, both in pairs if both[0] != both[1])
        why = (
            "The certificate of these sizes holds, so something changes the network: a hook, or "
            "products in another precision. Take TextComputer.model()."
            if self.certificate.holds
            else "The certificate of these sizes does not hold: "
            f"{self.certificate.failures[0]}. Take a smaller top, fewer bits or positions."
        )
        return f"word {place} of the run: the network wrote {word!r}, the program {right!r}. {why}"

    def _read(self, tokens: list[int]) -> tuple[str, ...]:
        """Words up to the end."""
        last = tokens.index(self._end) + 1 if self._end in tokens else len(tokens)
        return tuple(self.sizes.words[token].text for token in tokens[:last])

    # ------------------------------------------------------------------------- certificate

    @cached_property
    def certificate(self) -> TextCertificate:
        """What is proven of the weights that the sizes imply."""
        return self.certify(self._written[1])

    def certify(self, tensors: dict[str, Tensor]) -> TextCertificate:
        """What is proven of these weights."""
        return certify(self.layers, self._words(), tensors)

    def ground_truth(self) -> dict[str, Any]:
        """What every head, every feature and every token is for."""
        return {
            "heads": self.design.ground_truth(),
            "edges": self.design.edges(),
            "features": {
                **{name: [at.start, at.stop] for name, at in self.features.all.items()},
                **self.design.own_places(),
            },
            "tokens": [
                {k: v for k, v in asdict(word).items() if v is not None}
                for word in self.sizes.words
            ],
        }

    # ------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> Path:
        """Write a folder that ``pipeline("text-generation", path)`` runs without this package."""
        folder = path_of(path)
        check_path(folder)
        config, tensors = self._written
        record = {
            "sizes": encode(self.sizes), "mode": self.mode, "program": self.program,
            "certificate": self.certificate.to_dict(), "weights_sha256": self.digest,
        }  # fmt: skip
        plain = {
            GENERATION: self._generation(),
            TRUTH: self.ground_truth(),
            **_tokenizer_files(self.tokenizer),
        }
        views = {CONFIG: config, CARD: self._card()}
        return write_checkpoint(folder, KIND, record, tensors, views, plain)

    @classmethod
    def load(cls, path: str | Path) -> TextComputer:
        """The computer of a folder that :meth:`save` wrote."""
        folder = path_of(path)
        stored = store.read_folder(folder, VIEWS, KIND)
        record = stored.content
        try:
            sizes = decode(TextSizes, record["sizes"])
            found = cls(sizes, mode=record["mode"], program=record["program"])
        except (KeyError, TypeError) as broken:
            raise IntegrityError(f"{folder} does not describe a text computer: {broken}") from None
        if digest(stored.tensors) != found.digest:
            raise IntegrityError(
                f"{folder}: the weights are not those that its sizes imply; save it again"
            )
        return found

    def _card(self) -> str:
        d = self.design
        example = _EXAMPLE if self._held is None else "a = 1.5"
        return _CARD.format(
            mode="" if self._held is None else _IN_WEIGHTS.format(program=self.program),
            tag=self.sizes.architecture, title=_TITLES[self.sizes.architecture],
            kind=self._written[0]["architectures"][0],
            example=example, layers=len(d.layers), heads=d.heads,
            hidden=d.hidden, words=len(self.sizes.words), dtype=self.sizes.dtype,
            positions=self.sizes.positions, largest=self.sizes.format.words[-1],
            step=f"2^-{self.sizes.format.fraction}", bits=self.sizes.format.bits,
            ballast=d.ballast, certificate=self.certificate.explain(), digest=self.digest,
        )  # fmt: skip


def _sizes(sizes: TextSizes | None, named: dict[str, Any]) -> TextSizes:
    known = {f.name for f in fields(TextSizes)} - {"format"} | set(_FORMAT)
    unknown = sorted(named.keys() - known)
    if unknown:
        raise ParameterError(
            f"TextComputer({unknown[0]}=...): there is no such size; there are "
            f"{', '.join(sorted(known))}."
        )
    base = TextSizes() if sizes is None else sizes
    if not isinstance(base, TextSizes):
        raise ParameterError(f"TextComputer(sizes) takes a TextSizes, got {type(base).__name__}.")
    form = replace(base.format, **{k: named.pop(k) for k in _FORMAT if k in named})
    return replace(base, format=form, **named)


def _without_data(program: ProgramText) -> ProgramText:
    if program.data:
        word, _, line = program.data[0]
        raise TextError(line, word.text, "a program in the weights has no data; they are the text.")
    return program


def _check_greedy(generation: dict[str, Any]) -> None:
    """Refuse whatever would decode otherwise."""
    for name, value in generation.items():
        raise ParameterError(
            f"run(..., {name}={value!r}): a text is run by greedy decoding up to its end, and "
            "nothing else is what its program says. Leave this out; Model.generate() takes it, "
            "without any promise."
        )


def _check_dtype(written: torch.dtype, asked: torch.dtype) -> None:
    if asked != written:
        have, want = (dtype_name(d) for d in (written, asked))
        raise PrecisionError(
            f"this computer is written in {have}; in {want} nothing is promised (half precision "
            f"cannot hold its scores). Take TextComputer(dtype=...) with float32 or float64, and "
            "load its folder in that dtype."
        )


def _tokenizer_files(tokenizer: PreTrainedTokenizerFast) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {p.name: json.loads(p.read_text()) for p in sorted(Path(folder).glob("*.json"))}


_IN_WEIGHTS = """
The program is in the weights; the prompt is its data only:

```
{program}
```
"""

_CARD = """\
---
library_name: transformers
license: apache-2.0
pipeline_tag: text-generation
tags:
- iceform
- {tag}
---

# A {title} that runs what you type

A stock `{kind}`. Nothing was trained, and no code comes with it: the weights follow from
sizes. The prompt is a program; what the model writes is its run, token for token what an exact
interpreter writes.
{mode}
```python
from transformers import pipeline

path = "."  # this folder
run = pipeline("text-generation", path)
print(run({example!r}, return_full_text=False)[0]["generated_text"])
```

{layers} layers of {heads} heads, width {hidden}, {words} words, {positions} positions. Numbers:
steps of {step} near 0, then {bits} significant bits, up to {largest}.

What is unusual: the feed-forward maps are zero, two entries of the stream hold +-{ballast:g}, and
it must run in {dtype}: half precision does not hold its scores. Greedy decoding only. Batches are
padded on the left, with an attention mask.

What each head, feature and token is for is in `ground_truth.json`.

## Certificate

```
{certificate}
```

Weights, SHA-256: `{digest}`
"""
