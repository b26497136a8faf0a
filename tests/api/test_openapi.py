"""The OpenAPI description and the service agree, on whatever the description lists."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from tests.support import gateways
from tests.support.servers import Shared
from tests.support.service import KEY, Service, paid
from tests.support.tools import is_problem

CONFIG: Final = gateways.CONFIG.replace("[limits]", '[limits]\napi_keys = ""')
EXAMPLES: Final = 6
SOAK_EXAMPLES: Final = 150
CHECKED: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "ignored_auth",
    "unsupported_method",
    "negative_data_rejection",
)
PROBLEM: Final = "application/problem+json"


@pytest.fixture(scope="module")
def description(shared: Shared) -> Any:
    """What the service says of itself, when there is something to be found."""
    service = shared.service
    service.user("described@example.com")
    for number in range(3):
        service.deliver(paid(f"described-{number}", email="described@example.com"))
    return service.request("GET", "/openapi.json").json


def calls(description: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            yield path, method, call


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_every_call_answers_as_it_is_described(
    shared: Shared, description: Any, mode: GenerationMode, request: pytest.FixtureRequest
) -> None:
    """REC-5 SEC-6: no 5xx, no status, media type or body that is not described, no open door."""
    examples = SOAK_EXAMPLES if request.config.getoption("--soak") else EXAMPLES
    schema = schemathesis.openapi.from_url(f"{_url(shared.service)}/openapi.json")
    load_all_checks()
    checks: list[Any] = [CHECKS.get_one(name) for name in CHECKED]
    tried = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @seed(20_261_116)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case[Any]) -> None:
            assume(not any(_looks_like_one(value) for value in (case.query or {}).values()))
            case.call_and_validate(checks=checks, headers={"Authorization": f"Bearer {KEY}"})

        with suppress(Unsatisfiable):  # what takes no input can get no wrong one
            answers()
        tried.append((operation.path, operation.method))
    assert len(tried) == len(list(calls(description)))


def _looks_like_one(value: object) -> bool:
    """In a query a list of one is written like the one, and an empty list like nothing at all."""
    return isinstance(value, list) and len(value) < 2


def test_every_call_is_described_with_what_it_can_answer(description: Any) -> None:
    """REC-5: errors are problems, and nothing else."""
    for path, method, call in calls(description):
        assert call["responses"].keys() & {"200", "201", "204"}, path
        assert "422" not in call["responses"]
        for status, answer in call["responses"].items():
            if not status.startswith("2") and path.startswith("/api/"):
                assert list(answer["content"]) == [PROBLEM], (method, path, status)
        if path.startswith("/api/"):
            assert call["responses"].keys() >= {"401", "403", "503"}
            assert call["security"], path
            assert call["x-scope"] in ("read", "operate", "admin")
    delivery = description["paths"]["/webhooks/{source}"]["post"]
    described = {"200", "400", "401", "403", "404", "408", "413", "415", "429", "503"}
    assert delivery["responses"].keys() >= described
    assert "/webhooks/{source}/test" in description["paths"]
    assert "503" in description["paths"]["/readyz"]["get"]["responses"]
    assert "503" in description["paths"]["/webhooks/health"]["get"]["responses"]


def test_a_call_may_send_no_more_than_a_delivery(shared: Shared) -> None:
    """SEC-8: whatever it says of its length, and before anybody asked for a key."""
    for path in ("/api/v1/users", "/api/v1/orders", "/webhooks/payments/test"):
        for headers in ({}, {"authorization": f"Bearer {KEY}"}):
            sent = {"content-type": "application/json", **headers}
            reply = shared.service.request("POST", path, b'{"email":"' + b"x" * 300_000, sent)
            assert is_problem(reply, 413)
            assert reply.json["code"] == "TOO_LARGE"


def _url(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"
