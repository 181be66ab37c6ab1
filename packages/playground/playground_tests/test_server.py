"""The server as a client sees it: every status, every header, and clients that leave."""

import gzip
import hashlib
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

import iceform
from iceform_playground import connections
from iceform_playground.files import page_files
from playground_tests.live import PATIENCE, head, live, until

WORKERS, QUEUE = 2, 1
NEVER = 100 * PATIENCE  # seconds: no test waits for so long
LIMIT, GRACE, BODY_SECONDS, BODY_BYTES = 1.0, 0.3, 1.0, 64 << 10
POINT = {"x": 0.5, "y": 1.0}


@pytest.fixture(scope="module")
def shared():
    with live(
        workers=WORKERS, queue=QUEUE, time_limit=NEVER, grace=GRACE,
        body_seconds=PATIENCE, body_bytes=BODY_BYTES,
    ) as client:  # fmt: skip
        yield client


@pytest.fixture
def client(shared):
    shared.wait_until_idle()
    return shared


class Door:
    """A gate that a question waits for; tests open it when they have seen what they want."""

    def __init__(self, path):
        self.path = path
        self.question = ("hold", {"path": str(path)})

    def open(self):
        self.path.touch()


@pytest.fixture
def door(tmp_path):
    found = Door(tmp_path / "gate")
    yield found
    found.open()  # so that a test that fails holds nobody


@pytest.fixture
def crowd(door):
    with ThreadPoolExecutor(WORKERS + QUEUE) as threads:
        yield threads
        door.open()


def status_of(connection):
    """The status of what comes back, and the rest."""
    got = b""
    try:
        while chunk := connection.recv(1 << 16):
            got += chunk
    except ConnectionResetError:  # after the answer: what was sent meanwhile nobody read
        assert got
    return int(got.split()[1]), got


# Answers ------------------------------------------------------------------------------------


def test_a_question_is_answered(client):
    reply = client.ask("add", {"points": [POINT, POINT]})
    assert (reply.status, reply.json) == (200, {"name": "sum", "total": 3.0})
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"


def test_health_is_told_while_workers_compute(client, crowd, door):
    asked = [crowd.submit(client.ask, *door.question) for _ in range(WORKERS + QUEUE)]
    until(lambda: client.health()["waiting"] == QUEUE, "the queue is full")
    health = client.health()
    assert health == {
        "status": "full", "version": iceform.__version__, "workers": WORKERS,
        "workers_ready": WORKERS, "workers_busy": WORKERS, "waiting": QUEUE, "queue": QUEUE,
        "time_limit": NEVER, "body_bytes": BODY_BYTES, "memory": 2 << 30,
    }  # fmt: skip
    door.open()
    assert {each.result(PATIENCE).status for each in asked} == {200}
    client.wait_until_idle()
    assert client.health()["status"] == "ready"


def test_a_full_queue_is_429(client, crowd, door):
    asked = [crowd.submit(client.ask, *door.question) for _ in range(WORKERS + QUEUE)]
    until(lambda: client.health()["waiting"] == QUEUE, "the queue is full")
    reply = client.ask("add", {"points": [POINT]})
    assert (reply.status, reply.error["kind"]) == (429, "busy")
    assert int(reply.headers["retry-after"]) >= 1
    door.open()
    assert {each.result(PATIENCE).status for each in asked} == {200}


@pytest.mark.parametrize(
    ("task", "status", "kind"),
    [
        ("refuse", 422, "refused"),
        ("fail", 500, "internal"),
        ("crash", 503, "crashed"),
        ("hoard", 503, "memory"),
    ],
)
def test_what_goes_wrong_in_a_worker_has_a_status(client, task, status, kind):
    reply = client.ask(task)
    assert (reply.status, reply.error["kind"]) == (status, kind)
    assert b"swordfish" not in reply.body
    assert b"Traceback" not in reply.body


def test_the_time_limit_is_503(door):
    with live(workers=1, time_limit=LIMIT) as hasty:
        reply = hasty.ask(*door.question)  # which never opens
    assert (reply.status, reply.error["kind"]) == (503, "late")
    assert f"{LIMIT:g} s" in reply.error["message"]


# Clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["hold", "stay"])
def test_a_client_that_is_killed_frees_its_worker(client, task, door):
    """Nothing else would: the gate never opens, and there is no time limit to speak of."""
    connections = [client.open_socket() for _ in range(WORKERS)]
    for connection in connections:
        connection.sendall(head(task, json.dumps(door.question[1]).encode()))
    until(lambda: client.health()["workers_busy"] == WORKERS, "all workers compute")
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()  # by a reset, as when a process is killed
    until(lambda: client.health()["workers_busy"] == 0, "no worker computes")
    client.wait_until_idle()
    assert client.ask("add", {"points": [POINT]}).status == 200


