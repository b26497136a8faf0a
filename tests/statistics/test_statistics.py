"""The statistics say what a count of the whole history would say, without counting it."""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pytest
from uuid_utils.compat import uuid7

from paidonce.bootstrap.registration import register_source
from paidonce.bootstrap.services import Services
from paidonce.core.events import DEFERRED, EventId, EventStatus, SourceId
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.errors import ConflictError, InvalidSignatureError
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, Item, QueueName, Rejected, ResultKind, Source
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery
from paidonce.queue.claims import process_claimed
from paidonce.queue.store import Claim, Claimed
from paidonce.queue.worker import Worker
from paidonce.replay.reprocess import Reprocessor
from paidonce.statistics import counting
from paidonce.statistics.counting import MAX_FOLDED, Folding
from paidonce.statistics.model import Counts
from tests.support.batches import Plain, Stage, stage

STEPS: Final = 60
SEEDS: Final = range(4)
SOAK_SEEDS: Final = range(200)

Key = tuple[date, str, str]


@dataclass(frozen=True)
class Sealed(Plain):
    """A gateway that signs in another way."""

    def signature_method(self, delivery: Delivery) -> str:
        return "sealed"


@dataclass
class Shop:
    """What happens to deliveries, at random, and what of it only the sender knows."""

    stage: Stage
    sources: list[Source]
    processor: Processor
    worker: Worker
    linker: Linker
    luck: random.Random
    sent: list[Incoming] = field(default_factory=list)
    received: Counter[Key] = field(default_factory=Counter)
    duplicates: Counter[Key] = field(default_factory=Counter)

    def delivery(self) -> Incoming:
        """Of a user who is there, or one who may come; for now, or for later."""
        number = len(self.sent)
        email = f"user-{number % 7}@example.com"
        forced_outcome = DEFERRED if self.luck.random() < 0.2 else None
        amount = self.luck.choice([99_000, 99_000, 5])
        item = self.stage.paid(
            f"p-{number}", email=email, amount_minor=amount, forced_outcome=forced_outcome
        )
        source = self.luck.choice(self.sources)
        at = datetime.now(UTC) - timedelta(days=self.luck.randrange(9))
        key = (source.id, item.key[1])
        made = replace(item, source=source, key=key, delivery=_at(item.delivery, at))
        self.sent.append(made)
        return made

    def again(self) -> Incoming:
        """The same once more, or something else under its key."""
        first = self.luck.choice(self.sent)
        item = replace(first, event_id=EventId(uuid7()))
        if self.luck.random() < 0.5:
            return item
        return replace(item, identity=replace(item.identity, fingerprint=b"otherwise-------"))

    def refused(self) -> Rejected:
        item = self.delivery()
        self.sent.pop()
        refusal = InvalidSignatureError("it is not")
        return Rejected(item.event_id, item.source, item.request, item.delivery, refusal, False)

    async def batch(self) -> None:
        """Some deliveries together, as they arrive."""
        makers: list[Callable[[], Item]] = [self.delivery, self.delivery, self.refused]
        makers += [self.again] * bool(self.sent)
        items = [self.luck.choice(makers)() for _ in range(self.luck.randint(1, 8))]
        for result in (await self.processor.process(items)).results:
            assert isinstance(result.item, Incoming | Rejected)
            assert result.kind not in (ResultKind.LOCKED, ResultKind.NOT_STORED)
            key = _key(result.item)
            self.received[key] += 1
            self.duplicates[key] += result.kind is ResultKind.DUPLICATE

    async def process_due(self) -> None:
        async with self.stage.database.connection() as connection:
            await connection.execute("UPDATE event_queue SET run_at = now() - interval '1 second'")
        await self.worker.run_once()

    async def user_comes(self) -> None:
        await self.linker.create_user(f"user-{self.luck.randrange(7)}@example.com", "somebody")

    async def operator_retries(self) -> None:
        """An event that has ended is settled again, as a replay does it."""
        rows = await self.stage.rows(
            "SELECT * FROM webhook_events WHERE key IS NOT NULL AND conflicts_with IS NULL"
            " AND status IN ('DEAD_LETTER', 'FAILED_FINAL', 'PROCESSED') ORDER BY id"
        )
        if not rows:
            return
        row = self.luck.choice(rows)
        async with self.stage.database.transaction() as connection:
            claim = Claim(1, [_claimed(row)])
            await process_claimed(connection, claim, self.stage.rules)

    async def operator_takes_in(self) -> None:
        """A delivery that was refused is found authentic after all: nothing has arrived anew."""
        rows = await self.stage.rows(
            "SELECT id FROM webhook_events WHERE key IS NULL OR conflicts_with IS NOT NULL"
            " ORDER BY id"
        )
        if rows:
            reprocessor = Reprocessor(self.stage.database, self.stage.rules)
            with contextlib.suppress(ConflictError):
                await reprocessor.reprocess(self.luck.choice(rows)["id"], "somebody")

    async def fold(self) -> None:
        async with self.stage.database.connection() as connection:
            await counting.fold(connection, self.luck.randint(1, 20))

    async def step(self) -> None:
        steps = [self.batch] * 5
        steps += [self.process_due, self.user_comes, self.fold]
        steps += [self.operator_retries, self.operator_takes_in]
        await self.luck.choice(steps)()

    async def counted(self) -> dict[Key, tuple[int, ...]]:
        """What a count of every event there ever was says."""
        rows = await self.stage.rows(
            "SELECT (received_at AT TIME ZONE 'UTC')::date AS day, s.name, signature_method,"
            " count(*) FILTER (WHERE status IN ('VALIDATED', 'FAILED_RETRYABLE')) AS waiting,"
            " count(*) FILTER (WHERE status IN ('PROCESSED', 'IGNORED')) AS succeeded,"
            " count(*) FILTER (WHERE status IN ('FAILED_FINAL', 'DEAD_LETTER')"
            " AND error_code <> 'INVALID_SIGNATURE') AS failed,"
            " count(*) FILTER (WHERE error_code = 'INVALID_SIGNATURE') AS rejected"
            " FROM webhook_events AS e JOIN sources AS s ON s.id = e.source_id GROUP BY 1, 2, 3"
        )
        ended = {
            (row["day"], row["name"], row["signature_method"]): (
                row["waiting"], row["succeeded"], row["failed"], row["rejected"])
            for row in rows
        }  # fmt: skip
        return {
            key: (number, self.duplicates[key], *ended.get(key, (0, 0, 0, 0)))
            for key, number in self.received.items()
        }


