"""Payments that arrive before anybody knows whose they are."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.servers import Shared
from tests.support.service import Reply, Service, paid
from tests.support.tools import actions_of, at_once, event, is_problem, items, period_end, until


def _payment(service: Service, external_id: str) -> Any:
    (found,) = [
        one
        for one in items(service, "/payments", limit=500)
        if one["external_payment_id"] == external_id
    ]
    return found


def _is_processed(service: Service, event_id: str) -> bool:
    return bool(event(service, event_id)["status"] == "PROCESSED")


def test_a_payment_before_its_user_is_applied_when_the_user_is_created(shared: Shared) -> None:
    """PAY-5 OBS-2: the subscription is active when the answer to POST /users arrives."""
    service = shared.service
    recovered = service.metric("webhook_recovered_total", provider="tilda")
    unlinked = service.metric("payments_unlinked_total", provider="tilda")
    answer = service.deliver(paid("early", email="Early.Bird@Example.com"))
    assert (answer.http, answer.json["status"]) == (200, "accepted")
    waiting = event(service, answer.json["event_id"])
    assert (waiting["status"], waiting["error_code"]) == ("FAILED_RETRYABLE", "USER_MISSING")
    assert waiting["next_attempt_at"] is not None
    (payment,) = items(service, "/payments", applied="false")
    assert payment["external_payment_id"] == "early"
    assert payment["status"] == "SUCCEEDED"
    assert payment["review"] == "USER_MISSING"
    assert payment["user_id"] is None
    assert payment["captured"] == "990.00"
    assert service.metric("payments_unlinked_total", provider="tilda") == unlinked + 1
    assert service.metric("webhook_events_backlog", status="FAILED_RETRYABLE") == 1
    again = service.deliver(paid("early", email="Early.Bird@Example.com"))
    assert (again.http, again.json["status"]) == (200, "duplicate")

    before = datetime.now(UTC)
    created = service.api("POST", "/users", {"email": "early.bird@EXAMPLE.com"})
    assert created.http == 201
    (subscription,) = items(service, "/subscriptions", user_id=created.json["id"])
    assert subscription["status"] == "ACTIVE"
    end = datetime.fromisoformat(subscription["current_period_end"])
    assert before + timedelta(days=30) <= end <= datetime.now(UTC) + timedelta(days=30)
    # A worker may have had the event in hand, because it was redelivered; it comes back to it.
    assert until(lambda: _is_processed(service, answer.json["event_id"]))
    payment = _payment(service, "early")
    assert payment["applied_at"] is not None
    assert payment["review"] is None
    assert payment["user_id"] == created.json["id"]
    assert service.metric("webhook_recovered_total", provider="tilda") == recovered + 1
    trail = actions_of(service, answer.json["event_id"])
    assert trail.index("processing_attempt_failed") < trail.index("processing_succeeded")
    assert "retry_scheduled" in trail

    assert service.api("POST", "/users", {"email": "EARLY.BIRD@example.com"}).http == 200
    assert period_end(service, created.json["id"]) == end


def test_letters_are_compared_in_their_composed_form(shared: Shared) -> None:
    """PAY-5: NFC, case-insensitive, nothing cleverer."""
    service = shared.service
    composed, decomposed = "Jos\u00c9@example.com", "jose\u0301@example.com"
    service.deliver(paid("nfc", email=composed))
    user = service.user(decomposed)
    assert _payment(service, "nfc")["user_id"] == user["id"]
    service.deliver(paid("dots", email="a.b+c@example.com"))
    service.user("ab@example.com")
    service.user("a.b@example.com")
    assert _payment(service, "dots")["applied_at"] is None


def test_none_of_200_users_and_payments_that_meet_at_the_same_instant_is_missed(
    service: Service,
) -> None:
    """PAY-5 PAY-3: no gap in which a new user and a new payment miss each other."""
    gates = [threading.Barrier(2) for _ in range(200)]

    def pay(number: int) -> Reply:
        gates[number].wait(60)
        return service.deliver(paid(f"race-{number}", email=f"Race-{number}@example.com"))

    def create(number: int) -> Reply:
        gates[number].wait(60)
        return service.api("POST", "/users", {"email": f"race-{number}@example.com"})

    with ThreadPoolExecutor(20) as payers, ThreadPoolExecutor(20) as creators:
        paying = payers.map(pay, range(200))
        creating = creators.map(create, range(200))
        answers, users = list(paying), list(creating)

    assert {user.http for user in users} == {201}
    assert {answer.http for answer in answers} == {200}
    assert {answer.json["status"] for answer in answers} <= {"success", "accepted"}
    assert items(service, "/payments", applied="false") == []
    applied = items(service, "/payments", applied="true", limit=500)
    assert len({payment["user_id"] for payment in applied}) == 200
    processed = items(service, "/events", status="PROCESSED", limit=500)
    assert len(processed) == 200
    for user in users:
        end = period_end(service, user.json["id"])
        assert end < datetime.now(UTC) + timedelta(days=31), "extended twice"


def test_one_user_created_by_twenty_at_once_is_one_user_extended_once(shared: Shared) -> None:
    """PAY-5 PAY-3"""
    service = shared.service
    service.deliver(paid("twenty", email="twenty@example.com"))
    replies = at_once(
        *[lambda: service.api("POST", "/users", {"email": "twenty@example.com"})] * 20
    )
    assert sorted(reply.http for reply in replies) == [200] * 19 + [201]
    (user_id,) = {reply.json["id"] for reply in replies}
    assert period_end(service, user_id) < datetime.now(UTC) + timedelta(days=31)


def test_a_payment_without_an_address_is_linked_by_an_operator(shared: Shared) -> None:
    """PAY-5 OPS-5 OBS-4"""
    service = shared.service
    user = service.user("linked@example.com")
    for name, link in (
        ("by-id", {"user_id": user["id"]}),
        ("by-mail", {"email": "LINKED@example.com"}),
    ):
        answer = service.deliver(paid(name, email=None))
        assert (answer.http, answer.json["status"]) == (200, "accepted")
        waiting = event(service, answer.json["event_id"])
        assert waiting["error_code"] == "UNLINKED_PAYMENT"
        assert waiting["status"] == "FAILED_RETRYABLE"
        payment = _payment(service, name)
        assert (payment["applied_at"], payment["review"]) == (None, "UNLINKED_PAYMENT")

        linked = service.api("POST", f"/payments/{payment['id']}/link", link)
        assert linked.http == 200, linked.body
        payment = _payment(service, name)
        assert payment["applied_at"] is not None
        assert payment["review"] is None
        assert payment["user_id"] == user["id"]
        assert _is_processed(service, answer.json["event_id"])
    end = period_end(service, user["id"])
    assert end > datetime.now(UTC) + timedelta(days=59)
    audited = shared.rows("SELECT actor, action FROM audit_log WHERE action LIKE '%link%'")
    assert len(audited) >= 2
    assert "paidonce" not in {row["actor"] for row in audited}, "who did it is not told"

    payment = _payment(service, "by-id")
    other = service.user("thief@example.com")
    again = service.api("POST", f"/payments/{payment['id']}/link", {"user_id": other["id"]})
    assert 400 <= again.http < 500, "an applied payment must not move"
    assert _payment(service, "by-id")["user_id"] == user["id"]
    assert period_end(service, user["id"]) == end
    assert items(service, "/subscriptions", user_id=other["id"]) in ([], [{}]) or all(
        one["status"] == "INACTIVE" for one in items(service, "/subscriptions", user_id=other["id"])
    )


def test_links_that_make_no_sense_are_refused(shared: Shared) -> None:
    """OPS-5 REC-5"""
    service = shared.service
    service.deliver(paid("nonsense", email=None))
    payment = _payment(service, "nonsense")
    path = f"/payments/{payment['id']}/link"
    unknown = "00000000-0000-7000-8000-000000000000"
    assert is_problem(service.api("POST", path, {}), 400)
    assert is_problem(service.api("POST", path, {"user_id": "no uuid"}), 400)
    assert is_problem(service.api("POST", path, {"mail": "linked@example.com"}), 400)
    assert is_problem(service.api("POST", path, {"email": "a\0@example.com"}), 400)
    assert is_problem(service.api("POST", path, ["email"]), 400)
    assert is_problem(service.api("POST", f"/payments/{unknown}/link", {"user_id": unknown}), 404)
    refused = service.api("POST", path, {"user_id": unknown})
    assert is_problem(refused, refused.http)
    assert refused.http in (400, 404, 409)
    payment = _payment(service, "nonsense")
    assert (payment["applied_at"], payment["user_id"]) == (None, None)


def test_a_later_event_brings_the_missing_address(shared: Shared) -> None:
    """PAY-5: the earlier event is finished with it."""
    service = shared.service
    user = service.user("later@example.com")
    first = service.deliver(paid("brought", event_id="brought-1", email=None))
    assert first.json["status"] == "accepted"
    second = service.deliver(paid("brought", event_id="brought-2", email="later@example.com"))
    assert (second.http, second.json["status"]) == (200, "success")
    payment = _payment(service, "brought")
    assert payment["user_id"] == user["id"]
    assert payment["applied_at"] is not None
    assert payment["review"] is None
    assert until(lambda: _is_processed(service, first.json["event_id"]))
    assert period_end(service, user["id"]) < datetime.now(UTC) + timedelta(days=31)


def test_a_later_event_brings_the_address_of_a_user_who_comes_even_later(shared: Shared) -> None:
    """PAY-5"""
    service = shared.service
    answers = [
        service.deliver(paid("latest", event_id="latest-1", email=None)),
        service.deliver(paid("latest", event_id="latest-2", email="latest@example.com")),
    ]
    assert [answer.json["status"] for answer in answers] == ["accepted", "accepted"]
    user = service.user("latest@example.com")
    assert period_end(service, user["id"]) < datetime.now(UTC) + timedelta(days=31)
    for answer in answers:
        found = until(lambda answer=answer: _is_processed(service, answer.json["event_id"]))  # type: ignore[misc]
        assert found
