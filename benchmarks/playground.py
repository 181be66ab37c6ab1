"""The playground under load, and the time that a swap of algorithm takes.

Run with ``python -m benchmarks.playground``. A server is started as a user starts it. One client
asks for each algorithm in turn; then many clients ask for everything at once. Each waits for its
answer before it asks again, and where it is told to wait it does so. With ``--idle 600`` as many
more connections send nothing all the while, and are opened again when the server closes them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.timing import machine

DOCUMENTED = {200, 429, 503}
_TARGET = 300.0  # milliseconds for a swap of algorithm
_REPEATS = 9
_PATIENCE = 120.0  # seconds until an answer is given up
_AT_REST = 0.05  # share of a core that a server uses which has nothing to do
_CLOSED = {"perceptron", "pca", "huber", "expectile"}  # algorithms that have no prompt to look into
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Question:
    """A task and what it is asked."""

    task: str
    label: str
    body: bytes


class Client:
    """Asks a server over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)

    def get(self, path: str) -> Any:
        """What a path says."""
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())

    def ask(self, question: Question) -> tuple[int, float, float]:
        """Status, milliseconds, and the seconds that the server asks for before the next one."""
        start = time.perf_counter()
        self._connection.request("POST", f"/api/{question.task}", question.body, _JSON)
        answer = self._connection.getresponse()
        answer.read()
        took = 1e3 * (time.perf_counter() - start)
        return answer.status, took, float(answer.headers.get("Retry-After", 0))

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


