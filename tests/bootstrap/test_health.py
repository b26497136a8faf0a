"""Whether the service is well, and what failures tell of the inside: nothing."""

import re
from typing import Final

import pytest

from tests.support.servers import Shared
from tests.support.service import BASIC, paid
from tests.support.tools import is_problem

CONFIG: Final = f"""{BASIC}
[sources.creem]
provider = "creem"
secrets = ["whsec_of_creem"]
"""


def test_health_lists_sources_response_time_and_errors(shared: Shared) -> None:
    """OPS-3, S3 "Health check endpoint": and needs no key."""
    service = shared.service
    before = service.request("GET", "/webhooks/health")
    assert before.http == 200
    assert before.json["status"] == "ok"
    assert before.json["sources"] == [
        {"name": "payments", "provider": "tilda"},
        {"name": "creem", "provider": "creem"},
    ]
    assert before.json["response_time_ms"] >= 0
    service.deliver(paid("h-1"), secret="wrong")
    service.deliver(paid("h-2", email="nobody@example.com"))
    service.deliver(paid("h-2", email="nobody@example.com", amount="1.00"))
    errors = service.request("GET", "/webhooks/health").json["errors"]
    for name in ("invalid_signature", "failed_retryable", "conflict"):
        assert errors[name] == before.json["errors"][name] + 1, name
    assert errors.keys() >= {"failed_final", "dead_letter", "stale"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "http"),
    [
        ("/webhooks/payments", b'{"a":', {}, 401),
        ("/webhooks/creem", b"\xff", {"creem-signature": "0" * 64}, 401),
        ("/webhooks/nobody", b"{}", {}, 404),
        ("/webhooks/payments", b"{}", {"content-type": "image/png"}, 415),
        ("/webhooks/payments", b"x" * 300_000, {}, 413),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_failure_has_one_form_and_tells_nothing_of_the_inside(
    shared: Shared, path: str, body: bytes, headers: dict[str, str], http: int
) -> None:
    """REC-5 SEC-7, S3 "General webhook failure response": the log has the details."""
    service = shared.service
    sent = {"content-type": "application/json"} | headers
    reply = service.request("POST", path, body, sent)
    assert is_problem(reply, http)
    assert not re.search(rb"Traceback|[Pp]ostgres|\.py|secret|first-|whsec", reply.body)
    if http == 401:
        (line,) = service.log_lines(request_id=reply.json["request_id"])
        assert line["error_code"] == reply.json["code"]
        assert line["error_message"]
