"""The playground: a page on which a prompt becomes an algorithm, and the server behind it."""

__version__ = "0.3.0"
