"""Creates users and orders, and links payments to them, whichever comes first.

A transaction that creates a user or an order locks its name (see `process._load` for the other
side), inserts it, and then processes the events that were blocked on it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import asyncpg

from paidonce.audit.model import AuditEntry
from paidonce.audit.store import record_action, record_entries
from paidonce.core.email import email_key
from paidonce.core.events import PaymentId, UserId
from paidonce.core.operator_refunds import OperatorRefund, require_same
from paidonce.core.orders import Order
from paidonce.core.problems import blocked_on_email, blocked_on_order, blocked_on_payment
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.db.queries import Connection, from_row
from paidonce.errors import DatabaseUnavailableError
from paidonce.ids import new_id
from paidonce.linking import store
from paidonce.processing import hook_calls
from paidonce.processing import store as processing_store
from paidonce.processing.items import (
    BatchResult,
    FreeOrder,
    Link,
    Reapply,
    Result,
    ResultKind,
    Rules,
)
from paidonce.processing.outcomes import report
from paidonce.processing.process import process
from paidonce.queue import store as queue_store
from paidonce.queue.claims import process_claimed
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.wakeup import notify_workers

MAX_AT_ONCE: Final = 128
MAX_RUNS: Final = 10
RERUN_PAUSE_S: Final = 0.01
LOCKED_PAUSE_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""How long to wait for locked rows. After that, events are left to the worker."""

T = TypeVar("T")
Body = Callable[[Connection, Rules], Awaitable[T]]
"""What runs in a transaction, with these rules."""


@dataclass(frozen=True, slots=True)
class User:
    """A user, whose payments can be applied."""

    id: UserId
    email: str | None  # null: the user was erased
    former_emails: list[str]
    created_at: datetime
    erased_at: datetime | None


