"""The events of the payment service, as they are written and as they are read again.

Anybody may put messages on a bus: what is read is believed only as far as it can be checked.
"""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from paidonce.bus.messages import Message
from paidonce.domain.events import SourceId, WalletId
from paidonce.domain.money import Money, money
from paidonce.domain.payment_views import ShownPayment
from paidonce.domain.wallet_payments import (
    MAX_PAYMENT_ID,
    STATUS_AFTER,
    FactType,
    Initiation,
    WalletPayment,
    is_payment_id,
)
from paidonce.errors import InvalidMoneyError, MalformedError, MessageRefusedError
from paidonce.providers.json_strict import parse_object
from paidonce.store.outbox import Fact

WALLET_PAYMENT: Final = "wallet-payment"
GATEWAY_CALLBACK: Final = "gateway-callback"
CALLBACK_RECEIVED: Final = "ProviderCallbackReceived"
LARGEST_LEAD: Final = timedelta(days=1)
"""How far ahead of our clock an event may be: all that follows it is not before it in time."""


def fact_of(payment: WalletPayment, told: FactType, source: str) -> Fact:
    """What is told of the payment, which has just come to this version."""
    said = payment.said() | {"source": source}
    if payment.failure is not None:
        said["failure"] = payment.failure
    return Fact(
        about=WALLET_PAYMENT,
        key=payment.payment_id,
        type=told,
        version=payment.version,
        said=said,
        at=payment.updated_at,
    )


def initiation_of(message: Message, *, source: str, source_id: SourceId) -> Initiation:
    """The payment that a PaymentInitiated starts. Raises MessageRefusedError."""
    said = _object_of(message)
    if message.version != 1:
        raise MessageRefusedError("a PaymentInitiated is version 1 of its payment")
    named = said.get("source")
    if named not in (None, source):
        raise MessageRefusedError("source: this service pays by another one, or leave it out")
    amount = _money_of(said)
    if amount.amount_minor == 0:
        raise MessageRefusedError("amount: give one above zero")
    return Initiation(
        payment_id=_payment_id_of(message, said),
        wallet_id=_wallet_id_of(said),
        amount=amount,
        source_id=source_id,
    )


def callback_id_of(message: Message) -> UUID:
    """The callback that a ProviderCallbackReceived is of. Raises MessageRefusedError."""
    return _uuid(_object_of(message), "callback_id")


def shown_by(message: Message) -> ShownPayment | None:
    """What an event shows of its payment; None if it is of another kind.

    Raises MessageRefusedError.
    """
    if message.type not in set(FactType):
        return None
    said = _object_of(message)
    amount = _money_of(said)
    return ShownPayment(
        payment_id=_payment_id_of(message, said),
        status=STATUS_AFTER[FactType(message.type)],
        amount_minor=amount.amount_minor,
        currency=amount.currency,
        version=message.version,
        updated_at=message.time,
    )


def _object_of(message: Message) -> dict[str, Any]:
    try:
        return parse_object(message.body)
    except MalformedError as error:
        raise MessageRefusedError(str(error)) from None


def _payment_id_of(message: Message, said: dict[str, Any]) -> str:
    payment_id = said.get("payment_id")
    if not isinstance(payment_id, str) or not is_payment_id(payment_id):
        raise MessageRefusedError(f"payment_id: give 1 to {MAX_PAYMENT_ID} printable characters")
    if payment_id != message.key:
        raise MessageRefusedError("payment_id: is to be the message's key, which keeps its order")
    return payment_id


def _wallet_id_of(said: dict[str, Any]) -> WalletId:
    return WalletId(_uuid(said, "wallet_id"))


def _uuid(said: dict[str, Any], name: str) -> UUID:
    try:
        return UUID(said[name])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise MessageRefusedError(f"{name}: give a UUID") from None


def _money_of(said: dict[str, Any]) -> Money:
    amount, currency = said.get("amount"), said.get("currency")
    if not isinstance(amount, str) or not isinstance(currency, str):
        raise MessageRefusedError("amount, currency: give texts, such as 990.00 and RUB")
    try:
        return money(amount, currency)
    except InvalidMoneyError as error:
        raise MessageRefusedError(f"amount: {error}") from None
