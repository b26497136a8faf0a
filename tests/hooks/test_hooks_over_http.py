"""The user's own handlers in real servers and workers, which die at any moment (FUL-5)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from paidonce.runtime.crashpoints import CrashPoint
from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import event, items, rows, start_in_each, until

HANDLERS: Final = """
import asyncio, os, signal, time
import paidonce

@paidonce.on("payment.succeeded")
async def note(event: paidonce.HookEvent) -> None:
    await event.connection.execute(
        "INSERT INTO notes VALUES ($1, $2)", event.payment.id, event.source
    )
    if os.environ.get("DIE_IN_HANDLER") and event.payment.ids[0].value == "p-1":
        os.kill(os.getpid(), signal.SIGKILL)
    if event.payment.ids[0].value.startswith("slow"):
        open("begun", "w").close()
        await asyncio.sleep(60)
    if event.payment.ids[0].value.startswith("thread"):
        open("begun", "w").close()
        await asyncio.to_thread(time.sleep, 60)
    while event.payment.ids[0].value.startswith("deaf"):
        open("begun", "w").close()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    if event.payment.ids[0].value.startswith("late"):
        raise paidonce.Retry("not yet", after=600)
    if event.payment.ids[0].value.startswith("never"):
        raise paidonce.Reject("NOT_SOLD_HERE", "we do not sell that")
"""
CONFIG: Final = 'handlers = ["own.notes"]\n' + BASIC
AGREE: Final = """
SELECT count(*) AS n FROM payments AS p FULL JOIN notes AS n ON n.payment_id = p.id
 WHERE (p.applied_at IS NULL) <> (n.payment_id IS NULL)
"""
NUMBER: Final = 6


@pytest.fixture
def own(tmp_path: Path, database_url: str) -> dict[str, str]:
    """A table and a package of the user's own; what a process has to know to find it."""
    package = tmp_path / "path" / "own"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "notes.py").write_text(HANDLERS, encoding="utf-8")
    rows(database_url, "CREATE TABLE notes (payment_id uuid, source text)")
    path = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def deliver(service: Service, number: int = NUMBER) -> list[Any]:
    replies = []
    for one in range(number):
        try:
            replies.append(service.deliver(paid(f"p-{one}")))
        except OSError:
            break
    return replies


def noted(database_url: str) -> int:
    """How many notes there are; each payment has one if it is applied, and else none."""
    assert rows(database_url, AGREE) == [{"n": 0}]
    (found,) = rows(
        database_url, "SELECT count(*) AS n, count(DISTINCT payment_id) AS d FROM notes"
    )
    assert found["n"] == found["d"]
    return int(found["n"])


def test_a_delivery_is_accepted_and_handled_once(
    start_service: StartService, database_url: str, own: dict[str, str]
) -> None:
    """FUL-5 REC-4"""
    service = start_service(CONFIG, **own)
    service.user("buyer@example.com")
    for reply in deliver(service):
        assert (reply.http, reply.json["status"]) == (200, "accepted")
    assert {reply.json["status"] for reply in deliver(service)} == {"duplicate"}
    assert until(lambda: noted(database_url) == NUMBER)
    ignored = service.deliver(paid("not", status="created"))
    assert ignored.json["status"] == "ignored", "what says nothing of money has nothing to wait for"


def test_a_handlers_error_is_shown_to_operators(
    start_service: StartService, database_url: str, own: dict[str, str]
) -> None:
    """FUL-5 PAY-8"""
    service = start_service(CONFIG, **own)
    service.user("buyer@example.com")
    late = service.deliver(paid("late")).json["event_id"]
    never = service.deliver(paid("never")).json["event_id"]
    assert until(lambda: event(service, late)["error_code"] and event(service, never)["error_code"])
    shown = event(service, late)
    assert (shown["status"], shown["error_code"]) == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert shown["error_message"] == "not yet"
    shown = event(service, never)
    assert (shown["status"], shown["error_code"]) == ("FAILED_FINAL", "NOT_SOLD_HERE")
    reviews = {one["review"] for one in items(service, "/payments", applied="false")}
    assert reviews == {"HANDLER_FAILED", "NOT_SOLD_HERE"}
    labels = {"currency": "RUB", "reason": "NOT_SOLD_HERE"}
    assert service.metric("payments_unapplied", **labels) == 1
    assert noted(database_url) == 0


@pytest.mark.parametrize(
    "moment",
    [
        f"{CrashPoint.COMMITTED}:3",
        pytest.param(f"{CrashPoint.CLAIMED}:20", marks=pytest.mark.soak),
        pytest.param(f"{CrashPoint.WRITTEN}:4", marks=pytest.mark.soak),
        pytest.param(f"{CrashPoint.HOOKS_CALLED}:1", marks=pytest.mark.soak),
        f"{CrashPoint.HOOKS_CALLED}:4",
        f"{CrashPoint.WORKER_COMMITTED}:20",
    ],
)
def test_notes_and_payments_agree_after_any_crash(
    start_service: StartService, database_url: str, own: dict[str, str], moment: str
) -> None:
    """FUL-5 REL-1"""
    service = start_service(CONFIG, **own)
    service.user("buyer@example.com")
    service.end()
    dying = start_service(CONFIG, **own, PAIDONCE_CRASH_AT=moment)
    deliver(dying)
    assert dying.process.wait(30) == -signal.SIGKILL
    assert noted(database_url) <= NUMBER
    service = start_service(CONFIG, **own)
    assert {reply.http for reply in deliver(service)} == {200}
    assert until(lambda: noted(database_url) == NUMBER)


