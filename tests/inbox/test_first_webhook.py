"""The first webhook of a new user's, and its duplicate."""

from tests.support.service import Service, paid


def test_a_paid_event_extends_the_subscription_once(service: Service) -> None:
    """REC-4 REC-7 FUL-1 PAY-3"""
    user = service.user("buyer@example.com")
    first = service.deliver(paid("p-1"))
    again = service.deliver(paid("p-1"))
    assert (first.http, first.json["status"]) == (200, "success")
    assert (again.http, again.json["status"]) == (200, "duplicate")
    assert again.json["event_id"] == first.json["event_id"]
    (subscription,) = service.api("GET", "/subscriptions", user_id=user["id"]).json["items"]
    assert subscription["status"] == "ACTIVE"
    (payment,) = service.api("GET", "/payments").json["items"]
    assert payment["applied_at"] is not None
