"""Everything of a process that depends on the settings. A reload builds the next generation.

A generation is built as a whole, as at the start, and closed as a whole: nothing in it changes. So
a delivery is answered by the generation that it began in, with the settings of that one.
"""

import asyncio
import os
from collections.abc import Mapping, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI

from paidonce.api import errors
from paidonce.bootstrap.api import operators_api
from paidonce.bootstrap.documentation import describe
from paidonce.bootstrap.exposure import load_exposure
from paidonce.bootstrap.health import (
    HealthSource,
    add_bare_health,
    add_health,
    add_metrics,
    add_probes,
)
from paidonce.bootstrap.readiness import Readiness
from paidonce.bootstrap.rules import load_gateway, load_rules, load_timers, payout_options
from paidonce.bootstrap.services import Services
from paidonce.bus.bisect import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus
from paidonce.bus.relay import Relay
from paidonce.core.actors import Scope as KeyScope
from paidonce.db.pool import Database
from paidonce.errors import ConfigurationError, InvalidRequestError
from paidonce.guard.setup import GuardComponents, build_guard
from paidonce.inbox.edge import Edge, Receive, Scope, Send, is_delivery, path_within
from paidonce.inbox.evidence import EvidenceLimits
from paidonce.inbox.evidence_room import EvidenceRoom
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
from paidonce.telemetry import metrics
from paidonce.wallet.commands import ReservationExpiry


@dataclass(frozen=True, slots=True)
class Host:
    """What a process keeps over all generations."""

    database: Database
    bus: Bus
    roles: Set[Role]
    clock_watch: ClockWatch
    lasting: Supervisor
    """Services that outlive a generation."""


class Dispatcher:
    """Passes deliveries to the edge, and everything else to the API of operators."""

    def __init__(self, edge: Edge, api: Any) -> None:
        self._edge = edge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_for_edge = is_delivery(path_within(scope))
        await (self._edge if is_for_edge else self._api)(scope, receive, send)


