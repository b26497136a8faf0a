"""What is shown together is of one moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from paidonce.bootstrap.services import Services
from paidonce.core.events import EventType
from paidonce.db.pool import Database
from paidonce.linking.linker import Linker
from paidonce.orders.model import OrderView
from paidonce.processing.process import process
from tests.support.batches import Stage
from tests.support.till import Till

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'payments'::regclass"


@pytest.fixture
def till(shop: Stage) -> Till:
    return Till(shop, Linker(shop.database, shop.rules))


@asynccontextmanager
async def payments_locked(database: Database) -> AsyncIterator[Any]:
    """A transaction in which payments can be changed, and which readers of payments wait for."""
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
        yield connection


async def until_waiting(connection: Any) -> None:
    for _ in range(1_000):
        if await connection.fetchval(WAITING):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nobody reads payments")


def is_of_one_moment(order: OrderView) -> bool:
    is_applied = any(one.applied_at is not None for one in order.payments)
    return (order.status == "PAID") is is_applied


async def test_an_order_that_is_paid_while_it_is_read_is_shown_as_it_was(till: Till) -> None:
    """OPS-9: the order is read, then it is paid, then its payments are read."""
    shop, services = till.stage, Services(till.stage.database, till.stage.rules)
    await till.order("o")
    async with payments_locked(shop.database) as connection:
        reading = asyncio.create_task(services.orders.get("o"))
        await until_waiting(connection)
        await process(connection, [till.paid("p", "o")], shop.rules)
    order = await reading
    assert (order.status, order.payments) == ("PENDING", [])
    assert is_of_one_moment(await services.orders.get("o"))
    assert (await services.orders.get("o")).status == "PAID"


async def test_an_order_that_is_refunded_while_it_is_read_is_shown_as_it_was(till: Till) -> None:
    """OPS-9: the reverse."""
    shop, services = till.stage, Services(till.stage.database, till.stage.rules)
    await till.order("o")
    await till.processed(till.paid("p", "o"))
    async with payments_locked(shop.database) as connection:
        reading = asyncio.create_task(services.orders.get("o"))
        await until_waiting(connection)
        await process(connection, [till.refunded("p")], shop.rules)
    order = await reading
    assert order.status == "PAID"
    assert [(one.status, one.refunded) for one in order.payments] == [("SUCCEEDED", "0.00")]
    assert (await services.orders.get("o")).status == "REFUNDED"


async def test_an_order_is_of_one_moment_while_payments_are_applied(till: Till) -> None:
    """OPS-9: at any time."""
    services = Services(till.stage.database, till.stage.rules)
    names = [f"o-{number}" for number in range(15)]
    for name in names:
        await till.order(name)
    paying = asyncio.create_task(
        till.processed(*(till.paid(f"p-{name}", name) for name in names[:5]))
    )
    for number, name in enumerate(names[5:]):
        again = asyncio.create_task(till.processed(till.paid(f"p-{name}", name)))
        for _ in range(20):
            assert is_of_one_moment(await services.orders.get(name)), number
        await again
    await paying
    assert {(await services.orders.get(name)).status for name in names} == {"PAID"}


async def test_a_snapshot_only_reads(database: Database) -> None:
    """OPS-9"""
    async with database.snapshot() as connection:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("DELETE FROM users")


async def test_an_event_is_shown_with_the_trail_of_the_same_moment(till: Till) -> None:
    """OPS-9 OPS-2: its status and the steps that led to it."""
    shop, services = till.stage, Services(till.stage.database, till.stage.rules)
    item = till.stage.event(EventType.PAID, "p", amount_minor=99_000, currency="RUB", order="o")
    await till.processed(item)
    event_id = UUID(str(item.event_id))
    async with shop.database.transaction() as connection:
        await connection.execute("LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(services.events.get(event_id))
        for _ in range(1_000):
            if await connection.fetchval(WAITING.replace("'payments'", "'audit_log'")):
                break
            await asyncio.sleep(0.001)
        await connection.execute(
            "INSERT INTO audit_log (event_id, action, success) VALUES ($1, 'later', true)", event_id
        )
    assert "later" not in {one.action for one in (await reading).trail}
    assert "later" in {one.action for one in (await services.events.get(event_id)).trail}
