"""The composition root: the only module that knows every room."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fastapi import FastAPI

from paidonce import telemetry
from paidonce.domain.events import SourceId
from paidonce.domain.masking import Masker
from paidonce.domain.money import money
from paidonce.domain.orders import Kind
from paidonce.domain.plans import Plan, PlanBook, plan_book
from paidonce.doorkeeping import (
    Doorkeeper,
    configured_addresses,
    doorkeeper,
    refuse_wrong_limits,
)
from paidonce.engine.asking import MAX_AT_ONCE, Asker
from paidonce.engine.bell import Bell
from paidonce.engine.channels import configured_channels, told_to
from paidonce.engine.confirming import Approver
from paidonce.engine.group import Group
from paidonce.engine.handlers import Handlers, import_handlers, registered
from paidonce.engine.intake import Intake
from paidonce.engine.items import Rules, Source
from paidonce.engine.janitor import Janitor
from paidonce.engine.notifying import Notifier
from paidonce.engine.reconciler import Reconciler, Timer
from paidonce.engine.replaying import Replayer
from paidonce.engine.retry import RetryPolicy
from paidonce.engine.worker import MAX_BATCH, MAX_BYTES_IN_HAND, Worker
from paidonce.errors import (
    ConfigurationError,
    DatabaseAwayError,
    EmbeddedDatabaseError,
    InvalidMoneyError,
    InvalidRequestError,
)
from paidonce.operations import Operations
from paidonce.operations import Scope as KeyScope
from paidonce.operations.pepper import pepper_of
from paidonce.providers import configured_providers, configured_secrets
from paidonce.settings import PlanSettings, Role, Settings
from paidonce.store.db import Database, open_database, place_of, rights_told
from paidonce.store.due import Lane
from paidonce.store.embedded import EmbeddedPostgres
from paidonce.store.schema import ensure_partitions, migrate, register_source, sync_plans
from paidonce.telemetry import logger
from paidonce.web.api import describe, operators_api
from paidonce.web.edge import Edge, Receive, Scope, Send, is_delivery, path_within
from paidonce.web.health import add_health
from paidonce.web.sample_webhooks import add_sample_webhooks

log = logger(__name__)

ALL_ROLES: Final = frozenset(Role)
SUPERVISE_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class App:
    """A service that runs: its verbs, and the ASGI application that answers."""

    operations: Operations
    database: Database
    edge: Edge | None
    asgi: "Dispatcher | FastAPI"
    finish: Callable[[], None]
    """Begin nothing new, because the service is about to stop."""
    give_up: Callable[[], None]
    """Answer whoever still waits that he has to come again."""


class Dispatcher:
    """Deliveries go to the edge, everything else to the operators' API."""

    def __init__(self, edge: Edge, api: Any) -> None:
        self._edge = edge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._edge if is_delivery(path_within(scope)) else self._api
        await door(scope, receive, send)


@asynccontextmanager
async def opened_database(settings: Settings) -> AsyncIterator[Database]:
    """The database, started if it is the embedded one, with its schema up to date."""
    refuse_wrong(settings)
    if not settings.database.is_embedded:
        async with _migrated(settings.database.url) as database:
            yield database
        return
    embedded = EmbeddedPostgres(settings.database.data_dir)
    url = await embedded.start()
    try:
        async with _in_background(_supervise(embedded)), _migrated(url) as database:
            yield database
    finally:
        await embedded.stop()


def refuse_wrong(settings: Settings) -> None:
    """Raise ConfigurationError for what can be known to be wrong before anything is started."""
    configured_providers(settings)
    configured_plans(settings.plans)
    configured_addresses(settings)
    refuse_wrong_limits(settings)
    if settings.security.pepper is not None:
        pepper_of(settings)
    configured_handlers(settings)
    configured_channels(settings.notifications)
    refuse_timers_without_books(settings)


async def _supervise(embedded: EmbeddedPostgres) -> None:
    """Keep the embedded server running, also after an attempt to start it again has failed."""
    while True:
        try:
            await embedded.supervise()
        except EmbeddedDatabaseError as error:
            log.error("embedded_database_failed", error=str(error))
        await asyncio.sleep(SUPERVISE_PAUSE_S)


@asynccontextmanager
async def opened_operations(settings: Settings) -> AsyncIterator[Operations]:
    """The operators' verbs without a server, for the command line."""
    async with opened_database(settings) as database:
        rules, _ = await load_rules(settings, database)
        yield Operations(database, rules, pepper_of(settings))


