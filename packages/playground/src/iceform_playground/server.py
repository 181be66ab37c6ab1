"""The playground's server: tasks as typed routes, the page, and the health of both."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import Parameter, Signature
from ipaddress import ip_address
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive

import iceform
from iceform.errors import ProgramError
from iceform_playground.bodies import check_question, read_body
from iceform_playground.border import Border, is_loopback
from iceform_playground.connections import protocol
from iceform_playground.files import PageFile, page_files
from iceform_playground.pool import Pool
from iceform_playground.request_error import ErrorKind, RequestError, responses
from iceform_playground.settings import Settings
from iceform_playground.task import Task
from iceform_playground.wire import load, load_tasks

_FRONT = "index.html"
_FAREWELL = 2  # seconds that answers under way have when the server ends
_JSON = "application/json"
_NOT_KEPT = {"Cache-Control": "no-store"}


class Health(BaseModel):
    """How the server does."""

    status: Literal["warming", "ready", "full"]
    version: str
    workers: int
    workers_ready: int
    workers_busy: int
    waiting: int
    queue: int
    time_limit: float
    body_bytes: int
    memory: int


def make_app(settings: Settings) -> FastAPI:
    """The application: a route per task, the page, and no state but its pool of workers."""
    pool = Pool(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    app = FastAPI(
        title="iceform playground",
        version=iceform.__version__,
        lifespan=lifespan,
        docs_url=None,  # the pages of FastAPI load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Border, host=settings.host)
    app.add_exception_handler(RequestError, _say)
    app.add_exception_handler(HTTPException, _say_what_http_means)
    for task in load_tasks(settings.tasks).values():
        _add_task(app, task, pool, settings)
    _add_health(app, pool, settings)
    _add_catalogue(app, load(settings.catalogue))
    _add_page(app, page_files())
    return app


async def _say(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


async def _say_what_http_means(_: Request, raised: Exception) -> Response:
    """An error of the routing: no such address, or no such method there."""
    assert isinstance(raised, HTTPException)
    kinds: dict[int, ErrorKind] = {404: "not_found", 405: "method"}
    response = RequestError(kinds.get(raised.status_code, "malformed"), raised.detail).response()
    response.headers.update(raised.headers or {})
    return response


class _OwnReading(APIRoute):
    """A route that FastAPI describes, and whose body its endpoint reads, within its limits."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handle


def _add_task(app: FastAPI, task: Task[Any, Any], pool: Pool, settings: Settings) -> None:
    async def handle(request: Request) -> Response:
        body = await read_body(request, settings)
        check_question(task.asked, body)
        answer = await _while_connected(request.receive, pool.ask(task.name, body))
        return Response(answer, media_type=_JSON, headers=_NOT_KEPT)

    question = Parameter("question", Parameter.POSITIONAL_ONLY, annotation=task.asked)
    vars(handle)["__signature__"] = Signature([question])  # what is described
    app.router.add_api_route(
        f"/api/{task.name}",
        handle,
        methods=["POST"],
        response_model=task.given,
        responses=responses(),
        summary=task.says,
        operation_id=task.name,
        route_class_override=_OwnReading,
    )


async def _while_connected(receive: Receive, asking: Coroutine[Any, Any, bytes]) -> bytes:
    """The answer, unless the client goes away first: then the question is dropped."""
    answer = asyncio.create_task(asking)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        leaving.cancel()
        await asyncio.gather(answer, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _add_health(app: FastAPI, pool: Pool, settings: Settings) -> None:
    @app.get("/api/health", summary="How the server does.", operation_id="health")
    async def health(response: Response) -> Health:
        response.headers.update(_NOT_KEPT)
        return Health(
            status=_status(pool, settings),
            version=iceform.__version__,
            workers=settings.workers,
            workers_ready=pool.ready,
            workers_busy=pool.busy,
            waiting=pool.waiting,
            queue=settings.queue,
            time_limit=settings.time_limit,
            body_bytes=settings.body_bytes,
            memory=settings.memory,
        )


def _add_catalogue(app: FastAPI, offer: Callable[[], BaseModel]) -> None:
    """What the page offers: computed once, the same for everybody."""
    offered = offer()

    async def catalogue() -> BaseModel:
        return offered

    app.add_api_route(
        "/api/catalogue",
        catalogue,
        response_model=type(offered),
        summary="What the page offers.",
        operation_id="catalogue",
    )


def _status(pool: Pool, settings: Settings) -> Literal["warming", "ready", "full"]:
    if pool.ready == 0:
        return "warming"
    full = pool.busy == pool.ready and pool.waiting >= settings.queue
    return "full" if full else "ready"


def _add_page(app: FastAPI, found: Mapping[str, PageFile]) -> None:
    async def front(request: Request) -> Response:
        return await _file(found, _FRONT, request)

    async def part(request: Request) -> Response:
        return await _file(found, request.path_params["name"], request)

    app.add_route("/", front, include_in_schema=False)
    app.add_route("/page/{name}", part, include_in_schema=False)


async def _file(found: Mapping[str, PageFile], name: str, request: Request) -> Response:
    if name not in found:
        raise RequestError("not_found", f"the page has no file {name!r}")
    return await found[name].response(request.headers)


def make_server(settings: Settings) -> uvicorn.Server:
    """The server of the application; it runs on a socket that listens already."""
    config = uvicorn.Config(
        make_app(settings),
        loop="asyncio",
        http=protocol(settings),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        timeout_graceful_shutdown=_FAREWELL,
    )
    return uvicorn.Server(config)


def serve(settings: Settings, *, open_browser: bool = False) -> None:
    """Serve until Ctrl-C or a termination signal."""
    with listen(settings) as listener:
        port = listener.getsockname()[1]
        url = f"http://{_reachable(settings.host)}:{port}/"
        print(f"The playground is at {url} (Ctrl-C ends it)", flush=True)
        if not is_loopback(settings.host):
            print(
                f"warning: everybody who can reach port {port} of this machine over the network "
                "can use it; there is no password",
                file=sys.stderr,
                flush=True,
            )
        server = make_server(settings)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # raised again once all has ended
            server.run(sockets=[listener])


def listen(settings: Settings) -> socket.socket:
    """A socket that listens, or an error that names the way out.

    What it accepts sends at once (TCP_NODELAY is inherited, and asyncio sets it only where a
    socket was made with the protocol's number): the head and the body of an answer are two writes,
    and the second would wait for a delayed acknowledgement of the first.
    """
    host, port = settings.host, settings.port
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror as unknown:
        raise ProgramError(f"--host {host}: {unknown.strerror}; give an address") from None
    except OSError as refused:
        if refused.errno == errno.EADDRINUSE:
            raise ProgramError(
                f"port {port} of {host} is taken; choose another with --port, or any with --port 0"
            ) from None
        raise ProgramError(
            f"cannot listen on port {port} of {host}: {refused.strerror}; "
            "choose others with --host and --port"
        ) from None


def _reachable(host: str) -> str:
    """The host as a part of an address to open here."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
