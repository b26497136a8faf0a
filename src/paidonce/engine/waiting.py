"""Stored events made ready to be settled again, from their raw bytes."""

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from paidonce.domain.events import Code, EventId, EventStatus, Ignored, Outcome, PaymentEvent
from paidonce.engine.confirming import APPROVED
from paidonce.engine.items import MAX_MESSAGE, Request, Rules, Source, Waiting
from paidonce.errors import RefusedError
from paidonce.providers.contract import Confirmation, Delivery, Identity, Meaning, Thin
from paidonce.store.due import Claimed, Lane
from paidonce.telemetry import logger

log = logger(__name__)

Answer = PaymentEvent | Ignored | Outcome
"""What a gateway says that an event means, or what became of asking."""
Answers = Mapping[EventId, Answer]
NOBODY_ASKED: Final[Answers] = MappingProxyType({})


def waiting_items(
    claimed: Iterable[Claimed],
    rules: Rules,
    preset: Outcome | None = None,
    answers: Answers = NOBODY_ASKED,
) -> list[Waiting]:
    """What the claimed events say, or their gateways. They were verified when they arrived.

    Events of a source that is not configured here are left out. With a preset outcome they are not
    even read.
    """
    return [
        _waiting(one, rules.sources[one.source_id], preset, answers.get(one.event_id))
        for one in claimed
        if one.source_id in rules.sources
    ]


def _waiting(
    claimed: Claimed, source: Source, preset: Outcome | None, answer: Answer | None
) -> Waiting:
    identity = Identity(key="", fingerprint=b"", type="")
    event: Meaning = Ignored(Code.INTERNAL, "was not read")
    if preset is None:
        delivery = Delivery(claimed.headers, claimed.body, claimed.received_at)
        try:
            identity = source.provider.identify(delivery)
            event = source.provider.translate(delivery)
        except RefusedError as refusal:
            preset = Outcome(EventStatus.FAILED_FINAL, Code.MALFORMED, str(refusal)[:MAX_MESSAGE])
        except Exception:
            log.exception("translate_failed", webhook_event_id=str(claimed.event_id))
            fault = "reading it failed; the log has the details"
            preset = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
    lane = Lane.ASK if isinstance(event, Thin) else claimed.lane
    if isinstance(event, Confirmation):
        event = APPROVED  # or it would not have been stored to be settled
    if isinstance(event, Thin):
        match answer:
            case Outcome():
                preset = answer
            case PaymentEvent() | Ignored():
                event = answer
    return Waiting(
        event_id=claimed.event_id,
        source=source,
        request=Request(claimed.request_id, None, time.monotonic(), claimed.is_test),
        received_at=claimed.received_at,
        identity=identity,
        event=event,
        attempts=claimed.attempts,
        faults=claimed.faults,
        waits_on=claimed.waits_on,
        lane=lane,
        status=claimed.status,
        error_code=claimed.error_code,
        signature_method=claimed.signature_method,
        preset=preset,
    )
