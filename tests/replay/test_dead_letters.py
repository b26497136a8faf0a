"""Dead letters: events whose attempts are used up; an operator retries or discards them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.servers import Shared
from tests.support.service import BASIC, Service, paid
from tests.support.tools import event, is_problem, items, until

CONFIG: Final = f"""{BASIC}
[retry]
attempts = 2
initial_s = 0.01
"""

REFUSE: Final = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'no' USING ERRCODE = '23514';
END $$
"""


@contextmanager
def _a_fault(shared: Shared) -> Iterator[None]:
    """Let the database reject new payments."""
    shared.rows(REFUSE)
    shared.rows(
        "CREATE TRIGGER refuse BEFORE INSERT ON payments FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        yield
    finally:
        shared.rows("DROP TRIGGER refuse ON payments")
        shared.rows("DROP FUNCTION refuse")


def _dead_letters(shared: Shared, *payments: str) -> list[Any]:
    """Events of payments that failed until their attempts were used up."""
    service = shared.service
    with _a_fault(shared):
        ids = [
            service.deliver(paid(one, email=f"{one}@example.com")).json["event_id"]
            for one in payments
        ]
        return [until(lambda one=one: _dead(service, one)) for one in ids]  # type: ignore[misc]


def _dead(service: Service, event_id: str) -> Any:
    found = event(service, event_id)
    return found if found["status"] == "DEAD_LETTER" else None


def test_s3_dead_letter_queue(shared: Shared) -> None:
    """RET-3 OPS-5 S3 "Dead letter queue": put there, marked for a person, retried by hand."""
    service = shared.service
    user = service.user("queue@example.com")
    (dead,) = _dead_letters(shared, "queue")
    assert dead["attempts"] == 2
    assert [one["id"] for one in items(service, "/dead-letters")] == [dead["id"]]
    assert items(service, "/subscriptions", user_id=user["id"]) == []

    retried = service.api("POST", f"/dead-letters/{dead['id']}/retry")

    assert retried.http == 200, retried.body
    assert retried.json["status"] == "PROCESSED"
    report = retried.json["reprocessed"]
    assert (report["was"], report["result"], report["applied"]) == (
        "DEAD_LETTER",
        "processed",
        True,
    )
    assert len(items(service, "/subscriptions", user_id=user["id"])) == 1
    assert items(service, "/dead-letters") == []
    (entry,) = [one for one in retried.json["trail"] if one["action"] == "event_reprocessed"]
    assert entry["details"]["was_error_code"] == "INTERNAL"
    assert is_problem(service.api("POST", f"/dead-letters/{dead['id']}/retry"), 409)


def test_a_discarded_dead_letter_leaves_its_payment_listed(
    shared: Shared,
) -> None:
    """OPS-5 PAY-8"""
    service = shared.service
    answer = service.deliver(paid("given-up", email="nobody@example.com"))
    event_id = answer.json["event_id"]
    shared.rows(
        "UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now() WHERE id = $1",
        event_id,
    )
    money = items(service, "/payments", applied="false", email="nobody@example.com")
    assert len(money) == 1

    assert is_problem(service.api("POST", f"/dead-letters/{event_id}/discard", {"reason": ""}), 400)
    done = service.api("POST", f"/dead-letters/{event_id}/discard", {"reason": "sold in the shop"})

    assert done.http == 200, done.body
    assert (done.json["status"], done.json["error_code"]) == ("FAILED_FINAL", "USER_MISSING")
    assert done.json["error_message"] == "discarded: sold in the shop"
    (entry,) = [one for one in done.json["trail"] if one["action"] == "dead_letter_discarded"]
    assert (entry["actor"], entry["reason"]) == ("bootstrap", "sold in the shop")
    assert items(service, "/payments", applied="false", email="nobody@example.com") == money
    again = service.api("POST", f"/dead-letters/{event_id}/discard", {"reason": "twice"})
    assert is_problem(again, 409)
    assert event(service, event_id)["error_message"] == "discarded: sold in the shop"


def test_all_matching_dead_letters_are_retried(shared: Shared) -> None:
    """RET-3: one or all that match a filter."""
    service = shared.service
    for name in ("all-1", "all-2", "all-3"):
        service.user(f"{name}@example.com")
    one, two, three = _dead_letters(shared, "all-1", "all-2", "all-3")

    replay = service.api("POST", "/dead-letters/retry", {"filter": {"payment": "all-1"}})
    assert replay.http == 201, replay.body
    assert replay.json["status"] == "DONE"
    assert replay.json["counts"] == {"DEAD_LETTER → PROCESSED": 1}
    assert event(service, one["id"])["status"] == "PROCESSED"
    assert event(service, two["id"])["status"] == "DEAD_LETTER"

    rest = service.api("POST", "/dead-letters/retry", {"filter": {"error_code": "INTERNAL"}})
    assert rest.json["counts"] == {"DEAD_LETTER → PROCESSED": 2}
    assert event(service, three["id"])["status"] == "PROCESSED"


def test_only_matching_dead_letters_are_discarded(shared: Shared) -> None:
    """OPS-5 RET-3"""
    service = shared.service
    one, two = _dead_letters(shared, "some-1", "some-2")
    body = {"filter": {"payment": "some-1"}, "reason": "a test of the shop"}
    done = service.api("POST", "/dead-letters/discard", body)
    assert done.json == {"discarded": 1, "more": False}
    assert event(service, one["id"])["status"] == "FAILED_FINAL"
    assert event(service, two["id"])["status"] == "DEAD_LETTER"
    (found,) = shared.rows("SELECT * FROM audit_log WHERE action = 'dead_letters_discarded'")
    assert found["actor"] == "bootstrap"
    everything = {"filter": {}, "reason": "the rest"}
    assert service.api("POST", "/dead-letters/discard", everything).json["discarded"] >= 1
    assert items(service, "/dead-letters") == []


@pytest.mark.parametrize(
    "wrong", [{"filter": {"status": "PROCESSED"}}, {"filter": {"colour": "red"}}, {}], ids=str
)
def test_an_invalid_filter_is_refused(shared: Shared, wrong: Any) -> None:
    """OPS-5 REC-5"""
    body = wrong | {"reason": "x"}
    assert is_problem(shared.service.api("POST", "/dead-letters/discard", body), 400)


def test_dead_letters_are_listed_in_pages_and_by_filter(shared: Shared) -> None:
    """OPS-5: the same shape as events."""
    service = shared.service
    dead = _dead_letters(shared, "page-1", "page-2", "page-3")
    first = service.api("GET", "/dead-letters", limit=2).json
    assert [one["id"] for one in first["items"]] == [dead[2]["id"], dead[1]["id"]]
    second = service.api("GET", "/dead-letters", limit=2, cursor=first["next_cursor"]).json
    assert second["items"][0]["id"] == dead[0]["id"]
    assert [one["id"] for one in items(service, "/dead-letters", payment="page-2")] == [
        dead[1]["id"]
    ]
    assert items(service, "/dead-letters", error_code="USER_MISSING") == []
    assert items(service, "/dead-letters", source="nobody") == []
    assert items(service, "/dead-letters")[0].keys() == items(service, "/events")[0].keys()
