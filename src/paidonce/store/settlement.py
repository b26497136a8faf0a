"""What `settle` reads and writes: one round trip each, whatever the size of the batch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from paidonce.domain.decide import State
from paidonce.domain.email import email_key
from paidonce.domain.events import (
    Code,
    EventId,
    ExternalId,
    PaymentId,
    SourceId,
    UserId,
)
from paidonce.domain.money import Money
from paidonce.domain.payments import Facts, Payment
from paidonce.domain.subscriptions import Subscription, SubscriptionStatus
from paidonce.store.queries import Connection, Query, load_queries

QUERIES: Final = load_queries(__file__)
_LOAD_WITHOUT_LOCKS: Final = QUERIES["load"].without("locks")

KeyName = tuple[SourceId, bytes]
"""A source and the digest of an event's key."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class KnownKey:
    """An event that was accepted before under this key."""

    event_id: EventId
    fingerprint: bytes
    fingerprint_version: int


@dataclass(slots=True)
class Wanted:
    """What a batch speaks of."""

    keys: set[KeyName] = field(default_factory=set)
    ids: set[tuple[SourceId, ExternalId]] = field(default_factory=set)
    payments: set[PaymentId] = field(default_factory=set)
    emails: set[str] = field(default_factory=set)
    users: set[UserId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the database knows of it. Payments and subscriptions are locked, or busy."""

    now: datetime
    keys: Mapping[KeyName, KnownKey]
    names: Mapping[tuple[SourceId, ExternalId], PaymentId]
    payments: Mapping[PaymentId, Payment]
    users: Mapping[str, UserId]
    subscriptions: Sequence[Subscription]
    busy_payments: frozenset[PaymentId]
    busy_users: frozenset[UserId]
    unsure_emails: frozenset[str] = frozenset()  # of these a user may just be coming into being

    def fill(self, state: State) -> None:
        """Put what was loaded into the state that `decide` reads."""
        for (source_id, one), payment_id in self.names.items():
            if payment_id in self.payments:
                state.payments[source_id, one] = self.payments[payment_id]
        state.users.update(self.users)
        for subscription in self.subscriptions:
            state.subscriptions[subscription.user_id, subscription.product] = subscription


@dataclass(slots=True)
class Changes:
    """The rows that a batch writes.

    Events, messages and what is due are in the order of the types `written_event` and so on in the
    schema, the others in that of the columns named below.
    """

    keys: list[tuple[KeyName, KnownKey]] = field(default_factory=list)
    ids: list[tuple[SourceId, ExternalId, PaymentId]] = field(default_factory=list)
    payments: list[Payment] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)
    finished: list[Row] = field(default_factory=list)
    due: list[Row] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)
    redelivered: list[EventId] = field(default_factory=list)
    wakes: list[bytes] = field(default_factory=list)

    @property
    def schedules(self) -> bool:
        """Whether something is put into the queue."""
        return bool(self.due or self.redelivered or self.wakes)

    @property
    def is_one_statement(self) -> bool:
        """Whether all of it is what most batches have, which is written in one go."""
        unusual = (self.finished, self.audit, self.redelivered, self.wakes)
        return not any(unusual) and not any(one.facts.refunds for one in self.payments)


async def load(connection: Connection, wanted: Wanted) -> Loaded:
    """Fetch and lock every row that the batch touches, waiting for nobody."""
    row = await _load(connection, QUERIES["load"], wanted)
    refunded = [cells[0] for cells in row["payments"] if cells[_REFUNDED_MINOR] > 0]
    if not refunded:
        return _loaded(row, row["refunds"])
    # A payment may have been changed between the look and the lock. Its row is the changed one;
    # what the same statement read of its refunds is not.
    found = await QUERIES["refunds_of"].row(connection, payment_id=refunded)
    assert found is not None
    return _loaded(row, found["refunds"])


async def look(connection: Connection, wanted: Wanted) -> Loaded:
    """Fetch the same rows without locking any. `write` finds out if they have changed since."""
    row = await _load(connection, _LOAD_WITHOUT_LOCKS, wanted)
    return _loaded(row, row["refunds"])


_REFUNDED_MINOR: Final = 8
"""Where a payment's row, as it is loaded, has what was refunded."""


async def _load(connection: Connection, query: Query, wanted: Wanted) -> asyncpg.Record:
    keys = sorted(wanted.keys)
    ids = sorted(wanted.ids)
    row = await query.row(
        connection,
        key_source_id=[source_id for source_id, _ in keys],
        key_digest=[digest for _, digest in keys],
        id_source_id=[source_id for source_id, _ in ids],
        id_kind=[one.kind for _, one in ids],
        id_value=[one.value for _, one in ids],
        payment_id=list(wanted.payments),
        email_key=list(wanted.emails),
        user_id=list(wanted.users),
    )
    assert row is not None
    return row


async def share_absence(connection: Connection, emails: Mapping[str, str]) -> set[str]:
    """Hold back whoever creates the users of these addresses until this transaction has ended.

    Given by the name under which each waits; returns those that nobody is creating just now.
    """
    rows = await QUERIES["share_absence"].rows(connection, name=sorted(emails))
    return {emails[row["name"]] for row in rows}


async def announce_presence(connection: Connection, name: str) -> None:
    """Wait for every transaction that is about to say that it waits for this name."""
    await QUERIES["announce_presence"].row(connection, name=name)


async def write(connection: Connection, changes: Changes, now: datetime) -> None:
    """Write it all, each row once.

    Fails with a serialization failure if another transaction was first.
    """
    await _write_common(connection, changes)
    await _write_unusual(connection, changes, now)


async def _write_common(connection: Connection, changes: Changes) -> None:
    """What a batch of payments has, in one round trip.

    Whatever others may write too is in a fixed order, so that two batches cannot deadlock.
    """
    payments = sorted(changes.payments, key=lambda one: one.id)
    subscriptions = sorted(changes.subscriptions, key=lambda one: one.user_id)
    rows: dict[str, list[Row]] = {
        "keys": sorted(_key_row(*key) for key in changes.keys),
        "ids": sorted(_id_row(*one) for one in changes.ids),
        "new_payments": [_payment_row(one) for one in payments if one.is_new],
        "payments": [_payment_row(one) for one in payments if not one.is_new],
        "new_subscriptions": [_subscription_row(one) for one in subscriptions if one.is_new],
        "subscriptions": [_subscription_row(one) for one in subscriptions if not one.is_new],
        "events": changes.events,
        "messages": changes.messages,
        "due": changes.due,
    }
    expected = sum(map(len, rows.values()))
    if expected > 0:
        await QUERIES["write"].rows(connection, **rows, expected=expected)


async def _write_unusual(connection: Connection, changes: Changes, now: datetime) -> None:
    """What most batches have none of, and none of them pays a round trip for."""
    refunds = [
        (payment.source_id, refund_id, payment.id, amount_minor)
        for payment in changes.payments
        for refund_id, amount_minor in sorted(payment.facts.refunds.items())
    ]
    if refunds:
        await QUERIES["write_refunds"].run(connection, **_arrays(REFUND_COLUMNS, sorted(refunds)))
    if changes.finished:
        ids = [row[0] for row in changes.finished]
        values = _arrays(FINISHED_COLUMNS, changes.finished)
        await QUERIES["finish_events"].run(connection, **values, **_range(ids))
    if changes.redelivered:
        ids = list(changes.redelivered)
        await QUERIES["wake"].run(connection, event_id=ids, now=now, **_range(ids))
    if changes.wakes:
        await QUERIES["wake_waiting"].run(connection, waits_on=changes.wakes, now=now)
    if changes.audit:
        await QUERIES["write_audit"].run(connection, **_arrays(AUDIT_COLUMNS, changes.audit))


REFUND_COLUMNS: Final = ("source_id", "refund_id", "payment_id", "amount_minor")
FINISHED_COLUMNS: Final = (
    "id",
    "status",
    "error_code",
    "error_message",
    "attempts",
    "processed_at",
)
AUDIT_COLUMNS: Final = ("at", "event_id", "payment_id", "action", "success", "details")


def _arrays(columns: Sequence[str], rows: Sequence[Row]) -> dict[str, object]:
    """The rows turned on their side: one array per column, for `unnest`."""
    turned = zip(*rows, strict=True)
    return dict(zip(columns, turned, strict=True))


def _range(ids: Sequence[object]) -> dict[str, object]:
    """Bounds for the partitioned table, so that a cached plan visits only the months it must."""
    return {"first_id": min(ids), "last_id": max(ids)}  # type: ignore[type-var]


def _key_row(name: KeyName, key: KnownKey) -> Row:
    return (*name, key.event_id, key.fingerprint, key.fingerprint_version)


def _id_row(source_id: SourceId, one: ExternalId, payment_id: PaymentId) -> Row:
    return (source_id, one.kind, one.value, payment_id)


def _payment_row(payment: Payment) -> Row:
    facts = payment.facts
    return (
        payment.id,
        payment.source_id,
        payment.email,
        email_key(payment.email) if payment.email else None,
        payment.user_id,
        payment.plan_id,
        facts.captured.currency if facts.captured else None,
        facts.captured_minor,
        facts.refund_total_minor,
        facts.refunded_minor,
        facts.paid_at,
        facts.failed_at,
        facts.voided_at,
        facts.canceled_at,
        facts.refunded_at,
        facts.processing_at,
        payment.applied_at,
        payment.subscription_id,
        payment.period_start,
        payment.period_end,
        payment.review,
        payment.version or 1,
    )


def _subscription_row(one: Subscription) -> Row:
    end = one.current_period_end
    return (one.id, one.user_id, one.product, one.status, end, one.version or 1)


def _loaded(row: asyncpg.Record, refund_rows: Iterable[Sequence[Any]]) -> Loaded:
    refunds: dict[UUID, dict[str, int]] = {}
    for payment_id, refund_id, amount_minor in refund_rows:
        refunds.setdefault(payment_id, {})[refund_id] = amount_minor
    ids: dict[UUID, tuple[ExternalId, ...]] = {}
    names: dict[tuple[SourceId, ExternalId], PaymentId] = {}
    for source_id, kind, value, payment_id in row["names"]:
        ids[payment_id] = (*ids.get(payment_id, ()), ExternalId(kind, value))
        names[source_id, ids[payment_id][-1]] = payment_id
    payments = (
        _payment(cells, ids.get(cells[0], ()), refunds.get(cells[0], {}))
        for cells in row["payments"]
    )
    return Loaded(
        now=row["now"],
        keys={(source_id, digest): KnownKey(*key) for source_id, digest, *key in row["keys"]},
        names=names,
        payments={payment.id: payment for payment in payments},
        users=dict(row["users"]),
        subscriptions=[_subscription(cells) for cells in row["subscriptions"]],
        busy_payments=frozenset(row["busy_payments"]),
        busy_users=frozenset(row["busy_users"]),
    )


def _payment(
    cells: Sequence[Any], ids: tuple[ExternalId, ...], refunds: Mapping[str, int]
) -> Payment:
    (
        payment_id, source_id, email, user_id, plan_id, currency, captured_minor,
        refund_total_minor, refunded_minor, paid_at, failed_at, voided_at, canceled_at, refunded_at,
        processing_at, applied_at, subscription_id, period_start, period_end, review, version,
    ) = cells  # fmt: skip
    # A refund whose id another payment has taken is not among these, but was counted: as a total.
    is_explained = max(refund_total_minor, sum(refunds.values())) >= refunded_minor
    facts = Facts(
        captured=Money(captured_minor, currency) if currency else None,
        refund_total_minor=refund_total_minor if is_explained else refunded_minor,
        refunds=refunds,
        paid_at=paid_at,
        failed_at=failed_at,
        voided_at=voided_at,
        canceled_at=canceled_at,
        refunded_at=refunded_at,
        processing_at=processing_at,
    )
    return Payment(
        id=payment_id,
        source_id=source_id,
        ids=ids,
        facts=facts,
        email=email,
        user_id=user_id,
        plan_id=plan_id,
        applied_at=applied_at,
        subscription_id=subscription_id,
        period_start=period_start,
        period_end=period_end,
        review=Code(review) if review else None,
        version=version,
    )


def _subscription(cells: Sequence[Any]) -> Subscription:
    subscription_id, user_id, product, status, current_period_end, version = cells
    return Subscription(
        id=subscription_id,
        user_id=user_id,
        product=product,
        status=SubscriptionStatus(status),
        current_period_end=current_period_end,
        version=version,
    )