@asynccontextmanager
async def opened_reconciler(settings: Settings) -> AsyncIterator[Operations]:
    """The same, and meanwhile what is wanted is reconciled, and what that repairs is settled."""
    async with opened_database(settings) as database, AsyncExitStack() as stack:
        rules, _ = await load_rules(settings, database)
        bell = Bell(database)
        asker = Asker(database, rules, bell)
        await stack.enter_async_context(_in_background(asker.run()))
        stack.push_async_callback(asker.stop)
        await stack.enter_async_context(_in_background(Reconciler(database, rules, bell).run()))
        yield Operations(database, rules, pepper_of(settings))


async def accept_bootstrap_key(operations: Operations) -> bool:
    """Let the environment's key in, if it has one. Raises ConfigurationError."""
    key = os.environ.get("PAIDONCE_BOOTSTRAP_KEY")
    if key is None:
        return False
    try:
        await operations.accept_key(key, "bootstrap", KeyScope.ADMIN)
    except InvalidRequestError as error:
        raise ConfigurationError(f"PAIDONCE_BOOTSTRAP_KEY (hidden): {error}") from None
    return True


@asynccontextmanager
async def running(settings: Settings, roles: Set[Role] = ALL_ROLES) -> AsyncIterator[App]:
    """The service in these roles. At the end, what was accepted is settled before it stops."""
    async with opened_database(settings) as database, AsyncExitStack() as stack:
        rules, sources = await load_rules(settings, database)
        bell = Bell(database)
        limit = _batch_limit(settings)
        workers: tuple[Worker | Asker | Replayer, ...] = (
            Worker(database, rules, bell, limit),
            Asker(database, rules, bell, min(limit, MAX_AT_ONCE)),
            *_handler_workers(settings, database, rules, bell),
            Replayer(database, rules, bell, limit),
        )
        if Role.WORKER in roles:
            await stack.enter_async_context(_in_background(bell.listen()))
            running_all = _together(*(one.run() for one in workers))
            await stack.enter_async_context(_in_background(running_all))
            stack.push_async_callback(lambda: _together(*(one.stop() for one in workers)))
            reconciler = Reconciler(database, rules, bell, configured_timers(settings, sources))
            await stack.enter_async_context(_in_background(reconciler.run()))
        if Role.JANITOR in roles:
            janitor = Janitor(database, settings.retention)
            await stack.enter_async_context(_in_background(janitor.run()))
        notifier = Notifier(database, configured_channels(settings.notifications))
        if Role.RELAY in roles:
            await stack.enter_async_context(_in_background(notifier.run()))
            stack.push_async_callback(notifier.stop)
        group = Group(database, rules, settings.server.max_waiting, bell)
        if Role.WEB in roles:
            await stack.enter_async_context(_in_background(bell.tell()))
            group.start()
            stack.push_async_callback(group.stop)
        operations = Operations(database, rules, pepper_of(settings))
        intake = Intake(group, Approver(database), sources, settings.server.mode == "queued")
        if Role.WEB in roles:
            await stack.enter_async_context(_in_background(intake.dropped.run(database)))
        keeper = await doorkeeper(settings, database, rules.told_to) if Role.WEB in roles else None
        if keeper is not None:
            await stack.enter_async_context(_in_background(keeper.run()))
        edge, asgi = _doors(settings, operations, group, intake, keeper)

        def finish() -> None:
            for one in (*workers, notifier):
                one.finish()

        yield App(operations, database, edge, asgi, finish, group.give_up)


def _doors(
    settings: Settings,
    operations: Operations,
    group: Group,
    intake: Intake,
    keeper: Doorkeeper | None,
) -> "tuple[Edge | None, Dispatcher | FastAPI]":
    """What answers. Who takes no deliveries still says whether it is well, and what it counts."""
    if keeper is None:
        api = FastAPI(openapi_url=None)
        add_health(api, operations, None, intake.sources)
        return None, api
    server, takes_tests = settings.server, settings.environment != "production"
    edge = Edge(
        intake,
        keeper.addresses,
        keeper.guard,
        server.max_body_bytes,
        server.request_timeout_s,
        takes_tests,
    )
    api = operators_api(operations, keeper.key_guard, server.max_body_bytes)
    add_health(api, operations, group, intake.sources)
    add_sample_webhooks(api, operations, intake, takes_tests)
    describe(api, intake.sources)
    return edge, Dispatcher(edge, api)


