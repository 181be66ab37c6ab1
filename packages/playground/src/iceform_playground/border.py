"""The border of the server: whom it listens to, and what every answer carries."""

from __future__ import annotations

import asyncio
import logging
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from iceform_playground.request_error import RequestError

_LOG = logging.getLogger(__name__)
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

# Plots are styled by plotly.js, which writes style elements, and saved as images by way of blobs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Border:
    """Refuse other servers' names, add the headers that protect the page, catch what fails.

    A page elsewhere whose name is made to resolve to this machine (DNS rebinding) would pass for
    one of ours, were its name not in the Host header. An address needs no name server, so any
    address passes where other machines may ask.

    Parameters
    ----------
    app
        What answers.
    host
        Where the server listens.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._open = not is_loopback(host)
        own = {host.lower(), socket.gethostname().lower()} if self._open else {host.lower()}
        self._names = _LOOPBACK_NAMES | own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; let everything else pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def protected(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            await self._choose(scope)(scope, receive, protected)
            return
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # by the server, which waits no longer
            error = RequestError("ending", "the server is ending; ask again when it is back")
        except Exception:  # whatever it is: a client gets an answer, the log the traceback
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            error = RequestError("internal", "something went wrong here; the server's log has more")
        if not started:
            await error.response()(scope, receive, protected)

    def _choose(self, scope: Scope) -> ASGIApp:
        host = Headers(scope=scope).get("host", "")
        if self._knows(host):
            return self._app
        refused = RequestError(
            "host", f"this server does not answer for {host!r}; use its own address"
        )
        return refused.response()

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._open and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
