"""A PostgreSQL server of the tests' own, from the `pgserver` wheel, where there is one for this Python and machine."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of an empty database."""
    pytest.importorskip("langgraph.checkpoint.postgres", reason="langgraph-checkpoint-postgres or libpq is missing")
    pgserver = pytest.importorskip("pgserver", reason="there is no pgserver wheel for this Python")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        try:
            running = pgserver.postgres_server.get_server(folder, cleanup_mode="delete")
        except Exception as error:  # no such user, no shared memory: nothing that this package could help
            pytest.skip(f"PostgreSQL does not start here: {type(error).__name__}: {error}")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
