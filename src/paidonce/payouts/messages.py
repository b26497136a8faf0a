"""Messages about payments out of a wallet: written to the outbox, and read from the bus.

Any program may write to a bus, so messages are validated.
"""

from typing import Any, Final
from uuid import UUID

from paidonce.bus.model import Message, NewMessage
from paidonce.core.events import SourceId, WalletId
from paidonce.core.money import Money, money
from paidonce.errors import InvalidMessageError, InvalidMoneyError, MalformedError
from paidonce.payouts.model import Initiation, MessageType, WalletPayment
from paidonce.providers.parsing import parse_object
from paidonce.wallet.reservations import MAX_PAYMENT_ID, is_payment_id

WALLET_PAYMENT: Final = "wallet-payment"
GATEWAY_CALLBACK: Final = "gateway-callback"
CALLBACK_RECEIVED: Final = "ProviderCallbackReceived"


def new_message(payment: WalletPayment, message_type: MessageType) -> NewMessage:
    """The message about the current version of a payment."""
    names = ["payment_id", "wallet_id", "amount", "currency", "status", "transaction_id", "source"]
    if payment.failure is not None:
        names.append("failure")
    return NewMessage(
        aggregate_type=WALLET_PAYMENT,
        key=payment.payment_id,
        type=message_type,
        version=payment.version,
        payload={name: getattr(payment, name) for name in names},
        occurred_at=payment.updated_at,
    )


def read_initiation(message: Message, source: str, source_id: SourceId) -> Initiation:
    """The request of a PaymentInitiated. Raises InvalidMessageError."""
    fields = read_fields(message)
    if message.version != 1:
        raise InvalidMessageError("a PaymentInitiated is version 1 of its payment")
    if fields.get("source") not in (None, source):
        raise InvalidMessageError("source: this service pays through another one; leave it out")
    amount = read_money(fields)
    if amount.amount_minor == 0:
        raise InvalidMessageError("amount: give one above zero")
    return Initiation(
        read_payment_id(message, fields),
        WalletId(_read_uuid(fields, "wallet_id")),
        amount.amount_minor,
        amount.currency,
        source_id,
        message.time,
    )


def read_callback_id(message: Message) -> UUID:
    """The callback of a ProviderCallbackReceived. Raises InvalidMessageError."""
    return _read_uuid(read_fields(message), "callback_id")


def read_fields(message: Message) -> dict[str, Any]:
    """The JSON object of a message. Raises InvalidMessageError."""
    try:
        return parse_object(message.body)
    except MalformedError as error:
        raise InvalidMessageError(str(error)) from None


def read_payment_id(message: Message, fields: dict[str, Any]) -> str:
    """The payment id, which is also the key. Raises InvalidMessageError."""
    payment_id = fields.get("payment_id")
    if not isinstance(payment_id, str) or not is_payment_id(payment_id):
        raise InvalidMessageError(f"payment_id: give 1 to {MAX_PAYMENT_ID} printable characters")
    if payment_id != message.key:
        raise InvalidMessageError("payment_id: has to be the key of the message")
    return payment_id


def read_money(fields: dict[str, Any]) -> Money:
    """The amount and its currency. Raises InvalidMessageError."""
    amount, currency = fields.get("amount"), fields.get("currency")
    if not isinstance(amount, str) or not isinstance(currency, str):
        raise InvalidMessageError("amount, currency: give strings, such as 990.00 and RUB")
    try:
        return money(amount, currency)
    except InvalidMoneyError as error:
        raise InvalidMessageError(f"amount: {error}") from None


def _read_uuid(fields: dict[str, Any], name: str) -> UUID:
    try:
        return UUID(fields[name])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise InvalidMessageError(f"{name}: give a UUID") from None
