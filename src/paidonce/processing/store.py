"""Loads and writes the rows of a batch: one round trip each, whatever the size of the batch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from operator import attrgetter
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.audit.model import OURSELVES, AuditEntry
from paidonce.audit.store import record_entries
from paidonce.core.callbacks import CALLBACK_DELAYS_S
from paidonce.core.events import (
    EventId,
    ExternalId,
    PaymentId,
    SourceId,
    SubscriptionId,
    UserId,
)
from paidonce.core.orders import Order
from paidonce.core.payments import Payment
from paidonce.core.state import Rows, State, StoredGrants
from paidonce.core.subscriptions import Subscription
from paidonce.core.wallets import Wallet
from paidonce.db.queries import Connection, Query, WrittenRow, load_queries
from paidonce.ids import new_id
from paidonce.notifications import store as notifications_store
from paidonce.processing import rows
from paidonce.processing.items import EventKey, Rules
from paidonce.processing.rows import PAYMENT_COLUMNS, StoredKey

_COLUMNS: Final = {
    "payment_columns": ", ".join(PAYMENT_COLUMNS),
    "new_payment_values": ", ".join(f"{name} = c.{name}" for name in PAYMENT_COLUMNS),
}
QUERIES: Final = {name: query.renamed(**_COLUMNS) for name, query in load_queries(__file__).items()}
_LOAD_WITHOUT_LOCKS: Final = QUERIES["load"].without("locks")

MAX_GRANTS: Final = 1_000
"""How many payments of one subscription are loaded: the newest. Earlier periods are long over."""

MAX_OF_ORDER: Final = 64
"""How many payments of one order are loaded."""


@dataclass(slots=True)
class LoadKeys:
    """The keys of the rows that a batch needs."""

    keys: set[EventKey] = field(default_factory=set)
    ids: set[tuple[SourceId, ExternalId]] = field(default_factory=set)
    payments: set[PaymentId] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    emails: set[str] = field(default_factory=set)
    users: set[UserId] = field(default_factory=set)
    grants: dict[SubscriptionId, StoredGrants] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LockedRows:
    """What cannot be decided now, because another transaction holds it."""

    payments: frozenset[PaymentId] = frozenset()
    users: frozenset[UserId] = frozenset()
    orders: frozenset[str] = frozenset()  # references
    names: frozenset[str] = frozenset()  # of missing users and orders that are being created

    def __bool__(self) -> bool:
        return bool(self.payments or self.users or self.orders or self.names)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of a batch at the time `now` of the database."""

    now: datetime
    keys: Mapping[EventKey, StoredKey]
    state: State
    locked: LockedRows


@dataclass(slots=True)
class Changes:
    """The rows that a batch writes.

    The first seven are the difference between the state as loaded and as decided. The others are
    new rows, in the order of the types `written_…` in the schema or of the columns below.
    """

    payments: list[Payment] = field(default_factory=list)
    payment_ids: list[tuple[SourceId, ExternalId, PaymentId]] = field(default_factory=list)
    merged: list[tuple[Payment, PaymentId]] = field(default_factory=list)  # and into which one
    orders: list[Order] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    wallets: list[Wallet] = field(default_factory=list)
    owners: set[UserId] = field(default_factory=set)  # see `State.unchecked_owners`
    keys: list[tuple[EventKey, StoredKey]] = field(default_factory=list)
    entries: list[WrittenRow] = field(default_factory=list)
    events: list[WrittenRow] = field(default_factory=list)
    event_updates: list[WrittenRow] = field(default_factory=list)
    messages: list[WrittenRow] = field(default_factory=list)
    message_counts: Counter[PaymentId] = field(default_factory=Counter)
    queued: list[WrittenRow] = field(default_factory=list)
    counts: list[WrittenRow] = field(default_factory=list)
    audit: list[WrittenRow] = field(default_factory=list)
    notifications: list[WrittenRow] = field(default_factory=list)
    callbacks: list[WrittenRow] = field(default_factory=list)  # for the payout service
    redelivered: list[EventId] = field(default_factory=list)
    unblocked: list[bytes] = field(default_factory=list)  # digests

    def add_difference(self, state: State) -> None:
        """Add the rows that differ from what was loaded."""
        self.payments += state.payments.changed()
        self.payment_ids += state.new_payment_ids()
        self.merged += state.merged_payments()
        self.orders += state.changed_orders(self.payments)
        self.subscriptions += state.subscriptions.replaced()
        self.wallets += state.wallets.replaced()  # their movements may cancel each other out
        self.owners |= state.unchecked_owners(self.payments, self.subscriptions)

    @property
    def schedules(self) -> bool:
        """Whether events are added to the queue."""
        return bool(self.queued or self.redelivered or self.unblocked)

    @property
    def is_one_statement(self) -> bool:
        """Whether the statement `write` writes everything, as for most batches."""
        others = (
            self.event_updates,
            self.audit,
            self.notifications,
            self.callbacks,
            self.redelivered,
            self.unblocked,
            self.merged,
            self.wallets,
            self.owners,
        )
        return not any(others) and not any(one.facts.refunds for one in self.payments)


