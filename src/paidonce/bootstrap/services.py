"""Every service of the capabilities, composed on one database."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from paidonce.audit.service import AuditService
from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.rules import check_settings, load_rules, load_stored_rules
from paidonce.bus.service import BusService
from paidonce.db.pool import Database
from paidonce.events.service import EventService
from paidonce.guard.service import BanService
from paidonce.keys.pepper import load_pepper
from paidonce.keys.service import KeyService
from paidonce.linking.linker import Linker
from paidonce.lookup.worker import LookupWorker
from paidonce.notifications.service import NotificationService
from paidonce.orders.service import OrderService
from paidonce.payments.service import PaymentService
from paidonce.payouts.service import PayoutService
from paidonce.processing.items import Rules
from paidonce.reconciliation.service import ReconciliationService
from paidonce.reconciliation.worker import ReconciliationWorker
from paidonce.reload.service import ReloadService
from paidonce.replay.service import DeadLetterService, ReplayService
from paidonce.runtime.leader import Leader
from paidonce.runtime.service import Supervisor
from paidonce.runtime.wakeup import Wakeup
from paidonce.settings import Settings
from paidonce.settings.sections import WalletSettings
from paidonce.statistics.service import StatisticsService
from paidonce.users.service import UserService
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.service import WalletService


class Services:
    """What operators can ask and do. The HTTP API and the command line are thin over it."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        pepper: bytes | None = None,
        wallet: WalletSettings = WalletSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        linker = Linker(database, rules)
        self.wallet_commands = WalletCommands(database)
        self.users = UserService(database, linker, rules.masker)
        self.wallets = WalletService(database, self.wallet_commands, wallet)
        self.orders = OrderService(database, rules, linker, self.users, self.wallets)
        self.payments = PaymentService(database, linker, self.users)
        self.events = EventService(database, rules.masker)
        self.replays = ReplayService(database, rules)
        self.dead_letters = DeadLetterService(database, rules, self.events, self.replays)
        self.reconciliations = ReconciliationService(database, rules)
        self.payouts = PayoutService(database, rules, self.wallets)
        self.bus = BusService(database, rules.masker)
        self.notifications = NotificationService(database, rules.routes)
        self.statistics = StatisticsService(database)
        self.keys = KeyService(database, pepper)
        self.bans = BanService(database)
        self.audit = AuditService(database)
        self.reloads = ReloadService(database)


@asynccontextmanager
async def open_stored_services(
    settings: Settings, tell: Callable[[str], None]
) -> AsyncIterator[Services]:
    """The services for commands that work on what is stored, such as lists.

    They need no secrets, no handlers and no sources.

    Secrets that cannot be read here cannot be masked either; `tell` is told their names.
    """
    async with open_migrated_database(settings) as database:
        rules, unknown = await load_stored_rules(settings, database)
        if unknown:
            tell(f"Not masked, because they cannot be read here: {', '.join(unknown)}")
        services = Services(database, rules, None, settings.wallet)
        try:
            yield services
        finally:
            await services.wallet_commands.stop()


@asynccontextmanager
async def open_services(settings: Settings, reconciles: bool) -> AsyncIterator[Services]:
    """The services without a server, while the database is open.

    If this process reconciles, a worker does so, and another looks up what it needs.
    """
    check_settings(settings)
    async with open_migrated_database(settings) as database, AsyncExitStack() as stack:
        rules, _ = await load_rules(settings, database)
        services = Services(database, rules, load_pepper(settings), settings.wallet)
        stack.push_async_callback(services.wallet_commands.stop)
        if reconciles:
            wakeup, leader = Wakeup(), Leader(database)
            workers = Supervisor(
                LookupWorker(database, rules, wakeup, leader=leader),
                ReconciliationWorker(database, rules, wakeup, leader=leader),
            )
            await stack.enter_async_context(workers.running())
        yield services
