"""Lookups at gateways, without an open transaction meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import web
from uuid_utils.compat import uuid7

from paidonce.bootstrap.registration import register_source
from paidonce.core.events import DEFERRED, EventId, SourceId
from paidonce.hooks.registry import Handlers, HookEvent, HookType
from paidonce.linking.linker import Linker
from paidonce.lookup import worker as lookup_worker
from paidonce.lookup.http_client import MAX_REPLY_BYTES, HttpTimeouts
from paidonce.lookup.lookup import MAX_CALLS
from paidonce.lookup.worker import MAX_OF_SOURCE, LookupWorker
from paidonce.processing import store as processing_store
from paidonce.processing.items import Incoming, QueueName, Request, ResultKind, Source
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery, LookupRequired, key_digest
from paidonce.queue import store as queue_store
from paidonce.queue.worker import Worker
from paidonce.runtime.service import Supervisor
from paidonce.runtime.wakeup import Wakeup
from tests.support.batches import Stage
from tests.support.lookup_gateway import Gateway, Looking, gateway_running, looks, tells
from tests.support.tools import free_port

QUICK: Final = HttpTimeouts(pauses_s=(0.0, 0.01), away_s=60.0)
ATTEMPTS: Final = 1 + len(QUICK.pauses_s)
WAKE: Final = (
    "INSERT INTO event_queue (run_at, event_id, queue_name, source_id) VALUES (now(), $1, 1, $2)"
)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway that can be asked."""
    async with gateway_running() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def looking(shop: Stage, gateway: Gateway) -> Stage:
    """The shop, whose only source has to be asked."""
    return await with_sources(shop, looking=gateway.api)


@pytest_asyncio.fixture(loop_scope="session")
async def asker(looking: Stage) -> AsyncIterator[LookupWorker]:
    asker = LookupWorker(looking.database, looking.rules, timeouts=QUICK)
    yield asker
    await asker.close()


async def with_sources(shop: Stage, **apis: str) -> Stage:
    """The shop with these sources, and none but these."""
    sources: dict[SourceId, Source] = {}
    async with shop.database.transaction() as connection:
        for name, api in apis.items():
            source_id = await register_source(connection, name, "looking")
            sources[source_id] = Source(source_id, name, Looking(api), True, lookup_rate=1_000)
    return replace(
        shop, rules=replace(shop.rules, sources=sources), source=next(iter(sources.values()))
    )


def look(stage: Stage, payment: str, source: Source | None = None, **said: Any) -> Incoming:
    """A delivery that has just arrived."""
    source = source or stage.source
    delivery = Delivery({}, looks(payment, **said), datetime.now(UTC))
    identity, event = source.provider.identify(delivery), source.provider.translate(delivery)
    assert isinstance(event, LookupRequired)
    return Incoming(
        event_id=EventId(uuid7()),
        source=source,
        request=Request("request", None, time.monotonic()),
        delivery=delivery,
        identity=identity,
        key=(source.id, key_digest(identity.key)),
        event=event,
        forced_outcome=DEFERRED,
    )


async def stored(stage: Stage, *payments: str, source: Source | None = None) -> list[Incoming]:
    """Events that wait for their gateway, and the users that they belong to."""
    items = [look(stage, payment, source) for payment in payments]
    for payment in payments:
        await stage.user(f"{payment}@example.com")
    processor = Processor(stage.database, stage.rules)
    processed = await processor.process(items)
    await processor.close()
    assert {result.kind for result in processed.results} == {ResultKind.ACCEPTED}
    return items


async def due_rows(stage: Stage) -> list[dict[str, Any]]:
    return await stage.rows(
        "SELECT queue_name, source_id, run_at - now() AS waits FROM event_queue ORDER BY id"
    )


async def applied(stage: Stage) -> int:
    row = await stage.one("SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL")
    return int(row["n"])


