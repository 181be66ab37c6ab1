"""Random data against every target, run where iceform is not importable.

python -m tests.targets.attack [names] --first 0 --sets 1000 --large 20 --device cuda

Every target is written once. Prompts of random data (n <= 32, then n = 512)
are saved; a process that knows transformers alone runs them all on that folder, every other one
by eager attention; answers are held to the certificates here. Of programs, whose runs are proven
one by one, the bound is the one that is asked of them. One line of JSON a target; the exit status
says whether anything was violated. ``--first`` splits: data are drawn from seeds that start there.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import iceform as ice
from iceform import targets
from iceform.computer.library import ALGORITHMS
from iceform.computer.library.examples import EXAMPLES

from .alone import alone
from .stock import data

RUN = """
    from pathlib import Path
    import transformers
    from contextlib import nullcontext
    from torch.nn.attention import SDPBackend, sdpa_kernel
    folder, prompts, device = sys.argv[1:]
    transformers.utils.logging.disable_progress_bar()
    # A GPU's fused kernels may make float32 products of TF32 ones, which is not certified.
    kernel = (lambda: sdpa_kernel(SDPBackend.MATH)) if device != "cpu" else nullcontext
    torch.set_grad_enabled(False)
    for attention in ("eager", "sdpa"):
        given, out = {}, {}
        for path in Path(prompts).glob(f"{attention}.prompts"):
            given |= load_file(path)
        network = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention)
        network.to(device)
        for shape in {value.shape for value in given.values()}:
            names = [name for name, value in given.items() if value.shape == shape]
            size = max(1, (4096 if device == "cpu" else 16384) // shape[1])
            for first in range(0, len(names), size):
                some = names[first : first + size]
                batch = torch.cat([given[name] for name in some]).to(device)
                with kernel():
                    hidden = network(inputs_embeds=batch).last_hidden_state.cpu()
                out |= {name: hidden[i : i + 1].clone() for i, name in enumerate(some)}
        save_file(out, Path(prompts) / f"{attention}.hidden")
"""
SMALL, LARGE, CHUNK = 32, 512, 128
ATTENTION = ("eager", "sdpa")
LIBRARY = (
    "least_squares", "huber", "nesterov", "ridge", "lasso", "elastic_net", "logistic", "perceptron",
    "newton_logistic", "conjugate_gradients", "power_iteration", "pagerank", "sinkhorn",
    "gaussian_process", "softmax_attention", "kernel_regression", "k_means", "value_iteration",
    "kalman_filter", "geometric_median",
)  # fmt: skip
LIBRARY_CYCLES = 72  # of any of them in two turns


@dataclass(frozen=True)
class Attacked:
    """A target as an architecture, what is asked of it; ``settings`` are taken in turn."""

    architecture: str
    spec: Any
    bound: float
    settings: tuple[dict[str, Any], ...] = ({},)
    program: str | None = None

    @cached_property
    def compiled(self):
        return self.program and ice.compile(
            ALGORITHMS[self.program], dim=2, samples=self.spec.lanes
        )

    def problem(self, i, n, seed):
        """Samples, labels and what else the prompt holds."""
        given = self.settings[i % len(self.settings)]
        if self.compiled is None:
            return *data(n, seed, self.spec.dim), given
        return *data(n, seed), {**given, "program": self.compiled}


class Library(Attacked):
    """Every algorithm of the library in turn, two turns of its loop, its samples scaled."""

    @cached_property
    def programs(self):
        return {name: EXAMPLES[name].compile() for name in LIBRARY}

    def problem(self, i, n, seed):
        example = EXAMPLES[LIBRARY[i % len(LIBRARY)]]
        scale = torch.rand(1, generator=torch.Generator().manual_seed(seed)).double() / 2
        given = dict(example.settings)
        if "steps" in given:
            given["steps"] = 2
        return (1 - scale) * example.X, example.y, {**given, "program": self.programs[example.name]}


def _layered(name, dtype, samples=LARGE):
    program = ice.compile(ALGORITHMS[name], dim=2, samples=samples)
    return targets.LayeredProgram.of(program, {"steps": 2}, dtype)


def _computer(name, cycles, dtype, samples=LARGE):
    program = ice.compile(ALGORITHMS[name], dim=2, samples=samples)
    return targets.StockComputer.for_programs([program], cycles, dtype)


def _library(dtype):
    programs = [EXAMPLES[name].compile() for name in LIBRARY]
    return targets.StockComputer.for_programs(programs, LIBRARY_CYCLES, dtype)


RIDGE = ({}, {"lr": 0.3, "penalty": 0.2}, {"lr": 0.2, "momentum": 0.7})
LOSSES = ({"f": "tanh(z)", "lr": 0.5}, {"f": "sigmoid(z) - 0.5", "lr": 1.0})
SINGLE = {"dtype": "float32", "lr": 0.2, "reach": 2.0, "groups": 4}
LOGISTIC = ({"steps": 2, "lr": 0.25}, {"steps": 2, "lr": 0.125})
KERNEL = ({"query": torch.tensor([0.2, -0.7]).double(), "gamma": 2.0}, {"gamma": 0.5})
WIDE = 2 * LARGE + 64
BOUNDS = {"float64": 1e-8, "float32": 1e-4}
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
        "bert", targets.GeneralDescent(3, 4, positions=WIDE, groups=2), 1e-10, LOSSES
    ),
    "bert any f, float32": lambda: Attacked(
        "bert",
        targets.GeneralDescent(
            2, 2, positions=WIDE, dtype="float32", groups=8, lr=0.125, reach=1.5
        ),
        1e-4,
    ),
    "bert program in the weights": lambda: Attacked(
        "bert", _layered("logistic", "float64"), 1e-8, LOGISTIC, program="logistic"
    ),
    "bert program in the weights, float32": lambda: Attacked(
        "bert", _layered("logistic", "float32"), 1e-4, LOGISTIC, program="logistic"
    ),
    **{
        f"{name} {program} in the prompt{note}": partial(
            lambda name, program, cycles, settings, dtype: Attacked(
                name, _computer(program, cycles, dtype), BOUNDS[dtype], settings, program
            ),
            name, program, cycles, settings, dtype,
        )
        for name in ("albert", "bert")
        for program, cycles, settings in (
            ("kernel_regression", 8, KERNEL), ("logistic", 24, LOGISTIC),
        )
        for dtype, note in (("float64", ""), ("float32", ", float32"))
    },
    "albert library in the prompt": lambda: Library("albert", _library("float64"), 1e-8),
}  # fmt: skip


@dataclass(frozen=True)
class Campaign:
    """Some data sets for one target."""

    name: str
    sets: int
    large: int
    first: int = 0

    @cached_property
    def case(self):
        return TARGETS[self.name]()

    @cached_property
    def sizes(self):
        """Number of samples and seed of every data set."""
        small = [(1 + seed * 7 % SMALL, seed) for seed in range(self.first, self.first + self.sets)]
        return small + [(LARGE, seed) for seed in range(self.first, self.first + self.large)]

    def problem(self, i):
        return self.case.problem(i, *self.sizes[i])

    def prompt(self, i):
        x, y, given = self.problem(i)
        return self.case.spec.prompt(x, y, **given)

    def value(self, i, hidden):
        """The answer in a stream, as one vector."""
        *_, given = self.problem(i)
        return self.case.spec.flat(hidden, **given)

    def judged(self, i, value):
        """(number of samples, certified, measured)."""
        x, y, given = self.problem(i)
        certificate, measured, _ = self.case.spec.judge(value, x, y, _attention(i), **given)
        certified = self.case.bound if "program" in given else certificate.error
        return self.sizes[i][0], certified, measured


def answers(campaign, folder, device="cpu"):
    """What a process without iceform makes of every prompt."""
    model = targets.write(campaign.case.architecture, campaign.case.spec, folder / "model")
    found = {}
    for start in range(0, len(campaign.sizes), CHUNK):
        place = folder / f"{start}"
        place.mkdir()
        these = range(start, min(start + CHUNK, len(campaign.sizes)))
        for attention in ATTENTION:
            some = {str(i): campaign.prompt(i) for i in these if _attention(i) == attention}
            if some:
                save_file(some, place / f"{attention}.prompts")
        alone(RUN, str(model.path), str(place), device)
        for path in place.glob("*.hidden"):
            made = load_file(path)
            found |= {int(i): campaign.value(int(i), hidden) for i, hidden in made.items()}
        shutil.rmtree(place)
    return found


def verdict(campaign, found):
    """Data sets, violations, and the largest certified and measured errors, by n."""
    out = {"sets": campaign.sets, "large": campaign.large, "violations": 0}
    out |= dict.fromkeys(("certified", "measured", "certified_large", "measured_large"), 0.0)
    for i in range(len(campaign.sizes)):
        try:
            n, certified, measured = campaign.judged(i, found[i])
        except ice.errors.BoundError:  # data beyond what the program states, as check would say
            out["refused"] = out.get("refused", 0) + 1
            continue
        out["violations"] += not measured <= certified
        out["violations"] += not certified <= campaign.case.bound
        more = "" if n <= SMALL else "_large"
        for kind, value in (("certified", certified), ("measured", measured)):
            out[kind + more] = max(out[kind + more], value)
    return out


def attack(name, sets, large, folder, first=0, device="cpu"):
    """Answers and verdict."""
    campaign = Campaign(name, sets, large, first)
    return verdict(campaign, answers(campaign, folder, device))


def _attention(i):
    """Every other one; settings are taken in turn too, so not the same ones."""
    return ATTENTION[i // 6 % 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="; ".join(TARGETS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--sets", type=int, default=1000, help="data sets of n <= 32")
    parser.add_argument("--large", type=int, default=20, help="data sets of n = 512")
    parser.add_argument("--device", default="cpu", help="where the network runs")
    asked, wrong = parser.parse_args(), 0
    for name in asked.names or TARGETS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = attack(name, asked.sets, asked.large, Path(folder), asked.first, asked.device)
        line = {"target": name, "first": asked.first, **found}
        print(json.dumps({**line, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
        wrong += found["violations"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
