"""Fits on a device against the same fits on the CPU: apart by no more than their certificates.

``python benchmarks/on_device.py [--device cuda] [--rows 20000] [--dim 20]``; exit 1 where one is.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor

import iceform_estimators
from iceform_estimators import algorithms
from iceform_estimators.machine import ArraySource


def data(rows: int, dim: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Correlated columns, with labels for each task."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, dim, generator=g, dtype=torch.float64)
    x = x @ torch.randn(dim, dim, generator=g, dtype=torch.float64) + 3
    z = x @ torch.randn(dim, generator=g, dtype=torch.float64) / dim
    y = z + torch.randn(rows, generator=g, dtype=torch.float64)
    few = slice(0, 900)  # an average sees one prompt
    counts = torch.poisson((0.3 * (z - z.mean())).clamp(max=3).exp(), generator=g)
    sides = torch.where(y > z.mean(), 1.0, -1.0).to(y)
    thirds = torch.bucketize(y, z.mean() + torch.tensor([-0.5, 0.5])).to(y)
    return {
        "number": (x, y), "class": (x, (y > z.mean()).to(y)), "side": (x, sides),
        "count": (x, counts), "three": (x, thirds), "few": (x[few], y[few]),
    }  # fmt: skip


FITS = {
    "ridge": (algorithms.Ridge(1.0), "number"),
    "least squares": (algorithms.LinearRegression(), "number"),
    "lasso": (algorithms.Lasso(0.05), "number"),
    "elastic net": (algorithms.ElasticNet(0.05), "number"),
    "logistic": (algorithms.Logistic(positive=1.0), "class"),
    "several classes": (algorithms.Logistic(classes=3), "three"),
    "huber": (algorithms.Huber(), "number"),
    "quantile": (algorithms.Quantile(0.5, width=0.05), "number"),
    "poisson": (algorithms.Poisson(0.1), "count"),
    "svm": (algorithms.LinearSVM(), "side"),
    "ridge, momentum": (algorithms.Ridge(1.0, precondition="diagonal", max_passes=60), "number"),
    "neighbours": (algorithms.KNeighbors(3), "few"),
    "kernel": (algorithms.KernelRegression(0.05), "few"),
    "components": (algorithms.PCA(2), "few"),
}


def waited(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--rows", type=int, default=20_000)
    asked.add_argument("--dim", type=int, default=20)
    given = asked.parse_args()
    device, sets, bad = torch.device(given.device), data(given.rows, given.dim), 0
    machine = iceform_estimators.Machine(dim=given.dim + 1, layout="stream")
    print(f"{'':16} {'apart':>9} {'certified':>20} {'passes':>9} {'CPU s':>7} {'there s':>8}")
    for name, (program, which) in FITS.items():
        x, y = sets[which]
        found, seconds = [], []
        for where in (torch.device("cpu"), device, device):
            labels = None if name == "components" else y.to(where)
            begun = waited(where)
            fit = machine.run(program, x.to(where), labels)
            value = fit.value if name != "components" else fit.value.abs()
            points = fit.predict(x[:64].to(where)).cpu() if name != "components" else value.cpu()
            seconds.append(waited(where) - begun)
            found.append((value.cpu(), points, fit))
        (one, ours, here), (other, theirs, there) = found[0], found[-1]
        apart = float((one - other).abs().max())
        allowed = here.certificate.error + there.certificate.error
        lines = float((ours - theirs).abs().max()) / max(1.0, float(ours.abs().max()))
        fine = apart <= allowed and there.attestation.ok and lines <= 1e-6
        bad += not fine
        certified = f"{here.certificate:.1e} {there.certificate:.1e}"
        print(
            f"{name:16} {apart:9.1e} {certified:>20} {here.passes:4d} {there.passes:4d} "
            f"{seconds[0]:7.2f} {seconds[2]:8.2f}{'' if fine else '  APART'}"
            f"{'' if lines <= 1e-6 else f'  predictions by {lines:.1e}'}"
        )
    weighed = torch.rand(given.rows, dtype=torch.float64) + 0.5
    x, y = sets["number"]
    pair = [
        machine.run(
            algorithms.Ridge(1.0), ArraySource(x.to(d), y.to(d), weights=weighed.to(d))
        )
        for d in ("cpu", device)
    ]  # fmt: skip
    apart = float((pair[0].coef - pair[1].coef.cpu()).abs().max())
    fine = apart <= sum(fit.certificate.error for fit in pair)
    print(f"{'weighted ridge':16} {apart:9.1e}{'' if fine else '  APART'}")
    moved = iceform_estimators.Machine(dim=given.dim + 1, layout="stream").to(device)
    again = moved.run(algorithms.Ridge(1.0), x.to(device), y.to(device))
    print(f"Machine.to: digest {'the same' if again.digest == machine.digest else 'ANOTHER'}")
    return int(bad > 0 or not fine or again.digest != machine.digest)


if __name__ == "__main__":
    sys.exit(main())