def test_a_client_that_leaves_the_queue_frees_its_place(client, crowd, door):
    asked = [crowd.submit(client.ask, *door.question) for _ in range(WORKERS)]
    until(lambda: client.health()["workers_busy"] == WORKERS, "all workers compute")
    with client.open_socket() as connection:
        connection.sendall(head("wait", b"{}"))
        until(lambda: client.health()["waiting"] == 1, "it waits")
    until(lambda: client.health()["waiting"] == 0, "its place is free")
    assert client.health()["workers_busy"] == WORKERS
    door.open()
    assert {each.result(PATIENCE).status for each in asked} == {200}


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(client):
    with client.open_socket() as connection:
        connection.sendall(head(body=b"", **{"Content-Length": 100}) + b'{"sec')
    assert client.ask("add", {"points": [POINT]}).status == 200


# Bodies ---------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_refused_unread(client):
    with client.open_socket() as connection:
        connection.sendall(head(**{"Content-Length": BODY_BYTES + 1}))
        status, got = status_of(connection)
    assert status == 413
    assert b"64.0 KiB" in got


def test_a_body_without_a_length_is_refused_as_it_grows(client):
    chunk = b"%x\r\n%s\r\n" % (1 << 10, b" " * (1 << 10))
    with client.open_socket() as connection:
        connection.sendall(head(**{"Content-Length": None, "Transfer-Encoding": "chunked"}))
        for _ in range((BODY_BYTES >> 10) + 1):
            connection.sendall(chunk)
        assert status_of(connection)[0] == 413


def test_a_chunked_body_is_read(client):
    body = json.dumps({"points": [POINT]}).encode()
    reply = client.send(
        "POST", "/api/add", iter([body[:5], body[5:]]), {"Content-Type": "application/json"}
    )
    assert (reply.status, reply.json["total"]) == (200, 1.5)


def test_a_body_of_the_largest_size_is_read(client):
    body = json.dumps({"points": [POINT]}).encode()
    assert client.post("/api/add", body.ljust(BODY_BYTES)).status == 200
    assert client.post("/api/add", body.ljust(BODY_BYTES + 1)).status == 413


def test_a_slow_body_is_given_up():
    with live(workers=1, body_seconds=BODY_SECONDS) as client, client.open_socket() as connection:
        connection.sendall(head(**{"Content-Length": 100}))
        start = time.monotonic()
        stop = threading.Event()

        def drip():
            while not stop.wait(BODY_SECONDS / 10):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        status, _ = status_of(connection)
        stop.set()
        dripping.join()
    assert status == 408
    assert BODY_SECONDS <= time.monotonic() - start < PATIENCE


def test_silent_connections_do_not_cost_others_theirs():
    """One that has asked is kept between two questions, though it came first."""
    with live(workers=1, connections=24, header_seconds=PATIENCE) as client:
        client.wait_until_idle()
        asking = HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
        silent = []
        for _ in range(3):
            asking.request("GET", "/api/health")
            answer = asking.getresponse()
            assert answer.status == 200
            answer.read()
            socket_before = asking.sock
            silent += [client.open_socket() for _ in range(24)]
            client.health()  # what came before it has been accepted
            assert asking.sock is socket_before
        asking.request("GET", "/api/health")
        assert asking.getresponse().status == 200
        assert asking.sock is socket_before  # and not opened again
        for one in (*silent, asking):
            one.close()


def test_those_who_say_nothing_keep_nobody_out():
    """Three times as many silent connections as there is room for, from the same address."""
    with live(workers=1, connections=24, header_seconds=PATIENCE) as client:
        client.wait_until_idle()
        silent = [client.open_socket() for _ in range(72)]
        for _ in range(20):
            assert client.send("GET", "/api/health").status == 200
        assert client.ask("add", {"points": [POINT]}).status == 200
        for connection in silent:
            connection.close()


def test_a_head_that_does_not_end_is_given_up():
    with live(workers=1, header_seconds=0.5) as client, client.open_socket() as connection:
        start = time.monotonic()
        connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: loc")
        assert connection.recv(1) == b""
        assert time.monotonic() - start < PATIENCE
    with live(workers=1, header_seconds=0.5) as client, client.open_socket() as connection:
        ask = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(ask)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(ask[:30])  # and again, on the same connection
        while connection.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    "declared",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/json; charset=utf-16", "application/jsonp"],
)  # fmt: skip
def test_a_body_that_is_not_declared_as_json_is_415(client, declared):
    reply = client.post("/api/add", b"{}", **{"Content-Type": declared})
    assert (reply.status, reply.error["kind"]) == (415, "media_type")


