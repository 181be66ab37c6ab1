"""The playground: a page on which a prompt becomes an algorithm."""

from pathlib import Path

__version__ = "0.3.0"
BUILT = Path(__file__).with_name("built")  # the page, where it is built
