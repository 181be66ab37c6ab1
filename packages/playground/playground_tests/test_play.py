"""``iceform play``: how it starts, what it says, and that nothing of it is left behind."""

import asyncio
import logging
import signal
import socket
import sys

import psutil
import pytest
from typer.testing import CliRunner

from iceform.errors import ProgramError
from iceform_playground import server
from iceform_playground.border import Border, is_loopback
from iceform_playground.command import app
from iceform_playground.settings import Settings
from playground_tests.live import PATIENCE, head, served, until


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="terminated", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.slow),
    ],
)
def test_no_process_is_left_behind_even_in_the_middle_of_a_computation(end):
    with served(workers=1, time_limit=60) as (process, client):
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 1
        with client.open_socket() as connection:
            connection.sendall(head("hang", b'{"seconds": 60}'))
            until(lambda: client.health()["workers_busy"] == 1, "the worker computes")
            process.send_signal(end)
            _, said = process.communicate(timeout=PATIENCE)
        gone, left = psutil.wait_procs(family, timeout=PATIENCE)
        assert (len(gone), left) == (1, [])
    assert process.returncode == (0 if end == signal.SIGINT else -end), said
    assert "Traceback" not in said


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def in_one_line(*words):
    """What the command says when it refuses."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_port_that_is_taken_is_one_line_that_names_the_way_out(taken):
    said = in_one_line("--port", str(taken))
    assert f"port {taken} of 127.0.0.1 is taken" in said
    assert "--port 0" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "not a host"), "not a host"),
        (("--host", "192.0.2.1"), "192.0.2.1"),
        (("--port", "70000"), "port must be"),
        (("--workers", "0"), "workers must be"),
        (("--queue", "-1"), "queue must be"),
        (("--time-limit", "nan"), "time_limit must be"),
    ],
)
def test_other_mistakes_are_one_line_too(words, said):
    assert said in in_one_line(*words)


def test_answers_are_sent_at_once():
    with server.listen(Settings(port=0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Started:
    """A server that only notes that it was run."""

    def __init__(self, settings):
        self.settings = settings

    def run(self, sockets):
        assert len(sockets) == 1


def started(monkeypatch, *words):
    """What is printed, and the settings, when the command starts a server."""
    made = []
    monkeypatch.setattr(server, "make_server", lambda s: made.append(s) or Started(s))
    done = CliRunner().invoke(app, ["--port", "0", *words])
    assert done.exit_code == 0, done.output
    return done, made[0]


def test_the_options_reach_the_settings(monkeypatch):
    done, settings = started(monkeypatch, "--workers", "3", "--queue", "5", "--time-limit", "2.5")
    assert settings == Settings(port=0, workers=3, queue=5, time_limit=2.5)
    assert "http://127.0.0.1:" in done.stdout
    assert done.stderr == ""


def test_a_browser_is_opened_only_if_asked_for(monkeypatch):
    opened = []
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    started(monkeypatch)
    assert opened == []
    done, _ = started(monkeypatch, "--open")
    until(lambda: bool(opened), "the browser is called")
    assert opened[0] in done.stdout


def test_whoever_listens_to_the_network_is_told(monkeypatch):
    done, _ = started(monkeypatch, "--host", "0.0.0.0")
    assert "http://127.0.0.1:" in done.stdout
    assert done.stderr.startswith("warning: everybody who can reach port")


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.1", "10.0.0.1"),
     ("localhost", "localhost")],
)  # fmt: skip
def test_the_address_that_is_shown_can_be_opened(host, shown):
    assert server._reachable(host) == shown


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("listens", "asked", "known"),
    [
        ("127.0.0.1", "10.0.0.1", False),
        ("0.0.0.0", "10.0.0.1:80", True),
        ("0.0.0.0", "[fe80::1]:80", True),
        ("0.0.0.0", socket.gethostname(), True),
        ("0.0.0.0", "localhost", True),
        ("0.0.0.0", "evil.example", False),
        ("box.example", "box.example:8642", True),
        ("box.example", "evil.example", False),
        ("127.0.0.2", "127.0.0.2", True),
    ],
)
def test_names_that_are_answered_for(listens, asked, known):
    assert Border(None, listens)._knows(asked) is known


@pytest.mark.parametrize(
    "wrong",
    [{"port": -1}, {"workers": 0}, {"queue": -1}, {"time_limit": 0.0}, {"grace": float("inf")},
     {"memory": 1 << 20}, {"body_bytes": 0}, {"body_seconds": -1.0}, {"connections": 0}],
)  # fmt: skip
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ProgramError, match=next(iter(wrong))):
        Settings(**wrong)


def test_what_fails_outside_a_task_is_500_and_logged(caplog):
    async def broken(scope, receive, send):
        raise RuntimeError("the password is swordfish")

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    with caplog.at_level(logging.ERROR):
        asyncio.run(Border(broken, "127.0.0.1")(scope, None, send))
    assert sent[0]["status"] == 500
    assert b"content-security-policy" in dict(sent[0]["headers"])
    assert b"swordfish" not in sent[1]["body"]
    assert "swordfish" in caplog.text
