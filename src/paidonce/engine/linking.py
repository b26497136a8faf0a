"""A payment finds what it is for, whichever comes first, without a gap between them.

Whoever creates a user or an order takes the lock of its name (see `settle._load` for the other
side), adds it, and then settles in the same transaction what waited for it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from uuid_utils.compat import uuid7

from paidonce.crashpoints import Point, passing
from paidonce.domain.applying import waits_for_email, waits_for_order, waits_for_payment
from paidonce.domain.email import email_key
from paidonce.domain.events import PaymentId, UserId
from paidonce.engine.claims import settle_claimed
from paidonce.engine.handling import broken_transaction, settle_one, without_calls
from paidonce.engine.items import Link, Result, Revisit, Rules, Settled
from paidonce.engine.names import waiting_digest
from paidonce.engine.outcomes import report
from paidonce.errors import DatabaseAwayError
from paidonce.store import due, listings, orders, people, settlement
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.orders import NewOrder
from paidonce.store.queries import Connection

MAX_AT_ONCE: Final = 128
MAX_RUNS: Final = 10
RERUN_PAUSE_S: Final = 0.01
BUSY_PAUSE_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""How long to wait for what another transaction holds. Events are left to the worker after that."""

T = TypeVar("T")
Body = Callable[[Connection, Rules], Awaitable[T]]
"""What is done in a transaction, by these rules."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who can be paid for."""

    id: UserId
    email: str
    created_at: datetime


