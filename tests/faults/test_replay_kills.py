"""The server is killed in the middle of a replay, and started again: nothing is lost or done twice.

The events are dead letters of payments whose users have come since, two of each payment: the first
applies it, and the second finds that done.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
from uuid_utils.compat import uuid7

from paidonce.db.queries import Connection
from paidonce.runtime.crashpoints import CrashPoint
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import REPLAYED
from tests.support.servers import StartService
from tests.support.service import SECRET, Service, paid, signature
from tests.support.tools import until

RATE: Final = 1_200
BURST: Final = 120
"""What the rate allows in a tenth of a second is done at once."""
AT_CHUNK: Final = f"{CrashPoint.REPLAYED}:20"
"""The second time it dies with a chunk that is written and not committed."""
DEADLINE_S: Final = 600.0
USERS: Final = 100

STORE: Final = """
INSERT INTO webhook_events (
    id, source_id, status, key, type, external_payment_id, signature_valid, signature_method,
    is_test, error_code, attempts, received_at, processed_at, request_id, headers, raw_body)
SELECT e.id, s.id, 'DEAD_LETTER', key, 'paid', payment, true, 'hmac-sha256', false, 'USER_MISSING',
       7, now(), now(), 'test', jsonb_build_object('x-signature', signature), body
  FROM sources AS s,
       unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[])
       AS e (id, key, payment, signature, body)
 WHERE s.name = 'payments'
"""


async def test_a_replay_that_is_killed_goes_on_where_it_stopped(
    start_service: StartService, database_url: str, full: bool, findings: Findings
) -> None:
    """OPS-4 REL-1 PAY-3: each event once, nothing applied twice, and no faster than its rate."""
    number = REPLAYED.at(full)
    service = start_service()
    for user in range(USERS):
        service.user(f"user-{user}@example.com")
    connection = await asyncpg.connect(database_url, connection_class=Connection)
    try:
        await _store_dead_letters(connection, number)
        foreseen = await asyncio.to_thread(_finished, service, _begun(service, dry_run=True))
        assert await connection.fetchval("SELECT count(*) FROM payments") == 0
        began_s = time.monotonic()
        replay_id = _begun(service, dry_run=False)
        await _done(connection, replay_id, number // 4)
        service.process.kill()
        service.process.wait()
        service = await asyncio.to_thread(start_service, PAIDONCE_CRASH_AT=AT_CHUNK)
        code = await asyncio.to_thread(service.process.wait, DEADLINE_S)
        assert code == -signal.SIGKILL
        service = await asyncio.to_thread(start_service)
        finished = await asyncio.to_thread(_finished, service, replay_id)
        took_s = time.monotonic() - began_s
        fastest = await _check(connection, replay_id, number)
    finally:
        await connection.close()
    assert finished["counts"] == foreseen["counts"] == {"DEAD_LETTER → PROCESSED": number}
    assert finished["applied"] == foreseen["applied"]
    assert finished["applied"]["number"] == number // 2, "each payment has two events"
    assert fastest <= RATE + BURST
    findings.add(
        Experiment.REPLAYS_KILLED,
        f"twice in the middle of a replay of {number:,} events, once with a chunk uncommitted",
        f"each event processed again once, {number // 2:,} payments applied once each, at most "
        f"{fastest:,} events in a second where {RATE:,} were allowed, in {took_s:.0f} s with its "
        "restarts; the dry run had predicted it",
    )


async def _store_dead_letters(connection: Connection, number: int) -> None:
    """Two events of each payment, as they would have been stored."""
    said = [_said(event) for event in range(number)]
    bodies = [json.dumps(one).encode() for one in said]
    await connection.execute(
        STORE,
        [uuid7() for _ in said],
        [one["event_id"] for one in said],
        [one["external_payment_id"] for one in said],
        [signature(one, SECRET) for one in bodies],
        bodies,
    )
    await connection.execute("ANALYZE webhook_events")


def _said(event: int) -> dict[str, Any]:
    payment = f"p-{event // 2}"
    email = f"user-{event // 2 % USERS}@example.com"
    return paid(payment, event_id=f"e-{event}", email=email)


def _begun(service: Service, dry_run: bool) -> str:
    body = {"filter": {"status": "DEAD_LETTER"}, "dry_run": dry_run, "rate": RATE}
    if dry_run:
        del body["rate"]
    reply = service.api("POST", "/replays", body)
    assert reply.http == 201, reply.body
    replay_id: str = reply.json["id"]
    return replay_id


def _finished(service: Service, replay_id: str) -> Any:
    def found() -> Any:
        replay = service.api("GET", f"/replays/{replay_id}").json
        return replay if replay["finished_at"] else None

    replay = until(found, DEADLINE_S)
    assert replay is not None, service.api("GET", f"/replays/{replay_id}").json
    assert replay["status"] == "DONE"
    return replay


async def _done(connection: Connection, replay_id: str, number: int) -> None:
    """Return when so many events are done."""
    deadline = datetime.now(UTC) + timedelta(seconds=DEADLINE_S)
    while datetime.now(UTC) < deadline:
        done = await connection.fetchval("SELECT done FROM replays WHERE id = $1", replay_id)
        if done >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the replay does not go on")


async def _check(connection: Connection, replay_id: str, number: int) -> int:
    """Raise what is wrong; returns how many events were done in the busiest second."""
    entries = await connection.fetch(
        "SELECT event_id, at FROM audit_log"
        " WHERE action = 'event_reprocessed' AND details->>'replay' = $1",
        replay_id,
    )
    assert len(entries) == len({entry["event_id"] for entry in entries}) == number
    applied = await connection.fetchval(
        "SELECT count(*) FROM payments WHERE applied_at IS NOT NULL AND version = 1"
    )
    told = await connection.fetchval("SELECT count(*) FROM outbox WHERE type = 'payment.applied'")
    months = await connection.fetchval(
        "SELECT sum(extract(day FROM period_end - period_start)) FROM payments"
    )
    assert (applied, told, int(months)) == (number // 2, number // 2, 30 * (number // 2))
    statuses = await connection.fetch("SELECT status, attempts FROM webhook_events")
    assert {tuple(row) for row in statuses} == {("PROCESSED", 8)}
    finished = await connection.fetchval(
        "SELECT count(*) FROM audit_log WHERE action = 'replay_finished' AND success"
    )
    assert finished == 2
    return max(Counter(entry["at"].replace(microsecond=0) for entry in entries).values())
