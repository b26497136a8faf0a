"""What is published is as its schema says."""

from datetime import UTC, datetime
from typing import Any, Final

import jsonschema_rs
import orjson
import pytest

from paidonce.bus import outbox
from paidonce.bus.schemas import schema_id, schemas
from paidonce.db.pool import open_database
from tests.bus.traffic import relay_all
from tests.providers.cases.standard import whsec
from tests.support.gateways import standard_signed
from tests.support.postgres import SCHEMA
from tests.support.servers import StartService
from tests.support.service import BASIC, paid

OURS: Final = {"payment.applied", "payment.reversed", "payment.reinstated"}
OF_PAYMENTS: Final = {
    "PaymentInitiated",
    "PaymentProcessing",
    "PaymentCompleted",
    "PaymentFailed",
    "PaymentRecovered",
    "ProviderCallbackReceived",
}
SECRET: Final = "a secret of enough bytes"
CONFIG: Final = f"""{BASIC}
[sources.shop]
provider = "standard"
secrets = ["{whsec(SECRET)}"]
"""


def errors(type_: str, body: Any) -> list[str]:
    checker = jsonschema_rs.validator_for(schemas()[type_], validate_formats=True)
    return [error.message for error in checker.iter_errors(body)]


def test_every_message_type_has_a_valid_schema() -> None:
    """BUS-1"""
    assert schemas().keys() == OURS | OF_PAYMENTS
    for name, schema in schemas().items():
        jsonschema_rs.meta.validate(schema)
        assert (schema["$id"], schema["title"]) == (schema_id(name), name)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


INITIATED: Final[dict[str, Any]] = {
    "payment_id": "p-1",
    "wallet_id": "01900000-0000-7000-8000-000000000000",
    "amount": "990.00",
    "currency": "RUB",
}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, None),
        ({"version": 1, "occurred_at": "2026-11-16T12:00:00Z", "more": [1]}, None),
        ({"amount": 990.0}, "is not of type"),
        ({"amount": "-1.00"}, "does not match"),
        ({"payment_id": ""}, "shorter"),
        ({"version": 2}, "was expected"),
        ({"occurred_at": "yesterday"}, "is not a"),
        ({"wallet_id": "w"}, "is not a"),
    ],
    ids=["least", "most", "number", "negative", "nameless", "version", "time", "wallet"],
)
def test_a_first_message_of_another_program_is_validated(
    wrong: dict[str, Any], why: str | None
) -> None:
    """BUS-1 SVC-1: money is text, and never a float."""
    found = errors("PaymentInitiated", INITIATED | wrong)
    assert (why is None and not found) or (why is not None and any(why in one for one in found))


async def test_published_messages_match_their_schemas(
    start_service: StartService, database_url: str
) -> None:
    """BUS-1 FUL-6: what stands in the outbox, as a consumer gets it."""
    service = start_service(CONFIG, arguments=("--roles", "web"))
    service.user("schema@example.com")
    service.deliver(paid("subscription", email="schema@example.com"))
    wallet = service.api("POST", "/wallets", {"owner": "o", "currency": "RUB"}).json
    for reference, kind in (("top-up", "wallet"), ("goods", "order"), ("stay", "booking")):
        said = {"reference": reference, "amount": "20.00", "currency": "RUB", "kind": kind}
        known = {"wallet_id": wallet["id"]} if kind == "wallet" else {}
        assert service.api("POST", "/orders", said | known).http == 201
        for type_, amount in (
            ("succeeded", "20.00"),
            ("refunded", "5.00"),
            ("refunded", "20.00"),
            ("succeeded", "30.00"),
        ):
            data = {"payment_id": reference, "order": reference, "amount": amount}
            body = {
                "type": f"payment.{type_}",
                "timestamp": datetime.now(UTC).isoformat(),
                "data": data | {"currency": "RUB"},
            }
            name = f"{reference}-{type_}-{amount[0]}"
            sent = standard_signed(orjson.dumps(body), name, SECRET, datetime.now(UTC))
            reply = service.request("POST", "/webhooks/shop", sent.body, sent.headers)
            assert reply.http == 200, reply
    database = await open_database(database_url, SCHEMA)
    try:
        async with database.connection() as connection:
            written = list((await outbox.unpublished(connection, 100)).values())
            await relay_all(database)
            found = await outbox.published_after(connection, {"payment": 0}, 100)
            published = list(found.values())
    finally:
        await database.close()
    assert [one.id for one in published] == [one.id for one in written]
    assert {one.type for one in published} == OURS
    # A wallet is debited each increase, the others once; the larger sum reinstates all three.
    assert len(published) == 4 + 4 + 3
    for one in published:
        body = orjson.loads(one.body)
        assert errors(one.type, body) == [], one
        assert (body["payment_id"], body["version"]) == (one.key, one.version)