async def load(connection: Connection, keys: LoadKeys, rules: Rules) -> Loaded:
    """Load and lock every row that the batch touches, without waiting for other transactions."""
    return await _load(connection, QUERIES["load"], keys, rules)


async def load_without_locks(connection: Connection, keys: LoadKeys, rules: Rules) -> Loaded:
    """Load the same rows without locks. `write` fails if they have changed since."""
    return await _load(connection, _LOAD_WITHOUT_LOCKS, keys, rules)


async def _load(connection: Connection, query: Query, keys: LoadKeys, rules: Rules) -> Loaded:
    event_keys = sorted(keys.keys)
    ids = sorted(keys.ids)
    row = await query.row(
        connection,
        key_source_id=[source_id for source_id, _ in event_keys],
        key_digest=[digest for _, digest in event_keys],
        id_source_id=[source_id for source_id, _ in ids],
        id_kind=[one.kind for _, one in ids],
        id_value=[one.value for _, one in ids],
        payment_id=[
            *keys.payments,
            *(one for grants in keys.grants.values() for one in grants.payments),
        ],
        reference=list(keys.references),
        max_of_order=MAX_OF_ORDER,
        email_key=list(keys.emails),
        user_id=list(keys.users),
    )
    assert row is not None
    return _read_loaded(row, keys, rules)


async def load_grants(connection: Connection, subscription_id: SubscriptionId) -> StoredGrants:
    """What granted the periods of the subscription. It must be locked."""
    wanted = {"subscription_id": subscription_id, "max_grants": MAX_GRANTS}
    paid = await QUERIES["grants"].rows(connection, **wanted)
    free = await QUERIES["free_grants"].rows(connection, **wanted)
    return StoredGrants(
        frozenset(row["id"] for row in paid),
        tuple((row["id"], row["plan_id"], row["fulfilled_at"]) for row in free),
    )


