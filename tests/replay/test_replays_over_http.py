"""Replays over HTTP and on the command line."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.support.servers import Shared
from tests.support.service import Service, paid
from tests.support.tools import event, is_problem, items, paidonce, period_end, until

MAKE_DEAD_LETTERS: Final = """
UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now()
 WHERE external_payment_id LIKE $1 RETURNING id
"""


def _dead_letters(shared: Shared, name: str, number: int) -> list[str]:
    """Dead letters of payments whose user was created too late."""
    for one in range(number):
        shared.service.deliver(paid(f"{name}-{one}", email=f"{name}@example.com"))
    found = shared.rows(MAKE_DEAD_LETTERS, f"{name}-%")
    shared.rows("DELETE FROM event_queue")
    shared.rows("UPDATE payments SET email_key = NULL WHERE email_key = $1", f"{name}@example.com")
    shared.service.user(f"{name}@example.com")
    return [str(row["id"]) for row in found]


def _replay(service: Service, dry_run: bool, rate: int | None = None, **chosen: Any) -> Any:
    body = {"filter": chosen, "dry_run": dry_run} | ({"rate": rate} if rate else {})
    reply = service.api("POST", "/replays", body)
    assert reply.http == 201, reply.body
    return reply.json


def _finished(service: Service, replay_id: str) -> Any:
    def found() -> Any:
        replay = service.api("GET", f"/replays/{replay_id}").json
        return replay if replay["finished_at"] else None

    return until(found)


def test_a_small_replay_is_finished_in_the_response(shared: Shared) -> None:
    """OPS-4: after a dry run with the same result."""
    service = shared.service
    ids = _dead_letters(shared, "small", 3)
    seen = _replay(service, True, status="DEAD_LETTER")
    assert (seen["status"], seen["dry_run"]) == ("DONE", True)
    assert event(service, ids[0])["status"] == "DEAD_LETTER"
    done = _replay(service, False, status="DEAD_LETTER")
    assert done["counts"] == seen["counts"] == {"DEAD_LETTER → PROCESSED": 3}
    assert done["applied"] == seen["applied"] == {"number": 3, "sums": {"RUB": "2970.00"}}
    assert {one["event_id"] for one in done["sample"]} == set(ids)
    assert event(service, ids[0])["status"] == "PROCESSED"
    assert items(service, "/replays")[0] == service.api("GET", f"/replays/{done['id']}").json
    entries = shared.rows(
        "SELECT action FROM audit_log WHERE details->>'replay' = $1 AND event_id IS NULL"
        " ORDER BY id",
        done["id"],
    )
    assert [one["action"] for one in entries] == ["replay_created", "replay_finished"]


def test_a_replay_is_paused_resumed_and_canceled(shared: Shared) -> None:
    """OPS-4: what it did stays, and nothing is done twice."""
    service = shared.service
    _dead_letters(shared, "slow", 8)
    replay = _replay(service, False, rate=1, status="DEAD_LETTER")
    assert replay["status"] == "RUNNING"
    path = f"/replays/{replay['id']}"
    paused = service.api("POST", f"{path}/pause").json
    assert (paused["status"], paused["total"]) == ("PAUSED", 8)
    assert is_problem(service.api("POST", f"{path}/pause"), 409)
    assert service.api("POST", f"{path}/resume").json["status"] == "RUNNING"
    assert is_problem(service.api("POST", f"{path}/resume"), 409)
    assert until(lambda: service.api("GET", path).json["done"] > paused["done"])
    canceled = service.api("POST", f"{path}/cancel").json
    assert (canceled["status"], canceled["finished_at"] is None) == ("CANCELED", False)
    assert is_problem(service.api("POST", f"{path}/cancel"), 409)
    done = service.api("GET", path).json["done"]
    left = len(items(service, "/dead-letters", limit=100))
    assert done + left == 8
    rest = _replay(service, False, status="DEAD_LETTER")
    assert _finished(service, rest["id"])["done"] == left
    applied = shared.rows(
        "SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL AND email LIKE 'slow@%'"
    )
    assert applied[0]["n"] == 8


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"filter": {}, "dry_run": True}, "say which events"),
        ({"filter": {"source": "nobody"}, "dry_run": True}, "there is no source"),
        ({"filter": {"status": "DEAD"}, "dry_run": True}, "filter.status"),
        ({"filter": {"since": "2026-01-01T00:00:00"}, "dry_run": True}, "filter.since"),
        ({"filter": {"colour": "red"}, "dry_run": True}, "filter.colour"),
        ({"filter": {"status": "DEAD_LETTER"}}, "dry_run"),
        ({"filter": {"status": "DEAD_LETTER"}, "dry_run": True, "rate": 0}, "rate"),
        ({"filter": {"status": "DEAD_LETTER"}, "dry_run": True, "rate": 10_001}, "rate"),
    ],
    ids=["empty", "source", "status", "zone", "unknown", "no dry_run", "no rate", "rate"],
)
def test_an_invalid_replay_is_rejected(shared: Shared, body: Any, detail: str) -> None:
    """OPS-4 REC-5"""
    refused = shared.service.api("POST", "/replays", body)
    assert is_problem(refused, 400)
    assert detail in refused.json["detail"]


def test_an_unknown_replay_is_not_found(shared: Shared) -> None:
    """OPS-4"""
    for method, end in (("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/cancel")):
        assert is_problem(shared.service.api(method, f"/replays/{uuid4()}{end}"), 404)


def test_the_command_shows_what_would_change_and_asks_for_confirmation(shared: Shared) -> None:
    """OPS-4 OPS-7 USE-2: "no" changes nothing."""
    service = shared.service
    ids = _dead_letters(shared, "asked", 2)
    seen = _command(service.folder, "replay", "--status", "DEAD_LETTER", answer="n\n")
    assert "2 × DEAD_LETTER → PROCESSED" in seen.stdout
    assert "2 payments would be applied: 1980.00 RUB" in seen.stdout
    assert "Nothing was done" in seen.stderr
    assert event(service, ids[0])["status"] == "DEAD_LETTER"
    done = _command(service.folder, "replay", "--status", "DEAD_LETTER", answer="y\n")
    assert done.returncode == 0, done.stderr
    assert "2 payments applied" in done.stdout
    assert event(service, ids[0])["status"] == "PROCESSED"
    listed = paidonce(service.folder, "replay", "list")
    assert "cli:" in listed.stdout


def test_ctrl_c_pauses_a_replay_and_it_is_resumed(shared: Shared) -> None:
    """OPS-4 USE-2: it prints the command."""
    service = shared.service
    _dead_letters(shared, "interrupted", 6)
    program = [sys.executable, "-m", "paidonce", "replay", "--status", "DEAD_LETTER"]
    command = subprocess.Popen(
        [*program, "--rate", "2", "--yes"],
        cwd=service.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: _has_begun(items(service, "/replays")[0]), timeout_s=30)
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=30)
    assert command.returncode == 130
    replay_id = stderr.split("paidonce replay resume ")[1].split()[0]
    assert service.api("GET", f"/replays/{replay_id}").json["status"] == "PAUSED"
    done = paidonce(service.folder, "replay", "resume", replay_id, "--json")
    assert done.returncode == 0, done.stderr
    assert '"status": "DONE"' in done.stdout
    assert '"done": 6' in done.stdout


def test_dead_letters_and_events_on_the_command_line(shared: Shared) -> None:
    """OPS-5 OPS-7 USE-2"""
    service = shared.service
    one, two, three = _dead_letters(shared, "by-hand", 3)
    listed = paidonce(service.folder, "dead-letters", "list", "--payment", "by-hand-0")
    assert one in listed.stdout
    assert two not in listed.stdout
    retried = paidonce(service.folder, "dead-letters", "retry", one)
    assert "Its payment was applied." in retried.stdout
    end = period_end(service, service.user("by-hand@example.com")["id"])
    again = paidonce(service.folder, "events", "reprocess", one, "--json")
    assert '"result": "processed"' in again.stdout
    assert period_end(service, service.user("by-hand@example.com")["id"]) == end
    discarded = paidonce(service.folder, "dead-letters", "discard", two, "--reason", "known")
    assert "is discarded" in discarded.stderr
    assert event(service, two)["error_message"] == "discarded: known"
    rest = paidonce(
        service.folder, "dead-letters", "discard", "--source", "payments", "--reason", "x", "--yes"
    )
    assert "1 dead letters are discarded." in rest.stderr
    assert event(service, three)["status"] == "FAILED_FINAL"
    wrong = paidonce(service.folder, "replay", "--since", "yesterday")
    assert (wrong.returncode, "--since yesterday" in wrong.stderr) == (2, True)


def _has_begun(replay: Any) -> bool:
    return bool(replay["rate"] == 2 and replay["done"] >= 1)


def _command(folder: Path, *arguments: str, answer: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paidonce", *arguments],
        cwd=folder,
        input=answer,
        capture_output=True,
        text=True,
        timeout=30,
    )