def _at(delivery: Delivery, at: datetime) -> Delivery:
    return Delivery(delivery.headers, delivery.body, at)


def _key(item: Incoming | Rejected) -> Key:
    method = item.source.provider.signature_method(item.delivery)
    return item.delivery.received_at.date(), item.source.name, method


def _claimed(row: dict[str, Any]) -> Claimed:
    return Claimed(
        event_id=row["id"],
        source_id=row["source_id"],
        attempts=row["attempts"],
        received_at=row["received_at"],
        request_id=row["request_id"],
        headers={},
        body=row["raw_body"],
        blocked_on=None,
        queue_name=QueueName.PROCESS,
        status=EventStatus(row["status"]),
        error_code=row["error_code"],
        signature_method=row["signature_method"],
        is_test=row["is_test"],
    )


async def opened_shop(database: Database, seed: int) -> Shop:
    made = await stage(database, RetryPolicy(attempts=2))
    async with database.transaction() as connection:
        other = await register_source(connection, "other", "plain")
    sources = [made.source, Source(other, "other", Sealed(), link_by_email=True)]
    rules = replace(made.rules, sources={one.id: one for one in sources})
    made = replace(made, rules=rules)
    linker, worker = Linker(database, rules), Worker(database, rules)
    return Shop(made, sources, Processor(database, rules), worker, linker, random.Random(seed))


