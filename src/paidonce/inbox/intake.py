"""From the bytes of a delivery to its result: verify, identify, translate, commit."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from paidonce import errors
from paidonce.clock import CLOCK
from paidonce.core.events import DEFERRED, EventId, EventType, PaymentEvent
from paidonce.db.pool import Database
from paidonce.guard.addresses import sender_unit
from paidonce.ids import new_id
from paidonce.inbox.confirmation import approve
from paidonce.inbox.evidence import EvidenceLimit, ExpiredLimit
from paidonce.inbox.group import Group
from paidonce.processing.items import Incoming, Rejected, Request, Result, ResultKind, Source
from paidonce.providers.contract import (
    DIGEST_SIZE,
    ConfirmationRequest,
    Delivery,
    LookupRequired,
    key_digest,
)
from paidonce.runtime.clock_watch import ClockWatch
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.statistics.counting import DroppedDeliveries
from paidonce.telemetry import logger, metrics

log = logger(__name__)

LOOK_AGAIN_S: Final = 60
"""Repeated events that require a lookup cause one lookup in this time."""


class Intake:
    """Receives deliveries. It does not depend on HTTP."""

    def __init__(
        self,
        group: Group,
        database: Database,
        sources: Mapping[str, Source],
        is_queued: bool,
        clock_watch: ClockWatch | None = None,
    ) -> None:
        self._group = group
        self._database = database
        self._forced_outcome = DEFERRED if is_queued else None
        self._clock_watch = clock_watch or ClockWatch(database)
        self._evidence = EvidenceLimit()
        self._expired = ExpiredLimit()
        self.dropped = DroppedDeliveries()
        self.sources = sources

    async def receive(
        self, source: Source, headers: Mapping[str, str], body: bytes, request: Request
    ) -> Result:
        """Accept a delivery; returns after its event is committed.

        Raises RejectedError (the delivery is stored as evidence), QueueFullError or
        DatabaseUnavailableError. An expired delivery, or a malformed one that reports money, is not
        rejected if it cannot be stored, so the gateway sends it again.
        """
        metrics.bound(metrics.RECEIVED, source.provider.name).inc()
        if not CLOCK.is_certain:  # no delivery is judged by a wrong time
            await self._clock_watch.be_certain()
        delivery = Delivery(headers, body, CLOCK.now())
        event_id = EventId(new_id())
        is_authentic = False
        try:
            source.provider.verify(delivery)
            is_authentic = source.provider.is_signed
            maybe_crash(CrashPoint.VERIFIED)
            identity = source.provider.identify(delivery)
            event = source.provider.translate(delivery)
            if isinstance(event, ConfirmationRequest):
                event = await approve(self._database, source, event)
        except errors.DatabaseUnavailableError:
            raise
        except Exception as error:
            refusal = _refusal(error, is_authentic, request)
            is_expired = isinstance(refusal, errors.TimestampExpiredError)
            is_authentic |= is_expired
            refusal.is_authentic |= is_authentic
            refused = Rejected(event_id, source, request, delivery, refusal, is_authentic)
            if is_expired:
                await self._keep_expired(refused)
            else:
                await self._keep(_with_unreadable_payment(refused))
            raise refusal from None
        key = (source.id, key_digest(identity.key))
        is_handled = source.has_handlers and isinstance(event, PaymentEvent)
        forced_outcome = (
            DEFERRED if is_handled or isinstance(event, LookupRequired) else self._forced_outcome
        )
        item = Incoming(event_id, source, request, delivery, identity, key, event, forced_outcome)
        return await self._accept(item)

    async def _accept(self, item: Incoming) -> Result:
        result = await self._group.submit(item)
        if isinstance(result.item, Rejected):  # by a check in the database
            raise result.item.refusal
        if result.kind is ResultKind.DUPLICATE and isinstance(item.event, LookupRequired):
            await self._look_again(item)
        return result

    async def _look_again(self, item: Incoming) -> None:
        """Store a repeated event that requires a lookup once more, so that it is looked up (INB-2).

        There may be more to find now. At most once in LOOK_AGAIN_S.
        """
        period = int(item.delivery.received_at.timestamp() // LOOK_AGAIN_S)
        await self._group.submit(_renamed(item, f"look:{item.identity.key}:{period}"))

    async def _keep(self, refused: Rejected) -> None:
        """Store the evidence, unless there is too much of it or the database is unavailable.

        Evidence of money has to be stored: raises QueueFullError or DatabaseUnavailableError.
        """
        provider = refused.source.provider.name
        if not refused.signature_valid:
            metrics.INVALID_SIGNATURES.labels(provider).inc()
            unit = sender_unit(refused.request.remote_address or "")
            if not self._evidence.allows(unit, len(refused.delivery.body)):
                self._drop(refused)
                return
        try:
            result = await self._group.submit(refused)
        except (errors.DatabaseUnavailableError, errors.QueueFullError):
            self._drop(refused)
            if refused.event is not None:
                raise
        else:
            if result.event_id is None:  # it was not stored
                self._drop(refused)

    def _drop(self, refused: Rejected) -> None:
        """Count a delivery that is not stored."""
        metrics.EVIDENCE_DROPPED.labels(refused.source.provider.name).inc()
        self.dropped.count(refused)

    async def _keep_expired(self, refused: Rejected) -> None:
        """Store an authentic but expired delivery once: it may be money (PRV-8).

        Raises QueueFullError or DatabaseUnavailableError.
        """
        provider = refused.source.provider.name
        metrics.STALE.labels(provider).inc()
        digest = _expired_digest(refused)
        if not self._expired.allows(digest):
            self._drop(refused)
            return
        try:
            for item in _items_of_expired(refused, digest):
                await self._group.submit(item)
        except BaseException:
            self._expired.forget(digest)
            raise


def _refusal(error: Exception, is_authentic: bool, request: Request) -> errors.RejectedError:
    """The reason of the rejection. A fault of a provider must not become a 500."""
    if isinstance(error, errors.RejectedError):
        return error
    log.error("provider_failed", request_id=request.id, exc_info=error)
    if is_authentic:
        return errors.MalformedError("it cannot be read; the log has the details")
    return errors.InvalidSignatureError("it cannot be verified; the log has the details")


def _items_of_expired(refused: Rejected, digest: bytes) -> list[Incoming | Rejected]:
    """What is stored of an expired delivery: evidence, with its payment event (PRV-8).

    If the gateway can be asked, a lookup is stored too. It has its own key, so that it does not
    occupy the key of a delivery in time.
    """
    source, delivery = refused.source, refused.delivery
    try:
        event = source.provider.translate(delivery)
        identity = source.provider.identify(delivery)
    except Exception:
        return [_with_unreadable_payment(refused)]
    if isinstance(event, LookupRequired):
        key = (source.id, digest)
        item = Incoming(refused.event_id, source, refused.request, delivery, identity, key, event)
        return [_renamed(item, f"expired:{digest.hex()}"), refused]
    if isinstance(event, PaymentEvent) and _is_payment_only(event):
        return [replace(refused, identity=identity, event=event)]
    return [refused]


def _with_unreadable_payment(refused: Rejected) -> Rejected:
    """The malformed delivery with the payment that it reports as paid, if that can be read.

    The payment is listed for review. Nothing else of the delivery counts.
    """
    if not refused.signature_valid:
        return refused
    try:
        ids = refused.source.provider.unreadable_payment(refused.delivery)
    except Exception:
        return refused
    return replace(refused, event=PaymentEvent(EventType.UNREADABLE, ids)) if ids else refused


def _is_payment_only(event: PaymentEvent) -> bool:
    """Whether it reports a payment and no refund. Refunds must arrive in time."""
    is_paid = event.event_type is EventType.PAID and event.amount is not None
    return is_paid and event.refunded is None and event.refund is None


def _renamed(item: Incoming, key: str) -> Incoming:
    """The same delivery as another event, without a nonce and not counted as a delivery."""
    return replace(
        item,
        event_id=EventId(new_id()),
        identity=replace(item.identity, key=key, nonce=None),
        key=(item.source.id, key_digest(key)),
        forced_outcome=DEFERRED,
        is_delivery=False,
    )


def _expired_digest(refused: Rejected) -> bytes:
    """A digest of the body, which every gateway signs; headers may not be signed."""
    source = refused.source.id.to_bytes(8)
    return blake2b(source + refused.delivery.body, digest_size=DIGEST_SIZE).digest()