async def test_a_looked_up_payment_is_applied_once(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """REC-4 PRV-3: the event is committed and due before anybody asks."""
    (item,) = await stored(looking, "p")
    (row,) = await due_rows(looking)
    assert (row["queue_name"], row["source_id"]) == (QueueName.LOOKUP, looking.source.id)
    assert await asker.run_once() == 1
    assert (await looking.event_row(item))["status"] == "PROCESSED"
    assert (await looking.payment("p"))["applied_at"] is not None
    assert await looking.number("event_queue") == 0
    assert await looking.number("outbox") == 1
    assert await asker.run_once() == 0
    assert gateway.asked == {"p": 1}


async def test_queue_workers_do_not_claim_lookups(looking: Stage, gateway: Gateway) -> None:
    """REC-4: and what stands in the wrong queue_name is due now in the right one."""
    await stored(looking, "p")
    worker = Worker(looking.database, looking.rules)
    assert await worker.run_once() == 0
    async with looking.database.connection() as connection:
        await connection.execute(
            "UPDATE event_queue SET queue_name = 0, attempt = 2, source_id = NULL"
        )
    assert await worker.run_once() == 1
    await worker.close()
    (row,) = await looking.rows(
        "SELECT queue_name, source_id, attempt, run_at <= now() AS now FROM event_queue"
    )
    assert tuple(row.values()) == (QueueName.LOOKUP, looking.source.id, 2, True)
    assert (await looking.one("SELECT status FROM webhook_events"))["status"] == "VALIDATED"
    assert not gateway.asked


async def test_no_transaction_is_open_during_a_lookup(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """REC-4: no transaction, and no lock of a row or table."""
    gateway.scripts["p"] = gateway.hang
    await stored(looking, "p")
    lookup_worker = asyncio.create_task(asker.run_once())
    await gateway.someone_asks.wait()
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    states = await looking.rows(f"SELECT DISTINCT state FROM pg_stat_activity WHERE {others}")
    assert [row["state"] for row in states] == ["idle"]
    held = await looking.rows(
        "SELECT locktype FROM pg_locks JOIN pg_stat_activity USING (pid)"
        f" WHERE {others} AND locktype <> 'virtualxid'"
    )
    assert [row["locktype"] for row in held] == ["advisory"], "that it is we who ask"
    gateway.silent.set()
    assert await lookup_worker == 1
    assert await applied(looking) == 1


async def closed(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def too_slow(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


TOLD: Final = bytes(tells("p").body)  # type: ignore[arg-type]
"""What would be believed, were it not for how it is told."""
PADDED: Final = TOLD[:-1] + b', "padding": "' + b"x" * MAX_REPLY_BYTES + b'"}'


def replying(status: int = 200, body: bytes = TOLD, **headers: str) -> Any:
    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return reply


@pytest.mark.parametrize(
    "script",
    [
        replying(500),
        replying(503),
        replying(429),
        replying(404),
        replying(302, location="/payments/other"),
        replying(200, b"not JSON"),
        replying(200, b"[]"),
        replying(200, PADDED),
        replying(200, TOLD, **{"content-encoding": "br"}),
        closed,
        too_slow,
    ],
    ids=[
        "500", "503", "429", "404", "redirect", "no JSON", "no object", "too large", "encoded",
        "closed", "too slow",
    ],
)  # fmt: skip
async def test_a_failed_lookup_is_retried_for_days(
    looking: Stage, gateway: Gateway, script: Any
) -> None:
    """RET-1: a few times at once, and then on the slow schedule."""
    gateway.scripts["p"] = script
    (item,) = await stored(looking, "p")
    hasty = replace(QUICK, call_s=0.1 if script is too_slow else 10.0)
    asker = LookupWorker(looking.database, looking.rules, timeouts=hasty)
    assert await asker.run_once() == 1
    await asker.close()
    row = await looking.event_row(item)
    assert (row["status"], row["error_code"]) == ("FAILED_RETRYABLE", "PROVIDER_UNREACHABLE")
    assert row["attempts"] == 1
    repeated = 2 if script is closed else 1  # the client itself asks again, as HTTP allows
    assert gateway.asked == {"p": ATTEMPTS * repeated}
    (waiting,) = await due_rows(looking)
    assert waiting["queue_name"] == QueueName.LOOKUP
    assert 55 < waiting["waits"].total_seconds() < 75
    assert await looking.number("payments") == 0


async def test_a_refused_connection_is_retried(shop: Stage) -> None:
    """RET-1"""
    stage = await with_sources(shop, looking=f"http://127.0.0.1:{free_port()}")
    (item,) = await stored(stage, "p")
    asker = LookupWorker(stage.database, stage.rules, timeouts=QUICK)
    assert await asker.run_once() == 1
    await asker.close()
    row = await stage.event_row(item)
    assert (row["status"], row["error_code"]) == ("FAILED_RETRYABLE", "PROVIDER_UNREACHABLE")
    assert "127.0.0.1" not in row["error_message"]


async def test_a_contradicting_gateway_fails_the_event(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """PRV-3: nothing is applied, and it is not asked again."""

    async def other(_: web.Request) -> web.StreamResponse:
        return tells("other", may_pass=False)

    gateway.scripts["p"] = other
    (item,) = await stored(looking, "p")
    assert await asker.run_once() == 1
    row = await looking.event_row(item)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "PROVIDER_MISMATCH")
    assert gateway.asked == {"p": 1}
    assert await looking.number("event_queue") == await looking.number("payments") == 0


@pytest.mark.parametrize("first", [replying(500), lambda _: _tells_other()], ids=["500", "other"])
async def test_a_short_failure_is_retried_at_once(
    looking: Stage, gateway: Gateway, asker: LookupWorker, first: Any
) -> None:
    """RET-1: first at once."""

    async def at_last(request: web.Request) -> web.StreamResponse:
        if gateway.asked["p"] < ATTEMPTS:
            said: web.StreamResponse = await first(request)
            return said
        return tells("p")

    gateway.scripts["p"] = at_last
    (item,) = await stored(looking, "p")
    assert await asker.run_once() == 1
    assert (await looking.event_row(item))["status"] == "PROCESSED"
    assert await applied(looking) == 1


async def _tells_other() -> web.StreamResponse:
    return tells("other", may_pass=True)


async def test_a_lasting_mismatch_fails_the_event(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """PRV-3"""
    gateway.scripts["p"] = lambda _: _tells_other()
    (item,) = await stored(looking, "p")
    assert await asker.run_once() == 1
    assert (await looking.event_row(item))["error_code"] == "PROVIDER_MISMATCH"
    assert gateway.asked == {"p": ATTEMPTS}


@pytest.mark.parametrize(
    ("said", "calls"),
    [(b"{}", 1), (b'{"more": 1}', MAX_CALLS)],
    ids=["a fault of the provider's", "no end of calls"],
)
async def test_a_bug_in_a_provider_fails_only_its_event(
    looking: Stage, gateway: Gateway, asker: LookupWorker, said: bytes, calls: int
) -> None:
    """RET-1: it is tried again like any fault of ours, and the others go on."""
    gateway.scripts["bad"] = replying(200, said)
    bad, good = await stored(looking, "bad", "good")
    assert await asker.run_once() == 2
    row = await looking.event_row(bad)
    assert (row["status"], row["error_code"]) == ("FAILED_RETRYABLE", "INTERNAL")
    assert (await looking.event_row(good))["status"] == "PROCESSED"
    assert gateway.asked == {"bad": calls, "good": 1}
    (waiting,) = await looking.rows("SELECT queue_name, attempt FROM event_queue")
    assert tuple(waiting.values()) == (QueueName.LOOKUP, 1)


async def test_a_queued_event_without_a_lookup_is_processed(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-4: whoever put it there."""
    (item,) = await stored(looking, "p")
    async with looking.database.connection() as connection:
        body = looks("p", event_type="nothing")
        await connection.execute("UPDATE webhook_events SET raw_body = $1", body)
    assert await asker.run_once() == 1
    assert (await looking.event_row(item))["status"] == "IGNORED"
    assert not gateway.asked


async def test_an_unreadable_event_fails_with_its_reason(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-4"""
    (item,) = await stored(looking, "p")
    async with looking.database.connection() as connection:
        await connection.execute("UPDATE webhook_events SET raw_body = 'no JSON'")
    assert await asker.run_once() == 1
    assert (await looking.event_row(item))["error_code"] == "MALFORMED"
    assert not gateway.asked


async def test_two_workers_look_up_once(looking: Stage, gateway: Gateway) -> None:
    """RET-4: one of them asks for the source, the other one stands by."""
    await stored(looking, *(f"p-{number}" for number in range(20)))
    askers = [LookupWorker(looking.database, looking.rules, timeouts=QUICK) for _ in range(2)]

    async def work(asker: LookupWorker) -> int:
        return sum([await asker.run_once() for _ in range(10)])

    begun = await asyncio.gather(*map(work, askers))
    for asker in askers:
        await asker.close()
    assert sum(begun) == 20
    assert set(gateway.asked.values()) == {1}
    assert await applied(looking) == await looking.number("outbox") == 20


async def test_another_worker_takes_over_a_lost_session(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-4: there is no lease to wait for."""
    gateway.scripts["p"] = gateway.hang
    await stored(looking, "p")
    lost = asyncio.create_task(asker.run_once())
    await gateway.someone_asks.wait()
    other = LookupWorker(looking.database, looking.rules, timeouts=QUICK)
    assert await other.run_once() == 0, "somebody asks"
    async with looking.database.connection() as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks"
            " WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    del gateway.scripts["p"]
    assert await _until_begun(other) == 1
    assert await applied(looking) == 1
    gateway.silent.set()
    await lost
    await other.close()
    assert gateway.asked == {"p": 2}
    assert await looking.number("outbox") == 1, "the late answer changed nothing"


async def _until_begun(asker: LookupWorker) -> int:
    for _ in range(200):
        if number := await asker.run_once():
            return number
    raise AssertionError("nothing was begun")


async def test_a_dead_gateway_does_not_delay_another(shop: Stage, gateway: Gateway) -> None:
    """RET-1: and it is not asked for everything that waits for it."""
    async with gateway_running() as dead:
        stage = await with_sources(shop, dead=dead.api, living=gateway.api)
        of_dead, of_living = stage.rules.sources.values()
        names = [f"dead-{number}" for number in range(30)]
        dead.scripts = dict.fromkeys(names, dead.hang)
        await stored(stage, *names, source=of_dead)
        await stored(stage, *(f"p-{number}" for number in range(30)), source=of_living)
        asker = LookupWorker(stage.database, stage.rules, timeouts=QUICK)
        running = asyncio.create_task(asker.run())
        await _until_applied(stage, 30)
        assert dead.under_way == MAX_OF_SOURCE, "it has not even failed yet"
        asker.finish()
        await running
        assert sum(dead.asked.values()) == MAX_OF_SOURCE


async def _until_applied(stage: Stage, number: int) -> None:
    deadline_s = time.monotonic() + 10
    while await applied(stage) < number:
        assert time.monotonic() < deadline_s, "it takes too long"


async def test_a_gateway_that_fails_gets_a_pause(looking: Stage, gateway: Gateway) -> None:
    """RET-1: then one question finds out whether it is back."""
    names = [f"p-{number}" for number in range(3 * MAX_OF_SOURCE)]
    gateway.scripts = dict.fromkeys(names, replying(503))
    await stored(looking, *names)
    asker = LookupWorker(looking.database, looking.rules, timeouts=replace(QUICK, pauses_s=()))
    assert await asker.run_once() == MAX_OF_SOURCE
    assert await asker.run_once() == 0
    (line,) = asker._clients.values()
    line._away_until_s = 0.0
    assert await asker.run_once() == 1
    assert await asker.run_once() == 0
    line._away_until_s = 0.0
    gateway.scripts.clear()
    assert await asker.run_once() == 1
    assert await asker.run_once() == MAX_OF_SOURCE
    await asker.close()


async def test_an_unknown_payment_causes_no_pause(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-1: otherwise whoever names payments that do not exist could stop the real ones."""
    gateway.scripts["unknown"] = replying(404)
    await stored(looking, "unknown")
    assert await asker.run_once() == 1
    await stored(looking, "known")
    assert await asker.run_once() == 1
    assert await applied(looking) == 1


async def test_the_number_of_concurrent_lookups_is_limited(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-1: a spike here is no flood there."""
    names = [f"p-{number}" for number in range(2 * MAX_OF_SOURCE)]
    gateway.scripts = dict.fromkeys(names, gateway.hang)
    await stored(looking, *names)
    lookup_worker = asyncio.create_task(asker.run_once())
    while gateway.under_way < MAX_OF_SOURCE:
        await asyncio.wait_for(gateway.someone_asks.wait(), 120)
        gateway.someone_asks.clear()
    gateway.silent.set()
    assert await lookup_worker == gateway.most_under_way == MAX_OF_SOURCE


def test_sources_share_the_concurrent_lookups(shop: Stage) -> None:
    """RET-1: so that slow ones together do not hold up another one."""
    sources = {SourceId(number): replace(shop.source, id=SourceId(number)) for number in range(20)}
    asker = LookupWorker(shop.database, replace(shop.rules, sources=sources))
    assert asker._places.max_of_source * len(sources) <= lookup_worker.MAX_AT_ONCE
    assert (
        LookupWorker(shop.database, replace(shop.rules, sources={}))._places.max_of_source
        == MAX_OF_SOURCE
    )


async def test_requests_keep_to_the_rate_of_their_source(shop: Stage, gateway: Gateway) -> None:
    """RET-1: those that are made again count too."""
    stage = await with_sources(shop, looking=gateway.api)
    slow = replace(stage.source, lookup_rate=50.0)
    stage = replace(stage, source=slow, rules=replace(stage.rules, sources={slow.id: slow}))
    gateway.scripts["p-0"] = replying(404)
    await stored(stage, *(f"p-{number}" for number in range(MAX_OF_SOURCE)))
    asker = LookupWorker(stage.database, stage.rules, timeouts=QUICK)
    assert await asker.run_once() == MAX_OF_SOURCE
    await asker.close()
    calls = MAX_OF_SOURCE + ATTEMPTS - 1
    assert len(gateway.times_s) == calls
    assert gateway.times_s[-1] - gateway.times_s[0] > 0.9 * (calls - 1) / 50.0


async def test_a_redelivery_makes_a_lookup_due_at_once(
    looking: Stage, gateway: Gateway, processor: Processor, asker: LookupWorker
) -> None:
    """REC-7: whoever is asked later is asked now."""
    gateway.scripts["p"] = replying(404)
    await stored(looking, "p")
    assert await asker.run_once() == 1
    gateway.scripts.clear()
    assert await asker.run_once() == 0, "it is due in a minute"
    processed = await processor.process([look(looking, "p")])
    assert [one.kind for one in processed.results] == [ResultKind.DUPLICATE]
    assert {row["queue_name"] for row in await due_rows(looking)} == {QueueName.LOOKUP}
    assert await asker.run_once() == 1
    assert await applied(looking) == 1
    assert await looking.number("event_queue") == 0


async def test_a_rescheduled_lookup_stays_in_its_queue(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """RET-4: also by a sibling that was applied."""
    await stored(looking, "p")
    digest = b"d" * 16
    async with looking.database.transaction() as connection:
        await connection.execute("UPDATE event_queue SET queue_name = 2, blocked_on = $1", digest)
        changes = processing_store.Changes(unblocked=[digest])
        await processing_store.write(connection, changes, datetime.now(UTC))
        assert (
            await connection.fetchval("SELECT min(queue_name) FROM event_queue") == QueueName.HOOKS
        )
        claim = await queue_store.claim_blocked(connection, [digest], 9)
        await queue_store.put_back(connection, claim.events[0], timedelta(0))
    assert {row["queue_name"] for row in await due_rows(looking)} == {QueueName.HOOKS}
    worker = Worker(looking.database, looking.rules, queue_name=QueueName.HOOKS)
    assert await worker.run_once() == 1
    await worker.close()
    assert {row["queue_name"] for row in await due_rows(looking)} == {QueueName.LOOKUP}


async def test_a_wakeup_ends_the_wait_of_the_worker(looking: Stage, gateway: Gateway) -> None:
    """RET-4: it does not wait for its next look."""
    wakeup = Wakeup()
    asker = LookupWorker(looking.database, looking.rules, wakeup, timeouts=QUICK)
    running = asyncio.create_task(asker.run())
    while asker._looked_s == 0.0:
        await asyncio.sleep(0)
    started_s = time.monotonic()
    await stored(looking, "p")
    wakeup.wake()
    await _until_applied(looking, 1)
    assert time.monotonic() - started_s < lookup_worker.SLOWEST_LOOK_S - 1
    asker.finish()
    await running


async def test_a_blocked_event_is_looked_up_again_when_its_user_registers(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """PAY-5: the money is applied by the one who creates the user; the event is put to be asked."""
    processor = Processor(looking.database, looking.rules)
    await processor.process([look(looking, "p")])
    await processor.close()
    assert await asker.run_once() == 1
    row = await looking.one("SELECT status, error_code FROM webhook_events")
    assert tuple(row.values()) == ("FAILED_RETRYABLE", "USER_MISSING")
    (waiting,) = await due_rows(looking)
    assert waiting["queue_name"] == QueueName.LOOKUP
    await Linker(looking.database, looking.rules).create_user("p@example.com", "somebody")
    assert await applied(looking) == 1
    assert await asker.run_once() == 1
    assert (await looking.one("SELECT status FROM webhook_events"))["status"] == "PROCESSED"
    assert await looking.number("outbox") == 1
    assert await looking.number("event_queue") == 0


async def test_a_locked_event_is_left_alone(
    looking: Stage, gateway: Gateway, asker: LookupWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RET-4: it stays in the queue, and is asked for again later."""
    monkeypatch.setattr(lookup_worker, "PAUSE_S", 0.01)
    (item,) = await stored(looking, "p")
    async with looking.database.transaction() as connection:
        assert (await queue_store.claim_events(connection, [item.event_id])).number == 1
        assert await asker.run_once() == 1
        assert (await looking.event_row(item))["status"] == "VALIDATED"
    async with looking.database.connection() as connection:
        await connection.execute(WAKE, item.event_id, looking.source.id)
    assert await asker.run_once() == 1
    assert await applied(looking) == 1


async def test_an_answer_for_a_final_event_has_no_effect(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """PAY-3"""
    gateway.scripts["p"] = gateway.hang
    await stored(looking, "p")
    lookup_worker = asyncio.create_task(asker.run_once())
    await gateway.someone_asks.wait()
    async with looking.database.connection() as connection:
        await connection.execute(
            "UPDATE webhook_events SET status = 'IGNORED', processed_at = now()"
        )
    gateway.silent.set()
    assert await lookup_worker == 1
    assert await looking.number("payments") == await looking.number("event_queue") == 0


async def test_a_stopped_worker_leaves_its_lookups_to_the_next_one(
    looking: Stage, gateway: Gateway
) -> None:
    """§15 Commands: a gateway that is slow does not hold up the end."""
    gateway.scripts["p"] = gateway.hang
    await stored(looking, "p")
    asker = LookupWorker(looking.database, looking.rules)
    running = asyncio.create_task(asker.run())
    await gateway.someone_asks.wait()
    asker.finish()
    await asyncio.wait_for(running, 3)
    gateway.silent.set()
    other = LookupWorker(looking.database, looking.rules)
    assert await other.run_once() == 1
    await other.close()
    assert await applied(looking) == 1


async def test_a_stopping_worker_starts_no_lookup(
    looking: Stage, gateway: Gateway, asker: LookupWorker
) -> None:
    """§15 Commands: also if it was just looking for what is due."""
    await stored(looking, "p")
    asker.finish()
    assert await asker.run_once() == 0
    assert not gateway.asked


async def test_a_worker_continues_after_a_database_outage(
    looking: Stage, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-5: what was answered meanwhile is asked again."""
    monkeypatch.setattr(lookup_worker, "PAUSE_S", 0.01)
    gateway.scripts["p"] = gateway.hang
    await stored(looking, "p")
    async with Supervisor(LookupWorker(looking.database, looking.rules)).running():
        await gateway.someone_asks.wait()
        async with looking.database.connection() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        gateway.silent.set()
        await _until_applied(looking, 1)


async def test_no_proxy_of_the_environment_is_used(
    looking: Stage, gateway: Gateway, asker: LookupWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-1: the API key goes to the gateway and to nobody else."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    await stored(looking, "p")
    assert await asker.run_once() == 1
    assert gateway.asked == {"p": 1}


async def test_handlers_get_the_looked_up_payment(looking: Stage, gateway: Gateway) -> None:
    """FUL-5 PRV-3: one that breaks its transaction is one attempt that failed."""
    heard: list[str] = []

    async def handle(hook_event: HookEvent) -> None:
        assert hook_event.event is not None
        heard.append(hook_event.event.event_type)
        if len(heard) == 1:
            await hook_event.connection.execute("ROLLBACK")

    rules = replace(looking.rules, handlers=Handlers({HookType.SUCCEEDED: (handle,)}))
    asker = LookupWorker(looking.database, rules, timeouts=QUICK)
    (item,) = await stored(looking, "p")
    assert await asker.run_once() == 1
    row = await looking.event_row(item)
    assert (row["error_code"], row["attempts"]) == ("HANDLER_FAILED", 1)
    assert await applied(looking) == 0
    async with looking.database.connection() as connection:
        await connection.execute("UPDATE event_queue SET run_at = now()")
    assert await asker.run_once() == 1
    await asker.close()
    assert (await looking.event_row(item))["status"] == "PROCESSED"
    assert (heard, gateway.asked["p"]) == (["paid", "paid"], 2)
    assert await applied(looking) == 1
