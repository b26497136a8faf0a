"""Paidonce as a part of another program, or served by another server (USE-6, REC-5)."""

import socket
from pathlib import Path
from typing import Final

import pytest

from tests.support.host_programs import StartHost, start_host, stop
from tests.support.service import BASIC, SECRET, Service, paid, signature
from tests.support.tools import is_problem

__all__ = ["start_host"]

HOST: Final = """
from fastapi import FastAPI
import paidonce
pay = paidonce.asgi("paidonce.toml")
app = FastAPI(lifespan=pay.lifespan)
app.mount("/pay", pay)
forgetful = FastAPI()
forgetful.mount("/pay", pay)

@app.get("/own")
async def own() -> str:
    return "the host's own"
"""
CONFIG: Final = BASIC + "\n[server]\nmax_body_bytes = 2000\nrequest_timeout_s = 0.5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "host.py").write_text(HOST, encoding="utf-8")
    (tmp_path / "paidonce.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def deliver(host: Service, root: str, body: bytes, secret: str = SECRET) -> tuple[int, str]:
    headers = {"content-type": "application/json", "x-signature": signature(body, secret)}
    reply = host.request("POST", f"{root}/webhooks/payments", body, headers)
    assert reply.http == 200 or is_problem(reply, reply.http)
    return reply.http, reply.json["status" if reply.http == 200 else "code"]


@pytest.mark.parametrize(("app", "root"), [("host:app", "/pay"), ("host:pay", "")])
def test_all_of_it_answers_where_it_is_mounted(
    start_host: StartHost, folder: Path, app: str, root: str
) -> None:
    """USE-6 REC-5 OPS-3: mounted, and served alone by another server. It has no port of its own."""
    host = start_host(app, folder, PAIDONCE_SERVER__ADMIN_PORT="9999")
    authorized = {"authorization": f"Bearer {host.key}", "content-type": "application/json"}
    created = host.request("POST", f"{root}/api/v1/users", b'{"email": "a@b.example"}', authorized)
    assert created.http == 201
    body = b'{"external_payment_id": "p", "status": "paid", "amount": "990.00", "currency": "RUB",'
    body += b' "email": "a@b.example"}'
    assert deliver(host, root, body) == (200, "success")
    assert deliver(host, root, body) == (200, "duplicate")
    assert deliver(host, root, body, "another secret") == (401, "INVALID_SIGNATURE")
    assert deliver(host, root, body + b" " * 2000) == (413, "TOO_LARGE")
    for path in ("/healthz", "/readyz", "/webhooks/health", "/metrics", "/docs"):
        assert host.request("GET", f"{root}{path}").http == 200, path
    assert is_problem(host.request("GET", f"{root}/webhooks/payments"), 405)
    assert is_problem(host.request("POST", f"{root}/webhooks/nobody"), 404)
    assert is_problem(host.request("GET", f"{root}/api/v1/payments"), 401)
    if root:
        assert host.request("GET", "/own").json == "the host's own"
        assert host.request("POST", "/webhooks/payments", body).http == 404
    stop(host)


def test_the_description_knows_where_it_is_mounted(start_host: StartHost, folder: Path) -> None:
    """USE-6: the page finds what it needs, without internet."""
    host = start_host("host:app", folder)
    page = host.request("GET", "/pay/docs").body.decode()
    for asset in ("/openapi.json", "/docs/assets/swagger-ui-bundle.js"):
        assert f"/pay{asset}" in page
        assert host.request("GET", f"/pay{asset}").http == 200
    described = host.request("GET", "/pay/openapi.json").json
    assert described["servers"] == [{"url": "/pay"}]
    assert "/api/v1/users" in described["paths"]


def test_a_body_that_comes_too_slowly_is_refused(start_host: StartHost, folder: Path) -> None:
    """SEC-8: as far as ASGI allows."""
    host = start_host("host:app", folder)
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as sender:
        head = "POST /pay/webhooks/payments HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
        sender.sendall(head.encode())
        assert sender.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_one_that_nobody_has_started_says_so(start_host: StartHost, folder: Path) -> None:
    """REC-5: the gateway comes again, and the log has the remedy."""
    host = start_host("host:forgetful", folder)
    reply = host.request("POST", "/pay/webhooks/payments", b"{}")
    assert is_problem(reply, 503)
    assert reply.json["code"] == "NOT_STARTED"
    assert reply.headers["retry-after"] == "1"
    told = (host.folder / "stdout").read_text(encoding="utf-8")
    assert "FastAPI(lifespan=pay.lifespan)" in told


def test_what_was_accepted_is_there_when_the_host_has_stopped(
    start_host: StartHost, folder: Path
) -> None:
    """REC-2"""
    host = start_host("host:app", folder)
    assert host.deliver(paid("p"), source="payments").http == 404, "it is mounted elsewhere"
    body = b'{"external_payment_id": "q", "status": "paid", "amount": "1.00", "currency": "RUB"}'
    assert deliver(host, "/pay", body)[0] == 200
    stop(host)
    again = start_host("host:app", folder)
    assert deliver(again, "/pay", body) == (200, "duplicate")