def blocked_on_digest(name: str) -> bytes:
    """The value of `event_queue.blocked_on` for a name."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


async def try_lock_names_shared(connection: Connection, names: Iterable[str]) -> set[str]:
    """Keep others from creating what has these names until this transaction has ended.

    Returns the names that could be locked: nobody is creating these now.
    """
    locked = await QUERIES["try_lock_names_shared"].rows(connection, name=sorted(names))
    return {row["name"] for row in locked}


async def lock_name(connection: Connection, name: str) -> None:
    """Wait for every transaction that is about to queue an event blocked on this name."""
    await QUERIES["lock_name"].row(connection, name=name)


async def write(connection: Connection, changes: Changes, now: datetime) -> None:
    """Write every row once.

    Fails with a serialization failure if another transaction was first.
    """
    if changes.merged:
        await _merge(connection, changes)
    await _write_common(connection, changes)
    await _write_others(connection, changes, now)


async def _merge(connection: Connection, changes: Changes) -> None:
    """Before all else: the ids of the merged payments must not be in the way."""
    merged = sorted(changes.merged, key=lambda pair: pair[0].id)
    await QUERIES["merge_payments"].row(
        connection,
        id=[gone.id for gone, _ in merged],
        version=[gone.version for gone, _ in merged],
        merged_into=[merged_into for _, merged_into in merged],
        expected=len(merged),
    )
    remaining = {one.id: one for one in changes.payments}
    await record_entries(
        connection, [_merge_entry(gone, remaining.get(into), into) for gone, into in merged]
    )


def _merge_entry(gone: Payment, remaining: Payment | None, into: PaymentId) -> AuditEntry:
    """On the remaining payment. One that did not change has the same order and user as before."""
    named = remaining or gone
    return AuditEntry(
        OURSELVES,
        "payment_merged",
        payment_id=into,
        order=named.order,
        user_id=named.user_id,
        details={"merged_payment_id": str(gone.id)},
    )


async def _write_common(connection: Connection, changes: Changes) -> None:
    """Write what every batch has, in one round trip.

    Rows that other transactions may write too are sorted, so that two batches cannot deadlock.
    """
    payments = sorted(changes.payments, key=attrgetter("id"))
    subscriptions = sorted(changes.subscriptions, key=attrgetter("user_id"))
    counts = changes.message_counts
    written: dict[str, list[WrittenRow]] = {
        "keys": sorted(rows.key_row(*key) for key in changes.keys),
        "ids": sorted(rows.payment_id_row(*one) for one in changes.payment_ids),
        "new_payments": [rows.payment_row(one, counts[one.id]) for one in payments if one.is_new],
        "payments": [rows.payment_row(one, counts[one.id]) for one in payments if not one.is_new],
        "new_subscriptions": [rows.subscription_row(one) for one in subscriptions if one.is_new],
        "subscriptions": [rows.subscription_row(one) for one in subscriptions if not one.is_new],
        "orders": [rows.order_row(one) for one in sorted(changes.orders, key=attrgetter("id"))],
        "events": changes.events,
        "messages": changes.messages,
        "queued": changes.queued,
        "counts": changes.counts,
    }
    expected = sum(map(len, written.values()))
    if expected > 0:
        await QUERIES["write"].rows(connection, **written, expected=expected)


async def _write_others(connection: Connection, changes: Changes, now: datetime) -> None:
    """Write what few batches have: the others save the round trips."""
    if changes.owners:
        owners = list(changes.owners)
        await QUERIES["lock_owners"].row(connection, user_id=owners, expected=len(owners))
    refunds = [
        (payment.source_id, refund_id, payment.id, amount_minor)
        for payment in changes.payments
        for refund_id, amount_minor in sorted(payment.facts.refunds.items())
    ]
    if refunds:
        await QUERIES["write_refunds"].run_with_rows(connection, sorted(refunds))
    if changes.wallets:
        wallets = [rows.wallet_row(one) for one in sorted(changes.wallets, key=attrgetter("id"))]
        expected = len(wallets) + len(changes.entries)
        await QUERIES["write_wallets"].row(
            connection, wallets=wallets, entries=changes.entries, expected=expected
        )
    if changes.event_updates:
        id_range = _id_range([row[0] for row in changes.event_updates])
        await QUERIES["update_events"].run_with_rows(connection, changes.event_updates, **id_range)
    if changes.redelivered:
        ids = list(changes.redelivered)
        await QUERIES["requeue_redelivered"].run(
            connection, event_id=ids, now=now, **_id_range(ids)
        )
    if changes.unblocked:
        await QUERIES["requeue_unblocked"].run(connection, blocked_on=changes.unblocked, now=now)
    if changes.audit:
        await QUERIES["write_audit"].run_with_rows(connection, changes.audit)
    await notifications_store.write(connection, changes.notifications)
    await write_callbacks(connection, changes.callbacks)


async def write_callbacks(connection: Connection, callbacks: Sequence[WrittenRow]) -> None:
    """Store new callbacks for the payout service, and publish a message about each."""
    if callbacks:
        await QUERIES["write_callbacks"].run_with_rows(
            connection, callbacks, first_delay_s=CALLBACK_DELAYS_S[0]
        )


def _id_range(ids: Sequence[object]) -> dict[str, object]:
    """Bounds for the partitioned table: a cached plan visits only the months of these ids."""
    return {"first_id": min(ids), "last_id": max(ids)}  # type: ignore[type-var]


def _read_loaded(row: asyncpg.Record, keys: LoadKeys, rules: Rules) -> Loaded:
    refunds: dict[UUID, dict[str, int]] = {}
    for payment_id, refund_id, amount_minor in row["refunds"]:
        refunds.setdefault(payment_id, {})[refund_id] = amount_minor
    ids: dict[UUID, tuple[ExternalId, ...]] = {}
    payment_ids: dict[tuple[SourceId, ExternalId], PaymentId] = {}
    for source_id, kind, value, payment_id in row["payment_ids"]:
        external_id = ExternalId(kind, value)
        ids[payment_id] = (*ids.get(payment_id, ()), external_id)
        payment_ids[source_id, external_id] = payment_id
    payments = (
        rows.read_payment(cells, ids.get(cells[0], ()), refunds.get(cells[0], {}))
        for cells in row["payments"]
    )
    orders = [rows.read_order(cells) for cells in row["orders"]]
    subscriptions = [rows.read_subscription(cells) for cells in row["subscriptions"]]
    wallets = [Wallet(*cells) for cells in row["wallets"]]
    state = State(
        rules.plans,
        new_id,
        rules.kept_on_refund,
        rules.takes_back_used,
        keys.grants,
        payment_ids=Rows(payment_ids),
        payments=Rows({one.id: one for one in payments}),
        orders=Rows({one.reference: one for one in orders}),
        users=dict(row["users"]),
        subscriptions=Rows({(one.user_id, one.product): one for one in subscriptions}),
        wallets=Rows({one.id: one for one in wallets}),
    )
    locked = LockedRows(
        payments=frozenset(row["locked_payments"]),
        users=frozenset(row["locked_users"]),
        orders=frozenset(row["locked_orders"]),
    )
    known = {(source_id, digest): StoredKey(*key) for source_id, digest, *key in row["keys"]}
    return Loaded(row["now"], known, state, locked)
