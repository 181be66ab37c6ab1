"""The authors' own code, run where a copy of it is given; nothing of it is in this package.

A copy is taken only if its files are those of the commit that :mod:`studies.script` names. Theirs
are the data with the random numbers of their seeds, the networks and their starting points, the
split, the targets, and the tests of studies 3 and 4. Ours are the steps: the networks of all seeds
are stepped side by side (``vmap``) by :mod:`studies.training`, for their own loop takes one network
at a time, on a CPU. So the shuffles are others, the incomplete batch at the end of an epoch is left
out, and the few lines that test studies 1 and 2, which stand inside their loop, are written down
here once more. That loop on the same batches comes to the same losses: the tests compare the two.

Study 4's table comes from the package instead of the network, and its 8 heads, which the code
refuses, are 4.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from iceform.errors import IntegrityError
from studies.house_prices import raw_house_prices
from studies.housing import drawn
from studies.networks import Parameters, stack
from studies.randomness import take
from studies.script import COMMIT, REPOSITORY
from studies.statistics import ALGORITHMS
from studies.study import Plan, Record, Trainable, after_figure, chunks
from studies.training import Batch, Curves, Stack, Training

__all__ = ["build_theirs", "check_copy"]

# SHA-256 of the files at the commit, the first half.
FILES = {
    "att_sim_f.py": "c4dd5cb03c6f25106025d78c39fb4020",
    "att_sim_statistical.py": "eb7bc3f43184b6b5ad9bf12005ce2806",
    "att_sim_statistical_ames_data.py": "6250bb0a1f84ca8a29dd294af9a706bf",
    "attention_model.py": "6db480abac56b6c94adfa44addc8b378",
    "attn_sim_attn.py": "02fdf5788cebde08eb76db38ac0dbacc",
    "interpolation.py": "9bab6c8248a57f46aa7c2b813591e61f",
}
_SEED = 1234  # of study 2's first training; the others follow it
_TESTS = range(42, 47)  # the seeds of study 3's tests
_EVALUATED = 480  # samples at a time, a multiple of the script's batch


def check_copy(folder: Path) -> Path:
    """The folder, if it holds the files of the commit."""
    for name, digest in FILES.items():
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{folder} has no {name}; clone {REPOSITORY} at {COMMIT}")
        found = sha256(path.read_bytes()).hexdigest()[: len(digest)]
        if found != digest:
            raise IntegrityError(
                f"{path} is not the file of commit {COMMIT[:12]} (SHA-256 {found[:12]}, wanted "
                f"{digest[:12]}); check that commit out"
            )
    return folder


def build_theirs(plan: Plan[Any], device: torch.device, folder: Path) -> Trainable:
    """Their data and networks of a plan of the column ``their_script``, ready to be stepped."""
    kinds: dict[str, type[Any]] = {
        "residual": _Residual,
        "heads": _Heads,
        "statistics": _Statistics,
        "housing": _Housing,
    }
    made: Trainable = kinds[plan.spec.study](plan, device, folder)
    return made


@contextlib.contextmanager
def script(folder: Path, name: str) -> Iterator[Any]:
    """A script of theirs, in silence and without a library for its plots, which are not drawn.

    It stays imported: compilers look the networks' modules up by name.
    """
    stubs = {name: ModuleType(name) for name in ("matplotlib", "matplotlib.pyplot")}
    held = {name: sys.modules.pop(name) for name in stubs if name in sys.modules}
    sys.modules.update(stubs)
    sys.path.insert(0, str(check_copy(folder)))
    try:
        theirs = importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for stub in stubs:
            del sys.modules[stub]
        sys.modules.update(held)
    with contextlib.redirect_stdout(io.StringIO()):
        yield theirs


class _SplitError(Exception):
    """Their function has come to the split; what follows is the loop."""


def _start(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def _started(theirs: Any, network: str, *arguments: Any) -> tuple[list[nn.Module], Tensor]:
    """Networks and order of the samples, as their ``train_model`` makes them before its loop."""
    made: list[nn.Module] = []
    build, split = getattr(theirs, network), theirs.random_split

    def keep(**sizes: int) -> nn.Module:
        made.append(build(**sizes))
        return made[-1]

    def stop(*of: Any) -> None:
        raise _SplitError([index for part in split(*of) for index in part.indices])

    setattr(theirs, network, keep)
    theirs.random_split = stop
    try:
        theirs.train_model(*arguments)
    except _SplitError as found:
        return made, torch.tensor(found.args[0])
    finally:
        setattr(theirs, network, build)
        theirs.random_split = split
    raise IntegrityError(f"{theirs.__name__} does not split its data; is it the commit's?")


class _Theirs(Trainable):
    """Networks of theirs, one for each seed, in our engine."""

    script: str

    def __init__(self, plan: Plan[Any], device: torch.device, folder: Path) -> None:
        self.plan, self.spec, self.folder, self.device = plan, plan.spec, folder, device
        self.modules: list[nn.Module] = []
        with script(folder, self.script) as theirs:
            self.prepare(theirs)
        shape = self.modules[0]
        for module in self.modules:
            module.requires_grad_(False)

        def network(parameters: Parameters, *inputs: Tensor) -> Tensor:
            def one(own: Parameters, *x: Tensor) -> Tensor:
                out: Tensor = functional_call(shape, own, x)
                return out

            return vmap(one)(parameters, *inputs)

        spec = self.spec
        self.network = network
        self.stack = Stack(
            plan.name, network, stack([dict(m.named_parameters()) for m in self.modules]),
            Training(spec.epochs, spec.batch, spec.lr), spec.train, plan.seeds, self.batch,
            self.validate, self.draw,
        )  # fmt: skip

    validate: Callable[[Parameters], Tensor] | None = None
    draw: Callable[[object, int], Tensor] | None = None

    def prepare(self, theirs: Any) -> None:
        """Draw data and build networks with the script's own functions."""
        raise NotImplementedError

    def batch(self, index: Tensor) -> Batch:
        """The samples at an index of shape (seeds, batch)."""
        raise NotImplementedError

    def errors(self, parameters: Parameters) -> Tensor:
        """Held-out squared errors by sample and entry, (seeds, test, ...)."""
        parts = []
        for part in chunks(self.spec.test, _EVALUATED):
            at = (self.spec.train + part).to(self.device).expand(len(self.plan.seeds), -1)
            inputs, target = self.batch(at)
            parts.append((self.network(parameters, *inputs) - target).square())
        return torch.cat(parts, 1)

    def by_batch(self, errors: Tensor) -> Tensor:
        """Their mean of the means of batches, of which the last may be smaller: (seeds,)."""
        means = [part.flatten(1).mean(1) for part in errors.split(self.spec.batch, 1)]
        return torch.stack(means).mean(0)

    def record(self, place: int, metrics: dict[str, float], curves: Curves, **of: float) -> Record:
        """A seed's record; ``of`` has what a curve is divided by."""
        lines = {"train": [float(c[place]) / of.get("train", 1) for c in curves.train]}
        if curves.held_out:
            lines["test"] = [float(c[place]) for c in curves.held_out]
        notes = {"commit": COMMIT, "file": f"{self.script}.py"}
        return Record(self.plan, self.plan.seeds[place], metrics, lines, notes)

    def trained(self, parameters: Parameters) -> Iterator[nn.Module]:
        """Their modules with what was learnt, on the CPU."""
        for place, module in enumerate(self.modules):
            module.load_state_dict({name: p[place].cpu() for name, p in parameters.items()})
            yield module.eval()