class Linker:
    """Creates users and orders, links payments, and applies at once what can be applied then."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def create_user(self, email: str, actor: str) -> tuple[User, bool]:
        """Return the user with this address, and whether it is new. Its payments are applied.

        A new user is audited by id: the audit log contains no addresses.
        """

        async def create(connection: Connection) -> tuple[User, bool]:
            row, is_new = await store.create_user(connection, new_id(), email)
            if is_new:
                await record_action(connection, actor, "user_created", user_id=row["id"])
            return from_row(User, row), is_new

        return await self._create_email(email, create)

    async def change_email(self, user_id: UUID, email: str, actor: str) -> User:
        """Give the user another address; payments that wait for it are applied.

        Raises NotFoundError, or ConflictError if another user has it.
        """

        async def change(connection: Connection) -> User:
            before = await store.lock_user(connection, user_id)
            user = from_row(User, await store.change_email(connection, user_id, email))
            if user.email != before["email"]:
                await record_action(connection, actor, "email_changed", user_id=user.id)
            return user

        return await self._create_email(email, change)

    async def _create_email(self, email: str, create: Callable[[Connection], Awaitable[T]]) -> T:
        """Create what makes the address known, and process what is blocked on it."""
        key = email_key(email)
        process = partial(self._process_email, key)
        return await self._create(blocked_on_email(key), create, process)

    async def create_order(self, order: Order, request_hash: bytes, actor: str) -> bool:
        """Create the order; returns whether it is new. Its payments are applied.

        Raises ConflictError when another order has this reference.
        """
        reference = order.reference

        async def create(connection: Connection) -> bool:
            is_new = await store.create_order(connection, order, request_hash)
            if is_new:
                await record_action(
                    connection, actor, "order_created", order=reference, user_id=order.user_id
                )
                if order.is_free:
                    await self._fulfill_free(connection, reference)
            return is_new

        process = partial(self._process_order, reference)
        return await self._create(blocked_on_order(reference), create, process)

    async def _fulfill_free(self, connection: Connection, reference: str) -> None:
        """Fulfill a new order for which nothing is to be paid. Raises ConflictError."""
        processed = await process(connection, [FreeOrder(reference)], self._rules)
        if _has_rest(processed):
            raise asyncpg.SerializationError("the subscription is locked by another transaction")

    async def change_and_apply(
        self, change: Callable[[Connection], Awaitable[Sequence[PaymentId]]]
    ) -> None:
        """Make a change, and apply the payments that it returns: they may have waited for it."""

        async def run(connection: Connection, rules: Rules) -> BatchResult:
            payments = await change(connection)
            return await self._process(connection, rules, [], payments[:MAX_AT_ONCE])

        processed = await self._transaction(run)
        report(processed)
        await self._process_rest(processed, run)

    async def close_order(self, reference: str, actor: str, reason: str | None = None) -> None:
        """Close the order: no payment can pay it any more.

        Raises NotFoundError, or ConflictError when it is paid.
        """

        async def close(connection: Connection, rules: Rules) -> BatchResult:
            user_id = await store.close_order(connection, reference)
            await record_action(
                connection, actor, "order_closed", order=reference, user_id=user_id, reason=reason
            )
            return await self._process_order(reference, connection, rules)

        report(await self._transaction(close))

    async def link(
        self,
        payment_id: PaymentId,
        link: Link,
        actor: str,
        action: str,
        reason: str | None = None,
        **details: object,
    ) -> bool:
        """Execute the instruction, and apply the payment if possible. The action is audited.

        Returns whether it changed the payment. Raises NotFoundError, or what `apply_link` raises.
        """
        reapply = Reapply(payment_id, link)

        async def process_linked(connection: Connection, rules: Rules) -> BatchResult:
            if link.refund is not None:
                await self._lock_refund(connection, payment_id, link.refund)
            processed = await hook_calls.process_with_hooks(connection, reapply, rules)
            if not _has_rest(processed) and (link.refund is None or _has_changed(processed)):
                (result,) = processed.results
                entries = _link_entries(result, actor, action, reason, details)
                await record_entries(connection, entries)
            return processed

        processed = await self._process_rest(
            await self._transaction(process_linked), process_linked
        )
        if _has_rest(processed):
            raise DatabaseUnavailableError(
                "the payment is locked by another transaction; try again"
            )
        names = _blocked_on_names(processed)
        report(
            await self._transaction(
                lambda connection, rules: self._process(connection, rules, names)
            )
        )
        return _has_changed(processed)

    async def _lock_refund(
        self, connection: Connection, payment_id: PaymentId, refund: OperatorRefund
    ) -> None:
        """Let nobody else record a refund with this id now.

        Raises ConflictError if another payment has it.
        """
        await processing_store.lock_name(connection, f"refund:{refund.id}")
        owners = await store.payments_with_refund(connection, payment_id, refund)
        require_same(owners <= {payment_id}, refund)

    async def _create(
        self, name: str, create: Callable[[Connection], Awaitable[T]], process: Body[BatchResult]
    ) -> T:
        """Create what has this name and process what is blocked on it, in one transaction."""

        async def create_and_process(connection: Connection, rules: Rules) -> tuple[T, BatchResult]:
            await processing_store.lock_name(connection, name)
            created = await create(connection)
            maybe_crash(CrashPoint.CREATED)
            return created, await process(connection, rules)

        created, processed = await self._transaction(create_and_process)
        report(processed)
        await self._process_rest(processed, process)
        return created

    async def _process_email(self, key: str, connection: Connection, rules: Rules) -> BatchResult:
        """Process events blocked on this address, and unapplied payments with it.

        The payments are needed too: their events may be dead letters.
        """
        sources = [source.id for source in rules.sources.values() if source.link_by_email]
        payments = await store.unapplied_payments_of_email(connection, key, sources, MAX_AT_ONCE)
        return await self._process(connection, rules, [blocked_on_email(key)], payments)

    async def _process_order(
        self, reference: str, connection: Connection, rules: Rules
    ) -> BatchResult:
        """Process events blocked on this order, and its unapplied payments."""
        payments = await store.unapplied_payments_of_order(connection, reference, MAX_AT_ONCE)
        return await self._process(connection, rules, [blocked_on_order(reference)], payments)

    async def _process(
        self,
        connection: Connection,
        rules: Rules,
        names: Sequence[str],
        payments: Sequence[PaymentId] = (),
    ) -> BatchResult:
        digests = [processing_store.blocked_on_digest(name) for name in names]
        claim = await queue_store.claim_blocked(connection, digests, MAX_AT_ONCE)
        reapplies = [Reapply(one) for one in payments]
        processed = await process_claimed(connection, claim, rules, reapplies=reapplies)
        if processed.schedules:
            await notify_workers(connection)
        return processed

    async def _process_rest(
        self, processed: BatchResult, attempt: Body[BatchResult]
    ) -> BatchResult:
        """Process again what was locked, and what exceeded one transaction."""
        deadline_s = time.monotonic() + PATIENCE_S
        while _has_rest(processed) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOCKED_PAUSE_S)
            processed = await self._transaction(attempt)
            report(processed)
        return processed

    async def run(self, body: Body[T]) -> T:
        """Run the body in a transaction, again if another transaction was first."""
        return await self._transaction(body)

    async def _transaction(self, body: Body[T]) -> T:
        """Run the body in a transaction, again after a serialization failure.

        If a handler broke the transaction, run it again without handlers: their events are queued.
        """
        rules = self._rules
        for run in range(MAX_RUNS):
            try:
                async with self._database.transaction() as connection:
                    return await body(connection, rules)
            except Exception as error:
                broken = hook_calls.find_broken_transaction(error)
                if broken is not None:
                    rules = hook_calls.without_hooks(rules, broken.blocked)
                elif trouble(error) is not Trouble.RERUN:
                    raise
                await asyncio.sleep(RERUN_PAUSE_S * run * random.random())
        raise DatabaseUnavailableError(f"other transactions were first {MAX_RUNS} times; try again")


def _has_rest(processed: BatchResult) -> bool:
    is_locked = any(result.kind is ResultKind.LOCKED for result in processed.results)
    return is_locked or len(processed.results) >= MAX_AT_ONCE


def _has_changed(processed: BatchResult) -> bool:
    """Whether an instruction changed its payment."""
    decisions = (result.decision for result in processed.results)
    return any(one is not None and one.payment != one.payment_before for one in decisions)


def _link_entries(
    result: Result, actor: str, action: str, reason: str | None, details: Mapping[str, object]
) -> list[AuditEntry]:
    """The entry of an instruction, and one for the order or user that it took the payment from."""
    named = result.named
    done = AuditEntry(actor, action, reason=reason, details=details, **named)
    before = result.decision.payment_before if result.decision else None
    if before is None:
        return [done]
    order = before.order if before.order != named["order"] else None
    user_id = before.user_id if before.user_id != named["user_id"] else None
    if order is None and user_id is None:
        return [done]
    taken = {"unlinked_payment_id": str(before.id)}
    unlinked = AuditEntry(
        actor, "payment_unlinked", order=order, user_id=user_id, reason=reason, details=taken
    )
    return [unlinked, done]


def _blocked_on_names(processed: BatchResult) -> list[str]:
    """The names that events of the linked payments may be blocked on."""
    decisions = (result.decision for result in processed.results)
    both = [(one.payment_before, one.payment) for one in decisions if one is not None]
    payments = [one for pair in both for one in pair if one is not None]
    emails = [blocked_on_email(email_key(one.email)) for one in payments if one.email]
    references = [blocked_on_order(one.order) for one in payments if one.order]
    return [blocked_on_payment(one) for one in payments] + emails + references
