"""The card of a stock checkpoint."""

from __future__ import annotations

from iceform.certificates import Certificate
from iceform.targets.target import Target

__all__ = ["card"]

_TEXT = """\
---
library_name: transformers
tags:
- iceform
- in-context
- {name}
---

# A stock {name} that runs {title}

No training and no remote code: the weights follow from the sizes in `iceform.json`.

```python
import iceform as ice
import torch
from transformers import AutoModel

network = AutoModel.from_pretrained(path)
model = ice.targets.load(path)
with torch.no_grad():
    hidden = network(inputs_embeds=model.prompt(X, y)).last_hidden_state
print(model.read(hidden))
print(ice.check(path, X, y))
```

The prompt, token by token:

{layout}

Per layer: {heads} heads of {size}, {layers} layers, a stream of {hidden}. Which head does what is
in `iceform.json` under `ground_truth`.

## Certificate

{certificate}

Weights, SHA-256: `{digest}`
"""

_PER_RUN = (
    "Every run is certified by itself: `ice.check` encloses the distance of its answer from the\n"
    "exact program's, in ball arithmetic."
)


def card(spec: Target, name: str, certificate: Certificate | None, digest: str) -> str:
    """Markdown with the front matter that the Hub reads."""
    return _TEXT.format(
        name=name,
        title=spec.title,
        layout="\n".join(f"{i}. {line}" for i, line in enumerate(spec.layout(), 1)),
        heads=spec.design.heads,
        size=spec.design.head_size,
        layers=len(spec.design.unrolled),
        hidden=spec.design.hidden,
        certificate=_PER_RUN if certificate is None else f"```\n{certificate.explain()}\n```",
        digest=digest,
    )
