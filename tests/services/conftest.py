"""What the services' tests share, among themselves and with those of the store."""

from collections.abc import AsyncIterator

import pytest_asyncio

from paidonce.services.wallet import WalletService
from paidonce.store.db import Database
from tests.flow.conftest import shared_database
from tests.store.conftest import _logging, module_database, shop

__all__ = ["_logging", "module_database", "shared_database", "shop"]


@pytest_asyncio.fixture(loop_scope="session")
async def service(module_database: Database) -> AsyncIterator[WalletService]:
    made = WalletService(module_database)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def services(module_database: Database) -> AsyncIterator[list[WalletService]]:
    """Two that know nothing of each other, as two processes have them."""
    made = [WalletService(module_database), WalletService(module_database)]
    yield made
    for one in made:
        await one.stop()
