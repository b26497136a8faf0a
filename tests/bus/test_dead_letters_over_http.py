"""Operators list, retry and discard dead letters of the bus."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.servers import Shared
from tests.support.tools import is_problem, items, paidonce

BURIED = """
INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body, error,
                              attempts, failed_at)
SELECT CASE WHEN n <= 4 THEN 'followers' ELSE 'others' END, gen_random_uuid(),
       CASE WHEN n % 2 = 0 THEN 'paidonce.thing' ELSE 'paidonce.other' END, 'k-' || n,
       CASE WHEN n <= 2 THEN 'Changed' ELSE 'Made' END, 1, now(), '{}', 'KeyError', 5,
       now() - n * interval '1 day'
  FROM generate_series(1, 6) AS n
RETURNING id
"""


@pytest.fixture
def letters(shared: Shared) -> Iterator[list[int]]:
    """Six messages of two groups, two topics and two types; the nth has died n days ago."""
    shared.rows("INSERT INTO bus_cursors (consumer, aggregate_type) VALUES ('followers', 'thing')")
    yield [row["id"] for row in shared.rows(BURIED)]
    shared.rows("DELETE FROM bus_dead_letters")
    shared.rows("DELETE FROM bus_cursors WHERE consumer = 'followers'")
    shared.rows("DELETE FROM audit_log")


def asked_for(shared: Shared) -> list[int]:
    found = shared.rows("SELECT id FROM bus_dead_letters WHERE retried_at IS NOT NULL ORDER BY id")
    return [row["id"] for row in found]


def discarded(shared: Shared) -> list[int]:
    found = shared.rows(
        "SELECT id FROM bus_dead_letters WHERE discarded_at IS NOT NULL ORDER BY id"
    )
    return [row["id"] for row in found]


def audited(shared: Shared, action: str) -> list[tuple[str, Any, str | None]]:
    found = shared.rows("SELECT * FROM audit_log WHERE action = $1 ORDER BY id", action)
    return [(row["actor"], json.loads(row["details"]), row["reason"]) for row in found]


def test_a_discarded_message_leaves_the_list_and_stays_in_the_table(
    shared: Shared, letters: list[int]
) -> None:
    """OPS-5 BUS-1: who, when and why is kept, and stands in the audit log."""
    service, path = shared.service, f"/bus/dead-letters/{letters[0]}"
    assert is_problem(service.api("POST", f"{path}/discard", {"reason": ""}), 400)
    assert is_problem(service.api("POST", f"{path}/discard"), 400)
    done = service.api("POST", f"{path}/discard", {"reason": "a test of ours"})

    assert done.http == 200, done.body
    told = done.json
    assert (told["discarded_by"], told["discard_reason"]) == ("bootstrap", "a test of ours")
    assert told["discarded_at"] is not None
    ((actor, details, reason_given),) = audited(shared, "bus_dead_letter_discarded")
    assert (actor, details["letter_id"], reason_given) == (
        "bootstrap",
        letters[0],
        "a test of ours",
    )
    assert letters[0] not in [one["id"] for one in items(service, "/bus/dead-letters")]
    (kept,) = items(service, "/bus/dead-letters", discarded="true")
    assert kept == told
    assert service.metric("bus_dead_letters", consumer="followers") == 3


def test_a_closed_dead_letter_is_neither_retried_nor_discarded(
    shared: Shared, letters: list[int]
) -> None:
    """OPS-5 BUS-1"""
    service = shared.service
    gone, taken = letters[:2]
    service.api("POST", f"/bus/dead-letters/{gone}/discard", {"reason": "first"})
    shared.rows(
        "UPDATE bus_dead_letters SET retried_at = now(), consumed_at = now() WHERE id = $1", taken
    )
    for letter, told in ((gone, "discarded by bootstrap"), (taken, "consumed already")):
        for verb, body in (("retry", None), ("discard", {"reason": "again"})):
            refused = service.api("POST", f"/bus/dead-letters/{letter}/{verb}", body)
            assert is_problem(refused, 409)
            assert told in refused.json["detail"]
    unknown = service.api("POST", "/bus/dead-letters/999999/discard", {"reason": "x"})
    assert is_problem(unknown, 404)
    assert discarded(shared) == [gone]
    assert asked_for(shared) == [taken]


def test_discarding_cancels_a_retry(shared: Shared, letters: list[int]) -> None:
    """OPS-5 BUS-1"""
    service = shared.service
    service.api("POST", f"/bus/dead-letters/{letters[0]}/retry")
    service.api("POST", f"/bus/dead-letters/{letters[0]}/discard", {"reason": "after all"})
    assert (asked_for(shared), discarded(shared)) == ([], [letters[0]])


DAYS_AGO = datetime.now(UTC) - timedelta(days=3, hours=12)


@pytest.mark.parametrize(
    ("chosen", "matching"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"consumer": "followers"}, [0, 1, 2, 3]),
        ({"type": "Made"}, [2, 3, 4, 5]),
        ({"topic": "paidonce.thing"}, [1, 3, 5]),
        ({"since": DAYS_AGO.isoformat()}, [0, 1, 2]),
        ({"until": DAYS_AGO.isoformat()}, [3, 4, 5]),
        ({"consumer": "followers", "type": "Made", "topic": "paidonce.thing"}, [3]),
        ({"consumer": "nobody"}, []),
    ],
    ids=["all", "group", "type", "topic", "since", "until", "several", "none"],
)
def test_only_dead_letters_that_match_are_listed_retried_and_discarded(
    shared: Shared, letters: list[int], chosen: dict[str, str], matching: list[int]
) -> None:
    """RET-3 OPS-5: a dry run says how many, and changes nothing."""
    service = shared.service
    expected = [letters[place] for place in matching]
    number = len(expected)
    listed = items(service, "/bus/dead-letters", **chosen)
    assert [one["id"] for one in listed] == expected[::-1]

    dry = {"filter": chosen, "dry_run": True}
    foreseen = {"number": number, "more": False, "dry_run": True}
    assert service.api("POST", "/bus/dead-letters/retry", dry).json == foreseen
    reason = {"reason": "nobody reads it"}
    assert service.api("POST", "/bus/dead-letters/discard", dry | reason).json == foreseen
    assert (asked_for(shared), discarded(shared)) == ([], [])
    assert audited(shared, "bus_dead_letters_retried") == []

    done = {"number": number, "more": False, "dry_run": False}
    assert service.api("POST", "/bus/dead-letters/retry", {"filter": chosen}).json == done
    assert asked_for(shared) == expected
    assert len(audited(shared, "bus_dead_letter_retried")) == number
    again = service.api("POST", "/bus/dead-letters/retry", {"filter": chosen}).json
    assert again["number"] == 0, "they are to be retried anyway"

    body = {"filter": chosen} | reason
    assert service.api("POST", "/bus/dead-letters/discard", body).json == done
    assert (asked_for(shared), discarded(shared)) == ([], expected)
    assert len(audited(shared, "bus_dead_letter_discarded")) == number
    ((actor, details, reason_given),) = audited(shared, "bus_dead_letters_discarded")
    assert (actor, details["number"], reason_given) == (
        "bootstrap",
        number,
        "nobody reads it",
    )


def test_several_batches_are_changed(shared: Shared) -> None:
    """RET-3: batches are committed one by one."""
    shared.rows(
        "INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body,"
        " error, attempts) SELECT 'many', gen_random_uuid(), 't', 'k', 't', 1, now(), '', 'e', 1"
        " FROM generate_series(1, 1203)"
    )
    body = {"filter": {"consumer": "many"}}
    assert shared.service.api("POST", "/bus/dead-letters/retry", body).json["number"] == 1203
    times = shared.rows("SELECT DISTINCT retried_at FROM bus_dead_letters")
    assert len(times) == 3
    shared.rows("DELETE FROM bus_dead_letters")


OPERATORS: list[tuple[str, Any]] = [
    ("/bus/dead-letters/{id}/retry", None),
    ("/bus/dead-letters/{id}/discard", {"reason": "x"}),
    ("/bus/dead-letters/retry", {"filter": {}}),
    ("/bus/dead-letters/discard", {"filter": {}, "reason": "x"}),
]


def test_a_read_key_cannot_change_dead_letters(shared: Shared, letters: list[int]) -> None:
    """SEC-6 OPS-5"""
    service = shared.service
    made = paidonce(service.folder, "keys", "create", "--name", "r", "--scope", "read")
    key = made.stdout.strip()
    for path, body in OPERATORS:
        refused = service.api("POST", path.format(id=letters[0]), body, key=key)
        assert is_problem(refused, 403), path
    assert (asked_for(shared), discarded(shared)) == ([], [])
    assert service.api("GET", "/bus/dead-letters", key=key).http == 200


@pytest.mark.parametrize(
    "wrong", [{"filter": {"colour": "red"}}, {"filter": {"since": 5}}, {}], ids=str
)
def test_an_invalid_filter_is_refused(shared: Shared, letters: list[int], wrong: Any) -> None:
    """OPS-5 REC-5"""
    assert is_problem(shared.service.api("POST", "/bus/dead-letters/retry", wrong), 400)
    assert asked_for(shared) == []


def test_the_command_line_retries_and_discards(shared: Shared, letters: list[int]) -> None:
    """OPS-7 USE-2: one by its number, or all that match after it was said how many."""
    folder, group = shared.service.folder, ("bus", "dead-letters")
    one = paidonce(folder, *group, "discard", str(letters[0]), "--reason", "a test")
    assert (one.returncode, "is discarded" in one.stderr) == (0, True), one.stderr
    dry = paidonce(folder, *group, "retry", "--consumer", "followers", "--dry-run")
    assert "3 dead letters would be retried." in dry.stderr
    assert asked_for(shared) == []
    asked = paidonce(folder, *group, "retry", "--consumer", "followers")
    assert (asked.returncode, asked_for(shared)) == (1, []), "nobody has said yes"
    sure = paidonce(folder, *group, "retry", "--consumer", "followers", "--yes")
    assert "3 dead letters are retried." in sure.stderr
    assert asked_for(shared) == letters[1:4]
    both = paidonce(folder, *group, "retry", str(letters[4]), "--dry-run")
    assert (both.returncode, "not both" in both.stderr) == (2, True)
    rest = paidonce(folder, *group, "discard", "--type", "Made", "--reason", "old", "--yes")
    assert "4 dead letters are discarded." in rest.stderr
    listed = paidonce(folder, *group, "list", "--discarded")
    assert "a test" in listed.stdout
    assert "old" in listed.stdout
    left = paidonce(folder, *group, "list", "--json")
    assert [found["id"] for found in json.loads(left.stdout)] == [letters[1]]
