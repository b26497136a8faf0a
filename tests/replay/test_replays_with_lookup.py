"""A replay of events that need a lookup leaves room for new webhooks (OPS-4, REC-4)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest_asyncio

from paidonce.events.model import EventFilter
from paidonce.lookup.worker import LookupWorker
from paidonce.replay import store as replay_store
from paidonce.replay.model import ReplayState
from paidonce.replay.worker import ReplayRun
from paidonce.runtime.service import Service
from tests.lookup.test_lookup import QUICK, stored, with_sources
from tests.replay.test_replays import create_replay, run
from tests.support.batches import Stage
from tests.support.lookup_gateway import gateway_running

WAITING = "SELECT count(*) AS n FROM webhook_events WHERE status = 'VALIDATED'"
DEADLINE_S = 20.0


@pytest_asyncio.fixture(loop_scope="session")
async def asked(shop: Stage) -> AsyncIterator[Stage]:
    """A source with thirty processed events and a low lookup rate."""
    async with gateway_running() as gateway:
        looking = await with_sources(shop, looking=gateway.api)
        await stored(looking, *(f"p-{number}" for number in range(30)))
        asker = LookupWorker(looking.database, looking.rules, timeouts=QUICK)
        while await asker.run_once():
            pass
        await asker.close()
        assert (await looking.one(WAITING))["n"] == 0
        source = replace(looking.source, lookup_rate=2.0)
        rules = replace(looking.rules, sources={source.id: source})
        yield replace(looking, rules=rules, source=source)


async def test_a_replay_with_lookups_does_not_delay_new_webhooks(asked: Stage) -> None:
    """OPS-4 REC-4: lookups are due one after the other, and a webhook at once."""
    replayed = await run(
        asked, await create_replay(asked, EventFilter(source="looking")), max_chunk=128
    )
    assert replayed.counts == {"PROCESSED → VALIDATED": 30}
    asker = LookupWorker(asked.database, asked.rules)
    asking = asyncio.create_task(asker.run())
    (new,) = await stored(asked, "new")
    deadline_s = time.monotonic() + DEADLINE_S
    while (await asked.event_row(new))["status"] != "PROCESSED":
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    assert (await asked.one(WAITING))["n"] > 0
    asker.finish()
    await asking


async def test_a_replay_waits_for_its_lookups(asked: Stage) -> None:
    """OPS-4: so that it can be paused or canceled before it queues the rest."""
    replay_id = await create_replay(asked, EventFilter(source="looking"))
    service = Service("test")
    replaying = asyncio.create_task(
        ReplayRun(asked.database, asked.rules, replay_id, 10, service).run()
    )
    deadline_s = time.monotonic() + DEADLINE_S
    async with asked.database.connection() as connection:
        while (
            replay := await replay_store.find(connection, ReplayState, replay_id)
        ) is None or not replay.done:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
    service.finish()
    assert await replaying
    assert replay.done == 10
    assert 0 < replay.wait_s <= 10
    (row,) = await asked.rows(
        "SELECT count(*) AS n, max(run_at) - min(run_at) AS took FROM event_queue"
    )
    assert (row["n"], row["took"].total_seconds()) == (10, 9)
