"""Many connections at once, that send slowly or read nothing, beside honest traffic."""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.faults.hostility import USERS, Besieged
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import AHEAD_CONNECTIONS, CROWD
from tests.faults.wire import converse, request, rest_of
from tests.support.servers import StartService
from tests.support.service import BASIC, Service

ROOT: Final = Path(__file__).parents[2]
ATTACK_S: Final = 300.0
"""It is ended earlier; this is for the case that nobody does."""
HONEST: Final = 50
HELD: Final = 100
BODY_BYTES: Final = 50_000


@asynccontextmanager
async def crowd(port: int, what: str, number: int) -> AsyncIterator[None]:
    """Attackers in another process, all of them connected."""
    command = [sys.executable, "-m", "tests.faults.crowd", str(port), what, str(number)]
    attack = subprocess.Popen([*command, str(ATTACK_S)], cwd=ROOT, stdout=subprocess.PIPE)
    assert attack.stdout is not None
    try:
        assert await asyncio.to_thread(attack.stdout.readline) == b"all were open\n"
        yield
    finally:
        attack.kill()
        attack.wait()
        attack.stdout.close()


async def honest(besieged: Besieged) -> str:
    """Deliver one after another on new connections; tells how long the answers took."""
    took_s = []
    for _ in range(HONEST):
        said = besieged.ledger.new(email=USERS[0])
        began_s = time.monotonic()
        heard = await converse(besieged.service.port, request(said.body))
        took_s.append(time.monotonic() - began_s)
        assert heard.statuses == [200]
        besieged.ledger.acknowledge(said, heard.bodies[0], known=False)
    took_s.sort()
    median, slowest = took_s[HONEST // 2], took_s[HONEST * 99 // 100]
    times = f"{median * 1000:.0f} ms, p99 {slowest * 1000:.0f} ms"
    return f"{HONEST} new connections answered in {times}"


async def test_a_crowd_of_slow_connections_keeps_nobody_out(
    besieged: Besieged, full: bool, findings: Findings
) -> None:
    """SEC-8: the connection that has kept the server waiting longest gives way."""
    number = CROWD.at(full)
    async with besieged.attacked() as losses, crowd(besieged.service.port, "slow", number):
        told = await honest(besieged)
    findings.add(Experiment.CROWDED, f"{number:,} connections", f"{told}; {losses}")


async def test_requests_sent_ahead_whose_answers_nobody_reads_cost_little(
    besieged: Besieged, full: bool, findings: Findings
) -> None:
    """SEC-8: no more requests are read than answers fit."""
    number = AHEAD_CONNECTIONS.at(full)
    async with besieged.attacked() as losses, crowd(besieged.service.port, "ahead", number):
        told = await honest(besieged)
    findings.add(Experiment.AHEAD, f"{number:,} connections", f"{told}; {losses}")


@pytest.fixture
def small(start_service: StartService) -> Service:
    """A server with room for few connections and few bodies."""
    text = (
        "[server]\nmax_connections = 20\nmax_total_body_bytes = 300_000\nrequest_timeout_s = 60\n"
    )
    return start_service(f"{BASIC}\n{text}")


async def test_connections_above_their_number_give_way(small: Service) -> None:
    """SEC-8: the oldest first; one that has begun a request is told."""
    port, early = small.port, []
    honest_one = request(b'{"external_payment_id": "p", "status": "paid"}')
    for _ in range(5):
        early.append(await asyncio.open_connection("127.0.0.1", port))
        early[-1][1].write(b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\n")
    assert (await converse(port, honest_one)).statuses == [400]  # by now those have been read
    late = [await asyncio.open_connection("127.0.0.1", port) for _ in range(HELD)]
    assert (await converse(port, honest_one)).statuses == [400]
    for reader, _ in early:
        received = (await rest_of(reader)).received
        assert received == b"" or (b"OVERLOADED" in received and b"retry-after" in received)
    for _, writer in early + late:
        writer.close()


async def test_bodies_above_their_sum_give_way_to_smaller_ones(small: Service) -> None:
    """SEC-8: the largest unfinished one first; honest ones are small."""
    port = small.port
    head = b"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"
    begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
    for _, writer in begun:
        writer.write(head + b"x" * BODY_BYTES)
        await writer.drain()
    first = [asyncio.create_task(reader.read()) for reader, _ in begun]
    for number in range(20):
        body = b'{"external_payment_id": "p-%d"}%s' % (number, b" " * 5_000)
        assert (await converse(port, request(body))).statuses == [400]
    done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    answers = [task.result() for task in done]
    assert all(b"OVERLOADED" in answer for answer in answers if answer)
    for task in first:
        task.cancel()
    for _, writer in begun:
        writer.close()


def test_the_server_lives_with_few_file_descriptors(start_service: StartService) -> None:
    """SEC-8: it raises the limit as far as it may; connections take a part of it."""
    service = start_service(BASIC)
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    assert limits[0] == limits[1]
