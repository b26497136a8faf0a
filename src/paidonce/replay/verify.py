"""Verifies and reads stored deliveries again, as of the time at which they arrived (OPS-4)."""

import time

from paidonce import errors
from paidonce.core.events import DEFERRED, Code, EventId, PaymentEvent
from paidonce.ids import new_id
from paidonce.processing.items import Incoming, Request, Source
from paidonce.providers.contract import ConfirmationRequest, LookupRequired, key_digest
from paidonce.queue.store import StoredEvent
from paidonce.replay.model import ReprocessKind, ReprocessResult, SignatureCheck
from paidonce.telemetry import logger

log = logger(__name__)


def verify(source: Source, stored: StoredEvent) -> SignatureCheck:
    """Verify a stored delivery as of the time at which it arrived.

    A delivery that was accepted is not refused now: its secret may have been removed since. One
    that was refused must be authentic by the current settings; only its lateness is ignored, if it
    was refused for that. Raises RejectedError.
    """
    is_accepted = stored.key is not None
    try:
        source.provider.verify(stored.delivery)
    except errors.TimestampExpiredError:
        if not is_accepted and stored.error_code != Code.TIMESTAMP_EXPIRED:
            raise
    except errors.RejectedError:
        if not is_accepted:
            raise
        return SignatureCheck.UNCHECKED
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        if not is_accepted:
            raise errors.InvalidSignatureError(
                "it cannot be verified; the log has the details"
            ) from None
        return SignatureCheck.UNCHECKED
    return SignatureCheck.VERIFIED if source.provider.is_signed else SignatureCheck.NONE


def verify_refused(
    source: Source, stored: StoredEvent
) -> ReprocessResult | tuple[Incoming, SignatureCheck]:
    """The event that refused evidence can become now, or why it stays refused."""
    if stored.conflicts_with is not None:
        message = f"it contradicts event {stored.conflicts_with}, which has the same key"
        return ReprocessResult(
            stored, ReprocessKind.REFUSED, code=Code.PAYLOAD_CONFLICT, message=message
        )
    try:
        signature = verify(source, stored)
        return _incoming(source, stored), signature
    except errors.RejectedError as refusal:
        return ReprocessResult(
            stored, ReprocessKind.REFUSED, code=refusal.code, message=str(refusal)
        )


def _incoming(source: Source, stored: StoredEvent) -> Incoming:
    """Verified evidence as a new event: the same bytes, the time at which they arrived.

    Raises RejectedError if it cannot be read, or if it asks for a confirmation, which is too late.
    """
    delivery = stored.delivery
    try:
        identity = source.provider.identify(delivery)
        event = source.provider.translate(delivery)
    except errors.RejectedError:
        raise
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        raise errors.MalformedError("it cannot be read; the log has the details") from None
    if isinstance(event, ConfirmationRequest):
        raise errors.NotApprovedError("its gateway does not wait for an answer any more")
    has_handlers = source.has_handlers and isinstance(event, PaymentEvent)
    return Incoming(
        event_id=EventId(new_id()),
        source=source,
        request=Request(stored.request_id, stored.remote_address, time.monotonic(), stored.is_test),
        delivery=delivery,
        identity=identity,
        key=(source.id, key_digest(identity.key)),
        event=event,
        forced_outcome=DEFERRED if has_handlers or isinstance(event, LookupRequired) else None,
        is_delivery=False,
    )


def needs_lookup(source: Source, stored: StoredEvent) -> bool:
    """Whether the event has to be looked up at its gateway."""
    try:
        return isinstance(source.provider.translate(stored.delivery), LookupRequired)
    except Exception:
        return False  # processing it reports the error
