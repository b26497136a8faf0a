"""Sources of the providers `stripe` and `generic`, over a real server.

Deliveries are signed by the code of the cases, which is independent of the providers.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import pytest

from tests.providers.cases.generic import PAGE, bank, ed25519, hub, paddle, pem, razorpay, square
from tests.providers.cases.stripe import event as stripe_event
from tests.providers.cases.stripe import signed as stripe_signed
from tests.providers.conformance import ExpectedEvent, MakeDelivery
from tests.support.servers import Shared
from tests.support.service import BASIC, Reply, Service
from tests.support.tools import event, is_problem, items, paidonce, period_end

SECRET: Final = "whsec_of the shop's own"
SENDERS: Final[dict[str, MakeDelivery]] = {
    "hub": hub,
    "paddle": paddle,
    "rzp": razorpay,
    "square": square,
    "bank": bank(lambda secret, content: ed25519(secret).sign(content)),
}


def page_settings() -> str:
    """The descriptions of the documentation, with the secrets of this test."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    text = "\n".join(blocks).replace('"generic"', '"generic"\nlink_by_email = true')
    key = pem(ed25519(SECRET)).replace("\n", "\\n")
    return re.sub(r'"env:\w+"', f'"{SECRET}"', text).replace("file:bank.pem", key)


CONFIG: Final = f"""
{BASIC}
[sources.cards]
provider = "stripe"
secrets = ["whsec_old", "{SECRET}"]
link_by_email = true
{page_settings()}
"""


def send(service: Service, source: str, headers: Any, body: bytes) -> Reply:
    return service.request("POST", f"/webhooks/{source}", body, headers)


def send_stripe(
    service: Service,
    kind: str,
    fields: dict[str, Any],
    event_id: str,
    *,
    secret: str = SECRET,
    late_s: int = 0,
    **more: Any,
) -> Reply:
    at = datetime.now(UTC) - timedelta(seconds=late_s)
    usual = {"currency": "rub", "metadata": {}}
    delivery = stripe_signed(stripe_event(kind, usual | fields, event_id, **more), secret, at)
    return send(service, "cards", delivery.headers, delivery.body)


def intent(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"pi_{name}", "amount_received": 99_000, "latest_charge": f"ch_{name}"} | fields


def charge(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"ch_{name}",
        "payment_intent": f"pi_{name}",
        "amount": 99_000,
        "amount_captured": 99_000,
        "amount_refunded": 0,
        "captured": True,
        "status": "succeeded",
    } | fields


def test_the_events_of_one_stripe_payment_count_once(shared: Shared) -> None:
    """PRV-6 PAY-1 PAY-3: its intent, its charge and its session, each with an event of its own."""
    service, email = shared.service, "stripe@example.com"
    user = service.user(email)
    paid = intent("1", receipt_email=email)
    first = send_stripe(service, "payment_intent.succeeded", paid, "evt_1")
    assert (first.http, first.json["status"]) == (200, "success")
    end = period_end(service, user["id"])
    again = send_stripe(service, "payment_intent.succeeded", paid, "evt_1", late_s=20)
    assert (again.json["status"], again.json["event_id"]) == ("duplicate", first.json["event_id"])
    session = {"id": "cs_1", "payment_intent": "pi_1", "payment_status": "paid"}
    for kind, fields in (
        ("charge.succeeded", charge("1")),
        ("checkout.session.completed", session | {"amount_total": 99_000}),
        ("payment_intent.payment_failed", intent("1")),
    ):
        assert send_stripe(service, kind, fields, f"evt_1_{kind}").http == 200
    assert period_end(service, user["id"]) == end
    (payment,) = items(service, "/payments", email=email)
    assert (payment["external_payment_id"], payment["status"]) == ("pi_1", "SUCCEEDED")
    assert (payment["amount"], payment["currency"]) == ("990.00", "RUB")
    assert payment["ids"] == [
        {"kind": "charge", "id": "ch_1"},
        {"kind": "payment", "id": "pi_1"},
        {"kind": "session", "id": "cs_1"},
    ]
    shown = event(service, first.json["event_id"])
    assert (shown["key"], shown["type"]) == ("evt_1", "payment_intent.succeeded")


