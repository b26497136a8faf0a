"""The parent of several processes is killed: its children free the port at once, and end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from tests.runtime.test_processes import children, is_there
from tests.support.demo import Demo, databases, demo_folder
from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid, spawned
from tests.support.tools import event, free_port, until

CONFIG: Final = 'handlers = ["blocking"]\n' + BASIC
HANDLERS: Final = """
import time
from pathlib import Path
import paidonce

@paidonce.on("payment.succeeded")
async def block(event: paidonce.HookEvent) -> None:
    Path("begun").touch()
    time.sleep(300)
"""


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Processes that the test leaves without a parent."""
    pids: list[int] = []
    yield pids
    for pid in filter(is_there, pids):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def two(start_service: StartService, tmp_path: Path, orphans: list[int]) -> Service:
    """A service of two processes, with a handler that blocks."""
    (tmp_path / "blocking.py").write_text(HANDLERS, encoding="utf-8")
    service = start_service(CONFIG, arguments=["--processes", "2"], PYTHONPATH=str(tmp_path))
    assert until(lambda: len(children(service.process.pid)) == 2)
    orphans += children(service.process.pid)
    return service


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that the embedded database's own user can reach."""
    with demo_folder() as made:
        yield made


def kill_parent(service: Service) -> None:
    os.kill(service.process.pid, signal.SIGKILL)
    assert service.process.wait(10) == -signal.SIGKILL


def can_listen(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
    return True


async def test_what_was_accepted_is_answered_when_the_parent_is_killed(
    two: Service, orphans: list[int], database_url: str
) -> None:
    """Section 15, REC-2: nobody listens any more, and then all end."""
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE webhook_events")
        reply = asyncio.create_task(asyncio.to_thread(two.deliver, paid("accepted")))
        waiting = (
            "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'webhook_events'::regclass"
        )
        while not await connection.fetch(waiting):
            await asyncio.sleep(0.01)
        kill_parent(two)
        assert until(lambda: can_listen(two.port))
    assert (await reply).http == 200
    await connection.close()
    assert until(lambda: not any(map(is_there, orphans)))


def test_a_blocked_child_ends_when_the_parent_is_killed(
    two: Service, orphans: list[int], start_service: StartService
) -> None:
    """Section 15: meanwhile a new server takes the port, and the event is not lost."""
    two.user("blocks@example.com")
    event_id = two.deliver(paid("blocks", email="blocks@example.com")).json["event_id"]
    assert until((two.folder / "begun").exists)
    kill_parent(two)
    assert until(lambda: can_listen(two.port))
    new = start_service(BASIC, port=two.port)
    assert until(lambda: event(new, event_id)["status"] == "PROCESSED")
    assert until(lambda: not any(map(is_there, orphans)))


def test_frozen_children_end_when_the_parent_is_killed(two: Service, orphans: list[int]) -> None:
    """Section 15: a stopped process holds the port, and could not end by itself."""
    for pid in orphans:
        os.kill(pid, signal.SIGSTOP)
    kill_parent(two)
    assert until(lambda: can_listen(two.port))
    assert until(lambda: not any(map(is_there, orphans)))


def test_children_that_still_start_end_when_the_parent_is_killed(
    tmp_path: Path, orphans: list[int]
) -> None:
    """Section 15: they wait for a database that does not answer."""
    port = free_port()
    command = ("serve", "--port", str(port), "--processes", "2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        parent = spawned(tmp_path, url, BASIC, None, command)
        silent.accept()[0].close()
        assert until(lambda: len(children(parent.pid)) == 2)
        orphans += children(parent.pid)
        parent.kill()
        parent.wait(10)
        assert until(lambda: can_listen(port))
        assert until(lambda: not any(map(is_there, orphans)))


def test_the_embedded_database_ends_when_the_parent_is_killed(folder: Path) -> None:
    """Section 15, DAT-1: the last child stops it."""
    demo = Demo([sys.executable, "-m", "paidonce"], folder, free_port(), "--processes", "2")
    assert until(demo.is_ready, 60), demo.told()
    assert databases(folder)
    kill_parent(demo.service)
    assert until(lambda: databases(folder) == []), "the embedded database was left running"
