"""The payment service: payments out of a wallet, which a gateway carries out (SVC-1).

`take` is what its consumer calls, in the transaction in which the messages are remembered as taken.
A PaymentInitiated adds the payment, whose id is its key, and sets its money aside; a
ProviderCallbackReceived lets the payment hear what the gateway said. Whatever changes a payment
locks its row first, then the words about it, then its wallet, each in the order of their ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce import telemetry
from paidonce.bus.messages import Message
from paidonce.crashpoints import Point, passing
from paidonce.domain.events import SourceId
from paidonce.domain.money import format_minor
from paidonce.domain.notices import NoticeKind
from paidonce.domain.reservations import Command, Judged, Reserve
from paidonce.domain.wallet_payments import (
    FactType,
    Failure,
    Initiation,
    Pauses,
    Said,
    Step,
    WalletPayment,
    WalletPaymentStatus,
    Word,
    begun,
    command_for,
    concluded,
    held,
    mismatch,
)
from paidonce.errors import MessageRefusedError
from paidonce.services.facts import (
    CALLBACK_RECEIVED,
    GATEWAY_CALLBACK,
    LARGEST_LEAD,
    WALLET_PAYMENT,
    callback_id_of,
    fact_of,
    initiation_of,
)
from paidonce.services.wallet import obey
from paidonce.store import gateway_callbacks, notices, outbox, wallet_payments
from paidonce.store.notices import Notice, Telling
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

GROUP: Final = "payments"
ABOUT: Final = (WALLET_PAYMENT, GATEWAY_CALLBACK)
CALLBACK_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True)
class Terms:
    """Which source's gateway pays, how patient we are with it, and who is told when it is not."""

    source_id: SourceId
    source: str
    told_to: Telling = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    callback_attempts: int = CALLBACK_ATTEMPTS