async def test_any_history_is_counted_as_it_was(
    request: pytest.FixtureRequest, database: Database
) -> None:
    """OPS-1: duplicates, conflicts, refusals, waits, retries and replays; folded or not."""
    seeds = SOAK_SEEDS if request.config.getoption("--soak") else SEEDS
    for seed in seeds:
        async with database.connection() as connection:
            await connection.execute(
                "TRUNCATE webhook_events, event_keys, event_queue, payments, payment_ids, users,"
                " subscriptions, orders, wallets, reservations, audit_log, event_counts,"
                " event_count_deltas CASCADE"
            )
        shop = await opened_shop(database, seed)
        for _ in range(STEPS):
            await shop.step()
        await shop.processor.close()
        await shop.worker.close()
        await _compare(shop, seed)


async def _compare(shop: Shop, seed: int) -> None:
    expected = await shop.counted()
    verbs = Services(shop.stage.database, shop.stage.rules)
    for days in (1, 5, 9):
        told = await verbs.statistics.report(days=days)
        first = datetime.now(UTC).date() - timedelta(days=days - 1)
        within = {key: numbers for key, numbers in expected.items() if key[0] >= first}
        assert _numbers(told) == _sum(within.values()), f"seed {seed}"
        assert {one.source: _numbers(one) for one in told.by_source} == _grouped(within, 1)
        methods = {one.signature_method: _numbers(one) for one in told.by_signature_method}
        assert methods == _grouped(within, 2)
        by_day = {one.day: _numbers(one) for one in told.by_day if one.received}
        assert by_day == _grouped(within, 0)
        assert [one.day for one in told.by_day] == [first + timedelta(n) for n in range(days)]
    of_other = await verbs.statistics.report(days=9, source="other")
    assert _numbers(of_other) == _sum(n for key, n in expected.items() if key[1] == "other")


def _numbers(counts: Counts) -> tuple[int, ...]:
    ended = counts.succeeded + counts.failed
    assert counts.success_rate == (counts.succeeded / ended if ended else 1.0)
    ended_as = (counts.waiting, counts.succeeded, counts.failed, counts.rejected)
    return (counts.received, counts.duplicates, *ended_as)


def _sum(rows: Any) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True))) or (0, 0, 0, 0, 0, 0)


def _grouped(counted: dict[Key, tuple[int, ...]], position: int) -> dict[Any, tuple[int, ...]]:
    groups = {key[position] for key in counted}
    return {
        group: _sum(numbers for key, numbers in counted.items() if key[position] == group)
        for group in groups
    }


async def test_folding_takes_a_bounded_number_and_says_whether_there_is_more(
    shop: Stage,
) -> None:
    """OPS-1 DAT-2: what is folded is neither lost nor counted twice."""
    row = (datetime.now(UTC).date(), SourceId(shop.source.id), "none", 2, 1, 0, 1, 0, 0)
    async with shop.database.connection() as connection:
        await counting.add(connection, [row] * (MAX_FOLDED + 1))
        assert await Folding().run_once(connection, datetime.now(UTC))
        assert await shop.number("event_count_deltas") == 1
        assert not await Folding().run_once(connection, datetime.now(UTC))
    assert await shop.number("event_count_deltas") == 0
    told = await Services(shop.database, shop.rules).statistics.report()
    assert _numbers(told) == tuple((MAX_FOLDED + 1) * number for number in row[3:])


async def test_a_batch_writes_one_row_of_counts(shop: Stage, processor: Processor) -> None:
    """OPS-1: for each day, source and method in it, not for each event."""
    await processor.process([shop.paid(f"p-{number}") for number in range(5)])
    (row,) = await shop.rows("SELECT received, waiting FROM event_count_deltas")
    assert tuple(row.values()) == (5, 5)


async def test_evidence_that_is_processed_again_was_received_once(
    shop: Stage, processor: Processor
) -> None:
    """OPS-1 OPS-4: also when it has become an event, and is a duplicate of it."""
    item = shop.paid("p")
    refusal = InvalidSignatureError("it is not")
    await processor.process(
        [Rejected(item.event_id, item.source, item.request, item.delivery, refusal, False)]
    )
    for _ in range(2):
        await Reprocessor(shop.database, shop.rules).reprocess(item.event_id, "somebody")
    told = await Services(shop.database, shop.rules).statistics.report()
    assert _numbers(told) == (1, 0, 1, 0, 0, 1)
