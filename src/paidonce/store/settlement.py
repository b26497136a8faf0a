"""What `settle` reads and writes: one round trip each, whatever the size of the batch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.domain.events import EventId, ExternalId, PaymentId, SourceId, UserId, WalletId
from paidonce.domain.orders import Order
from paidonce.domain.payments import Payment
from paidonce.domain.state import State
from paidonce.domain.subscriptions import Subscription
from paidonce.domain.tally import TallyRow
from paidonce.domain.wallets import Wallet
from paidonce.store import gateway_callbacks, notices
from paidonce.store.queries import Connection, Query, load_queries
from paidonce.store.rows import (
    KeyName,
    KnownKey,
    Row,
    id_row,
    key_row,
    order_of,
    order_row,
    payment_of,
    payment_row,
    subscription_of,
    subscription_row,
    wallet_row,
)

QUERIES: Final = load_queries(__file__)
_LOAD_WITHOUT_LOCKS: Final = QUERIES["load"].without("locks")

MAX_OF_ORDER: Final = 64
"""How many payments of one order are looked at: more than anybody pays for one thing."""


@dataclass(slots=True)
class Wanted:
    """What a batch speaks of."""

    keys: set[KeyName] = field(default_factory=set)
    ids: set[tuple[SourceId, ExternalId]] = field(default_factory=set)
    payments: set[PaymentId] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    emails: set[str] = field(default_factory=set)
    users: set[UserId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the database knows of it. What can change is locked, or busy."""

    now: datetime
    keys: Mapping[KeyName, KnownKey]
    names: Mapping[tuple[SourceId, ExternalId], PaymentId]
    payments: Mapping[PaymentId, Payment]
    orders: Mapping[str, Order]
    users: Mapping[str, UserId]
    subscriptions: Sequence[Subscription]
    wallets: Mapping[WalletId, Wallet]
    busy_payments: frozenset[PaymentId]
    busy_users: frozenset[UserId]
    busy_orders: frozenset[str]
    unsure: frozenset[str] = frozenset()
    """The names of what was not there but may just be coming into being."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is in anybody else's hands."""
        return not (self.busy_payments or self.busy_users or self.busy_orders or self.unsure)

    def fill(self, state: State) -> None:
        """Put what was loaded into the state that `decide` reads."""
        state.names.update(self.names)
        for payment in self.payments.values():
            state.add(payment)
        state.orders.update(self.orders)
        state.users.update(self.users)
        for subscription in self.subscriptions:
            state.subscriptions[subscription.user_id, subscription.product] = subscription
        state.wallets.update(self.wallets)


@dataclass(slots=True)
class Changes:
    """The rows that a batch writes.

    Events, messages, entries, counts and what is due are in the order of the types `written_event`
    and so on in the schema, the others in that of the columns named below.
    """

    keys: list[tuple[KeyName, KnownKey]] = field(default_factory=list)
    ids: list[tuple[SourceId, ExternalId, PaymentId]] = field(default_factory=list)
    payments: list[Payment] = field(default_factory=list)
    absorbed: list[tuple[Payment, PaymentId]] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    wallets: list[Wallet] = field(default_factory=list)
    entries: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)
    told: Counter[PaymentId] = field(default_factory=Counter)  # how many of them are of a payment
    finished: list[Row] = field(default_factory=list)
    due: list[Row] = field(default_factory=list)
    counts: list[TallyRow] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)
    notices: list[Row] = field(default_factory=list)
    callbacks: list[Row] = field(default_factory=list)  # of the payment service's gateway
    redelivered: list[EventId] = field(default_factory=list)
    wakes: list[bytes] = field(default_factory=list)

    @property
    def schedules(self) -> bool:
        """Whether something is put into the queue."""
        return bool(self.due or self.redelivered or self.wakes)

    @property
    def is_one_statement(self) -> bool:
        """Whether all of it is what most batches have, which is written in one go."""
        unusual = (
            self.finished,
            self.audit,
            self.notices,
            self.callbacks,
            self.redelivered,
            self.wakes,
            self.absorbed,
            self.wallets,
        )
        return not any(unusual) and not any(one.facts.refunds for one in self.payments)


async def load(connection: Connection, wanted: Wanted) -> Loaded:
    """Fetch and lock every row that the batch touches, waiting for nobody."""
    return _loaded(await _load(connection, QUERIES["load"], wanted))


