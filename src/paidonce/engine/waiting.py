"""Stored events made ready to be settled again, from their raw bytes."""

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from paidonce.domain.events import Code, EventStatus, Ignored, Outcome
from paidonce.engine.items import Request, Rules, Source, Waiting
from paidonce.errors import RefusedError
from paidonce.providers.contract import Delivery, Identity
from paidonce.store.due import Claimed

FOREIGN_DELAY: Final = timedelta(hours=1)
"""After how long an event whose source is not configured here is due again."""


def waiting_items(claimed: Iterable[Claimed], rules: Rules) -> list[Waiting]:
    """What the claimed events say. They were verified when they arrived.

    Events of a source that is not configured here are left out; see `foreign`.
    """
    return [
        _waiting(one, rules.sources[one.source_id])
        for one in claimed
        if one.source_id in rules.sources
    ]


def foreign(claimed: Iterable[Claimed], rules: Rules) -> list[Claimed]:
    """The events that cannot be read, because their source is not configured here any more."""
    return [one for one in claimed if one.source_id not in rules.sources]


def _waiting(claimed: Claimed, source: Source) -> Waiting:
    delivery = Delivery(claimed.headers, claimed.body, claimed.received_at)
    request = Request(claimed.request_id, None, time.monotonic())
    try:
        identity = source.provider.identify(delivery)
        event = source.provider.translate(delivery)
        preset = None
    except RefusedError as refusal:
        identity = Identity(key="", fingerprint=b"", type="")
        event = Ignored(Code.MALFORMED, str(refusal))
        preset = Outcome(EventStatus.FAILED_FINAL, Code.MALFORMED, str(refusal))
    return Waiting(
        event_id=claimed.event_id,
        source=source,
        request=request,
        received_at=claimed.received_at,
        identity=identity,
        event=event,
        attempts=claimed.attempts,
        waits_on=claimed.waits_on,
        preset=preset,
    )
