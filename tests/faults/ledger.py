"""What was sent, what was acknowledged, and what the database must therefore show.

Every experiment writes into a ledger what it delivers and what is answered. `check` compares it
with the rows: what was acknowledged is there and applied once, what was not is there whole or not
at all. What is wrong is told by the name of the event or payment.
"""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import asyncpg

from tests.support.service import paid

SIBLINGS_EVERY: Final = 10  # so often a payment is told of by a second event
MONTH: Final = timedelta(days=30)
CLOCKS_APART: Final = timedelta(seconds=5)
MAX_TOLD: Final = 20
SETTLE_TIMEOUT_S: Final = 120.0
LOOK_AGAIN_S: Final = 0.05
WORDS: Final = ("success", "duplicate", "accepted")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """An event as a gateway sends it."""

    event: str
    payment: str
    email: str
    body: bytes


@dataclass(slots=True)
class Told:
    """What was answered to the deliveries of one event."""

    words: Counter[str] = field(default_factory=Counter)
    event_ids: set[str] = field(default_factory=set)


class Ledger:
    """The events of one experiment, in the order in which they were first sent."""

    def __init__(self, name: str, emails: Sequence[str], seed: int = 0) -> None:
        self.name = name
        self.emails = emails
        self.began_at = datetime.now(UTC)
        self.said: list[Said] = []
        self.told: dict[str, Told] = {}
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._dice = random.Random(seed)

    def new(self, email: str | None = None) -> Said:
        """Another event: mostly of another payment, sometimes a sibling of the last one's."""
        number = len(self.said)
        if number % SIBLINGS_EVERY == SIBLINGS_EVERY - 1 and email is None:
            payment, email = self.said[-1].payment, self.said[-1].email
        else:
            payment, email = f"{self.name}-{number}", email or self._dice.choice(self.emails)
        event = f"{self.name}-event-{number}"
        body = json.dumps(paid(payment, event_id=event, email=email)).encode()
        self.said.append(Said(event, payment, email, body))
        self.told[event] = Told()
        return self.said[-1]

    def earlier(self) -> Said | None:
        """One that was sent before, acknowledged or not."""
        return self._dice.choice(self.said) if self.said else None

    def acknowledge(self, said: Said, body: bytes, *, known: bool) -> None:
        """A 200 was answered; known: to a delivery that began after an earlier 200."""
        answer = json.loads(body)
        word, told = answer["status"], self.told[said.event]
        told.words[word] += 1
        told.event_ids.add(answer["event_id"])
        firsts = told.words.total() - told.words["duplicate"]
        if word not in WORDS or firsts > 1 or (known and word != "duplicate"):
            self.wrong.append(f"{said.event} was answered {word!r}; all its answers: {told}")
        if len(told.event_ids) > 1:
            self.wrong.append(f"{said.event} is several events: {told.event_ids}")

    def refuse(self, said: Said, http: int, headers: Mapping[str, str]) -> None:
        """Another status was answered: only 503 is right, and it says when to come again."""
        self.refused[str(http)] += 1
        if http != 503:
            self.wrong.append(f"{said.event} was answered {http}")
        elif not headers.get("retry-after", "").isdigit():
            self.wrong.append(f"{said.event} was answered 503 without Retry-After")

    def lose(self) -> None:
        """The connection broke before an answer came."""
        self.refused["no answer"] += 1

    @property
    def acknowledged(self) -> set[str]:
        return {event for event, told in self.told.items() if told.words}

    @property
    def deliveries(self) -> int:
        """How often anything was delivered, whatever came of it."""
        return sum(told.words.total() for told in self.told.values()) + self.refused.total()

    async def check(
        self, database_url: str, *, finished: bool, after: str = "all", in_time: bool = True
    ) -> "Found":
        """Compare with the rows. Finished: all were acknowledged, and nothing may be left to do.

        Without `in_time` the database's clock was false: when periods begin and end is not checked.
        Raises AssertionError that names what is wrong; returns what was found.
        """
        acknowledged = self.acknowledged
        found = await look(database_url)
        wrong = [*self.wrong, *_wrong_events(self, found, acknowledged, finished)]
        wrong += _wrong_payments(self, found)
        if in_time:
            wrong += _wrong_subscriptions(self, found)
        if finished and (left := self.told.keys() - acknowledged):
            wrong.append(f"never acknowledged: {sorted(left)[:MAX_TOLD]}")
        told = "\n".join(wrong[:MAX_TOLD])
        assert not wrong, f"{len(wrong)} wrong in {self.name} after {after}:\n{told}"
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of source `payments`, in one snapshot."""

    events: Sequence[Row]
    payments: Sequence[Row]
    subscriptions: Sequence[Row]
    messages: Sequence[Row]

    @property
    def stored(self) -> set[str]:
        return {row["event"] for row in self.events}

    @property
    def applied(self) -> int:
        return sum(row["applied_at"] is not None for row in self.payments)


# Keys and events in both directions: neither may be there without the other.
_EVENTS: Final = """
SELECT e.id, k.event_id AS key_of, e.external_event_id AS event, e.external_payment_id AS payment,
       e.status, e.error_code, e.raw_body, e.processed_at,
       EXISTS (SELECT 1 FROM event_queue AS q WHERE q.event_id = e.id) AS is_due
  FROM (SELECT * FROM webhook_events
         WHERE source_id = (SELECT id FROM sources WHERE name = 'payments')
           AND (status <> 'FAILED_FINAL' OR error_code = 'PAYLOAD_CONFLICT')) AS e
  FULL JOIN (SELECT * FROM event_keys
              WHERE source_id = (SELECT id FROM sources WHERE name = 'payments')) AS k
         ON k.event_id = e.id
