"""Query parameters that a call does not have, on every call there is."""

import re
from typing import Any
from uuid import uuid4

import pytest

from tests.support.servers import Shared
from tests.support.service import Reply
from tests.support.tools import is_problem, paidonce

CONFIG = """
environment = "development"
[sources.payments]
provider = "tilda"
secrets = ["first-secret"]
[limits]
api_keys = ""
"""


def calls(shared: Shared) -> list[tuple[str, str, Any]]:
    description = shared.service.request("GET", "/openapi.json").json
    return [
        (method.upper(), re.sub(r"{\w+}", str(uuid4()), path), call)
        for path, methods in description["paths"].items()
        for method, call in methods.items()
        if path.startswith("/api/")
    ]


def ask(shared: Shared, method: str, path: str, query: str) -> Reply:
    body = None if method == "GET" else b"{}"
    headers = {
        "authorization": f"Bearer {shared.service.key}",
        "content-type": "application/json",
    }
    return shared.service.request(method, f"{path}?{query}", body, headers)


def test_an_unknown_parameter_is_refused_by_every_call(shared: Shared) -> None:
    """OPS-10: by its name, also beside those that the call has."""
    found = calls(shared)
    assert len(found) > 40
    for method, path, call in found:
        known = sorted(one["name"] for one in call.get("parameters", []) if one["in"] == "query")
        beside = "".join(f"{name}=1&" for name in known)
        for query in ("stauts=PAID", f"{beside}stauts=PAID", "stauts", "stauts=", "%73tauts=PAID"):
            reply = ask(shared, method, path, query)
            assert is_problem(reply, 400), (method, path, query)
            assert reply.json["code"] == "INVALID_REQUEST"
            assert reply.json["detail"].startswith("stauts: "), reply.json
            assert all(name in reply.json["detail"] for name in known)


def test_every_parameter_that_is_described_is_known(shared: Shared) -> None:
    """OPS-10: what a call has is not refused as unknown."""
    for method, path, call in calls(shared):
        for one in call.get("parameters", []):
            if one["in"] == "query":
                reply = ask(shared, method, path, f"{one['name']}=1")
                text = reply.body.decode()
                assert "no such query parameter" not in text, (method, path, one["name"])


@pytest.mark.parametrize("key", [None, "po_wrong-but-long-enough-to-be-one"])
def test_who_has_no_key_learns_no_parameter(shared: Shared, key: str | None) -> None:
    """OPS-10 SEC-6"""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    reply = shared.service.request("GET", "/api/v1/payments?stauts=PAID", None, headers)
    assert is_problem(reply, 401)
    assert b"status" not in reply.body.replace(b'"status":', b"")


def test_the_scope_is_checked_first(shared: Shared) -> None:
    """OPS-10 SEC-6"""
    made = paidonce(shared.service.folder, "keys", "create", "--name", "r", "--scope", "read")
    reply = shared.service.api("POST", "/users?stauts=1", {"email": "a"}, key=made.stdout.strip())
    assert is_problem(reply, 403)


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("GET", "/api/v1/payments?stauts=PAID", "status"),
        ("GET", "/api/v1/events?status=PROCESED", "PROCESSED"),
        ("POST", "/webhooks/paymnts/test", "payments"),
    ],
)
def test_a_wrong_name_suggests_the_right_one(
    shared: Shared, method: str, path: str, meant: str
) -> None:
    """OPS-10 USE-3: to operators; senders learn no name."""
    key = {"authorization": f"Bearer {shared.service.key}", "content-type": "application/json"}
    body = b'{"amount": "1.00"}' if method == "POST" else None
    reply = shared.service.request(method, path, body, key)
    assert reply.json["detail"].endswith(f"; did you mean {meant}?"), reply
    assert b"did you mean" not in shared.service.request("POST", "/webhooks/paymnts", b"{}").body
