"""The payout processor: carries out payments from a wallet (SVC-1).

The bus consumer calls `consume`, in the transaction that marks the messages as consumed. A
PaymentInitiated adds the payment, whose id is its key, and reserves its amount. A
ProviderCallbackReceived applies the gateway's callbacks. Every change locks the payment first, then
its callbacks, then its wallet, each in the order of their ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.bus import outbox
from paidonce.bus.model import Message
from paidonce.core.callbacks import GatewayStatus
from paidonce.core.events import SourceId
from paidonce.core.notifications import NotificationKind
from paidonce.db.queries import Connection
from paidonce.errors import InvalidMessageError
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes, clean
from paidonce.payouts import store
from paidonce.payouts.messages import (
    CALLBACK_RECEIVED,
    GATEWAY_CALLBACK,
    MAX_LEAD,
    WALLET_PAYMENT,
    new_message,
    read_callback_id,
    read_initiation,
)
from paidonce.payouts.model import (
    FailureReason,
    GatewayReport,
    Initiation,
    MessageType,
    PollSchedule,
    TransactionKey,
    Transition,
    WalletPayment,
    WalletPaymentStatus,
    begin,
    command_for,
    conclude,
    find_mismatch,
    hold,
)
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.telemetry import logger, metrics
from paidonce.wallet.commands import execute
from paidonce.wallet.reservations import Command, CommandResult, Reserve

log = logger(__name__)

GROUP: Final = "payments"
AGGREGATE_TYPES: Final = (WALLET_PAYMENT, GATEWAY_CALLBACK)
CALLBACK_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True)
class PayoutOptions:
    """The source of the gateway, how often it is asked, and who is notified."""

    source_id: SourceId
    source: str
    routes: Routes = field(default_factory=dict)
    schedule: PollSchedule = field(default_factory=PollSchedule)
    callback_attempts: int = CALLBACK_ATTEMPTS


class PayoutProcessor:
    """Changes payments, each time in the caller's transaction."""

    def __init__(self, options: PayoutOptions) -> None:
        self._options = options

    async def consume(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Process messages. Raises InvalidMessageError for an invalid one."""
        initiated = [one for one in messages if one.type == MessageType.INITIATED]
        if initiated:
            await self.begin(connection, initiated)
        callbacks = [read_callback_id(one) for one in messages if one.type == CALLBACK_RECEIVED]
        if callbacks:
            transactions = await store.pending_transactions(connection, callbacks)
            await self.apply_callbacks(connection, transactions)

    async def begin(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Add the new payments, and reserve their amounts."""
        requests: dict[str, tuple[Initiation, datetime]] = {}
        for one in messages:  # the first message about a payment counts
            requests.setdefault(one.key, (self._initiation(one), one.time))
        await store.add(connection, list(requests.values()))
        locked = await store.lock(connection, requests)
        assert locked.now is not None
        for one in messages:
            _require_same(locked.payments[one.key], self._initiation(one), one, locked.now)
        new = [
            payment
            for payment in locked.payments.values()
            if payment.status is WalletPaymentStatus.INITIATED
        ]
        results = await _reserve(connection, new, locked.wallet_currencies)
        maybe_crash(CrashPoint.RESERVED)
        changes = [(one, begin(one, results.get(one.payment_id), locked.now)) for one in new]
        await self._write(connection, changes, locked.now)

    async def apply_callbacks(
        self, connection: Connection, transactions: Iterable[TransactionKey]
    ) -> set[TransactionKey]:
        """Apply the pending callbacks of these transactions; returns those that have a payment."""
        locked = await store.lock_by_transaction(connection, transactions)
        payments = {
            (one.source_id, one.transaction_id): one
            for one in locked.payments.values()
            if one.transaction_id is not None
        }
        if locked.now is not None:
            await self.apply_reports(connection, payments, {}, locked.now)
        return set(payments)

    async def apply_reports(
        self,
        connection: Connection,
        payments: Mapping[TransactionKey, WalletPayment],
        answers: Mapping[str, GatewayReport],
        now: datetime,
    ) -> None:
        """Apply the gateway's answers to locked payments, then its pending callbacks."""
        reports: dict[str, list[GatewayReport]] = {
            one.payment_id: [answers[one.payment_id]] if one.payment_id in answers else []
            for one in payments.values()
        }
        applied: list[tuple[UUID, str]] = []
        for callback in await store.lock_callbacks(connection, payments):
            payment_id = payments[callback.transaction].payment_id
            reports[payment_id].append(callback.report)
            applied.append((callback.id, payment_id))
        current = {one.payment_id: one for one in payments.values()}
        for turn in range(max(map(len, reports.values()), default=0)):
            batch = {name: given[turn] for name, given in reports.items() if turn < len(given)}
            current |= await self._apply_batch(connection, current, batch, now)
        await store.finish_callbacks(connection, applied)
        maybe_crash(CrashPoint.CALLBACK_APPLIED)

    async def conclude(
        self,
        connection: Connection,
        payment: WalletPayment,
        status: GatewayStatus,
        now: datetime,
        failure: FailureReason = FailureReason.DECLINED,
    ) -> WalletPayment:
        """Apply a status to a locked payment; returns the payment after it."""
        payment_id = payment.payment_id
        reports = {payment_id: GatewayReport(status)}
        after = await self._apply_batch(connection, {payment_id: payment}, reports, now, failure)
        if not after:
            await store.save(connection, [(payment, payment)])
        return after.get(payment_id, payment)

    async def save(
        self, connection: Connection, before: WalletPayment, after: WalletPayment, now: datetime
    ) -> None:
        """Write a change that needs no message: the next attempt, or a review."""
        if after != before:
            await self._write(connection, [(before, Transition(after))], now)

    async def _apply_batch(
        self,
        connection: Connection,
        payments: Mapping[str, WalletPayment],
        reports: Mapping[str, GatewayReport],
        now: datetime,
        failure: FailureReason = FailureReason.DECLINED,
    ) -> dict[str, WalletPayment]:
        """Apply one report to each payment; returns the payments that changed."""
        changes: list[tuple[WalletPayment, Transition]] = []
        commands: dict[str, Command] = {}
        for name, report in reports.items():
            payment, mismatch = payments[name], find_mismatch(payments[name], report)
            if mismatch is not None:
                changes.append((payment, hold(payment, mismatch)))
            elif (command := command_for(payment, report.status)) is not None:
                commands[name] = command
        results = await execute(connection, list(commands.values())) if commands else []
        for name, result in zip(commands, results, strict=True):
            payment, status = payments[name], reports[name].status
            after = conclude(payment, status, result.reject_reason, now, failure)
            changes.append((payment, after))
        if changes:
            await self._write(connection, changes, now)
        return {after.payment.payment_id: after.payment for _, after in changes}

    async def _write(
        self,
        connection: Connection,
        transitions: Sequence[tuple[WalletPayment, Transition]],
        now: datetime,
    ) -> None:
        """Write the payments, their messages, and notifications about new reviews."""
        changes = [(before, one.payment) for before, one in transitions if before != one.payment]
        await store.save(connection, changes)
        messages = [
            new_message(one.payment, one.message)
            for _, one in transitions
            if one.message is not None
        ]
        await outbox.add(connection, messages)
        for message in messages:
            metrics.bound(metrics.WALLET_PAYMENTS, message.type).inc()
        reviews = [
            after
            for before, after in changes
            if after.review is not None and after.review != before.review
        ]
        for one in reviews:
            log.error("wallet_payment_review", payment=one.payment_id, review=one.review)
        notifications = (_notification(one, now) for one in reviews)
        await notifications_store.add(connection, self._options.routes, *notifications)

    def _initiation(self, message: Message) -> Initiation:
        options = self._options
        return read_initiation(message, source=options.source, source_id=options.source_id)


async def _reserve(
    connection: Connection,
    payments: Sequence[WalletPayment],
    currencies: Mapping[str, str | None],
) -> dict[str, CommandResult]:
    """Reserve the amounts, except from a wallet with another currency."""
    matching = [one for one in payments if currencies[one.payment_id] in (None, one.currency)]
    commands = [
        Reserve(one.payment_id, one.wallet_id, one.amount_minor, remove_expiry=True)
        for one in matching
    ]
    results = await execute(connection, commands) if commands else []
    return {one.payment_id: result for one, result in zip(matching, results, strict=True)}


def _require_same(
    payment: WalletPayment, request: Initiation, message: Message, now: datetime
) -> None:
    """Raise InvalidMessageError for another payment under the same id, or a time far ahead."""
    if payment.request_hash != request.request_hash:
        raise InvalidMessageError("payment_id: another payment has it already")
    if message.time > now + MAX_LEAD:
        raise InvalidMessageError("time: is more than a day ahead")


def _notification(payment: WalletPayment, now: datetime) -> Notification:
    details = {
        "payment": payment.payment_id,
        "code": payment.review,
        "amount": payment.amount,
        "currency": payment.currency,
    }
    return Notification(
        kind=NotificationKind.WALLET_PAYMENT,
        at=now,
        source=payment.source,
        details=clean(details),
    )
