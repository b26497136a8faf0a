"""`paidonce events`, `payments`, `stats` and `listen`."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Shared
from tests.support.service import Service, paid, signature
from tests.support.tools import items, paidonce, until


def _asked(service: Service, *arguments: str) -> Any:
    done = paidonce(service.folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def filled(shared: Shared) -> Shared:
    service = shared.service
    service.user("buyer@example.com")
    service.deliver(paid("c-1"))
    service.deliver(paid("c-2", email="nobody@example.com"))
    service.deliver(paid("c-3", amount="5.00"))
    return shared


def test_events_are_listed_and_shown(filled: Shared) -> None:
    """OPS-2 OPS-7 USE-2: the same filters as over HTTP."""
    service = filled.service
    (event,) = _asked(service, "events", "list", "--payment", "c-1", "--status", "PROCESSED")
    assert (event["payment"], event["source"]) == ("c-1", "payments")
    assert _asked(service, "events", "list", "--source", "payments", "--test") == []
    assert _asked(service, "events", "list", "--until", "2020-01-01") == []
    assert len(_asked(service, "events", "list", "--limit", "2")) == 2
    whole = _asked(service, "events", "show", event["id"])
    assert whole["trail"][0]["action"] == "event_received"
    table = paidonce(service.folder, "events", "show", event["id"])
    assert "processing_succeeded" in table.stdout
    gone = paidonce(service.folder, "events", "show", "01890000-0000-7000-8000-000000000000")
    assert gone.returncode == 1
    assert "there is no event" in gone.stderr


def test_statistics_are_shown(filled: Shared) -> None:
    """OPS-1 OPS-7"""
    result = _asked(filled.service, "stats", "--days", "1", "--source", "payments")
    assert result["received"] >= 3
    assert len(result["by_day"]) == 1
    table = paidonce(filled.service.folder, "stats")
    assert "hmac-sha256" in table.stdout


def test_payments_are_listed_linked_accepted_and_marked_for_refund(filled: Shared) -> None:
    """OPS-5 OPS-7 PAY-8: and the audit log names who typed."""
    service = filled.service
    unapplied = {one["external_payment_id"]: one["id"]
                 for one in _asked(service, "payments", "list", "--not-applied")}  # fmt: skip
    assert unapplied.keys() == {"c-2", "c-3"}
    linked = _asked(service, "payments", "link", unapplied["c-2"], "--email", "buyer@example.com")
    assert linked["applied_at"] is not None
    reason = ("--reason", "told by telephone")
    accepted = _asked(service, "payments", "accept", unapplied["c-3"], *reason)
    assert accepted["applied_at"] is not None
    service.deliver(paid("c-4", email="nobody@example.com"))
    (one,) = _asked(service, "payments", "list", "--email", "nobody@example.com", "--not-applied")
    _asked(service, "payments", "mark-for-refund", one["id"], *reason)
    assert _asked(service, "payments", "show", one["id"])["id"] == one["id"]
    actors = filled.rows("SELECT DISTINCT actor FROM audit_log WHERE actor LIKE 'cli:%'")
    assert len(actors) == 1


class Watching:
    """A command that goes on until it is interrupted."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out, self.err = folder / f"{arguments[0]}-out", folder / f"{arguments[0]}-err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "paidonce", *arguments],
                cwd=folder, env={**os.environ, "NO_COLOR": "1"}, stdout=out, stderr=err,
            )  # fmt: skip
        assert until(lambda: "Ctrl-C" in self.err.read_text()), self.err.read_text()

    def lines(self) -> list[Any]:
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


def test_follow_prints_each_new_event_once(filled: Shared) -> None:
    """OPS-2 USE-2: until Ctrl-C."""
    service = filled.service
    watching = Watching(service.folder, "events", "follow", "--source", "payments", "--json")
    try:
        for number in range(3):
            service.deliver(paid(f"follow-{number}"))
        assert until(lambda: len(watching.lines()) >= 3, 60)
        service.deliver(paid("follow-last"))
        assert until(lambda: len(watching.lines()) >= 4, 60)
        result = [line["payment"] for line in watching.lines()]
        assert result == ["follow-0", "follow-1", "follow-2", "follow-last"]
    finally:
        code = watching.interrupt()
    assert code in (0, 130)
    assert "Traceback" not in watching.err.read_text()


@contextmanager
def developers_server() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that is not happy with anything."""
    received: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(418)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", received
        server.shutdown()


def test_listen_forwards_the_raw_body_and_shows_the_response(filled: Shared) -> None:
    """USE-2: to a developer's own server, whose answer changes nothing here."""
    service = filled.service
    with developers_server() as (url, received):
        watching = Watching(service.folder, "listen", "--forward-to", url, "--json")
        try:
            body = json.dumps(paid("listen-1"), indent=3).encode()
            assert service.deliver(body).json["status"] == "success"
            assert until(lambda: len(watching.lines()) == 1, 60)
        finally:
            assert watching.interrupt() in (0, 130)
        ((headers, forwarded),) = received
        assert forwarded == body
        assert headers["x-signature"] == signature(body)
        assert headers["content-type"] == "application/json"
        (line,) = watching.lines()
        assert line["answer"]["http"] == 418
        assert line["event"]["payment"] == "listen-1"
    (event,) = items(service, "/events", payment="listen-1")
    assert event["status"] == "PROCESSED"


def test_listen_continues_without_a_response(filled: Shared) -> None:
    """USE-2"""
    service = filled.service
    watching = Watching(service.folder, "listen", "--forward-to", "http://127.0.0.1:9/x", "--json")
    try:
        service.deliver(paid("listen-2"))
        assert until(lambda: len(watching.lines()) == 1, 60)
        service.deliver(paid("listen-3"))
        assert until(lambda: len(watching.lines()) == 2, 60)
        assert {line["answer"]["http"] for line in watching.lines()} == {None}
    finally:
        assert watching.interrupt() in (0, 130)
