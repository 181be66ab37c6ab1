"""The page's files, from the package, and plotly.js, from the package that carries it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import PurePath

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
from starlette.datastructures import Headers
from starlette.responses import Response

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}


@dataclass(frozen=True)
class PageFile:
    """A file as it is served: compressed where the client can take it, sent where it is new.

    Attributes
    ----------
    body
        Its bytes.
    media_type
        What they are.
    """

    body: bytes
    media_type: str

    @cached_property
    def zipped(self) -> bytes:
        """The bytes, compressed once."""
        return gzip.compress(self.body, mtime=0)

    @cached_property
    def tag(self) -> str:
        """A name of the content."""
        return hashlib.sha256(self.body).hexdigest()[:32]

    async def response(self, asked: Headers) -> Response:
        """The answer to a request with these headers."""
        zip_it = _takes_gzip(asked.get("accept-encoding", ""))
        tag = f'"{self.tag}-gzip"' if zip_it else f'"{self.tag}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if tag in _tags(asked.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        if not zip_it:
            return Response(self.body, headers=headers, media_type=self.media_type)
        body = await asyncio.to_thread(lambda: self.zipped)
        headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers, media_type=self.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not with weight zero."""
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.strip().removeprefix("q=").rstrip("0.") != "" or not weight
    return False


def _tags(known: str) -> set[str]:
    """The tags of an If-None-Match, weak ones as strong."""
    return {tag.strip().removeprefix("W/") for tag in known.split(",")}


def page_files() -> Mapping[str, PageFile]:
    """All that is served, by name. What is not in here does not exist for a client."""
    found = {
        entry.name: PageFile(entry.read_bytes(), _MEDIA_TYPES[suffix])
        for entry in files("iceform_playground").joinpath("page").iterdir()
        if (suffix := PurePath(entry.name).suffix) in _MEDIA_TYPES
    }
    plotly = PageFile(get_plotlyjs().encode(), _MEDIA_TYPES[".js"])
    return {**found, "plotly.js": plotly}
