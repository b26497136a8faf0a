"""One or two `paidonce serve` processes on one database, any of which may be killed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from paidonce.providers.contract import Delivery
from tests.model.model import WAITING, Payment
from tests.model.senders import CONFIG, PortOne
from tests.support.portone_server import served
from tests.support.service import Reply, Service, started_service
from tests.support.tools import Row, items, rows

PATIENCE_S: Final = 120.0
"""For how long the same thing is sent again before the test has failed."""
AGAIN_S: Final = 0.02
PAGE: Final = 500
_BY_NAMES: Final = """
SELECT p.id FROM payment_ids AS i JOIN payments AS p ON p.id = i.payment_id
 WHERE i.external_id = ANY($1) ORDER BY p.applied_at NULLS LAST, p.id
"""


class Cluster:
    """What the histories of one test talk to: any process that is there."""

    def __init__(self, services: list[Service], database_url: str, config: str, portone: PortOne):
        self._services = services
        self._database_url = database_url
        self._config = config
        self._turn = 0
        self.portone = portone
        self.kills = 0

    def deliver(self, source: str, make: Callable[[], Delivery]) -> Reply:
        """Deliver until it is answered, signed anew each time, as gateways do."""
        return self._until_answered(lambda service: _posted(service, source, make()))

    def api(self, method: str, path: str, body: Any = None, **query: Any) -> Reply:
        return self._until_answered(lambda service: service.api(method, path, body, **query))

    def items(self, path: str, **query: Any) -> Iterator[Any]:
        """All of a list, page by page."""
        cursor: dict[str, str] = {}
        while True:
            page = self.api("GET", path, limit=PAGE, **query, **cursor).json
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    def rows(self, sql: str, *values: object) -> list[Row]:
        return rows(self._database_url, sql, *values)

    def payment_id(self, payment: Payment) -> str | None:
        """By the gateway's names of it; if these have not met yet, the payment that is applied."""
        names = [payment.name, f"pi_{payment.name}", f"ch_{payment.name}"]
        found = self.rows(_BY_NAMES, names)
        return str(found[0]["id"]) if found else None

    def shown(self, payment: Payment) -> Any:
        payment_id = self.payment_id(payment)
        return payment_id and self.api("GET", f"/payments/{payment_id}").json

    def user_of(self, shown: Any) -> str | None:
        """Whose the payment is, as far as that is settled, and its address does not matter."""
        own: str | None = shown["user_id"]
        if shown["order"] is None:
            return own
        order = self.api("GET", f"/orders/{shown['order']}").json
        return order.get("user_id") or (own if shown["applied_at"] else None)

    def kill_and_restart(self, which: int) -> None:
        """SIGKILL, and a new process on the same port."""
        number = which % len(self._services)
        old = self._services[number]
        old.process.kill()
        old.process.wait(PATIENCE_S)
        self.kills += 1
        self._services[number] = started_service(
            old.folder, self._database_url, self._config, port=old.port
        )

    def settle(self) -> None:
        """Wait until nothing is queued but what waits for a user, an order or an operator."""
        deadline_s = time.monotonic() + PATIENCE_S
        while left := self._queued():
            assert time.monotonic() < deadline_s, f"it is still queued: {left}"
            time.sleep(AGAIN_S)

    def _queued(self) -> list[Any]:
        validated = items(self._services[0], "/events", status="VALIDATED", limit=1)
        if validated:
            return validated
        now = datetime.now(UTC)
        return [
            one
            for one in self.items("/events", status="FAILED_RETRYABLE")
            if one["error_code"] not in WAITING
            or datetime.fromisoformat(one["next_attempt_at"]) <= now
        ]

    def _until_answered(self, ask: Callable[[Service], Reply]) -> Reply:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._turn += 1
            service = self._services[self._turn % len(self._services)]
            last: object = None
            try:
                last = reply = ask(service)
                if reply.http != 503:
                    return reply
            except (OSError, HTTPException) as error:
                last = error
            assert time.monotonic() < deadline_s, f"nobody answers: {last!r}"
            time.sleep(AGAIN_S)

    def end(self) -> None:
        for service in self._services:
            service.end()


@contextmanager
def started_cluster(
    folder: Path, database_url: str, mode: str, processes: int
) -> Iterator[Cluster]:
    with served() as gateway:
        config = CONFIG.replace("GATEWAY_URL", gateway.url).replace("SERVER_MODE", mode)
        services = []
        for number in range(processes):
            (folder / str(number)).mkdir()
            services.append(started_service(folder / str(number), database_url, config))
        cluster = Cluster(services, database_url, config, PortOne(gateway))
        try:
            yield cluster
        finally:
            cluster.end()


def _posted(service: Service, source: str, delivery: Delivery) -> Reply:
    return service.request("POST", f"/webhooks/{source}", delivery.body, delivery.headers)
