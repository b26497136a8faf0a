"""A real `paidonce serve` process, and how a test talks to it: over sockets only."""

import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

from tests.support import fork_server
from tests.support.fork_server import Process

HERE: Final = "127.0.0.1"
KEY: Final = "po_test-key-that-nobody-else-knows"
SECRET: Final = "first-secret"
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 20.0
LOG_TIMEOUT_S: Final = 2.0
"""The log is written by a thread: a line may come a moment after the answer."""

Variables = Mapping[str, str | None]
"""What to change in the environment; None takes a variable out of it."""

BASIC: Final = f"""
environment = "development"
[sources.payments]
provider = "tilda"
secrets = ["{SECRET}", "second-secret"]
[plans.monthly]
price = "990.00"
currency = "RUB"
days = 30
default = true
[plans.yearly]
price = "9900.00"
currency = "RUB"
months = 12
"""


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    http: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """A server process of this test's own."""

    folder: Path
    process: Process
    port: int
    key: str = KEY
    unique: str = field(default_factory=lambda: uuid4().hex[:8])
    sender: str = HERE

    def seen_from(self, address: str) -> "Service":
        """The same server, talked to from another address: all of 127/8 are this machine's."""
        return replace(self, sender=address)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request on a connection of its own."""
        bound = None if self.sender == HERE else (self.sender, 0)
        connection = http.client.HTTPConnection(HERE, self.port, timeout=30, source_address=bound)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def api(
        self, method: str, path: str, body: Any = None, key: str | None = None, **query: Any
    ) -> Reply:
        """A call to the operators' API with a key."""
        headers = {"authorization": f"Bearer {key or self.key}", "content-type": "application/json"}
        full = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        return self.request(
            method, full, None if body is None else json.dumps(body).encode(), headers
        )

    def deliver(
        self,
        said: Mapping[str, Any] | bytes,
        *,
        secret: str = SECRET,
        source: str = "payments",
        **headers: str,
    ) -> Reply:
        """Deliver a body, signed."""
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        sent = {"content-type": "application/json", "x-signature": signature(body, secret)}
        return self.request("POST", f"/webhooks/{source}", body, sent | headers)

    def user(self, email: str) -> Any:
        """Create a user."""
        return self.api("POST", "/users", {"email": email}).json

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels, 0 if there are none."""
        return sum(value for _, value in self.series(name, **labels))

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """The series of a metric that have these labels, each with all its labels."""
        text = self.request("GET", "/metrics").body.decode()
        lines = (re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line) for line in text.splitlines())
        named = [(_labels(one[2] or ""), float(one[3])) for one in lines if one and one[1] == name]
        return [(has, value) for has, value in named if labels.items() <= has.items()]

    def log_lines(self, least: int = 1, /, **wanted: Any) -> list[dict[str, Any]]:
        """The log's lines that have these fields. Waits a little for so many: see LogWriter."""
        deadline_s = time.monotonic() + LOG_TIMEOUT_S
        while True:
            text = (self.folder / "stdout").read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]
            found = [line for line in lines if all(line.get(k) == v for k, v in wanted.items())]
            if (
                len(found) >= least
                or time.monotonic() > deadline_s
                or self.process.poll() is not None
            ):
                return found
            time.sleep(0.02)

    def end(self, with_signal: int = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(STOP_TIMEOUT_S)


def operators(service: Service) -> Service:
    """The same service, on its admin port."""
    told = (service.folder / "stderr").read_text(encoding="utf-8")
    found = re.search(r"(?:Operators use|Metrics are at) http://127\.0\.0\.1:(\d+)", told)
    assert found, told
    return replace(service, port=int(found[1]))


def paid(payment: str, **said: Any) -> dict[str, Any]:
    """What a paid tilda event says; keys given as None are left out."""
    usual = {
        "external_payment_id": payment,
        "event_id": f"evt-{payment}",
        "status": "paid",
        "amount": "990.00",
        "currency": "RUB",
        "email": "buyer@example.com",
    }
    return {key: value for key, value in (usual | said).items() if value is not None}


def signature(body: bytes, secret: str = SECRET) -> str:
    """An independent signer."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def started_service(
    folder: Path,
    database_url: str,
    config: str = "",
    environment: Variables | None = None,
    *,
    port: int = 0,
    arguments: Sequence[str] = (),
) -> Service:
    """Start `paidonce serve`, on a free port unless one is given, and wait until it is ready."""
    command = ("serve", "--port", str(port), *arguments)
    process = spawned(folder, database_url, config, environment, command)
    return Service(folder, process, ready_port(folder, process, port))


def started_worker(
    folder: Path, database_url: str, config: str = "", environment: Variables | None = None
) -> Service:
    """Start `paidonce work` and wait until it works. It has no port."""
    process = spawned(folder, database_url, config, environment, ("work",))
    return _without_port(folder, process, "processes pending events")


def started_relay(
    folder: Path, database_url: str, config: str = "", environment: Variables | None = None
) -> Service:
    """The same of `paidonce relay`."""
    process = spawned(folder, database_url, config, environment, ("relay",))
    return _without_port(folder, process, "publishes outbox messages")


def started_behind_the_door(folder: Path, database_url: str, command: str) -> Service:
    """Start `paidonce work` or `relay` with a port, where it says whether it is well."""
    process = spawned(folder, database_url, "", None, (command, "--port", "0"))
    return Service(folder, process, ready_port(folder, process))


def _without_port(folder: Path, process: Process, word: str) -> Service:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if word in (folder / "stderr").read_text(encoding="utf-8"):
            return Service(folder, process, port=0)
        time.sleep(0.05)
    raise _did_not_start(folder, process)


def spawned(
    folder: Path,
    database_url: str,
    config: str,
    environment: Variables | None,
    command: Sequence[str],
) -> Process:
    """Start a command of the program in a folder of its own, and wait for nothing."""
    text = f'{config or BASIC}\n[database]\nurl = "{database_url}"\n'
    (folder / "paidonce.toml").write_text(text, encoding="utf-8")
    given = {**os.environ, "PAIDONCE_BOOTSTRAP_KEY": KEY, **(environment or {})}
    variables = {name: value for name, value in given.items() if value is not None}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return fork_server.start(command, folder, variables, out.fileno(), err.fileno())


def ready_port(folder: Path, process: Process, wanted: int = 0) -> int:
    """Its port. One that was told to die soon may be dead already, by what was left to it."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    is_alive = True
    while time.monotonic() < deadline_s and is_alive:
        is_alive = process.poll() is None
        told = (folder / "stderr").read_text(encoding="utf-8")
        found = re.search(r"running at http://127\.0\.0\.1:(\d+)", told)
        port = int(found[1]) if found else wanted
        if port and process.poll() == -signal.SIGKILL:
            return port
        if found and _is_ready(port):
            return port
        time.sleep(0.05)
    raise _did_not_start(folder, process)


def _did_not_start(folder: Path, process: Process) -> AssertionError:
    process.kill()
    told = (folder / "stderr").read_text(encoding="utf-8") + (folder / "stdout").read_text()
    return AssertionError(f"the server did not start:\n{told}")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _labels(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))