"""
_PAYMENTS: Final = """
SELECT p.id, i.external_id AS payment, p.status, p.captured_minor, p.applied_at, p.review,
       p.period_start, p.period_end, p.subscription_id, u.email
  FROM (SELECT * FROM payments
         WHERE source_id = (SELECT id FROM sources WHERE name = 'payments')) AS p
  FULL JOIN (SELECT * FROM payment_ids
              WHERE source_id = (SELECT id FROM sources WHERE name = 'payments')) AS i
         ON i.payment_id = p.id
  LEFT JOIN users AS u ON u.id = p.user_id
"""
_SUBSCRIPTIONS: Final = """
SELECT s.id, u.email, s.status, s.current_period_end AS period_end
  FROM subscriptions AS s JOIN users AS u ON u.id = s.user_id
"""
_MESSAGES: Final = "SELECT aggregate_id AS payment_id FROM outbox WHERE type = 'payment.applied'"


async def look(database_url: str) -> Found:
    """All rows of one instant."""
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return Found(
                events=list(map(dict, await connection.fetch(_EVENTS))),
                payments=list(map(dict, await connection.fetch(_PAYMENTS))),
                subscriptions=list(map(dict, await connection.fetch(_SUBSCRIPTIONS))),
                messages=list(map(dict, await connection.fetch(_MESSAGES))),
            )
    finally:
        await connection.close()


_WAITING: Final = """
SELECT external_event_id AS event, status, error_code, attempts,
       EXISTS (SELECT 1 FROM event_queue AS q WHERE q.event_id = e.id) AS is_due
  FROM webhook_events AS e
 WHERE source_id = (SELECT id FROM sources WHERE name = 'payments')
   AND status IN ('VALIDATED', 'FAILED_RETRYABLE')
"""


async def waiting(database_url: str) -> list[Row]:
    """The events of source `payments` that are not final."""
    connection = await asyncpg.connect(database_url)
    try:
        return list(map(dict, await connection.fetch(_WAITING)))
    finally:
        await connection.close()


async def processed(database_url: str) -> None:
    """Return when no event waits any more. Raises AssertionError that names those that do."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while left := await waiting(database_url):
        told = "\n".join(map(str, left[:MAX_TOLD]))
        assert time.monotonic() < deadline_s, f"{len(left)} events still wait:\n{told}"
        await asyncio.sleep(LOOK_AGAIN_S)


