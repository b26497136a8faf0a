"""Tilda's form webhook: what a site sends for an order or a lead.

The payment comes in three shapes, depending on the settings of the site:

1. a form with JSON in one field: `payment={"sys":"…","systranid":"…","orderid":"…","amount":"…"}`
2. the whole body as JSON: `{"Email":"…","payment":{"sys":"…",…}}`
3. a form with brackets: `payment[orderid]=7&payment[amount]=5000&payment[products][0]=…`

It has no signature, time, status or currency. An order is paid only if it names a transaction at a
real payment system. A form without a payment is a lead.

Checked on 2026-11-15 against https://help-ru.tilda.cc/forms/webhook
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from paidonce.errors import MalformedError
from paidonce.providers import read
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import EventFields
from paidonce.providers.parsing import MAX_FIELDS, form_group, parse_form, parse_object

PAID: Final = "order.paid"
ORDERED: Final = "order.created"
LEAD: Final = "lead"
MAX_PING_BYTES: Final = 1_024

_JSON_MARKS: Final = frozenset({"payment", "tranid", "formid"})
_EMAIL_NAMES: Final = frozenset({"email", "e-mail"})
_NO_TRANSACTION: Final = frozenset({"", "0"})
_NO_SYSTEM: Final = "none"


class TildaForm(NamedTuple):
    """A parsed form. Its key, if it has one, begins with `form:` or `lead:`."""

    fields: EventFields
    key: str | None


def form_parameters(delivery: Delivery) -> read.Object | None:
    """Return the top level of a form in any shape, None if it is not one. Raises MalformedError."""
    if delivery.is_form:
        return delivery.form
    body = delivery.json
    if "external_payment_id" in body or body.keys().isdisjoint(_JSON_MARKS):
        return None
    if len(body) > MAX_FIELDS:
        raise MalformedError(f"the form has over {MAX_FIELDS} fields")
    return body


def read_form(parameters: read.Object, currency: str) -> TildaForm:
    """Read a form. Raises MalformedError."""
    payment, email = _payment(parameters), _email(parameters)
    if not payment:
        return TildaForm(EventFields(LEAD, None, email=email), _lead_key(parameters))
    order, transaction = read.text(payment, "orderid"), _transaction(payment)
    fields = EventFields(
        type=ORDERED if transaction is None else PAID,
        payment_id=transaction,
        order=order,
        amount=read.number(payment, "amount"),
        currency=currency,
        email=email,
    )
    if order is None and transaction is None:
        return TildaForm(fields, _lead_key(parameters))
    return TildaForm(fields, f"form:{order or ''}:{transaction or '0'}")


def paid_transaction(parameters: read.Object) -> str | None:
    """Return the transaction that paid the order of a form, if any. Raises MalformedError."""
    return _transaction(_payment(parameters))


def is_ping(body: bytes, is_key: Callable[[str], bool]) -> bool:
    """Whether the body is `test=test`, alone or with an API key, as a form or as JSON."""
    if len(body) > MAX_PING_BYTES:
        return False
    try:
        fields = parse_object(body) if body.lstrip().startswith(b"{") else parse_form(body)
    except MalformedError:
        return False
    if fields.pop("test", None) != "test":
        return False
    return all(isinstance(value, str) and is_key(value) for value in fields.values())


def _payment(parameters: read.Object) -> read.Object:
    """Return the payment in whatever shape it has; empty if there is none."""
    whole = parameters.get("payment")
    flat = form_group(parameters, "payment")
    if not whole:
        return flat
    if flat:
        raise MalformedError("the payment is sent in two shapes")
    if isinstance(whole, str):
        return parse_object(whole.encode())
    if not isinstance(whole, dict):
        raise MalformedError("payment is not an object")
    return whole


def _transaction(payment: read.Object) -> str | None:
    """Return the transaction that paid the order; None if it is not paid yet."""
    transaction = (read.text(payment, "systranid") or "").strip()
    system = (read.text(payment, "sys") or "").strip().lower()
    return None if transaction in _NO_TRANSACTION or system == _NO_SYSTEM else transaction


def _lead_key(parameters: read.Object) -> str | None:
    transmission = read.text(parameters, "tranid")
    return None if transmission is None else f"lead:{transmission}"


def _email(parameters: read.Object) -> str | None:
    """Return the first valid address in a field with a name such as "email"."""
    values = (value for name, value in parameters.items() if name.lower() in _EMAIL_NAMES)
    return next(filter(None, map(read.valid_email, values)), None)