class PaymentService:
    """What is done with payments, each in a transaction of the caller's."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    async def take(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Do what the messages ask for. Raises MessageRefusedError for what cannot be believed."""
        initiated = [one for one in messages if one.type == FactType.INITIATED]
        if initiated:
            await self.begin(connection, initiated)
        told = [callback_id_of(one) for one in messages if one.type == CALLBACK_RECEIVED]
        if told:
            await self.hear_callbacks(connection, await gateway_callbacks.waiting(connection, told))

    async def begin(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Add the payments that are new, and set their money aside."""
        asked: dict[str, tuple[Initiation, datetime]] = {}
        for one in messages:  # of several with one id the first counts
            asked.setdefault(one.key, (self._initiation(one), one.time))
        await wallet_payments.open_payments(connection, list(asked.values()))
        locked = await wallet_payments.lock(connection, asked)
        assert locked.now is not None
        for one in messages:
            _refuse_other(locked.payments[one.key], self._initiation(one), one, locked.now)
        new = [
            payment
            for payment in locked.payments.values()
            if payment.status is WalletPaymentStatus.INITIATED
        ]
        judged = await self._reserved(connection, new, locked.wallet_currencies)
        passing(Point.RESERVED)
        steps = [begun(one, judged.get(one.payment_id), locked.now) for one in new]
        await self._write(connection, list(zip(new, steps, strict=True)), locked.now)

    async def hear_callbacks(
        self, connection: Connection, transactions: Iterable[tuple[SourceId, str]]
    ) -> set[tuple[SourceId, str]]:
        """Let the payments with these transactions hear what was said of them and not heard.

        Returns the transactions that a payment has.
        """
        locked = await wallet_payments.lock_of_transactions(connection, transactions)
        by_transaction = {
            (one.source_id, one.transaction_id): one
            for one in locked.payments.values()
            if one.transaction_id is not None
        }
        if locked.now is not None:
            await self.hear(connection, by_transaction, {}, locked.now)
        return set(by_transaction)

    async def hear(
        self,
        connection: Connection,
        payments: Mapping[tuple[SourceId, str], WalletPayment],
        answers: Mapping[str, Said],
        now: datetime,
    ) -> dict[str, WalletPayment]:
        """Let locked payments hear what the gateway answered just now, and then its callbacks.

        Returns the payments by their ids as they are then.
        """
        unheard = await gateway_callbacks.lock_unheard(connection, payments)
        words: dict[str, list[Said]] = {
            one.payment_id: [answers[one.payment_id]] if one.payment_id in answers else []
            for one in payments.values()
        }
        heard: list[tuple[UUID, str]] = []
        for callback in unheard:
            payment_id = payments[callback.transaction].payment_id
            words[payment_id].append(callback.says)
            heard.append((callback.id, payment_id))
        after = {one.payment_id: one for one in payments.values()}
        for turn in range(max(map(len, words.values()), default=0)):
            said = {name: given[turn] for name, given in words.items() if turn < len(given)}
            after |= await self._hear_one_each(connection, after, said, now)
        await gateway_callbacks.finish(connection, heard)
        passing(Point.HEARD)
        return after

    async def refuse(
        self, connection: Connection, payment: WalletPayment, now: datetime
    ) -> WalletPayment:
        """Let go of the money of a locked payment that the gateway did not take at all."""
        return await self._decided(connection, payment, Word.FAILED, now, Failure.GATEWAY_REFUSED)

    async def recover(
        self, connection: Connection, payment: WalletPayment, now: datetime
    ) -> WalletPayment:
        """Take the money for a locked payment that was made, if the wallet has it by now."""
        return await self._decided(connection, _looked_at(payment), Word.SUCCEEDED, now)

    async def give_up(
        self, connection: Connection, payment: WalletPayment, now: datetime
    ) -> WalletPayment:
        """Let go of the money of a locked payment that a person has looked at."""
        return await self._decided(
            connection, _looked_at(payment), Word.FAILED, now, Failure.GIVEN_UP
        )

    async def keep(
        self, connection: Connection, seen: WalletPayment, after: WalletPayment, now: datetime
    ) -> None:
        """Write what is no news to the outside: when to ask again, and what a person should see."""
        if after != seen:
            await self._write(connection, [(seen, Step(after))], now)

    async def _decided(
        self,
        connection: Connection,
        payment: WalletPayment,
        word: Word,
        now: datetime,
        failure: Failure = Failure.DECLINED,
    ) -> WalletPayment:
        """The payment after this word; one that it says nothing new to is only looked at."""
        name = payment.payment_id
        said = {name: Said(word)}
        after = await self._hear_one_each(connection, {name: payment}, said, now, failure)
        if not after:
            await wallet_payments.save(connection, [(payment, payment)])
        return after.get(name, payment)

    async def _hear_one_each(
        self,
        connection: Connection,
        payments: Mapping[str, WalletPayment],
        words: Mapping[str, Said],
        now: datetime,
        failure: Failure = Failure.DECLINED,
    ) -> dict[str, WalletPayment]:
        """One word for each payment: what its wallet does about it, and what it is then."""
        steps: list[tuple[WalletPayment, Step]] = []
        wanted: dict[str, Command] = {}
        for name, said in words.items():
            payment, wrong = payments[name], mismatch(payments[name], said)
            if wrong is not None:
                steps.append((payment, held(payment, wrong)))
            elif (command := command_for(payment, said.word)) is not None:
                wanted[name] = command
        judged = await obey(connection, list(wanted.values())) if wanted else []
        for name, one in zip(wanted, judged, strict=True):
            payment, word = payments[name], words[name].word
            steps.append((payment, concluded(payment, word, one.refusal, now, failure)))
        if steps:
            await self._write(connection, steps, now)
        return {step.payment.payment_id: step.payment for _, step in steps}

    async def _reserved(
        self,
        connection: Connection,
        new: Sequence[WalletPayment],
        currencies: Mapping[str, str | None],
    ) -> dict[str, Judged]:
        """Set the money aside; a wallet with another currency is not asked."""
        fitting = [one for one in new if currencies[one.payment_id] in (None, one.currency)]
        commands = [
            Reserve(one.payment_id, one.wallet_id, one.amount_minor, is_lasting=True)
            for one in fitting
        ]
        judged = await obey(connection, commands) if commands else []
        return {one.payment_id: what for one, what in zip(fitting, judged, strict=True)}

    async def _write(
        self,
        connection: Connection,
        steps: Sequence[tuple[WalletPayment, Step]],
        now: datetime,
    ) -> None:
        """The payments, what the outside is told of them, and what people should look at."""
        changes = [(seen, step.payment) for seen, step in steps if seen != step.payment]
        await wallet_payments.save(connection, changes)
        facts = [
            fact_of(step.payment, step.told, self._terms.source)
            for _, step in steps
            if step.told is not None
        ]
        await outbox.add(connection, facts)
        for fact in facts:
            telemetry.bound(telemetry.WALLET_PAYMENTS, fact.type).inc()
        reviewed = [(seen, after) for seen, after in changes if _is_news(seen, after)]
        for _, after in reviewed:
            log.error("wallet_payment_review", payment=after.payment_id, review=after.review)
        seen_by = self._terms.told_to
        await notices.add(connection, seen_by, *(self._notice(one, now) for _, one in reviewed))

    def _notice(self, payment: WalletPayment, now: datetime) -> Notice:
        details = {
            "payment": payment.payment_id,
            "code": payment.review,
            "amount": format_minor(payment.amount_minor, payment.currency),
            "currency": payment.currency,
        }
        kind = NoticeKind.WALLET_PAYMENT
        said = notices.clean(details)
        return Notice(kind=kind, at=now, source=self._terms.source, details=said)

    def _initiation(self, message: Message) -> Initiation:
        terms = self._terms
        return initiation_of(message, source=terms.source, source_id=terms.source_id)


def _refuse_other(
    payment: WalletPayment, asked: Initiation, message: Message, now: datetime
) -> None:
    """Raise MessageRefusedError for another payment under the same id, or of the far future."""
    if payment.request_hash != asked.request_hash:
        raise MessageRefusedError("payment_id: another payment has it already")
    if message.time > now + LARGEST_LEAD:
        raise MessageRefusedError("time: is more than a day ahead")


def _looked_at(payment: WalletPayment) -> WalletPayment:
    return replace(payment, review=None)


def _is_news(seen: WalletPayment, after: WalletPayment) -> bool:
    return after.review is not None and after.review != seen.review
