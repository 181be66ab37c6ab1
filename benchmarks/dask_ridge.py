"""Ridge regression on ten million rows by two Dask workers, one of which is killed on the way.

Run with ``python -m benchmarks.dask_ridge``. The answer is compared with that of one process that
holds all rows.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from typing import Any

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster

from iceform.certificates import Result
from iceform_estimators import Machine
from iceform_estimators.algorithms import Ridge
from iceform_estimators.machine import ArraySource
from iceform_estimators.machine.dask import DaskSource
from iceform_estimators.machine.sources import Combine, Task


def block(index: int, rows: int, dim: int) -> Any:
    """One chunk [X, y] from its own seed."""
    rng = np.random.default_rng(index)
    scales = np.geomspace(0.1, 10, dim)
    table = rng.standard_normal((rows, dim + 1))
    table[:, :dim] = (table[:, :dim] + 1) * scales
    table[:, dim] += table[:, :dim] @ (np.arange(dim) / scales)
    return table


def collection(chunks: int, rows: int, dim: int) -> tuple[Any, Any]:
    """All chunks as Dask arrays that know how to compute themselves again."""
    table = da.arange(chunks, chunks=1).map_blocks(
        lambda place: block(int(place[0]), rows, dim),
        new_axis=1, chunks=((rows,) * chunks, (dim + 1,)), dtype=float, meta=np.empty((0, 0)),
    )  # fmt: skip
    return table[:, :dim], table[:, dim]


class Watched(DaskSource):
    """Kills a worker once it is busy with the third sweep over the data."""

    client: Client
    sweeps = 0
    victim: int | None = None

    def combine(self, task: Task, combine: Combine) -> list[torch.Tensor]:
        self.sweeps += 1
        if self.sweeps == 3:
            threading.Thread(target=self._kill).start()
        start = time.perf_counter()
        found = super().combine(task, combine)
        print(f"  sweep {self.sweeps} {type(task).__name__:16}{time.perf_counter() - start:8.2f} s")
        return found

    def _kill(self) -> None:
        address, pid = sorted(self.client.run(os.getpid).items())[0]
        while not self.client.processing([address])[address]:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        self.victim = pid
        print(f"  killed worker {address}")


def single(chunks: int, rows: int, dim: int, program: Ridge) -> Result:
    """The answer of one process."""
    table = np.empty((chunks * rows, dim + 1))
    for i in range(chunks):
        table[i * rows : (i + 1) * rows] = block(i, rows, dim)
    data = torch.from_numpy(table)
    return Machine(dim + 1, layout="stream").run(program, ArraySource(data[:, :dim], data[:, dim]))


def main() -> None:
    """Fit on the cluster, then in one process, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000, help="of a chunk")
    parser.add_argument("--dim", type=int, default=20)
    asked = parser.parse_args()
    sizes = (asked.chunks, asked.rows, asked.dim)
    program = Ridge(fit_intercept=True)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster) as client,
    ):
        Watched.client = client
        print(f"{asked.chunks * asked.rows} x {asked.dim} in {asked.chunks} chunks, two workers")
        start = time.perf_counter()
        source = Watched(*collection(*sizes))
        spread = Machine(asked.dim + 1, layout="stream").run(program, source)
        print(f"  {time.perf_counter() - start:.1f} s, {spread.passes} passes")
    if source.victim is None:
        raise SystemExit("no worker was killed")
    start = time.perf_counter()
    alone = single(*sizes, program)
    print(f"one process: {time.perf_counter() - start:.1f} s, {alone.passes} passes")
    off = float((spread.coef - alone.coef).abs().max())
    print(f"certified: {spread.certificate:.2e} and {alone.certificate:.2e}")
    print(f"apart: {off:.2e}, intercepts {float((spread.intercept - alone.intercept).abs()):.2e}")


if __name__ == "__main__":
    main()
