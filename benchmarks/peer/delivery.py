"""One delivery as it arrived, the data for its log line, and its answer."""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

import orjson
from pydantic import BaseModel

PROVIDER = "tilda"


class Payload(BaseModel):
    """The fields of the body that the handler reads."""

    external_payment_id: str
    status: str
    event_id: str | None = None
    amount: Decimal | None = None
    currency: str | None = None
    email: str | None = None
    plan_id: str | None = None
    paid_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A parsed body beside its raw bytes and its signature."""

    raw: bytes
    signature: str
    document: dict[str, Any]
    payload: Payload
    payload_hash: str

    @property
    def event_key(self) -> str:
        """The key by which a repeated delivery is recognised."""
        return f"{PROVIDER}:{self.payload.event_id or self.payload_hash}"

    def is_signed_with(self, secret: bytes) -> bool:
        """Whether the header carries the lower-case hex HMAC-SHA256 of the raw body."""
        expected = hmac.new(secret, self.raw, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, self.signature)


def parse_delivery(raw: bytes, signature: str) -> Delivery:
    """Steps 0 and 1. Raises ValueError if the body is not JSON or lacks a required field."""
    document = orjson.loads(raw)
    return Delivery(
        raw=raw,
        signature=signature,
        document=document,
        payload=Payload.model_validate(document),
        payload_hash=hashlib.sha256(PROVIDER.encode() + raw).hexdigest(),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to the provider: an HTTP code and one word."""

    http_code: int
    result: str


@dataclass(slots=True)
class Trail:
    """The fields of the log line of a delivery, filled in while it is handled."""

    request_id: str = field(default_factory=lambda: uuid4().hex)
    started_at: float = field(default_factory=perf_counter)
    webhook_event_id: UUID | None = None
    signature_valid: bool | None = None
    user_id: UUID | None = None
    payment_status_before: str | None = None
    payment_status_after: str | None = None
    subscription_end_before: datetime | None = None
    subscription_end_after: datetime | None = None
    applied_before: bool | None = None
    applied_after: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
