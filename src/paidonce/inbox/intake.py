"""From the bytes of a delivery to its result: verify, identify, translate, commit."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from paidonce import errors
from paidonce.clock import CLOCK
from paidonce.core.events import DEFERRED, EventId, EventType, Outcome, PaymentEvent, SourceId
from paidonce.db.pool import Database
from paidonce.guard.addresses import sender_unit
from paidonce.ids import new_id
from paidonce.inbox.confirmation import approve
from paidonce.inbox.evidence import MAX_REMEMBERED, EvidenceLimits, StoredOnce
from paidonce.inbox.evidence_room import EvidenceRoom
from paidonce.inbox.group import Group
from paidonce.processing.items import (
    BatchResult,
    Incoming,
    Rejected,
    Request,
    Result,
    ResultKind,
    Source,
)
from paidonce.processing.outcomes import report
from paidonce.providers.contract import (
    DIGEST_SIZE,
    ConfirmationRequest,
    Delivery,
    LookupRequired,
    key_digest,
)
from paidonce.providers.parsing import without_unstorable_escapes
from paidonce.queue.senders import find_turn
from paidonce.runtime.bounded import Bounded
from paidonce.runtime.clock_watch import ClockWatch
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.settings.sections import LimitsSettings
from paidonce.statistics.counting import DroppedDeliveries
from paidonce.telemetry import logger, metrics
from paidonce.telemetry.metrics import Dropped

log = logger(__name__)

NO_ADDRESS: Final = "socket"
"""The sender of deliveries through a Unix socket."""
LOOK_AGAIN_S: Final = 60
"""Repeated events that require a lookup cause one lookup in this time."""


@dataclass(frozen=True, slots=True)
class _Contradiction:
    """What is remembered of a conflict, or of a replayed nonce, that is stored as evidence."""

    event_id: EventId
    outcome: Outcome | None
    refusal: errors.RejectedError | None


class Intake:
    """Receives deliveries. It does not depend on HTTP."""

    def __init__(
        self,
        group: Group,
        database: Database,
        sources: Mapping[str, Source],
        is_queued: bool,
        evidence: EvidenceLimits | None = None,
        clock_watch: ClockWatch | None = None,
    ) -> None:
        self._group = group
        self._database = database
        self._forced_outcome = DEFERRED if is_queued else None
        self._evidence = evidence or EvidenceLimits(EvidenceRoom(database, LimitsSettings()))
        self._expired = StoredOnce()
        self._malformed = StoredOnce()
        self._arriving: Counter[tuple[SourceId, str]] = Counter()
        self._contradictions: Bounded[bytes, _Contradiction] = Bounded(MAX_REMEMBERED)
        self._clock_watch = clock_watch or ClockWatch(database)
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
        metrics.bound(metrics.RECEIVED, *source.labels).inc()
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
        if isinstance(event, LookupRequired) and not source.provider.is_signed:
            return await self._accept_unsigned(item)
        return await self._accept(item)

    async def _accept_unsigned(self, item: Incoming) -> Result:
        """Accept a delivery that anybody can have sent. Raises SenderQueueFullError."""
        sender = (item.source.id, sender_unit(item.request.remote_address or "") or NO_ADDRESS)
        arriving = self._arriving[sender]
        self._arriving[sender] += 1
        try:
            return await self._accept(await self._take_turn(item, sender[1], arriving))
        finally:
            self._arriving[sender] -= 1
            if not self._arriving[sender]:
                del self._arriving[sender]

    async def _take_turn(self, item: Incoming, sender: str, arriving: int) -> Incoming:
        """The delivery with its place among those that wait for a lookup."""
        source, identity = item.source, item.identity
        names = (identity.payment_id, identity.order)
        async with self._database.connection() as connection:
            turn = await find_turn(
                connection, source.id, sender, names, arriving, source.is_restricted
            )
        if turn.is_full:
            metrics.bound(metrics.LOOKUPS_REFUSED, *source.labels).inc()
            raise errors.SenderQueueFullError("too many of its sender wait for a lookup")
        return replace(item, waiting=turn.waiting, delay=turn.delay)

    async def _accept(self, item: Incoming) -> Result:
        result = self._repeated(item) if self._contradictions else None
        if result is None:
            result = await self._group.submit(item)
            if isinstance(result.item, Rejected) or result.kind is ResultKind.CONFLICT:
                self._remember(item, result)
        if isinstance(result.item, Rejected):  # by a check in the database
            raise result.item.refusal
        if result.kind is ResultKind.DUPLICATE and isinstance(item.event, LookupRequired):
            await self._look_again(item)
        return result

    def _repeated(self, item: Incoming) -> Result | None:
        """The result of the same delivery, if it was kept as evidence: a conflict or a replay.

        It is not stored again: whoever has captured one can send it for ever.
        """
        known = self._contradictions.get(_digest_of(item))
        if known is None:
            return None
        kind, refusal = ResultKind.CONFLICT, known.refusal
        result = Result(item, kind, known.event_id, known.outcome)
        if refusal is not None:
            source, request, delivery = item.source, item.request, item.delivery
            replay = Rejected(known.event_id, source, request, delivery, refusal, True)
            result = replace(result, item=replay, kind=ResultKind.FAILED_FINAL)
        self._drop(item, Dropped.REPEATED)
        report(BatchResult(item.received_at, [result]))
        return result

    def _remember(self, item: Incoming, result: Result) -> None:
        if result.event_id is not None:
            refusal = result.item.refusal if isinstance(result.item, Rejected) else None
            known = _Contradiction(result.event_id, result.outcome, refusal)
            self._contradictions.put(_digest_of(item), known)

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
        if not refused.signature_valid:
            metrics.bound(metrics.INVALID_SIGNATURES, *refused.source.labels).inc()
            if excess := await self._evidence.excess(refused):
                self._drop(refused, excess)
                return
        digest = _body_digest(refused)
        if refused.signature_valid and not self._malformed.allows(digest):
            self._drop(refused, Dropped.REPEATED)
            return
        try:
            result = await self._group.submit(refused)
        except (errors.DatabaseUnavailableError, errors.QueueFullError):
            self._malformed.forget(digest)
            self._drop(refused, Dropped.UNAVAILABLE)
            if refused.event is not None:
                raise
        else:
            if result.event_id is None:  # it was not stored
                self._malformed.forget(digest)
                self._drop(refused, Dropped.UNAVAILABLE)

    def _drop(self, item: Incoming | Rejected, reason: Dropped) -> None:
        """Count a delivery that is not stored."""
        metrics.bound(metrics.EVIDENCE_DROPPED, *item.source.labels, reason).inc()
        self.dropped.count(item)

    async def _keep_expired(self, refused: Rejected) -> None:
        """Store an authentic but expired delivery once: it may be money (PRV-8).

        Raises QueueFullError or DatabaseUnavailableError.
        """
        metrics.bound(metrics.STALE, *refused.source.labels).inc()
        digest = _body_digest(refused)
        if not self._expired.allows(digest):
            self._drop(refused, Dropped.REPEATED)
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
    delivery = refused.delivery
    delivery = replace(delivery, body=without_unstorable_escapes(delivery.body))
    try:
        ids = refused.source.provider.unreadable_payment(delivery)
    except Exception:
        return refused
    if not ids or any("\ufffd" in one.value for one in ids):
        return refused
    return replace(refused, event=PaymentEvent(EventType.UNREADABLE, ids))


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


def _body_digest(item: Incoming | Rejected) -> bytes:
    """A digest of the body, which every gateway signs; headers may not be signed."""
    source = item.source.id.to_bytes(8)
    return blake2b(source + item.delivery.body, digest_size=DIGEST_SIZE).digest()


def _digest_of(item: Incoming) -> bytes:
    """A digest of a verified delivery: what is signed in its headers is in its key or its nonce."""
    nonce = (item.identity.nonce or "").encode()
    return blake2b(item.key[1] + _body_digest(item) + nonce, digest_size=DIGEST_SIZE).digest()
