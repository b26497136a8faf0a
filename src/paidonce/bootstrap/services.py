"""Every service of the capabilities, composed on one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.rules import check_settings, load_rules
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
from paidonce.replay.service import DeadLetterService, ReplayService
from paidonce.runtime.leader import Leader
from paidonce.runtime.service import Supervisor
from paidonce.runtime.wakeup import Wakeup
from paidonce.settings import Settings, WalletSettings
from paidonce.statistics.service import StatisticsService
from paidonce.users.service import UserService
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.service import WalletService


@dataclass(frozen=True, slots=True)
class Services:
    """What operators can ask and do. The HTTP API and the command line are thin over it."""

    users: UserService
    orders: OrderService
    payments: PaymentService
    events: EventService
    dead_letters: DeadLetterService
    replays: ReplayService
    reconciliations: ReconciliationService
    wallets: WalletService
    payouts: PayoutService
    bus: BusService
    notifications: NotificationService
    statistics: StatisticsService
    keys: KeyService
    bans: BanService
    wallet_commands: WalletCommands


def build_services(
    database: Database,
    rules: Rules,
    pepper: bytes | None = None,
    wallet: WalletSettings = WalletSettings(),  # noqa: B008 - it is frozen
) -> Services:
    """The services on an open database."""
    linker = Linker(database, rules)
    wallet_commands = WalletCommands(database)
    users = UserService(database, linker)
    wallets = WalletService(database, wallet_commands, wallet)
    orders = OrderService(database, rules, linker, users, wallets)
    events = EventService(database, rules.masker)
    replays = ReplayService(database, rules)
    return Services(
        users=users,
        orders=orders,
        payments=PaymentService(database, linker, users),
        events=events,
        dead_letters=DeadLetterService(database, rules, events, replays),
        replays=replays,
        reconciliations=ReconciliationService(database, rules),
        wallets=wallets,
        payouts=PayoutService(database, rules, wallets),
        bus=BusService(database, rules.masker),
        notifications=NotificationService(database, rules.routes),
        statistics=StatisticsService(database),
        keys=KeyService(database, pepper),
        bans=BanService(database),
        wallet_commands=wallet_commands,
    )


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The services without a server, while the database is open."""
    check_settings(settings)
    async with open_migrated_database(settings) as database:
        rules, _ = await load_rules(settings, database)
        services = build_services(database, rules, load_pepper(settings), settings.wallet)
        try:
            yield services
        finally:
            await services.wallet_commands.stop()


@asynccontextmanager
async def open_reconciliation(settings: Settings) -> AsyncIterator[Services]:
    """The services, with a worker that reconciles and looks up what a reconciliation needs."""
    check_settings(settings)
    async with open_migrated_database(settings) as database:
        rules, _ = await load_rules(settings, database)
        wakeup, leader = Wakeup(), Leader(database)
        workers = Supervisor(
            LookupWorker(database, rules, wakeup, leader=leader),
            ReconciliationWorker(database, rules, wakeup, leader=leader),
        )
        async with workers.running():
            yield build_services(database, rules, load_pepper(settings), settings.wallet)
