"""`paidonce send`, and the demo that runs without any configuration."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from paidonce import __version__
from paidonce.db.embedded.installation import wheel_installation
from tests.support.demo import Demo, databases, demo_folder
from tests.support.servers import Shared
from tests.support.service import Service
from tests.support.tools import free_port, items, paidonce, until

PROGRAMS: Final = wheel_installation() / "bin"


def _send(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{service.port}"
    return paidonce(service.folder, "send", "--source", "payments", "--url", url, *arguments)


def test_send_delivers_a_signed_webhook_once_and_again(shared: Shared) -> None:
    """OPS-6 USE-2"""
    service = shared.service
    service.user("cli@example.com")
    line = ["--payment-id", "cli-1", "--email", "cli@example.com", "--amount", "990.00"]
    first, again = _send(service, *line), _send(service, *line)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "success" in first.stdout
    assert "duplicate" in again.stdout
    (payment,) = items(service, "/payments", email="cli@example.com")
    assert payment["external_payment_id"] == "cli-1"
    assert payment["applied_at"] is not None
    (event,) = items(service, "/events", payment="cli-1")
    assert event["status"] == "PROCESSED"


def test_send_many_at_once_shows_one_success_and_speaks_json(shared: Shared) -> None:
    """OPS-6 USE-2"""
    service = shared.service
    service.user("ten@example.com")
    line = ["--payment-id", "cli-10", "--email", "ten@example.com", "--times", "10"]
    done = _send(service, *line, "--concurrency", "10", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"success"') == 1
    assert done.stdout.count('"duplicate"') == 9
    try:
        json.loads(done.stdout)
    except ValueError:
        for text in done.stdout.splitlines():
            json.loads(text)
    (payment,) = items(service, "/payments", email="ten@example.com")
    assert payment["captured"] == "990.00"


def test_send_says_what_is_wrong(shared: Shared) -> None:
    """OPS-6 USE-2 USE-3"""
    service = shared.service
    port = free_port()
    gone = paidonce(
        service.folder, "send", "--source", "payments", "--url", f"http://127.0.0.1:{port}"
    )
    assert gone.returncode != 0
    assert f"127.0.0.1:{port}" in gone.stderr
    assert "paidonce serve" in gone.stderr, "the remedy"
    assert "Traceback" not in gone.stderr
    unknown = _send(service, "--source", "nobody")
    assert unknown.returncode != 0
    assert "nobody" in unknown.stderr
    assert "payments" in unknown.stderr, "the remedy: what there is"
    assert "Traceback" not in unknown.stderr
    ordered = _send(service, "--order", "o-1", "--email", "nobody@example.com")
    assert (ordered.returncode, "tilda" in ordered.stderr) == (0, True), ordered.stderr
    assert "no field for order" in ordered.stderr
    assert "no place for email" not in ordered.stderr


def test_the_version_is_told(tmp_path: Path) -> None:
    """USE-2"""
    done = paidonce(tmp_path, "--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__), done.stderr


def test_the_url_of_a_database_of_ones_own_is_the_configured_one(tmp_path: Path) -> None:
    """USE-2: nothing is connected to."""
    url = "postgresql://me:secret@192.0.2.1/name"
    done = paidonce(tmp_path, "database", "url", PAIDONCE_DATABASE__URL=url)
    assert (done.returncode, done.stdout.strip()) == (0, url), done.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that the embedded database's own user can reach."""
    with demo_folder() as made:
        yield made


def _run(line: list[str], folder: Path) -> str:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_needs_nothing_and_remembers_everything(folder: Path) -> None:
    """USE-1 and §15: prints URL, key and a line to try; a second start prints no key twice."""
    port = free_port()
    script = str(Path(sys.executable).parent / "paidonce")
    demo = Demo([script], folder, port)
    try:
        assert until(demo.is_ready, 60), demo.told()
        assert until(lambda: " send " in demo.told()), demo.told()
        assert f"http://127.0.0.1:{port}" in demo.told()
        (key,) = re.findall(r"po_[\w-]{16,}", demo.told())
        line = demo.line()
        assert "success" in _run(line, folder)
        assert "duplicate" in _run(line, folder)
        demo.service.key = key
        (payment,) = items(demo.service, "/payments")
        assert payment["source"] == "demo"
        assert payment["applied_at"] is not None
        subscriptions = items(demo.service, "/subscriptions", user_id=payment["user_id"])
        events = items(demo.service, "/events")
        url = _run([script, "database", "url"], folder).strip()
        count = _run([str(PROGRAMS / "psql"), url, "-Atc", "SELECT count(*) FROM payments"], folder)
        assert count == "1\n"
        assert "COPY public.payments" in _run([str(PROGRAMS / "pg_dump"), url], folder)
        demo.process.send_signal(signal.SIGTERM)
        demo.process.wait(15)
        stopped = subprocess.run([script, "database", "url"], cwd=folder, capture_output=True)
        assert (stopped.returncode, stopped.stdout) == (1, b"")
        assert b"is not running; `paidonce serve` starts it" in stopped.stderr

        demo = Demo([script], folder, port)
        assert until(demo.is_ready, 60), demo.told()
        assert until(lambda: " send " in demo.told()), demo.told()
        assert "po_" not in demo.told()
        demo.service.key = key
        assert items(demo.service, "/payments") == [payment]
        assert items(demo.service, "/events") == events
        assert items(demo.service, "/subscriptions", user_id=payment["user_id"]) == subscriptions
        assert "duplicate" in _run(line, folder)
        other = paidonce(folder, "keys", "create", "--name", "second", "--scope", "read")
        assert other.returncode == 0, other.stderr
        assert demo.service.api("GET", "/events", key=other.stdout.strip()).http == 200
        demo.process.send_signal(signal.SIGTERM)
        demo.process.wait(15)
    finally:
        if demo.process.poll() is None:
            demo.process.terminate()
            demo.process.wait(15)


def test_the_line_that_the_demo_prints_works_however_it_was_started(folder: Path) -> None:
    """USE-1: `python -m paidonce serve` invites to a command that can be run."""
    demo = Demo([sys.executable, "-m", "paidonce"], folder, free_port())
    try:
        assert until(demo.is_ready, 60), demo.told()
        assert until(lambda: " send " in demo.told()), demo.told()
        assert "success" in _run(demo.line(), folder)
    finally:
        demo.process.terminate()
        demo.process.wait(15)


def test_the_demo_takes_its_database_along_when_it_ends(folder: Path) -> None:
    """§15 Commands, DAT-1: SIGTERM is an ordinary end, and nothing is left running."""
    demo = Demo([sys.executable, "-m", "paidonce"], folder, free_port())
    assert until(demo.is_ready, 60), demo.told()
    assert databases(folder)
    demo.process.terminate()
    code = demo.process.wait(15)
    assert until(lambda: databases(folder) == []), "the embedded database was left running"
    assert code == 0
