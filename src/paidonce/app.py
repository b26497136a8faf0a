"""The composition root: the only module that knows every room."""

import os
from collections.abc import AsyncIterator, Callable, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI

from paidonce.bus.blame import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus
from paidonce.bus.opening import open_bus
from paidonce.bus.relay import Relay
from paidonce.bus.ring import Ring
from paidonce.configured import (
    configured_gateway,
    configured_terms,
    configured_timers,
    load_rules,
)
from paidonce.doorkeeping import Doorkeeper, doorkeeper
from paidonce.engine.asking import MAX_AT_ONCE, Asker
from paidonce.engine.bell import Bell
from paidonce.engine.channels import configured_channels
from paidonce.engine.confirming import Approver
from paidonce.engine.group import Group
from paidonce.engine.intake import Intake
from paidonce.engine.items import Rules
from paidonce.engine.janitor import Janitor, usual_tasks
from paidonce.engine.notifying import Notifier
from paidonce.engine.reconciler import Reconciler
from paidonce.engine.replaying import Replayer
from paidonce.engine.worker import MAX_BATCH, MAX_BYTES_IN_HAND, Worker
from paidonce.errors import ConfigurationError, InvalidRequestError
from paidonce.loops import Loop, start
from paidonce.opening import in_background, opened_database
from paidonce.operating import operations_on
from paidonce.operations import Operations
from paidonce.operations import Scope as KeyScope
from paidonce.services import payments, query
from paidonce.services.callbacks import CallbackRetries
from paidonce.services.calling import Caller
from paidonce.services.expiring import Expiry
from paidonce.services.gateway import Gateway
from paidonce.settings import Role, Settings
from paidonce.store.db import Database
from paidonce.store.due import Lane
from paidonce.web.api import describe, operators_api
from paidonce.web.edge import Edge, Receive, Scope, Send, is_delivery, path_within
from paidonce.web.health import add_health
from paidonce.web.sample_webhooks import add_sample_webhooks

ALL_ROLES: Final = frozenset(Role)


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
    bus = open_bus(settings.bus)
    async with opened_database(settings) as database, AsyncExitStack() as stack:
        rules, sources = await load_rules(settings, database)
        operations = operations_on(database, settings, rules)
        stack.push_async_callback(operations.wallets.stop)
        bell = Bell(database)
        loops: list[Loop] = []
        if Role.WORKER in roles:
            await stack.enter_async_context(in_background(bell.listen()))
            loops += _workers(settings, database, rules, bell)
            timers = configured_timers(settings, sources)
            reconciler = Reconciler(database, rules, bell, timers)
            await stack.enter_async_context(in_background(reconciler.run()))
        ring = Ring()
        stack.push_async_callback(bus.close)
        if Role.RELAY in roles:
            loops.append(Notifier(database, configured_channels(settings.notifications)))
            loops.append(Relay(database, bus, ring=ring))
        if Role.PAYMENTS in roles:
            loops += _payment_service(settings, database, rules, bus, ring)
        if Role.QUERY in roles:
            loops.append(_query_service(settings, database, rules, bus, ring))
        if Role.JANITOR in roles:
            tasks = [Expiry(), *usual_tasks(settings.retention)]
            janitor = Janitor(database, settings.retention, tasks)
            await stack.enter_async_context(in_background(janitor.run()))
        start(stack, loops)
        group = Group(database, rules, settings.server.max_waiting, bell)
        intake = Intake(group, Approver(database), sources, settings.server.mode == "queued")
        keeper = None
        if Role.WEB in roles:
            await stack.enter_async_context(in_background(bell.tell()))
            group.start()
            stack.push_async_callback(group.stop)
            await stack.enter_async_context(in_background(intake.dropped.run(database)))
            keeper = await doorkeeper(settings, database, rules.told_to)
            await stack.enter_async_context(in_background(keeper.run()))
        edge, asgi = _doors(settings, operations, group, intake, keeper)

        def finish() -> None:
            for loop in loops:
                loop.finish()

        def give_up() -> None:
            group.give_up()
            operations.wallets.give_up()

        yield App(operations, database, edge, asgi, finish, give_up)


def _workers(settings: Settings, database: Database, rules: Rules, bell: Bell) -> list[Loop]:
    """All that settles what is in the database already."""
    limit = _batch_limit(settings)
    return [
        Worker(database, rules, bell, limit),
        Asker(database, rules, bell, min(limit, MAX_AT_ONCE)),
        *_handler_workers(settings, database, rules, bell),
        Replayer(database, rules, bell, limit),
    ]


def _payment_service(
    settings: Settings, database: Database, rules: Rules, bus: Bus, ring: Ring
) -> list[Loop]:
    """All that pays out of wallets; nothing where no gateway for that is configured."""
    access, terms = configured_gateway(settings), configured_terms(settings, rules)
    if access is None or terms is None:
        return []
    consumer = Consumer(
        bus,
        database,
        name=payments.GROUP,
        about=payments.ABOUT,
        take=payments.PaymentService(terms).take,
        retries=Retries(**settings.retry.model_dump()),
        told_to=rules.told_to,
        ring=ring,
    )
    caller = Caller(database, Gateway(access), terms, ring)
    return [consumer, caller, CallbackRetries(database, terms)]


def _query_service(
    settings: Settings, database: Database, rules: Rules, bus: Bus, ring: Ring
) -> Loop:
    return Consumer(
        bus,
        database,
        name=query.GROUP,
        about=query.ABOUT,
        take=query.take,
        retries=Retries(**settings.retry.model_dump()),
        told_to=rules.told_to,
        ring=ring,
    )


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
