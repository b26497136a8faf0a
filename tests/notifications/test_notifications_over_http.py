"""A real service sends notifications, through crashes and unreachable channels."""

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support.notification_receivers import MailServer, Receiver
from tests.support.servers import StartService
from tests.support.service import BASIC, Service, paid
from tests.support.tools import paidonce, rows, until

SECRET: Final = "whsec_" + base64.b64encode(b"a secret of enough bytes").decode()
CHANNEL: Final = """
[notifications.ops]
kind = "webhook"
url = "env:TEST_URL"
secret = "env:TEST_SECRET"
every_s = 1
"""


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as running:
        yield running


Start = Callable[..., "asyncio.Future[Service]"]


@pytest.fixture
def start(start_service: StartService, receiver: Receiver) -> Start:
    """Starts a service that tells the receiver."""

    def begin(config: str = CHANNEL, **environment: str) -> "asyncio.Future[Service]":
        variables = {"TEST_URL": receiver.url, "TEST_SECRET": SECRET, **environment}
        started = asyncio.to_thread(start_service, BASIC + config, **variables)
        return asyncio.ensure_future(started)

    return begin


async def heard(receiver: Receiver, number: int) -> None:
    async with asyncio.timeout(120):
        while len(receiver.heard) < number:
            await asyncio.sleep(0.02)


async def deliver(service: Service, payment: str, **said: Any) -> str:
    reply = await asyncio.to_thread(service.deliver, paid(payment, **said))
    assert reply.http == 200, reply
    return str(reply.json["status"])


async def conflict(service: Service, payment: str) -> None:
    assert await deliver(service, payment) == "accepted"
    assert await deliver(service, payment, amount="1.00") == "conflict"


async def test_a_conflict_is_notified_with_a_link(start: Start, receiver: Receiver) -> None:
    """OBS-5 OBS-2 INB-2"""
    service = await start()
    await conflict(service, "p-1")
    await heard(receiver, 1)
    (said,) = receiver.verified(SECRET)
    (group,) = said["data"]["groups"]
    assert (group["kind"], group["source"], group["count"]) == ("conflict", "payments", 1)
    (item,) = group["newest"]
    key = {"authorization": f"Bearer {service.key}"}
    reply = await asyncio.to_thread(service.request, "GET", item["api"]["event"], None, key)
    assert reply.json["error_code"] == "PAYLOAD_CONFLICT"
    assert "buyer@example.com" not in str(said)

    def counted() -> float:
        return service.metric(
            "notification_attempts_total", channel="ops", kind="webhook", result="sent"
        )

    assert await asyncio.to_thread(until, counted) == 1
    assert service.metric("notifications_pending", channel="ops") == 0
    assert service.log_lines(event="notification_sent")
    log = (service.folder / "stdout").read_text()
    assert SECRET not in log
    assert receiver.url not in log


async def test_notifications_link_to_pages_that_are_served(
    start: Start, receiver: Receiver
) -> None:
    """OBS-5: whoever adds pages for payments and events adds them to `digest.PAGES`."""
    service = await start(PAIDONCE_SERVER__PUBLIC_URL="https://pay.example.com/")
    await conflict(service, "p-1")
    await heard(receiver, 1)
    (said,) = receiver.verified(SECRET)
    ((item,),) = [group["newest"] for group in said["data"]["groups"]]
    event = item["event_id"]
    assert item["commands"]["event"] == f"paidonce events show {event}"
    assert item["api"]["event"] == f"https://pay.example.com/api/v1/events/{event}"
    places = {name: f"/dashboard/{name}s/{item[f'{name}_id']}" for name in ("event", "payment")}
    served = {
        name: f"https://pay.example.com{place}"
        for name, place in places.items()
        if item[f"{name}_id"]
        and (await asyncio.to_thread(service.request, "GET", place)).http != 404
    }
    assert item["links"] == served


