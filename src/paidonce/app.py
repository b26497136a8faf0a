"""The composition root: the only module that knows every room."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from paidonce.domain.events import SourceId
from paidonce.domain.money import money
from paidonce.domain.plans import Plan, PlanBook, plan_book
from paidonce.engine.group import Group
from paidonce.engine.intake import Intake
from paidonce.engine.items import Rules, Source
from paidonce.engine.janitor import Janitor
from paidonce.engine.retry import RetryPolicy
from paidonce.engine.worker import Worker
from paidonce.errors import ConfigurationError, DatabaseAwayError, InvalidMoneyError
from paidonce.operations import Operations
from paidonce.providers import configured_providers
from paidonce.settings import PlanSettings, Settings
from paidonce.store.db import Database, open_database
from paidonce.store.embedded import EmbeddedPostgres
from paidonce.store.schema import ensure_partitions, migrate, register_source, sync_plans
from paidonce.telemetry import logger
from paidonce.web.addresses import Addresses
from paidonce.web.api import describe, operators_api
from paidonce.web.edge import PREFIX, Edge, Receive, Scope, Send
from paidonce.web.health import add_health

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class App:
    """A service that runs: its verbs, and the ASGI application that answers."""

    operations: Operations
    edge: Edge
    asgi: "Dispatcher"


class Dispatcher:
    """Deliveries go to the edge, everything else to the operators' API."""

    def __init__(self, edge: Edge, api: Any) -> None:
        self._edge = edge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_delivery = path.startswith(PREFIX) and path != f"{PREFIX}health"
        await (self._edge if is_delivery else self._api)(scope, receive, send)


@asynccontextmanager
async def opened_database(settings: Settings) -> AsyncIterator[Database]:
    """The database, started if it is the embedded one, with its schema up to date."""
    configured_providers(
        settings
    )  # what is wrong with the sources is told before anything is started
    if not settings.database.is_embedded:
        async with _migrated(settings.database.url) as database:
            yield database
        return
    embedded = EmbeddedPostgres(settings.database.data_dir)
    url = await embedded.start()
    try:
        async with _in_background(embedded.supervise()), _migrated(url) as database:
            yield database
    finally:
        await embedded.stop()


@asynccontextmanager
async def opened_operations(settings: Settings) -> AsyncIterator[Operations]:
    """The operators' verbs without a server, for the command line."""
    async with opened_database(settings) as database:
        rules, _ = await load_rules(settings, database)
        yield Operations(database, rules)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[App]:
    """The whole service. At the end, what was accepted is settled before anything stops."""
    async with opened_database(settings) as database:
        rules, sources = await load_rules(settings, database)
        group = Group(database, rules, settings.server.max_waiting)
        intake = Intake(group, sources, is_queued=settings.server.mode == "queued")
        operations = Operations(database, rules)
        api = operators_api(operations)
        add_health(api, operations, group, sources)
        describe(api)
        edge = Edge(intake, _addresses(settings), settings.server.max_body_bytes)
        group.start()
        try:
            async with (
                _in_background(Worker(database, rules).run()),
                _in_background(Janitor(database, settings.retention).run()),
            ):
                yield App(operations, edge, Dispatcher(edge, api))
        finally:
            await group.stop()


@asynccontextmanager
async def _migrated(url: str) -> AsyncIterator[Database]:
    try:
        database = await open_database(url)
    except DatabaseAwayError as error:
        raise ConfigurationError(f"database.url = {_without_password(url)}: {error}") from None
    try:
        revision = await migrate(database)
        if revision is not None:
            log.info("migrated", revision=revision)
        async with database.connection() as connection:
            await ensure_partitions(connection, datetime.now(UTC))
        yield database
    finally:
        await database.close()


def _without_password(url: str) -> str:
    """Where the URL leads, and nothing of who may go there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://…@{parts.hostname or ''}:{parts.port or 5432}{parts.path}"


async def load_rules(settings: Settings, database: Database) -> tuple[Rules, dict[str, Source]]:
    """What settling depends on, and the sources by name; both known to the database from now on."""
    providers = configured_providers(settings)
    sources: dict[str, Source] = {}
    async with database.transaction() as connection:
        plans = await sync_plans(connection, _plans(settings.plans))
        for name, provider in providers.items():
            source_id = await register_source(connection, name, provider.name)
            chosen = settings.sources[name].link_by_email
            by_email = provider.links_by_email if chosen is None else chosen
            sources[name] = Source(source_id, name, provider, by_email)
    return _rules_of(settings, plan_book(plans, settings.plans), sources), sources


def _rules_of(settings: Settings, plans: PlanBook, sources: dict[str, Source]) -> Rules:
    by_id: dict[SourceId, Source] = {source.id: source for source in sources.values()}
    return Rules(plans, by_id, RetryPolicy(**settings.retry.model_dump()))


def _plans(configured: dict[str, PlanSettings]) -> list[Plan]:
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


def _addresses(settings: Settings) -> Addresses:
    allowed = {name: source.allow for name, source in settings.sources.items()}
    return Addresses(settings.server.trusted_proxies, allowed)


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
