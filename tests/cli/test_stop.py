"""The server stops, politely or not, under load; nothing that was acknowledged is lost."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from paidonce.bootstrap import registration
from paidonce.db.queries import in_schema
from tests.support.postgres import SCHEMA
from tests.support.servers import Shared, StartService
from tests.support.service import BASIC, Service, paid, signature
from tests.support.tools import deliver_on, period_end, rows, until

SENDERS = 16
EMAIL = "stop@example.com"


class Load:
    """Senders that go on until the server is gone, and remember what was acknowledged."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.sent: list[str] = []
        self.acknowledged: list[str] = []
        self.refused: list[int] = []
        self.threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)
        ]
        for thread in self.threads:
            thread.start()

    def _send(self, sender: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=60)
        for number in range(100_000):
            payment = f"load-{sender}-{number}"
            self.sent.append(payment)
            try:
                reply = deliver_on(connection, paid(payment, email=EMAIL))
            except (OSError, http.client.HTTPException):
                break
            if reply.http != 200:
                self.refused.append(reply.http)
                break
            assert reply.json["status"] == "success"
            self.acknowledged.append(payment)
        connection.close()

    def wait_for(self, acknowledged: int) -> None:
        assert until(lambda: len(self.acknowledged) >= acknowledged)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)


def _stored(database_url: str) -> set[str]:
    found = rows(
        database_url,
        "SELECT external_id FROM payment_ids JOIN payments ON payments.id = payment_id"
        " WHERE applied_at IS NOT NULL",
    )
    return {row["external_id"] for row in found}


def _stored_events(database_url: str) -> set[str]:
    found = rows(
        database_url,
        "SELECT external_payment_id FROM webhook_events WHERE status = 'PROCESSED'",
    )
    assert len({row["external_payment_id"] for row in found}) == len(found)
    return {row["external_payment_id"] for row in found}


@dataclass(frozen=True)
class Stopped:
    """What came of a server that was told to stop under load."""

    code: int
    took_s: float
    answers: list[bytes]
    refused: set[int]
    acknowledged: set[str]
    stored: set[str]
    stored_events: set[str]


@pytest.fixture(scope="module")
def stopped(shared: Shared) -> Stopped:
    """SIGTERM while twenty requests are half sent, others whole, and a connection idles."""
    service = shared.service
    service.user(EMAIL)
    idle = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    begun = []
    for number in range(20):
        body = json.dumps(paid(f"begun-{number}", email=EMAIL)).encode()
        connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        connection.sendall(_head(body) + body[:20])
        begun.append((connection, body[20:]))
    load = Load(service)
    load.wait_for(200)

    stopped_s = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    until(lambda: not _listens(service.port))
    for connection, rest in begun:
        with suppress(OSError):
            connection.sendall(rest)
    answers = [_until_closed(connection) for connection, _ in begun]
    code = service.process.wait(15)
    took_s = time.monotonic() - stopped_s
    load.join()
    idle.close()
    return Stopped(
        code,
        took_s,
        answers,
        set(load.refused),
        set(load.acknowledged),
        _stored(shared.database_url),
        _stored_events(shared.database_url),
    )


def test_sigterm_ends_with_exit_code_0_within_ten_seconds(stopped: Stopped) -> None:
    """§15 Commands: SIGTERM stops gracefully; an idle connection does not hold it up."""
    assert stopped.code == 0
    assert stopped.took_s < 10


def test_what_was_accepted_before_sigterm_is_answered(stopped: Stopped) -> None:
    """§15 Commands REC-5: no new requests, what was accepted is finished and answered."""
    first_lines = [answer.split(b"\r\n")[0] for answer in stopped.answers]
    assert first_lines == [b"HTTP/1.1 200 OK"] * 20
    assert all(b'"success"' in answer for answer in stopped.answers)
    assert stopped.refused <= {503}


def test_what_was_acknowledged_around_sigterm_is_there_and_applied(stopped: Stopped) -> None:
    """REC-2"""
    assert len(stopped.acknowledged) >= 200
    assert stopped.acknowledged - stopped.stored == set()
    assert stopped.acknowledged - stopped.stored_events == set()
    assert stopped.stored == stopped.stored_events


