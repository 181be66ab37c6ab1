"""Random data against every target, run where iceform is not importable.

python -m tests.targets.attack [names] --sets 1000 --large 20

Every target is written once. Prompts of random data (n <= 32, then n = 512 where the target takes
it) are saved; a process that knows transformers alone runs them all on that folder; answers are
held to the certificates here. Of programs, whose runs are proven one by one, the bound is the one
that is asked of them.
"""

import argparse
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import targets
from iceform.computer.library import ALGORITHMS

from .stock import alone

RUN = """
    from pathlib import Path
    import transformers
    folder, prompts, attention = sys.argv[1:]
    transformers.utils.logging.disable_progress_bar()
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention)
    for path in sorted(Path(prompts).glob("*.prompts")):
        given, out = load_file(path), {}
        for shape in {value.shape for value in given.values()}:
            names = [name for name, value in given.items() if value.shape == shape]
            for first in range(0, len(names), 16):
                some = names[first : first + 16]
                with torch.no_grad():
                    batch = torch.cat([given[name] for name in some])
                    hidden = network(inputs_embeds=batch).last_hidden_state
                out |= {name: hidden[i : i + 1].clone() for i, name in enumerate(some)}
        save_file(out, path.with_suffix(".hidden"))
"""
SMALL, LARGE, CHUNK = 32, 512, 510


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
    most: int = LARGE
    program: str | None = None


def _layered(name, dtype, samples=LARGE):
    program = ice.compile(ALGORITHMS[name], dim=2, samples=samples)
    return targets.LayeredProgram.of(program, {"steps": 2}, dtype)


RIDGE = ({}, {"lr": 0.3, "penalty": 0.2}, {"lr": 0.2, "momentum": 0.7})
LOSSES = ({"f": "tanh(z)", "lr": 0.5}, {"f": "sigmoid(z) - 0.5", "lr": 1.0})
SINGLE = {"dtype": "float32", "lr": 0.2, "reach": 2.0}
LOGISTIC = ({"steps": 2, "lr": 0.25}, {"steps": 2, "lr": 0.125})
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
        most=8,
    ),
    "bert program in the weights": lambda: Attacked(
        "bert", _layered("logistic", "float64"), 1e-8, LOGISTIC, program="logistic"
    ),
    "bert program in the weights, float32": lambda: Attacked(
        "bert", _layered("logistic", "float32"), 1e-4, LOGISTIC, program="logistic"
    ),
    "albert program in the prompt": lambda: Attacked(
        "albert",
        targets.StockComputer.for_programs(
            [ice.compile(ALGORITHMS["kernel_regression"], dim=2, samples=SMALL)], 8
        ),
        1e-8,
        most=SMALL,
        program="kernel_regression",
    ),
}


def data(dim, n, seed):
    """Samples in a box, labels of a line with noise."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, dim, dtype=torch.float64, generator=draw) - 1
    w, noise = (torch.randn(k, dtype=torch.float64, generator=draw) for k in (dim, n))
    return x, (x @ w / dim + 0.2 * noise).clamp(-1, 1)


def attack(name, sets, large, folder):
    """(data sets, violations, and for n <= 32 the largest certified and measured errors)."""
    case = TARGETS[name]()
    model = targets.write(case.architecture, case.spec, folder / "model")
    count = case.spec.lanes if case.program else case.most
    program = None
    if case.program:
        program = ice.compile(ALGORITHMS[case.program], dim=2, samples=count)
    sizes = [1 + seed * 7 % min(SMALL, case.most) for seed in range(sets)]
    sizes += [LARGE] * (large if case.most >= LARGE else 0)
    dim = 2 if program else case.spec.dim
    given = list(itertools.islice(itertools.cycle(case.settings), len(sizes)))
    sent = [{**g, "program": program} if program else g for g in given]
    worst = [0.0, 0.0]
    violations = 0
    for first in range(0, len(sizes), CHUNK):
        chunk = range(first, min(first + CHUNK, len(sizes)))
        attention = ("eager", "sdpa")[first // CHUNK % 2]
        problems = {str(i): data(dim, sizes[i], i) for i in chunk}
        prompts = {i: model.prompt(*xy, **sent[int(i)]) for i, xy in problems.items()}
        place = folder / f"{first}"
        place.mkdir()
        save_file(prompts, place / "all.prompts")
        alone(RUN, str(model.path), str(place), attention)
        hidden = load_file(place / "all.hidden")
        for i, (x, y) in problems.items():
            certified, measured = _judged(model, case, hidden[i], x, y, attention, sent[int(i)])
            small = len(x) <= SMALL
            violations += not measured <= certified
            violations += small and not certified <= case.bound
            if small:
                worst = [max(worst[0], certified), max(worst[1], measured)]
    return len(sizes), violations, *worst


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
    parser.add_argument("names", nargs="*", default=list(TARGETS))
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--large", type=int, default=20)
    asked = parser.parse_args()
    for name in asked.names or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            count, wrong, certified, measured = attack(name, asked.sets, asked.large, Path(folder))
        line = f"{name}: {count} data sets, {wrong} violations"
        print(f"{line}, certified {certified:.1e}, measured {measured:.1e}", flush=True)


if __name__ == "__main__":
    main()