async def test_money_that_waits_is_told_once_by_one_of_several_processes(
    start_service: StartService, receiver: Receiver
) -> None:
    """OBS-5 PAY-5: neither by each process, nor with each message."""
    config = f"{BASIC}{CHANNEL}[alerts]\nunapplied_after_s = 1\n"
    service = await asyncio.to_thread(
        start_service,
        config,
        arguments=["--processes", "2"],
        TEST_URL=receiver.url,
        TEST_SECRET=SECRET,
    )
    assert await deliver(service, "w-1", email="nobody@example.com") == "accepted"
    await heard(receiver, 1)
    assert await deliver(service, "w-2", email=None) == "accepted"
    await heard(receiver, 2)
    groups = [group for said in receiver.verified(SECRET) for group in said["data"]["groups"]]
    found = [
        (group["kind"], group["count"], item["details"]["payment"], item["details"]["code"])
        for group in groups
        for item in group["newest"]
    ]
    assert found == [
        ("unapplied", 1, "w-1", "USER_MISSING"),
        ("unapplied", 1, "w-2", "UNLINKED_PAYMENT"),
    ]


async def test_a_message_sent_before_a_crash_is_sent_again_with_the_same_id(
    start: Start, receiver: Receiver
) -> None:
    """OBS-5 REL-1: at least once, and receivers can deduplicate."""
    service = await start(PAIDONCE_CRASH_AT="notified:1")
    await conflict(service, "p-1")
    await heard(receiver, 1)
    code = await asyncio.to_thread(service.process.wait, 20)
    assert code == -signal.SIGKILL
    await start()
    await heard(receiver, 2)
    assert len(set(receiver.ids)) == 1
    first, second = receiver.verified(SECRET)
    assert first == second


async def test_an_unreachable_channel_delays_neither_deliveries_nor_shutdown(
    start: Start, receiver: Receiver, database_url: str
) -> None:
    """OBS-5: pending notifications are sent by the next process."""
    receiver.is_hanging = True
    service = await start()
    await asyncio.to_thread(service.user, "buyer@example.com")
    await deliver(service, "p-0", amount="1.00")
    await heard(receiver, 1)
    for number in range(1, 50):
        assert await deliver(service, f"p-{number}") == "success"
        await deliver(service, f"p-{number}", amount="1.00")
    assert len(receiver.heard) == 1
    (row,) = await asyncio.to_thread(
        rows, database_url, "SELECT count(*) AS n FROM notifications WHERE message_id IS NULL"
    )
    assert row["n"] == 49
    assert await asyncio.to_thread(service.end) == 0
    receiver.is_hanging = False
    await start()
    await heard(receiver, 3)
    first, again, rest = receiver.verified(SECRET)
    assert first == again
    assert rest["data"]["subject"] == "Paidonce: 49 conflicts"


TWO: Final = """
[notifications.post]
kind = "email"
smtp = "env:TEST_SMTP"
from = "ops@example.com"
to = ["a@example.com"]
[notifications.chat]
kind = "slack"
url = "env:TEST_URL"
"""


async def test_each_channel_can_be_tested(tmp_path: Path, receiver: Receiver) -> None:
    """OBS-5 USE-2: without a database; the exit code says whether all were sent."""
    (tmp_path / "paidonce.toml").write_text(BASIC + TWO, encoding="utf-8")

    async def tried(*arguments: str, smtp: str) -> Any:
        variables: Any = {"TEST_URL": receiver.url, "TEST_SMTP": smtp}
        command = ("notify", "test", *arguments)
        return await asyncio.to_thread(paidonce, tmp_path, *command, **variables)

    async with MailServer() as server:
        done = await tried(smtp=f"smtp://127.0.0.1:{server.port}")
        (mail,) = server.mails
    assert done.returncode == 0, done.stderr
    assert "answered 200" in done.stdout
    assert mail["subject"] == "Paidonce: this is a test of the channel post"
    assert receiver.texts == ["Paidonce: this is a test of the channel chat"]

    hidden = "smtp://me:hunter2@127.0.0.1:1"
    failed = await tried("--json", smtp=hidden)
    assert failed.returncode == 1
    assert [one["is_sent"] for one in json.loads(failed.stdout)] == [False, True]
    assert (await tried("--channel", "chat", smtp=hidden)).returncode == 0
    unknown = await tried("--channel", "cat", smtp=hidden)
    assert unknown.returncode == 2
    assert "post, chat" in unknown.stderr
    assert "hunter2" not in failed.stdout + failed.stderr + unknown.stderr
