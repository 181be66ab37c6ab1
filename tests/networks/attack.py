"""Certificates of one input, attacked: random networks in context against their originals.

``python -m tests.networks.attack --first 0 --networks 700 --processes 1`` draws networks by seed,
certifies 16 inputs of each, and prints how many outputs were off by more, and how much is certified
of what is off. ``--write FILE`` keeps that; ``--page FILE ...`` puts what files hold into
docs/networks.md.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import iceform as ice
from iceform.networks import in_context
from tests.networks.scoreboard import write

KEPT = Path(__file__).parents[2] / "results" / "pages" / "networks-attacked.json"
KINDS = 10
FRESH = 16  # inputs a network


class Gated(nn.Module):
    """SwiGLU behind a norm, LLaMA's way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Bilinear(nn.Module):
    """Scores of two maps without a softmax, and their square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.one(x) @ self.two(x).mT
        return scores**2 / (1 + scores**2).sum(-1, keepdim=True)


class Tied(nn.Module):
    """Causal heads whose one matrix makes queries, keys and, transposed, what they give."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(self.norm(x))
        heads = F.scaled_dot_product_attention(y, y, x, is_causal=True)
        return x + heads @ self.inner.weight


class Pooled(nn.Module):
    """The mean of an encoder's tokens, of length 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 6, batch_first=True, activation="gelu", dropout=0.0
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layer(x).mean(-2), dim=-1)


class Written(nn.Module):
    """Writes what one map gives into what another gave."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.one(x), torch.tanh(self.two(x))
        y[..., ::2] = z[..., 1::2]
        y[:, 0] = z[:, -1].sum(-1, keepdim=True)
        y[:, -1].mul_(z[:, 0])
        y[:, 1, 0].fill_(0.5)
        return x + y


def drawn(seed: int, layers: int | None = None) -> tuple[nn.Module, torch.Tensor]:
    """A tiny network of random kind, and an input."""
    torch.manual_seed(seed)
    kind = seed % KINDS
    width, tokens = 2 * int(torch.randint(1, 4, ())), int(torch.randint(2, 5, ()))
    x = torch.randn(2, tokens, width)
    model: nn.Module
    if kind == 3 or layers:
        act = ("gelu", "relu")[seed % 2]
        layer = nn.TransformerEncoderLayer(
            width, 2, 8, batch_first=True, activation=act, norm_first=bool(seed % 5)
        )
        count = layers or int(torch.randint(1, 3, ()))
        model = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
    elif kind == 4:
        model = nn.Sequential(*(Gated(width) for _ in range(int(torch.randint(1, 3, ())))))
    elif kind == 5:
        model = nn.Sequential(nn.LayerNorm(width), Bilinear(width))
    elif kind == 6:
        inner = nn.Conv1d(tokens, 4, 2, padding=int(torch.randint(2, ())))
        model = nn.Sequential(inner, nn.GELU(), nn.Conv1d(4, 2, 1), nn.Softmax(-1))
    elif kind == 7:
        model = nn.Sequential(*(Tied(width) for _ in range(int(torch.randint(1, 3, ())))))
    elif kind == 8:
        model = Pooled(width)
    elif kind == 9:
        model = nn.Sequential(*(Written(width) for _ in range(int(torch.randint(1, 3, ())))))
    else:
        parts: list[nn.Module] = []
        for _ in range(int(torch.randint(1, 4, ()))):
            act = (nn.Tanh(), nn.GELU(), nn.SiLU(), nn.ReLU(), nn.Sigmoid())[
                int(torch.randint(5, ()))
            ]
            parts += [nn.Linear(width, width), act]
            parts += [nn.LayerNorm(width)] if torch.rand(()) < 0.4 else []
        model = nn.Sequential(*parts, nn.Linear(width, 3))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 + float(torch.rand(())) if p.ndim > 1 else 0.3)
    dtype = torch.float64 if (seed // KINDS) % 2 else torch.float32
    return model.to(dtype).eval().requires_grad_(False), x.to(dtype)


def attacked(seed: int, layers: int | None = None, fresh: int = FRESH) -> list[float]:
    """Ratios certified / actual, below 1 where it is violated; the original runs in float64."""
    model, x = drawn(seed, layers)
    net = in_context(model, calibration=[x], headroom=4.0)
    ratios = []
    for _ in range(fresh):
        y = torch.randn_like(x) * 2.0 ** float(torch.randint(-3, 2, ()))
        try:
            found = net.enclosure(y)
        except ice.errors.BoundError:
            continue  # out of range, and said so
        # The original in float64 is itself off by what such a run rounds.
        off = (net(y).double() - net.reference(y)).abs()
        off = (off - found.terms["rounding of that run"]).clamp(min=0.0)
        bounds = found.bounds[0]
        # An entry that is exact has no ratio; a violated one has the least.
        shares = torch.where(off <= bounds, (bounds / off).clamp(min=1.0), 0.0)
        violated = bool((shares < 1).any())
        ratios.append(0.0 if violated else float(bounds.max() / off.max()))
    return ratios


def alone(seed: int, fresh: int) -> list[float]:
    """One network, on one core."""
    torch.set_num_threads(1)
    return attacked(seed, fresh=fresh)


def told(runs: list[dict[str, float]]) -> str:
    """What runs found, as docs/networks.md has it."""
    networks, inputs, violations = (
        sum(run[key] for run in runs) for key in ("networks", "inputs", "violations")
    )
    return f"{networks:,} random networks, {inputs:,} inputs, **{violations} violated**."


def page(files: list[str]) -> None:
    """Keep what files hold, and write it into the page."""
    runs = [json.loads(Path(file).read_text()) for file in files]
    KEPT.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    write("attacked", told(runs))


def main(chosen: argparse.Namespace) -> int:
    """Attack, and say what was found."""
    if chosen.page:
        page(chosen.page)
        return 0
    begun, ratios, said = time.perf_counter(), list[float](), dict[str, float]()
    seeds = range(chosen.first, chosen.first + chosen.networks)
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for done, found in enumerate(
            pool.imap_unordered(partial(alone, fresh=chosen.inputs), seeds), start=1
        ):
            ratios += found
            late = time.perf_counter() - begun > chosen.seconds
            if done % 50 == 0 or late or done == len(seeds):
                said = _say(ratios, done, begun)
            if late:
                break
        pool.terminate()
    if chosen.write:
        Path(chosen.write).write_text(json.dumps({"first": chosen.first, **said}) + "\n")
    return int(not ratios or min(ratios) < 1)


def _say(ratios: list[float], networks: int, begun: float) -> dict[str, float]:
    found = {
        "networks": networks,
        "inputs": len(ratios),
        "violations": sum(not r >= 1 for r in ratios),
        "no finite ratio": sum(r == float("inf") for r in ratios),
        "median": statistics.median(ratios) if ratios else float("nan"),
        "seconds": round(time.perf_counter() - begun),
    }
    print(found, flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--first", type=int, default=0, help="seed of the first network")
    parser.add_argument("--networks", type=int, default=700)
    parser.add_argument("--inputs", type=int, default=FRESH, help="of each network")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--write", metavar="FILE", help="what was found, as JSON")
    parser.add_argument("--page", nargs="+", metavar="FILE", help="put these into the page")
    sys.exit(main(parser.parse_args()))