class Linker:
    """Creates users and orders and links payments, and applies at once what that makes possible."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def create_user(self, email: str, actor: str) -> tuple[User, bool]:
        """The user with this address, and whether it is new; what was paid for is applied.

        A new one is audited, by its id: an address does not stand in the audit log.
        """
        key = email_key(email)

        async def create(connection: Connection, rules: Rules) -> tuple[User, bool, Settled]:
            await settlement.announce_presence(connection, waits_for_email(key))
            row, is_new = await people.create_user(connection, uuid7(), email)
            if is_new:
                user_id = str(row["id"])
                await listings.record_action(connection, actor, "user_created", user_id=user_id)
            passing(Point.CREATED)
            settled = await self._settle_of_email(connection, rules, key)
            return User(row["id"], row["email"], row["created_at"]), is_new, settled

        user, is_new, settled = await self._transaction(create)
        report(settled)
        await self._settle_rest(
            settled, lambda connection, rules: self._settle_of_email(connection, rules, key)
        )
        return user, is_new

    async def create_order(self, order: NewOrder, actor: str) -> bool:
        """Add the order; returns whether it is new, which is audited. What was paid is applied.

        Raises ConflictError when there is another one with this reference.
        """
        reference = order.reference

        async def create(connection: Connection, rules: Rules) -> tuple[bool, Settled]:
            await settlement.announce_presence(connection, waits_for_order(reference))
            is_new = await orders.create_order(connection, order)
            if is_new:
                await listings.record_action(
                    connection, actor, "order_created", reference=reference
                )
            passing(Point.CREATED)
            return is_new, await self._settle_of_order(connection, rules, reference)

        is_new, settled = await self._transaction(create)
        report(settled)
        await self._settle_rest(
            settled, lambda connection, rules: self._settle_of_order(connection, rules, reference)
        )
        return is_new

    async def close_order(self, reference: str, actor: str) -> None:
        """Let no money pay the order any more.

        Raises NotFoundError, or ConflictError when it is paid.
        """

        async def close(connection: Connection, rules: Rules) -> Settled:
            order_id = str(await orders.close_order(connection, reference))
            await listings.record_action(
                connection, actor, "order_closed", order_id=order_id, reference=reference
            )
            return await self._settle_of_order(connection, rules, reference)

        report(await self._transaction(close))

    async def link(
        self, payment_id: PaymentId, link: Link, actor: str, action: str, **details: object
    ) -> None:
        """Say how a payment is to be taken, and apply it if it can be. The act is audited.

        Raises NotFoundError, or ConflictError when it was applied to something else already.
        """
        revisit = Revisit(payment_id, link)

        async def settle_linked(connection: Connection, rules: Rules) -> Settled:
            settled = await settle_one(connection, revisit, rules)
            if not _has_rest(settled):
                await listings.record_action(connection, actor, action, payment_id, None, **details)
            return settled

        settled = await self._settle_rest(await self._transaction(settle_linked), settle_linked)
        if _has_rest(settled):
            raise DatabaseAwayError("the payment is held by another transaction; try again")
        names = _names_of_linked(settled)
        finished = await self._transaction(
            lambda connection, rules: self._settle(connection, rules, [], names)
        )
        report(finished)

    async def _settle_of_email(self, connection: Connection, rules: Rules, key: str) -> Settled:
        """What waits for this address, and what was paid under it and belongs to nobody.

        The payments themselves are asked too: the events that brought them may be dead letters.
        """
        sources = [source.id for source in rules.sources.values() if source.link_by_email]
        found = await listings.unapplied_payments_of_email(connection, key, sources, MAX_AT_ONCE)
        revisits = [Revisit(PaymentId(payment_id)) for payment_id in found]
        return await self._settle(connection, rules, revisits, [waits_for_email(key)])

    async def _settle_of_order(
        self, connection: Connection, rules: Rules, reference: str
    ) -> Settled:
        """What waits for this order, and what was paid for it and is not applied."""
        found = await orders.unapplied_payments_of_order(connection, reference, MAX_AT_ONCE)
        revisits = [Revisit(PaymentId(payment_id)) for payment_id in found]
        return await self._settle(connection, rules, revisits, [waits_for_order(reference)])

    async def _settle(
        self,
        connection: Connection,
        rules: Rules,
        revisits: Sequence[Revisit],
        names: Sequence[str],
    ) -> Settled:
        digests = [waiting_digest(name) for name in names]
        claim = await due.claim_waiting(connection, digests, MAX_AT_ONCE)
        settled = await settle_claimed(connection, claim, rules, revisits=revisits)
        if settled.schedules:
            await due.ring(connection)  # heard when this transaction has committed
        return settled

    async def _settle_rest(self, settled: Settled, attempt: Body[Settled]) -> Settled:
        """Come again for what another transaction held, and for what one transaction is too few."""
        deadline_s = time.monotonic() + PATIENCE_S
        while _has_rest(settled) and time.monotonic() < deadline_s:
            await asyncio.sleep(BUSY_PAUSE_S)
            settled = await self._transaction(attempt)
            report(settled)
        return settled

    async def _transaction(self, body: Body[T]) -> T:
        """Run the body in a transaction, again when somebody else was first.

        If a handler has broken the transaction, run it again without calling any: they are due.
        """
        rules = self._rules
        for run in range(MAX_RUNS):
            try:
                async with self._database.transaction() as connection:
                    return await body(connection, rules)
            except Exception as error:
                broken = broken_transaction(error)
                if broken is not None:
                    rules = without_calls(rules, broken.held)
                elif trouble(error) is not Trouble.RERUN:
                    raise
                await asyncio.sleep(RERUN_PAUSE_S * run * random.random())
        raise DatabaseAwayError(f"others were first {MAX_RUNS} times; try again")


def _has_rest(settled: Settled) -> bool:
    busy = any(verdict.result is Result.BUSY for verdict in settled.verdicts)
    return busy or len(settled.verdicts) >= MAX_AT_ONCE


def _names_of_linked(settled: Settled) -> list[str]:
    """Under which names events of the payments that were just linked may wait."""
    decisions = (verdict.decision for verdict in settled.verdicts)
    both = [(one.payment_before, one.payment) for one in decisions if one is not None]
    payments = [one for pair in both for one in pair if one is not None]
    emails = [waits_for_email(email_key(one.email)) for one in payments if one.email]
    references = [waits_for_order(one.order) for one in payments if one.order]
    return [waits_for_payment(one) for one in payments] + emails + references
