"""generate() by the thousand, where iceform is not importable.

python -m tests.targets.decoded [written answered] --first 0 --count 1000

A model of token ids is written once; a process that knows transformers alone decodes the prompts of
random problems greedily. Iterates are held to the rounded exact ones, predictions to the exact
prediction, token for token; the only ones that may differ are those that the certificate names as
ties beforehand. One line of JSON each; the exit status says whether anything was violated.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from iceform import targets

from .alone import alone

WRITER = targets.WrittenDescent(2, lr=0.7, positions=96, step=2.0**-7)
ANSWERER = targets.AnsweringDescent(2, 4, positions=96, step=2.0**-7)
STEPS, MOST = 4, 20

RUN = """
    import transformers
    folder, prompts, attention, count, out = sys.argv[1:]
    transformers.utils.logging.disable_progress_bar()
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention
    )
    made = {}
    for name, ids in load_file(prompts).items():
        made[name] = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False,
            min_new_tokens=int(count), max_new_tokens=int(count),
        )
    save_file(made, out)
"""


def data(n, seed):
    """Samples in a box, labels of a line with noise."""
    torch.manual_seed(seed)
    x = 2 * torch.rand(n, 2, dtype=torch.float64) - 1
    return x, (x @ torch.randn(2).double() + 0.2 * torch.randn(n).double()).clamp(-2, 2)


def asked(n, seed):
    """The same with a query."""
    return (*data(n, seed), 2 * torch.rand(2, dtype=torch.float64) - 1)


def plain(spec, x, y, steps):
    """The rounded algorithm, written again in float64."""
    h = spec.step
    x, y, w = (x / h).round() * h, (y / h).round() * h, torch.zeros(2, dtype=torch.float64)
    out = [w]
    for _ in range(steps):
        w = ((w - spec.lr * x.T @ (x @ w - y) / len(x)) / h).round() * h
        out.append(w.clamp(-spec.bound, spec.bound))
        w = out[-1]
    return torch.stack(out)


def judge_written(model, ids, x, y):
    """(tokens, ties that the certificate names, violations) of written iterates."""
    path = model.read(ids[None])
    ties = {tuple(t) for t in model.spec.ties(path, x, y).tolist()}
    exact = model.spec.levels.nearest(model.spec.exact_steps(path[:-1], x, y))
    wrong = {(t + 1, k) for t, k in (path[1:] != exact).nonzero().tolist()}
    other = not ties and not torch.equal(path, plain(model.spec, x, y, len(path) - 1))
    return path[1:].numel(), len(ties), len(wrong - ties) + other


def judge_answered(model, ids, x, y, query):
    """The same of a prediction."""
    value = model.read(ids[None])
    tie = model.spec.tie(x, y, query)
    beyond = model.spec.distance(value, x, y, query=query)
    beyond = not beyond <= model.certificate(x, y, query=query).error
    return 1, int(tie), int(beyond) + (not tie and value != model.spec.reference(x, y, query))


def written_prompt(model, x, y):
    return model.prompt(x, y, steps=STEPS)


def answered_prompt(model, x, y, query):
    return model.prompt(x, y, query=query)


# What is decoded: the model, its problems, its prompts, how many tokens, and the judge.
KINDS = {
    "written": (WRITER, data, written_prompt, 2 * STEPS, judge_written),
    "answered": (ANSWERER, asked, answered_prompt, 1, judge_answered),
}


def decoded(name, first, count, folder):
    """(problems, tokens, ties, violations); problem ``seed`` has 1 + seed % 20 samples."""
    spec, draw, prompt, new, judge = KINDS[name]
    model = targets.write("gpt2", spec, folder / "model")
    problems = defaultdict(list)
    for seed in range(first, first + count):
        n = 1 + seed % MOST
        problems[f"{n}"].append(draw(n, seed))
    given = {n: torch.cat([prompt(model, *p) for p in each]) for n, each in problems.items()}
    save_file(given, folder / "prompts")
    found = torch.zeros(3, dtype=torch.int64)
    for attention in ("eager", "sdpa"):
        files = str(folder / "prompts"), attention, str(new), str(folder / attention)
        alone(RUN, str(model.path), *files)
        made = load_file(folder / attention)
        for n, each in problems.items():
            for ids, problem in zip(made[n], each, strict=True):
                found += torch.tensor(judge(model, ids, *problem))
    return count, *found.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--count", type=int, default=1000)
    asked_for = parser.parse_args()
    wrong = 0
    for name in asked_for.names or KINDS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = decoded(name, asked_for.first, asked_for.count, Path(folder))
        line = dict(zip(("problems", "tokens", "ties", "violations"), found, strict=True))
        line = {"decoded": name, "first": asked_for.first, **line}
        print(json.dumps({**line, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
        wrong += line["violations"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
