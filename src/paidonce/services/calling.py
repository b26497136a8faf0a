"""Tells the gateway of payments, and asks it about those of which it has not said what became.

Nothing is held while the gateway is called: no transaction, no row. A payment that is to be asked
about is claimed by a lease, so that a process that dies is followed when that is over. The
payment's id is the gateway's idempotency key, so that told twice it pays once. A gateway that does
not answer is asked again with growing pauses, for ever: in the end slowly, and a person knows.
"""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Final

from paidonce.bus.ring import Patience, Ring
from paidonce.crashpoints import Point, passing
from paidonce.domain.wallet_payments import (
    Review,
    WalletPayment,
    WalletPaymentStatus,
    answered,
    unanswered,
)
from paidonce.errors import GatewayUnreachableError
from paidonce.services.gateway import Answer, Declined, Gateway
from paidonce.services.payments import PaymentService, Terms
from paidonce.store import wallet_payments
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.queries import Connection
from paidonce.store.wallet_payments import Question
from paidonce.telemetry import logger

log = logger(__name__)

MAX_RERUNS: Final = 20
PAUSE_AFTER_FAILURE_S: Final = 1.0


class Caller:
    """Calls the gateway for whatever is due, several at once."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        terms: Terms,
        ring: Ring | None = None,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._terms = terms
        self._service = PaymentService(terms)
        self._max_calls = gateway.access.max_calls
        self._lease_s = gateway.access.lease_s
        self._ear = (ring or Ring()).ear()
        self._patience = Patience()
        self._calling: set[asyncio.Task[None]] = set()
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Call until stopped."""
        try:
            while not self._stop_asked.is_set():
                await self._work()
            await asyncio.gather(*self._calling, return_exceptions=True)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Call for what is due, as far as there is room; returns for how many payments."""
        begun = await self._begin()
        await asyncio.gather(*self._calling)
        return begun

    def finish(self) -> None:
        """Begin nothing new. What is being asked is asked again, unless it is answered soon."""
        self._stop_asked.set()
        self._ear.ring()

    async def close(self) -> None:
        """Let go of everything; what was not saved is asked for when its lease is over."""
        for task in self._calling:
            task.cancel()
        await asyncio.gather(*self._calling, return_exceptions=True)
        await self._gateway.close()

    async def _work(self) -> None:
        try:
            if await self._begin() > 0:
                self._patience.found()
            else:
                await self._ear.wait(self._patience.next_s())
        except Exception as error:
            log.warning("caller_failed", error=type(error).__name__, detail=str(error))
            await self._ear.wait(PAUSE_AFTER_FAILURE_S)

    async def _begin(self) -> int:
        """Begin to call for what is due, as far as there is room."""
        room = self._max_calls - len(self._calling)
        if room == 0:
            await asyncio.wait(self._calling, return_when=asyncio.FIRST_COMPLETED)
            return 1
        async with self._database.connection() as connection:
            due = await wallet_payments.claim(connection, limit=room, lease_s=self._lease_s)
        for question in due:
            task = asyncio.create_task(self._see_to(question))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)
        return len(due)

    async def _see_to(self, question: Question) -> None:
        passing(Point.CALLING)
        try:
            answer = await self._answer(question)
        except GatewayUnreachableError as error:
            log.warning("gateway_silent", payment=question.payment_id, detail=str(error))
            answer = None
        passing(Point.CALLED)
        try:
            await self._save_until_saved(question, answer)
        except Exception as error:
            log.warning("caller_failed", error=type(error).__name__, detail=str(error))

    async def _answer(self, question: Question) -> Answer | Declined:
        """Told the first time; after that asked, and told again if it knows nothing of it."""
        if question.asked > 1:
            answer = await self._gateway.ask(question.payment_id)
            if answer is not None:
                return answer
        if question.transaction_id is not None:
            # It has forgotten the payment, and with it perhaps our key: told again, it might pay
            # once more.
            raise GatewayUnreachableError("it knows nothing of a payment that it has taken")
        return await self._gateway.tell(question)

    async def _save_until_saved(self, question: Question, answer: Answer | Declined | None) -> None:
        """Write what was answered, again if somebody was first."""
        for _ in range(MAX_RERUNS - 1):
            try:
                return await self.save(question.payment_id, answer)
            except Exception as error:
                if trouble(error) is not Trouble.RERUN:
                    raise
        return await self.save(question.payment_id, answer)

    async def save(self, payment_id: str, answer: Answer | Declined | None) -> None:
        """Let the payment hear what the gateway answered; None if it did not."""
        async with self._database.transaction() as connection:
            locked = await wallet_payments.lock(connection, [payment_id])
            payment, now = locked.payments[payment_id], locked.now
            assert now is not None
            is_over = payment.status is not WalletPaymentStatus.PROCESSING
            if is_over and not isinstance(answer, Answer):
                return  # somebody has told meanwhile what became of it
            if answer is None:
                after = unanswered(payment, self._terms.pauses, now)
                await self._service.keep(connection, payment, after, now)
            elif isinstance(answer, Declined):
                log.warning("gateway_refused", payment=payment_id, http_code=answer.status)
                await self._service.refuse(connection, payment, now)
            else:
                await self._hear(connection, payment, answer, now)
        passing(Point.ANSWER_SAVED)

    async def _hear(
        self, connection: Connection, payment: WalletPayment, answer: Answer, now: datetime
    ) -> None:
        """Save the transaction's id, and apply what was said of it: now, or before it was known."""
        after = answered(payment, self._terms.pauses, now)
        known = payment.transaction_id
        is_taken = known is None and await wallet_payments.is_transaction_taken(
            connection, payment, answer.transaction_id
        )
        if is_taken or known not in (None, answer.transaction_id):
            # What it says may be of another payment: it is not believed, and a person has to look.
            is_known = after.status is not WalletPaymentStatus.PROCESSING and after.review
            review = after.review if is_known else Review.TRANSACTION_CONFLICT
            contested = replace(after, review=review)
            await self._service.keep(connection, payment, contested, now)
            return
        after = replace(after, transaction_id=answer.transaction_id)
        await self._service.keep(connection, payment, after, now)
        transaction = (after.source_id, answer.transaction_id)
        said = {after.payment_id: answer.said}
        await self._service.hear(connection, {transaction: after}, said, now)
