"""Calls the gateway: sends payments, and asks about those that are still processing.

No transaction and no lock is held during a call. A payment is claimed by a lease, so another
process continues when this one dies. The payment's id is the idempotency key, so a repeated call
pays once. A gateway that does not answer is asked again with growing pauses, finally slowly, and a
person is notified.
"""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Final

from paidonce.core.callbacks import GatewayStatus
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.errors import GatewayUnreachableError
from paidonce.payouts import model, store
from paidonce.payouts.gateway import Gateway, GatewayAnswer, GatewayRefusal
from paidonce.payouts.model import WalletPayment, WalletPaymentStatus
from paidonce.payouts.processor import PayoutOptions, PayoutProcessor
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.service import POLLING, Delays, Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger

log = logger(__name__)

MAX_RUNS: Final = 20


class GatewayCaller(Service):
    """Calls the gateway for payments that are due, several at once."""

    def __init__(
        self, database: Database, gateway: Gateway, options: PayoutOptions, wakeup: Wakeup
    ) -> None:
        super().__init__("payout caller")
        self._database = database
        self._gateway = gateway
        self._options = options
        self._processor = PayoutProcessor(options)
        self._listener = wakeup.listener()
        self._delays = Delays(POLLING)
        self._calling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Call until asked to finish."""
        try:
            while not self.is_finishing:
                if await self._begin() > 0:
                    self._delays.reset()
                else:
                    await self._listener.wait(self._delays.next_s())
            await asyncio.gather(*self._calling, return_exceptions=True)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Call for due payments, up to the limit; returns their number."""
        begun = await self._begin()
        await asyncio.gather(*self._calling)
        return begun

    async def close(self) -> None:
        """Cancel calls that have not ended; they are repeated when their leases end."""
        for task in self._calling:
            task.cancel()
        await asyncio.gather(*self._calling, return_exceptions=True)
        await self._gateway.close()

    async def _begin(self) -> int:
        """Start calls for due payments, up to the limit; returns their number."""
        room = self._gateway.max_calls - len(self._calling)
        if room == 0:
            await asyncio.wait(self._calling, return_when=asyncio.FIRST_COMPLETED)
            return 1
        async with self._database.connection() as connection:
            due = await store.claim(connection, limit=room, lease_s=self._gateway.lease_s)
        for payment in due:
            task = asyncio.create_task(self._call(payment))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)
        return len(due)

    async def _call(self, payment: WalletPayment) -> None:
        maybe_crash(CrashPoint.CALLING)
        try:
            answer = await self._ask(payment)
        except GatewayUnreachableError as error:
            log.warning("gateway_call_failed", payment=payment.payment_id, detail=str(error))
            answer = None
        maybe_crash(CrashPoint.CALLED)
        for run in range(1, MAX_RUNS + 1):  # again if another transaction was first
            try:
                await self.save(payment.payment_id, answer)
                break
            except Exception as error:
                if trouble(error) is not Trouble.RERUN or run == MAX_RUNS:
                    self.record_failure(error)
                    break

    async def _ask(self, payment: WalletPayment) -> GatewayAnswer | GatewayRefusal:
        """Send the payment; later ask for its state, and send it again if it is unknown."""
        if payment.attempts > 1:
            answer = await self._gateway.get(payment.payment_id)
            if answer is not None:
                return answer
        if payment.transaction_id is not None:
            # The gateway has lost the payment, and perhaps its key: it might pay a second time.
            raise GatewayUnreachableError("it does not know a payment that it had accepted")
        return await self._gateway.send(payment)

    async def save(self, payment_id: str, answer: GatewayAnswer | GatewayRefusal | None) -> None:
        """Apply the gateway's answer to the payment; None if there was none."""
        async with self._database.transaction() as connection:
            locked = await store.lock(connection, [payment_id])
            payment, now = locked.payments[payment_id], locked.now
            assert now is not None
            has_ended = payment.status is not WalletPaymentStatus.PROCESSING
            if has_ended and not isinstance(answer, GatewayAnswer):
                return
            if answer is None:
                after = model.after_silence(payment, self._options.settings, now)
                await self._processor.write(connection, [(payment, after)], now)
            elif isinstance(answer, GatewayRefusal):
                log.warning("gateway_refused", payment=payment_id, http_code=answer.http_status)
                reason = model.FailureReason.GATEWAY_REFUSED
                report = model.GatewayReport(GatewayStatus.FAILED, failure=reason)
                await self._processor.conclude(connection, payment, report, now)
            else:
                await self._apply(connection, payment, answer, now)
        maybe_crash(CrashPoint.ANSWER_SAVED)

    async def _apply(
        self, connection: Connection, payment: WalletPayment, answer: GatewayAnswer, now: datetime
    ) -> None:
        """Save the transaction's id, and apply the answer and the callbacks that came before it."""
        after = model.after_answer(payment, self._options.settings, now)
        if payment.transaction_id is None:
            is_conflict = await store.has_other_payment(connection, payment, answer.transaction_id)
        else:
            is_conflict = payment.transaction_id != answer.transaction_id
        if is_conflict:
            # The answer may be about another payment: a person has to look.
            if after.status is WalletPaymentStatus.PROCESSING or after.review is None:
                after = replace(after, review=model.Review.TRANSACTION_CONFLICT)
            await self._processor.write(connection, [(payment, after)], now)
            return
        after = replace(after, transaction_id=answer.transaction_id)
        await self._processor.write(connection, [(payment, after)], now)
        transaction = model.TransactionKey(after.source_id, answer.transaction_id)
        reports = {after.payment_id: model.GatewayReport(answer.status, answer.paid)}
        await self._processor.apply_reports(connection, {transaction: after}, reports, now)
