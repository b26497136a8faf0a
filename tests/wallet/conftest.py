"""Fixtures of the wallet tests."""

from collections.abc import AsyncIterator

import pytest_asyncio

from paidonce.db.pool import Database
from paidonce.wallet.commands import WalletCommands


@pytest_asyncio.fixture(loop_scope="session")
async def wallets(module_database: Database) -> AsyncIterator[WalletCommands]:
    made = WalletCommands(module_database)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def wallet_services(module_database: Database) -> AsyncIterator[list[WalletCommands]]:
    """Two independent services, as in two processes."""
    made = [WalletCommands(module_database), WalletCommands(module_database)]
    yield made
    for one in made:
        await one.stop()
