"""What the query service shows, from events that come late, twice and in any order."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from paidonce.bus import groups
from paidonce.bus.consumer import Consumer
from paidonce.bus.model import Message
from paidonce.bus.postgres import PostgresBus
from paidonce.bus.relay import Relay
from paidonce.core.callbacks import GatewayStatus
from paidonce.db.pool import Database
from paidonce.errors import InvalidMessageError
from paidonce.payouts import views
from paidonce.payouts.gateway import GatewayAnswer
from paidonce.runtime.leader import Leader
from tests.payouts.harness import initiated, message, open_harness

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
LIVES = (
    ("PaymentInitiated",),
    ("PaymentInitiated", "PaymentProcessing"),
    ("PaymentInitiated", "PaymentFailed"),
    ("PaymentInitiated", "PaymentProcessing", "PaymentFailed"),
    ("PaymentInitiated", "PaymentProcessing", "PaymentCompleted"),
    ("PaymentInitiated", "PaymentProcessing", "PaymentFailed", "PaymentRecovered"),
)
STATUSES = {
    "PaymentInitiated": "INITIATED",
    "PaymentProcessing": "PROCESSING",
    "PaymentFailed": "FAILED",
    "PaymentCompleted": "COMPLETED",
    "PaymentRecovered": "COMPLETED",
}


def events_of(payment_id: str, life: Sequence[str], gaps_s: Sequence[int]) -> list[Message]:
    """What is told of a payment; some of it at the same instant."""
    said = {"payment_id": payment_id, "amount": "10.00", "currency": "RUB"}
    times = [NOW + timedelta(seconds=sum(gaps_s[: turn + 1])) for turn in range(len(life))]
    return [
        message(kind, payment_id, said, version=version, time=at)
        for version, (kind, at) in enumerate(zip(life, times, strict=True), 1)
    ]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Message], list[list[Message]]]:
    """The events of some payments, and the batches in which they come: shuffled, repeated."""
    gaps = st.lists(st.integers(0, 2), min_size=4, max_size=4)
    number = draw(st.integers(1, 4))
    lives = [draw(st.sampled_from(LIVES)) for _ in range(number)]
    run = uuid7().hex
    events = [
        event
        for one, life in enumerate(lives)
        for event in events_of(f"{run}-{one}", life, draw(gaps))
    ]
    repeated = events + draw(st.lists(st.sampled_from(events), max_size=8))
    order = draw(st.permutations(repeated))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
    bounds = [0, *cuts, len(order)]
    return events, [order[a:b] for a, b in pairwise(bounds)]


def expected(events: Sequence[Message]) -> dict[str, tuple[str, int, datetime]]:
    """An independent model: what a payment came to is the last that is told of it."""
    last: dict[str, tuple[str, int, datetime]] = {}
    for event in sorted(events, key=lambda one: one.version):
        last[event.key] = (STATUSES[event.type], event.version, event.time)
    return last


async def shown(database: Database, names: Sequence[str]) -> dict[str, Any]:
    async with database.connection() as connection:
        rows = await connection.fetch(
            "SELECT * FROM payment_views WHERE payment_id = ANY ($1)", list(names)
        )
    return {row["payment_id"]: (row["status"], row["version"], row["updated_at"]) for row in rows}


@hypothesis_settings(max_examples=60)
@given(given=deliveries())
async def test_duplicated_and_shuffled_messages_agree_with_a_model(
    module_database: Database, given: tuple[list[Message], list[list[Message]]]
) -> None:
    """QRY-1: each batch as the consumer takes it, with the ids that it has taken before."""
    await _compare(module_database, *given)


@hypothesis_settings(max_examples=2_000)
@given(given=deliveries())
async def test_duplicated_and_shuffled_messages_soak(
    module_database: Database,
    pytestconfig: pytest.Config,
    given: tuple[list[Message], list[list[Message]]],
) -> None:
    """QRY-1"""
    if not pytestconfig.getoption("--soak"):
        pytest.skip("a long run")
    await _compare(module_database, *given)


async def _compare(
    database: Database, events: Sequence[Message], batches: Sequence[Sequence[Message]]
) -> None:
    for batch in batches:
        async with database.transaction() as connection:
            new = await groups.claim(connection, views.GROUP, {one.id for one in batch})
            await views.consume(connection, [one for one in batch if one.id in new])
    wanted = expected(events)
    assert await shown(database, list(wanted)) == wanted


async def test_an_older_message_never_replaces_a_newer_one(
    database: Database,
) -> None:
    """QRY-1 S1: not even when nobody remembers that it was taken."""
    first, second, third = events_of("p", LIVES[4], [0, 1, 1])
    for batch in ([first], [second, third], [second], [first], [first, second]):
        async with database.transaction() as connection:
            await views.consume(connection, batch)
    assert await shown(database, ["p"]) == {"p": ("COMPLETED", 3, third.time)}


async def test_unknown_types_are_ignored_and_invalid_messages_rejected(
    database: Database,
) -> None:
    """QRY-1: events that are to come one day, and those that never should."""
    said = {"payment_id": "p", "amount": "1.00", "currency": "RUB"}
    async with database.transaction() as connection:
        await views.consume(connection, [message("PaymentRenamed", "p", said)])
        for wrong in ({"amount": 1}, {"currency": "?"}, {"payment_id": "q"}):
            with pytest.raises(InvalidMessageError):
                await views.consume(connection, [message("PaymentFailed", "p", said | wrong)])
    assert await shown(database, ["p"]) == {}


async def test_views_are_rebuilt_from_the_outbox(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QRY-1: page by page, damaged or missing, while the consumer is behind."""
    monkeypatch.setattr(views, "REBUILD_PAGE", 2)
    payouts = await open_harness(database)
    wallet = await payouts.wallet()
    names = [f"p-{number}" for number in range(5)]
    await payouts.consume(*(initiated(name, wallet) for name in names))
    for number, name in enumerate(names[:3]):
        await payouts.caller.save(name, GatewayAnswer(f"tx-{number}", GatewayStatus.SUCCEEDED))
    async with database.connection() as connection:
        await Relay(PostgresBus(), Leader(database)).run_once(connection)
    consumer = Consumer(
        PostgresBus(),
        database,
        name=views.GROUP,
        aggregate_types=views.AGGREGATE_TYPES,
        consume=views.consume,
    )
    await consumer.run_once()
    await consumer.close()
    right = await shown(database, names)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM payment_views WHERE payment_id = 'p-1'")
        await connection.execute(
            "UPDATE payment_views SET status = 'COMPLETED', version = 99 WHERE payment_id = 'p-4'"
        )
    assert await shown(database, names) != right
    done: list[int] = []
    assert await views.rebuild(database, done.append) == 5
    assert done == [2, 4, 5]
    assert await shown(database, names) == right
    await payouts.caller.close()


@pytest.mark.parametrize(
    ("kind", "version", "later_s"),
    [
        ("PaymentCompleted", 2, 5),
        ("PaymentCompleted", 3, -5),
        ("PaymentInitiated", 3, 5),
    ],
    ids=["version", "time", "status"],
)
async def test_a_message_that_is_older_in_one_respect_is_ignored(
    database: Database, kind: str, version: int, later_s: int
) -> None:
    """QRY-1: each guard of the statement alone, with the others content."""
    said = {"payment_id": "p", "amount": "10.00", "currency": "RUB"}
    known = message("PaymentProcessing", "p", said, version=2, time=NOW)
    at = NOW + timedelta(seconds=later_s)
    for batch in ([known], [message(kind, "p", said, version=version, time=at)]):
        async with database.transaction() as connection:
            await views.consume(connection, batch)
    assert await shown(database, ["p"]) == {"p": ("PROCESSING", 2, NOW)}
