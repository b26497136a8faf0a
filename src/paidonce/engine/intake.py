"""From a delivery's bytes to its verdict: verify, identify, translate, and join the group."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from uuid_utils.compat import uuid7

from paidonce import telemetry
from paidonce.crashpoints import Point, passing
from paidonce.domain.addresses import unit_of
from paidonce.domain.events import DEFERRED, EventId, PaymentEvent, Says
from paidonce.engine.confirming import Approver
from paidonce.engine.evidence import EvidenceLimit, StaleLimit
from paidonce.engine.group import Group
from paidonce.engine.items import Incoming, Refused, Request, Result, Source, Verdict
from paidonce.engine.statistics import Dropped
from paidonce.errors import (
    DatabaseAwayError,
    IntakeFullError,
    InvalidSignatureError,
    MalformedError,
    RefusedError,
    TimestampExpiredError,
)
from paidonce.providers.contract import DIGEST_SIZE, Confirmation, Delivery, Thin, key_digest
from paidonce.telemetry import logger

log = logger(__name__)

LOOK_AGAIN_S: Final = 60
"""How long a repeated "look" is taken for one."""


class Intake:
    """The engine's door. It knows nothing of HTTP."""

    def __init__(
        self, group: Group, approver: Approver, sources: Mapping[str, Source], is_queued: bool
    ) -> None:
        self._group = group
        self._approver = approver
        self._preset = DEFERRED if is_queued else None
        self._evidence = EvidenceLimit()
        self._stale = StaleLimit()
        self.dropped = Dropped()
        self.sources = sources

    async def receive(
        self, source: Source, headers: Mapping[str, str], body: bytes, request: Request
    ) -> Verdict:
        """Accept a delivery; returns when what it says is committed.

        Raises RefusedError (kept as evidence; it says whether the delivery is authentic),
        IntakeFullError or DatabaseAwayError: a stale delivery that could not be kept is not
        refused, so that it comes again.
        """
        telemetry.bound(telemetry.RECEIVED, source.provider.name).inc()
        delivery = Delivery(headers, body, datetime.now(UTC))
        event_id = EventId(uuid7())
        is_authentic = False
        try:
            source.provider.verify(delivery)
            is_authentic = source.provider.is_signed
            passing(Point.VERIFIED)
            identity = source.provider.identify(delivery)
            event = source.provider.translate(delivery)
            if isinstance(event, Confirmation):
                event = await self._approver.approve(source, event)
        except DatabaseAwayError:
            raise
        except Exception as error:
            refusal = _refusal(error, is_authentic, request)
            is_stale = isinstance(refusal, TimestampExpiredError)
            is_authentic |= is_stale
            refusal.is_authentic |= is_authentic
            refused = Refused(event_id, source, request, delivery, refusal, is_authentic)
            await (self._keep_stale(refused) if is_stale else self._keep(refused))
            raise refusal from None
        key = (source.id, key_digest(identity.key))
        is_handled = source.has_handlers and isinstance(event, PaymentEvent)
        preset = DEFERRED if is_handled or isinstance(event, Thin) else self._preset
        item = Incoming(event_id, source, request, delivery, identity, key, event, preset)
        return await self._accept(item)

    async def _accept(self, item: Incoming) -> Verdict:
        verdict = await self._group.submit(item)
        if isinstance(verdict.item, Refused):  # for what only the database knew
            raise verdict.item.refusal
        if verdict.result is Result.DUPLICATE and isinstance(item.event, Thin):
            await self._look_again(item)
        return verdict

    async def _look_again(self, item: Incoming) -> None:
        """An event that says only "look" may say it again because there is more to see (INB-2).

        So it is stored once more as an event of its own, at most once in a while.
        """
        period = int(item.delivery.received_at.timestamp() // LOOK_AGAIN_S)
        await self._group.submit(_renamed(item, f"look:{item.identity.key}:{period}"))

    async def _keep(self, refused: Refused) -> None:
        """Keep the evidence, unless there is too much of it or nowhere to put it."""
        provider = refused.source.provider.name
        if not refused.signature_valid:
            telemetry.INVALID_SIGNATURES.labels(provider).inc()
            unit = unit_of(refused.request.remote_address or "")
            if not self._evidence.allows(unit, len(refused.delivery.body)):
                self._drop(refused)
                return
        try:
            verdict = await self._group.submit(refused)
        except (DatabaseAwayError, IntakeFullError):
            self._drop(refused)
        else:
            if verdict.event_id is None:  # the database would not have it
                self._drop(refused)

    def _drop(self, refused: Refused) -> None:
        """Nothing is kept of it but that it came."""
        telemetry.EVIDENCE_DROPPED.labels(refused.source.provider.name).inc()
        self.dropped.count(refused)

    async def _keep_stale(self, refused: Refused) -> None:
        """Keep what is authentic but late: it may be money. Once, however often it comes (PRV-8).

        Raises IntakeFullError or DatabaseAwayError.
        """
        provider = refused.source.provider.name
        telemetry.STALE.labels(provider).inc()
        digest = _stale_digest(refused)
        if not self._stale.allows(digest):
            self._drop(refused)
            return
        try:
            for item in _stale_items(refused, digest):
                await self._group.submit(item)
        except BaseException:
            self._stale.forget(digest)
            raise


def _refusal(error: Exception, is_authentic: bool, request: Request) -> RefusedError:
    """Why the delivery is refused. A fault in reading it must not be the sender's way to a 500."""
    if isinstance(error, RefusedError):
        return error
    log.error("provider_failed", request_id=request.id, exc_info=error)
    if is_authentic:
        return MalformedError("it could not be read; the log has the details")
    return InvalidSignatureError("it could not be verified; the log has the details")


def _stale_items(refused: Refused, digest: bytes) -> list[Incoming | Refused]:
    """What is kept of a stale delivery: evidence, with the money that it tells of (PRV-8).

    Where the gateway can be asked, it is, since what that says is not stale. That question has a
    key of its own, so that it does not stand for what the gateway sends in time.
    """
    source, delivery = refused.source, refused.delivery
    try:
        event = source.provider.translate(delivery)
        identity = source.provider.identify(delivery)
    except Exception:
        return [refused]  # it is refused anyway
    if isinstance(event, Thin):
        key = (source.id, digest)
        item = Incoming(refused.event_id, source, refused.request, delivery, identity, key, event)
        return [_renamed(item, f"stale:{digest.hex()}"), refused]
    if isinstance(event, PaymentEvent) and _tells_only_of_money(event):
        return [replace(refused, identity=identity, event=event)]
    return [refused]


def _tells_only_of_money(event: PaymentEvent) -> bool:
    """Whether it says what was paid. What went back is left to what comes in time."""
    is_paid = event.says is Says.PAID and event.amount is not None
    return is_paid and event.refunded is None and event.refund is None


def _renamed(item: Incoming, key: str) -> Incoming:
    """The same delivery as another event, which uses up no nonce and is counted as none."""
    return replace(
        item,
        event_id=EventId(uuid7()),
        identity=replace(item.identity, key=key, nonce=None),
        key=(item.source.id, key_digest(key)),
        preset=DEFERRED,
        is_delivery=False,
    )


def _stale_digest(refused: Refused) -> bytes:
    """By the body, which is signed whatever the gateway; headers may not be."""
    source = refused.source.id.to_bytes(8)
    return blake2b(source + refused.delivery.body, digest_size=DIGEST_SIZE).digest()
