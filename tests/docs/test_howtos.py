"""What the how-tos show is what runs (USE-6)."""

import base64
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.host_programs import StartHost, start_host
from tests.support.servers import StartService
from tests.support.service import BASIC, operators, paid
from tests.support.tools import event, rows, until

__all__ = ["start_host"]

HOWTO: Final = Path(__file__).parents[2] / "docs" / "howto"


def blocks(page: str, language: str = "python") -> list[str]:
    text = (HOWTO / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_handlers_that_are_shown_work(
    start_service: StartService, database_url: str, tmp_path: Path
) -> None:
    """FUL-5"""
    pack, reserve = blocks("write-a-handler.md")
    (setting,) = blocks("write-a-handler.md", "toml")
    package = tmp_path / "path" / "myshop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "payments.py").write_text(f"{pack}\n{reserve}", encoding="utf-8")
    rows(database_url, "CREATE TABLE parcels (payment_id uuid, reference text)")
    rows(database_url, "CREATE TABLE warehouse (is_open boolean, mugs integer)")
    rows(database_url, "INSERT INTO warehouse VALUES (true, 1)")
    service = start_service(setting + BASIC, PYTHONPATH=_path(package.parent))
    service.user("buyer@example.com")

    def code_of(payment: str) -> Any:
        event_id = service.deliver(paid(payment)).json["event_id"]
        assert until(lambda: event(service, event_id)["status"] != "VALIDATED")
        return event(service, event_id)["error_code"]

    assert [code_of("one"), code_of("two")] == [None, "SOLD_OUT"]
    rows(database_url, "UPDATE warehouse SET is_open = false, mugs = 9")
    assert code_of("three") == "HANDLER_FAILED"
    assert len(rows(database_url, "SELECT 1 FROM parcels")) == 1


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("number", [0, 1])
def test_the_hosts_that_are_shown_work(start_host: StartHost, tmp_path: Path, number: int) -> None:
    """USE-6"""
    (tmp_path / "main.py").write_text(blocks("mount-in-fastapi.md")[number], encoding="utf-8")
    (tmp_path / "paidonce.toml").write_text(BASIC, encoding="utf-8")
    host = start_host("main:app", tmp_path)
    assert host.request("GET", "/pay/readyz").http == 200
    if number == 1:
        assert host.request("POST", "/mugs/m-1").http == 200
        headers = {"authorization": f"Bearer {host.key}"}
        assert (
            host.request("GET", "/pay/api/v1/orders/m-1", None, headers).json["amount"] == "12.50"
        )


def test_the_settings_behind_a_proxy_work(start_service: StartService) -> None:
    """USE-6 OPS-3 SEC-1: the client is who the proxy names."""
    (setting,) = blocks("put-behind-a-proxy.md", "toml")
    secret = "whsec_" + base64.b64encode(b"a-secret-of-the-shop").decode()
    ports = {"PAIDONCE_SERVER__ADMIN_PORT": "0"}
    service = start_service(setting, METRICS_TOKEN="t0ken", SHOP_SECRET=secret, **ports)
    admin = operators(service)
    headers = {"content-type": "application/json", "x-forwarded-for": "192.0.2.1, 203.0.113.7"}
    assert service.request("POST", "/webhooks/shop", b"{}", headers).http == 401
    (kept,) = until(lambda: admin.api("GET", "/events").json["items"])
    assert kept["remote_address"] == "203.0.113.7"
    assert service.request("GET", "/metrics").http == 404
    scrape = {"authorization": "Bearer t0ken"}
    assert admin.request("GET", "/metrics", headers=scrape).http == 200
