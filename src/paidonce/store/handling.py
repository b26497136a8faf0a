"""Keeps a user's own handler from ending the transaction that it is called in."""

from contextlib import suppress
from typing import Final

import asyncpg

from paidonce.store.db import Trouble, trouble
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def begin(connection: Connection, timeout_s: float) -> int:
    """Until `end`, the transaction cannot be committed; no statement in it takes longer."""
    timeout_ms = str(max(int(timeout_s * 1000), 1))
    row = await QUERIES["begin"].row(connection, timeout_ms=timeout_ms)
    assert row is not None
    number: int = row["id"]
    return number


async def end(connection: Connection, number: int) -> bool:
    """Whether all is well: the same transaction is still open. Lets it be committed then.

    Raises SpoiledTransactionError when a statement in it has failed, or it could not be committed.
    """
    try:
        is_same = await QUERIES["end"].row(connection, id=number) is not None
        await QUERIES["check_deferred"].run(connection)
        await QUERIES["defer_again"].run(connection)
    except asyncpg.InFailedSQLTransactionError as error:
        raise SpoiledTransactionError("a statement failed, and its handler went on") from error
    except asyncpg.PostgresError as error:
        if trouble(error) is Trouble.AWAY:
            raise
        raise SpoiledTransactionError("what its handler wrote cannot be committed") from error
    return is_same


def is_open(connection: Connection) -> bool:
    """Whether there is a transaction, as far as can be told without asking."""
    try:
        return not connection.is_closed() and connection.is_in_transaction()
    except asyncpg.InterfaceError:  # it is the pool's again already, because it was closed
        return False


def abandon(connection: Connection) -> None:
    """Close the connection, whatever state it is in."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


class SpoiledTransactionError(Exception):
    """A statement has failed in the transaction: all that follows in it fails too."""
