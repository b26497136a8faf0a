"""Test events of Creem."""

from typing import Any
from uuid import uuid4

from paidonce.domain.money import money
from paidonce.providers.contract import Sample
from paidonce.providers.creem_events import CHECKOUT_COMPLETED, REFUND_CREATED
from paidonce.providers.samples import refuse_words


def composed(sample: Sample) -> dict[str, Any]:
    """An event that says what the sample asks for. Raises InvalidRequestError."""
    refuse_words(sample.status, "failed", "canceled")
    is_refund = sample.status == "refunded"
    return {
        "id": sample.event_id or f"evt_{uuid4().hex}",
        "eventType": REFUND_CREATED if is_refund else CHECKOUT_COMPLETED,
        "created_at": int(sample.sent_at.timestamp() * 1000),
        "object": _refund(sample) if is_refund else _checkout(sample, sample.status),
    }


def _checkout(sample: Sample, status: str) -> dict[str, Any]:
    return {
        "object": "checkout",
        "request_id": sample.order,
        "order": {**_charge(sample), "transaction": sample.payment_id, "status": status},
        "customer": {"email": sample.email},
        "metadata": {"plan_id": sample.plan_id},
        "mode": "test",
    }


def _refund(sample: Sample) -> dict[str, Any]:
    """All of it, back."""
    checkout, charge = _checkout(sample, "paid"), _charge(sample)
    return {
        "object": "refund",
        "id": f"ref_{sample.payment_id}",
        "status": "succeeded",
        "refund_amount": charge["amount"],
        "refund_currency": charge["currency"],
        "transaction": {**charge, "id": sample.payment_id},
        "order": checkout["order"],
        "checkout": checkout,
        "customer": checkout["customer"],
        "mode": "test",
    }


def _charge(sample: Sample) -> dict[str, Any]:
    paid = money(sample.amount, sample.currency)
    return {"amount": paid.amount_minor, "currency": paid.currency}