def test_a_compressed_body_is_415(client):
    body = gzip.compress(json.dumps({"points": [POINT]}).encode())
    reply = client.post("/api/add", body, **{"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["kind"]) == (415, "media_type")


@pytest.mark.parametrize("declared", ["application/json;charset=UTF-8", "Application/JSON"])
def test_json_may_be_declared_in_other_ways(client, declared):
    body = json.dumps({"points": [POINT]}).encode()
    assert client.post("/api/add", body, **{"Content-Type": declared}).status == 200


HOSTILE = {
    "nothing": (b"", 400, None),
    "half an object": (b'{"points": [', 400, None),
    "two values": (b"{}{}", 400, None),
    "not UTF-8": (b'{"points": [{"x": 0, "y": 0}], "name": "\xff"}', 400, None),
    "UTF-16": ('{"points": []}'.encode("utf-16"), 400, None),
    "half a surrogate pair": (b'{"points": [], "name": "\\ud800"}', 400, None),
    "deep": (b"[" * 30_000 + b"]" * 30_000, 400, None),
    "deep objects": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400, None),
    "deep in a field": (b'{"points": ' + b"[" * 900 + b"]" * 900 + b"}", 400, None),
    "a number": (b"3", 422, None),
    "null": (b"null", 422, None),
    "a list": (b"[]", 422, None),
    "no field": (b"{}", 422, "points"),
    "no points": (b'{"points": []}', 422, "points"),
    "too many points": (
        b'{"points": [' + b",".join([b'{"x":0,"y":0}'] * 1001) + b"]}", 422, "points"
    ),
    "a field too many": (b'{"points": [{"x": 0, "y": 0}], "__class__": 1}', 422, "__class__"),
    "a number as text": (b'{"points": [{"x": "0", "y": 0}]}', 422, "points.0.x"),
    "a truth as a number": (b'{"points": [{"x": true, "y": 0}]}', 422, "points.0.x"),
    "a null": (b'{"points": [{"x": 0, "y": 0}, {"x": 0, "y": null}]}', 422, "points.1.y"),
    "out of bounds": (b'{"points": [{"x": 1e9, "y": 0}]}', 422, "points.0.x"),
    "NaN": (b'{"points": [{"x": 0, "y": NaN}]}', 422, "points.0.y"),
    "infinity": (b'{"points": [{"x": 0, "y": -Infinity}]}', 422, "points.0.y"),
    "an overflow": (b'{"points": [{"x": 0, "y": 1e999}]}', 422, "points.0.y"),
    "a huge whole number": (b'{"points": [{"x": 0, "y": 1' + b"0" * 5000 + b"}]}", 400, None),
    "a name twice": (b'{"points": [{"x": 0, "y": 0, "y": 1}]}', 400, "y"),
    "a long text": (b'{"points": [{"x": 0, "y": 0}], "name": "%s"}' % (b"a" * 50_000), 422, "name"),
    "a long name": (b'{"points": [{"x": 0, "y": 0}], "%s": 1}' % (b"a" * 50_000), 422, None),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "where"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bodies_are_refused_with_a_word(client, body, status, where):
    reply = client.post("/api/add", body)
    error = reply.error
    assert (reply.status, error["kind"]) == (status, "malformed" if status == 400 else "invalid")
    assert 0 < len(error["message"]) <= 500
    assert len(reply.body) < 2000, "what was sent comes back"
    if where is not None:
        assert error["where"] == where
        assert where in error["message"]


@pytest.mark.parametrize(
    "body",
    [b'{"value": NaN}', b'{"value": -Infinity}', b'{"anything": [[{"a": Infinity}]]}',
     b'{"anything": {"a": 1, "a": 2}}', b'{"anything": %s}' % (b"1" * 5000)],
    ids=["NaN", "infinity", "infinity deep inside", "a name twice", "a huge number"],
)  # fmt: skip
def test_what_is_not_json_is_refused_whatever_the_types_allow(client, body):
    reply = client.post("/api/loosely", body)
    assert (reply.status, reply.error["kind"]) == (400, "malformed")


# Addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/api/add/", "/docs", "/redoc", "/page/", "/page/nothing.js",
     "/page/../pool.py", "/page/..%2fpool.py", "/page/%2e%2e/pool.py", "/page/....//pool.py",
     "/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/index.html%00.js", "/page/__init__.py",
     "//etc/passwd"],
)  # fmt: skip
def test_what_is_not_there_is_404(client, path):
    reply = client.get(path)
    assert (reply.status, reply.error["kind"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/add", {"POST"}),
        ("DELETE", "/api/add", {"POST"}),
        ("POST", "/api/health", {"GET"}),
        ("PUT", "/", {"GET", "HEAD"}),
    ],
)
def test_other_methods_are_405(client, method, path, allowed):
    reply = client.send(method, path)
    assert (reply.status, reply.error["kind"]) == (405, "method")
    assert set(reply.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]", "[::1]:9"])