class _Residual(_Theirs):
    script = "att_sim_f"

    def prepare(self, theirs: Any) -> None:
        spec: Any = self.spec
        drawn = []
        for seed in self.plan.seeds:
            _start(seed)
            data = theirs.SimFDataset(spec.samples, spec.tokens, spec.dim)
            made, order = _started(
                theirs, "SingleHeadAttentionModel_f", spec.points, data, spec.epochs, spec.batch,
                spec.lr, spec.tokens, spec.hidden,
            )  # fmt: skip
            self.modules += made
            drawn.append((data.x[order], data.targets[order], data.w))
        self.x, self.targets, self.w = (
            torch.stack(parts).to(self.device) for parts in zip(*drawn, strict=True)
        )

    def batch(self, index: Tensor) -> Batch:
        w = self.w[:, None].expand(-1, index.shape[1], -1, -1)
        return (take(self.x, index), w), take(self.targets, index)

    def validate(self, parameters: Parameters) -> Tensor:
        return self.by_batch(self.errors(parameters))

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        variance = (self.targets - self.targets.mean(1, keepdim=True)).square().flatten(1).mean(1)
        return [
            self.record(
                place,
                {
                    "mse": float(curves.held_out[-1][place]),
                    "trivial mse": float(variance[place]),
                    "train mse": float(curves.train[-1][place]),
                    **after_figure(curves, place),
                },
                curves,
            )
            for place in range(len(self.plan.seeds))
        ]


