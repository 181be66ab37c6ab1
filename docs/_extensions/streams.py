"""What a cell prints, in one piece.

It arrives in pieces that are cut anywhere, in the middle of a word too. myst-nb ends each of them
with a new line; here they are put together as they came.
"""

from collections.abc import Sequence

from myst_nb.core import render
from nbformat import NotebookNode
from sphinx.application import Sphinx


def coalesced(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell with one stream of each name, where its first piece was."""
    whole: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output["output_type"] == "stream" and output["name"] in streams:
            streams[output["name"]]["text"] += output["text"]
            continue
        whole.append(output)
        if output["output_type"] == "stream":
            streams[output["name"]] = output
    return whole


def setup(app: Sphinx) -> dict[str, bool]:
    render.coalesce_streams = coalesced
    return {"parallel_read_safe": True, "parallel_write_safe": True}
