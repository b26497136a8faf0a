"""What goes wrong on purpose: a database that refuses, locks, or cuts its connections."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from uuid import uuid4

import asyncpg

from tests.scenarios.gateways import Sale
from tests.support.servers import Shared

T = TypeVar("T")
ALWAYS: Final = 1_000_000
INSIDE: Final = "something private of the inside"
"""What the database says when it refuses; no gateway may hear of it."""


@contextmanager
def refusing(shared: Shared, sale: Sale, times: int = ALWAYS) -> Iterator[None]:
    """The database refuses so many times to mark the sale's order as paid."""
    name = f"refuse_{uuid4().hex[:8]}"
    assert sale.order is not None
    shared.rows(f"CREATE SEQUENCE {name}")
    shared.rows(f"""
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{name}') <= {times} THEN RAISE EXCEPTION '{INSIDE}'; END IF;
            RETURN NEW;
        END $$""")
    shared.rows(f"""
        CREATE TRIGGER {name} BEFORE UPDATE ON orders FOR EACH ROW
        WHEN (OLD.reference = '{sale.order}') EXECUTE FUNCTION {name}()""")
    try:
        yield
    finally:
        shared.rows(f"DROP TRIGGER {name} ON orders")


@contextmanager
def locked(shared: Shared, sale: Sale) -> Iterator[None]:
    """Somebody holds the row of the sale's order."""
    with _loop() as loop:

        def wait(action: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(action, loop).result(30)

        connection = wait(asyncpg.connect(shared.database_url))
        wait(connection.execute("BEGIN"))
        wait(connection.fetch("SELECT FROM orders WHERE reference = $1 FOR UPDATE", sale.order))
        try:
            yield
        finally:
            wait(connection.execute("ROLLBACK"))
            wait(connection.close())


def cut_connections(shared: Shared) -> None:
    """End every session that the database has with the server."""
    shared.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