class Generation:
    """The services, the receiver of deliveries and the API, with one set of settings."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        group: Group,
        background: Supervisor,
        edge: Edge | None,
        asgi: "Dispatcher | FastAPI",
        admin: FastAPI | None,
    ) -> None:
        self.settings = settings
        self.services = services
        self.edge = edge
        self._group = group
        self._background = background
        self.has_admin = admin is not None
        """Whether operators have an application of their own; then the other has nothing of it."""
        self._asgi = asgi
        self._admin = admin
        self._stack = AsyncExitStack()
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an ASGI server."""
        await self._answer(self._asgi, scope, receive, send)

    async def answer_operator(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request at the port of operators."""
        await self._answer(self._admin, scope, receive, send)

    async def _answer(self, asgi: Any, scope: Scope, receive: Receive, send: Send) -> None:
        self._requests += 1
        try:
            await asgi(scope, receive, send)
        finally:
            self._requests -= 1

    def finish(self) -> None:
        """Ask background services to finish; deliveries are answered as before."""
        self._background.finish()

    def give_up(self) -> None:
        """Answer waiting requests with 503, so that their senders try again."""
        self._group.give_up()
        self.services.wallet_commands.give_up()

    @property
    def is_quiet(self) -> bool:
        """Whether all that it began is done."""
        is_answering = self._requests > 0 or (self.edge is not None and self.edge.in_flight > 0)
        return not is_answering and self._background.is_idle

    def keep(self, stack: AsyncExitStack) -> None:
        """Close this at the end."""
        self._stack = stack

    async def close(self) -> None:
        """Process and answer what was accepted, and stop."""
        await self._stack.aclose()


async def open_generation(host: Host, settings: Settings) -> Generation:
    """Build and start a generation. Raises ConfigurationError or DatabaseUnavailableError."""
    async with AsyncExitStack() as stack:
        generation = await _open(host, settings, stack)
        generation.keep(stack.pop_all())
    return generation


async def _open(host: Host, settings: Settings, stack: AsyncExitStack) -> Generation:
    database, roles = host.database, host.roles
    rules, sources = await load_rules(settings, database)
    metrics.start_at_zero(source.labels for source in sources.values())
    services = Services(database, rules, load_pepper(settings), settings.wallet)
    stack.push_async_callback(services.wallet_commands.stop)
    wakeup = Wakeup()
    background = Supervisor(
        *_background(settings, roles, database, rules, sources, host.bus, wakeup)
    )
    await stack.enter_async_context(background.running())
    group = Group(database, rules, settings.server.max_waiting, wakeup)
    receiving = Supervisor()
    guard = await build_guard(settings, database, rules.routes) if Role.WEB in roles else None
    evidence = EvidenceLimits(
        EvidenceRoom(database, settings.limits, rules.routes),
        guard.guard.has_sent_to if guard else None,
    )
    is_queued = settings.server.mode == "queued"
    intake = Intake(group, database, sources, is_queued, evidence, host.clock_watch)
    if guard is not None:
        group.start()
        stack.push_async_callback(group.stop)
        receiving.add(WakeupSender(database, wakeup), *guard.services)
        receiving.add(DroppedCounter(database, intake.dropped))
    await stack.enter_async_context(receiving.running())
    readiness = Readiness(
        database, *((group, partial(accept_bootstrap_key, services)) if guard else ())
    )
    stack.push_async_callback(readiness.close)
    supervisors = (background, receiving, host.lasting)
    health = HealthSource(services, readiness, intake.sources, supervisors)
    # Routes take half a second to build; meanwhile deliveries are answered.
    applications = await asyncio.to_thread(_build_api, settings, rules, health, intake, guard)
    return Generation(settings, services, group, background, *applications)


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
    retries = Retries(**settings.retry.model_dump(exclude={"handler_for_h"}))
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
            services.append(Notifier(channels, leader, settings.server.public_url))
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
) -> "tuple[Edge | None, Dispatcher | FastAPI, FastAPI | None]":
    """The HTTP applications: of deliveries, and of operators if they have a port of their own.

    Without the web role only health and metrics are answered.
    """
    admin = _build_admin_api(settings, rules, health, intake, guard)
    public = admin
    has_admin_port = settings.server.admin_port is not None
    if has_admin_port:
        public = _bare_api(rules)
        add_probes(public, health)
        add_bare_health(public, health)
    if guard is None:
        return None, public, admin if has_admin_port else None
    server, takes_tests = settings.server, settings.environment != "production"
    edge = Edge(
        intake,
        guard.addresses,
        guard.guard,
        server.max_body_bytes,
        server.request_timeout_s,
        takes_tests,
    )
    return edge, Dispatcher(edge, public), admin if has_admin_port else None


def _build_admin_api(
    settings: Settings,
    rules: Rules,
    health: HealthSource,
    intake: Intake,
    guard: GuardComponents | None,
) -> FastAPI:
    services = health.services
    exposure = load_exposure(settings, has_keys=guard is not None)
    if guard is None:
        api = _bare_api(rules)
    else:
        api = operators_api(
            services,
            KeyAuthenticator(
                services.keys, guard.addresses, guard.api_key_limit, guard.security_log
            ),
            rules.masker,
            settings.server.max_body_bytes,
        )
    add_probes(api, health)
    add_health(api, health, exposure)
    add_metrics(api, services, exposure)
    if guard is not None:
        takes_tests = settings.environment != "production"
        add_sample_webhooks(api, services.orders, intake, takes_tests)
        describe(api, intake.sources)
    return api


def _bare_api(rules: Rules) -> FastAPI:
    """An application without the calls of operators."""
    api = FastAPI(openapi_url=None, redirect_slashes=False)
    api.state.masker = rules.masker
    errors.add_to(api)
    return api