@pytest.mark.parametrize(
    ("kind", "fields", "shown"),
    [
        ("charge.succeeded", charge("lone", payment_intent=None), "ch_lone"),
        (
            "invoice.paid",
            {"id": "in_lone", "charge": "ch_of_invoice", "amount_paid": 99_000},
            "ch_of_invoice",
        ),
        (
            "checkout.session.completed",
            {"id": "cs_lone", "invoice": "in_1", "payment_status": "paid", "amount_total": 99_000},
            "cs_lone",
        ),
        ("invoice.payment_failed", {"id": "in_failed"}, "in_failed"),
    ],
)
def test_a_payment_without_an_intent_is_shown_by_its_next_best_id(
    shared: Shared, kind: str, fields: dict[str, Any], shown: str
) -> None:
    """PAY-1 PRV-6: in the payment, its event, the log line and its order."""
    service, reference = shared.service, f"order of {shown}"
    order = {"reference": reference, "amount": "990.00", "currency": "RUB"}
    assert service.api("POST", "/orders", order).http == 201
    said = fields | {"metadata": {"order": reference}}
    reply = send_stripe(service, kind, said, f"evt_{shown}")
    (payment,) = items(service, "/payments", order=reference)
    assert payment["external_payment_id"] == shown
    (paid,) = service.api("GET", f"/orders/{quote(reference)}").json["payments"]
    assert paid["external_payment_id"] == shown
    assert event(service, reply.json["event_id"])["payment"] == shown
    assert service.log_lines(external_event_id=f"evt_{shown}", external_payment_id=shown)


def test_the_life_of_a_stripe_payment(shared: Shared) -> None:
    """PAY-2: an authorisation is no money, a refund is cumulative."""
    service, email = shared.service, "life.stripe@example.com"
    service.user(email)

    def status_after(kind: str, fields: dict[str, Any]) -> tuple[str, str, str]:
        reply = send_stripe(service, kind, fields | {"receipt_email": email}, f"evt_life_{fields}")
        assert reply.http == 200
        (payment,) = items(service, "/payments", email=email)
        return payment["status"], payment["captured"], payment["refunded"]

    held = charge("life", captured=False, amount_captured=0)
    assert status_after("payment_intent.created", intent("life"))[0] == "PENDING"
    assert status_after("charge.succeeded", held)[0] == "PROCESSING"
    assert status_after("charge.captured", charge("life"))[:2] == ("SUCCEEDED", "990.00")
    for refunded, status in ((9_000, "PARTIALLY_REFUNDED"), (99_000, "REFUNDED")):
        fields = charge("life", amount_refunded=refunded)
        assert status_after("charge.refunded", fields) == (
            status,
            "990.00",
            f"{refunded // 100}.00",
        )


def test_forged_and_meaningless_stripe_deliveries_have_no_effect(shared: Shared) -> None:
    """PRV-6 PRV-8 REC-5 REC-6"""
    service, kind = shared.service, "payment_intent.succeeded"
    assert is_problem(send_stripe(service, kind, intent("x"), "evt_x", secret="whsec_other"), 401)
    for late_s in (400, -400):
        stale = send_stripe(service, kind, intent("x"), "evt_x", late_s=late_s)
        assert is_problem(stale, 401)
        assert stale.json["code"] == "TIMESTAMP_EXPIRED"
    assert is_problem(send_stripe(service, kind, {"id": "pi_x"}, "evt_x"), 400)
    assert is_problem(send(service, "cards", {"content-type": "application/json"}, b"{}"), 401)
    assert send_stripe(service, "customer.created", {}, "evt_c").json["status"] == "ignored"
    thin = send_stripe(service, kind, {}, "evt_thin", object="v2.core.event", data=None)
    assert thin.json["status"] == "ignored"
    rolled = send_stripe(service, kind, intent("rolled"), "evt_rolled", secret="whsec_old")
    assert rolled.http == 200