def test_a_handler_that_dies_with_its_process_has_done_nothing(
    start_service: StartService, database_url: str, own: dict[str, str]
) -> None:
    """FUL-5 REL-1 RET-4"""
    dying = start_service(CONFIG, **own, DIE_IN_HANDLER="yes")
    dying.user("buyer@example.com")
    deliver(dying)
    assert dying.process.wait(30) == -signal.SIGKILL
    before = noted(database_url)
    assert before < NUMBER
    service = start_service(CONFIG, **own)
    assert {reply.http for reply in deliver(service)} == {200}
    assert until(lambda: noted(database_url) == NUMBER)


def test_a_stop_does_not_wait_for_a_slow_handler(
    start_service: StartService, database_url: str, own: dict[str, str]
) -> None:
    """FUL-5 section 15: exit 0 within 10 s, and what was begun is done by the next one."""
    service = start_service(f"handler_timeout_s = 25\n{CONFIG}", **own)
    service.user("buyer@example.com")
    event_id = service.deliver(paid("slow")).json["event_id"]
    assert until((service.folder / "begun").exists)
    started_s = time.monotonic()
    assert service.end() == 0
    assert time.monotonic() - started_s < 10
    assert noted(database_url) == 0
    waiting = "SELECT status FROM webhook_events WHERE id = $1::text::uuid"
    assert rows(database_url, waiting, event_id) == [{"status": "VALIDATED"}]


@pytest.mark.parametrize(
    ("kind", "processes"),
    [
        ("deaf", "1"),
        ("thread", "2"),
        pytest.param("deaf", "2", marks=pytest.mark.soak),
        pytest.param("thread", "1", marks=pytest.mark.soak),
    ],
)
def test_a_handler_that_cannot_be_canceled_does_not_keep_the_process_alive(
    start_service: StartService, database_url: str, own: dict[str, str], kind: str, processes: str
) -> None:
    """FUL-5 section 15: exit 0 within 10 s, however many of them there are."""
    config = f"handler_timeout_s = 25\n{CONFIG}"
    service = start_service(config, arguments=["--processes", processes], **own)
    service.user("buyer@example.com")
    for number in range(NUMBER):
        service.deliver(paid(f"{kind}-{number}"))
    assert until((service.folder / "begun").exists)
    started_s = time.monotonic()
    assert service.end() == 0
    assert time.monotonic() - started_s < 10
    assert noted(database_url) == 0


def test_a_handler_that_cannot_be_canceled_does_not_keep_the_worker_alive(
    start_service: StartService, start_worker: StartService, own: dict[str, str]
) -> None:
    """FUL-5 section 15"""
    service = start_service(CONFIG, arguments=["--roles", "web"], **own)
    service.user("buyer@example.com")
    worker = start_worker(f"handler_timeout_s = 25\n{CONFIG}", **own)
    service.deliver(paid("deaf"))
    assert until((worker.folder / "begun").exists)
    assert worker.end() == 0


def test_several_processes_and_workers_handle_each_once(
    start_service: StartService,
    start_worker: StartService,
    database_url: str,
    own: dict[str, str],
) -> None:
    """FUL-5 RET-4"""
    start_worker(CONFIG, **own)
    service = start_service(CONFIG, arguments=["--processes", "2"], **own)
    service.user("buyer@example.com")
    assert {reply.http for reply in deliver(service, 40)} == {200}
    assert until(lambda: noted(database_url) == 40)


def test_payments_of_a_new_user_are_handled_before_the_response(
    start_service: StartService, database_url: str, own: dict[str, str]
) -> None:
    """FUL-5 PAY-5"""
    service = start_service(CONFIG, **own)
    reply = service.deliver(paid("early"))
    assert until(lambda: event(service, reply.json["event_id"])["error_code"]) == "USER_MISSING"
    service.user("buyer@example.com")
    assert noted(database_url) == 1


def test_invalid_handlers_are_reported_at_start(tmp_path: Path) -> None:
    """FUL-5 USE-3: with the key and the remedy."""
    wrong = {
        "missing": ("", "cannot be imported: ModuleNotFoundError"),
        "broken": ("raise LookupError('x')", "cannot be imported: LookupError"),
        "nothing": ("import paidonce", "registers no handler"),
        "typo": (
            "import paidonce\n@paidonce.on('payment.suceeded')\nasync def f(h): ...",
            "there is no such name; names are payment.succeeded, payment.refunded",
        ),
        "sync": (
            "import paidonce\n@paidonce.on('payment.succeeded')\ndef f(h): ...",
            "give it an async function",
        ),
    }
    for name, (source, _) in wrong.items():
        folder = tmp_path / name
        folder.mkdir()
        module = "not_there" if name == "missing" else f"own_{name}"
        (folder / f"own_{name}.py").write_text(source, encoding="utf-8")
        text = f'handlers = ["{module}"]\n{BASIC}\n[database]\nurl = "postgresql://x@127.0.0.1:1/x"'
        (folder / "paidonce.toml").write_text(text, encoding="utf-8")
    for name, (code, told) in start_in_each(tmp_path).items():
        assert code == 2, (name, told)
        assert wrong[name][1] in " ".join(told.split()), (name, told)
        assert "handlers[0]" in told or name in ("typo", "sync")


def test_registering_a_handler_does_not_import_the_server() -> None:
    """USE-6"""
    script = (
        "import sys, paidonce\n"
        "@paidonce.on('payment.succeeded')\n"
        "async def f(event): ...\n"
        "assert not {'fastapi', 'alembic', 'sqlalchemy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
