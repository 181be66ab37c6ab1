"""A server that runs beside the tests, and a plain client of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from typing import Any

from iceform_playground.server import listen, make_server
from iceform_playground.settings import Settings

CHORES = {
    name: f"playground_tests.chores:{thing}"
    for name, thing in (("tasks", "TASKS"), ("warm_up", "warm_up"), ("catalogue", "catalogue"))
}
PATIENCE = 60.0  # seconds for what takes a moment on an idle machine


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain until {what}"
        time.sleep(0.01)


def head(task: str = "wait", body: bytes = b"", **headers: object) -> bytes:
    """A request as it goes over the wire."""
    lines = {
        "Host": "localhost", "Content-Type": "application/json", "Content-Length": len(body),
        **headers,
    }  # fmt: skip
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"POST /api/{task} HTTP/1.1\r\n{text}\r\n".encode() + body


@dataclass(frozen=True)
class Reply:
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json
        assert set(found) == {"error"}, found
        assert set(found["error"]) == {"kind", "message", "where"}, found
        error: dict[str, Any] = found["error"]
        return error


class Client:
    """One request per connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: bytes, **headers: str) -> Reply:
        return self.send("POST", path, body, {"Content-Type": "application/json", **headers})

    def ask(self, task: str, question: object = None) -> Reply:
        return self.post(f"/api/{task}", json.dumps(question or {}).encode())

    def open_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self.get("/api/health").json
        return health

    def wait_until_idle(self) -> None:
        """All workers are there and none computes."""

        def idle() -> bool:
            now = self.health()
            return now["workers_ready"] == now["workers"] and now["workers_busy"] == 0

        until(idle, "all workers are ready and idle")


@contextmanager
def live(**settings: Any) -> Iterator[Client]:
    """A server in a thread; its workers are ready."""
    asked = Settings(**{"port": 0, **CHORES, **settings})
    with listen(asked) as listener:
        server = make_server(asked)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            client = Client(listener.getsockname()[1])
            client.wait_until_idle()
            yield client
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(**settings: Any) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """A server in a process of its own; its workers are ready."""
    given = {"port": 0, **CHORES, **settings}
    code = (
        "from iceform_playground.server import serve\n"
        "from iceform_playground.settings import Settings\n"
        f"serve(Settings(**{given!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://127.0.0.1:" in said, said
        client = Client(int(said.split("http://127.0.0.1:")[1].split("/")[0]))
        client.wait_until_idle()
        yield process, client
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