@pytest.mark.parametrize("source", SENDERS)
def test_a_described_sender_pays_once(shared: Shared, source: str) -> None:
    """PRV-6 INB-1 PAY-3: as the documentation describes it."""
    service, email = shared.service, f"{source}@example.com"
    user = service.user(email)
    fields = ExpectedEvent(payment_id=f"p-{source}", event_id=f"evt-{source}", email=email)

    def deliver(fields: ExpectedEvent, secret: str = SECRET, late_s: int = 0) -> Reply:
        at = datetime.now(UTC) - timedelta(seconds=late_s)
        delivery = SENDERS[source](fields, secret, at)
        return send(service, source, delivery.headers, delivery.body)

    assert is_problem(deliver(fields, secret="another"), 401)
    first, again = deliver(fields), deliver(fields, late_s=3)
    assert [first.json["status"], again.json["status"]] == ["success", "duplicate"]
    end = period_end(service, user["id"])
    other = ExpectedEvent(payment_id=fields.payment_id, event_id=f"evt-{source}-2", email=email)
    is_id_signed = source not in ("hub", "rzp")  # there it is in a header, and the body is the same
    assert deliver(other).json["status"] == ("success" if is_id_signed else "duplicate")
    assert period_end(service, user["id"]) == end
    (payment,) = items(service, "/payments", source=source)
    assert (payment["external_payment_id"], payment["status"]) == (f"p-{source}", "SUCCEEDED")
    assert (payment["amount"], payment["email"]) == ("990.00", email)
    assert payment["applied_at"]


@pytest.mark.parametrize("source", ["hub", "rzp"])
def test_a_captured_delivery_is_one_event_whatever_its_unsigned_id_is(
    shared: Shared, source: str
) -> None:
    """INB-1: sent again under 300 new ids it makes no event, no key and no nonce."""
    service, email = shared.service, f"captured.{source}@example.com"
    service.user(email)
    fields = ExpectedEvent(payment_id=f"p-cap-{source}", event_id="evt-0", email=email)
    captured = SENDERS[source](fields, SECRET, datetime.now(UTC))
    (id_header,) = (one for one, value in captured.headers.items() if value == "evt-0")
    first = send(service, source, captured.headers, captured.body)
    assert first.json["status"] == "success"
    for number in range(300):
        headers = {**captured.headers, id_header: f"evt-new-{number}"}
        again = send(service, source, headers, captured.body)
        assert again.json == {"status": "duplicate", "event_id": first.json["event_id"]}
    (found,) = items(service, "/events", payment=f"p-cap-{source}")
    assert found["id"] == first.json["event_id"]
    (keys,) = shared.rows(
        "SELECT count(*) FROM event_keys AS k JOIN sources AS s ON s.id = k.source_id"
        " WHERE s.name = $1 AND k.event_id >= $2",
        source,
        UUID(found["id"]),
    )
    assert keys["count"] == 1


def test_a_blocked_payment_is_read_again_from_stored_evidence(shared: Shared) -> None:
    """PAY-5 REC-1: with the headers in which a part of it stands."""
    service, email = shared.service, "later.rzp@example.com"
    fields = ExpectedEvent(payment_id="p-later", event_id="evt-later", email=email)
    delivery = razorpay(fields, SECRET, datetime.now(UTC))
    reply = send(service, "rzp", delivery.headers, delivery.body)
    assert reply.json["status"] == "accepted"
    service.user(email)
    (payment,) = items(service, "/payments", email=email)
    assert payment["applied_at"]


@pytest.mark.parametrize("source", ["cards", "hub", "paddle", "rzp", "square"])
def test_a_sample_of_each_is_accepted(shared: Shared, source: str) -> None:
    """OPS-6: as `paidonce send` makes it."""
    service, email = shared.service, f"sample.{source}@example.com"
    service.user(email)
    result = paidonce(
        service.folder, "send", "--source", source, "--email", email,
        "--url", f"http://127.0.0.1:{service.port}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (payment,) = items(service, "/payments", email=email)
    assert payment["status"] == "SUCCEEDED"
