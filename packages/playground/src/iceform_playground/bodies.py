"""The body of a request: read within its limits, checked before anything is computed."""

from __future__ import annotations

import asyncio
import json
from typing import NoReturn

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from iceform.errors import IceformError
from iceform.validation import human_bytes
from iceform_playground.request_error import RequestError
from iceform_playground.settings import Settings

_UTF8 = {"utf-8", "utf8"}


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body, unless it is not declared as JSON, too large or too slow.

    The size is checked as bytes arrive, whatever the request says of it.
    """
    _check_headers(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > settings.body_bytes:
        _too_large(settings.body_bytes)
    try:
        async with asyncio.timeout(settings.body_seconds):
            return await _read(request, settings.body_bytes)
    except TimeoutError:
        raise RequestError(
            "slow_body",
            f"the body did not arrive within {settings.body_seconds:g} s; send it again",
        ) from None


def _check_headers(request: Request) -> None:
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    charsets = {
        value.strip(' "')
        for name, _, value in (parameter.partition("=") for parameter in parameters)
        if name.strip() == "charset"
    }
    if kind.strip() != "application/json" or not charsets <= _UTF8:
        raise RequestError("media_type", "send JSON, with Content-Type: application/json, in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError("media_type", "send the body as it is, without Content-Encoding")


async def _read(request: Request, most: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > most:
            _too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(most: int) -> NoReturn:
    raise RequestError(
        "too_large", f"the body may have at most {human_bytes(most)}; send fewer points"
    )


def check_question(kind: type[BaseModel], body: bytes) -> None:
    """Refuse a body that is not a question of this kind.

    The types come first, since they can name the field that is wrong. What they let pass and JSON
    does not (NaN, infinities, a name that is given twice) is looked for afterwards.
    """
    try:
        kind.model_validate_json(body)
    except ValidationError as wrong:
        raise _named(wrong) from None
    except IceformError as refusal:
        raise RequestError("refused", str(refusal)) from None
    _check_json(body)


def _named(wrong: ValidationError) -> RequestError:
    """The first of the errors, without the input that it is about."""
    errors = wrong.errors(include_url=False, include_context=False, include_input=False)
    first, more = errors[0], len(errors) - 1
    if first["type"] == "json_invalid":
        why = first["msg"].removeprefix("Invalid JSON: ")
        return RequestError("malformed", f"the body is not JSON: {why}")
    where = ".".join(map(str, first["loc"]))
    said = f"{where}: {first['msg']}" if where else first["msg"]
    return RequestError(
        "invalid", f"{said} (and {more} more)" if more else said, where=where or None
    )


def _check_json(body: bytes) -> None:
    try:
        json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise RequestError("malformed", f"the body is not JSON: {wrong}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, each of whose names is given once."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise RequestError("malformed", f"{name} is given twice; give it once", where=name)
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise RequestError("malformed", f"{name} is not a number of JSON; give a finite one")