def test_our_own_names_are_known(client, host):
    assert client.get("/api/health", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.1", "[::1",
     "[::2]", "", "localhost@evil.example"],
)  # fmt: skip
def test_other_names_are_refused(client, host):
    reply = client.get("/", Host=host)
    assert (reply.status, reply.error["kind"]) == (421, "host")


def test_other_origins_get_no_leave(client):
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for reply in (client.send("OPTIONS", "/api/add", headers=asked), client.get("/", **asked)):
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]


# Headers and files -----------------------------------------------------------------------------

PATHS = ["/", "/page/plotly.js", "/api/health", "/openapi.json", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_protected(client, path):
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"https?:|\*|unsafe-eval", policy), policy
    assert "set-cookie" not in headers
    assert "server" not in headers


def test_refusals_are_protected_too(client):
    for reply in (client.get("/", Host="evil.example"), client.ask("fail")):
        assert "content-security-policy" in reply.headers


KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8", "json": "application/json", "svg": "image/svg+xml",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(page_files()))
def test_the_page_s_files_are_served(client, name):
    file = page_files()[name]
    reply = client.get(f"/page/{name}")
    assert (reply.status, reply.body) == (200, file.body)
    assert reply.headers["content-type"] == KINDS[name.rpartition(".")[2]]
    assert "content-encoding" not in reply.headers
    assert hashlib.sha256(reply.body).hexdigest().startswith(reply.headers["etag"].strip('"'))


def test_the_front_page_is_the_index(client):
    assert client.get("/").body == client.get("/page/index.html").body
    reply = client.send("HEAD", "/")
    assert (reply.status, reply.body) == (200, b"")


def test_nothing_on_the_page_is_loaded_from_elsewhere():
    loads = re.compile(
        r"""(?:\bsrc\s*=|\bfrom\b|\bimport\b|\burl\(|<link\b[^>]*\bhref\s*=)"""
        r"""[\s("']*(?:https?:)?//[\w.]+"""
    )
    assert loads.search("import x from 'https://cdn.example/x.js'")
    for name, file in page_files().items():
        if name.endswith((".html", ".css", ".js")) and name != "plotly.js":
            assert not loads.search(file.body.decode()), name


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip;q=0.000", False),
     ("br", False), ("", False)],
)  # fmt: skip
def test_files_are_compressed_for_those_who_can_read_it(client, accepted, zipped):
    reply = client.get("/page/plotly.js", **{"Accept-Encoding": accepted})
    assert reply.headers.get("content-encoding") == ("gzip" if zipped else None)
    assert reply.headers["vary"] == "Accept-Encoding"
    body = gzip.decompress(reply.body) if zipped else reply.body
    assert body == page_files()["plotly.js"].body


def test_a_file_that_the_client_has_is_not_sent_again(client):
    for accepted in ("gzip", "identity"):
        first = client.get("/page/plotly.js", **{"Accept-Encoding": accepted})
        known = f'"other", W/{first.headers["etag"]}'
        again = client.get(
            "/page/plotly.js", **{"Accept-Encoding": accepted, "If-None-Match": known}
        )
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/", **{"If-None-Match": '"other"'}).status == 200


def test_the_description_is_exact(client):
    described = client.get("/openapi.json").json
    route = described["paths"]["/api/add"]["post"]
    assert route["requestBody"]["required"] is True
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Points"}
    assert set(described["components"]["schemas"]["Points"]["properties"]) == {"points", "name"}
    documented = {"200", "400", "408", "413", "415", "421", "422", "429", "503"}
    assert set(route["responses"]) == documented
    for status, response in route["responses"].items():
        schema = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert schema == ("Total" if status == "200" else "ErrorBody")
    assert not {"HTTPValidationError", "ValidationError"} & set(described["components"]["schemas"])


class Kept:
    """A connection as the limits see it."""

    address, idle, asked, closed = "here", True, False, False

    def __init__(self) -> None:
        self.transport = self
        self.near, self.far = socket.socketpair()

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.near

    def close(self) -> None:
        self.closed = True
        self.near.close()
        self.far.close()


def test_of_idle_connections_those_go_first_that_have_sent_nothing():
    waiting, silent, late = opened = [Kept() for _ in range(3)]
    waiting.far.sendall(b"GET / HTTP/1.1\r\n")  # come first, and not read yet
    for gone in (silent, waiting):  # the last to come stays
        connections._close_oldest(dict.fromkeys(c for c in opened if not c.closed), "here", late)
        assert gone.closed
    assert not late.closed
    late.close()
