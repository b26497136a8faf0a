"""Everything that is known of one person: exported in one snapshot (USR-3), or erased (USR-4).

The rows of a person are those of the user, and those that only have an address of the user. Events
are found by the ids of the payments.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from paidonce.audit.store import record_action
from paidonce.core.masking import MARGIN, MAX_SHOWN, Masker
from paidonce.core.money import format_minor
from paidonce.db.queries import Connection, from_row, load_queries
from paidonce.errors import ConflictError, NotFoundError
from paidonce.events.model import evidence_view
from paidonce.linking import store as linking_store
from paidonce.linking.linker import User
from paidonce.users import store
from paidonce.users.model import SubscriptionDetail

QUERIES: Final = load_queries(__file__)

MAX_ROWS: Final = 10_000
"""How many payments, orders or addresses of one person are found."""
MAX_EXPORTED: Final = 1_000
"""How many rows of each kind are exported, the newest."""
MAX_EVENTS: Final = 500
"""How many events are exported: each may have a large body."""
MAX_ENTRIES: Final = 10_000
MAX_ERASED: Final = 1_000
"""How many events one transaction erases."""

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserExport:
    """All that is known of a user. `truncated` names the lists that have more than is shown.

    Of each list the newest are shown. Events have their headers and body as they arrived, with
    card numbers and secrets masked.
    """

    exported_at: datetime
    user: User
    addresses: list[Item]
    merged_users: list[Item]
    subscriptions: list[SubscriptionDetail]
    orders: list[Item]
    payments: list[Item]
    events: list[Item]
    wallets: list[Item]
    ledger_entries: list[Item]
    audit: list[Item]
    truncated: list[str]


@dataclass(frozen=True, slots=True)
class ErasedUser:
    """What an erasure replaced. A repeat replaces what has arrived since."""

    user: User
    events: int
    payments: int
    orders: int


def add_erased(one: ErasedUser, other: ErasedUser) -> ErasedUser:
    """What two transactions of an erasure replaced."""
    return ErasedUser(
        other.user,
        one.events + other.events,
        one.payments + other.payments,
        one.orders + other.orders,
    )


async def export(connection: Connection, user_id: UUID, masker: Masker) -> UserExport:
    """What is known of a user, in one snapshot. Raises NotFoundError."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        now = await connection.fetchval("SELECT now()")
        row = await linking_store.user_by_id(connection, user_id)
        if row is None:
            raise NotFoundError(f"there is no user {user_id}")
        found = await _Export.of(connection, row)
        subscriptions = await store.subscriptions(connection, user_id=row["id"])
        detailed = await store.with_periods(connection, subscriptions)
    events = found.lists.pop("events")
    # In a thread: masking a hostile body can take long.
    shown = await asyncio.to_thread(lambda: [_event_item(dict(one), masker) for one in events])
    lists = {name: [_item(dict(one)) for one in rows] for name, rows in found.lists.items()}
    if any(one.truncated for one in detailed):
        found.truncated.append("subscriptions")
    return UserExport(
        now,
        from_row(User, row),
        subscriptions=detailed,
        events=shown,
        truncated=sorted(found.truncated),
        **lists,
    )


@dataclass(slots=True)
class _Export:
    """The lists of an export, as rows."""

    connection: Connection
    lists: dict[str, Sequence[asyncpg.Record]]
    truncated: list[str]

    @classmethod
    async def of(cls, connection: Connection, user: asyncpg.Record) -> "_Export":
        export = cls(connection, {}, [])
        person = await _find(connection, user["id"])
        payments, orders = person["payments"], person["orders"]
        await export.add("addresses", "addresses", user_id=user["id"])
        merged = await export.add("merged_users", "merged_users", user_id=user["id"])
        await export.add("orders", "orders", reference=orders)
        await export.add("payments", "payments", payment_id=payments)
        size = {"max_body": MAX_SHOWN + MARGIN}
        events = await export.add("events", "events", MAX_EVENTS, payment_id=payments, **size)
        owners = [str(user["id"]), *(str(row["id"]) for row in merged)]
        owners += [*person["emails"], *person["email_keys"]]
        wallets = await export.add("wallets", "wallets", owner=owners)
        accounts = [f"{kind}:{row['id']}" for row in wallets for kind in ("wallet", "receivable")]
        await export.add("ledger_entries", "entries", MAX_ENTRIES, account=accounts)
        event_ids = [row["id"] for row in events]
        names = {"user_id": user["id"], "payment_id": payments, "event_id": event_ids}
        await export.add("audit", "audit", **names)
        return export

    async def add(
        self, name: str, query: str, limit: int = MAX_EXPORTED, **values: object
    ) -> Sequence[asyncpg.Record]:
        rows = await QUERIES[query].rows(self.connection, **values, limit=limit + 1)
        if len(rows) > limit:
            self.truncated.append(name)
        self.lists[name] = rows[:limit]
        return self.lists[name]


