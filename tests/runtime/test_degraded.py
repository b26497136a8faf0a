"""Background services that fail: seen in the log, the metrics and /readyz, and restarted."""

from typing import Final

from tests.payouts.payer import SOURCES
from tests.support.servers import Shared
from tests.support.service import KEY
from tests.support.tools import until

CONFIG: Final = f"""{SOURCES}
[payouts]
gateway_url = "http://127.0.0.1:1"
gateway_key = "{KEY}"
source = "bank"
[notifications.ops]
kind = "webhook"
url = "http://127.0.0.1:1/hook"
secret = "whsec_YSBzZWNyZXQgb2YgZW5vdWdoIGJ5dGVz"
"""
BROKEN: Final = (
    "event_queue",
    "outbox",
    "notifications",
    "replays",
    "reconciliations",
    "wallet_payments",
    "gateway_callbacks",
    "bus_cursors",
    "bans",
    "event_count_deltas",
    "reservations",
)
SERVICES: Final = {
    "process worker",
    "hooks worker",
    "lookup worker",
    "relay",
    "notifier",
    "replay worker",
    "reconciliation worker",
    "payout caller",
    "callback retries",
    "consumer payments",
    "consumer query",
    "janitor",
    "sender records",
    "statistics counter",
    "wakeup receiver",
}
DEADLINE_S: Final = 90.0
LISTENERS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE query LIKE 'LISTEN%' AND datname = current_database()
"""


def test_failing_services_are_counted_logged_restarted_and_shown(shared: Shared) -> None:
    """OPS-3 OBS-1 OBS-2: and not ready, because deliveries write some of these tables."""
    service = shared.service
    assert service.request("GET", "/readyz").json == {"status": "ready", "degraded": []}
    for table in BROKEN:
        shared.rows(f"ALTER TABLE {table} RENAME TO {table}_away")
    seen = set[str]()

    def all_degraded() -> bool:
        service.deliver(b"{}", secret="wrong", source="shop")
        shared.rows(LISTENERS)
        reply = service.request("GET", "/readyz")
        assert (reply.http, reply.json.get("code")) in ((200, None), (503, "DATABASE_REFUSES"))
        seen.update(reply.json["degraded"])
        return seen >= SERVICES

    assert until(all_degraded, DEADLINE_S), SERVICES - seen
    assert until(lambda: service.request("GET", "/readyz").http == 503)
    for table in BROKEN:
        shared.rows(f"ALTER TABLE {table}_away RENAME TO {table}")
    for name in SERVICES:
        assert service.metric("service_crashes_total", service=name) > 0, name
    assert until(lambda: service.request("GET", "/readyz").http == 200)
    crashed = service.log_lines(event="service_crashed")
    assert {line["service"] for line in crashed} >= SERVICES - {"wakeup receiver"}
    assert all(line["exception"] for line in crashed)
    assert until(lambda: service.request("GET", "/readyz").json["degraded"] == [], DEADLINE_S)
