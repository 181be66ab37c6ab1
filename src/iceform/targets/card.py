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

## Certificate, for the domain that it names

```
{certificate}
```

Weights, SHA-256: `{digest}`
"""


def card(spec: Target, name: str, certificate: Certificate, digest: str) -> str:
    """Markdown with the front matter that the Hub reads."""
    return _TEXT.format(
        name=name,
        title=spec.title,
        layout="\n".join(f"{i}. {line}" for i, line in enumerate(spec.layout(), 1)),
        heads=spec.design.heads,
        size=spec.design.head_size,
        layers=len(spec.design.layers),
        hidden=spec.design.hidden,
        certificate=certificate.explain(),
        digest=digest,
    )
