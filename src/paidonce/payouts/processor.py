"""The payout processor: carries out payments from a wallet (SVC-1).

The bus consumer calls `consume`, in the transaction that marks the messages as consumed. A
PaymentInitiated adds the payment, whose id is its key, and reserves its amount. A
ProviderCallbackReceived applies the gateway's callbacks. Every change locks the payment first, then
its callbacks, then its wallet, each in the order of their ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from paidonce.bus import outbox
from paidonce.bus.model import Message
from paidonce.core.events import SourceId
from paidonce.core.notifications import NotificationKind
from paidonce.db.queries import Connection
from paidonce.errors import InvalidMessageError
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes, clean
from paidonce.payouts import messages as bus_messages
from paidonce.payouts import model, store
from paidonce.payouts.model import GatewayReport, TransactionKey, WalletPayment, WalletPaymentStatus
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.settings.sections import PayoutSettings
from paidonce.telemetry import logger, metrics
from paidonce.wallet.commands import execute
from paidonce.wallet.reservations import Command, CommandResult, Reserve

log = logger(__name__)

GROUP: Final = "payments"
AGGREGATE_TYPES: Final = (bus_messages.WALLET_PAYMENT, bus_messages.GATEWAY_CALLBACK)
MAX_LEAD: Final = timedelta(days=1)
"""How far ahead of our clock a message may be: later messages of its payment are not before it."""

Changes = Sequence[tuple[WalletPayment, WalletPayment]]
"""Payments before and after a change."""


@dataclass(frozen=True, slots=True)
class PayoutOptions:
    """The source of the gateway, who is notified, and how often the gateway is asked."""

    source_id: SourceId
    source: str
    routes: Routes
    settings: PayoutSettings = PayoutSettings()  # noqa: RUF009 - it is frozen


class PayoutProcessor:
    """Changes payments, each time in the caller's transaction."""

    def __init__(self, options: PayoutOptions) -> None:
        self._options = options

    async def consume(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Process messages. Raises InvalidMessageError for an invalid one."""
        initiations = [
            bus_messages.read_initiation(one, self._options.source, self._options.source_id)
            for one in messages
            if one.type == model.MessageType.INITIATED
        ]
        if initiations:
            await self._begin(connection, initiations)
        callbacks = [
            bus_messages.read_callback_id(one)
            for one in messages
            if one.type == bus_messages.CALLBACK_RECEIVED
        ]
        if callbacks:
            transactions = await store.pending_transactions(connection, callbacks)
            await self.apply_callbacks(connection, transactions)

    async def _begin(self, connection: Connection, initiations: Sequence[model.Initiation]) -> None:
        """Add the new payments, and reserve their amounts."""
        # The first message about a payment counts.
        requests = {one.payment_id: one for one in reversed(initiations)}
        await store.add(connection, requests.values())
        locked = await store.lock(connection, requests)
        assert locked.now is not None
        for one in initiations:
            _require_same(locked.payments[one.payment_id], one, locked.now)
        new = [
            one for one in locked.payments.values() if one.status is WalletPaymentStatus.INITIATED
        ]
        results = await _reserve(connection, new, locked.wallet_currencies)
        maybe_crash(CrashPoint.RESERVED)
        changes = [(one, model.begin(one, results.get(one.payment_id), locked.now)) for one in new]
        await self.write(connection, changes, locked.now)

    async def apply_callbacks(
        self, connection: Connection, transactions: Iterable[TransactionKey]
    ) -> set[TransactionKey]:
        """Apply the pending callbacks of these transactions; returns those that have a payment."""
        locked = await store.lock_by_transaction(connection, transactions)
        payments = {
            TransactionKey(one.source_id, one.transaction_id): one
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
        reports = {payment_id: [answer] for payment_id, answer in answers.items()}
        applied: dict[UUID, str] = {}
        for callback_id, transaction, report in await store.lock_callbacks(connection, payments):
            payment_id = applied[callback_id] = payments[transaction].payment_id
            reports.setdefault(payment_id, []).append(report)
        current = {one.payment_id: one for one in payments.values()}
        for turn in range(max(map(len, reports.values()), default=0)):
            batch = {name: given[turn] for name, given in reports.items() if turn < len(given)}
            current |= await self._apply_batch(connection, current, batch, now)
        await store.finish_callbacks(connection, applied)
        maybe_crash(CrashPoint.CALLBACK_APPLIED)

    async def conclude(
        self, connection: Connection, payment: WalletPayment, report: GatewayReport, now: datetime
    ) -> WalletPayment:
        """Apply a report to a locked payment; returns the payment after it."""
        name = payment.payment_id
        after = await self._apply_batch(connection, {name: payment}, {name: report}, now)
        if not after:
            await store.save(connection, [(payment, payment)])
        return after.get(name, payment)

    async def _apply_batch(
        self,
        connection: Connection,
        payments: Mapping[str, WalletPayment],
        reports: Mapping[str, GatewayReport],
        now: datetime,
    ) -> dict[str, WalletPayment]:
        """Apply one report to each payment; returns the payments that changed."""
        changes: list[tuple[WalletPayment, WalletPayment]] = []
        commands: dict[str, Command] = {}
        for name, report in reports.items():
            payment, mismatch = payments[name], model.find_mismatch(payments[name], report)
            if mismatch is not None:
                changes.append((payment, model.hold(payment, mismatch)))
            elif (command := model.command_for(payment, report.status)) is not None:
                commands[name] = command
        results = await execute(connection, list(commands.values())) if commands else []
        for name, result in zip(commands, results, strict=True):
            after = model.conclude(payments[name], reports[name], result.reject_reason, now)
            changes.append((payments[name], after))
        await self.write(connection, changes, now)
        return {after.payment_id: after for _, after in changes}

    async def write(self, connection: Connection, changes: Changes, now: datetime) -> None:
        """Write payments that differ, their messages, and notifications about new reviews."""
        changes = [(before, after) for before, after in changes if before != after]
        await store.save(connection, changes)
        messages = [
            bus_messages.new_message(after, message_type)
            for before, after in changes
            if (message_type := model.message_about(before, after)) is not None
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


async def _reserve(
    connection: Connection, payments: Sequence[WalletPayment], currencies: Mapping[str, str | None]
) -> dict[str, CommandResult]:
    """Reserve the amounts, except from a wallet with another currency."""
    matching = [one for one in payments if currencies[one.payment_id] in (None, one.currency)]
    commands = [
        Reserve(one.payment_id, one.wallet_id, one.amount_minor, remove_expiry=True)
        for one in matching
    ]
    results = await execute(connection, commands) if commands else []
    return {one.payment_id: result for one, result in zip(matching, results, strict=True)}


def _require_same(payment: WalletPayment, request: model.Initiation, now: datetime) -> None:
    """Raise InvalidMessageError for another payment under the same id, or a time far ahead."""
    if payment.request_hash != request.request_hash:
        raise InvalidMessageError("payment_id: another payment has it already")
    if request.started_at > now + MAX_LEAD:
        raise InvalidMessageError("time: is more than a day ahead")


def _notification(payment: WalletPayment, now: datetime) -> Notification:
    details = {
        "payment": payment.payment_id,
        "code": payment.review,
        "amount": payment.amount,
        "currency": payment.currency,
    }
    kind = NotificationKind.WALLET_PAYMENT
    return Notification(kind, now, source=payment.source, details=clean(details))