@dataclass(frozen=True)
class Server:
    """A server that runs, and all its processes."""

    port: int
    process: psutil.Process

    def memory(self) -> int:
        """Resident bytes of the tree; what its processes share is counted for each."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:  # replaced meanwhile
                continue
        return total

    def rest(self) -> None:
        """Wait until its workers have warmed up."""
        while self._busy(1.0) > _AT_REST:
            pass

    def _busy(self, seconds: float) -> float:
        """Cores in use over some seconds."""
        before = self._spent()
        time.sleep(seconds)
        return (self._spent() - before) / seconds

    def _spent(self) -> float:
        times = [p.cpu_times() for p in (self.process, *self.process.children(recursive=True))]
        return sum(each.user + each.system for each in times)


@contextmanager
def serve(*options: str) -> Iterator[Server]:
    """``iceform play`` on a free port; its workers take questions."""
    command = [sys.executable, "-m", "iceform", "play", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r":(\d+)/", said)
            if found is None:
                raise SystemExit(f"the server did not start: {said!r}")
            server = Server(int(found[1]), psutil.Process(process.pid))
            client = Client(server.port)
            while (health := client.get("/api/health"))["workers_ready"] < health["workers"]:
                time.sleep(0.1)
            client.close()
            yield server
        finally:
            process.terminate()


def points(count: int) -> list[dict[str, float]]:
    """A noisy wave with two groups above and below it."""
    rng = random.Random(0)
    places = [rng.uniform(-1, 1) for _ in range(count)]
    heights = [0.6 * math.sin(3 * x) + rng.gauss(0, 0.1) for x in places]
    return [
        {"x": x, "y": max(-1.0, min(1.0, y)), "group": int(y > 0)}
        for x, y in zip(places, heights, strict=True)
    ]


def fits(algorithms: Sequence[str], count: int) -> list[Question]:
    """Each algorithm on the same points."""
    board = points(count)
    return [
        Question("fit", name, json.dumps({"points": board, "model": {"algorithm": name}}).encode())
        for name in algorithms
    ]


def mixture(algorithms: Sequence[str], count: int) -> list[Question]:
    """Questions to all tasks: fits, looks into their prompts, look-ups and rates."""
    asked = fits(algorithms, count)
    insides = [Question("inside", q.label, q.body) for q in asked if q.label not in _CLOSED]
    look = [
        Question(task, f"reach {reach}", json.dumps({"reach": reach}).encode())
        for task in ("lookup", "rates")
        for reach in (1.0, 4.0)
    ]
    return asked + insides + look


@dataclass(frozen=True)
class Swap:
    """Milliseconds from a question to its answer."""

    algorithm: str
    median: float
    largest: float


def swaps(server: Server, questions: Sequence[Question]) -> list[Swap]:
    """The time of each algorithm, asked in turn, so that each follows another."""
    client = Client(server.port)
    times: dict[str, list[float]] = {question.label: [] for question in questions}
    for _ in range(_REPEATS):
        for question in questions:
            status, took, _ = client.ask(question)
            if status != 200:
                raise SystemExit(f"{question.label}: status {status}")
            times[question.label].append(took)
    client.close()
    return [Swap(name, statistics.median(each), max(each)) for name, each in times.items()]


@dataclass
class Load:
    """What many clients saw."""

    clients: int
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)

    def undocumented(self) -> list[str]:
        """Everything that should not have happened."""
        return self.errors + [f"status {s}" for s in self.statuses if s not in DOCUMENTED]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: percentiles in place of the times."""
        return {
            "clients": self.clients,
            "seconds": self.seconds,
            "statuses": {str(k): v for k, v in sorted(self.statuses.items())},
            "milliseconds": {k: percentiles(v) for k, v in sorted(self.times.items()) if v},
            "memory": self.memory,
            "undocumented": self.undocumented(),
        }


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Count, median, 95th percentile and maximum."""
    ranked = sorted(times)
    p95 = ranked[math.ceil(0.95 * len(ranked)) - 1]
    return {"count": len(ranked), "p50": statistics.median(ranked), "p95": p95, "max": ranked[-1]}


def load(server: Server, questions: Sequence[Question], clients: int, seconds: float) -> Load:
    """Let many clients ask for some time; note statuses, times of answers, and memory."""
    found = Load(clients, seconds)
    found.memory["start"] = found.memory["peak"] = server.memory()
    lock, end = threading.Lock(), time.monotonic() + seconds

    def visit(seed: int) -> None:
        rng, client = random.Random(seed), Client(server.port)
        try:
            while time.monotonic() < end:
                question = rng.choice(questions)
                status, took, pause = client.ask(question)
                with lock:
                    found.statuses[status] += 1
                    if status == 200:
                        found.times.setdefault(question.task, []).append(took)
                        found.times.setdefault("all", []).append(took)
                time.sleep(max(0.0, min(pause, end - time.monotonic())))
        except OSError as error:
            with lock:
                found.errors.append(repr(error))
        finally:
            client.close()

    visitors = [threading.Thread(target=visit, args=(seed,)) for seed in range(clients)]
    for visitor in visitors:
        visitor.start()
    while any(visitor.is_alive() for visitor in visitors):
        found.memory["peak"] = max(found.memory["peak"], server.memory())
        time.sleep(0.2)
    found.memory["end"] = server.memory()
    return found


@contextmanager
def idling(port: int, count: int) -> Iterator[Counter[str]]:
    """So many connections that send nothing; counted are those opened, and what health says."""
    found: Counter[str] = Counter()
    over = threading.Event()

    def idle() -> None:
        silent: list[socket.socket] = []
        while not over.is_set():
            gone = set(select.select(silent, [], [], 0.2)[0])  # readable: closed by the server
            for one in gone:
                one.close()
            silent = [one for one in silent if one not in gone]
            while len(silent) < count and not over.is_set():
                try:
                    silent.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
                    found["opened"] += 1
                except OSError:
                    found["not accepted"] += 1
                    break
        for one in silent:
            one.close()

    def health() -> None:
        while not over.wait(1.0):
            client = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
            try:
                client.request("GET", "/api/health")
                found[f"health {client.getresponse().status}"] += 1
            except OSError as error:
                found[f"health {error!r}"] += 1
            finally:
                client.close()

    threads = [threading.Thread(target=task) for task in (idle, health) if count]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join()


def print_swaps(found: Sequence[Swap], count: int) -> None:
    """A table, slowest first."""
    print(f"\nswap of algorithm, {count} points, one client (target {_TARGET:g} ms)")
    print(f"  {'algorithm':20} {'median':>9} {'max':>9}")
    for each in sorted(found, key=lambda swap: -swap.median):
        late = "" if each.median <= _TARGET else "  over the target"
        print(f"  {each.algorithm:20} {each.median:6.0f} ms {each.largest:6.0f} ms{late}")


def print_load(found: Mapping[str, Any]) -> None:
    """Statuses, times and memory."""
    print(f"\n{found['clients']} clients for {found['seconds']:g} s")
    print("  answers by status:", ", ".join(f"{k}: {v}" for k, v in found["statuses"].items()))
    print(f"  {'task':10} {'answers':>8} {'p50':>9} {'p95':>9} {'max':>9}")
    for task, times in found["milliseconds"].items():
        print(
            f"  {task:10} {times['count']:8} {times['p50']:6.0f} ms {times['p95']:6.0f} ms "
            f"{times['max']:6.0f} ms"
        )
    print("  memory:", ", ".join(f"{k} {v / 2**20:.0f} MiB" for k, v in found["memory"].items()))
    for what in found["undocumented"]:
        print(f"  undocumented: {what}")


def measure(
    server: Server, clients: int, seconds: float, count: int, idle: int = 0
) -> dict[str, Any]:
    """Both measurements, printed."""
    client = Client(server.port)
    algorithms = [each["name"] for each in client.get("/api/catalogue")["algorithms"]]
    client.close()
    swapped = swaps(server, fits(algorithms, count))
    print_swaps(swapped, count)
    with idling(server.port, idle) as beside:
        loaded = load(server, mixture(algorithms, count), clients, seconds).to_dict()
    loaded["idle"] = dict(beside)
    loaded["undocumented"] += [w for w in beside if w.startswith("health") and w != "health 200"]
    print_load(loaded)
    if idle:
        print(
            f"  beside {idle} idle connections:", ", ".join(f"{k}: {v}" for k, v in beside.items())
        )
    return {"points": count, "swaps": [asdict(each) for each in swapped], "load": loaded}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, keep as JSON; fail where an answer was none of the documented."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.playground", description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=int, default=0, help="connections that send nothing")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="do not wait until workers are warm")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for JSON")
    asked = parser.parse_args(words)
    where = machine(torch.device("cpu"))
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    with serve("--workers", str(asked.workers)) as server:
        if not asked.cold:
            server.rest()
        found = measure(server, asked.clients, asked.seconds, asked.points, asked.idle)
    saved = asked.out / "playground.json"
    saved.parent.mkdir(parents=True, exist_ok=True)
    kept = {"machine": where, "workers": asked.workers, **found}
    saved.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {saved}")
    if found["load"]["undocumented"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
