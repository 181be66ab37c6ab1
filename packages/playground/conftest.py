"""As in the core's own tests: one seed, one cache of tables, compiled look-ups."""

from tests.conftest import _seed  # noqa: F401
