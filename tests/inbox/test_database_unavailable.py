"""The database goes away and comes back."""

from tests.support.servers import StartService
from tests.support.service import Service, paid
from tests.support.tools import event, is_problem, rows, until


def _close(database_url: str, name: str) -> None:
    rows(database_url, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    rows(
        database_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
        name,
    )


def test_deliveries_are_put_off_while_the_database_is_away_and_work_again_by_themselves(
    start_service: StartService, database_url: str, postgres: str
) -> None:
    """REC-5 REC-2 OPS-3: 503 with Retry-After, so that the gateway retries."""
    service: Service = start_service()
    service.user("away@example.com")
    assert service.deliver(paid("before", email="away@example.com")).json["status"] == "success"
    name = database_url.split("/")[3].split("?")[0]
    _close(postgres, name)
    try:
        for number in range(3):
            away = service.deliver(paid(f"away-{number}", email="away@example.com"))
            assert is_problem(away, 503)
            assert int(away.headers["retry-after"]) > 0
            assert "asyncpg" not in away.body.decode()
            assert name not in away.body.decode()
        api = service.api("GET", "/payments")
        assert is_problem(api, 503)
        assert int(api.headers["retry-after"]) > 0
        assert is_problem(service.api("POST", "/users", {"email": "x@example.com"}), 503)
        assert until(lambda: service.request("GET", "/readyz").http == 503)
        health = service.request("GET", "/webhooks/health")
        assert (health.http, health.json["status"]) == (503, "unavailable")
        assert service.request("GET", "/healthz").http == 200
        assert service.request("GET", "/metrics").http == 200
        assert service.metric("webhook_requests_total", provider="tilda", http_code="503") == 3
        assert is_problem(service.deliver(paid("forged"), secret="wrong"), 401)
        assert service.process.poll() is None
    finally:
        rows(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    said = paid("away-0", email="away@example.com")
    answer = until(lambda: reply if (reply := service.deliver(said)).http == 200 else None)
    assert answer is not None, "it did not come back by itself"
    assert answer.json["status"] == "success"
    assert event(service, answer.json["event_id"])["status"] == "PROCESSED"
    assert service.deliver(paid("before", email="away@example.com")).json["status"] == "duplicate"
    assert until(lambda: service.request("GET", "/readyz").http == 200)
    found = rows(database_url, "SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL")
    assert found == [{"n": 2}]