async def erase(connection: Connection, user_id: UUID, actor: str, reason: str) -> ErasedUser:
    """Replace the personal data of a user, in the open transaction; call it until it is empty.

    Raises NotFoundError, or ConflictError while events of the user are not finished.
    """
    user = await linking_store.lock_user(connection, user_id)
    person = await _find(connection, user["id"])
    if max(len(person["payments"]), len(person["orders"])) >= MAX_ROWS:
        raise ConflictError(f"the user has {MAX_ROWS} payments or orders: too many to be erased")
    await _require_finished(connection, person["payments"])
    events = await QUERIES["erase_events"].value(
        connection, payment_id=person["payments"], limit=MAX_ERASED
    )
    payments = orders = 0
    is_first = False
    if events < MAX_ERASED:  # else the next transaction finds the others by these rows
        payments, orders = await _erase_rows(connection, user["id"], person)
        is_first = await QUERIES["erase_user"].value(connection, user_id=user["id"]) is not None
    if is_first or events or payments or orders:
        numbers: dict[str, Any] = {"events": events, "payments": payments, "orders": orders}
        await record_action(
            connection, actor, "user_erased", user_id=user["id"], reason=reason, **numbers
        )
    erased = from_row(User, await linking_store.lock_user(connection, user["id"]))
    return ErasedUser(erased, events, payments, orders)


async def _erase_rows(
    connection: Connection, user_id: UUID, person: asyncpg.Record
) -> tuple[int, int]:
    """Everything but events; returns the numbers of payments and orders."""
    payment_id = {"payment_id": person["payments"]}
    await QUERIES["erase_notifications"].run(connection, **payment_id)
    payments = await QUERIES["erase_payments"].value(connection, **payment_id)
    orders = await QUERIES["erase_orders"].value(
        connection, user_id=user_id, reference=person["orders"]
    )
    addresses = [*person["emails"], *person["email_keys"]]
    await QUERIES["erase_wallets"].run(connection, address=addresses)
    await QUERIES["erase_addresses"].run(connection, user_id=user_id)
    return payments, orders


async def _find(connection: Connection, user_id: UUID) -> asyncpg.Record:
    row = await QUERIES["person"].row(connection, user_id=user_id, limit=MAX_ROWS)
    assert row is not None
    return row


async def _require_finished(connection: Connection, payments: Sequence[UUID]) -> None:
    """What was not processed yet may be about money, and cannot be read once it is erased."""
    row = await QUERIES["unfinished_events"].row(connection, payment_id=payments)
    assert row is not None
    if row["pending"] or row["dead_letters"]:
        raise ConflictError(
            f"{row['pending']} events of the user are still to be processed, and "
            f"{row['dead_letters']} are dead letters: wait for those, retry or discard these, and "
            "erase again",
            "EVENTS_UNFINISHED",
        )


def _item(row: Mapping[str, Any]) -> Item:
    """A row as it is exported: amounts as decimals, JSON as such."""
    item: Item = {}
    for name, value in row.items():
        if name in ("acceptance", "details") and value is not None:
            item[name] = orjson.loads(value)
        elif name.endswith("_minor"):
            currency = row["currency"]
            amount = format_minor(value, currency) if currency else str(value)
            item[name.removesuffix("_minor")] = amount
        else:
            item[name] = value
    return item


def _event_item(row: Mapping[str, Any], masker: Masker) -> Item:
    names = ("headers", "body", "size")
    item = {name: value for name, value in row.items() if name not in names}
    evidence = evidence_view({**row, "headers": orjson.loads(row["headers"])}, masker)
    return {**item, "evidence": evidence}
