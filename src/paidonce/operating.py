"""The operators' verbs without a server, for the command line. No room of the web is needed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from paidonce.configured import load_rules
from paidonce.engine.asking import Asker
from paidonce.engine.bell import Bell
from paidonce.engine.items import Rules
from paidonce.engine.reconciler import Reconciler
from paidonce.loops import start
from paidonce.opening import in_background, opened_database
from paidonce.operations import Operations
from paidonce.operations.pepper import pepper_of
from paidonce.settings import Settings
from paidonce.store.db import Database


@asynccontextmanager
async def opened_operations(settings: Settings) -> AsyncIterator[Operations]:
    """The verbs, while the database is open."""
    async with opened_database(settings) as database:
        rules, _ = await load_rules(settings, database)
        operations = operations_on(database, settings, rules)
        try:
            yield operations
        finally:
            await operations.wallets.stop()


@asynccontextmanager
async def opened_reconciler(settings: Settings) -> AsyncIterator[Operations]:
    """The same, and meanwhile what is wanted is reconciled, and what that repairs is settled."""
    async with opened_database(settings) as database, AsyncExitStack() as stack:
        rules, _ = await load_rules(settings, database)
        bell = Bell(database)
        start(stack, [Asker(database, rules, bell)])
        await stack.enter_async_context(in_background(Reconciler(database, rules, bell).run()))
        yield operations_on(database, settings, rules)


def operations_on(database: Database, settings: Settings, rules: Rules) -> Operations:
    """The verbs on a database that is open."""
    return Operations(database, rules, pepper_of(settings), settings.wallet)
