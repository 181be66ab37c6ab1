"""HTML pages that need nothing else, online or off."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from iceform import plots, store
from iceform.arithmetic import at_most

_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@dataclass(frozen=True)
class Illustration:
    """A figure in both themes, with the words around it."""

    title: str
    text: str
    alt: str
    light: str  # data URI
    dark: str  # data URI


def illustrate(
    draw: Callable[[plots.Theme], Figure], *, title: str, text: str, alt: str
) -> Illustration:
    """Draw a figure once in each theme."""
    light, dark = (_data_uri(plots.png(draw(theme))) for theme in (plots.LIGHT, plots.DARK))
    return Illustration(title, text, alt, light, dark)


def _data_uri(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")


def render_page(template: str, **what: Any) -> str:
    """A template of the package, filled in."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("iceform_estimators"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(power=_power, bound=_bound, word=_word)
    return environment.get_template(template).render(**what)


def _power(value: float) -> Markup:
    """1.2e-05 as 1.2 × 10 to the −5: the nearest of this form, for what was measured."""
    return _raised(f"{value:.1e}")


def _bound(value: float) -> Markup:
    """As :func:`_power`, rounded up, for proven bounds."""
    return _raised(at_most(value, ".1e"))


def _raised(text: str) -> Markup:
    value = float(text)
    if value == 0 or not math.isfinite(value):
        return Markup("0" if value == 0 else "∞")
    mantissa, exponent = text.split("e")
    return Markup(f"{mantissa} × 10<sup>{int(exponent)}</sup>".replace("-", "−"))


def _word(count: int) -> str:
    """Small numbers as running text spells them."""
    return _WORDS[count] if count < len(_WORDS) else str(count)


def write(path: Path, page: str) -> Path:
    """Write a page; a reader never sees half of one."""
    store.write({path: page.encode()})
    return path
