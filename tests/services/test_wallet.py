"""Reserving, committing and releasing, on a real database."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import Commit, Reserve
from paidonce.services.wallet import WalletService
from paidonce.store.db import Database


@pytest_asyncio.fixture(loop_scope="session")
async def service(database: Database) -> AsyncIterator[WalletService]:
    made = WalletService(database)
    yield made
    await made.stop()


async def filled(database: Database, minor: int) -> WalletId:
    wallet_id = WalletId(uuid7())
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO wallets (id, owner, currency, balance_minor) VALUES ($1, $2, 'EUR', $3)",
            wallet_id,
            str(uuid4()),
            minor,
        )
    return wallet_id


async def test_try(database: Database, service: WalletService) -> None:
    w = await filled(database, 1000)
    got = await asyncio.gather(*(service.do(Reserve(f"p{n}", w, 100)) for n in range(64)))
    assert sum(one.refusal is None for one in got) == 10
    got = await asyncio.gather(*(service.do(Commit("p0")) for n in range(64)))
    assert sum(one.refusal is None for one in got) == 64
