"""The model card: what a folder holds, its certificate and its digest, for people."""

from __future__ import annotations

from typing import Any

from iceform.certificates import Certificate
from iceform.machine import Rows
from iceform.networks import InContext

__all__ = ["model_card"]

_HEAD = """\
---
library_name: iceform
tags:
- iceform
- in-context
- {tag}
---

# {title}

{what}

```python
{code}
```
"""
_WHAT = {
    "InContext": "A network run in context: its weights are prompts, read by two frozen "
    "softmax-attention layers.",
    "Machine": "One frozen softmax-attention module that runs every program it is sized for, by "
    "prompt alone.",
    "Emulator": "A frozen softmax-attention network that computes {kind}.",
    "Program": "An algorithm as a prompt for a frozen machine: {kind}.",
    "Prompt": "Tokens for a frozen network to read.",
}


def model_card(name: str, thing: Any, sha256: str) -> str:
    """Markdown with the front matter that the Hub reads."""
    kind = type(thing).__name__
    code = 'import iceform\n\nloaded = iceform.export.from_pretrained("path/to/this/folder")'
    parts = [
        _HEAD.format(tag=name.lower(), title=kind, what=_WHAT[name].format(kind=kind), code=code)
    ]
    parts += _certificate(thing)
    if isinstance(thing, InContext):
        parts.append(f"## Layer by layer\n\n```\n{thing.report()}\n```\n")
    digest = getattr(thing, "digest", None)
    if digest:
        parts.append(f"Frozen weights, SHA-256: `{digest}`\n")
    parts.append(f"Config and tensors, SHA-256: `{sha256}`\n")
    return "\n".join(parts)


def _certificate(thing: Any) -> list[str]:
    holder = thing.head if isinstance(thing, Rows) else thing
    found = getattr(holder, "certificate", None)
    if not isinstance(found, Certificate):
        return []
    return [f"## Certificate\n\n```\n{found.explain()}\n```\n"]
