"""Verifying stored deliveries again, with the time at which they arrived (OPS-4)."""

import time
from enum import StrEnum

from uuid_utils.compat import uuid7

from paidonce.domain.events import DEFERRED, Code, EventId, PaymentEvent
from paidonce.engine.items import Incoming, Request, Source
from paidonce.errors import (
    InvalidSignatureError,
    MalformedError,
    NotApprovedError,
    RefusedError,
    TimestampExpiredError,
)
from paidonce.providers.contract import Confirmation, Delivery, Thin, key_digest
from paidonce.store.reprocessing import Stored
from paidonce.telemetry import logger

log = logger(__name__)


class Signature(StrEnum):
    """What can be said of a stored delivery's signature now."""

    VERIFIED = "verified"
    UNCHECKED = "could not be checked any more"
    NONE = "none"  # its gateway does not sign


def delivery_of(stored: Stored) -> Delivery:
    """The request as it arrived, as far as it was kept."""
    return Delivery(stored.headers, stored.body, stored.received_at)


def verified_again(source: Source, stored: Stored) -> Signature:
    """Verify a stored delivery as if it arrived, at the time at which it did.

    What was accepted then is not refused now: its secret may be retired. What was refused has to be
    authentic by what is configured now; only that it came late is forgiven, where that was why.
    Raises RefusedError.
    """
    is_accepted = stored.key is not None
    try:
        source.provider.verify(delivery_of(stored))
    except TimestampExpiredError:
        if not is_accepted and stored.error_code != Code.TIMESTAMP_EXPIRED:
            raise
    except RefusedError:
        if not is_accepted:
            raise
        return Signature.UNCHECKED
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        if not is_accepted:
            raise InvalidSignatureError("it cannot be verified; the log has the details") from None
        return Signature.UNCHECKED
    return Signature.VERIFIED if source.provider.is_signed else Signature.NONE


def taken_in(source: Source, stored: Stored) -> Incoming:
    """Refused evidence as an event of its own: the same bytes, the time at which they arrived.

    It has to be verified before. Raises RefusedError when it cannot be read, or is a question that
    nobody waits for any more.
    """
    delivery = delivery_of(stored)
    try:
        identity = source.provider.identify(delivery)
        event = source.provider.translate(delivery)
    except RefusedError:
        raise
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        raise MalformedError("it cannot be read; the log has the details") from None
    if isinstance(event, Confirmation):
        raise NotApprovedError("its gateway does not wait for an answer any more")
    is_handled = source.has_handlers and isinstance(event, PaymentEvent)
    return Incoming(
        event_id=EventId(uuid7()),
        source=source,
        request=Request(stored.request_id, stored.remote_address, time.monotonic(), stored.is_test),
        delivery=delivery,
        identity=identity,
        key=(source.id, key_digest(identity.key)),
        event=event,
        preset=DEFERRED if is_handled or isinstance(event, Thin) else None,
        is_delivery=False,
    )
