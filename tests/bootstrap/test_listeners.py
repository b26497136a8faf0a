"""Two ports: deliveries are received on one, operators are served on the other."""

import re
import signal
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from paidonce.errors import ConfigurationError
from paidonce.settings.reading import load_settings
from tests.support.servers import StartService
from tests.support.service import BASIC, HERE, Service, operators, paid, spawned
from tests.support.tools import is_problem

TOKEN: Final = "token-of-the-metrics"
PRODUCTION: Final = BASIC.replace("development", "production")
TWO_PORTS: Final = f"""{PRODUCTION}
[server]
admin_port = 0
metrics_token = "env:TEST_METRICS_TOKEN"
"""


def measured(service: Service, token: str | None = TOKEN) -> Any:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return service.request("GET", "/metrics", headers=headers)


def refuses(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HERE, port)) != 0


def test_deliveries_and_operators_have_a_port_each(start_service: StartService) -> None:
    """OPS-3 SEC-6 OBS-2: also with several processes, and both stop together."""
    public = start_service(TWO_PORTS, arguments=["--processes", "2"], TEST_METRICS_TOKEN=TOKEN)
    admin = operators(public)
    admin.user("two@example.com")
    assert public.deliver(paid("two", email="two@example.com")).json["status"] == "success"

    assert public.request("GET", "/healthz").http == 200
    assert public.request("GET", "/readyz").http == 200
    assert public.request("GET", "/webhooks/health").json == {"status": "ok"}
    for method, path in (
        ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/"), ("GET", "/openapi.json"),
        ("GET", "/docs/assets/swagger-ui.css"), ("GET", "/api/v1/events"), ("GET", "/dashboard"),
        ("POST", "/api/v1/users"), ("POST", "/webhooks/payments/test"),
    ):  # fmt: skip
        reply = public.request(method, path, headers={"authorization": f"Bearer {public.key}"})
        assert is_problem(reply, 404), path
        assert b"payments" not in reply.body

    assert admin.deliver(paid("wrong-port")).http == 404
    assert admin.request("GET", "/docs").http == 200
    health = admin.request("GET", "/webhooks/health").json
    assert health["sources"] == [{"name": "payments", "provider": "tilda"}]
    assert health.keys() == {"status", "sources", "response_time_ms", "errors"}
    assert len(admin.api("GET", "/events").json["items"]) == 1

    for wrong in (None, "", TOKEN[:-1], f"{TOKEN}x", admin.key):
        reply = measured(admin, wrong)
        assert is_problem(reply, 401), wrong
        assert reply.headers["www-authenticate"] == "Bearer"
    assert b"webhook_processed_total" in measured(admin).body

    public.process.send_signal(signal.SIGTERM)
    assert public.process.wait(20) == 0
    assert refuses(public.port)
    assert refuses(admin.port)


def test_on_one_port_in_production_names_and_numbers_are_for_keys(
    start_service: StartService,
) -> None:
    """OPS-3 SEC-6"""
    service = start_service(
        f'{PRODUCTION}\n[server]\nmetrics_token = "{TOKEN}"\n', PAIDONCE_SERVER__MODE="inline"
    )

    def health(key: str | None) -> Any:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return service.request("GET", "/webhooks/health", headers=headers)

    assert health(None).json == {"status": "ok"}
    assert health(service.key).json["sources"] == [{"name": "payments", "provider": "tilda"}]
    assert is_problem(health("po_of-nobody"), 401)
    assert service.api("GET", "/events").http == 200, "all the rest is where it was"
    assert is_problem(measured(service, None), 401)
    assert measured(service).http == 200


def test_a_worker_shows_its_metrics_on_the_port_of_operators(start_service: StartService) -> None:
    """OPS-3 OBS-2 RET-4: as `paidonce work` with a port does."""
    arguments = ["--roles", "worker,janitor"]
    worker = start_service(TWO_PORTS, arguments=arguments, TEST_METRICS_TOKEN=TOKEN)
    admin = operators(worker)
    assert worker.request("GET", "/metrics").http == 404
    assert worker.request("GET", "/readyz").http == 200
    assert measured(admin).http == 200
    assert is_problem(measured(admin, "wrong"), 401)
    assert worker.end() == 0


def test_a_busy_port_of_operators_is_named_with_a_free_one(
    tmp_path: Path, database_url: str
) -> None:
    """USE-3: and the port of deliveries is not kept."""
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = f"{BASIC}\n[server]\nadmin_port = {port}\n"
        process = spawned(tmp_path, database_url, config, {}, ("serve", "--port", "0"))
        assert process.wait(60) == 2
    told = " ".join((tmp_path / "stderr").read_text(encoding="utf-8").split())
    assert f"server.admin_port = {port}: the port is in use" in told
    assert re.search(r"PAIDONCE_SERVER__ADMIN_PORT=\d+", told)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("admin_port = 8000", ["admin_port = 8000", "another"]),
        ('admin_port = 8000\nhost = "0.0.0.0"', ["admin_port = 8000"]),
        ("admin_port = 99999", ["admin_port", "99999"]),
        ("metrics_token = 1234567", ["metrics_token", "(hidden)"]),
    ],
)
def test_ports_and_tokens_that_cannot_be_are_named(
    tmp_path: Path, lines: str, words: list[str]
) -> None:
    """USE-3 SEC-7"""
    path = tmp_path / "paidonce.toml"
    path.write_text(f"[server]\n{lines}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "1234567" not in str(caught.value)


def test_the_same_port_on_two_addresses_is_two_ports(tmp_path: Path) -> None:
    """USE-3"""
    path = tmp_path / "paidonce.toml"
    path.write_text('[server]\nhost = "192.0.2.1"\nadmin_port = 8000\n', encoding="utf-8")
    assert load_settings(path).server.admin_port == 8000
