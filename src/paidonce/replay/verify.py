"""Verifies and reads stored deliveries again, as of the time at which they arrived (OPS-4)."""

import time

from uuid_utils.compat import uuid7

from paidonce.core.events import DEFERRED, Code, EventId, PaymentEvent
from paidonce.errors import (
    InvalidSignatureError,
    MalformedError,
    NotApprovedError,
    RejectedError,
    TimestampExpiredError,
)
from paidonce.processing.items import Incoming, QueueName, Request, Rules, Source
from paidonce.providers.contract import ConfirmationRequest, LookupRequired, key_digest
from paidonce.replay.model import ReprocessKind, ReprocessResult, SignatureCheck, StoredEvent
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
    except TimestampExpiredError:
        if not is_accepted and stored.error_code != Code.TIMESTAMP_EXPIRED:
            raise
    except RejectedError:
        if not is_accepted:
            raise
        return SignatureCheck.UNCHECKED
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        if not is_accepted:
            raise InvalidSignatureError("it cannot be verified; the log has the details") from None
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
    except RejectedError as refusal:
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
    except RejectedError:
        raise
    except Exception as error:
        log.error("provider_failed", webhook_event_id=str(stored.event_id), exc_info=error)
        raise MalformedError("it cannot be read; the log has the details") from None
    if isinstance(event, ConfirmationRequest):
        raise NotApprovedError("its gateway does not wait for an answer any more")
    has_handlers = source.has_handlers and isinstance(event, PaymentEvent)
    return Incoming(
        event_id=EventId(uuid7()),
        source=source,
        request=Request(stored.request_id, stored.remote_address, time.monotonic(), stored.is_test),
        delivery=delivery,
        identity=identity,
        key=(source.id, key_digest(identity.key)),
        event=event,
        forced_outcome=DEFERRED if has_handlers or isinstance(event, LookupRequired) else None,
        is_delivery=False,
    )


def needs_lookup(stored: StoredEvent, rules: Rules) -> bool:
    """Whether the event has to be looked up at its gateway."""
    try:
        event = rules.sources[stored.source_id].provider.translate(stored.delivery)
    except Exception:
        return False  # processing it reports the error
    return isinstance(event, LookupRequired)


def queue_name(stored: StoredEvent, rules: Rules) -> QueueName:
    """The queue in which the event waits, if it must."""
    has_handlers = rules.sources[stored.source_id].has_handlers
    return QueueName.HOOKS if has_handlers else QueueName.PROCESS
