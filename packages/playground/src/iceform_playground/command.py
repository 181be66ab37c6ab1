"""``iceform play``: serve the page that the wheel holds, by Python's own server."""

from __future__ import annotations

import argparse
import contextlib
import functools
import webbrowser
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from iceform.cli import one_line_errors
from iceform.errors import ProgramError
from iceform_playground import BUILT

HOST = "127.0.0.1"


class QuietHandler(SimpleHTTPRequestHandler):
    """Files of a folder; nothing is logged."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def page_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder's files on 127.0.0.1; refused where the page or the port is missing."""
    if not (folder / "index.html").exists():
        raise ProgramError(
            f"the page is not built: {folder} has no index.html. From a clone, build it with "
            "'make play' or 'python -m iceform_playground.site' (npm is needed once)"
        )
    try:
        handler = functools.partial(QuietHandler, directory=str(folder))
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as taken:
        raise ProgramError(
            f"port {port} of {HOST} cannot be listened on ({taken}); take another, or --port 0 "
            "for any that is free"
        ) from None


def main(words: Sequence[str]) -> int:
    """Serve the page until Ctrl-C; 0 then, and 2 with one line for what a user can mend."""
    given = _parser().parse_args(words)
    with one_line_errors(), page_server(BUILT, given.port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        print(f"{address} (Ctrl-C ends it)", flush=True)
        if given.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iceform play",
        description="Open the playground: points, prompts, and a GPT-2 that runs what you type. "
        "Everything is computed in the browser; this only serves the files.",
        epilog="Example: iceform play",
    )
    parser.add_argument(
        "--port", type=int, default=8642, help="%(default)s; 0 for any that is free"
    )
    parser.add_argument(
        "--open", action=argparse.BooleanOptionalAction, default=True,
        help="show the page in a browser",
    )  # fmt: skip
    return parser
