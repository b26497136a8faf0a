"""Batches made by hand: a gateway that says whatever a test wants, and the rules to settle it."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.bootstrap.registration import register_source
from paidonce.core.events import (
    EventId,
    EventType,
    ExternalId,
    Ignored,
    Outcome,
    PaymentEvent,
    Refund,
    UserId,
)
from paidonce.core.money import Money
from paidonce.core.plans import Plan, PlanBook, plan_book
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.schema import ensure_partitions
from paidonce.linking import store as linking_store
from paidonce.processing.items import Incoming, Request, Rules, Source
from paidonce.providers.contract import (
    Delivery,
    Identity,
    Provider,
    SampleEvent,
    fingerprint,
    key_digest,
)

PRICE: Final = "990.00"
DAYS: Final = timedelta(days=30)


@dataclass(frozen=True)
class Plain(Provider):
    """A provider whose gateway signs nothing and says canonical events as JSON."""

    name: ClassVar = "plain"
    content_types: ClassVar = frozenset({"application/json"})
    links_by_email: ClassVar = True

    def verify(self, delivery: Delivery) -> None:
        pass

    def signature_method(self, delivery: Delivery) -> str:
        return "none"

    def evidence_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name == "content-type"}

    def identify(self, delivery: Delivery) -> Identity:
        said = json.loads(delivery.body)
        ids = said["ids"]
        meaning = fingerprint(
            said["event_type"], said.get("amount_minor"), said.get("currency"), *ids
        )
        return Identity(said["key"], meaning, said["event_type"], said["key"], ids[0])

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        said = json.loads(delivery.body)
        event_type, refund_id = EventType(said["event_type"]), said.get("refund_id")
        amount = Money(said["amount_minor"], said["currency"]) if "amount_minor" in said else None
        is_refund = event_type is EventType.REFUNDED
        return PaymentEvent(
            event_type=event_type,
            ids=tuple(ExternalId("payment", one) for one in said["ids"]),
            amount=None if is_refund else amount,
            refunded=amount if is_refund and refund_id is None else None,
            refund=Refund(refund_id, amount) if refund_id and amount else None,
            order=said.get("order"),
            email=said.get("email"),
            plan_id=said.get("plan_id"),
        )

    def success_response(
        self, status: str, event_id: UUID, delivery: Delivery
    ) -> tuple[str, bytes]:
        return "text/plain", f"{status} {event_id}".encode()

    def build_sample(self, sample: SampleEvent) -> tuple[dict[str, str], bytes]:
        raise NotImplementedError


@dataclass(frozen=True)
class Stage:
    """A database with partitions, a source and a plan, and how to fill it."""

    database: Database
    rules: Rules
    source: Source

    def paid(self, payment: str, **said: Any) -> Incoming:
        """A paid event of the right amount, unless it says otherwise."""
        usual: dict[str, Any] = {
            "amount_minor": 99_000,
            "currency": "RUB",
            "email": f"{payment}@example.com",
        }
        return self.event(EventType.PAID, payment, **(usual | said))

    def event(
        self,
        event_type: EventType,
        *ids: str,
        key: str | None = None,
        forced_outcome: Outcome | None = None,
        headers: Mapping[str, str] | None = None,
        remote_address: str | None = None,
        **said: Any,
    ) -> Incoming:
        """An event that has just arrived."""
        body = {"event_type": event_type, "ids": ids, "key": key or f"{event_type}:{ids}", **said}
        delivery = Delivery(headers or {}, json.dumps(body).encode(), datetime.now(UTC))
        identity = self.source.provider.identify(delivery)
        event = self.source.provider.translate(delivery)
        assert isinstance(event, PaymentEvent)
        return Incoming(
            event_id=EventId(uuid7()),
            source=self.source,
            request=Request("request", remote_address, time.monotonic()),
            delivery=delivery,
            identity=identity,
            key=(self.source.id, key_digest(identity.key)),
            event=event,
            forced_outcome=forced_outcome,
        )

    async def user(self, email: str) -> UserId:
        """A user, created without looking at what waits."""
        async with self.database.transaction() as connection:
            row, _ = await linking_store.create_user(connection, uuid7(), email)
        return UserId(row["id"])

    async def rows(self, sql: str, *arguments: object) -> list[dict[str, Any]]:
        """What the database says now."""
        async with self.database.connection() as connection:
            return [dict(row) for row in await connection.fetch(sql, *arguments)]

    async def one(self, sql: str, *arguments: object) -> dict[str, Any]:
        """The only row."""
        (row,) = await self.rows(sql, *arguments)
        return row

    async def payment(self, external_id: str) -> dict[str, Any]:
        """The payment that the gateway knows by this id."""
        return await self.one(
            "SELECT p.* FROM payments AS p JOIN payment_ids AS i ON i.payment_id = p.id"
            " WHERE i.external_id = $1",
            external_id,
        )

    async def event_row(self, item: Incoming) -> dict[str, Any]:
        """What is kept of the delivery."""
        return await self.one("SELECT * FROM webhook_events WHERE id = $1", item.event_id)

    async def number(self, table: str) -> int:
        """How many rows the table has."""
        return int((await self.one(f"SELECT count(*) AS number FROM {table}"))["number"])


async def stage(database: Database, retry: RetryPolicy | None = None) -> Stage:
    """A stage on a migrated database."""
    async with database.transaction() as connection:
        await ensure_partitions(connection, datetime.now(UTC))
        source_id = await register_source(connection, "plain", "plain")
    source = Source(source_id, "plain", Plain(), link_by_email=True)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    plan = Plan("monthly", Money(99_000, "RUB"), "default", DAYS.days, 0, True, long_ago)
    book = plan_book([plan])
    return Stage(database, Rules(book, {source_id: source}, retry or RetryPolicy()), source)


async def somebody_waits(connection: Connection, sessions: int = 1) -> None:
    """Return when so many sessions of this database wait for a lock that another one holds."""
    for _ in range(2_000):
        waiting = await connection.fetchval(
            "SELECT count(DISTINCT l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)"
            " WHERE NOT l.granted AND a.datname = current_database()"
        )
        if waiting >= sessions:
            return
    raise AssertionError("nobody waits")


NO_RULES: Final = Rules(PlanBook(), {}, RetryPolicy())
"""For verbs that settle nothing."""
