"""Several processes behind one socket, and workers beside them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import event, paidonce, rows, storm, until

MOST_SENT = 2_400
QUEUED = f'{BASIC}\n[server]\nmode = "queued"\n'


def children(parent: int) -> list[int]:
    """The processes that this one has started and that have not ended."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(pid) for pid in listed.split()]


def is_there(pid: int) -> bool:
    """Whether the process lives; one that has ended and is not fetched does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def two(start_service: StartService) -> Service:
    """A service of two processes."""
    service = start_service(arguments=["--processes", "2"])
    assert until(lambda: len(children(service.process.pid)) == 2)
    return service


def test_two_processes_serve_one_socket_and_count_together(two: Service) -> None:
    """REC-3 OBS-2"""
    two.user("both@example.com")
    names: set[str] = set()
    sent = 0
    while len(names) < 2 and sent < MOST_SENT:  # the second may begin to listen after the first
        numbers = range(sent, sent + 120)
        said = [paid(f"both-{number}", email="both@example.com") for number in numbers]
        replies = storm(two, said, 30)
        assert {(reply.http, reply.json["status"]) for reply in replies} == {(200, "success")}
        sent += len(said)
        ids = {line["request_id"] for line in two.log_lines(sent, result="processed")}
        assert len(ids) == sent
        names = {one.split("-")[0] for one in ids}
    assert len(names) == 2, "one did all the work"
    for _ in range(10):
        assert two.metric("webhook_processed_total", provider="tilda") == sent
        assert two.metric("webhook_requests_total", provider="tilda", http_code="200") == sent
    health = two.request("GET", "/webhooks/health").json
    assert health["errors"]["invalid_signature"] == 0
    two.deliver(paid("forged"), secret="of-somebody-else")
    for _ in range(10):
        health = two.request("GET", "/webhooks/health").json
        assert health["errors"]["invalid_signature"] == 1


def test_a_process_that_dies_is_replaced_and_what_it_counted_stays(two: Service) -> None:
    """REC-2"""
    two.user("heir@example.com")
    storm(two, [paid(f"heir-{number}", email="heir@example.com") for number in range(30)], 10)
    before = set(children(two.process.pid))
    os.kill(min(before), signal.SIGKILL)
    assert until(lambda: len(set(children(two.process.pid)) - before) == 1)
    assert until(lambda: len(children(two.process.pid)) == 2)
    assert two.log_lines(event="process_died")
    for number in range(20):
        assert two.deliver(paid(f"later-{number}", email="heir@example.com")).http == 200
    assert two.metric("webhook_processed_total", provider="tilda") == 50


def test_all_stop_with_the_parent_whatever_ends_it(start_service: StartService) -> None:
    """Section 15: SIGTERM stops gracefully; and nobody is left behind by a SIGKILL."""
    for ending, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)):
        service = start_service(arguments=["--processes", "2"])
        assert until(lambda service=service: len(children(service.process.pid)) == 2)  # type: ignore[misc]
        pids = children(service.process.pid)
        assert service.end(ending) == code
        assert until(lambda pids=pids: not any(map(is_there, pids))), ending  # type: ignore[misc]


def test_what_is_wrong_with_the_settings_ends_all_of_them(tmp_path: Path) -> None:
    """USE-3"""
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    (tmp_path / "paidonce.toml").write_text(f'{BASIC}\n[database]\nurl = "{url}"\n')
    said = paidonce(tmp_path, "serve", "--port", "0", "--processes", "2")
    assert said.returncode == 2
    assert "database.url" in said.stderr
    assert "Traceback" not in said.stderr


def test_who_only_works_takes_no_deliveries_but_says_how_it_is(start_service: StartService) -> None:
    """RET-4 OPS-3: roles in processes of their own."""
    web = start_service(QUEUED, arguments=["--roles", "web"])
    web.user("roles@example.com")
    answer = web.deliver(paid("roles", email="roles@example.com"))
    assert (answer.http, answer.json["status"]) == (200, "accepted")
    assert event(web, answer.json["event_id"])["status"] == "VALIDATED", "nobody works yet"

    worker = start_service(QUEUED, arguments=["--roles", "worker,janitor"])
    assert until(lambda: event(web, answer.json["event_id"])["status"] == "PROCESSED")
    assert worker.deliver(paid("other")).http == 404
    assert worker.api("GET", "/events").http == 404
    assert worker.request("GET", "/readyz").http == 200
    assert worker.metric("webhook_processed_total", provider="tilda") == 1
    assert worker.metric("webhook_recovered_total", provider="tilda") == 0, "it never failed"
    assert worker.end() == 0


def test_who_takes_no_deliveries_says_what_it_does_and_makes_no_key(
    start_service: StartService, database_url: str
) -> None:
    """USE-2 SEC-3: its operators would have nothing to use a key for, and nobody reads its log."""
    arguments = ["--roles", "janitor,payments"]
    worker = start_service(BASIC, arguments=arguments, PAIDONCE_BOOTSTRAP_KEY=None)
    told = (worker.folder / "stderr").read_text(encoding="utf-8")
    assert "/docs" not in told
    assert "po_" not in told
    assert "/metrics" in told
    assert "It carries out payments from wallets, maintains the tables." in told
    assert "payouts.gateway_url is not set" in told
    assert rows(database_url, "SELECT 1 FROM api_keys") == []


def test_a_worker_beside_the_service_is_woken_by_what_arrives(
    start_service: StartService, start_worker: StartService, database_url: str
) -> None:
    """RET-4 REC-4: `paidonce work`"""
    web = start_service(QUEUED, arguments=["--roles", "web"])
    worker = start_worker(QUEUED)
    web.user("woken@example.com")
    for number in range(5):
        said = paid(f"woken-{number}", email="woken@example.com")
        event_id = web.deliver(said).json["event_id"]
        assert until(lambda at=event_id: _status(database_url, at) == "PROCESSED")  # type: ignore[misc]
    assert worker.end() == 0
    assert not worker.log_lines(event="service_crashed")


def _status(database_url: str, event_id: str) -> Any:
    (row,) = rows(database_url, "SELECT status FROM webhook_events WHERE id = $1", event_id)
    return row["status"]


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (["--roles", "web,cook"], {}, "cook"),
        (["--roles", ""], {}, "--roles"),
        ([], {"PAIDONCE_CRASH_AT": "nowhere:1"}, "PAIDONCE_CRASH_AT"),
        ([], {"PAIDONCE_CRASH_AT": "committed:0"}, "PAIDONCE_CRASH_AT"),
    ],
)
def test_a_wrong_role_or_moment_is_named(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], named: str
) -> None:
    """USE-3"""
    (tmp_path / "paidonce.toml").write_text(BASIC)
    said = paidonce(tmp_path, "serve", "--port", "0", *arguments, timeout_s=30, **environment)
    assert said.returncode == 2
    assert named in said.stderr
    assert "Traceback" not in said.stderr


def test_a_crash_on_purpose_is_refused_in_production(tmp_path: Path) -> None:
    """REL-1"""
    text = BASIC.replace('"development"', '"production"')
    (tmp_path / "paidonce.toml").write_text(text)
    said = paidonce(tmp_path, "serve", "--port", "0", PAIDONCE_CRASH_AT="committed:1")
    assert said.returncode == 2
    assert "refused in production" in said.stderr