def _handler_workers(
    settings: Settings, database: Database, rules: Rules, bell: Bell
) -> list[Worker]:
    """They settle one event a transaction. Without handlers one is left, for what waits in line."""
    number = settings.handler_concurrency if rules.handlers else 1
    return [Worker(database, rules, bell, 1, Lane.HANDLE) for _ in range(number)]


def _batch_limit(settings: Settings) -> int:
    """How many events a worker may have in hand, by what their bodies may take at most."""
    by_size = MAX_BYTES_IN_HAND // settings.server.max_body_bytes
    return min(max(by_size, 1), MAX_BATCH)


@asynccontextmanager
async def _migrated(url: str) -> AsyncIterator[Database]:
    try:
        database = await open_database(url)
    except DatabaseAwayError as error:
        raise ConfigurationError(f"database.url = {place_of(url)}: {error}") from None
    try:
        async with rights_told(url):
            revision = await migrate(database)
            if revision is not None:
                log.info("migrated", revision=revision)
            async with database.connection() as connection:
                await ensure_partitions(connection, datetime.now(UTC))
        yield database
    finally:
        await database.close()


async def load_rules(settings: Settings, database: Database) -> tuple[Rules, dict[str, Source]]:
    """What settling depends on, and the sources by name; both known to the database from now on."""
    providers = configured_providers(settings)
    handlers = configured_handlers(settings)
    sources: dict[str, Source] = {}
    async with rights_told(database.url), database.transaction() as connection:
        plans = await sync_plans(connection, configured_plans(settings.plans))
        for name, provider in providers.items():
            source_id = await register_source(connection, name, provider.name)
            chosen = settings.sources[name]
            by_email = chosen.link_by_email
            if by_email is None:
                by_email = provider.links_by_email
            sources[name] = Source(
                source_id, name, provider, by_email, chosen.ask_rate, bool(handlers)
            )
    return _rules_of(settings, plan_book(plans, settings.plans), sources, handlers), sources


def _rules_of(
    settings: Settings, plans: PlanBook, sources: dict[str, Source], handlers: Handlers
) -> Rules:
    by_id: dict[SourceId, Source] = {source.id: source for source in sources.values()}
    kept = frozenset(map(Kind, settings.refunds.kept))
    masker = Masker(configured_secrets(settings))
    telemetry.mask_with(masker)
    retry = RetryPolicy(**settings.retry.model_dump())
    channels = configured_channels(settings.notifications)
    return Rules(plans, by_id, retry, kept, handlers, masker, told_to(channels))


def configured_plans(configured: Mapping[str, PlanSettings]) -> list[Plan]:
    """The plans as they are from now on. Raises ConfigurationError when a price is no money."""
    return [_plan(plan_id, plan) for plan_id, plan in configured.items()]


def _plan(plan_id: str, plan: PlanSettings) -> Plan:
    try:
        price = money(plan.price, plan.currency)
    except InvalidMoneyError as error:
        raise ConfigurationError(
            f"plans.{plan_id}.price = {plan.price!r}, currency = {plan.currency!r}: {error}"
        ) from None
    if price.amount_minor == 0:
        raise ConfigurationError(f"plans.{plan_id}.price = {plan.price!r}: give a price above zero")
    now = datetime.now(UTC)
    return Plan(plan_id, price, plan.product, plan.days, plan.months, plan.default, now)


def configured_timers(settings: Settings, sources: Mapping[str, Source]) -> dict[SourceId, Timer]:
    """When each source is reconciled by itself."""
    return {
        sources[name].id: Timer(
            timedelta(hours=chosen.reconcile_every_h), timedelta(days=chosen.reconcile_days)
        )
        for name, chosen in settings.sources.items()
        if chosen.reconcile_every_h > 0
    }


def refuse_timers_without_books(settings: Settings) -> None:
    """Raise ConfigurationError for a timer of a source that cannot be reconciled."""
    for name, provider in configured_providers(settings).items():
        every_h = settings.sources[name].reconcile_every_h
        if every_h > 0 and provider.books() is None:
            raise ConfigurationError(
                f"sources.{name}.reconcile_every_h = {every_h}: {provider.name} has no list of "
                "payments to reconcile with; leave it out"
            )


def configured_handlers(settings: Settings) -> Handlers:
    """The user's own, of this program and of what it imports. Raises ConfigurationError."""
    import_handlers(settings.handlers)
    return registered(settings.handler_timeout_s)


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*works)


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run the work beside the body, and end it with the body."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
