"""The bus as operators meet it: published by the service, looked at and mended by hand."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paidonce.bus.contract import open_bus
from paidonce.errors import ConfigurationError
from paidonce.settings.reading import load_settings
from paidonce.settings.sections import BusSettings
from tests.support.servers import Shared, StartService
from tests.support.service import Service, paid, started_behind_the_door, started_relay
from tests.support.tools import is_problem, items, paidonce, rows, until

BURIED = """
INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body, error,
                              attempts)
SELECT 'followers', gen_random_uuid(), 'paidonce.thing', 'k-' || n, 'Changed', 1, now(), '{}',
       'KeyError', 5
  FROM generate_series(1, $1::int) AS n
RETURNING id
"""


@pytest.fixture
def letters(shared: Shared) -> Iterator[list[int]]:
    """Three messages that a group could not take; the group itself runs nowhere."""
    shared.rows("INSERT INTO bus_cursors (consumer, aggregate_type) VALUES ('followers', 'thing')")
    yield [row["id"] for row in shared.rows(BURIED, 3)]
    shared.rows("DELETE FROM bus_dead_letters")
    shared.rows("DELETE FROM bus_cursors WHERE consumer = 'followers'")


def published(database_url: str) -> list[Any]:
    return rows(database_url, "SELECT type, pos FROM outbox WHERE published_at IS NOT NULL")


def test_the_service_publishes_applied_payments(shared: Shared) -> None:
    """BUS-1 OBS-2: nothing has to be installed or started for it."""
    service = shared.service
    service.user("bus@example.com")
    before = service.metric("bus_published_total")
    service.deliver(paid("bus-1", email="bus@example.com"))
    assert until(lambda: service.api("GET", "/bus").json["unpublished"] == 0)
    assert ("payment.applied", True) in [
        (row["type"], row["pos"] is not None) for row in published(shared.database_url)
    ]
    assert until(lambda: service.metric("bus_published_total") == before + 1)
    assert service.metric("bus_unpublished") == 0
    assert service.metric("bus_unpublished_oldest_seconds") == 0


def test_the_status_shows_the_lag_of_each_group(shared: Shared, letters: list[int]) -> None:
    """OPS-5 BUS-1 OBS-2"""
    service = shared.service
    told = service.api("GET", "/bus").json
    (group,) = (one for one in told["groups"] if one["consumer"] == "followers")
    assert (group["consumer"], group["aggregate_type"], group["lag"]) == ("followers", "thing", 0)
    assert told["dead_letters"]["followers"] == 3
    assert service.metric("bus_dead_letters", consumer="followers") == 3
    assert service.metric("bus_lag", consumer="followers", aggregate_type="thing") == 0
    shared.rows(
        "INSERT INTO bus_cursors (consumer, aggregate_type, seen_at)"
        " VALUES ('followers', 'left', now() - interval '1 day')"
    )
    assert 0 < service.metric("bus_inactive_seconds", consumer="followers") < 3_600
    shared.rows(
        "UPDATE bus_cursors SET seen_at = now() - interval '2 hours' WHERE aggregate_type = 'thing'"
    )
    assert 7_200 <= service.metric("bus_inactive_seconds", consumer="followers") < 86_400
    done = paidonce(service.folder, "bus", "status")
    assert done.returncode == 0, done.stderr
    assert "followers" in done.stdout
    assert "0 messages are not published yet." in done.stderr
    done = paidonce(service.folder, "bus", "status", "--json")
    assert json.loads(done.stdout)["dead_letters"]["followers"] == 3


def test_the_status_names_inactive_groups(shared: Shared, letters: list[int]) -> None:
    """OPS-5 BUS-1: on Kafka only the group knows its lag; each is named once."""
    folder = shared.service.folder
    shared.rows("INSERT INTO bus_cursors (consumer, aggregate_type) VALUES ('followers', 'other')")
    shared.rows(
        "UPDATE bus_cursors SET seen_at = now() - interval '5 minutes' WHERE consumer = 'followers'"
    )
    done = paidonce(folder, "bus", "status")
    assert done.stderr.count("Group followers was last active") == 1, done.stderr
    assert "Group query" not in done.stderr
    assert shared.service.metric("bus_inactive_seconds", consumer="followers") >= 300
    assert shared.service.metric("bus_inactive_seconds", consumer="query") < 300
    assert "Dead letters: 3 of followers; see" in done.stderr
    assert "bus dead-letters list" in done.stderr


def test_a_dead_letter_is_listed_and_retried(shared: Shared, letters: list[int]) -> None:
    """OPS-5 BUS-1: the newest first, in pages; a retry is in the audit log."""
    service = shared.service
    found = items(service, "/bus/dead-letters", consumer="followers")
    assert [one["id"] for one in found] == sorted(letters, reverse=True)
    assert items(service, "/bus/dead-letters", consumer="others") == []
    page = service.api("GET", "/bus/dead-letters", limit=2).json
    rest = service.api("GET", "/bus/dead-letters", limit=2, cursor=page["next_cursor"]).json
    assert [one["id"] for one in page["items"] + rest["items"]] == [one["id"] for one in found]
    assert rest["next_cursor"] is None

    reply = service.api("POST", f"/bus/dead-letters/{letters[0]}/retry")
    assert (reply.http, reply.json["id"]) == (200, letters[0])
    assert reply.json["retried_at"] is not None
    (audited,) = shared.rows("SELECT * FROM audit_log WHERE action = 'bus_dead_letter_retried'")
    assert (audited["actor"], json.loads(audited["details"])["letter_id"]) == (
        "bootstrap",
        letters[0],
    )
    shared.rows("UPDATE bus_dead_letters SET consumed_at = now() WHERE id = $1", letters[0])
    again = service.api("POST", f"/bus/dead-letters/{letters[0]}/retry")
    assert is_problem(again, 409)
    assert is_problem(service.api("POST", "/bus/dead-letters/999999/retry"), 404)
    assert letters[0] not in [one["id"] for one in items(service, "/bus/dead-letters")]


def test_payouts_that_need_a_person_are_measured(shared: Shared) -> None:
    """OBS-2 RET-5: and callbacks that were given up."""
    service = shared.service
    assert service.metric("gateway_callbacks_dead") == 0
    shared.rows(
        "INSERT INTO wallet_payments (payment_id, wallet_id, source_id, amount_minor, currency,"
        " request_hash, status, review, created_at, updated_at)"
        " SELECT n::text, gen_random_uuid(), 1, 1, 'RUB', '', 'INITIATED', 'SILENT', now(), now()"
        " FROM generate_series(1, 2) AS n"
    )
    shared.rows(
        "INSERT INTO gateway_callbacks (id, source_id, transaction_id, gateway_status, event_id,"
        " status,"
        " received_at, ended_at)"
        " VALUES (gen_random_uuid(), 1, 't', 'failed', gen_random_uuid(), 'DEAD_LETTER', now(),"
        " now())"
    )
    assert service.metric("wallet_payments_review", reason="SILENT") == 2
    assert service.metric("gateway_callbacks_dead") == 1
    shared.rows("DELETE FROM wallet_payments")
    shared.rows("DELETE FROM gateway_callbacks")


def test_the_command_line_lists_and_retries_dead_letters(
    shared: Shared, letters: list[int]
) -> None:
    """OPS-5 USE-2"""
    folder = shared.service.folder
    done = paidonce(folder, "bus", "dead-letters", "list", "--json")
    assert {one["id"] for one in json.loads(done.stdout)} == set(letters)
    done = paidonce(folder, "bus", "dead-letters", "list")
    assert "KeyError" in done.stdout
    done = paidonce(folder, "bus", "dead-letters", "retry", str(letters[1]))
    assert (done.returncode, "followers" in done.stderr) == (0, True), done.stderr
    done = paidonce(folder, "bus", "dead-letters", "retry", "999999")
    assert (done.returncode, "999999" in done.stderr) == (1, True)
    found = shared.rows("SELECT id FROM bus_dead_letters WHERE retried_at IS NOT NULL")
    assert [row["id"] for row in found] == [letters[1]]


def test_separate_relays_publish_and_take_over(
    start_service: StartService, database_url: str, tmp_path: Path
) -> None:
    """BUS-1 USE-2: `paidonce relay`; one publishes, and when it is killed the other does."""
    service = start_service(arguments=("--roles", "web"))
    service.user("relay@example.com")
    relays: list[Service] = []
    try:
        for number in range(2):
            folder = tmp_path / f"relay-{number}"
            folder.mkdir()
            relays.append(started_relay(folder, database_url))
        service.deliver(paid("relay-1", email="relay@example.com"))
        assert until(lambda: len(published(database_url)) == 1)
        relays[0].process.kill()
        service.deliver(paid("relay-2", email="relay@example.com"))
        assert until(lambda: len(published(database_url)) == 2)
        assert relays[1].end(signal.SIGTERM) == 0
    finally:
        for one in relays:
            one.end(signal.SIGKILL)


def test_a_relay_with_a_port_serves_metrics(
    start_service: StartService, database_url: str, tmp_path: Path
) -> None:
    """BUS-1 OBS-2 OPS-3: it publishes, and does not accept deliveries."""
    service = start_service(arguments=("--roles", "web"))
    service.user("relay@example.com")
    folder = tmp_path / "relay"
    folder.mkdir()
    relay = started_behind_the_door(folder, database_url, "relay")
    try:
        service.deliver(paid("relay-3", email="relay@example.com"))
        assert until(lambda: relay.metric("bus_published_total") == 1)
        assert relay.request("GET", "/healthz").http == 200
        assert relay.deliver(paid("relay-4")).http == 404
        assert relay.end(signal.SIGTERM) == 0
    finally:
        relay.end(signal.SIGKILL)


def test_a_worker_with_a_port_serves_health(database_url: str, tmp_path: Path) -> None:
    """OBS-2 OPS-3"""
    worker = started_behind_the_door(tmp_path, database_url, "work")
    try:
        assert worker.request("GET", "/readyz").http == 200
        assert worker.end(signal.SIGTERM) == 0
    finally:
        worker.end(signal.SIGKILL)


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1", "kafka://", "kafka://a", "kafka://a:9092,", "kafka://u:p@a:9092", ""],
)
def test_an_unknown_bus_url_is_refused_with_a_hint(tmp_path: Path, url: str) -> None:
    """USE-3 BUS-1"""
    config = tmp_path / "paidonce.toml"
    config.write_text(f'[bus]\nurl = "{url}"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"bus\.url .*kafka://host:9092"):
        load_settings(config)


def test_kafka_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE-3 BUS-1"""
    for name in ("confluent_kafka", "confluent_kafka.admin"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("bus", "options", "reader", "publisher", "topics"):
        monkeypatch.delitem(sys.modules, f"paidonce.bus.kafka.{name}", raising=False)
    with pytest.raises(ConfigurationError, match=r"bus\.url .*paidonce\[kafka\]"):
        open_bus(BusSettings(url="kafka://127.0.0.1:9092"))


@pytest.mark.parametrize("days", [1, 7])
def test_consumed_ids_are_kept_longer_than_topics_keep_messages(days: int) -> None:
    """QRY-1 DAT-3"""
    with pytest.raises(ConfigurationError, match="give at least 8, or 0 for ever"):
        load_settings(None, retention={"processed_events_days": days})
