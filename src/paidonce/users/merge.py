"""Merges two users into one (USR-2).

A transaction that runs at the same time cannot leave anything with the user that is gone. It writes
a row of that user with its version, or a new row with a foreign key to the user, or it locks the
user (`lock_owners` in processing/queries.sql). This one locks all of them first, and then deletes
the user. So either the other transaction is first, and its rows are moved here, or it fails, runs
again and finds the remaining user.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.audit.store import record_action
from paidonce.core.events import SubscriptionId, UserId
from paidonce.core.standing import reschedule
from paidonce.core.wallets import Wallet, merge_wallets
from paidonce.db.queries import Connection, load_queries
from paidonce.errors import ConflictError, NotFoundError
from paidonce.ids import new_id
from paidonce.processing import store as processing_store
from paidonce.processing.items import Rules
from paidonce.processing.store import Changes, LoadKeys

QUERIES: Final = load_queries(__file__)

MAX_ROWS: Final = 10_000
"""How many payments of both users, and how many orders, one transaction locks."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The user that is merged, and the one that remains."""

    gone_id: UUID
    into_id: UUID

    @property
    def ids(self) -> dict[str, object]:
        return {"gone_id": self.gone_id, "into_id": self.into_id}


async def merge(
    connection: Connection, rules: Rules, user_id: UUID, into: UUID, actor: str, reason: str
) -> UUID:
    """Merge a user into another one; returns the id of the remaining user.

    Raises NotFoundError, or ConflictError. Fails with a serialization failure when another
    transaction was first: roll back, call again.
    """
    remaining_id = await _remaining(connection, into)
    merged_into = await _remaining(connection, user_id)
    if merged_into == remaining_id:
        if merged_into == user_id or user_id == into:
            raise ConflictError("a user cannot be merged into itself: name another one")
        return remaining_id  # a repeat
    if merged_into != user_id:
        raise ConflictError(f"the user is merged into {merged_into} already: merge that one")
    pair = _Pair(user_id, remaining_id)
    wallets = await _lock(connection, pair)
    await _move(connection, pair)
    await _join_subscriptions(connection, pair, rules)
    await _merge_wallets(connection, pair, wallets)
    await QUERIES["move_audit"].run(connection, **pair.ids)
    await QUERIES["delete_user"].run(connection, **pair.ids)
    await record_action(
        connection,
        actor,
        "user_merged",
        user_id=remaining_id,
        merged_user_id=str(user_id),
        reason=reason,
    )
    return remaining_id


async def _remaining(connection: Connection, user_id: UUID) -> UUID:
    found: UUID | None = await QUERIES["merged_into"].value(connection, id=user_id)
    return found or user_id


async def _lock(connection: Connection, pair: _Pair) -> list[Wallet]:
    """Lock every row that changes; returns the wallets of both users."""
    both = [pair.gone_id, pair.into_id]
    users = await QUERIES["lock_users"].rows(connection, id=both)
    await _require_users(connection, pair, users)
    orders = await QUERIES["lock_orders"].rows(connection, gone_id=pair.gone_id, limit=MAX_ROWS + 1)
    payments = await QUERIES["lock_payments"].rows(connection, id=both, limit=MAX_ROWS + 1)
    if max(len(orders), len(payments)) > MAX_ROWS:
        raise ConflictError(
            f"the users have more than {MAX_ROWS} payments, or the merged one more orders: "
            "they are too large for one transaction"
        )
    await QUERIES["lock_subscriptions"].rows(connection, id=both)
    owners = [str(one) for one in both]
    wallets = [Wallet(*row) for row in await QUERIES["lock_wallets"].rows(connection, owner=owners)]
    for wallet in wallets:
        if wallet.owner == str(pair.gone_id) and wallet.reserved_minor > 0:
            raise ConflictError(
                f"wallet {wallet.id} of the merged user has open reservations: "
                "commit or release them first",
                "OPEN_RESERVATIONS",
            )
    return wallets


async def _require_users(
    connection: Connection, pair: _Pair, users: Sequence[asyncpg.Record]
) -> None:
    """Raises NotFoundError, ConflictError, or a serialization failure if one was just merged."""
    found = {row["id"]: row["erased_at"] for row in users}
    for user_id in (pair.gone_id, pair.into_id):
        if user_id not in found:
            if await _remaining(connection, user_id) != user_id:
                raise asyncpg.SerializationError("the user was merged meanwhile")
            raise NotFoundError(f"there is no user {user_id}")
        if found[user_id] is not None:
            raise ConflictError(f"user {user_id} was erased: it cannot be merged")


async def _move(connection: Connection, pair: _Pair) -> None:
    """Let the rows of the merged user name the remaining one."""
    for name in ("move_emails", "move_orders", "move_payments", "move_subscriptions"):
        await QUERIES[name].run(connection, **pair.ids)


async def _join_subscriptions(connection: Connection, pair: _Pair, rules: Rules) -> None:
    """Subscriptions of both to one product become one, with the periods that all grants give."""
    joined = await QUERIES["join_subscriptions"].rows(connection, **pair.ids)
    for row in joined:
        await _reschedule(connection, row["into_id"], UserId(pair.into_id), rules)


async def _reschedule(
    connection: Connection, subscription_id: SubscriptionId, user_id: UserId, rules: Rules
) -> None:
    grants = await processing_store.load_grants(connection, subscription_id)
    keys = LoadKeys(
        payments=set(grants.payments), users={user_id}, grants={subscription_id: grants}
    )
    loaded = await processing_store.load(connection, keys, rules)
    loaded.state.save(reschedule(loaded.state, subscription_id, loaded.now))
    changes = Changes()
    changes.add_difference(loaded.state)
    await processing_store.write(connection, changes, loaded.now)


async def _merge_wallets(connection: Connection, pair: _Pair, wallets: Sequence[Wallet]) -> None:
    """A wallet in a currency that the remaining user has none in goes over as it is."""
    owner = str(pair.into_id)
    kept = {one.currency: one for one in wallets if one.owner == owner}
    for gone in wallets:
        if gone.owner == owner:
            continue
        if gone.currency in kept:
            await _merge_wallet(connection, gone, kept[gone.currency])
        else:
            await QUERIES["give_wallet"].run(connection, id=gone.id, owner=owner)


async def _merge_wallet(connection: Connection, gone: Wallet, kept: Wallet) -> None:
    _, after, entries = merge_wallets(gone, kept)
    ids = {"gone_id": gone.id, "into_id": kept.id}
    await QUERIES["empty_wallet"].run(connection, **ids)
    await QUERIES["fill_wallet"].run(
        connection,
        id=kept.id,
        balance_minor=after.balance_minor,
        receivable_minor=after.receivable_minor,
    )
    await QUERIES["move_money"].run(
        connection,
        movement_id=new_id(),
        currency=kept.currency,
        account=[one.account for one in entries],
        amount_minor=[one.amount_minor for one in entries],
    )
    await QUERIES["move_wallet_orders"].run(connection, **ids)