class _Three(nn.Module):
    """Their networks of K, Q and V above each other: the mean square is the sum of all three's."""

    def __init__(self, parts: Sequence[nn.Module], rows: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.rows = nn.ModuleList(parts), tuple(rows)
        self.scales = [(sum(rows) / own) ** 0.5 for own in rows]

    def weighed(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([p * s for p, s in zip(parts, self.scales, strict=True)], -2)

    def split(self, weighed: Tensor) -> list[Tensor]:
        """The three as they are, of what :meth:`weighed` made."""
        return [p / s for p, s in zip(weighed.split(self.rows, -2), self.scales, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return self.weighed([part(x) for part in self.parts])


class _Heads(_Theirs):
    script = "attn_sim_attn"

    def prepare(self, theirs: Any) -> None:
        spec: Any = self.spec
        _start(0)  # the script draws one data set and target, before any seed is set
        data = theirs.SimAttentionDataset(spec.samples, spec.tokens, spec.dim, spec.width)
        orders = []
        for seed in self.plan.seeds:
            _start(_SEED + seed)
            made, order = _started(
                theirs, "onelayer_MultiLayerAttentionModel_attn", int(self.plan.labels["heads"]),
                spec.points, data, spec.epochs, spec.batch, spec.lr, spec.tokens, spec.hidden,
            )  # fmt: skip
            self.modules.append(_Three(made, [spec.width, spec.width, spec.value_width]))
            orders.append(order)
        self.order = torch.stack(orders).to(self.device)
        for name in ("data", "wk", "wq", "wv"):
            setattr(data, name, getattr(data, name).to(self.device))
        self.data = data

    def _samples(self, index: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """X of examples, and Y, K, Q, V by the script's own target."""
        x = self.data.data[self.order.gather(1, index)]
        return x, self.data.target(x)

    def batch(self, index: Tensor) -> Batch:
        x, (_, *kqv) = self._samples(index)
        return (x,), self.modules[0].weighed(kqv)  # type: ignore[operator]

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        three: Any = self.modules[0]
        off: dict[str, list[Tensor]] = {n: [] for n in ("mse", "mse of K", "mse of Q", "mse of V")}
        for part in chunks(self.spec.test, _EVALUATED):
            at = (self.spec.train + part).to(self.device).expand(len(self.plan.seeds), -1)
            x, (y, *kqv) = self._samples(at)
            k, q, v = made = three.split(self.network(parameters, x))
            out = v @ torch.softmax(k.mT @ q, -1)  # attn_sim_attn.py, lines 166 and 167
            for name, got, exact in zip(off, (out, *made), (y, *kqv), strict=True):
                off[name].append((got - exact).square())
        means = {name: self.by_batch(torch.cat(parts, 1)) for name, parts in off.items()}
        return [
            self.record(place, {n: float(m[place]) for n, m in means.items()}, curves, train=3)
            for place in range(len(self.plan.seeds))
        ]


class _Prompted(_Theirs):
    """Studies 3 and 4: x and w in, a label out; tested by the scripts' own functions."""

    x: Tensor
    y: Tensor
    w: Tensor

    def network_of(self, theirs: Any) -> nn.Module:
        spec: Any = self.spec
        made: nn.Module = theirs.OneLayerAttention(
            spec.dim, spec.hidden, spec.dim, spec.tokens, spec.heads, spec.points
        )
        return made

    def test(self, theirs: Any, module: nn.Module, place: int) -> dict[str, float]:
        """Errors by algorithm."""
        raise NotImplementedError

    @torch.no_grad()
    def judge(self, parameters: Parameters, curves: Curves) -> list[Record]:
        with script(self.folder, self.script) as theirs:
            found = [
                self.test(theirs, module, place)
                for place, module in enumerate(self.trained(parameters))
            ]
        return [self.record(place, metrics, curves) for place, metrics in enumerate(found)]


class _Statistics(_Prompted):
    script = "att_sim_statistical"

    def prepare(self, theirs: Any) -> None:
        spec: Any = self.spec
        drawn = []
        for seed in self.plan.seeds:
            _start(seed)
            data = theirs.SimStatsDataset(
                spec.samples, spec.tokens, spec.dim, spec.dim, "mixed", spec.noise
            )
            self.modules.append(self.network_of(theirs))
            drawn.append([torch.stack(parts) for parts in zip(*data.sample, strict=True)])
        self.x, self.y, self.w = (
            torch.stack(parts).to(self.device) for parts in zip(*drawn, strict=True)
        )

    def batch(self, index: Tensor) -> Batch:
        return (take(self.x, index), take(self.w, index)), take(self.y, index)

    def test(self, theirs: Any, module: nn.Module, place: int) -> dict[str, float]:
        spec: Any = self.spec
        draws: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
        for seed in _TESTS:
            _start(seed)
            for name in ("lasso", "linear", "ridge"):  # in the script's order
                draws[name].append(
                    theirs.evaluate_on_task(
                        module, name, spec.fresh // len(_TESTS), spec.dim, spec.dim, spec.tokens
                    )
                )
        return {f"{n}: frozen mse": float(np.mean(d)) for n, d in draws.items()} | {
            f"{n}: spread over test draws": float(np.std(d)) for n, d in draws.items()
        }


class _Housing(_Prompted):
    script = "att_sim_statistical_ames_data"

    def prepare(self, theirs: Any) -> None:
        theirs.fetch_openml = _table
        orders = []
        for seed in self.plan.seeds:
            _start(seed)
            data = theirs.AmesStatsData(algorithm="mixed")
            train, test = theirs.random_split(data, [self.spec.train, self.spec.test])
            self.modules.append(self.network_of(theirs))
            orders.append([*train.indices, *test.indices])
        self.order = torch.tensor(orders)
        self.x = data.features[self.order].to(self.device)
        self.y = data.targets[self.order].to(self.device)
        self.w = torch.stack([data.weights[name] for name in ALGORITHMS]).to(self.device)

    def draw(self, seed: object, epoch: int) -> Tensor:
        return drawn(self.spec, self.device, seed, epoch)

    def batch(self, index: Tensor) -> Batch:
        rows, which = index // len(self.w), index % len(self.w)
        return (take(self.x, rows)[:, :, None], self.w[which]), take(self.y, rows)[:, :, None]

    def test(self, theirs: Any, module: nn.Module, place: int) -> dict[str, float]:
        theirs.fetch_openml = _table
        held = self.order[place, self.spec.train :].tolist()
        return {
            f"{name}: frozen mse": theirs.evaluate_on_task(module, name, held)
            for name in ALGORITHMS
        }


def _table(**_: Any) -> SimpleNamespace:
    return SimpleNamespace(frame=raw_house_prices())