async def test_what_waits_for_the_database_at_sigterm_is_finished_and_answered(
    start_service: StartService, database_url: str
) -> None:
    """§15 Commands REC-2: twenty whole requests, held up in the middle by a lock of the test's."""
    service = start_service()
    service.user(EMAIL)
    blocker = await asyncpg.connect(database_url)
    held = blocker.transaction()
    await held.start()
    await blocker.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
    sockets = _twenty_requests(service)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'payments'::regclass"
    deadline_s = time.monotonic() + 10
    while await blocker.fetchval(waiting) == 0:
        assert time.monotonic() < deadline_s, "nothing waits"
    assert service.request("GET", "/healthz").http == 200

    service.process.send_signal(signal.SIGTERM)
    assert until(lambda: not _listens(service.port)), "it still takes new connections"
    await held.rollback()
    await blocker.close()
    answers = [_until_closed(connection) for connection in sockets]
    code = service.process.wait(15)

    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 20
    assert all(b'"success"' in answer or b'"accepted"' in answer for answer in answers)
    assert code == 0
    start_service()
    assert until(lambda: _stored(database_url) == {f"held-{number}" for number in range(20)})


async def test_a_database_that_never_answers_does_not_keep_it_from_stopping(
    start_service: StartService, database_url: str
) -> None:
    """§15 Commands REC-5: whoever waits is told to come again, and it ends in time."""
    for processes in ("1", "2"):
        service = start_service(arguments=["--processes", processes])
        service.user(EMAIL)
        blocker = await asyncpg.connect(database_url)
        held = blocker.transaction()
        await held.start()
        await blocker.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
        sockets = _twenty_requests(service)
        asked_s = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        answers = [_until_closed(connection) for connection in sockets]
        code = service.process.wait(15)
        took_s = time.monotonic() - asked_s
        await held.rollback()
        await blocker.close()
        assert {answer.split(b" ")[1] for answer in answers} == {b"503"}
        assert code == 0
        assert took_s < 10


async def test_a_start_that_is_under_way_ends_cleanly_at_sigterm(
    database_url: str, tmp_path: Path
) -> None:
    """§15 Commands: held up by a lock of the test's, before it listens for anybody."""
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}\n[database]\nurl = "{database_url}"\n')
    blocker = await asyncpg.connect(database_url)
    lock = registration.QUERIES["lock_plans"].sql.replace("_xact_", "_")
    await blocker.execute(in_schema(lock, SCHEMA))
    process = subprocess.Popen(
        [sys.executable, "-m", "paidonce", "serve", "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
    deadline_s = time.monotonic() + 20
    while await blocker.fetchval(waiting) == 0:
        assert time.monotonic() < deadline_s, "it does not wait"
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    await blocker.close()
    assert process.returncode == 0, told.decode()
    assert b"running at" not in told
    assert b"Traceback" not in told


def _twenty_requests(service: Service) -> list[socket.socket]:
    """Connections on which a whole request was sent each."""
    sockets = []
    for number in range(20):
        body = json.dumps(paid(f"held-{number}", email=EMAIL)).encode()
        connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        connection.sendall(_head(body).replace(b"\r\n", b"\r\nexpect: 100-continue\r\n", 1))
        assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it has the headers
        connection.sendall(body)
        sockets.append(connection)
    return sockets


@pytest.mark.parametrize("acknowledged", [50, 300])
def test_sigkill_under_load_loses_nothing_and_applies_nothing_twice(
    start_service: StartService, database_url: str, acknowledged: int
) -> None:
    """REC-2 PAY-3 REL-1"""
    service = start_service()
    user = service.user(EMAIL)
    load = Load(service)
    load.wait_for(acknowledged)
    service.process.kill()
    load.join()
    service.process.wait(10)

    assert set(load.acknowledged) - _stored(database_url) == set()
    assert set(load.acknowledged) - _stored_events(database_url) == set()

    again = start_service()
    for payment in load.acknowledged[-20:]:
        assert again.deliver(paid(payment, email=EMAIL)).json["status"] == "duplicate"
    left = sorted(set(load.sent) - set(load.acknowledged))
    assert left, "nothing was under way"
    for payment in left:
        assert again.deliver(paid(payment, email=EMAIL)).json["status"] in ("success", "duplicate")
    assert _stored(database_url) == set(load.sent)
    assert _stored_events(database_url) == set(load.sent)
    (first,) = rows(database_url, "SELECT min(period_start) AS start FROM payments")
    granted = period_end(again, user["id"]) - first["start"]
    assert granted == len(load.sent) * timedelta(days=30)


def _head(body: bytes) -> bytes:
    return (
        f"POST /webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        f"content-type: application/json\r\nx-signature: {signature(body)}\r\n\r\n"
    ).encode()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def _until_closed(connection: socket.socket) -> bytes:
    said = b""
    with suppress(OSError):
        while more := connection.recv(65_536):
            said += more
    connection.close()
    return said
