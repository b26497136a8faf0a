"""A running process: its background services and its HTTP applications."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from paidonce.bootstrap.api import operators_api
from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.documentation import describe
from paidonce.bootstrap.health import HealthSource, add_health
from paidonce.bootstrap.readiness import Readiness
from paidonce.bootstrap.rules import (
    check_settings,
    load_gateway,
    load_rules,
    load_timers,
    payout_options,
)
from paidonce.bootstrap.services import Services
from paidonce.bus.bisect import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus, open_bus
from paidonce.bus.relay import Relay
from paidonce.core.actors import Scope as KeyScope
from paidonce.db.pool import Database
from paidonce.errors import ConfigurationError, InvalidRequestError
from paidonce.guard.setup import GuardComponents, build_guard
from paidonce.inbox.edge import Edge, Receive, Scope, Send, is_delivery, path_within
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.inbox.sample_webhooks import add_sample_webhooks
from paidonce.keys.authenticator import KeyAuthenticator
from paidonce.keys.pepper import load_pepper
from paidonce.lookup.worker import MAX_AT_ONCE, LookupWorker
from paidonce.maintenance.janitor import Janitor, usual_tasks
from paidonce.notifications.channels import load_channels
from paidonce.notifications.notifier import Notifier
from paidonce.payouts import processor, views
from paidonce.payouts.callbacks import CallbackRetries
from paidonce.payouts.caller import GatewayCaller
from paidonce.processing.items import QueueName, Rules, Source
from paidonce.queue.worker import MAX_BATCH, MAX_BYTES_IN_HAND, Worker
from paidonce.reconciliation.worker import ReconciliationWorker
from paidonce.replay.worker import ReplayWorker
from paidonce.runtime.clock_watch import ClockWatch
from paidonce.runtime.leader import Leader
from paidonce.runtime.service import Service, Supervisor
from paidonce.runtime.wakeup import Wakeup, WakeupReceiver, WakeupSender
from paidonce.settings import Role, Settings
from paidonce.statistics.counting import DroppedCounter
from paidonce.wallet.commands import ReservationExpiry

ALL_ROLES: Final = frozenset(Role)


@dataclass(frozen=True, slots=True)
class App:
    """A running process."""

    services: Services
    database: Database
    edge: Edge | None
    asgi: "Dispatcher | FastAPI"
    finish: Callable[[], None]
    """Ask background services to finish, before a stop."""
    give_up: Callable[[], None]
    """Answer waiting requests with 503, so that their senders try again."""


class Dispatcher:
    """Passes deliveries to the edge, and everything else to the API of operators."""

    def __init__(self, edge: Edge, api: Any) -> None:
        self._edge = edge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_for_edge = is_delivery(path_within(scope))
        await (self._edge if is_for_edge else self._api)(scope, receive, send)


async def accept_bootstrap_key(services: Services) -> bool:
    """Make the key of PAIDONCE_BOOTSTRAP_KEY valid, if it is set. Raises ConfigurationError."""
    key = os.environ.get("PAIDONCE_BOOTSTRAP_KEY")
    if key is None:
        return False
    try:
        await services.keys.ensure(key, "bootstrap", KeyScope.ADMIN)
    except InvalidRequestError as error:
        raise ConfigurationError(f"PAIDONCE_BOOTSTRAP_KEY (hidden): {error}") from None
    return True


@asynccontextmanager
async def running(settings: Settings, roles: Set[Role] = ALL_ROLES) -> AsyncIterator[App]:
    """A process with these roles. At the end, accepted deliveries are processed and answered."""
    bus = open_bus(settings.bus)
    check_settings(settings)
    async with open_migrated_database(settings) as database, AsyncExitStack() as stack:
        rules, sources = await load_rules(settings, database)
        services = Services(database, rules, load_pepper(settings), settings.wallet)
        stack.push_async_callback(services.wallet_commands.stop)
        stack.push_async_callback(bus.close)
        wakeup = Wakeup()
        clock_watch = ClockWatch(database)
        await clock_watch.compare()
        background = Supervisor(
            clock_watch, *_background(settings, roles, database, rules, sources, bus, wakeup)
        )
        await stack.enter_async_context(background.running())
        group = Group(database, rules, settings.server.max_waiting, wakeup)
        is_queued = settings.server.mode == "queued"
        intake = Intake(group, database, sources, is_queued, clock_watch)
        receiving = Supervisor()
        guard = None
        if Role.WEB in roles:
            group.start()
            stack.push_async_callback(group.stop)
            guard = await build_guard(settings, database, rules.routes)
            receiving.add(WakeupSender(database, wakeup), *guard.services)
            receiving.add(DroppedCounter(database, intake.dropped))
        await stack.enter_async_context(receiving.running())
        readiness = Readiness(
            database, *((group, partial(accept_bootstrap_key, services)) if guard else ())
        )
        stack.push_async_callback(readiness.close)
        health = HealthSource(services, readiness, intake.sources, (background, receiving))
        edge, asgi = _build_api(settings, rules, health, intake, guard)

        def give_up() -> None:
            group.give_up()
            services.wallet_commands.give_up()

        yield App(services, database, edge, asgi, background.finish, give_up)


def _background(
    settings: Settings,
    roles: Set[Role],
    database: Database,
    rules: Rules,
    sources: Mapping[str, Source],
    bus: Bus,
    wakeup: Wakeup,
) -> list[Service]:
    """The background services of these roles. Their leader roles share one session."""
    leader, bus_wakeup = Leader(database), Wakeup()
    retries = Retries(**settings.retry.model_dump())
    consumer = partial(
        Consumer, bus, database, retries=retries, routes=rules.routes, wakeup=bus_wakeup
    )
    services: list[Service] = []
    if Role.WORKER in roles:
        timers = load_timers(settings, sources)
        services += [
            WakeupReceiver(database, wakeup),
            *_workers(settings, database, rules, wakeup, leader),
            ReconciliationWorker(database, rules, wakeup, timers, leader=leader),
        ]
    if Role.RELAY in roles:
        channels = load_channels(settings.notifications)
        if channels:
            services.append(Notifier(channels, leader))
        services.append(Relay(bus, leader, bus_wakeup))
    if Role.PAYMENTS in roles:
        gateway, options = load_gateway(settings), payout_options(settings, rules)
        if gateway is not None and options is not None:
            services += [
                consumer(
                    name=processor.GROUP,
                    aggregate_types=processor.AGGREGATE_TYPES,
                    consume=processor.PayoutProcessor(options).consume,
                ),
                GatewayCaller(database, gateway, options, bus_wakeup),
                CallbackRetries(database, options),
            ]
    if Role.QUERY in roles:
        types = views.AGGREGATE_TYPES
        services.append(consumer(name=views.GROUP, aggregate_types=types, consume=views.consume))
    if Role.JANITOR in roles:
        tasks = [ReservationExpiry(), *usual_tasks(settings.retention)]
        services.append(Janitor(tasks, leader))
    return services


def _workers(
    settings: Settings, database: Database, rules: Rules, wakeup: Wakeup, leader: Leader
) -> list[Service]:
    """All services that process stored events."""
    # How many events a worker may hold in memory, by the largest possible body.
    limit = min(max(MAX_BYTES_IN_HAND // settings.server.max_body_bytes, 1), MAX_BATCH)
    # These process one event in a transaction. Without handlers one empties the queue.
    hook_workers = settings.handler_concurrency if rules.handlers else 1
    return [
        Worker(database, rules, wakeup, limit),
        LookupWorker(database, rules, wakeup, min(limit, MAX_AT_ONCE), leader=leader),
        *(Worker(database, rules, wakeup, 1, QueueName.HOOKS) for _ in range(hook_workers)),
        ReplayWorker(database, rules, wakeup, limit, leader),
    ]


def _build_api(
    settings: Settings,
    rules: Rules,
    health: HealthSource,
    intake: Intake,
    guard: GuardComponents | None,
) -> "tuple[Edge | None, Dispatcher | FastAPI]":
    """The HTTP applications. Without the web role only health and metrics are answered."""
    if guard is None:
        api = FastAPI(openapi_url=None)
        add_health(api, health)
        return None, api
    services = health.services
    server, takes_tests = settings.server, settings.environment != "production"
    edge = Edge(
        intake,
        guard.addresses,
        guard.guard,
        server.max_body_bytes,
        server.request_timeout_s,
        takes_tests,
    )
    api = operators_api(
        services,
        KeyAuthenticator(services.keys, guard.addresses, guard.api_key_limit, guard.security_log),
        rules.masker,
        server.max_body_bytes,
    )
    add_health(api, health)
    add_sample_webhooks(api, services.orders, intake, takes_tests)
    describe(api, intake.sources)
    return edge, Dispatcher(edge, api)
