"""RequestError: why a request was not answered, in the one shape that every error has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

ErrorKind = Literal[
    "malformed",
    "not_found",
    "method",
    "slow_body",
    "too_large",
    "media_type",
    "host",
    "invalid",
    "refused",
    "busy",
    "internal",
    "late",
    "crashed",
    "memory",
    "ending",
]

_STATUS: dict[ErrorKind, int] = {
    "malformed": 400,
    "not_found": 404,
    "method": 405,
    "slow_body": 408,
    "too_large": 413,
    "media_type": 415,
    "host": 421,
    "invalid": 422,
    "refused": 422,
    "busy": 429,
    "internal": 500,
    "late": 503,
    "crashed": 503,
    "memory": 503,
    "ending": 503,
}
_SAYS = {
    400: "The body is not JSON.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    421: "The Host header names another server.",
    422: "A field is wrong, or the library refused the question and says why.",
    429: "Too many questions are waiting already.",
    503: "No answer: out of time, out of memory, the worker died, or the server is ending.",
}
_RETRY = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
}
_LONGEST = 500  # characters of what is sent back, since parts of it may be the client's own
_CLOSING: frozenset[ErrorKind] = frozenset({"slow_body", "too_large"})  # a body is half-read


class _Error(BaseModel):
    kind: ErrorKind
    message: str = Field(description="What went wrong and what to change, for a person.")
    where: str | None = Field(description="The field that is wrong, as in points.3.x.")


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: _Error


class RequestError(Exception):
    """A request that gets no answer, and why.

    Parameters
    ----------
    kind
        What happened; decides the status.
    message
        For the person who asked; names nothing internal.
    where
        The field that is wrong.
    retry_after
        Seconds after which to ask again.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        where: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.where = where
        self.retry_after = retry_after

    def response(self) -> JSONResponse:
        """The answer that says so."""
        where = None if self.where is None else _short(self.where)
        error = _Error(kind=self.kind, message=_short(str(self)), where=where)
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.kind in _CLOSING:
            headers["Connection"] = "close"
        return JSONResponse(
            ErrorBody(error=error).model_dump(), _STATUS[self.kind], headers=headers
        )


def _short(text: str) -> str:
    """No longer than is useful, and encodable: half of a surrogate pair is not."""
    text = text.encode(errors="replace").decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def responses() -> dict[int | str, dict[str, Any]]:
    """The errors of a task, for OpenAPI."""
    documented: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": says} for status, says in _SAYS.items()
    }
    documented[429]["headers"] = _RETRY
    return documented
