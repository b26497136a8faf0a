"""A replay of events whose gateway has to be asked leaves room for webhooks (OPS-4, REC-4)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest_asyncio

from paidonce.engine.asking import Asker
from paidonce.engine.bell import Bell
from paidonce.engine.replaying import ReplayRun
from paidonce.operations import EventFilter
from paidonce.store import replays
from tests.store.batches import Stage
from tests.store.test_asking import QUICK, stored, with_sources
from tests.store.test_replays import begun, run
from tests.thin import gateway_running

WAITING = "SELECT count(*) AS n FROM webhook_events WHERE status = 'VALIDATED'"
DEADLINE_S = 20.0


@pytest_asyncio.fixture(loop_scope="session")
async def asked(shop: Stage) -> AsyncIterator[Stage]:
    """A source with thirty events that are settled, whose gateway may not be asked often."""
    async with gateway_running() as gateway:
        looking = await with_sources(shop, looking=gateway.api)
        await stored(looking, *(f"p-{number}" for number in range(30)))
        asker = Asker(looking.database, looking.rules, patience=QUICK)
        while await asker.run_once():
            pass
        await asker.close()
        assert (await looking.one(WAITING))["n"] == 0
        source = replace(looking.source, ask_rate=2.0)
        rules = replace(looking.rules, sources={source.id: source})
        yield replace(looking, rules=rules, source=source)


async def test_a_replay_of_thin_events_does_not_hold_up_a_new_one(asked: Stage) -> None:
    """OPS-4 REC-4: what is asked again is due bit by bit, and a webhook at once."""
    replayed = await run(asked, await begun(asked, EventFilter(source="looking")), max_chunk=128)
    assert replayed.counts == {"PROCESSED → VALIDATED": 30}
    asker = Asker(asked.database, asked.rules, Bell(asked.database))
    asking = asyncio.create_task(asker.run())
    (new,) = await stored(asked, "new")
    deadline_s = time.monotonic() + DEADLINE_S
    while (await asked.event_row(new))["status"] != "PROCESSED":
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    assert (await asked.one(WAITING))["n"] > 0
    asker.finish()
    await asking


async def test_a_replay_waits_for_gateways_that_are_asked(asked: Stage) -> None:
    """OPS-4: so that it can be paused, or canceled, with what it has not begun with."""
    replay_id = await begun(asked, EventFilter(source="looking"))
    stop = asyncio.Event()
    replaying = asyncio.create_task(
        ReplayRun(asked.database, asked.rules, replay_id, 10, stop).run()
    )
    deadline_s = time.monotonic() + DEADLINE_S
    async with asked.database.connection() as connection:
        while (replay := await replays.find(connection, replay_id)) is None or not replay.done:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
    stop.set()
    assert await replaying
    assert replay.done == 10
    assert 0 < replay.wait_s <= 10
    (row,) = await asked.rows("SELECT count(*) AS n, max(run_at) - min(run_at) AS took FROM due")
    assert (row["n"], row["took"].total_seconds()) == (10, 9)
