"""Senders of unsigned deliveries: who goes first to a lookup, and how much of one sender may wait.

Anybody can send an unsigned delivery, and each costs requests to the gateway, at a limited rate. So
what exists here goes before what does not, senders whose news the gateway has confirmed go before
others, and what one sender sends is spread over time.
"""

from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from paidonce.core.events import Code, SourceId
from paidonce.db.queries import Connection, load_queries
from paidonce.processing.items import QueuedEvent, Result
from paidonce.processing.waiting import Lane, Waiting

QUERIES: Final = load_queries(__file__)
PROVEN_DAYS: Final = 30
"""How long a sender stays proven without news."""
MAX_WRONG: Final = 3
MAX_WRONG_PROVEN: Final = 10
"""How many contradicted deliveries since its last news make a sender a stranger."""
MAX_OF_STRANGER: Final = 60
MAX_OF_SENDER: Final = 10_000
"""How many deliveries of one sender may wait: of a stranger, and of any other."""
MAX_OF_SUBJECT: Final = 5
"""How many deliveries about one payment or order go first at a time. One lookup tells all of it."""
SPACING_S: Final = 0.5
"""How far apart the deliveries of one stranger are due."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a delivery among those that wait for a lookup."""

    waiting: Waiting
    delay: timedelta
    is_full: bool
    """Whether too many of its sender wait already."""


async def find_turn(
    connection: Connection,
    source_id: SourceId,
    sender: str,
    names: tuple[str | None, str | None],
    arriving: int,
    is_listed: bool,
) -> Turn:
    """The turn of an unsigned delivery that names this payment and this order.

    `arriving` more deliveries of the sender are about to be stored. A listed sender is proven.
    """
    payment_id, order = names
    row = await QUERIES["standing"].row(
        connection,
        source_id=source_id,
        sender=sender,
        payment_id=payment_id,
        payment_subject=_digest(source_id, "payment", payment_id),
        order=order,
        order_subject=_digest(source_id, "order", order),
        max_of_sender=MAX_OF_SENDER,
        max_of_subject=MAX_OF_SUBJECT,
        proven_days=PROVEN_DAYS,
    )
    assert row is not None
    wrong, subject = row["wrong"], row["subject"]
    is_proven = is_listed or (row["was_right"] and wrong < MAX_WRONG_PROVEN)
    is_suspect = not is_proven and wrong >= MAX_WRONG
    # Strangers take no place of a proven sender, and what waits among strangers takes none at all.
    taken = row["first_of_subject"] if is_proven else row["known_of_subject"]
    is_known = subject is not None and taken < MAX_OF_SUBJECT
    lane = _lane(is_known and not is_suspect, is_proven)
    number = row["of_sender"] + arriving
    # A suspect may be a proxy, with the gateway behind it: what exists is not cut off, for a few.
    is_trusted = is_proven or (is_known and (not is_suspect or row["of_subject"] < MAX_OF_SUBJECT))
    limit = MAX_OF_SENDER if is_trusted else MAX_OF_STRANGER
    delay_s = 0.0 if is_trusted else number * SPACING_S
    waiting = Waiting(lane=lane, sender=sender, subject=subject)
    return Turn(waiting, timedelta(seconds=delay_s), number >= limit)


async def record_answers(connection: Connection, results: list[Result]) -> None:
    """Record what the gateway said about unsigned deliveries: it confirms news, or contradicts."""
    for result in results:
        item, decision = result.item, result.decision
        if not isinstance(item, QueuedEvent) or item.waiting.sender is None:
            continue
        is_wrong = result.outcome is not None and result.outcome.code is Code.PROVIDER_MISMATCH
        payment = decision.payment if decision else None
        is_news = (
            payment is not None and decision is not None and payment != decision.payment_before
        )
        if is_wrong or is_news:
            await QUERIES["record_answer"].run(
                connection,
                source_id=item.source.id,
                sender=item.waiting.sender,
                is_wrong=is_wrong,
            )


def _lane(is_known: bool, is_proven: bool) -> Lane:
    if is_known:
        return Lane.FIRST if is_proven else Lane.KNOWN
    return Lane.PROVEN if is_proven else Lane.STRANGER


def _digest(source_id: SourceId, kind: str, name: str | None) -> bytes | None:
    if name is None:
        return None
    text = f"{source_id}:{kind}:{name}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