async def look(connection: Connection, wanted: Wanted) -> Loaded:
    """Fetch the same rows without locking any. `write` finds out if they have changed since."""
    return _loaded(await _load(connection, _LOAD_WITHOUT_LOCKS, wanted))


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
        reference=list(wanted.references),
        max_of_order=MAX_OF_ORDER,
        email_key=list(wanted.emails),
        user_id=list(wanted.users),
    )
    assert row is not None
    return row


async def share_absence(connection: Connection, names: Iterable[str]) -> set[str]:
    """Hold back whoever creates what has these names until this transaction has ended.

    Returns the names that nobody is creating just now.
    """
    rows = await QUERIES["share_absence"].rows(connection, name=sorted(names))
    return {row["name"] for row in rows}


async def announce_presence(connection: Connection, name: str) -> None:
    """Wait for every transaction that is about to say that it waits for this name."""
    await QUERIES["announce_presence"].row(connection, name=name)


async def write(connection: Connection, changes: Changes, now: datetime) -> None:
    """Write it all, each row once.

    Fails with a serialization failure if another transaction was first.
    """
    if changes.absorbed:
        await _absorb(connection, changes)
    await _write_common(connection, changes)
    await _write_unusual(connection, changes, now)


async def _absorb(connection: Connection, changes: Changes) -> None:
    """First of all: the ids that lead elsewhere now must not be in the way."""
    absorbed = sorted(changes.absorbed, key=lambda pair: pair[0].id)
    await QUERIES["absorb_payments"].row(
        connection,
        id=[gone.id for gone, _ in absorbed],
        version=[gone.version for gone, _ in absorbed],
        heir=[heir for _, heir in absorbed],
        expected=len(absorbed),
    )


async def _write_common(connection: Connection, changes: Changes) -> None:
    """What a batch of payments has, in one round trip.

    Whatever others may write too is in a fixed order, so that two batches cannot deadlock.
    """
    payments = sorted(changes.payments, key=lambda one: one.id)
    subscriptions = sorted(changes.subscriptions, key=lambda one: one.user_id)
    told = changes.told
    rows: dict[str, list[Row]] = {
        "keys": sorted(key_row(*key) for key in changes.keys),
        "ids": sorted(id_row(*one) for one in changes.ids),
        "new_payments": [payment_row(one, told[one.id]) for one in payments if one.is_new],
        "payments": [payment_row(one, told[one.id]) for one in payments if not one.is_new],
        "new_subscriptions": [subscription_row(one) for one in subscriptions if one.is_new],
        "subscriptions": [subscription_row(one) for one in subscriptions if not one.is_new],
        "orders": [order_row(one) for one in sorted(changes.orders, key=lambda one: one.id)],
        "events": changes.events,
        "messages": changes.messages,
        "due": changes.due,
        "counts": list(changes.counts),
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
    if changes.wallets:
        wallets = [wallet_row(one) for one in sorted(changes.wallets, key=lambda one: one.id)]
        expected = len(wallets) + len(changes.entries)
        await QUERIES["write_wallets"].row(
            connection, wallets=wallets, entries=changes.entries, expected=expected
        )
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
    await notices.write(connection, changes.notices)
    await gateway_callbacks.write(connection, changes.callbacks)


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


def _loaded(row: asyncpg.Record) -> Loaded:
    refunds: dict[UUID, dict[str, int]] = {}
    for payment_id, refund_id, amount_minor in row["refunds"]:
        refunds.setdefault(payment_id, {})[refund_id] = amount_minor
    ids: dict[UUID, tuple[ExternalId, ...]] = {}
    names: dict[tuple[SourceId, ExternalId], PaymentId] = {}
    for source_id, kind, value, payment_id in row["names"]:
        ids[payment_id] = (*ids.get(payment_id, ()), ExternalId(kind, value))
        names[source_id, ids[payment_id][-1]] = payment_id
    payments = (
        payment_of(cells, ids.get(cells[0], ()), refunds.get(cells[0], {}))
        for cells in row["payments"]
    )
    orders = [order_of(cells) for cells in row["orders"]]
    wallets = [Wallet(*cells) for cells in row["wallets"]]
    return Loaded(
        now=row["now"],
        keys={(source_id, digest): KnownKey(*key) for source_id, digest, *key in row["keys"]},
        names=names,
        payments={payment.id: payment for payment in payments},
        orders={order.reference: order for order in orders},
        users=dict(row["users"]),
        subscriptions=[subscription_of(cells) for cells in row["subscriptions"]],
        wallets={wallet.id: wallet for wallet in wallets},
        busy_payments=frozenset(row["busy_payments"]),
        busy_users=frozenset(row["busy_users"]),
        busy_orders=frozenset(row["busy_orders"]),
    )
