"""What several flow tests need: storms of deliveries, rows, commands, waiting."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from tests.support import fork_server
from tests.support.service import Reply, Service, signature

Row = dict[str, Any]
T = TypeVar("T")

PORTS_BELOW_EPHEMERAL: Final = range(20_000, 32_000)
PROBLEM_FIELDS: Final = {"type", "title", "status", "code", "detail", "request_id"}


def rows(database_url: str, sql: str, *values: object) -> list[Row]:
    """What a query finds, asked from a thread with an event loop of its own."""

    async def ask() -> list[Row]:
        connection = await asyncpg.connect(database_url)
        try:
            return [dict(record) for record in await connection.fetch(sql, *values)]
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def storm(service: Service, said: Sequence[Mapping[str, Any]], connections: int) -> list[Reply]:
    """Deliver all at once over this many connections, each of which must stay open throughout."""
    gate = threading.Barrier(connections)

    def sender(share: Sequence[Mapping[str, Any]]) -> list[Reply]:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.connect()
        connection.auto_open = 0
        gate.wait(30)
        try:
            return [deliver_on(connection, one) for one in share]
        finally:
            connection.close()

    with ThreadPoolExecutor(connections) as pool:
        shares = [said[first::connections] for first in range(connections)]
        return [reply for replies in pool.map(sender, shares) for reply in replies]


def deliver_on(connection: http.client.HTTPConnection, said: Mapping[str, Any]) -> Reply:
    """Deliver over an open connection."""
    body = json.dumps(said).encode()
    headers = {"content-type": "application/json", "x-signature": signature(body)}
    connection.request("POST", "/webhooks/payments", body, headers)
    response = connection.getresponse()
    names = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, names, response.read())


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Run all in threads that begin at the same instant."""
    gate = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        gate.wait(30)
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def until(found: Callable[[], T], timeout_s: float = 120.0) -> T:
    """Ask until the answer is true, and return it; at the deadline, the last answer."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := found()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return answer


def items(service: Service, path: str, **query: Any) -> list[Any]:
    """The items of one page."""
    reply = service.api("GET", path, **query)
    assert reply.http == 200, reply.body
    found: list[Any] = reply.json["items"]
    return found


def event(service: Service, event_id: str) -> Any:
    """One event with its trail."""
    reply = service.api("GET", f"/events/{event_id}")
    assert reply.http == 200, reply.body
    return reply.json


def actions_of(service: Service, event_id: str) -> list[str]:
    """What was done to an event."""
    return [item["action"] for item in event(service, event_id)["trail"]]


def period_end(service: Service, user_id: str) -> datetime:
    """When a user's only subscription ends."""
    (subscription,) = items(service, "/subscriptions", user_id=user_id)
    return datetime.fromisoformat(subscription["current_period_end"])


def is_problem(reply: Reply, http: int) -> bool:
    """Whether this is a proper RFC 9457 answer; raises what is wrong with it."""
    assert reply.http == http, reply
    assert reply.headers["content-type"].split(";")[0] == "application/problem+json", reply
    assert reply.json.keys() >= PROBLEM_FIELDS, reply
    assert reply.json["status"] == http
    assert isinstance(reply.json["code"], str)
    assert reply.json["code"]
    return True


def paidonce(
    folder: Path, *arguments: str, timeout_s: float = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    variables = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    return fork_server.run(arguments, folder, variables, timeout_s)


def start_in_each(folder: Path) -> dict[str, tuple[int, str]]:
    """Exit code and words of `paidonce serve` in each folder; the modules are imported once."""
    script = """
import os, pathlib, signal, sys
import paidonce.cli.server
from paidonce.cli import main
os.environ.pop("TEST_NOT_SET", None)
os.environ["TEST_EMPTY"] = ""
for folder in sorted(pathlib.Path.cwd().iterdir()):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        told = os.open("told", os.O_WRONLY | os.O_CREAT)
        os.dup2(told, 1)
        os.dup2(told, 2)
        sys.argv = ["paidonce", "serve"]
        if not folder.name.startswith("port"):
            sys.argv += ["--port", "0"]
        signal.alarm(5)  # ends one that started in spite of its mistake
        main()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / "code").write_text(str(code))
"""
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, timeout=120)
    return {
        one.name: (int((one / "code").read_text()), (one / "told").read_text())
        for one in folder.iterdir()
    }


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection gets before it is used."""
    for port in random.sample(PORTS_BELOW_EPHEMERAL, len(PORTS_BELOW_EPHEMERAL)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