def _wrong_events(
    ledger: Ledger, found: Found, acknowledged: set[str], finished: bool
) -> Iterator[str]:
    said = {one.event: one for one in ledger.said}
    rows = _grouped(found.events, "event")
    for event in acknowledged - rows.keys():
        yield f"{event} was acknowledged ({ledger.told[event].words}) and is lost"
    for event, copies in rows.items():
        if event not in said:
            yield f"nobody sent {copies[0]}"
        elif len(copies) > 1:
            yield f"{event} is there {len(copies)} times: {[str(row['id']) for row in copies]}"
        else:
            yield from _wrong_event(said[event], ledger.told[event], copies[0], finished)


def _wrong_event(said: Said, told: Told, row: Row, finished: bool) -> Iterator[str]:
    if row["id"] is None or row["key_of"] is None:
        yield f"{said.event} has a key or an event, not both: {dict(row)}"
        return
    if row["raw_body"] != said.body or row["payment"] != said.payment:
        yield f"{said.event} holds other bytes than were sent"
    if told.event_ids - {str(row["id"])}:
        yield f"{said.event} is stored as {row['id']}, and was acknowledged as {told.event_ids}"
    if row["status"] != "PROCESSED" and (finished or told.words["success"] or not row["is_due"]):
        state = (row["status"], row["error_code"], "due" if row["is_due"] else "not due")
        yield f"{said.event} is {state} after {dict(told.words)}"


def _wrong_payments(ledger: Ledger, found: Found) -> Iterator[str]:
    said = {one.payment: one for one in ledger.said}
    processed = {row["payment"] for row in found.events if row["status"] == "PROCESSED"}
    messages = Counter(row["payment_id"] for row in found.messages)
    rows = _grouped(found.payments, "payment")
    for payment in processed - rows.keys():
        yield f"{payment} has a processed event and is no payment"
    for payment, copies in rows.items():
        if len(copies) > 1 or payment not in said:
            yield f"{payment} is there {len(copies)} times, or nobody sent it: {copies}"
        elif payment not in processed:
            yield f"{payment} has no processed event: {dict(copies[0])}"
        else:
            yield from _wrong_payment(said[payment], copies[0], messages)
    if unknown := messages.keys() - {row["id"] for row in found.payments}:
        yield f"messages of payments that are not there: {unknown}"


def _wrong_payment(said: Said, row: Row, messages: Counter[Any]) -> Iterator[str]:
    state = (row["status"], row["captured_minor"], row["email"], row["review"])
    if state != ("SUCCEEDED", 99_000, said.email, None):
        yield f"{said.payment} is {state}, not succeeded with 990.00 of {said.email}"
    if row["applied_at"] is None or row["subscription_id"] is None:
        yield f"{said.payment} is not applied"
    elif row["period_end"] - row["period_start"] != MONTH:
        yield f"{said.payment} granted {row['period_end'] - row['period_start']}"
    if messages[row["id"]] != 1:
        yield f"{said.payment} has {messages[row['id']]} payment.applied in the outbox"


def _wrong_subscriptions(ledger: Ledger, found: Found) -> Iterator[str]:
    """The periods granted to a user follow each other without gap or overlap, up to the end."""
    granted = _grouped((row for row in found.payments if row["applied_at"]), "email")
    ends = {row["email"]: row for row in found.subscriptions}
    for email, payments in granted.items():
        periods = sorted((row["period_start"], row["period_end"]) for row in payments)
        if not ledger.began_at - CLOCKS_APART <= periods[0][0] <= datetime.now(UTC) + CLOCKS_APART:
            yield f"{email}'s first period starts at {periods[0][0]}"
        for before, after in pairwise(periods):
            if before[1] != after[0]:
                yield f"{email}'s period that ends at {before[1]} is followed by {after}"
        right = periods[0][0] + len(periods) * MONTH
        if email not in ends or ends[email]["period_end"] != right:
            yield f"{email} paid {len(periods)} times up to {right} and has {ends.get(email)}"


def _grouped(rows: Iterable[Row], column: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return groups
