"""What a level leaves to one below it, or to a package beside iceform: found when it is needed.

A level imports only from the levels above it. The few things that it hands on all the same stand in
this table, as ``module:name`` in the way of entry points, and are imported at their first use::

    write = extensions.find("writers", "checkpoint")

A package adds its own by an entry point of the group ``iceform.kinds`` or ``iceform.writers``.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from iceform.validation import full_precision

TABLE = {
    # What Program.to and Program.text call.
    "writers": {
        "checkpoint": "iceform.targets.stock_program:write_program",
        "text": "iceform.targets.text.from_program:text_of",
        "trainable": "iceform.lab.model:write_trainable",
    },
    # What reads a folder whose files are not those of a saved thing, by the word for its kind.
    "folders": {"target": "iceform.targets:load"},
    # Classes of saved things, by the word for them in a folder's config.json.
    "kinds": {
        "Emulator": "iceform.paper:Emulator",
        "InContext": "iceform.networks:InContext",
        "Prompt": "iceform.heads:Prompt",
        "PromptLibrary": "iceform.paper.library:PromptLibrary",
        "Result": "iceform.certificates:Result",
    },
}


@full_precision
def find(group: str, name: str) -> Any:
    """What goes by this name, imported now; None if neither iceform nor a package has it.

    Example
    -------
    >>> find("kinds", "Result").__name__
    'Result'
    """
    if name in TABLE[group]:
        return EntryPoint(name, TABLE[group][name], f"iceform.{group}").load()
    for added in entry_points(group=f"iceform.{group}", name=name):
        return added.load()
    return None
