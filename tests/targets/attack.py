"""Random data against every target, run where iceform is not importable.

python -m tests.targets.attack [names] --first 0 --sets 1000 --large 20

Every target is written once. Prompts of random data (n <= 32, then n = 512)
are saved; a process that knows transformers alone runs them all on that folder, every other one
by eager attention; answers are held to the certificates here. Of programs, whose runs are proven
one by one, the bound is the one that is asked of them. One line of JSON a target; the exit status
says whether anything was violated. ``--first`` splits: data are drawn from seeds that start there.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import targets
from iceform.computer.library import ALGORITHMS

from .alone import alone

RUN = """
    from pathlib import Path
    import transformers
    folder, prompts = sys.argv[1:]
    transformers.utils.logging.disable_progress_bar()
    for path in sorted(Path(prompts).glob("*.prompts")):
        network = transformers.AutoModel.from_pretrained(folder, attn_implementation=path.stem)
        given, out = load_file(path), {}
        for shape in {value.shape for value in given.values()}:
            names = [name for name, value in given.items() if value.shape == shape]
            size = max(1, 4096 // shape[1])
            for first in range(0, len(names), size):
                some = names[first : first + size]
                with torch.no_grad():
                    batch = torch.cat([given[name] for name in some])
                    hidden = network(inputs_embeds=batch).last_hidden_state
                out |= {name: hidden[i : i + 1].clone() for i, name in enumerate(some)}
        save_file(out, path.with_suffix(".hidden"))
"""
SMALL, LARGE, CHUNK = 32, 512, 128
ATTENTION = ("eager", "sdpa")


@dataclass(frozen=True)
class Attacked:
    """A target as an architecture; ``settings`` are taken in turn.

    ``bound`` is what is asked of n <= 32; of more samples, that certificates hold: in float32 a sum
    of n terms alone may be off by n units.
    """

    architecture: str
    spec: Any
    bound: float
    settings: tuple[dict[str, Any], ...] = ({},)
    program: str | None = None


def _layered(name, dtype, samples=LARGE):
    program = ice.compile(ALGORITHMS[name], dim=2, samples=samples)
    return targets.LayeredProgram.of(program, {"steps": 2}, dtype)


def _computer(name, cycles, dtype, samples=LARGE):
    program = ice.compile(ALGORITHMS[name], dim=2, samples=samples)
    return targets.StockComputer.for_programs([program], cycles, dtype)


RIDGE = ({}, {"lr": 0.3, "penalty": 0.2}, {"lr": 0.2, "momentum": 0.7})
LOSSES = ({"f": "tanh(z)", "lr": 0.5}, {"f": "sigmoid(z) - 0.5", "lr": 1.0})
SINGLE = {"dtype": "float32", "lr": 0.2, "reach": 2.0}
LOGISTIC = ({"steps": 2, "lr": 0.25}, {"steps": 2, "lr": 0.125})
KERNEL = ({"query": torch.tensor([0.2, -0.7]).double(), "gamma": 2.0}, {"gamma": 0.5})
WIDE = 2 * LARGE + 64
TARGETS = {
    "gpt2 least squares": lambda: Attacked(
        "gpt2", targets.LinearDescent(3, 6, positions=WIDE), 1e-10, RIDGE
    ),
    "gpt2 least squares, float32": lambda: Attacked(
        "gpt2", targets.LinearDescent(2, 6, positions=WIDE, **SINGLE), 1e-4
    ),
    "llama least squares, float32": lambda: Attacked(
        "llama", targets.LinearDescent(2, 6, positions=WIDE, **SINGLE), 1e-4
    ),
    "gpt2 stochastic": lambda: Attacked(
        "gpt2", targets.StochasticDescent(3, 4, positions=WIDE), 1e-10, ({}, {"lr": 0.2})
    ),
    "llama stochastic, float32": lambda: Attacked(
        "llama",
        targets.StochasticDescent(2, 4, positions=WIDE, dtype="float32", lr=0.1, span=2.0),
        1e-4,
    ),
    "bert any f": lambda: Attacked(
        "bert", targets.GeneralDescent(3, 4, positions=WIDE), 1e-10, LOSSES
    ),
    "bert any f, float32": lambda: Attacked(
        "bert",
        targets.GeneralDescent(2, 2, positions=WIDE, dtype="float32", lr=0.125, reach=1.5),
        1e-4,
    ),
    "bert program in the weights": lambda: Attacked(
        "bert", _layered("logistic", "float64"), 1e-8, LOGISTIC, program="logistic"
    ),
    "bert program in the weights, float32": lambda: Attacked(
        "bert", _layered("logistic", "float32"), 1e-4, LOGISTIC, program="logistic"
    ),
    "albert program in the prompt": lambda: Attacked(
        "albert",
        _computer("kernel_regression", 8, "float64"),
        1e-8,
        KERNEL,
        program="kernel_regression",
    ),
    "albert program in the prompt, float32": lambda: Attacked(
        "albert",
        _computer("kernel_regression", 8, "float32"),
        1e-4,
        KERNEL,
        program="kernel_regression",
    ),
    "albert logistic in the prompt": lambda: Attacked(
        "albert", _computer("logistic", 24, "float64"), 1e-8, LOGISTIC, program="logistic"
    ),
    "bert program in the prompt": lambda: Attacked(
        "bert",
        _computer("kernel_regression", 8, "float64"),
        1e-8,
        KERNEL,
        program="kernel_regression",
    ),
}


def data(dim, n, seed):
    """Samples in a box, labels of a line with noise."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64, generator=draw) - 1
    w, noise = (torch.randn(k, dtype=torch.float64, generator=draw) for k in (dim, n))
    return x, (x @ w / dim + 0.2 * noise).clamp(-1, 1)


def attack(name, sets, large, folder, first=0):
    """Data sets, violations, and the largest certified and measured errors, by n."""
    case = TARGETS[name]()
    model = targets.write(case.architecture, case.spec, folder / "model")
    program = None
    if case.program:
        program = ice.compile(ALGORITHMS[case.program], dim=2, samples=case.spec.lanes)
    dim = 2 if program else case.spec.dim
    sizes = [(1 + seed * 7 % SMALL, seed) for seed in range(first, first + sets)]
    sizes += [(LARGE, seed) for seed in range(first, first + large)]
    found = {"sets": sets, "large": large, "violations": 0}
    found |= dict.fromkeys(("certified", "measured", "certified_large", "measured_large"), 0.0)
    for start in range(0, len(sizes), CHUNK):
        chunk = dict(enumerate(sizes[start : start + CHUNK], start))
        given = {i: dict(case.settings[i % len(case.settings)]) for i in chunk}
        if program:
            given = {i: {**g, "program": program} for i, g in given.items()}
        problems = {i: data(dim, n, seed) for i, (n, seed) in chunk.items()}
        for i, hidden in _hidden(model, problems, given, folder / f"{start}").items():
            n, attention = sizes[i][0], _attention(i)
            certified, measured = _judged(model, case, hidden, *problems[i], attention, given[i])
            found["violations"] += not measured <= certified
            found["violations"] += n <= SMALL and not certified <= case.bound
            more = "" if n <= SMALL else "_large"
            for kind, value in (("certified", certified), ("measured", measured)):
                found[kind + more] = max(found[kind + more], value)
    return found


def _attention(i):
    """Every other one; settings are taken in turn too, so not the same ones."""
    return ATTENTION[i // 6 % 2]


def _hidden(model, problems, given, place):
    """What a process without iceform makes of prompts."""
    place.mkdir()
    for attention in ATTENTION:
        prompts = {
            str(i): model.prompt(*xy, **given[i])
            for i, xy in problems.items()
            if _attention(i) == attention
        }
        if prompts:
            save_file(prompts, place / f"{attention}.prompts")
    alone(RUN, str(model.path), str(place))
    made = [load_file(path) for path in place.glob("*.hidden")]
    return {int(name): hidden for each in made for name, hidden in each.items()}


def _judged(model, case, hidden, x, y, attention, given):
    value = model.read(hidden)
    if case.program:
        found = case.spec.found(value, given["program"])
        value = torch.cat([part.flatten() for part in found.values()])
        return case.bound, case.spec.judge(value, x, y, attention, **given)[1]
    certificate, measured = case.spec.judge(value, x, y, attention, **given)
    return certificate.error, measured


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="; ".join(TARGETS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--sets", type=int, default=1000, help="data sets of n <= 32")
    parser.add_argument("--large", type=int, default=20, help="data sets of n = 512")
    asked = parser.parse_args()
    wrong = 0
    for name in asked.names or TARGETS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = attack(name, asked.sets, asked.large, Path(folder), asked.first)
        line = {"target": name, "first": asked.first, **found}
        print(json.dumps({**line, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
        wrong += found["violations"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
