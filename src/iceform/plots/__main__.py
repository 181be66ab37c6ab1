"""``python -m iceform.plots FOLDER`` writes the README's picture."""

from __future__ import annotations

import sys
from pathlib import Path

from iceform.plots.error_study import error_against_tokens, error_curves
from iceform.plots.themes import png


def main(folder: str = "docs/images") -> None:
    """Write the README's picture into ``folder``."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    figure = error_against_tokens(error_curves())
    (target / "error_against_tokens.png").write_bytes(png(figure))


if __name__ == "__main__":
    main(*sys.argv[1:2])
