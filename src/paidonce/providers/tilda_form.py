"""Tilda's form webhook: what a site sends for an order or a lead. A part of provider `tilda`.

Its payment part comes in three shapes, as the site is set up:

1. a form with JSON in one field: `payment={"sys":"…","systranid":"…","orderid":"…","amount":"…"}`
2. the whole body as JSON: `{"Email":"…","payment":{"sys":"…",…}}`
3. a form with brackets: `payment[orderid]=7&payment[amount]=5000&payment[products][0]=…`

There is no signature, time, status or currency. Only an order that names a transaction at a real
payment system was paid. A form without a payment part is a lead.

Checked on 2026-11-15 against https://help-ru.tilda.cc/forms/webhook
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from paidonce.domain.email import is_email
from paidonce.errors import MalformedError
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import Said, number, text
from paidonce.providers.form_strict import MAX_FIELDS, group, is_form, parse_form
from paidonce.providers.json_strict import parse_object

PAID: Final = "order.paid"
ORDERED: Final = "order.created"
LEAD: Final = "lead"
MAX_PING_BYTES: Final = 1_024

_JSON_MARKS: Final = frozenset({"payment", "tranid", "formid"})
_EMAIL_NAMES: Final = frozenset({"email", "e-mail"})
_NO_TRANSACTION: Final = frozenset({"", "0"})
_NO_SYSTEM: Final = "none"


class Form(NamedTuple):
    """A form that was read. Its key, if it has one of its own, begins with `form:` or `lead:`."""

    said: Said
    key: str | None


def parameters(delivery: Delivery) -> Mapping[str, Any] | None:
    """The top level of a form in any shape, None if it is no form. Raises MalformedError."""
    if is_form(delivery):
        return delivery.read(_parsed)
    body = delivery.json
    if "external_payment_id" in body or body.keys().isdisjoint(_JSON_MARKS):
        return None
    if len(body) > MAX_FIELDS:
        raise MalformedError(f"the form has over {MAX_FIELDS} fields")
    return body


def read_form(fields: Mapping[str, Any], currency: str) -> Form:
    """What the form says. Raises MalformedError."""
    payment = _payment_part(fields)
    if not payment:
        return Form(Said(LEAD, None, email=_email(fields)), _lead_key(fields))
    order = text(payment.get("orderid"), "payment.orderid")
    transaction = _transaction(payment)
    said = Said(
        type=ORDERED if transaction is None else PAID,
        payment_id=transaction,
        order=order,
        amount=number(payment.get("amount"), "payment.amount"),
        currency=currency,
        email=_email(fields),
    )
    if order is None and transaction is None:
        return Form(said, _lead_key(fields))
    return Form(said, f"form:{order or ''}:{transaction or '0'}")


def is_ping(body: bytes, is_key: Callable[[str], bool]) -> bool:
    """Whether the body is `test=test`, alone or beside an API key, as a form or as JSON."""
    if len(body) > MAX_PING_BYTES:
        return False
    try:
        fields = parse_object(body) if body.lstrip().startswith(b"{") else parse_form(body)
    except MalformedError:
        return False
    if fields.pop("test", None) != "test":
        return False
    return all(isinstance(value, str) and is_key(value) for value in fields.values())


def _parsed(delivery: Delivery) -> dict[str, str]:
    return parse_form(delivery.body)


def _payment_part(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The payment in whatever shape it comes, empty if there is none."""
    whole = fields.get("payment")
    flat = group(fields, "payment")
    if not whole:
        return flat
    if flat:
        raise MalformedError("the payment comes in two shapes")
    if isinstance(whole, str):
        return parse_object(whole.encode())
    if not isinstance(whole, dict):
        raise MalformedError("payment is not an object")
    return whole


def _transaction(payment: Mapping[str, Any]) -> str | None:
    """The transaction by which the order was paid; None if it was not, or not yet."""
    transaction = (text(payment.get("systranid"), "payment.systranid") or "").strip()
    system = (text(payment.get("sys"), "payment.sys") or "").strip().lower()
    return None if transaction in _NO_TRANSACTION or system == _NO_SYSTEM else transaction


def _lead_key(fields: Mapping[str, Any]) -> str | None:
    transmission = text(fields.get("tranid"), "tranid")
    return None if transmission is None else f"lead:{transmission}"


def _email(fields: Mapping[str, Any]) -> str | None:
    """The first field that is named like an address and is one."""
    return next(_emails(fields), None)


def _emails(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name.lower() in _EMAIL_NAMES and isinstance(value, str) and is_email(value.strip()):
            yield value.strip()
